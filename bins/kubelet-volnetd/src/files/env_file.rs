//! A file with variables that one container of a pod wrote for the next (`fileKeyRef`): read here, because nobody else
//! opens what a pod writes, and passed as a copy, because a descriptor into a volume would keep it from being unmounted.

use std::io::Read as _;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use bulkhead_sys::memfd;
use bulkhead_sys::open::{OpenError, Volume};
use bulkhead_types::{PodUid, VolumeName};

use crate::node::Settings;
use crate::volumes::{EMPTY_DIR, VolumeError, pod_dir, volume_root};

/// Far more than a program is given: no variable that the kernel takes is longer than 128 KiB.
const MAX_BYTES: u64 = 1 << 20;

/// Why no copy of a file is passed.
#[derive(Debug, thiserror::Error)]
pub enum EnvFileError {
    #[error(transparent)]
    Volume(#[from] VolumeError),
    #[error("failed to read the file {path} of volume {volume}")]
    File { volume: VolumeName, path: PathBuf, source: CopyError },
}

/// Why a file cannot be copied.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("it has more than {MAX_BYTES} bytes")]
    TooLarge,
    #[error("failed to copy it")]
    Copy(#[source] std::io::Error),
}

/// A sealed memfd with the file's bytes, as they are at this moment.
pub fn open(settings: &Settings, pod: &PodUid, volume: &VolumeName, path: &Path) -> Result<OwnedFd, EnvFileError> {
    let pod_dir = pod_dir(settings, pod)?;
    let root = volume_root(pod_dir.as_fd(), pod, volume, EMPTY_DIR)?;
    copy(Volume { root: root.as_fd(), host_path: None }, path).map_err(|source| EnvFileError::File {
        volume: volume.clone(),
        path: path.to_owned(),
        source,
    })
}

fn copy(volume: Volume<'_>, path: &Path) -> Result<OwnedFd, CopyError> {
    let file = std::fs::File::from(volume.regular_file(path)?);
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(CopyError::Copy)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(CopyError::TooLarge);
    }
    memfd::sealed("env-file", &bytes).map_err(CopyError::Copy)
}
