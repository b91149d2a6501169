//! subPath.

use std::os::fd::BorrowedFd;

use bulkhead_sys::tree::{self, TreeError};

/// Below the pod's directory.
pub const FOLDER: &str = "volume-subpaths";

/// Removes the targets of a pod whose binds are gone. They are empty; one with a mount on it stops this.
pub fn remove_targets(pod_dir: BorrowedFd<'_>) -> Result<(), TreeError> {
    tree::remove(pod_dir, FOLDER)
}
