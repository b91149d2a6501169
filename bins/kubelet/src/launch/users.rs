//! Which users the daemons and their helpers run as: the system's named users where they exist, else a block of eight ids that no
//! other instance has and the user database does not know.

use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use bulkhead_config::Users;
use bulkhead_daemon::privileges::Program;
use bulkhead_sys::spawn::User;

use super::claims::{Claim, ClaimError, Holder, Registry, Subject};

/// Ids that distributions leave free (systemd's table of uid ranges); below 65536, so that no user namespace of a pod
/// maps them.
const FIRST: u32 = 60706;
const LAST: u32 = 61183;
/// Four for the daemons ([`Users::block`]), three for helpers ([`of_helper`]), and one that nobody has.
const BLOCK: u32 = 8;
/// What is claimed at a time: a node of an earlier version has such a block alone.
const HALF: u32 = 4;

const NAMES: [&str; 3] = ["kubelet-syncd", "kubelet-evictiond", "kubelet-statusd"];
/// The shared group of the named users.
const GROUP: &str = "kubelet-daemons";

/// Users and the claims on them.
#[derive(Debug)]
pub struct ClaimedUsers {
    pub users: Users,
    pub claims: Vec<Claim>,
}

/// Claims users. A root directory gets the same block again where it is free, so that its files keep their owners.
pub fn claim(registry: &Registry, holder: &Holder, root_dir: &Path) -> Result<ClaimedUsers, ClaimError> {
    let passwd = passwd();
    let group = std::fs::read_to_string("/etc/group").unwrap_or_default();
    if let Some(users) = named(&passwd, &group) {
        match registry.claim(Subject::NamedUsers, holder) {
            Ok(claim) => return Ok(ClaimedUsers { users, claims: vec![claim] }),
            // Instances never share users: a second one takes a block.
            Err(ClaimError::Held { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    let taken: Vec<u32> = ids(&passwd).chain(ids(&group)).collect();
    let recorded = recorded(root_dir);
    let anothers = |base| halves(base).into_iter().any(|half| registry.is_anothers(Subject::UidBlock(half), root_dir));
    for base in candidates(recorded, &taken, anothers) {
        match claim_block(registry, holder, base) {
            Ok(claims) => {
                if recorded != Some(base) {
                    record(root_dir, base);
                }
                return Ok(ClaimedUsers { users: Users::block(base), claims });
            }
            Err(ClaimError::Held { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Err(ClaimError::NoFreeUsers { first: FIRST, last: LAST })
}

const fn halves(base: u32) -> [u32; 2] {
    [base, base + HALF]
}

/// Both halves, or neither.
fn claim_block(registry: &Registry, holder: &Holder, base: u32) -> Result<Vec<Claim>, ClaimError> {
    let mut claims = Vec::new();
    for half in halves(base) {
        match registry.claim(Subject::UidBlock(half), holder) {
            Ok(claim) => claims.push(claim),
            Err(error) => {
                claims.into_iter().for_each(Claim::release);
                return Err(error);
            }
        }
    }
    Ok(claims)
}

/// Bases in the order in which they are tried: our own of last time, those of nobody, and last those of nodes that were
/// killed, which would find their files in other hands. A record of an earlier version may begin at any half. Pure.
fn candidates(recorded: Option<u32>, taken: &[u32], anothers: impl Fn(u32) -> bool) -> Vec<u32> {
    let from = |step: u32| (FIRST..=LAST - BLOCK + 1).step_by(step as usize);
    let blocks = from(BLOCK);
    let free = |base: &u32| !(*base..*base + BLOCK).any(|id| taken.contains(&id));
    let mut order: Vec<u32> = recorded.into_iter().filter(|base| from(HALF).any(|b| b == *base)).collect();
    let (reserved, nobodys): (Vec<u32>, Vec<u32>) =
        blocks.filter(|base| Some(*base) != recorded).partition(|base| anothers(*base));
    order.extend(nobodys);
    order.extend(reserved);
    order.retain(free);
    order
}

/// The named users, when all of them and their group exist.
pub fn named(passwd: &str, group: &str) -> Option<Users> {
    let user = |name: &str| {
        let fields: Vec<&str> = passwd.lines().find(|line| line.split(':').next() == Some(name))?.split(':').collect();
        Some((fields.get(2)?.parse::<u32>().ok()?, fields.get(3)?.parse::<u32>().ok()?))
    };
    let gid = group.lines().find(|line| line.split(':').next() == Some(GROUP))?.split(':').nth(2)?.parse().ok()?;
    let [(syncd, syncd_gid), (evictiond, evictiond_gid), (statusd, statusd_gid)] =
        [user(NAMES[0])?, user(NAMES[1])?, user(NAMES[2])?];
    (syncd != 0 && evictiond != 0 && statusd != 0).then_some(Users {
        gid,
        syncd,
        evictiond,
        statusd,
        syncd_gid,
        evictiond_gid,
        statusd_gid,
    })
}

/// The machine's users; none where that cannot be read.
pub fn passwd() -> String {
    std::fs::read_to_string("/etc/passwd").unwrap_or_default()
}

/// Which number of our own block a helper has, as user and as group: one of its own, and not the first, which is the group of the
/// daemons' sockets. Those that are root's have none.
const fn of_helper(program: Program) -> Option<u32> {
    match program {
        Program::Walker => Some(4),
        Program::Journal => Some(5),
        Program::Iptables => Some(6),
        Program::Launcher | Program::Daemon(_) | Program::Disks | Program::Flexvolume => None,
    }
}

/// User and group of a helper: a number of our own block, or the user of the program's name. Pure.
pub fn helper(users: Users, program: Program, passwd: &str) -> Option<User> {
    let (uid, gid) = if users == Users::block(users.gid) {
        let id = users.gid + of_helper(program)?;
        (id, id)
    } else {
        let line = passwd.lines().find(|line| line.split(':').next() == Some(program.name()))?;
        let mut fields = line.split(':').skip(2);
        (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?)
    };
    (uid != 0).then_some(User { uid, gid, groups: Vec::new() })
}

/// Third field of each line: uid of a passwd line, gid of a group line.
fn ids(database: &str) -> impl Iterator<Item = u32> + '_ {
    database.lines().filter_map(|line| line.split(':').nth(2)?.parse().ok())
}

fn record_path(root_dir: &Path) -> PathBuf {
    root_dir.join("bulkhead").join("uid-block")
}

/// A record that is none of this version's is kept under another name: whose files are whose may be wanted again.
fn recorded(root_dir: &Path) -> Option<u32> {
    let path = record_path(root_dir);
    let text = std::fs::read_to_string(&path).ok()?;
    let base = text.trim().parse().ok();
    if base.is_none() {
        let kept = path.with_extension("damaged");
        let done = std::fs::rename(&path, &kept);
        tracing::error!(kept = %kept.display(), ?done, "failed to read the record of the daemons' users: they may change");
    }
    base
}

/// Best effort: without the record another block is taken next time and the state folders change hands.
fn record(root_dir: &Path, base: u32) {
    let path = record_path(root_dir);
    let folder = |mode| {
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true).mode(mode);
        builder
    };
    let written = folder(0o750)
        .create(root_dir)
        .and_then(|()| folder(0o755).create(root_dir.join("bulkhead")))
        .and_then(|()| std::fs::write(&path, format!("{base}\n")));
    if let Err(error) = written {
        tracing::warn!(%error, path = %path.display(), "could not record the block of users");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recorded_block_comes_first_and_taken_ids_never() {
        let order = candidates(Some(60722), &[60713, 61000], |base| base == 60714);
        assert_eq!(order.first(), Some(&60722));
        assert!(!order.contains(&60706) && !order.iter().any(|b| (*b..b + 8).contains(&61000)));
        assert!(order.iter().all(|base| *base >= FIRST && base + 7 <= LAST));
        assert_eq!(order.iter().collect::<std::collections::BTreeSet<_>>().len(), order.len());
        assert_eq!(order.last(), Some(&60714), "a killed node's block only when there is no other");
        assert_eq!(candidates(Some(60710), &[], |_| false)[..2], [60710, FIRST], "a record of an earlier version");
        assert_eq!(candidates(Some(61178), &[], |_| false).first(), Some(&FIRST), "which has no room behind it");
        assert_eq!(candidates(Some(5), &[], |_| false).first(), Some(&FIRST), "a record outside the range is ignored");
    }

    #[test]
    fn a_block_is_claimed_whole_and_none_overlaps_one_of_an_earlier_version() {
        let folder = tempfile::tempdir().unwrap();
        let registry = Registry::open(folder.path()).unwrap();
        let holder = |name: &str| Holder::me(Path::new("/r"), name);
        let earlier = registry.claim(Subject::UidBlock(60710), &holder("of an earlier version")).unwrap();
        assert!(claim_block(&registry, &holder("new"), 60706).is_err());
        let first = registry.claim(Subject::UidBlock(60706), &holder("another")).unwrap();
        first.release();
        earlier.release();
        let claims = claim_block(&registry, &holder("new"), 60706).unwrap();
        for half in [60706, 60710] {
            assert!(registry.claim(Subject::UidBlock(half), &holder("another")).is_err());
        }
        claims.into_iter().for_each(Claim::release);
    }

    #[test]
    fn the_record_is_read_for_ever_and_what_is_no_record_is_kept() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(recorded(root.path()), None);
        record(root.path(), 60714);
        let path = record_path(root.path());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "60714\n", "the form of every version since the first");
        assert_eq!(recorded(root.path()), Some(60714));
        std::fs::write(&path, "{\"version\":2}").unwrap();
        assert_eq!(recorded(root.path()), None);
        assert_eq!(std::fs::read_to_string(path.with_extension("damaged")).unwrap(), "{\"version\":2}");
    }

    #[test]
    fn the_user_of_a_helper_is_no_daemon_s() {
        let block = Users::block(60706);
        let of = |users, program, passwd: &str| helper(users, program, passwd).map(|user| (user.uid, user.gid));
        let mut ids = vec![block.gid, block.syncd, block.evictiond, block.statusd];
        for program in [Program::Walker, Program::Journal, Program::Iptables] {
            let (uid, gid) = of(block, program, "").unwrap();
            assert!(uid == gid && !ids.contains(&uid) && uid < 60706 + BLOCK, "{}", program.name());
            ids.push(uid);
        }
        let named = Users { syncd: 990, ..block };
        assert_eq!(of(named, Program::Journal, "root:x:0:0::/:\n"), None);
        let passwd = "kubelet-journal:x:995:996::/:/bin/false\nkubelet-walker:x:997:998::/:/bin/false\n";
        assert_eq!(of(named, Program::Journal, passwd), Some((995, 996)));
        assert_eq!(of(named, Program::Walker, passwd), Some((997, 998)));
        assert_eq!(of(named, Program::Journal, "kubelet-journal:x:0:0::/:\n"), None);
    }

    #[test]
    fn named_users_only_when_complete() {
        let passwd = "root:x:0:0::/:/bin/sh\nkubelet-syncd:x:990:990::/:\nkubelet-evictiond:x:991:991::/:\nkubelet-statusd:x:992:993::/:\n";
        let group = "root:x:0:\nkubelet-daemons:x:989:\n";
        let users = named(passwd, group).unwrap();
        assert_eq!(
            (users.gid, users.syncd, users.evictiond, users.statusd, users.statusd_gid),
            (989, 990, 991, 992, 993)
        );
        assert!(named(passwd, "root:x:0:\n").is_none());
        assert!(named("kubelet-syncd:x:990:990::/:\n", group).is_none());
    }
}
