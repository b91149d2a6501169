//! Once a node: the folder that a driver stages in, with `vol_data.json` beside it (upstream `csi_attacher.go` MountDevice and
//! UnmountDevice, `csi_block.go`).

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use bulkhead_sys::{open, tree};
use bulkhead_types::VolumeName;
use rustix::fs::FileType;

use super::super::{VolumeError, teardown};
use super::data::{self, VolData};
use super::list::belongs;
use super::paths::{self, Nameless, Staged};
use super::references::{self, Once};
use super::{CsiError, Prepared, way};
use crate::node::Settings;

/// Of a folder that pods have.
const MAX_ENTRIES: usize = 100_000;

/// `plugins/kubernetes.io/csi`; None: it is not there.
pub fn base(settings: &Settings) -> Result<Option<OwnedFd>, VolumeError> {
    let shown = &settings.paths.root_dir;
    let root = open::base_dir(shown).map_err(|error| way::refused(shown, error))?;
    Ok(way::folder(root.as_fd(), shown, &Path::new("plugins").join(paths::PLUGIN))?)
}

/// The same, made where it is missing.
pub fn made_base(settings: &Settings) -> Result<OwnedFd, VolumeError> {
    let shown = &settings.paths.root_dir;
    let root = open::base_dir(shown).map_err(|error| way::refused(shown, error))?;
    Ok(way::make(root.as_fd(), shown, &Path::new("plugins").join(paths::PLUGIN))?)
}

/// Refuses where something is mounted over the way, or over the file.
fn ensure_clear(settings: &Settings, staged: &Staged) -> Result<way::Mounts, VolumeError> {
    let shown = paths::base(&settings.paths);
    let mounts = way::ensure_clear(&shown, &shown.join(staged.target()))?;
    let file = shown.join(staged.data_folder()).join(data::NAME);
    way::ensure_clear(&shown, &file)?;
    if mounts.at(&file) {
        return Err(CsiError::MountInTheWay { path: file }.into());
    }
    Ok(mounts)
}

/// Refuses a folder of which the file says that another volume has it. One that cannot be read says nothing, and is written anew; so
/// does one of a volume whose folder has another name.
fn ensure_same_staged(folder: &OwnedFd, shown: &Path, staged: &Staged) -> Result<(), CsiError> {
    match staged.block {
        Some(_) => ensure_same_volume(folder, shown, &staged.device),
        None => Ok(()),
    }
}

/// Refuses a file that says that it is of another volume than `wanted`. One that cannot be read says nothing.
///
/// # Errors
/// [`CsiError::Another`].
pub fn ensure_same_volume(folder: &OwnedFd, shown: &Path, wanted: &super::paths::Device) -> Result<(), CsiError> {
    match VolData::read(folder.as_fd()) {
        Ok(Some(there)) => match there.device() {
            Some(device) if device != *wanted => Err(CsiError::Another {
                path: shown.join(data::NAME),
                driver: device.driver.to_string(),
                handle: paths::shortened(device.handle.as_str()),
            }),
            _ => Ok(()),
        },
        Ok(None) | Err(_) => Ok(()),
    }
}

/// What there is before anything is made.
///
/// # Errors
/// Another volume, a link or a mount is in the way.
pub fn look(settings: &Settings, staged: &Staged, data: &VolData) -> Result<Prepared, VolumeError> {
    let mounts = ensure_clear(settings, staged)?;
    let shown = paths::base(&settings.paths);
    let Some(base) = base(settings)? else { return Ok(Prepared::Needed) };
    let Some(folder) = way::folder(base.as_fd(), &shown, &staged.data_folder())? else { return Ok(Prepared::Needed) };
    ensure_same_staged(&folder, &shown.join(staged.data_folder()), staged)?;
    let target = shown.join(staged.target());
    // What is mounted there is a driver's, and need not be looked at.
    let is_there = mounts.at(&target) || is_target(&base, &shown, staged)?;
    Ok(if is_there && data.is_written(folder.as_fd()) { Prepared::Before(target) } else { Prepared::Needed })
}

/// Whether the folder is there. Of a block volume the driver may have put something else in its place, which nobody enters here.
fn is_target(base: &OwnedFd, shown: &Path, staged: &Staged) -> Result<bool, CsiError> {
    let target = &staged.target();
    match way::handle(base.as_fd(), shown, target)? {
        None => Ok(false),
        Some((_, kind)) if staged.block.is_some() || kind == FileType::Directory => Ok(true),
        Some((_, FileType::Symlink)) => Err(CsiError::Link { path: shown.join(target) }),
        Some((_, kind)) => Err(CsiError::InTheWay { path: shown.join(target), found: way::name_of(kind) }),
    }
}

/// Makes the folders and the file; what a failure leaves is empty folders, which are taken away again.
///
/// # Errors
/// As [`look`]'s, or a full disk.
pub fn prepare(settings: &Settings, staged: &Staged, data: &VolData) -> Result<Prepared, VolumeError> {
    let mounts = ensure_clear(settings, staged)?;
    let shown = paths::base(&settings.paths);
    let base = made_base(settings)?;
    let made = (|| {
        let folder = way::make(base.as_fd(), &shown, &staged.data_folder())?;
        let path = shown.join(staged.data_folder());
        ensure_same_staged(&folder, &path, staged)?;
        let target = shown.join(staged.target());
        if !mounts.at(&target) && !is_target(&base, &shown, staged)? {
            way::make(base.as_fd(), &shown, &staged.target())?;
        }
        if let Some(spec) = &staged.block {
            way::make(base.as_fd(), &shown, &paths::map(spec.as_str()))?;
        }
        data.write(folder.as_fd()).map_err(|source| CsiError::Io {
            doing: "write",
            path: path.join(data::NAME),
            source,
        })?;
        Ok(target)
    })();
    made.map(Prepared::Now).map_err(|error: CsiError| {
        undo(&base, &shown, staged);
        error.into()
    })
}

/// Takes empty folders away, where no file says that they are a volume's.
fn undo(base: &OwnedFd, shown: &Path, staged: &Staged) {
    let folder = staged.data_folder();
    let Ok(Some(open)) = way::folder(base.as_fd(), shown, &folder) else { return };
    if !matches!(VolData::read(open.as_fd()), Ok(None)) {
        return;
    }
    drop(open);
    let mut names = vec![staged.target(), folder.clone()];
    if let Some(spec) = &staged.block {
        names.push(paths::map(spec.as_str()));
        names.extend(folder.parent().map(Path::to_owned));
    }
    for name in names {
        let _ = way::remove_one(base.as_fd(), shown, &name);
    }
}

/// Looks at what the driver has staged in, where that is no mount: who serves one need not answer yet.
///
/// # Errors
/// It was not prepared; or is no folder any more, and no block volume.
pub fn commit(settings: &Settings, staged: &Staged) -> Result<(), VolumeError> {
    let mounts = ensure_clear(settings, staged)?;
    let shown = paths::base(&settings.paths);
    let not_prepared = || CsiError::NotPrepared { what: staged.what() };
    let base = base(settings)?.ok_or_else(not_prepared)?;
    let folder = way::folder(base.as_fd(), &shown, &staged.data_folder())?.ok_or_else(not_prepared)?;
    ensure_same_staged(&folder, &shown.join(staged.data_folder()), staged)?;
    if !matches!(VolData::read(folder.as_fd()), Ok(Some(_))) {
        return Err(not_prepared().into());
    }
    if mounts.at(&shown.join(staged.target())) {
        return Ok(());
    }
    match way::handle(base.as_fd(), &shown, &staged.target())? {
        Some((_, kind)) if staged.block.is_some() || kind == FileType::Directory => Ok(()),
        Some((_, kind)) => {
            Err(CsiError::Target { path: shown.join(staged.target()), found: way::name_of(kind), allowed: "a folder" }
                .into())
        }
        None => Err(CsiError::NoTarget { path: shown.join(staged.target()) }.into()),
    }
}

/// Pods that a block volume is published to, by what is on the disk.
pub fn pods_of_block(base: &OwnedFd, shown: &Path, spec: &str) -> Result<Vec<String>, VolumeError> {
    let mut pods = Vec::new();
    for name in [paths::publish(spec), paths::map(spec)] {
        let Some(folder) = way::folder(base.as_fd(), shown, &name)? else { continue };
        let entries = tree::list(folder.as_fd(), MAX_ENTRIES)
            .map_err(|source| VolumeError::List { path: shown.join(&name), source })?;
        pods.extend(entries.into_iter().map(|entry| entry.name.to_string_lossy().into_owned()));
    }
    pods.sort();
    pods.dedup();
    Ok(pods)
}

/// Refuses what a driver must not be asked to take back yet: a block volume that a pod has. Answers where else on the machine a file
/// system is mounted.
///
/// # Errors
/// [`CsiError::StillPublished`].
pub fn begin_end(settings: &Settings, staged: &Staged) -> Result<Vec<String>, VolumeError> {
    ensure_may_end(settings, staged)?;
    let is_block = staged.block.is_some();
    if is_block { Ok(Vec::new()) } else { references::elsewhere(settings, &Once::Csi(staged.clone())) }
}

/// Refuses to take away what a pod has of a block volume.
///
/// # Errors
/// [`CsiError::StillPublished`].
fn ensure_may_end(settings: &Settings, staged: &Staged) -> Result<(), VolumeError> {
    match &staged.block {
        Some(spec) => ensure_published_to_none(settings, spec.as_str(), || staged.what()),
        None => Ok(()),
    }
}

fn ensure_published_to_none(settings: &Settings, spec: &str, what: impl FnOnce() -> String) -> Result<(), VolumeError> {
    let shown = paths::base(&settings.paths);
    let Some(base) = base(settings)? else { return Ok(()) };
    let pods = pods_of_block(&base, &shown, spec)?;
    if pods.is_empty() {
        return Ok(());
    }
    let pods = pods.iter().map(|pod| format!("pod {pod}")).collect::<Vec<_>>().join(", ");
    Err(CsiError::StillPublished { what: what(), pods }.into())
}

/// Takes the folders and the file away, the file last; what is not there is gone.
///
/// # Errors
/// Something is mounted there still, or left by the driver.
pub fn end(settings: &Settings, staged: &Staged) -> Result<(), VolumeError> {
    let shown = paths::base(&settings.paths);
    let (folder, target) = (staged.data_folder(), staged.target());
    way::ensure_clear(&shown, &shown.join(&folder))?;
    let all: [PathBuf; 2] = [shown.join(&folder), shown.join(&target)];
    way::ensure_unmounted(&shown, &all.each_ref().map(PathBuf::as_path))?;
    ensure_may_end(settings, staged)?;
    let Some(base) = base(settings)? else { return Ok(()) };
    if let Some(open) = way::folder(base.as_fd(), &shown, &folder)? {
        ensure_same_staged(&open, &shown.join(&folder), staged)?;
    }
    remove(&base, &shown, (&folder, &target), staged.block.as_ref())
}

/// Takes away what nobody knows the volume of, by its path: what is mounted, innermost first, folders and file.
///
/// # Errors
/// The file says whose it is; a process holds what is mounted; a pod has the block volume.
pub fn end_nameless(settings: &Settings, nameless: &Nameless) -> Result<(), VolumeError> {
    let shown = paths::base(&settings.paths);
    let (folder, target) = (nameless.data_folder(), nameless.target());
    way::ensure_clear(&shown, &shown.join(&folder))?;
    way::ensure_clear(&shown, &shown.join(&target))?;
    if let Some(spec) = nameless.block() {
        ensure_published_to_none(settings, spec.as_str(), || nameless.what())?;
    }
    let Some(base) = base(settings)? else { return Ok(()) };
    if let Some(open) = way::folder(base.as_fd(), &shown, &folder)?
        && let Ok(Some(data)) = VolData::read(open.as_fd())
        && let Some(device) = data.device()
    {
        let problem = match nameless {
            Nameless::FileSystem { driver, hash } => belongs(&data, driver.as_str(), Some(hash)),
            Nameless::Block(_) => belongs(&data, "", None),
        };
        if problem.is_empty() {
            return Err(CsiError::Readable {
                path: shown.join(&folder).join(data::NAME),
                driver: device.driver.to_string(),
                handle: paths::shortened(device.handle.as_str()),
            }
            .into());
        }
    }
    unmount_all(&base, &shown, &shown.join(&folder))?;
    unmount_all(&base, &shown, &shown.join(&target))?;
    remove(&base, &shown, (&folder, &target), nameless.block())
}

/// Unmounts what is mounted at a path and below, innermost first. `shown` is the path of the open folder above it.
///
/// # Errors
/// A process holds one of them.
pub fn unmount_all(dir: &OwnedFd, shown: &Path, path: &Path) -> Result<(), VolumeError> {
    let mut points = teardown::mount_points_below(path)?;
    if way::Mounts::below(shown)?.at(path) {
        points.push(path.to_owned());
    }
    for point in points {
        teardown::unmount_beneath(dir, shown, &point).map_err(|why| CsiError::Io {
            doing: "unmount",
            path: point,
            source: std::io::Error::other(why),
        })?;
    }
    Ok(())
}

/// `folder`: of the file; `target`: what the driver was told.
fn remove(
    base: &OwnedFd,
    shown: &Path,
    (folder, target): (&Path, &Path),
    block: Option<&VolumeName>,
) -> Result<(), VolumeError> {
    if let Some(spec) = block {
        // As upstream: a driver may have left there what it kept of the volume.
        remove_tree(base, shown, target)?;
        way::remove_one(base.as_fd(), shown, &paths::publish(spec.as_str()))?;
        way::remove_one(base.as_fd(), shown, &paths::map(spec.as_str()))?;
    } else {
        way::remove_one(base.as_fd(), shown, target)?;
    }
    if let Some(open) = way::folder(base.as_fd(), shown, folder)? {
        data::remove(open.as_fd()).map_err(|source| CsiError::Io {
            doing: "remove",
            path: shown.join(folder).join(data::NAME),
            source,
        })?;
    }
    way::remove_one(base.as_fd(), shown, folder)?;
    if let (Some(_), Some(parent)) = (block, folder.parent()) {
        way::remove_one(base.as_fd(), shown, parent)?;
    }
    Ok(())
}

/// Removes a folder of ours with what is in it; it follows no link and stops at mounts.
fn remove_tree(base: &OwnedFd, shown: &Path, relative: &Path) -> Result<(), VolumeError> {
    let (Some(parent), Some(name)) = (relative.parent(), relative.file_name()) else { return Ok(()) };
    let Some(parent) = way::folder(base.as_fd(), shown, parent)? else { return Ok(()) };
    tree::remove(parent.as_fd(), name).map_err(|source| CsiError::Remove { path: shown.join(relative), source }.into())
}
