//! Disk usage: statfs of whole file systems, and a bounded walk that adds up what a folder holds.
//!
//! A walk opens directories, and pods decide what is in them. So it goes relative to open directories, follows no link,
//! stays on one file system, and stops at a depth and at a number of entries. Figures are kept for a time; one that
//! hangs (a dead disk) is not waited for twice.

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Dir, Mode, OFlags};

/// Walks in work at once. The blocking pool has eight threads: hanging walks must leave some for everything else.
const AT_ONCE: usize = 4;

/// A file system's figures, bytes and inodes. `used` is what is not free, reserved blocks included, as cAdvisor has it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FileSystem {
    pub capacity: u64,
    pub available: u64,
    pub used: u64,
    pub inodes: u64,
    pub inodes_free: u64,
}

/// What a folder holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Folder {
    /// Allocated bytes (512-byte blocks), not file sizes.
    pub bytes: u64,
    /// Files and folders, the folder itself too; a file with several names counts once.
    pub inodes: u64,
    /// A bound was met or something could not be listed: the truth is larger.
    pub incomplete: bool,
}

/// Where a walk stops.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Levels below the folder; each holds a descriptor.
    pub depth: usize,
    pub entries: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        // A million entries take a few seconds; 128 levels fit the default limit of 1024 descriptors with four walks.
        Bounds { depth: 128, entries: 1_000_000 }
    }
}

/// Figures of the file system that holds `path`.
///
/// # Errors
/// As statvfs(3).
pub fn file_system(path: &Path) -> std::io::Result<FileSystem> {
    let stat = rustix::fs::statvfs(path)?;
    Ok(FileSystem {
        capacity: stat.f_blocks.saturating_mul(stat.f_frsize),
        available: stat.f_bavail.saturating_mul(stat.f_frsize),
        used: stat.f_blocks.saturating_sub(stat.f_bfree).saturating_mul(stat.f_frsize),
        inodes: stat.f_files,
        inodes_free: stat.f_ffree,
    })
}

/// Adds up what is below `path`, itself included.
///
/// # Errors
/// The folder itself cannot be opened. What cannot be opened below it makes the sum incomplete.
pub fn walk(path: &Path, bounds: Bounds) -> std::io::Result<Folder> {
    let root = rustix::fs::open(path, OPEN, Mode::empty())?;
    let stat = rustix::fs::fstat(&root)?;
    let device = stat.st_dev;
    let mut folder = Folder { bytes: blocks(&stat), inodes: 1, incomplete: false };
    let mut several_names = HashSet::new();
    let mut open = vec![Dir::new(root)?];
    loop {
        let depth = open.len();
        let Some(dir) = open.last_mut() else { break };
        let entry = match dir.read() {
            None => {
                open.pop();
                continue;
            }
            Some(Err(_)) => {
                folder.incomplete = true;
                open.pop();
                continue;
            }
            Some(Ok(entry)) => entry,
        };
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let Ok(at) = dir.fd() else {
            folder.incomplete = true;
            open.pop();
            continue;
        };
        // Gone meanwhile: it uses nothing any more.
        let Ok(stat) = rustix::fs::statat(at, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        if stat.st_dev != device {
            continue;
        }
        let is_dir = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir();
        if !is_dir && stat.st_nlink > 1 && !several_names.insert(stat.st_ino) {
            continue;
        }
        folder.bytes = folder.bytes.saturating_add(blocks(&stat));
        folder.inodes += 1;
        if folder.inodes >= bounds.entries {
            folder.incomplete = true;
            break;
        }
        if is_dir {
            if depth > bounds.depth {
                folder.incomplete = true;
                continue;
            }
            let opened: Result<OwnedFd, _> = rustix::fs::openat(at, name, OPEN, Mode::empty());
            match opened.and_then(Dir::new) {
                Ok(below) => open.push(below),
                Err(rustix::io::Errno::NOENT) => {}
                Err(_) => folder.incomplete = true,
            }
        }
    }
    Ok(folder)
}

const OPEN: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC).union(OFlags::NONBLOCK);

#[allow(clippy::unnecessary_cast, reason = "the types of struct stat differ between architectures")]
fn blocks(stat: &rustix::fs::Stat) -> u64 {
    (stat.st_blocks as u64).saturating_mul(512)
}

/// The files right in a folder, no folders and nothing in them: what counts as logs.
///
/// # Errors
/// The folder cannot be opened.
pub fn files(path: &Path) -> std::io::Result<Folder> {
    let mut folder = Folder::default();
    let dir = Dir::new(rustix::fs::open(path, OPEN, Mode::empty())?)?;
    let at: OwnedFd = rustix::fs::open(path, OPEN, Mode::empty())?;
    for entry in dir {
        let Ok(entry) = entry else {
            folder.incomplete = true;
            break;
        };
        let Ok(stat) = rustix::fs::statat(&at, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW) else { continue };
        if rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir() {
            continue;
        }
        folder.bytes = folder.bytes.saturating_add(blocks(&stat));
        folder.inodes += 1;
        if folder.inodes >= Bounds::default().entries {
            folder.incomplete = true;
            break;
        }
    }
    Ok(folder)
}

/// One file; `None` when it is not there.
pub fn file(path: &Path) -> Option<Folder> {
    let stat = rustix::fs::lstat(path).ok()?;
    Some(Folder { bytes: blocks(&stat), inodes: 1, incomplete: false })
}

/// A volume's folder.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Volume {
    pub fs: FileSystem,
    pub folder: Folder,
    /// It is a mount: what it holds is not on the node's own disk.
    pub is_mount: bool,
}

/// What a volume's folder holds and where. A volume that is a mount of its own is asked of its file system and never
/// opened: an open directory would make its unmount fail.
///
/// # Errors
/// The folder is not there or cannot be listed.
pub fn volume(path: &Path) -> std::io::Result<Volume> {
    let file_system = file_system(path)?;
    let own = rustix::fs::lstat(path)?;
    let parent = path.parent().map(rustix::fs::lstat).transpose()?;
    if parent.is_some_and(|parent| parent.st_dev != own.st_dev) {
        let inodes = file_system.inodes.saturating_sub(file_system.inodes_free);
        let folder = Folder { bytes: file_system.used, inodes, incomplete: false };
        return Ok(Volume { fs: file_system, folder, is_mount: true });
    }
    Ok(Volume { fs: file_system, folder: walk(path, Bounds::default())?, is_mount: false })
}

struct CachedUsage<V> {
    value: Option<V>,
    at: Option<Instant>,
    in_work: bool,
}

/// Figures by key, renewed on the blocking pool when they are asked for and older than the cache keeps them.
pub struct Cache<K, V> {
    kept: Arc<Mutex<HashMap<K, CachedUsage<V>>>>,
    slots: Arc<tokio::sync::Semaphore>,
    keep: Duration,
}

impl<K, V> std::fmt::Debug for Cache<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache").field("keep", &self.keep).finish_non_exhaustive()
    }
}

impl<K, V> Cache<K, V> {
    /// A cache whose figures are good for this long.
    pub fn keeping(keep: Duration) -> Self {
        Cache { kept: Arc::default(), slots: Arc::new(tokio::sync::Semaphore::new(AT_ONCE)), keep }
    }
}

impl<K, V> Cache<K, V>
where
    K: std::hash::Hash + Eq + Clone + Send + 'static,
    V: Clone + Send + 'static,
{
    /// Renews what is old and waits for it up to `patience`; what is not done by then comes with the next call.
    /// Keys that are not wanted any more are forgotten.
    pub async fn refresh<F>(&self, wanted: Vec<(K, F)>, patience: Duration)
    where
        F: FnOnce() -> Option<V> + Send + 'static,
    {
        let mut running = Vec::new();
        {
            let Ok(mut kept) = self.kept.lock() else { return };
            let names: HashSet<&K> = wanted.iter().map(|(key, _)| key).collect();
            kept.retain(|key, _| names.contains(key));
            drop(names);
            for (key, measure) in wanted {
                let entry = kept.entry(key.clone()).or_insert(CachedUsage { value: None, at: None, in_work: false });
                if entry.in_work || entry.at.is_some_and(|at| at.elapsed() < self.keep) {
                    continue;
                }
                entry.in_work = true;
                let (kept, slots) = (self.kept.clone(), self.slots.clone());
                running.push(tokio::spawn(async move {
                    let Ok(slot) = slots.acquire_owned().await else { return };
                    let value = tokio::task::spawn_blocking(move || {
                        let value = measure();
                        drop(slot);
                        value
                    })
                    .await
                    .ok()
                    .flatten();
                    if let Ok(mut kept) = kept.lock()
                        && let Some(entry) = kept.get_mut(&key)
                    {
                        *entry = CachedUsage { value, at: Some(Instant::now()), in_work: false };
                    }
                }));
            }
        }
        let all = async {
            for task in running {
                let _ = task.await;
            }
        };
        if tokio::time::timeout(patience, all).await.is_err() {
            tracing::debug!("some disk usage is not known yet, the walks go on");
        }
    }

    /// The newest figures, if there are any.
    pub fn get(&self, key: &K) -> Option<V> {
        self.kept.lock().ok()?.get(key)?.value.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_counts_blocks_once_and_follows_nothing() {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path().join("v");
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        std::fs::write(root.join("a/one"), vec![1; 40_000]).unwrap();
        std::fs::hard_link(root.join("a/one"), root.join("a/b/same")).unwrap();
        std::fs::write(temp.path().join("outside"), vec![1; 4_000_000]).unwrap();
        std::os::unix::fs::symlink(temp.path(), root.join("a/out")).unwrap();
        let folder = walk(&root, Bounds::default()).unwrap();
        assert_eq!(folder.inodes, 5, "v, a, b, one, out");
        assert!(folder.bytes >= 40_000 && folder.bytes < 400_000, "{folder:?}");
        assert!(!folder.incomplete);
        std::os::unix::fs::symlink(&root, temp.path().join("link")).unwrap();
        assert!(walk(&temp.path().join("link"), Bounds::default()).is_err(), "the folder itself may not be a link");
    }

    #[test]
    fn a_walk_is_bounded() {
        let temp = tempfile::tempdir().unwrap();
        let mut deep = temp.path().to_owned();
        for _ in 0..20 {
            deep.push("d");
        }
        std::fs::create_dir_all(&deep).unwrap();
        let folder = walk(temp.path(), Bounds { depth: 5, entries: 1000 }).unwrap();
        assert_eq!((folder.inodes, folder.incomplete), (7, true));
        let folder = walk(temp.path(), Bounds { depth: 100, entries: 10 }).unwrap();
        assert_eq!((folder.inodes, folder.incomplete), (10, true));
    }

    #[test]
    fn a_volume_knows_its_file_system() {
        let temp = tempfile::tempdir().unwrap();
        let own = volume(temp.path()).unwrap();
        assert!(own.fs.capacity >= own.fs.available && !own.is_mount);
        assert_eq!(own.folder.inodes, 1);
        assert!(volume(&temp.path().join("none")).is_err());
        // /proc is another file system than /: its figures come from statfs, nothing is walked.
        let proc = volume(Path::new("/proc")).unwrap();
        assert!(!proc.folder.incomplete && proc.folder.inodes < 100 && proc.is_mount);
    }

    #[test]
    fn files_are_counted_and_folders_are_not() {
        let temp = tempfile::tempdir().unwrap();
        std::fs::create_dir(temp.path().join("rotated")).unwrap();
        std::fs::write(temp.path().join("0.log"), vec![1; 9_000]).unwrap();
        std::fs::write(temp.path().join("1.log"), "").unwrap();
        std::fs::write(temp.path().join("rotated/2.log"), vec![1; 90_000]).unwrap();
        let folder = files(temp.path()).unwrap();
        assert_eq!(folder.inodes, 2);
        assert!((9_000..90_000).contains(&folder.bytes), "{folder:?}");
        assert!(files(&temp.path().join("0.log")).is_err());
        assert_eq!(file(&temp.path().join("0.log")).map(|file| file.inodes), Some(1));
        assert_eq!(file(&temp.path().join("none")), None);
    }

    #[tokio::test]
    async fn figures_are_kept_and_hanging_ones_not_waited_for_twice() {
        let cache: Cache<u8, u8> = Cache::keeping(Duration::from_secs(60));
        let count = Arc::new(std::sync::atomic::AtomicU8::new(0));
        let measure = |count: &Arc<std::sync::atomic::AtomicU8>| {
            let count = count.clone();
            move || Some(count.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
        };
        cache.refresh(vec![(1, measure(&count))], Duration::from_secs(5)).await;
        cache.refresh(vec![(1, measure(&count))], Duration::from_secs(5)).await;
        assert_eq!(cache.get(&1), Some(0), "measured once");

        let (release, hang) = std::sync::mpsc::channel::<()>();
        let hanging = move || hang.recv().ok().map(|()| 7);
        cache.refresh(vec![(2, hanging)], Duration::from_millis(10)).await;
        assert_eq!((cache.get(&2), cache.get(&1)), (None, None), "not done yet; 1 is not wanted any more");
        cache.refresh(vec![(2, measure(&count))], Duration::from_millis(10)).await;
        assert_eq!(count.load(std::sync::atomic::Ordering::Relaxed), 1, "the first walk is still on");
        release.send(()).unwrap();
        tokio::time::timeout(Duration::from_secs(5), async {
            while cache.get(&2) != Some(7) {
                tokio::task::yield_now().await;
            }
        })
        .await
        .unwrap();
    }
}
