//! A block volume of one pod: its device bound into the volume's map, linked in the pod's folder, and held by a loop device
//! (upstream `pkg/volume/util` MapBlockVolume and UnmapBlockVolume, `volumepathhandler`).
//!
//! The loop device keeps the device open: the kernel would otherwise give its number to another one while a container has it.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use bulkhead_sys::loop_device;
use bulkhead_sys::mount;
use bulkhead_sys::open;
use rustix::fs::{AtFlags, FileType, OFlags};
use rustix::io::Errno;

use super::VolumeError;
use super::csi::{CsiError, way};

/// Where a pod's device is bound and linked.
#[derive(Debug)]
pub struct Place {
    /// The plugin's folder, absolute.
    pub base: PathBuf,
    /// Below it, the folder in which each pod's device is bound by the pod's uid.
    pub map: PathBuf,
    pub pod_uid: String,
    /// The pod's folder, absolute.
    pub pod: PathBuf,
    /// Below it, the folder of the links.
    pub links: PathBuf,
    /// The link's name: the volume's.
    pub name: String,
}

fn io(doing: &'static str, path: &Path) -> impl Fn(Errno) -> CsiError {
    move |errno| CsiError::Io { doing, path: path.to_owned(), source: errno.into() }
}

impl Place {
    /// Where the device is bound, absolute.
    pub fn bound(&self) -> PathBuf {
        self.base.join(&self.map).join(&self.pod_uid)
    }

    /// The link in the pod's folder, absolute.
    pub fn link(&self) -> PathBuf {
        self.pod.join(&self.links).join(&self.name)
    }

    /// Binds, links and holds an open device, which is at `target`; gives the link.
    ///
    /// # Errors
    /// Something is in the way, or no loop device is free.
    pub fn map(
        &self,
        base: BorrowedFd<'_>,
        pod_dir: BorrowedFd<'_>,
        device: &OwnedFd,
        target: &Path,
    ) -> Result<PathBuf, VolumeError> {
        self.bind(base, device)?;
        self.make_link(pod_dir, target)?;
        self.hold(base)?;
        Ok(self.link())
    }

    fn bind(&self, base: BorrowedFd<'_>, device: &OwnedFd) -> Result<(), VolumeError> {
        let (shown, path) = (&self.base, self.bound());
        let name = self.pod_uid.as_str();
        let folder = way::make(base, shown, &self.map)?;
        let there = way::handle(folder.as_fd(), shown, Path::new(name))?;
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
                self.release()?;
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

    fn make_link(&self, pod_dir: BorrowedFd<'_>, target: &Path) -> Result<(), VolumeError> {
        let (shown, path) = (&self.pod, self.link());
        let name = self.name.as_str();
        let folder = way::make(pod_dir, shown, &self.links)?;
        match way::handle(folder.as_fd(), shown, Path::new(name))? {
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
    fn hold(&self, base: BorrowedFd<'_>) -> Result<(), VolumeError> {
        let path = self.bound();
        let relative = self.map.join(&self.pod_uid);
        let opened = match open::beneath(base, &relative, OFlags::RDWR | OFlags::NONBLOCK, 0) {
            Err(error) if matches!(error.errno(), Some(Errno::ROFS | Errno::ACCESS | Errno::PERM)) => {
                open::beneath(base, &relative, OFlags::RDONLY | OFlags::NONBLOCK, 0)
            }
            other => other,
        };
        let device = opened.map_err(|error| way::refused(&path, error))?;
        let number = loop_device::attach(device.as_fd(), &path).map_err(|source| CsiError::Loop { path, source })?;
        tracing::debug!(pod = self.pod_uid, volume = self.name, number, "a loop device holds a block volume");
        Ok(())
    }

    fn release(&self) -> Result<(), VolumeError> {
        let path = self.bound();
        Ok(loop_device::detach(&path).map_err(|source| CsiError::Loop { path, source })?)
    }

    /// Takes back what [`Self::map`] did; what is not there is gone.
    ///
    /// # Errors
    /// Something holds the device.
    pub fn unmap(&self, base: Option<&OwnedFd>, pod_dir: Option<&OwnedFd>) -> Result<(), VolumeError> {
        self.release()?;
        if let Some(pod_dir) = pod_dir {
            self.unlink(pod_dir)?;
        }
        base.map_or(Ok(()), |base| self.unbind(base))
    }

    /// Takes back the link alone.
    ///
    /// # Errors
    /// Something else is in its place.
    pub fn unlink(&self, pod_dir: &OwnedFd) -> Result<(), VolumeError> {
        let relative = self.links.join(&self.name);
        match way::handle(pod_dir.as_fd(), &self.pod, &relative)? {
            Some((_, FileType::Symlink)) => Ok(way::remove_one(pod_dir.as_fd(), &self.pod, &relative)?),
            Some((_, kind)) => Err(CsiError::InTheWay { path: self.link(), found: way::name_of(kind) }.into()),
            None => Ok(()),
        }
    }

    /// Takes back all but the link.
    ///
    /// # Errors
    /// Something holds the device.
    pub fn release_and_unbind(&self, base: &OwnedFd) -> Result<(), VolumeError> {
        self.release()?;
        self.unbind(base)
    }

    fn unbind(&self, base: &OwnedFd) -> Result<(), VolumeError> {
        let Some(folder) = way::folder(base.as_fd(), &self.base, &self.map)? else { return Ok(()) };
        mount::unmount(folder.as_fd(), &self.pod_uid).map_err(CsiError::Mount)?;
        Ok(way::remove_one(folder.as_fd(), &self.base.join(&self.map), Path::new(&self.pod_uid))?)
    }
}
