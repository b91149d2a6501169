//! Pod directories and volumes: `<root-dir>/pods/<uid>/…` as upstream lays it out.

pub mod content;
pub mod empty_dir;
pub mod host_path;
pub mod list;
pub mod ownership;
pub mod prune;
pub mod sub_path;
pub mod teardown;

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use bulkhead_sys::mount::MountError;
use bulkhead_sys::open::{self, OpenError};
use bulkhead_sys::tree::TreeError;
use bulkhead_types::{PodUid, VolumeName};

use crate::journal::JournalError;
use crate::node::Node;

/// The plugin that others are built on.
pub const EMPTY_DIR: &str = "kubernetes.io/empty-dir";

/// Volumes that are the host's own.
pub const HOST_PATH: &str = "kubernetes.io/host-path";

/// Why a volume verb failed.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    #[error("pod {pod} is not known here: PreparePod comes first")]
    UnknownPod { pod: PodUid },
    #[error("setting up the directory of pod {pod}")]
    PodDir { pod: PodUid, source: OpenError },
    #[error("setting up volume {volume} of pod {pod}")]
    Open { pod: PodUid, volume: VolumeName, source: OpenError },
    #[error("setting the mode of volume {volume} of pod {pod}")]
    Mode { pod: PodUid, volume: VolumeName, source: std::io::Error },
    #[error("mounting volume {volume} of pod {pod}")]
    Mount { pod: PodUid, volume: VolumeName, source: MountError },
    #[error("volume {volume} of pod {pod} is not set up here")]
    NotSetUp { pod: PodUid, volume: VolumeName },
    #[error("writing the files of volume {volume} of pod {pod}")]
    Content { pod: PodUid, volume: VolumeName, source: content::WriteError },
    #[error("giving volume {volume} of pod {pod} to its group")]
    Ownership { pod: PodUid, volume: VolumeName, source: ownership::OwnershipError },
    #[error("preparing the subPath {path} of volume {volume} of pod {pod}")]
    SubPath { pod: PodUid, volume: VolumeName, path: PathBuf, source: sub_path::SubPathError },
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(transparent)]
    HostPath(#[from] host_path::HostPathError),
    #[error("reading the mounts")]
    Mounts(#[source] std::io::Error),
    #[error("listing {path}")]
    List { path: PathBuf, source: std::io::Error },
    #[error("removing {what}")]
    Remove { what: String, source: TreeError },
}

/// Creates `pods/<uid>` with `volumes/` and `plugins/` (upstream `makePodDataDirs`).
pub fn prepare_pod(node: &Node, pod: &PodUid) -> Result<PathBuf, VolumeError> {
    let error = |source| VolumeError::PodDir { pod: pod.clone(), source };
    let pods = node.pods_dir().map_err(error)?;
    let dir = open::create_dirs_beneath(pods.as_fd(), pod.as_str(), 0o750).map_err(error)?;
    for sub in ["volumes", "plugins"] {
        open::create_dirs_beneath(dir.as_fd(), sub, 0o750).map_err(error)?;
    }
    Ok(node.settings.paths.pod(pod))
}

/// The directory of a pod that was prepared.
pub fn pod_dir(node: &Node, pod: &PodUid) -> Result<OwnedFd, VolumeError> {
    let error = |source| VolumeError::PodDir { pod: pod.clone(), source };
    let pods = node.pods_dir().map_err(error)?;
    match open::dir_beneath(pods.as_fd(), pod.as_str()) {
        Ok(dir) => Ok(dir),
        Err(err) if err.is_not_found() => Err(VolumeError::UnknownPod { pod: pod.clone() }),
        Err(err) => Err(error(err)),
    }
}
