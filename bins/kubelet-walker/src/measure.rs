//! What is measured: whole file systems by statfs, a volume's folder by a walk, files of logs.

use std::os::fd::OwnedFd;
use std::path::Path;

use bulkhead_ipc::common::{ContainerLogFiles, FileSystemFigures, FolderFigures, RotatedLogFigures};
use bulkhead_types::{current_log_name, parse_rotated_log_name};
use rustix::fs::{AtFlags, Dir, Mode};

use crate::walk::{self, Bounds, OPEN, blocks};

/// Files of a log folder that are looked at. The agent and the runtime make them, and remove those that are too many.
const FILES_MAX: u64 = 1_000_000;

/// Figures of the file system that holds `path`.
///
/// # Errors
/// As statvfs(3).
pub fn file_system(path: &Path) -> std::io::Result<FileSystemFigures> {
    let stat = rustix::fs::statvfs(path)?;
    Ok(FileSystemFigures {
        capacity_bytes: stat.f_blocks.saturating_mul(stat.f_frsize),
        available_bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
        // As cAdvisor has it.
        used_bytes: stat.f_blocks.saturating_sub(stat.f_bfree).saturating_mul(stat.f_frsize),
        inodes: stat.f_files,
        inodes_free: stat.f_ffree,
        device: rustix::fs::stat(path)?.st_dev,
    })
}

/// The files right in a folder, no folders and nothing in them: what counts as logs.
///
/// # Errors
/// The folder cannot be opened.
pub fn files(path: &Path) -> std::io::Result<FolderFigures> {
    let mut folder = FolderFigures::default();
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
        if folder.inodes >= FILES_MAX {
            folder.incomplete = true;
            break;
        }
    }
    Ok(folder)
}

/// One file; `None` when it is not there.
pub fn file(path: &Path) -> Option<FolderFigures> {
    let stat = rustix::fs::lstat(path).ok()?;
    Some(FolderFigures { bytes: blocks(&stat), inodes: 1, incomplete: false })
}

/// Files of the log with this number in a container's folder: sizes as the files have them, not what is allocated.
///
/// # Errors
/// The folder is not there or cannot be listed, or its log is no regular file.
pub fn log_files(folder: &Path, number: u32) -> std::io::Result<ContainerLogFiles> {
    let at: OwnedFd = rustix::fs::open(folder, OPEN, Mode::empty())?;
    let mut files = ContainerLogFiles { known: true, ..ContainerLogFiles::default() };
    for (count, entry) in Dir::read_from(&at)?.enumerate() {
        if count as u64 >= FILES_MAX {
            return Err(std::io::ErrorKind::QuotaExceeded.into());
        }
        let entry = entry?;
        let name = entry.file_name().to_str().unwrap_or_default();
        let Some((_, stamp, form)) = parse_rotated_log_name(name).filter(|(other, ..)| *other == number) else {
            continue;
        };
        // Gone meanwhile, or no log.
        let Some(bytes) = regular_size(&at, name)?.flatten() else { continue };
        let suffix = form.suffix().to_owned();
        files.rotated.push(RotatedLogFigures { stamp: stamp.to_string(), suffix, bytes });
    }
    files.current_bytes = match regular_size(&at, &current_log_name(number))? {
        Some(None) => return Err(std::io::ErrorKind::InvalidInput.into()),
        Some(bytes) => bytes,
        None => None,
    };
    Ok(files)
}

/// `None`: there is no such name; `Some(None)`: it is no regular file.
fn regular_size(at: &OwnedFd, name: &str) -> std::io::Result<Option<Option<u64>>> {
    match rustix::fs::statat(at, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) if rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file() => {
            Ok(Some(Some(u64::try_from(stat.st_size).unwrap_or(0))))
        }
        Ok(_) => Ok(Some(None)),
        Err(rustix::io::Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// A volume's folder.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Volume {
    pub fs: FileSystemFigures,
    pub folder: FolderFigures,
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
        let folder = FolderFigures { bytes: file_system.used_bytes, inodes, incomplete: false };
        return Ok(Volume { fs: file_system, folder, is_mount: true });
    }
    Ok(Volume { fs: file_system, folder: walk::walk(path, Bounds::default())?, is_mount: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_knows_its_file_system() {
        let temp = tempfile::tempdir().unwrap();
        let own = volume(temp.path()).unwrap();
        assert!(own.fs.capacity_bytes >= own.fs.available_bytes && !own.is_mount);
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

    #[test]
    fn files_of_one_log() {
        let temp = tempfile::tempdir().unwrap();
        let folder = temp.path();
        assert!(log_files(&folder.join("none"), 0).is_err());
        for (name, bytes) in [
            ("0.log.20260101-000000", 7),
            ("0.log.20260101-000000.gz", 3),
            ("0.log.20251231-235959.tmp", 1),
            ("0.log.old", 9),
            ("1.log", 5),
            ("1.log.20260101-000000", 9),
        ] {
            std::fs::write(folder.join(name), vec![1; bytes]).unwrap();
        }
        std::os::unix::fs::symlink("1.log", folder.join("0.log.20260101-000001")).unwrap();
        let files = log_files(folder, 0).unwrap();
        assert_eq!((files.known, files.current_bytes), (true, None));
        let mut rotated: Vec<_> =
            files.rotated.iter().map(|file| (file.stamp.as_str(), file.suffix.as_str(), file.bytes)).collect();
        rotated.sort_unstable();
        assert_eq!(
            rotated,
            [("20251231-235959", ".tmp", 1), ("20260101-000000", "", 7), ("20260101-000000", ".gz", 3)]
        );
        // A hole counts: what is compared is what a reader would read.
        std::fs::File::create(folder.join("0.log")).unwrap().set_len(1 << 30).unwrap();
        assert_eq!(log_files(folder, 0).unwrap().current_bytes, Some(1 << 30));
        std::fs::remove_file(folder.join("0.log")).unwrap();
        std::os::unix::fs::symlink("1.log", folder.join("0.log")).unwrap();
        assert!(log_files(folder, 0).is_err(), "a link is no log, and not a missing one");
    }
}
