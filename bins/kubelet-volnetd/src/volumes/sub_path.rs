//! subPath: one file or directory of a volume, bound to `volume-subpaths/<volume>/<container>/<index>` below the pod's
//! directory, so that the runtime is given a path that no pod can change (upstream `pkg/volume/util/subpath`).
//!
//! The pod writes in its volume while we look: so the path is resolved by the kernel, under rule 3 (links inside the
//! volume are followed, what leads out is refused), and the handle that comes out of it is what is bound. Nothing is
//! opened but the handle, so a FIFO or a device in its place is waited for by nobody. Directories that are missing are
//! made through handles in the same way.
//!
//! The disk and the mounts say what was done: a bind of the very object is used again, another one is replaced.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use bulkhead_sys::mount::{self, MountError};
use bulkhead_sys::open::{self, OpenError, Volume};
use bulkhead_sys::tree::{self, TreeError};
use bulkhead_types::{ContainerName, FlexDriver, PodUid, VolumeName};
use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::{EMPTY_DIR, FC, ISCSI, LOCAL, NFS, VolumeError, content, csi, pod_dir};
use crate::node::Settings;
use crate::validate::{self, InvalidRequest};

/// Volumes of one pod that have any.
const MAX_ENTRIES: usize = 100_000;

/// Below the pod's directory.
pub const FOLDER: &str = "volume-subpaths";

/// Why a subPath was not prepared.
#[derive(Debug, thiserror::Error)]
pub enum SubPathError {
    #[error("it leads out of the volume, or through a link where none may be")]
    LeadsOut,
    #[error("it is not there, and nothing is created in a read-only mount")]
    Missing,
    #[error("the volume's root {path} is not a directory that can be opened")]
    Root { path: PathBuf, source: std::io::Error },
    #[error("failed to resolve it")]
    Source(#[source] OpenError),
    #[error("failed to prepare the mount point")]
    Target(#[source] OpenError),
    #[error("failed to {doing}")]
    Io { doing: &'static str, source: std::io::Error },
    #[error(transparent)]
    Mount(#[from] MountError),
    #[error("failed to remove a former mount point")]
    Remove(#[from] TreeError),
}

fn io_error(doing: &'static str) -> impl Fn(Errno) -> SubPathError {
    move |errno| SubPathError::Io { doing, source: errno.into() }
}

/// Where a volume begins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Root {
    /// An emptyDir of the pod.
    EmptyDir,
    /// A volume whose files are ours.
    Content(content::Plugin),
    /// What a CSI driver has published.
    Csi,
    /// A folder of the host that is bound in the pod's.
    Local,
    /// A disk behind Fibre Channel that is bound in the pod's.
    Fc,
    /// A disk of an iSCSI target that is bound in the pod's.
    Iscsi,
    /// An export of an NFS server.
    Nfs,
    /// What a FlexVolume driver has mounted.
    Flex(FlexDriver),
    /// Anywhere on the host, as [`validate::host_path`] takes it.
    HostPath(PathBuf),
}

/// One volumeMount with a subPath.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubPath {
    pub volume: VolumeName,
    pub container: ContainerName,
    pub index: u32,
    /// Without ".." and not absolute; empty is the root of the volume.
    pub path: PathBuf,
    pub root: Root,
    /// Make directories that are missing.
    pub create: bool,
}

/// Of the plugins whose volumes lie directly below the pod's directory, by name.
pub fn plugin(name: &str) -> Result<Root, InvalidRequest> {
    let content = content::Plugin::ALL.into_iter().map(Root::Content);
    let others = [Root::EmptyDir, Root::Csi, Root::Local, Root::Fc, Root::Iscsi, Root::Nfs];
    let known = others.into_iter().chain(content).find(|known| known.plugin() == Some(name));
    known.or_else(|| FlexDriver::parse(name).ok().map(Root::Flex)).ok_or_else(|| {
        let allowed = "kubernetes.io/ and empty-dir, configmap, secret, projected, downward-api, csi, local-volume, fc, iscsi or \
                       nfs; or a FlexVolume driver";
        validate::bad("plugin", name, allowed)
    })
}

impl Root {
    /// The plugin's name, or the driver's; none of a hostPath.
    fn plugin(&self) -> Option<&str> {
        match self {
            Root::EmptyDir => Some(EMPTY_DIR),
            Root::Content(plugin) => Some(plugin.name()),
            Root::Csi => Some(csi::paths::PLUGIN),
            Root::Local => Some(LOCAL),
            Root::Fc => Some(FC),
            Root::Iscsi => Some(ISCSI),
            Root::Nfs => Some(NFS),
            Root::Flex(driver) => Some(driver.as_str()),
            Root::HostPath(_) => None,
        }
    }
}

/// Resolves the path and binds what it leads to; gives the bind's path.
pub fn prepare(settings: &Settings, pod: &PodUid, wanted: &SubPath) -> Result<PathBuf, VolumeError> {
    let pod_dir = pod_dir(settings, pod)?;
    let of_plugin = |plugin: &str| {
        let root = super::volume_root(pod_dir.as_fd(), pod, &wanted.volume, plugin)?;
        Ok::<_, VolumeError>((root, settings.paths.volume(pod, plugin, &wanted.volume)))
    };
    let (root, own) = match &wanted.root {
        Root::EmptyDir => of_plugin(EMPTY_DIR)?,
        Root::Content(plugin) => of_plugin(plugin.name())?,
        Root::Local => of_plugin(LOCAL)?,
        Root::Fc => of_plugin(FC)?,
        Root::Iscsi => of_plugin(ISCSI)?,
        Root::Nfs => of_plugin(NFS)?,
        Root::Flex(driver) => of_plugin(driver.as_str())?,
        Root::Csi => {
            let target = settings.paths.pod(pod).join(csi::paths::pod_mount(wanted.volume.as_str()));
            csi::way::ensure_clear(&settings.paths.pods(), &target)?;
            (of_plugin(csi::paths::PLUGIN)?.0, target)
        }
        Root::HostPath(path) => {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let root = rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| {
                failed(pod, wanted, SubPathError::Root { path: path.clone(), source: errno.into() })
            })?;
            (root, path.clone())
        }
    };
    let volume = Volume { root: root.as_fd(), host_path: Some(&own) };
    bind(pod_dir.as_fd(), volume, wanted).map_err(|error| failed(pod, wanted, error))?;
    Ok(settings.paths.pod(pod).join(target(wanted)).join(wanted.index.to_string()))
}

fn failed(pod: &PodUid, wanted: &SubPath, source: SubPathError) -> VolumeError {
    VolumeError::SubPath {
        pod: pod.clone(),
        volume: wanted.volume.clone(),
        path: wanted.path.clone(),
        source: source.into(),
    }
}

/// The folder of a container's mount points, below the pod's directory.
fn target(wanted: &SubPath) -> PathBuf {
    Path::new(FOLDER).join(wanted.volume.as_str()).join(wanted.container.as_str())
}

fn bind(pod_dir: BorrowedFd<'_>, volume: Volume<'_>, wanted: &SubPath) -> Result<(), SubPathError> {
    let source = resolve(volume, wanted)?;
    let is_dir = is_dir(&stat(source.as_fd())?);
    let parent = open::create_dirs_beneath(pod_dir, target(wanted), 0o750).map_err(SubPathError::Target)?;
    let name = wanted.index.to_string();
    if mount::is_mount_point(parent.as_fd(), &name)
        .map_err(|source| SubPathError::Io { doing: "look for a mount", source })?
    {
        if is_same(&source, &parent, &name)? {
            return Ok(());
        }
        mount::unmount(parent.as_fd(), &name)?;
    }
    let point = mount_point(&parent, &name, is_dir)?;
    Ok(mount::bind(source.as_fd(), point.as_fd())?)
}

/// A handle to what is to be bound.
fn resolve(volume: Volume<'_>, wanted: &SubPath) -> Result<OwnedFd, SubPathError> {
    let result = if wanted.create {
        // As upstream: what is missing gets the permissions of the volume's root. Its setgid bit hands the volume's group
        // on to what is made below, and its sticky bit keeps users from each other's files.
        let mode = stat(volume.root)?.st_mode & 0o7777;
        volume.handle_or_create(&wanted.path, mode)
    } else {
        volume.handle(Path::new(".").join(&wanted.path))
    };
    result.map_err(|error| match (&error, error.errno()) {
        (_, Some(Errno::XDEV | Errno::LOOP)) | (OpenError::TooManyLinks { .. }, _) => SubPathError::LeadsOut,
        (_, Some(Errno::NOENT)) if !wanted.create => SubPathError::Missing,
        _ => SubPathError::Source(error),
    })
}

/// Whether the object itself is bound already (upstream `checkSubPathFileEqual`).
fn is_same(source: &OwnedFd, parent: &OwnedFd, name: &str) -> Result<bool, SubPathError> {
    let bound = open::beneath(parent.as_fd(), name, OFlags::PATH, 0).map_err(SubPathError::Target)?;
    let (there, wanted) = (stat(bound.as_fd())?, stat(source.as_fd())?);
    Ok((there.st_dev, there.st_ino) == (wanted.st_dev, wanted.st_ino))
}

/// An empty directory or file to mount on. One of the other kind, of a former container, gives way.
fn mount_point(parent: &OwnedFd, name: &str, is_dir: bool) -> Result<OwnedFd, SubPathError> {
    let there = open::lstat_at(parent.as_fd(), name).map_err(SubPathError::Target)?;
    let fits = |stat: &Stat| match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => is_dir,
        FileType::RegularFile => !is_dir,
        _ => false,
    };
    if there.is_some_and(|stat| !fits(&stat)) {
        tree::remove(parent.as_fd(), name)?;
    }
    if is_dir {
        return open::create_dirs_beneath(parent.as_fd(), name, 0o750).map_err(SubPathError::Target);
    }
    open::beneath(parent.as_fd(), name, OFlags::WRONLY | OFlags::CREATE, 0o640).map_err(SubPathError::Target)?;
    open::beneath(parent.as_fd(), name, OFlags::PATH, 0).map_err(SubPathError::Target)
}

fn stat(fd: BorrowedFd<'_>) -> Result<Stat, SubPathError> {
    rustix::fs::fstat(fd).map_err(io_error("examine it"))
}

fn is_dir(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

/// The binds among mount points: pod to volume to "<container>/<index>". Pure.
pub fn among<'a>(pods_dir: &Path, points: impl Iterator<Item = &'a Path>) -> Binds {
    let mut found = Binds::default();
    for point in points {
        let Ok(relative) = point.strip_prefix(pods_dir) else { continue };
        let names: Vec<&str> = relative.iter().filter_map(|name| name.to_str()).collect();
        // What is mounted further down belongs to the pod.
        if let [pod, FOLDER, volume, container, index] = names[..] {
            let volumes = found.entry(pod.to_owned()).or_default();
            volumes.entry(volume.to_owned()).or_default().insert(format!("{container}/{index}"));
        }
    }
    found
}

/// Pod to volume to binds.
pub type Binds = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

/// Removes the mount points of a pod, whose binds are gone, but for those of volumes that are kept. They are empty; one with a
/// mount on it stops this.
pub fn remove_targets(pod_dir: BorrowedFd<'_>, kept: &[String]) -> Result<(), SubPathError> {
    if kept.is_empty() {
        return Ok(tree::remove(pod_dir, FOLDER)?);
    }
    let folder = match open::dir_beneath(pod_dir, FOLDER) {
        Ok(folder) => folder,
        Err(error) if error.is_not_found() => return Ok(()),
        Err(error) => return Err(SubPathError::Target(error)),
    };
    let volumes = tree::list(folder.as_fd(), MAX_ENTRIES)
        .map_err(|source| SubPathError::Io { doing: "list the mount points", source })?;
    for volume in volumes.iter().filter(|volume| !kept.iter().any(|kept| *volume.name == **kept)) {
        tree::remove(folder.as_fd(), &volume.name)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugins_are_a_closed_list() {
        assert_eq!(plugin("kubernetes.io/empty-dir").unwrap(), Root::EmptyDir);
        assert!(plugin("kubernetes.io/secret").is_ok());
        assert_eq!(plugin("kubernetes.io/csi").unwrap(), Root::Csi);
        assert_eq!(plugin("kubernetes.io/local-volume").unwrap(), Root::Local);
        assert_eq!(plugin("kubernetes.io/nfs").unwrap(), Root::Nfs);
        assert_eq!(plugin("v/d").unwrap(), Root::Flex(FlexDriver::parse("v/d").unwrap()));
        for bad in ["", "..", "kubernetes.io/../x", "kubernetes.io~empty-dir", "kubernetes.io/host-path", "v/../d"] {
            assert!(plugin(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn binds_by_volume() {
        let points = [
            "/p/u/volume-subpaths/v/c/1",
            "/p/u/volume-subpaths/v/c/0",
            "/p/u/volume-subpaths/v/c/0",
            "/p/u/volume-subpaths/v/c/0/inside",
            "/p/u/volumes/kubernetes.io~empty-dir/v",
            "/p/x/volume-subpaths/v/c/7",
        ];
        let mut found = among(Path::new("/p"), points.iter().map(Path::new));
        assert_eq!(found.len(), 2);
        let of_u = found.remove("u").unwrap();
        assert_eq!(of_u, [("v".to_owned(), ["c/0".to_owned(), "c/1".to_owned()].into())].into());
    }
}
