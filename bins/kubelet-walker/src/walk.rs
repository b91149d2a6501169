//! Adds up what a folder holds, however deep and large it is (upstream `pkg/volume/util/fs` DiskUsage has no bound), with few
//! descriptors and little memory.
//!
//! A walk opens directories, and pods decide what is in them. So it goes relative to open directories, follows no link, stays on one
//! file system, and is a loop over a list of levels. Of the directories on the way to the deepest one the last ones are open; one
//! that was closed is opened again as `..` of the one below, must be the same directory, and is read on from where it was.

use std::collections::HashSet;
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;

use bulkhead_ipc::common::FolderFigures;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, SeekFrom, Stat};

/// How directories are opened.
pub const OPEN: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC).union(OFlags::NONBLOCK);

/// Bytes of a directory that are read at once. The names of sub-directories among them are kept until these were visited, at each
/// level; one entry has at most 280 bytes.
const CHUNK: usize = 2048;

/// Where a walk stops, or does not tell everything.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Directories that are open at once, the folder itself among them; at least two.
    pub open: usize,
    /// Bytes of what is kept of the levels above and of directories that are still to be visited.
    pub memory: usize,
    /// Files with several names that are remembered. Of what comes after them each name has its share.
    pub several_names: usize,
    /// Files and folders.
    pub entries: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        // Memory for more levels than a path can have, each with as many names as one reading gives; 2 MiB for files with several
        // names; more entries than any real volume has.
        Bounds { open: 64, memory: 4 << 20, several_names: 100_000, entries: 1_000_000_000 }
    }
}

/// Adds up what is below `path`, itself included.
///
/// # Errors
/// The folder itself cannot be opened. What cannot be opened below it makes the sum incomplete.
pub fn walk(path: &Path, bounds: Bounds) -> std::io::Result<FolderFigures> {
    let mut walk = Walk::begin(path, bounds)?;
    while walk.step() {}
    Ok(walk.tally.sum)
}

/// Allocated bytes.
#[allow(clippy::unnecessary_cast, reason = "the types of struct stat differ between architectures")]
pub fn blocks(stat: &Stat) -> u64 {
    (stat.st_blocks as u64).saturating_mul(512)
}

#[allow(clippy::unnecessary_cast, reason = "the types of struct stat differ between architectures")]
fn names(stat: &Stat) -> u64 {
    stat.st_nlink as u64
}

/// The figures so far.
#[derive(Debug)]
struct Tally {
    bounds: Bounds,
    device: u64,
    sum: FolderFigures,
    several_names: HashSet<u64>,
}

impl Tally {
    /// Counts an entry. True: it is a directory, to be visited.
    fn see(&mut self, dir: &OwnedFd, name: &CStr) -> bool {
        if matches!(name.to_bytes(), b"." | b"..") {
            return false;
        }
        // Gone meanwhile: it uses nothing any more.
        let Ok(stat) = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) else { return false };
        if stat.st_dev != self.device {
            return false;
        }
        let is_dir = FileType::from_raw_mode(stat.st_mode).is_dir();
        if is_dir || names(&stat) <= 1 {
            self.add(blocks(&stat), 1);
        } else if self.several_names.len() < self.bounds.several_names {
            if self.several_names.insert(stat.st_ino) {
                self.add(blocks(&stat), 1);
            }
        } else if !self.several_names.contains(&stat.st_ino) {
            // All names together are the whole file again, and nothing need be remembered of it.
            self.add(blocks(&stat) / names(&stat), 0);
            self.sum.incomplete = true;
        }
        is_dir
    }

    fn add(&mut self, bytes: u64, inodes: u64) {
        self.sum.bytes = self.sum.bytes.saturating_add(bytes);
        self.sum.inodes = self.sum.inodes.saturating_add(inodes);
    }

    fn is_full(&self) -> bool {
        self.sum.inodes >= self.bounds.entries
    }
}

/// A directory on the way.
#[derive(Debug)]
struct Level {
    /// `None`: it was closed.
    dir: Option<OwnedFd>,
    inode: u64,
    /// Where it was being read when it was closed.
    position: u64,
    /// Nothing is left to be read.
    is_read: bool,
    /// Names of directories in it, each with its NUL, that are still to be visited.
    to_visit: Vec<u8>,
}

impl Level {
    fn of(dir: OwnedFd, stat: &Stat) -> Self {
        Level { dir: Some(dir), inode: stat.st_ino, position: 0, is_read: false, to_visit: Vec::new() }
    }

    /// Takes the last of the names.
    fn next_to_visit(&mut self) -> Option<Vec<u8>> {
        let before = self.to_visit.len().checked_sub(1)?;
        let begin = self.to_visit[..before].iter().rposition(|byte| *byte == 0).map_or(0, |nul| nul + 1);
        Some(self.to_visit.split_off(begin))
    }

    /// False: from where it is to be read on is not known.
    fn close(&mut self) -> bool {
        let Some(dir) = self.dir.take() else { return true };
        if self.is_read {
            return true;
        }
        match rustix::fs::tell(&dir) {
            Ok(position) => self.position = position,
            Err(_) => self.is_read = true,
        }
        !self.is_read
    }

    /// Opens it again, as the one above `below`.
    ///
    /// # Errors
    /// It is not the one above any more, or cannot be opened or read on.
    fn reopen(&mut self, below: &OwnedFd, device: u64) -> std::io::Result<()> {
        let dir = rustix::fs::openat(below, c"..", OPEN, Mode::empty())?;
        let stat = rustix::fs::fstat(&dir)?;
        if (stat.st_dev, stat.st_ino) != (device, self.inode) {
            return Err(std::io::ErrorKind::NotFound.into());
        }
        if !self.is_read {
            rustix::fs::seek(&dir, SeekFrom::Start(self.position))?;
        }
        self.dir = Some(dir);
        Ok(())
    }

    /// Bytes that it takes.
    fn size(&self) -> usize {
        size_of::<Self>() + self.to_visit.len()
    }
}

/// A walk on its way.
#[derive(Debug)]
struct Walk {
    tally: Tally,
    /// The folder, which stays open, and the way from there to the deepest directory.
    levels: Vec<Level>,
    /// Levels from this one on are open; those between the folder and this one are closed.
    open_from: usize,
    /// Bytes of all levels.
    memory: usize,
}

impl Walk {
    fn begin(path: &Path, bounds: Bounds) -> std::io::Result<Self> {
        let dir = rustix::fs::open(path, OPEN, Mode::empty())?;
        let stat = rustix::fs::fstat(&dir)?;
        let sum = FolderFigures { bytes: blocks(&stat), inodes: 1, incomplete: false };
        let folder = Level::of(dir, &stat);
        Ok(Walk {
            tally: Tally { bounds, device: stat.st_dev, sum, several_names: HashSet::new() },
            memory: folder.size(),
            levels: vec![folder],
            open_from: 1,
        })
    }

    /// False: it is over.
    fn step(&mut self) -> bool {
        if self.tally.is_full() {
            self.tally.sum.incomplete = true;
            return false;
        }
        let Some(level) = self.levels.last_mut() else { return false };
        if let Some(name) = level.next_to_visit() {
            self.memory -= name.len();
            self.enter(&name);
        } else if level.is_read {
            self.leave();
        } else {
            self.read_on();
        }
        true
    }

    fn enter(&mut self, name: &[u8]) {
        let Some(dir) = self.levels.last().and_then(|level| level.dir.as_ref()) else { return };
        let Ok(name) = CStr::from_bytes_with_nul(name) else { return };
        let opened = rustix::fs::openat(dir, name, OPEN, Mode::empty());
        let (dir, stat) = match opened.and_then(|dir| rustix::fs::fstat(&dir).map(|stat| (dir, stat))) {
            Ok(opened) => opened,
            Err(rustix::io::Errno::NOENT) => return,
            Err(_) => {
                self.tally.sum.incomplete = true;
                return;
            }
        };
        // Something was mounted there meanwhile.
        if stat.st_dev != self.tally.device {
            return;
        }
        let level = Level::of(dir, &stat);
        if self.memory + level.size() > self.tally.bounds.memory {
            self.tally.sum.incomplete = true;
            return;
        }
        self.memory += level.size();
        self.levels.push(level);
        if 1 + self.levels.len() - self.open_from > self.tally.bounds.open
            && let Some(shallowest) = self.levels.get_mut(self.open_from)
        {
            self.tally.sum.incomplete |= !shallowest.close();
            self.open_from += 1;
        }
    }

    fn leave(&mut self) {
        let Some(below) = self.levels.pop() else { return };
        self.memory -= below.size();
        let device = self.tally.device;
        let Some(above) = self.levels.last_mut().filter(|level| level.dir.is_none()) else { return };
        let reopened = below.dir.is_some_and(|below| above.reopen(&below, device).is_ok());
        self.open_from = self.levels.len() - 1;
        if !reopened {
            // It was moved away, and there is no way back to what lies between here and the folder.
            self.tally.sum.incomplete = true;
            self.levels.truncate(1);
            self.memory = self.levels.iter().map(Level::size).sum();
            self.open_from = 1;
        }
    }

    /// Reads some of the deepest directory.
    fn read_on(&mut self) {
        let Some(Level { dir: Some(dir), to_visit, is_read, .. }) = self.levels.last_mut() else { return };
        let mut buffer = [MaybeUninit::uninit(); CHUNK];
        let mut entries = RawDir::new(&*dir, &mut buffer);
        loop {
            let entry = match entries.next() {
                Some(Ok(entry)) => entry,
                end => {
                    *is_read = true;
                    self.tally.sum.incomplete |= end.is_some();
                    return;
                }
            };
            let name = entry.file_name();
            if self.tally.see(dir, name) {
                let name = name.to_bytes_with_nul();
                if self.memory + name.len() > self.tally.bounds.memory {
                    self.tally.sum.incomplete = true;
                } else {
                    self.memory += name.len();
                    to_visit.extend_from_slice(name);
                }
            }
            if entries.is_buffer_empty() || self.tally.is_full() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// So many levels, named `d`, each with a file; the one at the bottom is larger. With two siblings at each level that have a
    /// file, where `siblings`: of names before and after.
    fn deep(root: &Path, levels: usize, siblings: bool) -> PathBuf {
        let mut at = root.to_owned();
        for _ in 0..levels {
            for sibling in ["a", "z"].iter().filter(|_| siblings) {
                std::fs::create_dir_all(at.join(sibling)).unwrap();
                std::fs::write(at.join(sibling).join("f"), "x").unwrap();
            }
            std::fs::write(at.join("f"), "x").unwrap();
            at.push("d");
            std::fs::create_dir(&at).unwrap();
        }
        std::fs::write(at.join("large"), vec![1; 300_000]).unwrap();
        at
    }

    const SMALL: Bounds = Bounds { open: 3, memory: 1 << 20, several_names: 10, entries: 100_000 };

    #[test]
    fn what_lies_deep_counts() {
        for (siblings, inodes) in [(false, 602), (true, 602 + 4 * 300)] {
            let temp = tempfile::tempdir().unwrap();
            deep(temp.path(), 300, siblings);
            for bounds in [Bounds::default(), SMALL, Bounds { open: 2, ..SMALL }] {
                let folder = walk(temp.path(), bounds).unwrap();
                assert_eq!((folder.inodes, folder.incomplete), (inodes, false), "{bounds:?}");
                assert!(folder.bytes >= 300_000, "{folder:?}");
            }
        }
    }

    #[test]
    fn a_directory_that_was_closed_is_read_on_where_it_was() {
        let temp = tempfile::tempdir().unwrap();
        for index in 0..400 {
            let folder = temp.path().join(format!("{index:0>40}"));
            std::fs::create_dir_all(folder.join("b/c")).unwrap();
            std::fs::write(folder.join("b/c/f"), "x").unwrap();
        }
        let below = temp.path().join("0".repeat(40)).join("b");
        for index in 0..400 {
            std::fs::create_dir_all(below.join(format!("{index:0>60}/e/f"))).unwrap();
        }
        let folder = walk(temp.path(), Bounds { open: 2, ..SMALL }).unwrap();
        assert_eq!((folder.inodes, folder.incomplete), (1 + 400 * 4 + 400 * 3, false));
    }

    #[test]
    fn a_directory_that_is_moved_away_meanwhile_ends_its_part_of_the_walk() {
        let temp = tempfile::tempdir().unwrap();
        let (root, elsewhere) = (temp.path().join("v"), temp.path().join("elsewhere"));
        std::fs::create_dir_all(root.join("last/one")).unwrap();
        std::fs::create_dir(&elsewhere).unwrap();
        deep(&root, 30, true);
        let mut walk = Walk::begin(&root, SMALL).unwrap();
        while walk.levels.len() < 20 {
            assert!(walk.step());
        }
        let open = walk.levels.iter().filter(|level| level.dir.is_some()).count();
        assert_eq!(open, SMALL.open);
        std::fs::rename(root.join("d/d/d/d/d"), elsewhere.join("moved")).unwrap();
        let mut steps = 0;
        while walk.step() {
            steps += 1;
            assert!(steps < 1000, "it comes to an end");
        }
        let folder = walk.tally.sum;
        assert!(folder.incomplete && folder.inodes <= 3 + 30 * 6 + 1, "{folder:?}");
        assert_eq!(walk.levels.len(), 0);
        // It is there again by the next time.
        std::fs::rename(elsewhere.join("moved"), root.join("d/d/d/d/d")).unwrap();
        let folder = super::walk(&root, SMALL).unwrap();
        assert_eq!((folder.inodes, folder.incomplete), (3 + 30 * 6 + 1, false));
    }

    #[test]
    fn a_walk_is_bounded() {
        let temp = tempfile::tempdir().unwrap();
        deep(temp.path(), 50, true);
        let folder = walk(temp.path(), Bounds { entries: 10, ..SMALL }).unwrap();
        assert_eq!((folder.inodes, folder.incomplete), (10, true));
        let levels = 20 * size_of::<Level>();
        let folder = walk(temp.path(), Bounds { memory: levels, ..SMALL }).unwrap();
        assert!(folder.incomplete && folder.inodes > 40 && folder.inodes < 200, "{folder:?}");
    }

    #[test]
    fn of_files_with_several_names_that_are_not_remembered_each_name_has_its_share() {
        let temp = tempfile::tempdir().unwrap();
        for index in 0..20 {
            let file = temp.path().join(format!("{index}"));
            std::fs::write(&file, vec![1; 64 << 10]).unwrap();
            for name in 0..3 {
                std::fs::hard_link(&file, temp.path().join(format!("{index}-{name}"))).unwrap();
            }
        }
        let whole = walk(temp.path(), Bounds { several_names: 20, ..SMALL }).unwrap();
        assert_eq!((whole.inodes, whole.incomplete), (21, false));
        let shares = walk(temp.path(), Bounds { several_names: 5, ..SMALL }).unwrap();
        assert_eq!((shares.bytes, shares.inodes, shares.incomplete), (whole.bytes, 6, true));
    }

    #[test]
    fn blocks_count_once_and_nothing_is_followed() {
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
}
