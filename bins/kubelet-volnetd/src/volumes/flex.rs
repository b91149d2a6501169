//! Volumes of FlexVolume drivers: `volumes/<vendor~driver>/<volume>` below a pod's folder. A driver mounts there and unmounts, by
//! kubelet-flexvolume; the folder is ours. What is mounted may never answer: whether it is, the list of mounts says, and what a driver
//! has mounted is unmounted here only where the driver says that it does not do that (upstream's default).

use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use bulkhead_sys::mountinfo::MountInfo;
use bulkhead_sys::{mount, open, tree};
use bulkhead_types::{FlexDriver, PodUid, VolumeName};
use rustix::fs::{AtFlags, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::disk::place::DiskPlace;
use super::empty_dir::Group;
use super::ownership::{self, Access};
use super::{VolumeError, pod_dir, sub_path, teardown};
use crate::node::Settings;

/// Of one pod.
const MAX_ENTRIES: usize = 10_000;

/// One volume of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlexVolume {
    pub driver: FlexDriver,
    pub volume: VolumeName,
}

impl From<(FlexDriver, VolumeName)> for FlexVolume {
    fn from((driver, volume): (FlexDriver, VolumeName)) -> Self {
        FlexVolume { driver, volume }
    }
}

/// What of one is left.
#[derive(Debug, thiserror::Error)]
pub enum FlexError {
    #[error("nothing is mounted at {path}: a file system that is to become larger has to be")]
    NotMounted { path: PathBuf },
    #[error("{path} is still mounted")]
    StillMounted { path: PathBuf },
    #[error("failed to remove {path}")]
    Remove { path: PathBuf, source: std::io::Error },
    #[error("{path}, which its driver is to have mounted once a node, cannot be opened")]
    Once { path: PathBuf, source: std::io::Error },
}

impl FlexVolume {
    pub fn path(&self, settings: &Settings, pod: &PodUid) -> PathBuf {
        settings.paths.volume(pod, self.driver.as_str(), &self.volume)
    }

    /// Where a driver that attaches mounts it once a node.
    pub fn place(&self) -> DiskPlace {
        DiskPlace::flex(&self.driver, &self.volume)
    }

    fn parent(&self) -> PathBuf {
        Path::new("volumes").join(self.driver.folder())
    }
}

/// All of a pod, as its folders show them.
///
/// # Errors
/// They cannot be listed.
pub fn of_pod(settings: &Settings, pod: &PodUid) -> Result<Vec<FlexVolume>, VolumeError> {
    let base = settings.paths.volumes(pod);
    let error = |source| VolumeError::List { path: base.clone(), source };
    let dir = match pod_dir(settings, pod) {
        Ok(dir) => dir,
        Err(VolumeError::UnknownPod { .. }) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let volumes = match open::dir_beneath(dir.as_fd(), "volumes") {
        Ok(volumes) => volumes,
        Err(error) if error.is_not_found() => return Ok(Vec::new()),
        Err(source) => return Err(VolumeError::PodDir { pod: pod.clone(), source }),
    };
    let mut found = Vec::new();
    for folder in tree::list(volumes.as_fd(), MAX_ENTRIES).map_err(error)? {
        let name = folder.name.to_string_lossy().into_owned();
        let Some(driver) = FlexDriver::of_folder(&name).ok() else { continue };
        let Ok(folder) = open::dir_beneath(volumes.as_fd(), &name) else { continue };
        for volume in tree::list(folder.as_fd(), MAX_ENTRIES).map_err(error)? {
            let Ok(volume) = VolumeName::parse(&volume.name.to_string_lossy()) else { continue };
            found.push(FlexVolume { driver: driver.clone(), volume });
        }
    }
    Ok(found)
}

/// A pod that has the volume's folder, which is there from before its driver is told to mount until it has unmounted.
///
/// # Errors
/// A folder cannot be listed: nothing is known of what is in it.
pub fn user_of(settings: &Settings, flex: &FlexVolume) -> Result<Option<PodUid>, VolumeError> {
    let base = settings.paths.pods();
    let list = |source| VolumeError::List { path: base.clone(), source };
    let pods = settings.pods_dir().map_err(|error| list(std::io::Error::other(error)))?;
    for entry in tree::list(pods.as_fd(), MAX_ENTRIES).map_err(list)? {
        let Ok(pod) = PodUid::parse(&entry.name.to_string_lossy()) else { continue };
        let volumes = match open::dir_beneath(pods.as_fd(), Path::new(pod.as_str()).join(flex.parent())) {
            Ok(volumes) => volumes,
            Err(error) if error.is_not_found() => continue,
            Err(source) => return Err(VolumeError::PodDir { pod, source }),
        };
        // The folder itself is not looked at: what is mounted on it may never answer.
        let names = tree::list(volumes.as_fd(), MAX_ENTRIES).map_err(list)?;
        if names.iter().any(|entry| entry.name.to_str() == Some(flex.volume.as_str())) {
            return Ok(Some(pod));
        }
    }
    Ok(None)
}

/// Makes the folder; answers its path where something is mounted on it already.
///
/// # Errors
/// The pod is not known, or the folder cannot be made.
pub fn prepare(settings: &Settings, pod: &PodUid, flex: &FlexVolume) -> Result<Option<PathBuf>, VolumeError> {
    let error = |source| VolumeError::Open { pod: pod.clone(), volume: flex.volume.clone(), source };
    let dir = pod_dir(settings, pod)?;
    let path = flex.path(settings, pod);
    if is_mounted(&path)? {
        return Ok(Some(path));
    }
    open::create_dirs_beneath(dir.as_fd(), flex.parent().join(flex.volume.as_str()), 0o750).map_err(error)?;
    Ok(None)
}

/// Whether something is mounted on the pod's folder.
///
/// # Errors
/// The pod is not known, or mountinfo cannot be read.
pub fn is_there(settings: &Settings, pod: &PodUid, flex: &FlexVolume) -> Result<bool, VolumeError> {
    pod_dir(settings, pod)?;
    is_mounted(&flex.path(settings, pod))
}

fn is_mounted(path: &Path) -> Result<bool, VolumeError> {
    let mut info = MountInfo::new();
    Ok(info.read().map_err(VolumeError::Mounts)?.any(|mount| *mount.mount_point == *path))
}

/// Binds what is mounted once a node, for a driver that leaves that to us (upstream `mounter-defaults.go`).
///
/// # Errors
/// It is not there.
pub fn bind(settings: &Settings, pod: &PodUid, flex: &FlexVolume) -> Result<(), VolumeError> {
    let dir = pod_dir(settings, pod)?;
    let (path, base) = (flex.place().point(settings), &settings.paths.root_dir);
    let source = open::base_dir(base)
        .and_then(|root| open::beneath(root.as_fd(), flex.place().mount(), OFlags::PATH | OFlags::DIRECTORY, 0))
        .map_err(|error| FlexError::Once { path, source: std::io::Error::other(error) })?;
    let (pod, volume) = (pod.clone(), flex.volume.clone());
    let target = open::dir_beneath(dir.as_fd(), flex.parent().join(volume.as_str()));
    let target = target.map_err(|source| VolumeError::Open { pod: pod.clone(), volume: volume.clone(), source })?;
    mount::bind(source.as_fd(), target.as_fd()).map_err(|source| VolumeError::Mount { pod, volume, source })
}

/// Gives the volume to its group.
///
/// # Errors
/// It is not there, or the walk takes long.
pub fn give(settings: &Settings, pod: &PodUid, flex: &FlexVolume, group: Group) -> Result<(), VolumeError> {
    let error = |source| VolumeError::Ownership { pod: pod.clone(), volume: flex.volume.clone(), source };
    let dir = pod_dir(settings, pod)?;
    let root = super::volume_root(dir.as_fd(), pod, &flex.volume, flex.driver.as_str())?;
    if group.on_root_mismatch && ownership::is_given(root.as_fd(), group.id, Access::ReadWrite).map_err(error)? {
        return Ok(());
    }
    let walked = ownership::give(root.as_fd(), group.id, Access::ReadWrite, ownership::PATIENCE);
    ownership::forgiving(walked).map_err(error)
}

/// Takes the binds of subPaths of these volumes away, before a driver is asked to unmount (upstream CleanSubPaths).
///
/// # Errors
/// One stays.
pub fn unbind(settings: &Settings, pod: &PodUid, volumes: &[FlexVolume]) -> Result<(), VolumeError> {
    let base = settings.paths.pod(pod);
    let dir = pod_dir(settings, pod)?;
    for point in teardown::mount_points_below(&base)? {
        let relative = point.strip_prefix(&base).unwrap_or(&point);
        let is_of = |flex: &FlexVolume| relative.starts_with(Path::new(sub_path::FOLDER).join(flex.volume.as_str()));
        if volumes.iter().any(is_of) {
            teardown::unmount_beneath(&dir, &base, &point)
                .map_err(|why| FlexError::Remove { path: point.clone(), source: std::io::Error::other(why) })?;
        }
    }
    Ok(())
}

/// The folder goes, once nothing is mounted on it. `may_unmount`: the driver leaves that to us.
///
/// # Errors
/// Something is mounted on it, or in it.
pub fn end(settings: &Settings, pod: &PodUid, flex: &FlexVolume, may_unmount: bool) -> Result<(), VolumeError> {
    let path = flex.path(settings, pod);
    let dir = pod_dir(settings, pod)?;
    let parent = match open::dir_beneath(dir.as_fd(), flex.parent()) {
        Ok(parent) => parent,
        Err(error) if error.is_not_found() => return Ok(()),
        Err(source) => return Err(VolumeError::Open { pod: pod.clone(), volume: flex.volume.clone(), source }),
    };
    if may_unmount && is_mounted(&path)? {
        mount::unmount(parent.as_fd(), flex.volume.as_str()).map_err(|source| VolumeError::Mount {
            pod: pod.clone(),
            volume: flex.volume.clone(),
            source,
        })?;
    }
    if is_mounted(&path)? {
        return Err(FlexError::StillMounted { path }.into());
    }
    match rustix::fs::unlinkat(&parent, flex.volume.as_str(), AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(FlexError::Remove { path, source: errno.into() }.into()),
    }
}
