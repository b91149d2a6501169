//! Block devices of volumes with volumeMode Block: mapped into a pod, and found again by what is there.

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use bulkhead_sys::{open, tree};
use bulkhead_types::{FlexDriver, PodUid, VolumeName, escape_qualified_name};
use rustix::fs::OFlags;

use super::super::block_map::Place;
use super::super::csi::way;
use super::super::{VolumeError, pod_dir};
use super::place::{DiskPlace, Plugin};
use super::{Device, iscsi, look};
use crate::node::Settings;

/// More volumes than a node has.
const MAX_ENTRIES: usize = 10_000;

fn links(plugin: Plugin) -> PathBuf {
    Path::new("volumeDevices").join(escape_qualified_name(plugin.name()))
}

/// `map`: below the plugin's folder of maps. `link`: the volume's name.
fn place(settings: &Settings, pod: &PodUid, plugin: Plugin, map: &str, link: &str) -> Place {
    Place {
        base: settings.paths.root_dir.join(plugin.maps()),
        map: PathBuf::from(map),
        pod_uid: pod.to_string(),
        pod: settings.paths.pod(pod),
        links: links(plugin),
        name: link.to_owned(),
    }
}

fn root(settings: &Settings) -> Result<OwnedFd, VolumeError> {
    let shown = &settings.paths.root_dir;
    open::base_dir(shown)
        .map_err(|source| VolumeError::List { path: shown.clone(), source: std::io::Error::other(source) })
}

/// The plugin's folder of maps.
fn maps(settings: &Settings, plugin: Plugin) -> Result<Option<OwnedFd>, VolumeError> {
    Ok(way::folder(root(settings)?.as_fd(), &settings.paths.root_dir, Path::new(plugin.maps()))?)
}

fn names(folder: &OwnedFd) -> Vec<String> {
    let entries = tree::list(folder.as_fd(), MAX_ENTRIES).unwrap_or_default();
    entries.into_iter().filter_map(|entry| entry.name.into_string().ok()).collect()
}

/// Maps the device into the pod; gives the link.
///
/// # Errors
/// It is not the device that was looked at any more, or something is in the way.
pub fn map(
    settings: &Settings,
    pod: &PodUid,
    at: &DiskPlace,
    volume: &VolumeName,
    device: &Device,
) -> Result<PathBuf, VolumeError> {
    let opened = look::opened(device)?;
    let pod_dir = pod_dir(settings, pod)?;
    let place = place(settings, pod, at.plugin, &at.name, volume.as_str());
    way::ensure_clear(&settings.paths.root_dir.join("plugins"), &place.bound())?;
    let base = way::make(root(settings)?.as_fd(), &settings.paths.root_dir, Path::new(at.plugin.maps()))?;
    place.map(base.as_fd(), pod_dir.as_fd(), &opened, &device.path)
}

/// Names of folders `depth` below an open one.
fn nested(folder: &OwnedFd, depth: usize) -> Vec<String> {
    if depth <= 1 {
        return names(folder);
    }
    let below = |outer: String| {
        let inner = way::folder(folder.as_fd(), Path::new(""), Path::new(&outer)).ok().flatten();
        let inner = inner.map(|inner| nested(&inner, depth - 1)).unwrap_or_default();
        inner.into_iter().map(move |name| format!("{outer}/{name}"))
    };
    names(folder).into_iter().flat_map(below).collect()
}

/// Names of folders below an open one. What is mounted on one of them is not entered.
fn folders_in(folder: &OwnedFd, shown: &Path) -> Result<Vec<String>, VolumeError> {
    let entries = tree::list(folder.as_fd(), MAX_ENTRIES);
    let entries = entries.map_err(|source| VolumeError::List { path: shown.to_owned(), source })?;
    Ok(entries.into_iter().filter(|entry| entry.is_dir).filter_map(|entry| entry.name.into_string().ok()).collect())
}

/// What FlexVolume drivers have mounted once a node: below `<driver>/mounts`, or `<vendor>/<driver>/mounts`. No driver that attaches has
/// a program of that name.
///
/// # Errors
/// A folder cannot be listed: what is in it is not known to be nothing.
fn of_drivers(folder: &OwnedFd, shown: &Path) -> Result<Vec<String>, VolumeError> {
    let below = |path: &str| match way::folder(folder.as_fd(), shown, Path::new(path))? {
        Some(inner) => folders_in(&inner, &shown.join(path)),
        None => Ok(Vec::new()),
    };
    let mut all = Vec::new();
    for first in folders_in(folder, shown)? {
        for second in below(&first)? {
            let (driver, mounts) = match second.as_str() {
                FlexDriver::MOUNTS => (first.clone(), format!("{first}/{second}")),
                _ => (format!("{first}/{second}"), format!("{first}/{second}/{}", FlexDriver::MOUNTS)),
            };
            all.extend(below(&mounts)?.into_iter().map(|volume| format!("{driver}/{volume}")));
        }
    }
    all.retain(|name| DiskPlace { plugin: Plugin::Flex, name: name.clone() }.of_flex().is_some());
    Ok(all)
}

/// Pods that a device is mapped into.
///
/// # Errors
/// Its folder is none.
pub fn pods(settings: &Settings, at: &DiskPlace) -> Result<Vec<String>, VolumeError> {
    let folder = way::folder(root(settings)?.as_fd(), &settings.paths.root_dir, &at.map())?;
    let mut pods = folder.as_ref().map(names).unwrap_or_default();
    pods.retain(|name| name != iscsi::FILE);
    Ok(pods)
}

/// Devices of a plugin that have a folder: those that are mounted, and those that are mapped.
///
/// # Errors
/// A folder of ours is none.
pub fn folders(settings: &Settings, plugin: Plugin) -> Result<(Vec<String>, Vec<String>), VolumeError> {
    let mounts = way::folder(root(settings)?.as_fd(), &settings.paths.root_dir, Path::new(plugin.mounts()))?;
    if plugin == Plugin::Flex {
        let shown = settings.paths.root_dir.join(plugin.mounts());
        let found = mounts.map_or(Ok(Vec::new()), |folder| of_drivers(&folder, &shown))?;
        return Ok((found, Vec::new()));
    }
    let all = |folder: Option<OwnedFd>| folder.map(|folder| nested(&folder, plugin.depth())).unwrap_or_default();
    let mut mounts = all(mounts);
    mounts.retain(|name| name.split('/').next() != Some("volumeDevices"));
    Ok((mounts, all(maps(settings, plugin)?)))
}

/// Takes back all of a pod's, by its binds and by its links; what stands in the way, in words.
pub fn unmap_all(settings: &Settings, pod: &PodUid, dir: &OwnedFd) -> Vec<String> {
    Plugin::MAPPED.into_iter().flat_map(|plugin| unmap(settings, pod, plugin, dir)).collect()
}

fn unmap(settings: &Settings, pod: &PodUid, plugin: Plugin, dir: &OwnedFd) -> Vec<String> {
    let base = match maps(settings, plugin) {
        Ok(base) => base,
        Err(error) => return vec![bulkhead_types::chain(&error)],
    };
    let mut left = Vec::new();
    for map in base.as_ref().map(|base| nested(base, plugin.depth())).unwrap_or_default() {
        let Some(base) = &base else { continue };
        if open::beneath(base.as_fd(), Path::new(&map).join(pod.as_str()), OFlags::PATH, 0).is_err() {
            continue;
        }
        let place = place(settings, pod, plugin, &map, &map);
        match place.release_and_unbind(base) {
            // The last pod's: other pods keep it from going. Of an attached one it goes with the device.
            Ok(()) if plugin == Plugin::Local => {
                let _ = rustix::fs::unlinkat(base, map.as_str(), rustix::fs::AtFlags::REMOVEDIR);
            }
            Ok(()) => {}
            Err(error) => left.push(format!("{}: {}", place.bound().display(), bulkhead_types::chain(&error))),
        }
    }
    if !left.is_empty() {
        return left;
    }
    let links = way::folder(dir.as_fd(), &settings.paths.pod(pod), &links(plugin));
    for link in links.ok().flatten().as_ref().map(names).unwrap_or_default() {
        let place = place(settings, pod, plugin, &link, &link);
        if let Err(error) = place.unlink(dir) {
            left.push(format!("{}: {}", place.link().display(), bulkhead_types::chain(&error)));
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_with_and_without_a_vendor() {
        let folder = tempfile::tempdir().unwrap();
        for path in
            ["v/d/mounts/pv-1", "v/d/mounts/pv-2", "v/e/mounts", "d/mounts/pv-3", "v/d/else/pv-4", ".x/mounts/pv-5"]
        {
            std::fs::create_dir_all(folder.path().join(path)).unwrap();
        }
        std::fs::write(folder.path().join("file"), "").unwrap();
        let found = || of_drivers(&open::base_dir(folder.path()).unwrap(), folder.path());
        let mut drivers = found().unwrap();
        drivers.sort();
        assert_eq!(drivers, ["d/pv-3", "v/d/pv-1", "v/d/pv-2"]);
        // What cannot be looked into may hold something.
        std::os::unix::fs::symlink("/", folder.path().join("v/e/mounts/link")).unwrap();
        std::fs::create_dir(folder.path().join("v/f")).unwrap();
        assert_eq!(found().unwrap().len(), 3);
        std::os::unix::fs::symlink("/", folder.path().join("v/f/mounts")).unwrap();
        assert!(found().is_err());
    }
}
