//! Listing and removing directories that pods have written to.
//!
//! Removal goes by descriptor and single name, follows no link, and never enters another mount: that a volume is still
//! mounted somewhere below must be an error, not the end of its contents. A pod can nest directories deeper than we may
//! have open files; from [`MAX_DEPTH`] on, sub-directories are moved up to the top and removed from there.

use std::ffi::{CStr, CString, OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, StatxFlags};
use rustix::io::Errno;

/// Open directories at a time.
const MAX_DEPTH: usize = 32;

/// Passes over the top directory. Each pass handles what the one before moved up or what somebody added meanwhile.
const MAX_PASSES: usize = 1_000_000;

/// Why a tree, or a part of it, was not removed.
#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    #[error("{name} is a mount point")]
    MountPoint { name: String },
    #[error("{name} is a file")]
    File { name: String },
    #[error("failed to {doing} {name}")]
    Io { doing: &'static str, name: String, source: io::Error },
}

fn io_error(doing: &'static str, name: &CStr) -> impl Fn(Errno) -> TreeError {
    move |errno| TreeError::Io { doing, name: name.to_string_lossy().into_owned(), source: errno.into() }
}

/// One entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub name: OsString,
    pub is_dir: bool,
    pub is_link: bool,
    pub is_file: bool,
    pub is_socket: bool,
}

/// Lists a directory, without `.` and `..`, unordered; at most `max` entries, then it is an error.
pub fn list(dir: BorrowedFd<'_>, max: usize) -> io::Result<Vec<Entry>> {
    let mut entries = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        if entries.len() >= max {
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, "a directory with more entries than expected"));
        }
        let kind = match entry.file_type() {
            // Some file systems do not tell in the listing.
            FileType::Unknown => match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => FileType::from_raw_mode(stat.st_mode),
                Err(Errno::NOENT) => continue,
                Err(errno) => return Err(errno.into()),
            },
            kind => kind,
        };
        entries.push(Entry {
            name: OsStr::from_bytes(name.to_bytes()).to_owned(),
            is_dir: kind == FileType::Directory,
            is_link: kind == FileType::Symlink,
            is_file: kind == FileType::RegularFile,
            is_socket: kind == FileType::Socket,
        });
    }
    Ok(entries)
}

/// Removes `name` in `parent` with everything below it. Not being there is success.
pub fn remove(parent: BorrowedFd<'_>, name: impl AsRef<OsStr>) -> Result<(), TreeError> {
    let name = c_name(name.as_ref())?;
    let Some(top) = open_or_unlink(parent, &name, mount_id(parent).map_err(io_error("examine", &name))?)? else {
        return Ok(());
    };
    let mount = mount_id(top.as_fd()).map_err(io_error("examine", &name))?;
    let mut moved = 0;
    for _ in 0..MAX_PASSES {
        empty(top.as_fd(), top.as_fd(), mount, 1, &mut moved)?;
        match rustix::fs::unlinkat(parent, &*name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(Errno::NOTEMPTY | Errno::EXIST) => {}
            Err(Errno::BUSY) => return Err(TreeError::MountPoint { name: name.to_string_lossy().into_owned() }),
            Err(errno) => return Err(io_error("remove the directory", &name)(errno)),
        }
    }
    Err(io_error("remove the directory", &name)(Errno::NOTEMPTY))
}

/// Removes `name` in `parent` if it and everything below are empty directories. A file stops it (nothing that could be
/// data is lost), and so does a mount point. Not being there is success.
pub fn remove_empty_dirs(parent: BorrowedFd<'_>, name: impl AsRef<OsStr>) -> Result<(), TreeError> {
    let name = c_name(name.as_ref())?;
    remove_empty(parent, &name, 0)
}

fn remove_empty(parent: BorrowedFd<'_>, name: &CStr, depth: usize) -> Result<(), TreeError> {
    let dir = match open_dir(parent, name) {
        Ok(dir) => dir,
        Err(Errno::NOENT) => return Ok(()),
        Err(Errno::NOTDIR | Errno::LOOP) => return Err(TreeError::File { name: name.to_string_lossy().into_owned() }),
        Err(errno) => return Err(io_error("open the directory", name)(errno)),
    };
    let same = mount_id(parent).and_then(|outer| Ok(outer == mount_id(dir.as_fd())?));
    if !same.map_err(io_error("examine", name))? {
        return Err(TreeError::MountPoint { name: name.to_string_lossy().into_owned() });
    }
    if depth >= MAX_DEPTH {
        return Err(io_error("remove the directory", name)(Errno::NOTEMPTY));
    }
    for entry in names(dir.as_fd(), name)? {
        remove_empty(dir.as_fd(), &entry, depth + 1)?;
    }
    drop(dir);
    match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(Errno::BUSY) => Err(TreeError::MountPoint { name: name.to_string_lossy().into_owned() }),
        Err(errno) => Err(io_error("remove the directory", name)(errno)),
    }
}

/// Removes everything in `dir`. What lies too deep is moved to `top` instead and comes in the next pass.
fn empty(dir: BorrowedFd<'_>, top: BorrowedFd<'_>, mount: u64, depth: usize, moved: &mut u64) -> Result<(), TreeError> {
    for name in names(dir, c"")? {
        if depth >= MAX_DEPTH {
            match rustix::fs::unlinkat(dir, &*name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => continue,
                Err(Errno::ISDIR) => {}
                Err(Errno::BUSY) => return Err(TreeError::MountPoint { name: name.to_string_lossy().into_owned() }),
                Err(errno) => return Err(io_error("remove", &name)(errno)),
            }
            *moved += 1;
            let up = format!(".deep-{moved}");
            match rustix::fs::renameat(dir, &*name, top, up.as_str()) {
                Ok(()) | Err(Errno::NOENT) => {}
                // The name is taken by the pod's own directory: the next number will do in the next pass.
                Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => {}
                Err(Errno::BUSY | Errno::XDEV) => {
                    return Err(TreeError::MountPoint { name: name.to_string_lossy().into_owned() });
                }
                Err(errno) => return Err(io_error("move", &name)(errno)),
            }
            continue;
        }
        let Some(child) = open_or_unlink(dir, &name, mount)? else { continue };
        empty(child.as_fd(), top, mount, depth + 1, moved)?;
        drop(child);
        match rustix::fs::unlinkat(dir, &*name, AtFlags::REMOVEDIR) {
            // Not empty: something was left for the next pass, or added just now.
            Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST) => {}
            Err(Errno::BUSY) => return Err(TreeError::MountPoint { name: name.to_string_lossy().into_owned() }),
            Err(errno) => return Err(io_error("remove the directory", &name)(errno)),
        }
    }
    Ok(())
}

/// Opens a directory of the same mount, or removes what is not a directory (None).
fn open_or_unlink(dir: BorrowedFd<'_>, name: &CStr, mount: u64) -> Result<Option<OwnedFd>, TreeError> {
    match open_dir(dir, name) {
        Ok(child) => {
            if mount_id(child.as_fd()).map_err(io_error("examine", name))? == mount {
                Ok(Some(child))
            } else {
                Err(TreeError::MountPoint { name: name.to_string_lossy().into_owned() })
            }
        }
        Err(Errno::NOENT) => Ok(None),
        Err(Errno::NOTDIR | Errno::LOOP) => match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(None),
            Err(Errno::BUSY) => Err(TreeError::MountPoint { name: name.to_string_lossy().into_owned() }),
            Err(errno) => Err(io_error("remove", name)(errno)),
        },
        Err(errno) => Err(io_error("open the directory", name)(errno)),
    }
}

fn open_dir(parent: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::empty())
}

/// The mount that a descriptor is on: tells bind mounts of one file system apart, which st_dev does not.
pub fn mount_id(fd: BorrowedFd<'_>) -> rustix::io::Result<u64> {
    // The kernel knows it. Kernels before 6.6 ask the server of a FUSE file system all the same unless told not to.
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    Ok(rustix::fs::statx(fd, "", flags, StatxFlags::MNT_ID)?.stx_mnt_id)
}

fn names(dir: BorrowedFd<'_>, of: &CStr) -> Result<Vec<CString>, TreeError> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir).map_err(io_error("list", of))? {
        let entry = entry.map_err(io_error("list", of))?;
        let name = entry.file_name();
        if name != c"." && name != c".." {
            names.push(name.to_owned());
        }
        // A pass at a time keeps memory bounded whatever a pod has made.
        if names.len() >= 4096 {
            break;
        }
    }
    Ok(names)
}

fn c_name(name: &OsStr) -> Result<CString, TreeError> {
    let bad = |errno: Errno| TreeError::Io {
        doing: "remove",
        name: name.to_string_lossy().into_owned(),
        source: errno.into(),
    };
    if name.is_empty() || name == "." || name == ".." || name.as_bytes().contains(&b'/') {
        return Err(bad(Errno::INVAL));
    }
    CString::new(name.as_bytes()).map_err(|_| bad(Errno::INVAL))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn removes_deep_wide_and_linked_trees_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let outside = dir.path().join("outside");
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("keep"), "x").unwrap();
        let base = crate::open::base_dir(dir.path()).unwrap();
        let mut here = crate::open::create_dirs_beneath(base.as_fd(), "victim", 0o755).unwrap();
        symlink(&outside, dir.path().join("victim/link")).unwrap();
        for i in 0..9000 {
            std::fs::write(dir.path().join(format!("victim/f{i}")), "").unwrap();
        }
        for i in 0..2000 {
            rustix::fs::mkdirat(&here, "d", Mode::from_raw_mode(0o755)).unwrap();
            if i % 100 == 0 {
                symlink(&outside, format!("/proc/self/fd/{}/l", std::os::fd::AsRawFd::as_raw_fd(&here))).unwrap();
            }
            here = open_dir(here.as_fd(), c"d").unwrap();
        }
        drop(here);
        remove(base.as_fd(), "victim").unwrap();
        remove(base.as_fd(), "victim").unwrap();
        assert!(!dir.path().join("victim").exists());
        assert!(outside.join("keep").exists());
        assert!(remove(base.as_fd(), "..").is_err());
        assert!(remove(base.as_fd(), "a/b").is_err());
    }

    #[test]
    fn stops_at_mounts() {
        if rustix::process::getuid().as_raw() != 0 {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let base = crate::open::base_dir(dir.path()).unwrap();
        let target = crate::open::create_dirs_beneath(base.as_fd(), "pod/volumes/v", 0o755).unwrap();
        crate::mount::tmpfs(target.as_fd(), &crate::mount::Tmpfs::default()).unwrap();
        drop(target);
        let inside = dir.path().join("pod/volumes/v/data");
        std::fs::write(&inside, "x").unwrap();
        assert!(matches!(remove(base.as_fd(), "pod"), Err(TreeError::MountPoint { .. })));
        assert!(matches!(remove_empty_dirs(base.as_fd(), "pod"), Err(TreeError::MountPoint { .. })));
        assert!(inside.exists());
        let volumes = crate::open::dir_beneath(base.as_fd(), "pod/volumes").unwrap();
        crate::mount::unmount(volumes.as_fd(), "v").unwrap();
        remove(base.as_fd(), "pod").unwrap();
    }

    #[test]
    fn empty_directories_go_and_files_stay() {
        let dir = tempfile::tempdir().unwrap();
        let base = crate::open::base_dir(dir.path()).unwrap();
        crate::open::create_dirs_beneath(base.as_fd(), "a/b/c", 0o755).unwrap();
        std::fs::write(dir.path().join("a/b/vol_data.json"), "").unwrap();
        assert!(matches!(remove_empty_dirs(base.as_fd(), "a"), Err(TreeError::File { .. })));
        std::fs::remove_file(dir.path().join("a/b/vol_data.json")).unwrap();
        remove_empty_dirs(base.as_fd(), "a").unwrap();
        remove_empty_dirs(base.as_fd(), "a").unwrap();
        assert_eq!(list(base.as_fd(), 10).unwrap(), []);
    }
}
