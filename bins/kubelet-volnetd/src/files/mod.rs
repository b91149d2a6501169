//! Files that the kubelet keeps for pods: etc-hosts, termination messages, log folders and links; records of image pulls; and
//! those that are opened for the others: node logs, files with variables.

pub mod env_file;
pub mod etc_hosts;
pub mod image_pulls;
pub mod logs;
pub mod node_log;
pub mod rotation;
pub mod termination;

use std::path::PathBuf;

use bulkhead_sys::open::OpenError;
use bulkhead_sys::tree::TreeError;

use crate::volumes::VolumeError;

/// Why a file verb failed.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error(transparent)]
    Pod(#[from] VolumeError),
    #[error("failed to {doing} {path}")]
    Open { doing: &'static str, path: PathBuf, source: OpenError },
    #[error("failed to {doing} {path}")]
    Io { doing: &'static str, path: PathBuf, source: std::io::Error },
    #[error("failed to remove {path}")]
    Remove { path: PathBuf, source: TreeError },
    #[error("{path} is not a regular file")]
    NoRegularFile { path: PathBuf },
    #[error("{path} is there already")]
    Exists { path: PathBuf },
    #[error("{path} is not the newest of the rotated logs")]
    NotNewest { path: PathBuf },
    #[error("{path} stays: its other form is not there")]
    OnlyForm { path: PathBuf },
    #[error("{path} stays: it does not have {bytes} bytes any more")]
    Grown { path: PathBuf, bytes: u64 },
    #[error("{path} can be made of nothing but a file that was passed for it, and only once")]
    NotNew { path: PathBuf },
    #[error("there is no later stamp than that of the newest rotated log in {path}: move that away")]
    NoStamp { path: PathBuf },
}

impl FileError {
    /// What was to be opened is not there.
    fn is_not_found(&self) -> bool {
        matches!(self, FileError::Open { source, .. } if source.is_not_found())
    }
}
