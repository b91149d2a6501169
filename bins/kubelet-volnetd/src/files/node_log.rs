//! Files below /var/log, for the node's `/logs/`.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use bulkhead_sys::open::{self, OpenError, Volume};

use crate::node::Settings;

/// Why a log is not opened.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct NodeLogError(#[from] pub OpenError);

/// By rule 3, because logs are reached by links (/var/log/containers): inside of the folder they are followed, out of it
/// none leads. Without a path the folder itself.
///
/// # Errors
/// It is not there, leads out, or is neither a file nor a directory.
pub fn open(settings: &Settings, relative: Option<&Path>) -> Result<OwnedFd, NodeLogError> {
    let dir = &settings.node_logs_dir;
    let base = open::base_dir(dir)?;
    let Some(relative) = relative else { return Ok(base) };
    Ok(Volume { root: base.as_fd(), host_path: Some(dir) }.file_or_directory(relative)?)
}
