//! What the driver does on the machine. Everything can be asked twice, as the CSI wants it.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bulkhead_csi::v1::{VolumeUsage, volume_usage::Unit};
use bulkhead_testkit::mounts;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::statvfs::statvfs;
use nix::unistd::{Gid, chown};
use tonic::Status;

use crate::Driver;
use crate::faults::Course;

/// Bytes of a volume that says nothing else.
const SIZE: u64 = 16 << 20;
const NONE: Option<&Path> = None;

/// A volume to be staged.
#[derive(Debug)]
pub(crate) struct Staged<'a> {
    pub driver: &'a Driver,
    pub volume: &'a str,
    /// Empty for a volume that is published without having been staged.
    pub path: &'a Path,
    pub block: bool,
    pub attributes: &'a BTreeMap<String, String>,
    pub group: Option<u32>,
}

/// A volume to be published.
#[derive(Debug)]
pub(crate) struct Published<'a> {
    pub staged: Staged<'a>,
    pub target: &'a Path,
    pub readonly: bool,
}

impl Staged<'_> {
    fn size(&self) -> u64 {
        self.attributes.get("size").and_then(|size| size.parse().ok()).unwrap_or(SIZE)
    }

    /// A new file system on `point`, with the files that the volume is to have.
    fn mount_new(&self, point: &Path) -> Result<(), Status> {
        let mut options = format!("size={},mode=0755", self.size());
        if let Some(inodes) = self.attributes.get("inodes").and_then(|count| count.parse::<u32>().ok()) {
            options.push_str(&format!(",nr_inodes={inodes}"));
        }
        mount(Some(self.volume), point, Some("tmpfs"), MsFlags::empty(), Some(options.as_str()))
            .map_err(|error| failed("mounting", point, error))?;
        for number in 0..self.attributes.get("files").and_then(|count| count.parse::<u32>().ok()).unwrap_or(0) {
            let path = point.join(format!("file-{number}"));
            File::create(&path).map_err(|error| failed("creating", &path, error))?;
        }
        if let Some(group) = self.group {
            chown(point, None, Some(Gid::from_raw(group))).map_err(|error| failed("giving away", point, error))?;
            std::fs::set_permissions(point, std::fs::Permissions::from_mode(0o2775))
                .map_err(|error| failed("opening", point, error))?;
        }
        Ok(())
    }
}

pub(crate) fn stage(what: &Staged<'_>) -> Result<(), Status> {
    if what.block {
        return image(what.driver, what.volume, Some(what.size())).map(drop);
    }
    if is_mounted(what.path) { Ok(()) } else { what.mount_new(what.path) }
}

pub(crate) fn publish(what: &Published<'_>, course: &Course) -> Result<(), Status> {
    if let Course::Link(to) = course {
        return std::os::unix::fs::symlink(to, what.target).map_err(|error| failed("linking", what.target, error));
    }
    if is_mounted(what.target) {
        return Ok(());
    }
    if what.staged.block {
        let device = attach(&image(what.staged.driver, what.staged.volume, Some(what.staged.size()))?)?;
        File::create(what.target).map_err(|error| failed("creating", what.target, error))?;
        return bind(&device, what.target);
    }
    match std::fs::create_dir(what.target) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(failed("creating", what.target, error));
        }
        _ => {}
    }
    if what.staged.path.as_os_str().is_empty() {
        what.staged.mount_new(what.target)?;
    } else {
        bind(what.staged.path, what.target)?;
    }
    if what.readonly {
        let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
        mount(NONE, what.target, NONE, flags, NONE).map_err(|error| failed("remounting", what.target, error))?;
    }
    Ok(())
}

pub(crate) fn unpublish(driver: &Driver, volume: &str, target: &Path) -> Result<(), Status> {
    let Ok(facts) = std::fs::symlink_metadata(target) else { return Ok(()) };
    let was_block = facts.file_type().is_block_device();
    if !facts.is_symlink() {
        unmount(target)?;
    }
    let removed = if facts.is_dir() { std::fs::remove_dir(target) } else { std::fs::remove_file(target) };
    removed.map_err(|error| failed("removing", target, error))?;
    if was_block {
        detach(&image(driver, volume, None)?)?;
    }
    Ok(())
}

/// Unmounts all that lies on a path; nothing is well, too.
pub(crate) fn unmount(path: &Path) -> Result<(), Status> {
    while is_mounted(path) {
        umount2(path, MntFlags::UMOUNT_NOFOLLOW).map_err(|error| failed("unmounting", path, error))?;
    }
    Ok(())
}

pub(crate) fn usage(path: &Path) -> Result<Vec<VolumeUsage>, Status> {
    let facts = std::fs::metadata(path).map_err(|error| failed("looking at", path, error))?;
    if facts.file_type().is_block_device() {
        let total = i64::try_from(SIZE).unwrap_or_default();
        return Ok(vec![VolumeUsage { total, unit: Unit::Bytes.into(), ..Default::default() }]);
    }
    let found = statvfs(path).map_err(|error| failed("measuring", path, error))?;
    let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let (block, blocks, free) = (found.fragment_size(), found.blocks(), found.blocks_available());
    Ok(vec![
        VolumeUsage {
            available: number(free * block),
            total: number(blocks * block),
            used: number((blocks - free) * block),
            unit: Unit::Bytes.into(),
        },
        VolumeUsage {
            available: number(found.files_free()),
            total: number(found.files()),
            used: number(found.files() - found.files_free()),
            unit: Unit::Inodes.into(),
        },
    ])
}

pub(crate) fn expand(driver: &Driver, volume: &str, block: bool, path: &Path, bytes: i64) -> Result<(), Status> {
    let bytes = u64::try_from(bytes).unwrap_or_default();
    if block {
        let image = image(driver, volume, Some(bytes))?;
        for device in devices(&image)? {
            losetup(&["--set-capacity", &device])?;
        }
        return Ok(());
    }
    if !is_mounted(path) {
        return Err(Status::not_found(format!("{} is no volume", path.display())));
    }
    let options = format!("size={bytes}");
    mount(NONE, path, NONE, MsFlags::MS_REMOUNT, Some(options.as_str())).map_err(|error| failed("growing", path, error))
}

/// The file of a block volume; with a size it is made, or made longer.
fn image(driver: &Driver, volume: &str, size: Option<u64>) -> Result<PathBuf, Status> {
    let path = driver.images.join(volume.replace('/', "_"));
    if let Some(size) = size {
        let file = File::options().create(true).truncate(false).write(true).open(&path);
        let file = file.map_err(|error| failed("creating", &path, error))?;
        if file.metadata().is_ok_and(|facts| facts.len() < size) {
            file.set_len(size).map_err(|error| failed("growing", &path, error))?;
        }
    }
    Ok(path)
}

/// The loop device of a file: one that it has, or a new one.
fn attach(image: &Path) -> Result<PathBuf, Status> {
    if let Some(device) = devices(image)?.first() {
        return Ok(device.into());
    }
    let device = losetup(&["--find", "--show", &image.to_string_lossy()])?;
    Ok(device.trim().into())
}

fn detach(image: &Path) -> Result<(), Status> {
    for device in devices(image)? {
        losetup(&["--detach", &device])?;
    }
    Ok(())
}

fn devices(image: &Path) -> Result<Vec<String>, Status> {
    let list = losetup(&["--associated", &image.to_string_lossy(), "--noheadings", "--output", "NAME"])?;
    Ok(list.split_ascii_whitespace().map(str::to_owned).collect())
}

fn losetup(arguments: &[&str]) -> Result<String, Status> {
    let output = Command::new("losetup").args(arguments).stdin(Stdio::null()).output();
    let output = output.map_err(|error| Status::internal(format!("losetup: {error}")))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(Status::internal(format!("losetup {arguments:?}: {}", said.trim())));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn bind(from: &Path, to: &Path) -> Result<(), Status> {
    mount(Some(from), to, NONE, MsFlags::MS_BIND, NONE).map_err(|error| failed("binding", to, error))
}

/// The kernel tells of mounts without the links on the way.
fn is_mounted(path: &Path) -> bool {
    let Ok(real) = std::fs::canonicalize(path) else { return false };
    mounts::below(&real).contains(&real)
}

fn failed(what: &str, path: &Path, error: impl std::fmt::Display) -> Status {
    Status::internal(format!("{what} {}: {error}", path.display()))
}
