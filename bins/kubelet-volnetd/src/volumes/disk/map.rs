//! Block devices of local volumes with volumeMode Block: mapped into a pod, and found again by what is there.

use std::collections::BTreeSet;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use bulkhead_sys::{open, tree};
use bulkhead_types::{PodUid, VolumeName, escape_qualified_name};
use rustix::fs::{FileType, Mode, OFlags};

use super::super::block_map::Place;
use super::super::csi::{CsiError, way};
use super::super::{LOCAL, VolumeError, pod_dir};
use super::{Device, DiskError};
use crate::node::Settings;

/// More volumes than a node has.
const MAX_ENTRIES: usize = 10_000;

/// Below the root directory. Upstream escapes the plugin's name here, and not where it mounts.
fn base(settings: &Settings) -> PathBuf {
    let plugin = escape_qualified_name(LOCAL);
    settings.paths.root_dir.join("plugins").join(plugin).join("volumeDevices")
}

fn links() -> PathBuf {
    Path::new("volumeDevices").join(escape_qualified_name(LOCAL))
}

fn place(settings: &Settings, pod: &PodUid, volume: &str) -> Place {
    Place {
        base: base(settings),
        map: PathBuf::from(volume),
        pod_uid: pod.to_string(),
        pod: settings.paths.pod(pod),
        links: links(),
        name: volume.to_owned(),
    }
}

fn folder_of(settings: &Settings, make: bool) -> Result<Option<OwnedFd>, VolumeError> {
    let shown = &settings.paths.root_dir;
    let root = open::base_dir(shown)
        .map_err(|source| VolumeError::List { path: shown.clone(), source: std::io::Error::other(source) })?;
    let base = base(settings);
    let relative = base.strip_prefix(shown).unwrap_or(&base);
    if make {
        return Ok(Some(way::make(root.as_fd(), shown, relative)?));
    }
    Ok(way::folder(root.as_fd(), shown, relative)?)
}

/// Maps the device into the pod; gives the link.
///
/// # Errors
/// It is not the device that was looked at any more, or something is in the way.
pub fn map(settings: &Settings, pod: &PodUid, volume: &VolumeName, device: &Device) -> Result<PathBuf, VolumeError> {
    let failed = |errno: rustix::io::Errno| DiskError::Open { path: device.path.clone(), source: errno.into() };
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::open(&device.path, flags, Mode::empty()).map_err(failed)?;
    let stat = rustix::fs::fstat(&opened).map_err(failed)?;
    let numbers = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
    if FileType::from_raw_mode(stat.st_mode) != FileType::BlockDevice || numbers != (device.major, device.minor) {
        return Err(failed(rustix::io::Errno::NODEV).into());
    }
    let pod_dir = pod_dir(settings, pod)?;
    let place = place(settings, pod, volume.as_str());
    way::is_clear(&settings.paths.root_dir.join("plugins"), &place.bound())?;
    let base = folder_of(settings, true)?.ok_or_else(|| CsiError::NoTarget { path: base(settings) })?;
    place.map(base.as_fd(), pod_dir.as_fd(), &opened, &device.path)
}

/// Volumes that are mapped into the pod, or half so: by their links, and by their binds.
fn of_pod(settings: &Settings, pod: &PodUid, dir: &OwnedFd, base: Option<&OwnedFd>) -> BTreeSet<String> {
    let names = |folder: &OwnedFd| -> Vec<String> {
        let entries = tree::list(folder.as_fd(), MAX_ENTRIES).unwrap_or_default();
        entries.into_iter().filter_map(|entry| entry.name.into_string().ok()).collect()
    };
    let mut found = BTreeSet::new();
    if let Ok(Some(links)) = way::folder(dir.as_fd(), &settings.paths.pod(pod), &links()) {
        found.extend(names(&links));
    }
    for volume in base.map(&names).unwrap_or_default() {
        let bound = Path::new(&volume).join(pod.as_str());
        if base.is_some_and(|base| open::beneath(base.as_fd(), &bound, OFlags::PATH, 0).is_ok()) {
            found.insert(volume);
        }
    }
    found
}

/// Takes back all of a pod's; what stands in the way, in words.
pub fn unmap_all(settings: &Settings, pod: &PodUid, dir: &OwnedFd) -> Vec<String> {
    let base = match folder_of(settings, false) {
        Ok(base) => base,
        Err(error) => return vec![bulkhead_types::chain(&error)],
    };
    let mut left = Vec::new();
    for volume in of_pod(settings, pod, dir, base.as_ref()) {
        let place = place(settings, pod, &volume);
        match place.unmap(base.as_ref(), Some(dir)) {
            Ok(()) => {
                // The last pod's: other pods keep it from going.
                if let Some(base) = &base {
                    let _ = rustix::fs::unlinkat(base, volume.as_str(), rustix::fs::AtFlags::REMOVEDIR);
                }
            }
            Err(error) => left.push(format!("{}: {}", place.link().display(), bulkhead_types::chain(&error))),
        }
    }
    left
}
