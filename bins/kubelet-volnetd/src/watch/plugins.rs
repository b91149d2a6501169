//! The sockets below `plugins_registry`, in folders of any depth.
//!
//! Folders are watched, and after each event all are looked at again: the newest state is what subscribers get, and what is
//! missing from it has gone. Only Unix sockets whose names do not begin with a dot count (upstream
//! `pkg/kubelet/pluginmanager/pluginwatcher`); links and other file systems are not entered.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bulkhead_sys::inotify::{Change, WatchId};
use bulkhead_sys::open;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::io::Errno;
use tokio::sync::watch as newest;

use super::{Follower, RETRY};

/// The slow look, for what no event told.
const AUDIT: Duration = Duration::from_secs(60);

/// Bounds of what is looked at; more cannot be meant.
const MAX_SOCKETS: usize = 1024;
const MAX_ENTRIES: usize = 16_384;
const MAX_FOLDERS: usize = 256;
const MAX_DEPTH: usize = 16;

/// Folders that come while others are being watched: so often is looked again at once.
const MAX_ROUNDS: usize = 16;

/// Tells one socket from another of the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity {
    device: u64,
    inode: u64,
    /// When it was made, nanoseconds; 0 where the file system does not say.
    born: i128,
    /// Counts what a name has seen go: inode numbers are used again at once.
    pub renewed: u64,
}

impl Identity {
    /// What stays the same over restarts of this process.
    pub fn lasting(&self) -> String {
        format!("{}:{}:{}", self.device, self.inode, self.born)
    }
}

/// Paths relative to `plugins_registry`.
pub type Sockets = BTreeMap<String, Identity>;

/// One look.
#[derive(Debug, Default)]
struct Found {
    /// Relative; the empty one is `plugins_registry` itself.
    folders: BTreeSet<PathBuf>,
    sockets: Sockets,
}

/// A change for a subscriber.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SocketChange {
    Added(String, String),
    Removed(String),
}

/// What has to be told to somebody who knows `before`. What was made anew goes first.
pub fn changes(before: &Sockets, now: &Sockets) -> Vec<SocketChange> {
    let gone = before.iter().filter(|(name, id)| now.get(*name) != Some(id));
    let new = now.iter().filter(|(name, id)| before.get(*name) != Some(id));
    gone.map(|(name, _)| SocketChange::Removed(name.clone()))
        .chain(new.map(|(name, id)| SocketChange::Added(name.clone(), id.lasting())))
        .collect()
}

/// Tells `sender` of what is there, for life.
pub(super) async fn follow(mut follower: Follower, base: PathBuf, sender: newest::Sender<Option<Arc<Sockets>>>) {
    let mut watched: BTreeMap<PathBuf, WatchId> = BTreeMap::new();
    let mut renewed: BTreeMap<PathBuf, u64> = BTreeMap::new();
    loop {
        let (found, all) = look_and_watch(&follower, &base, &mut watched).await;
        let mut sockets = found.sockets;
        renewed.retain(|path, _| path.to_str().is_some_and(|name| sockets.contains_key(name)));
        for (name, id) in &mut sockets {
            id.renewed = renewed.get(Path::new(name)).copied().unwrap_or_default();
        }
        sender.send_if_modified(|last| {
            let differs = last.as_deref() != Some(&sockets);
            if differs {
                *last = Some(Arc::new(sockets));
            }
            differs
        });
        let deadline = tokio::time::Instant::now() + if all { AUDIT } else { RETRY };
        let mut told = false;
        while !told || follower.is_behind() {
            let Ok(event) = tokio::time::timeout_at(deadline, follower.next()).await else { break };
            if event.change == Change::Overflow {
                told = true;
                continue;
            }
            let mut ours = watched.iter().filter(|(_, id)| event.watch == Some(**id));
            let Some(folder) = ours.next().map(|(folder, _)| folder.clone()) else { continue };
            told = true;
            match event.change {
                // Something of this name that comes after this is another one.
                Change::Removed | Change::MovedAway => *renewed.entry(folder.join(&event.name)).or_default() += 1,
                Change::SelfGone => {
                    if let Some(id) = watched.remove(&folder) {
                        follower.unwatch(id).await;
                    }
                }
                Change::Added | Change::Modified | Change::Overflow => {}
            }
        }
    }
}

/// Looks until every folder that was seen is watched, so that whatever comes later is an event. False: not all could be.
async fn look_and_watch(follower: &Follower, base: &Path, watched: &mut BTreeMap<PathBuf, WatchId>) -> (Found, bool) {
    let mut round = 0;
    loop {
        round += 1;
        let looked = base.to_owned();
        let found = tokio::task::spawn_blocking(move || look(&looked)).await.unwrap_or_default();
        let gone: Vec<PathBuf> = watched.keys().filter(|folder| !found.folders.contains(*folder)).cloned().collect();
        for folder in gone {
            if let Some(id) = watched.remove(&folder) {
                follower.unwatch(id).await;
            }
        }
        let (mut new, mut all) = (false, !found.folders.is_empty());
        for folder in &found.folders {
            if watched.contains_key(folder) {
                continue;
            }
            match follower.watch_dir(&base.join(folder)).await {
                Ok(id) => {
                    watched.insert(folder.clone(), id);
                    new = true;
                }
                Err(error) => {
                    tracing::debug!(folder = %folder.display(), %error, "cannot watch for plugins, looking now and then");
                    all = false;
                }
            }
        }
        if !new || round == MAX_ROUNDS {
            return (found, all && !new);
        }
    }
}

fn look(base: &Path) -> Found {
    let mut found = Found::default();
    let mut left = MAX_ENTRIES;
    match open::base_dir(base) {
        Ok(dir) => walk(&dir, Path::new(""), 0, &mut left, &mut found),
        Err(error) => tracing::debug!(error = bulkhead_types::chain(&error), "there is no folder for plugins"),
    }
    found
}

fn walk(dir: &OwnedFd, here: &Path, depth: usize, left: &mut usize, found: &mut Found) {
    found.folders.insert(here.to_owned());
    let Ok(entries) = rustix::fs::Dir::read_from(dir) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        if *left == 0 || found.sockets.len() == MAX_SOCKETS {
            tracing::warn!(folder = %here.display(), "plugins_registry holds more than can be plugins: the rest is left out");
            return;
        }
        *left -= 1;
        // Text that is none cannot be asked for.
        let Ok(text) = name.to_str() else { continue };
        match kind(dir, name, entry.file_type()) {
            FileType::Directory if depth < MAX_DEPTH && found.folders.len() < MAX_FOLDERS => {
                let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                if let Ok(inner) = rustix::fs::openat2(dir, name, flags, Mode::empty(), resolve) {
                    walk(&inner, &here.join(text), depth + 1, left, found);
                }
            }
            FileType::Socket if !text.starts_with('.') => {
                if let (Some(id), Some(path)) = (identity(dir, name), here.join(text).to_str()) {
                    found.sockets.insert(path.to_owned(), id);
                }
            }
            _ => {}
        }
    }
}

/// Some file systems do not say it with the name.
fn kind(dir: &OwnedFd, name: &CStr, told: FileType) -> FileType {
    if told != FileType::Unknown {
        return told;
    }
    let stat = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW);
    stat.map_or(FileType::Unknown, |stat| FileType::from_raw_mode(stat.st_mode))
}

fn identity(dir: &OwnedFd, name: &CStr) -> Option<Identity> {
    let wanted = StatxFlags::INO | StatxFlags::TYPE | StatxFlags::BTIME;
    match rustix::fs::statx(dir.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW, wanted) {
        Ok(stat) if FileType::from_raw_mode(stat.stx_mode.into()) == FileType::Socket => {
            let born = if stat.stx_mask & StatxFlags::BTIME.bits() == 0 {
                0
            } else {
                i128::from(stat.stx_btime.tv_sec) * 1_000_000_000 + i128::from(stat.stx_btime.tv_nsec)
            };
            let device = rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor);
            Some(Identity { device, inode: stat.stx_ino, born, renewed: 0 })
        }
        Ok(_) | Err(Errno::NOENT) => None,
        Err(error) => {
            tracing::debug!(%error, "cannot look at a plugin's socket");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    async fn until(
        seen: &mut newest::Receiver<Option<Arc<Sockets>>>,
        wanted: impl Fn(&Sockets) -> bool,
    ) -> Arc<Sockets> {
        let waiting = seen.wait_for(|now| now.as_deref().is_some_and(&wanted));
        let now = tokio::time::timeout(Duration::from_secs(10), waiting).await.expect("a change").unwrap();
        now.clone().unwrap()
    }

    fn names(sockets: &Sockets) -> Vec<&str> {
        sockets.keys().map(String::as_str).collect()
    }

    #[test]
    fn another_socket_of_the_same_name_goes_and_comes() {
        let id = |inode, renewed| Identity { device: 1, inode, born: 5, renewed };
        let sockets = |ids: &[(&str, Identity)]| ids.iter().map(|(name, id)| ((*name).to_owned(), *id)).collect();
        let before: Sockets = sockets(&[("a", id(1, 0)), ("b", id(2, 0)), ("c", id(3, 0)), ("d", id(4, 0))]);
        let now: Sockets = sockets(&[("a", id(1, 0)), ("b", id(9, 0)), ("c", id(3, 1)), ("e", id(7, 0))]);
        let added = |name: &str, id: &str| SocketChange::Added(name.into(), id.into());
        let removed = |name: &str| SocketChange::Removed(name.into());
        let wanted =
            [removed("b"), removed("c"), removed("d"), added("b", "1:9:5"), added("c", "1:3:5"), added("e", "1:7:5")];
        assert_eq!(changes(&before, &now), wanted);
        assert_eq!(changes(&now, &now), []);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn sockets_alone_in_folders_that_come_and_go() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().join("plugins_registry");
        let followed = super::super::Followed { plugins: Some(base.clone()), ..Default::default() };
        std::fs::create_dir(&base).unwrap();
        std::fs::write(base.join("file"), "").unwrap();
        std::os::unix::fs::symlink("a.sock", base.join("link.sock")).unwrap();
        let _hidden = UnixListener::bind(base.join(".hidden.sock")).unwrap();
        let watches = super::super::tests::start(followed);
        let mut seen = watches.plugins();
        until(&mut seen, Sockets::is_empty).await;
        let first = UnixListener::bind(base.join("a.sock")).unwrap();
        let before = until(&mut seen, |now| names(now) == ["a.sock"]).await;
        // The same name, made anew at once: its inode may be the same one.
        drop(first);
        std::fs::remove_file(base.join("a.sock")).unwrap();
        let _second = UnixListener::bind(base.join("a.sock")).unwrap();
        let old = before.get("a.sock").copied();
        until(&mut seen, |now| now.contains_key("a.sock") && now.get("a.sock").copied() != old).await;
        // Folders that are made and filled at once, and a name with a newline.
        std::fs::create_dir_all(base.join("x/y")).unwrap();
        let _deep = UnixListener::bind(base.join("x/y/d\n.sock")).unwrap();
        until(&mut seen, |now| names(now) == ["a.sock", "x/y/d\n.sock"]).await;
        std::fs::rename(base.join("x"), base.join("z")).unwrap();
        until(&mut seen, |now| names(now) == ["a.sock", "z/y/d\n.sock"]).await;
        let _more = UnixListener::bind(base.join("z/more.sock")).unwrap();
        until(&mut seen, |now| now.len() == 3).await;
        std::fs::remove_dir_all(base.join("z")).unwrap();
        until(&mut seen, |now| names(now) == ["a.sock"]).await;
    }
}
