//! A block volume of one pod: what its driver has published is mapped ([`crate::volumes::block_map`]).

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::FileType;

use super::super::VolumeError;
use super::super::block_map::Place;
use super::super::disk::{Found, look};
use super::paths::{self, Published};
use super::{CsiError, way};
use crate::node::Settings;

fn place(settings: &Settings, published: &Published) -> Place {
    Place {
        base: paths::base(&settings.paths),
        map: paths::map(published.spec.as_str()),
        pod_uid: published.pod.to_string(),
        pod: settings.paths.pod(&published.pod),
        links: paths::pod_links(),
        name: published.spec.to_string(),
    }
}

/// Where the device is bound, absolute.
pub fn bound(settings: &Settings, published: &Published) -> PathBuf {
    place(settings, published).bound()
}

/// The link in the pod's folder, absolute.
pub fn link(settings: &Settings, published: &Published) -> PathBuf {
    place(settings, published).link()
}

/// Binds, links and holds what the driver has published; gives the link.
///
/// # Errors
/// The driver has published nothing, or what is neither a block device, a link to one, nor a regular file.
pub fn map(
    settings: &Settings,
    base: &OwnedFd,
    pod_dir: &OwnedFd,
    published: &Published,
) -> Result<PathBuf, VolumeError> {
    let shown = paths::base(&settings.paths);
    let target = paths::target(&settings.paths, published);
    let relative = paths::publish(published.spec.as_str()).join(published.pod.as_str());
    let refused = |kind| {
        let allowed = "a block device, a link to one, or a regular file";
        CsiError::Target { path: settings.told(&target), found: way::name_of(kind), allowed }
    };
    let device = match way::handle(base.as_fd(), &shown, &relative)? {
        Some((device, FileType::BlockDevice | FileType::RegularFile)) => device,
        Some((_, FileType::Symlink)) => linked(&target).ok_or_else(|| refused(FileType::Symlink))?,
        Some((_, kind)) => return Err(refused(kind).into()),
        None => return Err(CsiError::NoTarget { path: settings.told(&target) }.into()),
    };
    place(settings, published).map(base.as_fd(), pod_dir.as_fd(), &device, &settings.told(&target))
}

/// The device that a driver's link leads to (HPE, Huawei): by its number, under the kernel's own name for it. None: it leads to no block
/// device.
fn linked(target: &Path) -> Option<OwnedFd> {
    match look::look(target) {
        Ok(Found::Device(device)) => look::opened(&device).ok(),
        Ok(Found::Folder) | Err(_) => None,
    }
}

/// Takes back what [`map`] did; what is not there is gone.
///
/// # Errors
/// Something holds the device.
pub fn unmap(
    settings: &Settings,
    base: Option<&OwnedFd>,
    pod_dir: Option<&OwnedFd>,
    published: &Published,
) -> Result<(), VolumeError> {
    place(settings, published).unmap(base, pod_dir)
}
