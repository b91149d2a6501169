//! fsGroup: giving a volume to a group (upstream `pkg/volume/volume_linux.go` SetVolumeOwnership).
//!
//! Depth-first, children before their directory, the root last: a walk that was cut short is seen at the root and done
//! again. Every entry gets the group; what is not a link gets `rw` (or `r`, in a volume that is read-only) for owner and
//! group, directories also `x` and the setgid bit. Nothing is ever taken away. What cannot be changed is told and left, and what
//! cannot be looked at ends the walk, as upstream has it (`walkDeep`); what is gone meanwhile does not.
//!
//! Entries are handled through handles of the very object, so a pod that swaps names meanwhile changes nothing outside
//! the volume; other mounts inside are not entered. What is right already is not touched: a walk that is repeated is
//! cheap.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bulkhead_sys::tree;
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Stat, StatxFlags};
use rustix::io::Errno;

/// Directories that are open at a time; more levels are left as they are, and told.
const MAX_DEPTH: usize = 256;

/// Entries of one directory.
const MAX_ENTRIES: usize = 1_000_000;

/// A walk that takes longer ends, to be begun anew when it is asked for again. Upstream's has no limit, and one that is begun anew looks
/// at all entries again: of a large volume it would never come to its end.
pub const PATIENCE: Duration = bulkhead_ipc::limits::GIVING;

/// How often a long walk is told, as upstream's event.
const PROGRESS: Duration = Duration::from_secs(30);

/// Failures of single entries that are told one by one.
const TOLD: usize = 5;

/// The walk did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum OwnershipError {
    #[error("giving the volume to group {group} takes long: {entries} entries are done")]
    TakesLong { group: u32, entries: u64 },
    #[error("lstat {path}: no such file or directory", path = .path.display())]
    Missing { path: PathBuf },
    #[error("failed to examine the volume's root")]
    Root(#[source] std::io::Error),
    #[error("failed to {doing} {name:?} in the volume")]
    Entry { doing: &'static str, name: OsString, source: std::io::Error },
}

/// Leaves a volume whose walk an entry has ended as it is, as upstream does for emptyDir, FlexVolume, Fibre Channel and iSCSI: the pod
/// starts, and may not write everywhere.
///
/// # Errors
/// Whatever else was in the way.
pub fn forgiving(walked: Result<Walked, OwnershipError>) -> Result<(), OwnershipError> {
    match walked {
        Err(error @ OwnershipError::Entry { .. }) => {
            tracing::warn!(
                error = bulkhead_types::chain(&error),
                "a part of a volume is not given to its group, and its pod may be refused there"
            );
            Ok(())
        }
        walked => walked.map(|_| ()),
    }
}

/// Whether containers write to the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    ReadWrite,
    ReadOnly,
}

impl Access {
    /// Bits that an entry gets.
    const fn mask(self, is_dir: bool) -> u32 {
        let files = match self {
            Access::ReadWrite => 0o660,
            Access::ReadOnly => 0o440,
        };
        if is_dir { files | 0o110 | 0o2000 } else { files }
    }
}

/// What a walk did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Walked {
    pub entries: u64,
    pub failed: u64,
}

/// fsGroupChangePolicy OnRootMismatch: the root is right, and so nothing is walked. Pure.
fn root_matches(stat: &Stat, group: u32, access: Access) -> bool {
    let mask = access.mask(true);
    stat.st_gid == group && stat.st_mode & mask == mask
}

/// Whether the root of a volume is the group's already.
pub fn is_given(root: BorrowedFd<'_>, group: u32, access: Access) -> Result<bool, OwnershipError> {
    let stat = rustix::fs::fstat(root).map_err(|errno| OwnershipError::Root(errno.into()))?;
    Ok(root_matches(&stat, group, access))
}

/// Gives `root` and everything below to `group`.
pub fn give(root: BorrowedFd<'_>, group: u32, access: Access, patience: Duration) -> Result<Walked, OwnershipError> {
    let mount = tree::mount_id(root).map_err(|errno| OwnershipError::Root(errno.into()))?;
    let started = Instant::now();
    let mut walk = Walk {
        group,
        access,
        mount,
        started,
        ends: started + patience,
        told: started,
        done: Walked::default(),
        calm: false,
    };
    walk.below(root, OsStr::new("."), 1)?;
    // As any other entry: a server that lets nobody change owners has the volume's access decided by itself.
    match give_one(root, group, access) {
        Ok(()) => walk.done.entries += 1,
        Err(errno) => walk.failed(OsStr::new("."), &errno.into()),
    }
    Ok(walk.done)
}

/// Gives one object, not what is below.
pub fn give_one(handle: BorrowedFd<'_>, group: u32, access: Access) -> rustix::io::Result<()> {
    give_known(handle, Facts::of(handle)?, group, access)
}

/// What of an entry decides whether it is right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Facts {
    mount: u64,
    mode: u32,
    group: u32,
}

impl Facts {
    const FLAGS: StatxFlags = StatxFlags::TYPE.union(StatxFlags::MODE).union(StatxFlags::GID).union(StatxFlags::MNT_ID);

    fn of(handle: BorrowedFd<'_>) -> rustix::io::Result<Self> {
        rustix::fs::statx(handle, "", AtFlags::EMPTY_PATH, Self::FLAGS).map(|stat| Self::new(&stat))
    }

    /// By its name: good for leaving it alone, and for nothing else.
    fn of_name(dir: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<Self> {
        rustix::fs::statx(dir, name, AtFlags::SYMLINK_NOFOLLOW, Self::FLAGS).map(|stat| Self::new(&stat))
    }

    fn new(stat: &rustix::fs::Statx) -> Self {
        Facts { mount: stat.stx_mnt_id, mode: stat.stx_mode.into(), group: stat.stx_gid }
    }

    fn file_type(self) -> FileType {
        FileType::from_raw_mode(self.mode)
    }

    /// The mode it is to have.
    fn wanted(self, access: Access) -> u32 {
        let mode = self.mode & 0o7777;
        match self.file_type() {
            FileType::Symlink => mode,
            kind => mode | access.mask(kind == FileType::Directory),
        }
    }

    fn is_right(self, group: u32, access: Access) -> bool {
        self.group == group && self.wanted(access) == self.mode & 0o7777
    }
}

fn give_known(handle: BorrowedFd<'_>, facts: Facts, group: u32, access: Access) -> rustix::io::Result<()> {
    // Where the group cannot be changed the mode still is, as upstream's changeFilePermission has it.
    let given = if facts.group == group {
        Ok(())
    } else {
        rustix::fs::chownat(handle, "", None, Some(Gid::from_raw(group)), AtFlags::EMPTY_PATH)
    };
    if facts.file_type() == FileType::Symlink {
        return given;
    }
    // A change of owner takes setuid and setgid away: the mode before it counts.
    let (mode, wanted) = (facts.mode & 0o7777, facts.wanted(access));
    if wanted != mode || (facts.group != group && mode & 0o6000 != 0) {
        // The handle may be of the kind that fchmod refuses; this is the same object.
        let through = format!("/proc/self/fd/{}", handle.as_raw_fd());
        let mode_set = rustix::fs::chmod(through, Mode::from_raw_mode(wanted));
        return given.and(mode_set);
    }
    given
}

fn entry_error(doing: &'static str, name: &OsStr, source: impl Into<std::io::Error>) -> OwnershipError {
    OwnershipError::Entry { doing, name: name.to_owned(), source: source.into() }
}

struct Walk {
    group: u32,
    access: Access,
    mount: u64,
    started: Instant,
    ends: Instant,
    told: Instant,
    done: Walked,
    /// The entry before was right already, and so the next one will be.
    calm: bool,
}

impl Walk {
    fn below(&mut self, dir: BorrowedFd<'_>, name: &OsStr, depth: usize) -> Result<(), OwnershipError> {
        let entries = match tree::list(dir, MAX_ENTRIES) {
            Ok(entries) => entries,
            // It is gone meanwhile.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            // Our own bound is nothing that the volume is to blame for.
            Err(error) if error.kind() == std::io::ErrorKind::QuotaExceeded => {
                self.failed(name, &error);
                return Ok(());
            }
            Err(source) => return Err(entry_error("list", name, source)),
        };
        for entry in entries {
            self.look_at_the_clock()?;
            // One call for an entry that is to be left alone, where the one before it was; a folder has to be opened anyway.
            if self.calm && !entry.is_dir {
                let facts = Facts::of_name(dir, &entry.name);
                if facts.is_ok_and(|facts| facts.mount == self.mount && self.leaves(facts)) {
                    self.done.entries += 1;
                    continue;
                }
            }
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let handle = match rustix::fs::openat(dir, entry.name.as_os_str(), flags, Mode::empty()) {
                Ok(handle) => handle,
                Err(Errno::NOENT) => continue,
                Err(errno) => return Err(entry_error("open", &entry.name, errno)),
            };
            match self.one(&handle, &entry.name, depth)? {
                Ok(()) => self.done.entries += 1,
                Err(errno) => self.failed(&entry.name, &errno.into()),
            }
        }
        Ok(())
    }

    /// The entry and what is below; the inner error is about changing this entry alone.
    fn one(&mut self, handle: &OwnedFd, name: &OsStr, depth: usize) -> Result<rustix::io::Result<()>, OwnershipError> {
        let facts = Facts::of(handle.as_fd()).map_err(|errno| entry_error("examine", name, errno))?;
        if facts.mount != self.mount {
            return Ok(Ok(()));
        }
        if facts.file_type() == FileType::Directory {
            if depth >= MAX_DEPTH {
                return Ok(Err(Errno::NAMETOOLONG));
            }
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            match rustix::fs::openat(handle, ".", flags, Mode::empty()) {
                Ok(dir) => self.below(dir.as_fd(), name, depth + 1)?,
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(entry_error("open", name, errno)),
            }
            // What is below took its time.
            return Ok(give_one(handle.as_fd(), self.group, self.access));
        }
        self.calm = facts.is_right(self.group, self.access);
        if self.calm {
            return Ok(Ok(()));
        }
        Ok(give_known(handle.as_fd(), facts, self.group, self.access))
    }

    /// Whether an entry is no folder, and right.
    fn leaves(&self, facts: Facts) -> bool {
        facts.file_type() != FileType::Directory && facts.is_right(self.group, self.access)
    }

    fn failed(&mut self, name: &OsStr, error: &std::io::Error) {
        self.done.failed += 1;
        if self.done.failed <= TOLD as u64 {
            tracing::warn!(name = %name.display(), group = self.group, %error, "cannot give a volume's entry to its group");
        }
    }

    fn look_at_the_clock(&mut self) -> Result<(), OwnershipError> {
        let now = Instant::now();
        if now.duration_since(self.told) >= PROGRESS {
            self.told = now;
            let seconds = now.duration_since(self.started).as_secs();
            tracing::info!(
                group = self.group,
                seconds,
                "Setting volume ownership, processed {} files.",
                self.done.entries
            );
        }
        if now >= self.ends {
            return Err(OwnershipError::TakesLong { group: self.group, entries: self.done.entries });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bulkhead_sys::open;
    use bulkhead_testkit::silent_fs::SilentFs;
    use bulkhead_testkit::skip::{Lack, skip_this_test};
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    use std::path::Path;

    fn is_root() -> bool {
        rustix::process::getuid().is_root()
    }

    fn mode_and_group(path: &Path) -> (u32, u32) {
        let meta = std::fs::symlink_metadata(path).unwrap();
        (meta.mode() & 0o7777, meta.gid())
    }

    #[test]
    fn bits_are_added_and_links_are_not_followed() {
        if !is_root() {
            return skip_this_test(Lack::Root).unwrap();
        }
        for (access, file, dir_mode) in [(Access::ReadWrite, 0o4660, 0o3771), (Access::ReadOnly, 0o4640, 0o3751)] {
            let dir = tempfile::tempdir().unwrap();
            let base = dir.path().join("v");
            std::fs::create_dir_all(base.join("sub")).unwrap();
            std::fs::set_permissions(base.join("sub"), PermissionsExt::from_mode(0o1701)).unwrap();
            std::fs::write(base.join("sub/f"), "").unwrap();
            std::fs::set_permissions(base.join("sub/f"), PermissionsExt::from_mode(0o4600)).unwrap();
            std::fs::write(dir.path().join("outside"), "").unwrap();
            let outside = mode_and_group(&dir.path().join("outside"));
            symlink("../../outside", base.join("sub/link")).unwrap();
            rustix::fs::mknodat(rustix::fs::CWD, base.join("fifo"), FileType::Fifo, Mode::from_raw_mode(0o600), 0)
                .unwrap();
            let root = open::base_dir(&base).unwrap();
            assert!(!is_given(root.as_fd(), 2000, access).unwrap());
            let walked = give(root.as_fd(), 2000, access, PATIENCE).unwrap();
            assert_eq!(walked, Walked { entries: 5, failed: 0 });
            assert_eq!(mode_and_group(&base.join("sub/f")), (file, 2000), "setuid stays");
            assert_eq!(mode_and_group(&base.join("sub")), (dir_mode, 2000));
            assert_eq!(mode_and_group(&base.join("sub/link")).1, 2000);
            assert_eq!(mode_and_group(&base.join("fifo")).1, 2000);
            assert_eq!(mode_and_group(&dir.path().join("outside")), outside);
            assert!(is_given(root.as_fd(), 2000, access).unwrap());
        }
    }

    #[test]
    fn where_the_group_cannot_be_changed_the_mode_is() {
        use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
        if !is_root() {
            return skip_this_test(Lack::Root).unwrap();
        }
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("f");
        std::fs::write(&file, "").unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
        let root = open::base_dir(dir.path()).unwrap();
        // Of this thread alone.
        let mut sets = capabilities(None).unwrap();
        sets.effective.remove(CapabilitySet::CHOWN);
        set_capabilities(None, sets).unwrap();
        let walked = give(root.as_fd(), 2000, Access::ReadWrite, PATIENCE).unwrap();
        assert_eq!(walked, Walked { entries: 0, failed: 2 });
        assert_eq!(mode_and_group(&file), (0o660, 0));
        assert_eq!(mode_and_group(dir.path()).0 & 0o770, 0o770);
    }

    #[test]
    fn a_walk_that_is_cut_short_is_seen_at_the_root() {
        if !is_root() {
            return skip_this_test(Lack::Root).unwrap();
        }
        let dir = tempfile::tempdir().unwrap();
        for i in 0..10 {
            std::fs::write(dir.path().join(i.to_string()), "").unwrap();
        }
        let root = open::base_dir(dir.path()).unwrap();
        let cut = give(root.as_fd(), 2000, Access::ReadWrite, Duration::ZERO).unwrap_err();
        assert!(matches!(cut, OwnershipError::TakesLong { group: 2000, entries: 0 }));
        assert!(!is_given(root.as_fd(), 2000, Access::ReadWrite).unwrap());
        give(root.as_fd(), 2000, Access::ReadWrite, PATIENCE).unwrap();
        assert!(is_given(root.as_fd(), 2000, Access::ReadWrite).unwrap());
    }

    /// As upstream's walkDeep: what is below such a folder would stay what it is, and the pod would start.
    #[test]
    fn what_cannot_be_looked_at_ends_the_walk() {
        let entry = || OwnershipError::Entry {
            doing: "list",
            name: "d".into(),
            source: std::io::Error::from_raw_os_error(Errno::IO.raw_os_error()),
        };
        assert!(forgiving(Err(entry())).is_ok() && forgiving(Ok(Walked::default())).is_ok());
        assert!(forgiving(Err(OwnershipError::TakesLong { group: 1, entries: 1 })).is_err());
        if !is_root() {
            return skip_this_test(Lack::Root).unwrap();
        }
        if !SilentFs::is_possible() {
            return skip_this_test(Lack::Fuse).unwrap();
        }
        let dir = tempfile::tempdir().unwrap();
        // Its folders can be opened, and not be listed.
        let mounted = SilentFs::mount(dir.path()).unwrap();
        let root = open::base_dir(dir.path()).unwrap();
        let refused = give(root.as_fd(), 2000, Access::ReadOnly, PATIENCE).unwrap_err();
        assert!(matches!(refused, OwnershipError::Entry { doing: "list", .. }), "{refused}");
        drop((root, mounted));
    }

    #[test]
    fn too_deep_a_tree_is_an_error_and_other_mounts_are_left() {
        if !is_root() {
            return skip_this_test(Lack::Root).unwrap();
        }
        let dir = tempfile::tempdir().unwrap();
        let base = open::base_dir(dir.path()).unwrap();
        let mut here = base.try_clone().unwrap();
        for _ in 0..MAX_DEPTH + 5 {
            here = open::create_dirs_beneath(here.as_fd(), "d", 0o755).unwrap();
        }
        drop(here);
        let target = open::create_dirs_beneath(base.as_fd(), "mount", 0o755).unwrap();
        bulkhead_sys::mount::tmpfs(target.as_fd(), &Default::default()).unwrap();
        drop(target);
        let walked = give(base.as_fd(), 2000, Access::ReadWrite, PATIENCE).unwrap();
        assert_eq!(walked.failed, 1);
        assert_eq!(mode_and_group(&dir.path().join("d/d/d")).1, 2000);
        assert_eq!(mode_and_group(&dir.path().join("mount")).1, 0, "the root of another mount");
        bulkhead_sys::mount::unmount(base.as_fd(), "mount").unwrap();
        tree::remove(base.as_fd(), "d").unwrap();
    }
}
