//! A block volume of one pod: its device bound into the volume's map, linked in the pod's folder, and held by a loop device
//! (upstream `pkg/volume/util` MapBlockVolume and UnmapBlockVolume, `volumepathhandler`).
//!
//! The loop device keeps the device open: the kernel would otherwise give its number to another one while a container has it.

use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use bulkhead_sys::loop_device;
use bulkhead_sys::mount;
use bulkhead_sys::open;
use rustix::fs::{AtFlags, FileType, OFlags};
use rustix::io::Errno;

use super::super::VolumeError;
use super::paths::{self, Published};
use super::{CsiError, way};
use crate::node::Settings;

fn io(doing: &'static str, path: &Path) -> impl Fn(Errno) -> CsiError {
    move |errno| CsiError::Io { doing, path: path.to_owned(), source: errno.into() }
}

/// Where the device is bound, absolute.
pub fn bound(settings: &Settings, published: &Published) -> PathBuf {
    paths::base(&settings.paths).join(paths::map(published.spec.as_str())).join(published.pod.as_str())
}

/// The link in the pod's folder, absolute.
pub fn link(settings: &Settings, published: &Published) -> PathBuf {
    settings.paths.pod(&published.pod).join(paths::pod_links()).join(published.spec.as_str())
}

/// Binds, links and holds what the driver has published; gives the link.
///
/// # Errors
/// The driver has published nothing, or what is neither a block device nor a regular file.
pub fn map(
    settings: &Settings,
    base: &OwnedFd,
    pod_dir: &OwnedFd,
    published: &Published,
) -> Result<PathBuf, VolumeError> {
    let shown = paths::base(&settings.paths);
    let target = paths::target(&settings.paths, published);
    let relative = paths::publish(published.spec.as_str()).join(published.pod.as_str());
    let device = match way::handle(base.as_fd(), &shown, &relative)? {
        Some((device, FileType::BlockDevice | FileType::RegularFile)) => device,
        Some((_, kind)) => {
            let allowed = "a block device or a regular file";
            return Err(CsiError::Target { path: target, found: way::name_of(kind), allowed }.into());
        }
        None => return Err(CsiError::NoTarget { path: target }.into()),
    };
    bind(settings, base, &device, published)?;
    make_link(settings, pod_dir, published, &target)?;
    hold(settings, base, published)?;
    Ok(link(settings, published))
}

fn bind(settings: &Settings, base: &OwnedFd, device: &OwnedFd, published: &Published) -> Result<(), VolumeError> {
    let (shown, path) = (paths::base(&settings.paths), bound(settings, published));
    let name = published.pod.as_str();
    let folder = way::make(base.as_fd(), &shown, &paths::map(published.spec.as_str()))?;
    let there = way::handle(folder.as_fd(), &shown, Path::new(name))?;
    let is_mounted = mount::is_mount_point(folder.as_fd(), name).map_err(|source| CsiError::Io {
        doing: "look for a mount at",
        path: path.clone(),
        source,
    })?;
    match there {
        Some((there, _)) if is_mounted => {
            let stat = |fd: &OwnedFd| rustix::fs::fstat(fd).map_err(io("examine", &path));
            let (there, wanted) = (stat(&there)?, stat(device)?);
            if (there.st_dev, there.st_ino) == (wanted.st_dev, wanted.st_ino) {
                return Ok(());
            }
            // Of a former device: nobody may hold it any more.
            release(settings, published)?;
            mount::unmount(folder.as_fd(), name).map_err(CsiError::Mount)?;
        }
        Some((_, FileType::RegularFile)) | None => {}
        Some((_, kind)) => return Err(CsiError::InTheWay { path, found: way::name_of(kind) }.into()),
    }
    open::beneath(folder.as_fd(), name, OFlags::WRONLY | OFlags::CREATE, 0o750)
        .map_err(|error| way::refused(&path, error))?;
    let point = open::beneath(folder.as_fd(), name, OFlags::PATH, 0).map_err(|error| way::refused(&path, error))?;
    Ok(mount::bind(device.as_fd(), point.as_fd()).map_err(CsiError::Mount)?)
}

fn make_link(settings: &Settings, pod_dir: &OwnedFd, published: &Published, target: &Path) -> Result<(), VolumeError> {
    let (shown, path) = (settings.paths.pod(&published.pod), link(settings, published));
    let name = published.spec.as_str();
    let folder = way::make(pod_dir.as_fd(), &shown, &paths::pod_links())?;
    match way::handle(folder.as_fd(), &shown, Path::new(name))? {
        Some((there, FileType::Symlink)) => {
            let leads = rustix::fs::readlinkat(&there, "", Vec::new()).map_err(io("read", &path))?;
            if Path::new(std::ffi::OsStr::from_bytes(leads.as_bytes())) == target {
                return Ok(());
            }
            // Of a former device, or of before a reboot.
            rustix::fs::unlinkat(&folder, name, AtFlags::empty()).map_err(io("remove", &path))?;
        }
        Some((_, kind)) => return Err(CsiError::InTheWay { path, found: way::name_of(kind) }.into()),
        None => {}
    }
    Ok(rustix::fs::symlinkat(target, &folder, name).map_err(io("make the link", &path))?)
}

/// Opens the bound device for as long as the loop device is there.
fn hold(settings: &Settings, base: &OwnedFd, published: &Published) -> Result<(), VolumeError> {
    let path = bound(settings, published);
    let relative = paths::map(published.spec.as_str()).join(published.pod.as_str());
    let opened = match open::beneath(base.as_fd(), &relative, OFlags::RDWR | OFlags::NONBLOCK, 0) {
        Err(error) if matches!(error.errno(), Some(Errno::ROFS | Errno::ACCESS | Errno::PERM)) => {
            open::beneath(base.as_fd(), &relative, OFlags::RDONLY | OFlags::NONBLOCK, 0)
        }
        other => other,
    };
    let device = opened.map_err(|error| way::refused(&path, error))?;
    let number = loop_device::attach(device.as_fd(), &path).map_err(|source| CsiError::Loop { path, source })?;
    tracing::debug!(pod = %published.pod, volume = %published.spec, number, "a loop device holds a block volume");
    Ok(())
}

fn release(settings: &Settings, published: &Published) -> Result<(), VolumeError> {
    let path = bound(settings, published);
    Ok(loop_device::detach(&path).map_err(|source| CsiError::Loop { path, source })?)
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
    let shown = paths::base(&settings.paths);
    release(settings, published)?;
    if let Some(pod_dir) = pod_dir {
        let of_pod = settings.paths.pod(&published.pod);
        let relative = paths::pod_links().join(published.spec.as_str());
        match way::handle(pod_dir.as_fd(), &of_pod, &relative)? {
            Some((_, FileType::Symlink)) => way::remove_one(pod_dir.as_fd(), &of_pod, &relative)?,
            Some((_, kind)) => {
                return Err(CsiError::InTheWay { path: of_pod.join(relative), found: way::name_of(kind) }.into());
            }
            None => {}
        }
    }
    let map = paths::map(published.spec.as_str());
    let folder = match base {
        Some(base) => way::folder(base.as_fd(), &shown, &map)?,
        None => None,
    };
    if let Some(folder) = folder {
        mount::unmount(folder.as_fd(), published.pod.as_str()).map_err(CsiError::Mount)?;
        way::remove_one(folder.as_fd(), &shown.join(&map), Path::new(published.pod.as_str()))?;
    }
    Ok(())
}
