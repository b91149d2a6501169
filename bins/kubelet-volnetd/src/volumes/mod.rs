//! Pod directories and volumes: `<root-dir>/pods/<uid>/…` as upstream lays it out.

pub mod block_map;
pub mod content;
pub mod csi;
pub mod disk;
pub mod empty_dir;
pub mod flex;
pub mod host_path;
pub mod list;
pub mod local;
mod mount_attributes;
pub mod nfs;
pub mod ownership;
pub mod sub_path;
pub mod teardown;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use bulkhead_sys::mount::MountError;
use bulkhead_sys::open::{self, OpenError};
use bulkhead_sys::tree::TreeError;
use bulkhead_types::{PodUid, VolumeName, escape_qualified_name};
use serde::{Deserialize, Serialize};

use crate::journal::JournalError;
use crate::node::Settings;

/// The plugin that others are built on.
pub const EMPTY_DIR: &str = "kubernetes.io/empty-dir";

/// Folders of the host that PersistentVolumes name.
pub const LOCAL: &str = "kubernetes.io/local-volume";

/// Disks behind Fibre Channel.
pub const FC: &str = "kubernetes.io/fc";

/// Disks of iSCSI targets.
pub const ISCSI: &str = "kubernetes.io/iscsi";

/// Volumes of FlexVolume drivers: upstream's name of what all of them share.
pub const FLEX: &str = "kubernetes.io/flexvolume";

/// Exports of NFS servers.
pub const NFS: &str = "kubernetes.io/nfs";

/// Volumes that are the host's own.
pub const HOST_PATH: &str = "kubernetes.io/host-path";

/// Whether the volume is set up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SetUp {
    /// Its path on the host.
    Done(PathBuf),
    /// Something has to be mounted, which is written into the journal first.
    NeedsMount,
}

/// Why a volume verb failed.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    #[error("pod {pod} is not known here: PreparePod comes first")]
    UnknownPod { pod: PodUid },
    #[error("failed to set up the directory of pod {pod}")]
    PodDir { pod: PodUid, source: OpenError },
    #[error("failed to set up volume {volume} of pod {pod}")]
    Open { pod: PodUid, volume: VolumeName, source: OpenError },
    #[error("failed to set the mode of volume {volume} of pod {pod}")]
    Mode { pod: PodUid, volume: VolumeName, source: std::io::Error },
    #[error("failed to mount volume {volume} of pod {pod}")]
    Mount { pod: PodUid, volume: VolumeName, source: MountError },
    #[error("volume {volume} of pod {pod} is not set up here")]
    NotSetUp { pod: PodUid, volume: VolumeName },
    #[error("failed to write the files of volume {volume} of pod {pod}")]
    Content { pod: PodUid, volume: VolumeName, source: content::WriteError },
    #[error("failed to give volume {volume} of pod {pod} to its group")]
    Ownership { pod: PodUid, volume: VolumeName, source: ownership::OwnershipError },
    #[error("failed to prepare the subPath {path} of volume {volume} of pod {pod}")]
    SubPath { pod: PodUid, volume: VolumeName, path: PathBuf, source: Box<sub_path::SubPathError> },
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(transparent)]
    HostPath(#[from] host_path::HostPathError),
    #[error(transparent)]
    Local(#[from] local::LocalError),
    #[error(transparent)]
    Nfs(#[from] nfs::NfsError),
    #[error(transparent)]
    Disk(Box<disk::DiskError>),
    #[error(transparent)]
    Csi(Box<csi::CsiError>),
    #[error(transparent)]
    Flex(#[from] flex::FlexError),
    #[error("failed to read the mounts")]
    Mounts(#[source] std::io::Error),
    #[error("failed to list {path}")]
    List { path: PathBuf, source: std::io::Error },
    #[error("failed to remove {what}")]
    Remove { what: String, source: TreeError },
}

impl From<disk::DiskError> for VolumeError {
    fn from(error: disk::DiskError) -> Self {
        VolumeError::Disk(error.into())
    }
}

impl From<csi::CsiError> for VolumeError {
    fn from(error: csi::CsiError) -> Self {
        VolumeError::Csi(error.into())
    }
}

/// Creates `pods/<uid>` with `volumes/` and `plugins/` (upstream `makePodDataDirs`).
pub fn prepare_pod(settings: &Settings, pod: &PodUid) -> Result<PathBuf, VolumeError> {
    let error = |source| VolumeError::PodDir { pod: pod.clone(), source };
    let pods = settings.pods_dir().map_err(error)?;
    let dir = open::create_dirs_beneath(pods.as_fd(), pod.as_str(), 0o750).map_err(error)?;
    for sub in ["volumes", "plugins"] {
        open::create_dirs_beneath(dir.as_fd(), sub, 0o750).map_err(error)?;
    }
    Ok(settings.paths.pod(pod))
}

/// The directory of a pod that was prepared.
pub fn pod_dir(settings: &Settings, pod: &PodUid) -> Result<OwnedFd, VolumeError> {
    let error = |source| VolumeError::PodDir { pod: pod.clone(), source };
    let pods = settings.pods_dir().map_err(error)?;
    match open::dir_beneath(pods.as_fd(), pod.as_str()) {
        Ok(dir) => Ok(dir),
        Err(err) if err.is_not_found() => Err(VolumeError::UnknownPod { pod: pod.clone() }),
        Err(err) => Err(error(err)),
    }
}

/// The root of a volume that is set up; of a kind that is mounted only if it is. What a driver has published need not be a mount.
pub fn volume_root(
    pod_dir: BorrowedFd<'_>,
    pod: &PodUid,
    volume: &VolumeName,
    plugin: &str,
) -> Result<OwnedFd, VolumeError> {
    let not_set_up = || VolumeError::NotSetUp { pod: pod.clone(), volume: volume.clone() };
    let relative = match plugin {
        csi::paths::PLUGIN => csi::paths::pod_mount(volume.as_str()),
        _ => Path::new("volumes").join(escape_qualified_name(plugin)).join(volume.as_str()),
    };
    let root = match open::dir_beneath(pod_dir, relative) {
        Ok(root) => root,
        Err(error) if error.is_not_found() => return Err(not_set_up()),
        Err(source) => return Err(VolumeError::Open { pod: pod.clone(), volume: volume.clone(), source }),
    };
    let in_memory = content::Plugin::ALL.iter().any(|kind| kind.name() == plugin && kind.in_memory());
    if in_memory && !bulkhead_sys::mount::is_tmpfs(root.as_fd()).map_err(VolumeError::Mounts)? {
        return Err(not_set_up());
    }
    if [LOCAL, FC, ISCSI, NFS].contains(&plugin) {
        let mount = bulkhead_sys::tree::mount_id;
        let ids = mount(root.as_fd()).and_then(|root| Ok((root, mount(pod_dir)?)));
        let (root_id, pod_id) = ids.map_err(|errno| VolumeError::Mounts(errno.into()))?;
        if root_id == pod_id {
            return Err(not_set_up());
        }
    }
    Ok(root)
}
