//! The way to a folder of ours: made of folders and no links, with nothing mounted over it; and what is mounted where it ends.

use std::cell::OnceCell;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bulkhead_sys::alarm::Alarm;
use bulkhead_sys::mount;
use bulkhead_sys::mountinfo::MountInfo;
use bulkhead_sys::open::{self, OpenError};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mount::OpenTreeFlags;

use super::super::VolumeError;
use super::CsiError;

/// As long as a mount that is busy is given, in `bulkhead_sys::mount`.
const RETRY: Duration = Duration::from_millis(100);

/// The mounts of this machine at one moment, with their types.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mounts(Vec<(PathBuf, String)>);

impl Mounts {
    /// Of those below a folder.
    ///
    /// # Errors
    /// mountinfo cannot be read.
    pub fn below(base: &Path) -> Result<Self, VolumeError> {
        let mut info = MountInfo::new();
        let mounts = info.read().map_err(VolumeError::Mounts)?;
        let below = mounts.filter(|mount| mount.mount_point.starts_with(base) && *mount.mount_point != *base);
        Ok(Mounts(below.map(|mount| (mount.mount_point.into_owned(), mount.fs_type.into_owned())).collect()))
    }

    /// Of those below a folder, read when they are first asked for.
    pub const fn when_asked(base: &Path) -> WhenAsked<'_> {
        WhenAsked { base, read: OnceCell::new() }
    }

    /// Of these points.
    pub fn of(points: impl IntoIterator<Item = (PathBuf, String)>) -> Self {
        Mounts(points.into_iter().collect())
    }

    /// The first one on the way to `path`, `path` itself not counted.
    pub fn over_the_way(&self, path: &Path) -> Option<&Path> {
        self.0.iter().map(|(point, _)| point.as_path()).find(|point| path.starts_with(point) && *point != path)
    }

    /// Whether something is mounted at `path` itself.
    pub fn at(&self, path: &Path) -> bool {
        self.0.iter().any(|(point, _)| point == path)
    }

    /// Something that is mounted at `path` or below, with its type: the innermost.
    pub fn at_or_below(&self, path: &Path) -> Option<(&Path, &str)> {
        let found = self.0.iter().filter(|(point, _)| point.starts_with(path));
        let innermost = found.max_by_key(|(point, _)| point.components().count());
        innermost.map(|(point, fs_type)| (point.as_path(), fs_type.as_str()))
    }

    pub fn points(&self) -> impl Iterator<Item = &Path> {
        self.0.iter().map(|(point, _)| point.as_path())
    }
}

/// Mounts below a folder at the moment at which they were first asked for. The kernel writes the list of all mounts anew for each
/// reader, some 2 ms for a hundred pods: most pods that are looked at have nothing of which it tells.
#[derive(Debug)]
pub struct WhenAsked<'a> {
    base: &'a Path,
    read: OnceCell<Mounts>,
}

impl WhenAsked<'_> {
    /// # Errors
    /// mountinfo cannot be read.
    pub fn get(&self) -> Result<&Mounts, VolumeError> {
        if let Some(mounts) = self.read.get() {
            return Ok(mounts);
        }
        let mounts = Mounts::below(self.base)?;
        Ok(self.read.get_or_init(|| mounts))
    }
}

/// Refuses where something is mounted over the way to `path`, strictly below `base`.
///
/// # Errors
/// With what is in the way.
pub fn ensure_clear(base: &Path, path: &Path) -> Result<Mounts, VolumeError> {
    let mounts = Mounts::below(base)?;
    match mounts.over_the_way(path) {
        Some(point) => Err(CsiError::MountInTheWay { path: point.to_owned() }.into()),
        None => Ok(mounts),
    }
}

/// Refuses while something is mounted at one of the paths or below. What is, is given 100 ms to go.
///
/// # Errors
/// [`CsiError::StillMounted`] with who holds it.
pub fn ensure_unmounted(base: &Path, paths: &[&Path]) -> Result<(), VolumeError> {
    for last in [false, true] {
        let mounts = Mounts::below(base)?;
        let Some((point, fs_type)) = paths.iter().find_map(|path| mounts.at_or_below(path)) else { return Ok(()) };
        if last {
            let holders = mount::holders(point);
            let holders = if holders.is_empty() { "no process".to_owned() } else { holders.join(", ") };
            return Err(CsiError::StillMounted { path: point.to_owned(), fs_type: fs_type.to_owned(), holders }.into());
        }
        std::thread::sleep(RETRY);
    }
    Ok(())
}

/// A failed open in words: a link is said to be one. `path` is absolute, for the message.
pub fn refused(path: &Path, source: OpenError) -> CsiError {
    match source.errno() {
        Some(Errno::LOOP) => CsiError::Link { path: path.to_owned() },
        Some(Errno::NOTDIR) => {
            CsiError::InTheWay { path: path.to_owned(), found: "or lies behind something that is no folder" }
        }
        _ => CsiError::Open { path: path.to_owned(), source },
    }
}

/// Opens a folder below an open one; None: it is not there.
///
/// # Errors
/// It lies behind a link, or is no folder.
pub fn folder(dir: BorrowedFd<'_>, shown: &Path, relative: &Path) -> Result<Option<OwnedFd>, CsiError> {
    // An empty path is the folder itself, and no path to the kernel.
    match open::dir_beneath(dir, Path::new(".").join(relative)) {
        Ok(folder) => Ok(Some(folder)),
        Err(error) if error.errno() == Some(Errno::NOENT) => Ok(None),
        Err(error) => Err(refused(&shown.join(relative), error)),
    }
}

/// The folder with its parents, made where they are missing (0750); those that were made are on the disk.
///
/// # Errors
/// A link, or what is no folder, in the way; a full disk.
pub fn make(dir: BorrowedFd<'_>, shown: &Path, relative: &Path) -> Result<OwnedFd, CsiError> {
    let io = |doing: &'static str| {
        move |errno: Errno| CsiError::Io { doing, path: shown.join(relative), source: errno.into() }
    };
    let mut here =
        dir.try_clone_to_owned().map_err(|source| CsiError::Io { doing: "open", path: shown.to_owned(), source })?;
    for name in relative.components() {
        let name = Path::new(name.as_os_str());
        match rustix::fs::mkdirat(&here, name, Mode::from_raw_mode(0o750)) {
            Ok(()) => rustix::fs::fsync(&here).map_err(io("write to the disk"))?,
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(io("make the folder")(errno)),
        }
        here = open::dir_beneath(here.as_fd(), name).map_err(|error| refused(&shown.join(relative), error))?;
    }
    Ok(here)
}

/// What a type of file is called.
pub const fn name_of(kind: FileType) -> &'static str {
    match kind {
        FileType::Directory => "a folder",
        FileType::RegularFile => "a regular file",
        FileType::Symlink => "a symbolic link",
        FileType::BlockDevice => "a block device",
        FileType::CharacterDevice => "a character device",
        FileType::Fifo => "a FIFO",
        FileType::Socket => "a socket",
        FileType::Unknown => "of an unknown kind",
    }
}

/// A handle to what is there, of whatever kind, and its kind; None: nothing is. Opens no device, waits for no FIFO, and asks no
/// server for attributes.
///
/// # Errors
/// It lies behind a link.
pub fn handle(dir: BorrowedFd<'_>, shown: &Path, relative: &Path) -> Result<Option<(OwnedFd, FileType)>, CsiError> {
    let path = shown.join(relative);
    let (parent, name) = (relative.parent().unwrap_or(Path::new("")), relative.file_name().unwrap_or_default());
    let parent = if parent.as_os_str().is_empty() {
        dir.try_clone_to_owned().map_err(|source| CsiError::Io { doing: "open", path: path.clone(), source })?
    } else {
        match folder(dir, shown, parent)? {
            Some(parent) => parent,
            None => return Ok(None),
        }
    };
    // By one name, so that a link is seen as what it is.
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let io = |doing| move |errno: Errno| CsiError::Io { doing, path: shown.join(relative), source: errno.into() };
    match rustix::fs::openat(&parent, name, flags, Mode::empty()) {
        Ok(handle) => {
            // The kind is known to the kernel; the server of a mount may not answer.
            let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
            let stat = rustix::fs::statx(&handle, "", flags, StatxFlags::TYPE).map_err(io("examine"))?;
            Ok(Some((handle, FileType::from_raw_mode(stat.stx_mode.into()))))
        }
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(io("open")(errno)),
    }
}

/// How long [`ask`] waits, in seconds. A dead mount says so at once, and one that does not answer is not known to be dead.
pub const PATIENCE_S: u32 = 1;

/// Asks whoever serves what is behind a handle. The process ends where nobody answers in time, unless a FUSE server has taken the question:
/// the kernel ends nobody then before it answers or is gone (fuse(4), `request_wait_answer` of fs/fuse/dev.c).
///
/// The question goes through a mount of its own, which nobody else sees: who waits holds the file system, and not the mount, which its
/// driver unmounts meanwhile. A mount that cannot be cloned (MS_UNBINDABLE) is asked and held itself.
pub fn ask(handle: OwnedFd) -> rustix::io::Result<()> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    let apart = rustix::mount::open_tree(&handle, "", flags);
    // Lets go of the handle where there is a clone.
    let asked = apart.unwrap_or(handle);
    let _alarm = Alarm::after(PATIENCE_S);
    rustix::fs::fstat(&asked).map(drop)
}

/// Removes one name: an empty folder, or what is no folder. Not being there is success, and so is that its folder is not.
///
/// # Errors
/// A folder that is not empty; whatever the kernel refuses.
pub fn remove_one(dir: BorrowedFd<'_>, shown: &Path, relative: &Path) -> Result<(), CsiError> {
    let path = shown.join(relative);
    let (parent, name) = (relative.parent().unwrap_or(Path::new("")), relative.file_name().unwrap_or_default());
    let parent = if parent.as_os_str().is_empty() {
        None
    } else {
        match folder(dir, shown, parent)? {
            Some(parent) => Some(parent),
            None => return Ok(()),
        }
    };
    let parent = parent.as_ref().map_or(dir, |parent| parent.as_fd());
    let removed = match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
        Err(Errno::NOTDIR) => rustix::fs::unlinkat(parent, name, AtFlags::empty()),
        other => other,
    };
    match removed {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(Errno::NOTEMPTY | Errno::EXIST) => Err(CsiError::NotEmpty { path }),
        Err(errno) => Err(CsiError::Io { doing: "remove", path, source: errno.into() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_on_the_way_at_its_end_and_below() {
        let mounts = Mounts::of(
            ["/r/pods/u", "/r/pods/u/v/pv/mount/in", "/r/pods/x/v/pv/mount"].map(|point| (point.into(), "ext4".into())),
        );
        assert_eq!(mounts.over_the_way(Path::new("/r/pods/u/v/pv/mount")), Some(Path::new("/r/pods/u")));
        assert_eq!(mounts.over_the_way(Path::new("/r/pods/u")), None);
        assert_eq!(mounts.over_the_way(Path::new("/r/pods/x/v/pv/mount")), None);
        assert!(mounts.at(Path::new("/r/pods/x/v/pv/mount")) && !mounts.at(Path::new("/r/pods/x/v/pv")));
        assert_eq!(mounts.at_or_below(Path::new("/r/pods/x/v/pv")), Some((Path::new("/r/pods/x/v/pv/mount"), "ext4")));
        assert_eq!(mounts.at_or_below(Path::new("/r/pods/u")), Some((Path::new("/r/pods/u/v/pv/mount/in"), "ext4")));
        assert_eq!(mounts.at_or_below(Path::new("/r/pods/x/v/pv2")), None);
    }

    #[test]
    fn one_name_and_nothing_in_it() {
        let dir = tempfile::tempdir().unwrap();
        let base = open::base_dir(dir.path()).unwrap();
        let remove = |name: &str| remove_one(base.as_fd(), dir.path(), Path::new(name));
        make(base.as_fd(), dir.path(), Path::new("a/b")).unwrap();
        assert!(matches!(remove("a"), Err(CsiError::NotEmpty { .. })));
        remove("a/b").unwrap();
        remove("a/b").unwrap();
        remove("a/none/x").unwrap();
        std::os::unix::fs::symlink("/etc", dir.path().join("a/link")).unwrap();
        assert!(matches!(
            make(base.as_fd(), dir.path(), Path::new("a/link/x")),
            Err(CsiError::Link { .. } | CsiError::InTheWay { .. })
        ));
        assert!(remove("a/link/passwd").is_err());
        let (_, kind) = handle(base.as_fd(), dir.path(), Path::new("a/link")).unwrap().unwrap();
        assert_eq!(kind, FileType::Symlink);
        remove("a/link").unwrap();
        remove("a").unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
