//! A block device by path and numbers. The path is looked at again here: nobody but root may write to /dev, and what is a link
//! there may be another device tomorrow.

use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Component, Path};

use bulkhead_ipc::common::DiskRequest;

/// Longest path, bytes.
const MAX_PATH: usize = 4096;

/// Why a device is not touched.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    #[error(
        "the path {0:?} of a device has to be absolute, below /dev, without \"..\" and of at most {MAX_PATH} bytes"
    )]
    Path(String),
    #[error("{0} is no block device")]
    Kind(String),
    #[error("{path} is device {is}, and not {asked} any more")]
    Another { path: String, is: String, asked: String },
}

/// Whether it is a path that may be looked at. Pure.
///
/// # Errors
/// It is not.
pub fn path(text: &str) -> Result<&Path, DeviceError> {
    let path = Path::new(text);
    let plain = path.components().all(|one| matches!(one, Component::RootDir | Component::Normal(_)));
    let below = path.starts_with("/dev") && path != Path::new("/dev");
    if plain && below && text.len() <= MAX_PATH && !text.contains('\0') && !text.contains("/./") {
        Ok(path)
    } else {
        Err(DeviceError::Path(text.chars().take(128).collect()))
    }
}

/// The device of a question, as it is now.
///
/// # Errors
/// It is none, or another one.
pub fn check(question: &DiskRequest) -> Result<String, DeviceError> {
    let path = path(&question.device)?;
    let shown = question.device.clone();
    let is = match std::fs::symlink_metadata(path) {
        Ok(metadata) if metadata.file_type().is_block_device() => metadata,
        _ => return Err(DeviceError::Kind(shown)),
    };
    let numbers = (rustix::fs::major(is.rdev()), rustix::fs::minor(is.rdev()));
    if numbers != (question.major, question.minor) {
        let text = |(major, minor): (u32, u32)| format!("{major}:{minor}");
        let (is, asked) = (text(numbers), text((question.major, question.minor)));
        return Err(DeviceError::Another { path: shown, is, asked });
    }
    Ok(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_lies_below_dev() {
        for good in ["/dev/sdb1", "/dev/mapper/vg-lv", "/dev/loop0"] {
            assert!(path(good).is_ok(), "{good}");
        }
        let long = format!("/dev/{}", "x".repeat(MAX_PATH));
        for bad in
            ["", "/", "/dev", "/dev/", "dev/sdb", "/device/sdb", "/dev/../etc/passwd", "/dev/./sdb", "/dev/a\0", &long]
        {
            assert!(matches!(path(bad), Err(DeviceError::Path(_))), "{bad:?}");
        }
    }

    #[test]
    fn what_is_no_block_device_is_not_touched() {
        let question =
            |device: &str| DiskRequest { device: device.into(), major: 1, minor: 3, ..DiskRequest::default() };
        for device in ["/dev/null", "/dev/shm", "/dev/none-of-it"] {
            assert_eq!(check(&question(device)), Err(DeviceError::Kind(device.into())));
        }
    }
}
