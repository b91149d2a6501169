//! A device that is mounted once a node, below its plugin's folder, and bound from there into pods. A local one is unmounted with the
//! last of them, one that was attached by kubelet-syncd's word: what nobody below `pods` has is nobody's.

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use bulkhead_sys::mountinfo::MountInfo;
use bulkhead_sys::{fs_context, mount, open, tree};
use bulkhead_types::{PodUid, VolumeName};
use rustix::fs::OFlags;
use rustix::mount::MountAttrFlags;

use super::super::VolumeError;
use super::super::csi::way;
use super::super::flex;
use super::options::{FsType, Options};
use super::place::{DiskPlace, Plugin};
use super::{Device, DiskError};
use super::{iscsi, look};
use crate::node::Settings;

/// Local volumes of a node; a pod cannot add to them.
const MAX_ENTRIES: usize = 100_000;

/// What is mounted there.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Mounted {
    pub fs_type: String,
    /// "8:1"
    pub device: String,
}

/// Of mountinfo.
///
/// # Errors
/// It cannot be read, or another device is mounted there.
pub fn mounted(settings: &Settings, place: &DiskPlace, device: &Device) -> Result<Option<Mounted>, VolumeError> {
    let point = place.point(settings);
    let Some(found) = at(&point)? else { return Ok(None) };
    let wanted = format!("{}:{}", device.major, device.minor);
    // A file system of several devices has a number of its own.
    if found.device == wanted || found.fs_type == FsType::Btrfs.name() {
        return Ok(Some(found));
    }
    Err(DiskError::Another { point, there: found.device, wanted }.into())
}

fn at(point: &Path) -> Result<Option<Mounted>, VolumeError> {
    let mut info = MountInfo::new();
    let mounts = info.read().map_err(VolumeError::Mounts)?;
    let there = mounts.filter(|mount| *mount.mount_point == *point).last();
    Ok(there.map(|there| Mounted { fs_type: there.fs_type.into_owned(), device: there.device.to_owned() }))
}

/// Whether something is mounted there.
///
/// # Errors
/// mountinfo cannot be read.
pub fn is_mounted(settings: &Settings, place: &DiskPlace) -> Result<bool, VolumeError> {
    at(&place.point(settings)).map(|there| there.is_some())
}

/// The device that is mounted there, where the kernel has a name for it.
///
/// # Errors
/// mountinfo cannot be read.
pub fn device_at(settings: &Settings, place: &DiskPlace) -> Result<Option<Device>, VolumeError> {
    Ok(what_is_at(settings, place)?.and_then(|(_, device)| device))
}

/// What is mounted there, and its device as [`device_at`].
///
/// # Errors
/// mountinfo cannot be read.
pub fn what_is_at(settings: &Settings, place: &DiskPlace) -> Result<Option<(Mounted, Option<Device>)>, VolumeError> {
    let Some(there) = at(&place.point(settings))? else { return Ok(None) };
    let numbers =
        there.device.split_once(':').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    let device = numbers.and_then(|(major, minor)| look::by_numbers(major, minor).ok());
    Ok(Some((there, device)))
}

/// Mounts it. `found`: what is on it, by blkid's word before it was prepared.
///
/// # Errors
/// The kernel's own, with upstream's words where something else is on the device.
pub fn mount(
    settings: &Settings,
    place: &DiskPlace,
    device: &Device,
    fs_type: FsType,
    options: &Options,
    found: &str,
) -> Result<(), VolumeError> {
    let root = root(settings)?;
    let shown = &settings.paths.root_dir;
    way::ensure_clear(shown, &place.point(settings))?;
    let folder = way::make(root.as_fd(), shown, &place.mount())?;
    let source = device.path.to_string_lossy().into_owned();
    let parameters = std::iter::once(("source".to_owned(), Some(source))).chain(options.parameters.clone());
    let parameters: Vec<fs_context::Parameter> = parameters.collect();
    let attributes = MountAttrFlags::from_bits_truncate(options.attributes);
    let done = fs_context::mount(folder.as_fd(), fs_type.name(), &parameters, attributes);
    drop(folder);
    done.map_err(|source| {
        let _ = way::remove_one(root.as_fd(), shown, &place.mount());
        let is_another = !found.is_empty() && found != fs_type.name();
        let mismatch = if is_another { format!(" (current format is {found})") } else { String::new() };
        let (device, point) = (device.path.clone(), place.point(settings));
        let (fs_type, options) = (fs_type.name(), options.shown.as_str().into());
        let (mismatch, source) = (mismatch.into(), Box::new(source));
        DiskError::Mount { device, point, fs_type, options, mismatch, source }.into()
    })
}

fn root(settings: &Settings) -> Result<OwnedFd, VolumeError> {
    open::base_dir(&settings.paths.root_dir).map_err(|source| VolumeError::List {
        path: settings.paths.root_dir.clone(),
        source: std::io::Error::other(source),
    })
}

/// Local volumes that are mounted there and that no pod has.
///
/// # Errors
/// mountinfo cannot be read.
pub fn unused(settings: &Settings) -> Result<Vec<VolumeName>, VolumeError> {
    if has_none(settings)? {
        return Ok(Vec::new());
    }
    let (folder, pods) = (settings.paths.root_dir.join(Plugin::Local.mounts()), settings.paths.pods());
    let mut info = MountInfo::new();
    let mounts = info.read().map_err(VolumeError::Mounts)?;
    let all: Vec<(PathBuf, String)> =
        mounts.map(|mount| (mount.mount_point.into_owned(), mount.device.to_owned())).collect();
    Ok(unused_of(&folder, &pods, &all))
}

/// Whether there is no folder of a local volume. Where something is mounted over their own one is not looked.
fn has_none(settings: &Settings) -> Result<bool, VolumeError> {
    let relative = Plugin::Local.mounts();
    match open::beneath_same_mount(root(settings)?.as_fd(), relative, OFlags::RDONLY | OFlags::DIRECTORY) {
        Ok(folder) => {
            let first = tree::list(folder.as_fd(), MAX_ENTRIES);
            let path = || settings.paths.root_dir.join(relative);
            first.map(|names| names.is_empty()).map_err(|source| VolumeError::List { path: path(), source })
        }
        Err(error) => Ok(error.is_not_found()),
    }
}

/// Pure. A pod has the device, or a part of it: a subPath.
fn unused_of(folder: &Path, pods: &Path, mounts: &[(PathBuf, String)]) -> Vec<VolumeName> {
    let is_used = |device: &str| mounts.iter().any(|(point, d)| d == device && point.starts_with(pods));
    let mut unused: Vec<VolumeName> = mounts
        .iter()
        .filter(|(point, device)| point.parent() == Some(folder) && !is_used(device))
        .filter_map(|(point, _)| VolumeName::parse(point.file_name()?.to_str()?).ok())
        .collect();
    unused.sort();
    unused.dedup();
    unused
}

/// Unmounts a local one and removes its folder, unless a pod has it.
///
/// # Errors
/// A process holds it.
pub fn end(settings: &Settings, volume: &VolumeName) -> Result<bool, VolumeError> {
    if !unused(settings)?.contains(volume) {
        return Ok(false);
    }
    let place = DiskPlace::local(volume);
    unmount(settings, &place)?;
    forget(settings, &place.mount())?;
    Ok(true)
}

/// What mountinfo has of a mount.
struct Shown {
    point: PathBuf,
    device: String,
    /// What of the device is mounted.
    root: PathBuf,
}

/// Refuses while a pod has what is mounted there. How a FlexVolume driver gives it to a pod nobody but the driver knows: a pod has it
/// for as long as it has the volume's folder.
///
/// # Errors
/// One has, or pods' folders cannot be listed.
pub fn ensure_free(settings: &Settings, place: &DiskPlace) -> Result<(), VolumeError> {
    let in_use = |pod: PodUid| VolumeError::from(DiskError::InUse { place: place.clone(), pod: pod.to_string() });
    if let Some(flex) = place.of_flex()
        && let Some(pod) = flex::user_of(settings, &flex.into())?
    {
        return Err(in_use(pod));
    }
    let point = place.point(settings);
    let pods = settings.paths.pods();
    let mut info = MountInfo::new();
    let mounts = info.read().map_err(VolumeError::Mounts)?;
    let all: Vec<Shown> = mounts
        .map(|mount| Shown {
            point: mount.mount_point.into_owned(),
            device: mount.device.to_owned(),
            root: mount.root.into_owned(),
        })
        .collect();
    user_of(&point, &pods, &all).map_or(Ok(()), |pod| Err(in_use(pod)))
}

/// Unmounts it; what is not mounted is unmounted. Its folder stays.
///
/// # Errors
/// A pod has it, or a process holds it.
pub fn unmount(settings: &Settings, place: &DiskPlace) -> Result<(), VolumeError> {
    ensure_free(settings, place)?;
    let (root, shown) = (root(settings)?, &settings.paths.root_dir);
    let relative = place.mount();
    let (Some(parent), Some(name)) = (relative.parent(), relative.file_name().and_then(|name| name.to_str())) else {
        return Ok(());
    };
    let Some(folder) = way::folder(root.as_fd(), shown, parent)? else { return Ok(()) };
    Ok(mount::unmount(folder.as_fd(), name).map_err(super::super::csi::CsiError::Mount)?)
}

/// A pod that has what is mounted at `point`, or a part of it. Pure.
fn user_of(point: &Path, pods: &Path, mounts: &[Shown]) -> Option<PodUid> {
    let it = mounts.iter().rev().find(|mount| mount.point == point)?;
    mounts.iter().filter(|mount| mount.device == it.device && mount.root.starts_with(&it.root)).find_map(|mount| {
        let uid = mount.point.strip_prefix(pods).ok()?.components().next()?;
        PodUid::parse(uid.as_os_str().to_str()?).ok()
    })
}

/// Makes the empty folder on which it is to be mounted by whoever does that.
///
/// # Errors
/// Something is in its place, or mounted over the way, or the disk is full.
pub fn make(settings: &Settings, place: &DiskPlace) -> Result<(), VolumeError> {
    let shown = &settings.paths.root_dir;
    way::ensure_clear(shown, &place.point(settings))?;
    way::make(root(settings)?.as_fd(), shown, &place.mount())?;
    Ok(())
}

/// Removes that folder, once nothing is mounted there.
///
/// # Errors
/// Something is, or it is not empty.
pub fn remove(settings: &Settings, place: &DiskPlace) -> Result<(), VolumeError> {
    let shown = &settings.paths.root_dir;
    way::ensure_unmounted(shown, &[&place.point(settings)])?;
    Ok(way::remove_one(root(settings)?.as_fd(), shown, &place.mount())?)
}

/// Writes down what is needed to detach a disk, in its folder, which is made. What is mounted there hides it.
///
/// # Errors
/// Something is in its place, or the disk is full.
pub fn write_down(settings: &Settings, relative: &Path, text: &str) -> Result<(), VolumeError> {
    let shown = &settings.paths.root_dir;
    way::ensure_clear(shown, &shown.join(relative))?;
    let folder = way::make(root(settings)?.as_fd(), shown, relative)?;
    let path = shown.join(relative).join(iscsi::FILE);
    iscsi::write(&folder, text).map_err(|source| VolumeError::List { path, source })
}

/// What was written down; empty where nothing was.
///
/// # Errors
/// The folder is none.
pub fn written_down(settings: &Settings, relative: &Path) -> Result<String, VolumeError> {
    let folder = way::folder(root(settings)?.as_fd(), &settings.paths.root_dir, relative)?;
    Ok(folder.as_ref().map(iscsi::read).unwrap_or_default())
}

/// Removes the empty folder of a device that is not there any more: of one that is mounted, or mapped.
///
/// # Errors
/// Something is in it.
pub fn forget(settings: &Settings, relative: &Path) -> Result<(), VolumeError> {
    way::remove_one(root(settings)?.as_fd(), &settings.paths.root_dir, &relative.join(iscsi::FILE))?;
    Ok(way::remove_one(root(settings)?.as_fd(), &settings.paths.root_dir, relative)?)
}

/// An xfs that is mounted fills its device. Of the others kubelet-disks takes care.
///
/// # Errors
/// It is none that can, or the kernel refuses.
pub fn grow_xfs(settings: &Settings, place: &DiskPlace, device: &Device) -> Result<(), VolumeError> {
    let point = place.point(settings);
    let failed = |source: std::io::Error| DiskError::Grow { point: point.clone(), source };
    let root = root(settings)?;
    let folder =
        open::dir_beneath(root.as_fd(), place.mount()).map_err(|error| failed(std::io::Error::other(error)))?;
    let sectors = std::fs::read_to_string(format!("/sys/dev/block/{}:{}/size", device.major, device.minor));
    let sectors = sectors.map_err(failed)?.trim().parse::<u64>().map_err(|e| failed(std::io::Error::other(e)))?;
    bulkhead_sys::xfs::grow(folder.as_fd(), sectors.saturating_mul(512)).map_err(|source| failed(source).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_pod_has_is_unused() {
        let mounts = [
            ("/r/plugins/kubernetes.io/local-volume/mounts/a", "7:0"),
            ("/r/plugins/kubernetes.io/local-volume/mounts/b", "7:1"),
            ("/r/plugins/kubernetes.io/local-volume/mounts/c", "7:2"),
            ("/r/plugins/kubernetes.io/local-volume/mounts/c/inside", "7:9"),
            ("/r/plugins/kubernetes.io/csi/d/globalmount", "7:3"),
            ("/r/pods/u/volumes/kubernetes.io~local-volume/a", "7:0"),
            ("/r/pods/u/volume-subpaths/b/c/0", "7:1"),
            ("/mnt", "7:2"),
        ];
        let mounts: Vec<(PathBuf, String)> = mounts.iter().map(|(p, d)| (p.into(), (*d).to_owned())).collect();
        let folder = Path::new("/r").join(Plugin::Local.mounts());
        let unused = unused_of(&folder, Path::new("/r/pods"), &mounts);
        assert_eq!(unused, [VolumeName::parse("c").unwrap()]);
    }

    #[test]
    fn a_pod_that_has_it_or_a_part_of_it() {
        let folder = Path::new("/r").join(Plugin::Flex.mounts()).join("v/d/mounts");
        let mounts = [
            ("a", "7:0", "/"),
            ("b", "7:1", "/"),
            ("c", "7:2", "/"),
            // A folder of the machine's own disk, of which pods have other parts.
            ("d", "8:1", "/srv/d"),
            ("e", "8:1", "/srv/e"),
        ];
        let pods = [
            ("u/volumes/v~d/a", "7:0", "/"),
            ("u/volume-subpaths/b/c/0", "7:1", "/part"),
            ("w/volume-subpaths/scratch/c/0", "8:1", "/var/lib/kubelet/pods/w/volumes/kubernetes.io~empty-dir/scratch"),
            ("w/volumes/v~d/e", "8:1", "/srv/e"),
        ];
        let shown =
            |point: PathBuf, device: &str, root: &str| Shown { point, device: device.into(), root: root.into() };
        let mut all: Vec<Shown> = mounts.iter().map(|(name, d, r)| shown(folder.join(name), d, r)).collect();
        all.extend(pods.iter().map(|(at, d, r)| shown(Path::new("/r/pods").join(at), d, r)));
        for (volume, user) in
            [("a", Some("u")), ("b", Some("u")), ("c", None), ("d", None), ("e", Some("w")), ("none", None)]
        {
            let found = user_of(&folder.join(volume), Path::new("/r/pods"), &all);
            assert_eq!(found.as_ref().map(PodUid::as_str), user, "{volume}");
        }
    }
}
