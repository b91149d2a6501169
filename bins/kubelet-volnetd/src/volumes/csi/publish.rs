//! Once a pod: the folder beside which a driver publishes, and what is done to what it has published (upstream
//! `csi_mounter.go`, `csi_block.go`).

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use bulkhead_sys::open;
use bulkhead_sys::tree;
use rustix::fs::{FileType, Mode};
use serde::{Deserialize, Serialize};

use super::super::empty_dir::Group;
use super::super::ownership::{self, Access, OwnershipError};
use super::super::{VolumeError, pod_dir, sub_path, teardown};
use super::data::{self, VolData};
use super::paths::{self, Published};
use super::{CsiError, Prepared, block, list, stage, way};
use crate::node::Settings;

/// What is done to the files of a volume once it is published.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Giving {
    pub group: Group,
    pub read_only: bool,
}

/// The folders that lead to a volume, absolute: none may be mounted over below the first.
fn ways(settings: &Settings, published: &Published) -> Vec<(PathBuf, PathBuf)> {
    let (pods, base) = (settings.paths.pods(), paths::base(&settings.paths));
    let target = paths::target(&settings.paths, published);
    if published.block {
        let link = block::link(settings, published);
        vec![(base.clone(), target), (base, block::bound(settings, published)), (pods, link)]
    } else {
        vec![(pods, target)]
    }
}

fn ensure_clear(settings: &Settings, published: &Published) -> Result<way::Mounts, VolumeError> {
    let mut at_target = None;
    for (base, path) in ways(settings, published) {
        let mounts = way::ensure_clear(&base, &path)?;
        at_target.get_or_insert(mounts);
    }
    let mounts = at_target.unwrap_or_else(|| way::Mounts::of([]));
    let file = settings.paths.pod(&published.pod).join(paths::pod_folder(published.spec.as_str())).join(data::NAME);
    if !published.block && mounts.at(&file) {
        return Err(CsiError::MountInTheWay { path: file }.into());
    }
    Ok(mounts)
}

/// The folder of `vol_data.json`, opened; None: it is not there.
fn data_folder(settings: &Settings, pod: &OwnedFd, published: &Published) -> Result<Option<OwnedFd>, VolumeError> {
    if published.block {
        let Some(base) = stage::base(settings)? else { return Ok(None) };
        let folder = paths::block_data(&published.spec);
        return Ok(way::folder(base.as_fd(), &paths::base(&settings.paths), &folder)?);
    }
    let folder = paths::pod_folder(published.spec.as_str());
    Ok(way::folder(pod.as_fd(), &settings.paths.pod(&published.pod), &folder)?)
}

fn shown_data(settings: &Settings, published: &Published) -> PathBuf {
    let spec = published.spec.as_str();
    if published.block {
        paths::base(&settings.paths).join(paths::block_data(&published.spec))
    } else {
        settings.paths.pod(&published.pod).join(paths::pod_folder(spec))
    }
}

fn ensure_same_volume(settings: &Settings, folder: &OwnedFd, published: &Published) -> Result<(), CsiError> {
    match &published.device {
        Some(device) => stage::ensure_same_volume(folder, &shown_data(settings, published), device),
        None => Ok(()),
    }
}

/// What there is before anything is made.
///
/// # Errors
/// The pod is not prepared; another volume, a link or a mount is in the way.
pub fn look(settings: &Settings, published: &Published, data: &VolData) -> Result<Prepared, VolumeError> {
    let mounts = ensure_clear(settings, published)?;
    let pod = pod_dir(settings, &published.pod)?;
    let Some(folder) = data_folder(settings, &pod, published)? else { return Ok(Prepared::Needed) };
    ensure_same_volume(settings, &folder, published)?;
    let target = paths::target(&settings.paths, published);
    let is_there = if published.block {
        let link = paths::pod_links().join(published.spec.as_str());
        let linked = way::handle(pod.as_fd(), &settings.paths.pod(&published.pod), &link)?.is_some();
        let bound = block::bound(settings, published);
        linked && way::Mounts::below(&paths::base(&settings.paths))?.at(&bound)
    } else {
        // What is mounted there is a driver's, and need not be looked at.
        mounts.at(&target) || is_target(settings, &pod, published)?
    };
    Ok(if is_there && data.is_written(folder.as_fd()) { Prepared::Before(target) } else { Prepared::Needed })
}

/// Whether there is a folder where the driver is to publish, or a link of the driver's; what else is there is refused.
fn is_target(settings: &Settings, pod: &OwnedFd, published: &Published) -> Result<bool, CsiError> {
    let shown = settings.paths.pod(&published.pod);
    let relative = paths::pod_mount(published.spec.as_str());
    match way::handle(pod.as_fd(), &shown, &relative)? {
        None => Ok(false),
        Some((_, FileType::Directory | FileType::Symlink)) => Ok(true),
        Some((_, kind)) => Err(CsiError::InTheWay { path: shown.join(relative), found: way::name_of(kind) }),
    }
}

/// Makes the parent of what the driver is told, and the file.
///
/// # Errors
/// As [`look`]'s; a block volume that is not prepared to be staged; a full disk.
pub fn prepare(settings: &Settings, published: &Published, data: &VolData) -> Result<Prepared, VolumeError> {
    let mounts = ensure_clear(settings, published)?;
    let pod = pod_dir(settings, &published.pod)?;
    let target = paths::target(&settings.paths, published);
    if published.block {
        let not_prepared = || CsiError::NotPrepared { what: published.what() };
        let folder = data_folder(settings, &pod, published)?.ok_or_else(not_prepared)?;
        ensure_same_volume(settings, &folder, published)?;
        if !matches!(VolData::read(folder.as_fd()), Ok(Some(_))) {
            return Err(not_prepared().into());
        }
        let base = stage::made_base(settings)?;
        way::make(base.as_fd(), &paths::base(&settings.paths), &paths::publish(published.spec.as_str()))?;
        return Ok(Prepared::Now(target));
    }
    let shown = settings.paths.pod(&published.pod);
    let relative = paths::pod_folder(published.spec.as_str());
    let made = (|| {
        let folder = way::make(pod.as_fd(), &shown, &relative)?;
        ensure_same_volume(settings, &folder, published)?;
        if !mounts.at(&target) {
            is_target(settings, &pod, published)?;
        }
        let path = shown.join(&relative).join(data::NAME);
        data.write(folder.as_fd()).map_err(|source| CsiError::Io { doing: "write", path, source })
    })();
    if let Err(error) = made {
        undo(&pod, &shown, &relative);
        return Err(error.into());
    }
    Ok(Prepared::Now(target))
}

/// Takes the folder away, where it is empty.
fn undo(pod: &OwnedFd, shown: &Path, folder: &Path) {
    let _ = way::remove_one(pod.as_fd(), shown, folder);
}

/// Asks whoever serves what was found mounted: whatever it answers but success refuses it. See [`way::ask`].
///
/// # Errors
/// [`CsiError::Unserved`]: nobody serves it any more, as when a FUSE driver's process has ended.
pub fn ask(settings: &Settings, published: &Published) -> Result<(), VolumeError> {
    let pod = pod_dir(settings, &published.pod)?;
    let shown = settings.paths.pod(&published.pod);
    let relative = paths::pod_mount(published.spec.as_str());
    let path = shown.join(&relative);
    let unserved = |source| CsiError::Unserved { path: path.clone(), source };
    let target = match way::handle(pod.as_fd(), &shown, &relative) {
        Ok(Some((target, _))) => target,
        Ok(None) => return Ok(()),
        Err(CsiError::Io { source, .. }) => return Err(unserved(source).into()),
        Err(error) => return Err(error.into()),
    };
    drop(pod);
    way::ask(target).map_err(|errno| unserved(errno.into()).into())
}

/// Looks at what the driver has published, and makes it the pod's; answers what the runtime mounts. Where a driver has put nothing, a
/// folder is made, as containerd makes the source of a mount (upstream does not look); a group can be given to nothing (`has_group`).
///
/// A mount is entered to give it to a group and for nothing else, as upstream's SetUpAt: a container of the very pod may be the one
/// who serves it (GCS FUSE), which starts when all volumes are there, and one that has ended serves it no more.
///
/// # Errors
/// It was not prepared; what is published is not what it has to be.
pub fn commit(settings: &Settings, published: &Published, has_group: bool) -> Result<PathBuf, VolumeError> {
    let mounts = ensure_clear(settings, published)?;
    let pod = pod_dir(settings, &published.pod)?;
    let not_prepared = || CsiError::NotPrepared { what: published.what() };
    let folder = data_folder(settings, &pod, published)?.ok_or_else(not_prepared)?;
    ensure_same_volume(settings, &folder, published)?;
    if !matches!(VolData::read(folder.as_fd()), Ok(Some(_))) {
        return Err(not_prepared().into());
    }
    drop(folder);
    if published.block {
        let base = stage::base(settings)?.ok_or_else(not_prepared)?;
        return block::map(settings, &base, &pod, published);
    }
    let shown = settings.paths.pod(&published.pod);
    let relative = paths::pod_mount(published.spec.as_str());
    let target = shown.join(&relative);
    if !mounts.at(&target) {
        match way::handle(pod.as_fd(), &shown, &relative)? {
            // A driver may publish by a link (Fluid, IBM Storage Scale), which the runtime follows and nobody here.
            Some((_, FileType::Directory | FileType::Symlink)) => {}
            Some((_, kind)) => {
                return Err(CsiError::Target { path: target, found: way::name_of(kind), allowed: "a folder" }.into());
            }
            None if has_group => {
                return Err(of_group(published)(OwnershipError::Missing { path: target }).into());
            }
            None => {
                make_target(&pod, &relative).map_err(|source| CsiError::Io {
                    doing: "make the folder",
                    path: target.clone(),
                    source,
                })?;
                tracing::warn!(pod = %published.pod, volume = %published.spec, path = %target.display(),
                    "a CSI driver has published a volume and put nothing there: its pod gets an empty folder");
            }
        }
    }
    Ok(target)
}

/// A walk that failed, in upstream's words (`csi_mounter.go` SetUpAt).
fn of_group(published: &Published) -> impl Fn(OwnershipError) -> CsiError {
    let handle = published.device.as_ref().map_or(published.spec.as_str(), |device| device.handle.as_str());
    move |source| CsiError::Group { handle: handle.to_owned(), source }
}

/// The mode of containerd's.
fn make_target(pod: &OwnedFd, relative: &Path) -> std::io::Result<()> {
    let made = open::create_dirs_beneath(pod.as_fd(), relative, 0o755).map_err(std::io::Error::other)?;
    Ok(rustix::fs::fchmod(&made, Mode::from_raw_mode(0o755))?)
}

/// Gives what [`commit`] has found to the group: all files of the volume. Of a driver's link itself is given and nothing that it leads
/// to, as upstream's walkDeep does, which looks with Lstat.
///
/// # Errors
/// It is no folder, or the walk does not come to its end.
pub fn give(settings: &Settings, published: &Published, giving: Giving) -> Result<(), VolumeError> {
    let mounts = ensure_clear(settings, published)?;
    let pod = pod_dir(settings, &published.pod)?;
    let shown = settings.paths.pod(&published.pod);
    let relative = paths::pod_mount(published.spec.as_str());
    let target = shown.join(&relative);
    let access = if giving.read_only { Access::ReadOnly } else { Access::ReadWrite };
    let group = giving.group;
    if !mounts.at(&target)
        && let Some((link, FileType::Symlink)) = way::handle(pod.as_fd(), &shown, &relative)?
    {
        if let Err(error) = ownership::give_one(link.as_fd(), group.id, access) {
            tracing::warn!(path = %target.display(), group = group.id, %error, "cannot give a driver's link to a group");
        }
        return Ok(());
    }
    let root = open::dir_beneath(pod.as_fd(), &relative).map_err(|error| way::refused(&target, error))?;
    drop(pod);
    let failed = of_group(published);
    if group.on_root_mismatch && ownership::is_given(root.as_fd(), group.id, access).map_err(&failed)? {
        return Ok(());
    }
    ownership::give(root.as_fd(), group.id, access, ownership::PATIENCE).map_err(failed)?;
    Ok(())
}

/// The folder of a pod; None: it is not there, and so nothing of it.
fn pod_if_there(settings: &Settings, published: &Published) -> Result<Option<OwnedFd>, VolumeError> {
    match pod_dir(settings, &published.pod) {
        Ok(dir) => Ok(Some(dir)),
        Err(VolumeError::UnknownPod { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The mounts of subPaths of a volume, absolute.
fn sub_paths(settings: &Settings, published: &Published) -> PathBuf {
    settings.paths.pod(&published.pod).join(sub_path::FOLDER).join(published.spec.as_str())
}

/// Takes back what lies on top of what the driver has published.
///
/// # Errors
/// Something is held by a process; another volume has the folder.
pub fn begin_end(settings: &Settings, published: &Published) -> Result<(), VolumeError> {
    let pod = pod_if_there(settings, published)?;
    if let Some(pod) = &pod {
        if let Some(folder) = data_folder(settings, pod, published)? {
            ensure_same_volume(settings, &folder, published)?;
        }
        let (shown, folder) = (settings.paths.pod(&published.pod), sub_paths(settings, published));
        way::ensure_clear(&settings.paths.pods(), &folder)?;
        for point in teardown::mount_points_below(&folder)? {
            teardown::unmount_beneath(pod, &shown, &point).map_err(|why| CsiError::Io {
                doing: "unmount",
                path: point,
                source: std::io::Error::other(why),
            })?;
        }
        if let Some(binds) = way::folder(pod.as_fd(), &shown, Path::new(sub_path::FOLDER))? {
            tree::remove(binds.as_fd(), published.spec.as_str())
                .map_err(|source| CsiError::Remove { path: folder, source })?;
        }
    }
    if published.block {
        let shown = paths::base(&settings.paths);
        way::ensure_clear(&shown, &block::bound(settings, published))?;
        let base = stage::base(settings)?;
        block::unmap(settings, base.as_ref(), pod.as_ref(), published)?;
    }
    Ok(())
}

/// Unmounts what the driver has put there, by its path: nobody knows the volume, and so no driver can be asked to.
fn end_mounts(settings: &Settings, published: &Published) -> Result<(), VolumeError> {
    let Some(pod) = pod_if_there(settings, published)? else { return Ok(()) };
    if let Some(folder) = data_folder(settings, &pod, published)?
        && let Ok(Some(data)) = VolData::read(folder.as_fd())
        && let Some(device) = data.device()
        && list::belongs_to_spec(&data, published.spec.as_str()).is_empty()
    {
        return Err(CsiError::Readable {
            path: shown_data(settings, published).join(data::NAME),
            driver: device.driver.to_string(),
            handle: paths::shortened(device.handle.as_str()),
        }
        .into());
    }
    if published.block {
        let Some(base) = stage::base(settings)? else { return Ok(()) };
        return stage::unmount_all(&base, &paths::base(&settings.paths), &paths::target(&settings.paths, published));
    }
    let shown = settings.paths.pod(&published.pod);
    let folder = shown.join(paths::pod_folder(published.spec.as_str()));
    stage::unmount_all(&pod, &shown, &folder)
}

/// Takes the target, the file and their folder away; what is not there is gone.
///
/// # Errors
/// Something is mounted there still, or the target is a folder that is not empty.
pub fn end(settings: &Settings, published: &Published) -> Result<(), VolumeError> {
    for (base, path) in ways(settings, published) {
        way::ensure_clear(&base, path.parent().unwrap_or(&path))?;
    }
    if published.device.is_none() {
        end_mounts(settings, published)?;
    }
    let pods = settings.paths.pods();
    let target = paths::target(&settings.paths, published);
    if published.block {
        let base = paths::base(&settings.paths);
        way::ensure_unmounted(&base, &[&target, &block::bound(settings, published)])?;
        way::ensure_unmounted(&pods, &[&sub_paths(settings, published)])?;
        let Some(open) = stage::base(settings)? else { return Ok(()) };
        let relative = paths::publish(published.spec.as_str()).join(published.pod.as_str());
        // The driver removes it, as the specification has it; upstream's kubelet forgives one that does not.
        return Ok(way::remove_one(open.as_fd(), &base, &relative)?);
    }
    let folder = settings.paths.pod(&published.pod).join(paths::pod_folder(published.spec.as_str()));
    way::ensure_unmounted(&pods, &[&folder, &sub_paths(settings, published)])?;
    let Some(pod) = pod_if_there(settings, published)? else { return Ok(()) };
    let shown = settings.paths.pod(&published.pod);
    let Some(open) = data_folder(settings, &pod, published)? else { return Ok(()) };
    ensure_same_volume(settings, &open, published)?;
    way::remove_one(pod.as_fd(), &shown, &paths::pod_mount(published.spec.as_str()))?;
    data::remove(open.as_fd()).map_err(|source| CsiError::Io {
        doing: "remove",
        path: folder.join(data::NAME),
        source,
    })?;
    drop(open);
    Ok(way::remove_one(pod.as_fd(), &shown, &paths::pod_folder(published.spec.as_str()))?)
}
