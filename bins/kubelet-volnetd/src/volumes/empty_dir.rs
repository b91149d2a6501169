//! emptyDir (upstream `pkg/volume/emptydir/empty_dir.go`): a directory of mode 0777, on disk, or a tmpfs or huge pages
//! mounted on it; and an empty file `plugins/kubernetes.io~empty-dir/<volume>/ready` once it is complete. Volumes whose
//! files come over the API are built on one, with a marker of another name.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use bulkhead_sys::mount::{self, Tmpfs};
use bulkhead_sys::open;
use bulkhead_types::{PodUid, VolumeName, escape_qualified_name};
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};

use super::ownership::{self, Access, OwnershipError};
use super::{EMPTY_DIR, VolumeError, pod_dir};
use crate::node::Settings;

/// Where the bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Medium {
    Disk,
    /// tmpfs; bytes, None leaves the kernel's default.
    Memory {
        size_limit: Option<u64>,
    },
    /// hugetlbfs; None takes the default page size.
    HugePages {
        page_bytes: Option<u64>,
    },
}

/// Which volume: an emptyDir itself, or one that another kind is built on.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// Upstream's name, not escaped.
    pub plugin: &'static str,
    pub volume: &'a VolumeName,
    /// Name of the marker's folder.
    pub marker: &'a str,
}

impl<'a> Place<'a> {
    pub fn of(volume: &'a VolumeName) -> Self {
        Place { plugin: EMPTY_DIR, volume, marker: volume.as_str() }
    }
}

/// The group that a new volume is given to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    pub id: u32,
    /// A volume whose root is right already is not walked.
    pub on_root_mismatch: bool,
}

/// Sets the volume up, or does nothing if it is, and answers its path on the host. What a container wrote stays, and the group that
/// it has. Wherever it is cut off, the next call does what is left: the marker comes last, and the mounts show what is mounted.
pub fn set_up(
    settings: &Settings,
    pod: &PodUid,
    place: Place<'_>,
    medium: Medium,
    group: Option<Group>,
) -> Result<PathBuf, VolumeError> {
    let volume = place.volume;
    let open_error = |source| VolumeError::Open { pod: pod.clone(), volume: volume.clone(), source };
    let mount_error = |source| VolumeError::Mount { pod: pod.clone(), volume: volume.clone(), source };
    let pod_dir = pod_dir(settings, pod)?;
    let plugin = escape_qualified_name(place.plugin);
    let parent =
        open::create_dirs_beneath(pod_dir.as_fd(), Path::new("volumes").join(&plugin), 0o750).map_err(open_error)?;
    let meta = Path::new("plugins").join(escape_qualified_name(EMPTY_DIR)).join(place.marker);
    let path = settings.paths.volume(pod, place.plugin, volume);

    let is_mounted = mount::is_mount_point(parent.as_fd(), volume.as_str()).map_err(|source| {
        mount_error(mount::MountError::Mount { fs_type: "emptyDir", step: "looking for a mount", source })
    })?;
    if is_ready(&pod_dir, &meta) && is_complete(&parent, volume, medium, is_mounted) {
        return Ok(path);
    }
    let dir = open::create_dirs_beneath(parent.as_fd(), volume.as_str(), 0o777).map_err(open_error)?;
    if !is_mounted {
        // mkdir's mode is less the umask; a container of any uid has to write here.
        let mode_error =
            |e: rustix::io::Errno| VolumeError::Mode { pod: pod.clone(), volume: volume.clone(), source: e.into() };
        rustix::fs::fchmod(&dir, Mode::from_raw_mode(0o777)).map_err(mode_error)?;
        match medium {
            Medium::Disk => {}
            Medium::Memory { size_limit } => {
                mount::tmpfs(dir.as_fd(), &Tmpfs { size: size_limit, noswap: true }).map_err(mount_error)?;
            }
            Medium::HugePages { page_bytes } => mount::hugetlbfs(dir.as_fd(), page_bytes).map_err(mount_error)?,
        }
    }
    // The directory below the mount stays open no longer than this: any descriptor would make an unmount fail.
    drop(dir);
    if let Some(group) = group {
        give(&parent, volume, group).map_err(|source| VolumeError::Ownership {
            pod: pod.clone(),
            volume: volume.clone(),
            source,
        })?;
    }
    let meta_dir = open::create_dirs_beneath(pod_dir.as_fd(), &meta, 0o750).map_err(open_error)?;
    open::beneath(meta_dir.as_fd(), "ready", OFlags::WRONLY | OFlags::CREATE, 0o640).map_err(open_error)?;
    Ok(path)
}

/// Single entries that cannot be changed are told and left, as upstream leaves them.
fn give(parent: &OwnedFd, volume: &VolumeName, group: Group) -> Result<(), OwnershipError> {
    // Opened anew: what is mounted there by now.
    let root = open::dir_beneath(parent.as_fd(), volume.as_str())
        .map_err(|error| OwnershipError::Root(std::io::Error::other(error)))?;
    if group.on_root_mismatch && ownership::is_given(root.as_fd(), group.id, Access::ReadWrite)? {
        return Ok(());
    }
    ownership::forgiving(ownership::give(root.as_fd(), group.id, Access::ReadWrite, ownership::PATIENCE))
}

fn is_ready(pod_dir: &OwnedFd, meta: &Path) -> bool {
    open::regular_beneath(pod_dir.as_fd(), meta.join("ready")).is_ok()
}

/// A marker alone says nothing: after a reboot it is there and the mount is not.
fn is_complete(parent: &OwnedFd, volume: &VolumeName, medium: Medium, is_mounted: bool) -> bool {
    match medium {
        Medium::Disk => open::dir_beneath(parent.as_fd(), volume.as_str()).is_ok(),
        Medium::Memory { .. } | Medium::HugePages { .. } => is_mounted,
    }
}
