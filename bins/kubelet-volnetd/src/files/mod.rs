//! Files that the kubelet keeps for pods: etc-hosts, termination messages, log folders and links; and those that are opened
//! for the others: node logs, files with variables.

pub mod env_file;
pub mod etc_hosts;
pub mod logs;
pub mod node_log;
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
}
