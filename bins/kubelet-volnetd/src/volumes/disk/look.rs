//! What is at the path of a local volume.

use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags};

use super::super::csi::way;
use super::{Device, DiskError, Found};

fn open(path: &Path) -> Result<(OwnedFd, rustix::fs::Stat), DiskError> {
    let error = |errno: rustix::io::Errno| DiskError::Open { path: path.to_owned(), source: errno.into() };
    let opened = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map_err(error)?;
    let stat = rustix::fs::fstat(&opened).map_err(error)?;
    Ok((opened, stat))
}

/// The path is resolved as the host resolves any path; a device is told by the kernel's name for it.
///
/// # Errors
/// It is neither a folder nor a block device, or is not there.
pub fn look(path: &Path) -> Result<Found, DiskError> {
    let (_, stat) = open(path)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => Ok(Found::Folder),
        FileType::BlockDevice => {
            let (major, minor) = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
            device(path, major, minor).map(Found::Device)
        }
        kind => Err(DiskError::Kind { path: path.to_owned(), found: way::name_of(kind) }),
    }
}

/// A handle to a device that was looked at.
///
/// # Errors
/// It is not that device any more.
pub fn opened(device: &Device) -> Result<OwnedFd, DiskError> {
    let failed = |errno: rustix::io::Errno| DiskError::Open { path: device.path.clone(), source: errno.into() };
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::open(&device.path, flags, Mode::empty()).map_err(failed)?;
    let stat = rustix::fs::fstat(&opened).map_err(failed)?;
    let numbers = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
    if FileType::from_raw_mode(stat.st_mode) != FileType::BlockDevice || numbers != (device.major, device.minor) {
        return Err(failed(rustix::io::Errno::NODEV));
    }
    Ok(opened)
}

/// A device by its numbers.
///
/// # Errors
/// The kernel has none, or no name for it.
pub fn by_numbers(major: u32, minor: u32) -> Result<Device, DiskError> {
    device(Path::new("/dev"), major, minor)
}

/// Whatever name the administrator gave it, the kernel's stands in /dev.
fn device(path: &Path, major: u32, minor: u32) -> Result<Device, DiskError> {
    let no_name = || DiskError::NoName { path: path.to_owned(), major, minor };
    let says = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/uevent")).map_err(|_| no_name())?;
    let name = name(&says).ok_or_else(no_name)?;
    let path = Path::new("/dev").join(name);
    let is = std::fs::symlink_metadata(&path).map_err(|_| no_name())?;
    let same = (rustix::fs::major(is.rdev()), rustix::fs::minor(is.rdev())) == (major, minor);
    if is.file_type().is_block_device() && same { Ok(Device { path, major, minor }) } else { Err(no_name()) }
}

/// Pure.
fn name(uevent: &str) -> Option<PathBuf> {
    let name = Path::new(uevent.lines().find_map(|line| line.strip_prefix("DEVNAME="))?);
    let plain = name.components().all(|one| matches!(one, std::path::Component::Normal(_)));
    (plain && name.components().next().is_some()).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_devices() {
        let of = |text: &str| name(text).map(|name| name.display().to_string());
        assert_eq!(of("MAJOR=8\nMINOR=1\nDEVNAME=sda1\nDEVTYPE=partition\n"), Some("sda1".into()));
        assert_eq!(of("DEVNAME=cciss/c0d0"), Some("cciss/c0d0".into()));
        for bad in ["", "DEVNAME=", "DEVNAME=/etc/passwd", "DEVNAME=../etc"] {
            assert_eq!(of(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_folder_and_what_is_none() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(look(folder.path()).unwrap(), Found::Folder);
        let file = folder.path().join("f");
        std::fs::write(&file, "").unwrap();
        let refused = look(&file).unwrap_err().to_string();
        assert!(refused.starts_with("only directory and block device are supported"), "{refused}");
        assert!(matches!(look(&folder.path().join("none")), Err(DiskError::Open { .. })));
        assert!(look(Path::new("/dev/null")).is_err());
    }
}
