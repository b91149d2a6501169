//! A PersistentVolume of the kind local: a folder of the host, bound into the pod's (upstream `pkg/volume/local`). Its content is
//! the operator's: the bind is taken away with the pod's other mounts, and of what it shows nothing is ever removed. What is mounted
//! once a node of a disk, whosever it is, is bound as such a folder is.
//!
//! The path is an administrator's word in a PersistentVolume and is resolved as the host resolves any path, as a hostPath's is.

use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use bulkhead_sys::mount;
use bulkhead_sys::mountinfo::MountInfo;
use bulkhead_sys::open;
use bulkhead_types::{PodUid, VolumeName, escape_qualified_name};
use rustix::fs::{Mode, OFlags};
use rustix::mount::MountAttrFlags;
use serde::{Deserialize, Serialize};

use super::disk::place::Plugin;
use super::empty_dir::Group;
use super::ownership::{self, Access};
use super::{SetUp, VolumeError, pod_dir, volume_root};
use crate::node::Settings;

/// What the volume is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Local {
    pub plugin: Plugin,
    pub volume: VolumeName,
    /// As `validate::host_path` takes it; or where a device is mounted once a node.
    pub path: PathBuf,
    pub read_only: bool,
    pub group: Option<Group>,
    /// Bits of the bind (`MOUNT_ATTR_*`), as the PersistentVolume's mountOptions want them.
    pub attributes: u32,
}

/// Why it is not set up.
#[derive(Debug, thiserror::Error)]
#[error("the path {path} of a local volume is not a folder that can be opened")]
pub struct LocalError {
    pub path: PathBuf,
    pub source: std::io::Error,
}

/// Binds the folder, or does nothing if it is bound. Without `may_mount` it stops before the bind. `again`: an earlier one has not
/// come to its end, so that the volume may not be its group's yet ([`give`]).
pub fn set_up(
    settings: &Settings,
    pod: &PodUid,
    local: &Local,
    again: bool,
    may_mount: bool,
) -> Result<SetUp, VolumeError> {
    let volume = &local.volume;
    let open_error = |source| VolumeError::Open { pod: pod.clone(), volume: volume.clone(), source };
    let mount_error = |source| VolumeError::Mount { pod: pod.clone(), volume: volume.clone(), source };
    let pod_dir = pod_dir(settings, pod)?;
    let folder = Path::new("volumes").join(escape_qualified_name(local.plugin.name()));
    let parent = open::create_dirs_beneath(pod_dir.as_fd(), &folder, 0o750).map_err(open_error)?;
    let path = settings.paths.volume(pod, local.plugin.name(), volume);
    let is_mounted = mount::is_mount_point(parent.as_fd(), volume.as_str()).map_err(VolumeError::Mounts)?;
    if is_mounted && !again {
        return Ok(SetUp::Done(path));
    }
    if !is_mounted {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let source = rustix::fs::open(&local.path, flags, Mode::empty())
            .map_err(|errno| LocalError { path: local.path.clone(), source: errno.into() })?;
        let target = open::create_dirs_beneath(parent.as_fd(), volume.as_str(), 0o750).map_err(open_error)?;
        if !may_mount {
            return Ok(SetUp::NeedsMount);
        }
        let mut attributes = MountAttrFlags::from_bits_truncate(local.attributes);
        if local.read_only {
            attributes |= MountAttrFlags::MOUNT_ATTR_RDONLY;
        }
        // What is below the mount stays open no longer than this.
        mount::bind_with(source.as_fd(), target.as_fd(), attributes).map_err(mount_error)?;
    }
    Ok(if may_mount { SetUp::Done(path) } else { SetUp::NeedsMount })
}

/// Where it is bound, if it is.
pub fn bound(settings: &Settings, pod: &PodUid, local: &Local) -> Result<Option<PathBuf>, VolumeError> {
    let pod_dir = pod_dir(settings, pod)?;
    let folder = Path::new("volumes").join(escape_qualified_name(local.plugin.name()));
    let parent = match open::dir_beneath(pod_dir.as_fd(), &folder) {
        Ok(parent) => parent,
        Err(error) if error.is_not_found() => return Ok(None),
        Err(source) => return Err(VolumeError::Open { pod: pod.clone(), volume: local.volume.clone(), source }),
    };
    let is_mounted = mount::is_mount_point(parent.as_fd(), local.volume.as_str()).map_err(VolumeError::Mounts)?;
    Ok(is_mounted.then(|| settings.paths.volume(pod, local.plugin.name(), &local.volume)))
}

/// The group that the volume, which other pods have too, has been given to, where this pod asks for another one.
pub fn other_group(settings: &Settings, pod: &PodUid, local: &Local) -> Result<Option<u32>, VolumeError> {
    let path = settings.paths.volume(pod, local.plugin.name(), &local.volume);
    let Some(group) = local.group else { return Ok(None) };
    if !is_bound_elsewhere(&settings.paths.pods(), &path).map_err(VolumeError::Mounts)? {
        return Ok(None);
    }
    let error = |source| VolumeError::Open { pod: pod.clone(), volume: local.volume.clone(), source };
    let relative = path.strip_prefix(settings.paths.pod(pod)).unwrap_or(&path);
    let root = open::dir_beneath(pod_dir(settings, pod)?.as_fd(), relative).map_err(error)?;
    let is = rustix::fs::fstat(&root).map_err(|errno| VolumeError::Mounts(errno.into()))?;
    Ok((is.st_gid != group.id).then_some(is.st_gid))
}

/// Gives what is bound to the group, as upstream with each pod; of a local volume once, with the first one that has it.
///
/// # Errors
/// It is not bound, or the walk does not come to its end.
pub fn give(settings: &Settings, pod: &PodUid, local: &Local, group: Group) -> Result<(), VolumeError> {
    let error = |source| VolumeError::Ownership { pod: pod.clone(), volume: local.volume.clone(), source };
    let path = settings.paths.volume(pod, local.plugin.name(), &local.volume);
    if local.plugin == Plugin::Local
        && is_bound_elsewhere(&settings.paths.pods(), &path).map_err(VolumeError::Mounts)?
    {
        return Ok(());
    }
    let root = volume_root(pod_dir(settings, pod)?.as_fd(), pod, &local.volume, local.plugin.name())?;
    if group.on_root_mismatch && ownership::is_given(root.as_fd(), group.id, Access::ReadWrite).map_err(error)? {
        return Ok(());
    }
    let walked = ownership::give(root.as_fd(), group.id, Access::ReadWrite, ownership::PATIENCE);
    match local.plugin {
        Plugin::Local => walked.map(|_| ()),
        Plugin::Fc | Plugin::Iscsi | Plugin::Flex => ownership::forgiving(walked),
    }
    .map_err(error)
}

/// Whether another pod has the same folder of the same file system.
fn is_bound_elsewhere(pods: &Path, path: &Path) -> std::io::Result<bool> {
    let mut info = MountInfo::new();
    let mounts: Vec<(PathBuf, String, PathBuf)> = info
        .read()?
        .filter(|mount| mount.mount_point.starts_with(pods))
        .map(|mount| (mount.mount_point.into_owned(), mount.device.to_owned(), mount.root.into_owned()))
        .collect();
    let Some((_, device, root)) = mounts.iter().rev().find(|(point, ..)| point == path) else { return Ok(false) };
    Ok(mounts.iter().any(|(point, d, r)| point != path && d == device && r == root))
}
