//! A file with variables that one container of a pod wrote for the next (`fileKeyRef`): read here, because nobody else
//! opens what a pod writes, and passed as a copy, because a descriptor into a volume would keep it from being unmounted.

use std::io::Read as _;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use bulkhead_ipc::volnetd::EnvFile;
use bulkhead_sys::memfd;
use bulkhead_sys::open::{OpenError, Volume};

use super::BrokerError;
use crate::node::Node;
use crate::validate;
use crate::volumes::{EMPTY_DIR, pod_dir, volume_root};

/// Far more than a program is given: no variable that the kernel takes is longer than 128 KiB.
const MAX_BYTES: u64 = 1 << 20;

/// Why no copy of a file is passed.
#[derive(Debug, thiserror::Error)]
pub enum EnvFileError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("it has more than {MAX_BYTES} bytes")]
    TooLarge,
    #[error("failed to copy it")]
    Copy(#[source] std::io::Error),
}

/// A sealed memfd with the file's bytes, as they are at this moment.
pub fn open(node: &Node, file: &EnvFile) -> Result<OwnedFd, BrokerError> {
    let pod = validate::pod_uid(&file.pod_uid)?;
    let volume = validate::volume(&file.volume)?;
    let path = validate::sub_path(&file.path)?;
    let pod_dir = pod_dir(node, &pod)?;
    let root = volume_root(pod_dir.as_fd(), &pod, &volume, EMPTY_DIR)?;
    copy(Volume { root: root.as_fd(), host_path: None }, &path).map_err(|source| BrokerError::EnvFile {
        volume: volume.clone(),
        path: path.clone(),
        source,
    })
}

fn copy(volume: Volume<'_>, path: &Path) -> Result<OwnedFd, EnvFileError> {
    let file = std::fs::File::from(volume.regular_file(path)?);
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(EnvFileError::Copy)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(EnvFileError::TooLarge);
    }
    memfd::sealed("env-file", &bytes).map_err(EnvFileError::Copy)
}
