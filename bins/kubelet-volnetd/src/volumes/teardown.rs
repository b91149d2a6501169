//! The end of a pod's directory: unmount everything, then remove what may be removed.
//!
//! Order matters and each step may find itself half done by a former process: mounts go first, innermost before
//! outermost and so the binds of subPaths before their volumes; while one is left nothing is removed. Then the targets of
//! subPaths go, the contents of emptyDirs (they die with the pod) and of the volumes whose files are ours, the rest of
//! `volumes/` only if it is empty directories (a leftover `vol_data.json` is another plugin's business, reference
//! upstream `removeOrphanedPodVolumeDirs`), then everything else, never entering another mount; the pod's directory
//! last. A hostPath is not below here and is never touched.
//!
//! What a CSI driver has published is its own: it is named as left, and neither it nor the binds of its subPaths are unmounted
//! or removed, while the pod's other volumes go. So is what a FlexVolume driver has mounted, and has not unmounted before.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use bulkhead_sys::mount;
use bulkhead_sys::mountinfo::{Mount, MountInfo, innermost};
use bulkhead_sys::{open, tree};
use bulkhead_types::{PodUid, chain, escape_qualified_name};
use rustix::fs::AtFlags;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::csi::{data, paths as csi};
use super::disk::map;
use super::{EMPTY_DIR, NFS, VolumeError, content, nfs, sub_path};
use crate::node::Settings;

/// File systems that are memory.
const MEMORY: &[&str] = &["tmpfs", "ramfs", "hugetlbfs"];
/// Entries of one of our own directories; a pod cannot add to them.
const MAX_ENTRIES: usize = 100_000;

/// What was done and what is left, in words.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Outcome {
    pub unmounted: Vec<String>,
    /// What stands in the way; empty when the pod is gone.
    pub left: Vec<String>,
    /// A directory was there.
    pub existed: bool,
    /// For the metrics.
    pub volumes: Vec<Unmounted>,
}

/// How taking a volume away went.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Unmounted {
    pub plugin: String,
    pub seconds: f64,
    pub worked: bool,
}

/// How much of a pod goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Scope {
    /// The pod has ended but is still wanted: its termination messages are read again after a restart.
    Volumes,
    Everything,
}

/// A volume that a driver has published and not taken back: the name of its folder, and what is told of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    pub spec: String,
    pub what: String,
}

/// Tears a pod down as far as possible. A pod that is not there is down. `mounted`: see [`Mounted`]; read here where nobody has.
pub fn tear_down(
    settings: &Settings,
    pod: &PodUid,
    scope: Scope,
    kept: &[Kept],
    mounted: Option<Mounted>,
) -> Result<Outcome, VolumeError> {
    let mut outcome = Outcome::default();
    let pod_error = |source| VolumeError::PodDir { pod: pod.clone(), source };
    let pods = settings.pods_dir().map_err(pod_error)?;
    let dir = match open::dir_beneath(pods.as_fd(), pod.as_str()) {
        Ok(dir) => dir,
        Err(err) if err.is_not_found() => return Ok(outcome),
        Err(err) => return Err(pod_error(err)),
    };
    outcome.existed = true;

    let base = settings.paths.pod(pod);
    let specs: Vec<String> = kept.iter().map(|kept| kept.spec.clone()).collect();
    let below = mounted.map_or_else(|| mounts_below(&base), |mounted| Ok(mounted.below))?;
    for Below { point, is_served } in below {
        if is_drivers(point.strip_prefix(&base).unwrap_or(&point), &specs) {
            // Published after we were told what is, or by nobody that we know of.
            if kept.is_empty() {
                outcome.left.push(format!("{}: it is mounted, and a driver's", point.display()));
            }
            continue;
        }
        if is_served {
            // Neither mount nor folder goes while the server is away.
            let _ = on_parent(&dir, &base, &point, nfs::wait_for_server);
        }
        let started = std::time::Instant::now();
        unmount(&dir, &base, &point, &mut outcome);
        if is_served && point.starts_with(settings.paths.volumes(pod)) {
            let worked = outcome.unmounted.last().is_some_and(|last| *last == point.display().to_string());
            let seconds = started.elapsed().as_secs_f64();
            outcome.volumes.push(Unmounted { plugin: NFS.to_owned(), seconds, worked });
        }
    }
    outcome.left.extend(map::unmap_all(settings, pod, &dir));
    if !outcome.left.is_empty() {
        return Ok(outcome);
    }
    if let Err(error) = sub_path::remove_targets(dir.as_fd(), &specs) {
        outcome.left.push(format!("{}: {}", sub_path::FOLDER, chain(&error)));
        return Ok(outcome);
    }
    remove_volumes(&dir, !kept.is_empty(), &mut outcome);
    outcome.left.extend(kept.iter().map(|kept| kept.what.clone()));
    if !outcome.left.is_empty() {
        return Ok(outcome);
    }
    if scope == Scope::Volumes {
        return Ok(outcome);
    }
    for entry in
        tree::list(dir.as_fd(), MAX_ENTRIES).map_err(|source| VolumeError::List { path: base.clone(), source })?
    {
        if let Err(error) = tree::remove(dir.as_fd(), &entry.name) {
            outcome.left.push(format!("{}: {}", base.join(&entry.name).display(), chain(&error)));
        }
    }
    drop(dir);
    if outcome.left.is_empty() {
        match rustix::fs::unlinkat(&pods, pod.as_str(), AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => outcome.left.push(format!("{}: {errno}", base.display())),
        }
    }
    Ok(outcome)
}

/// Whether a mount below the pod's folder is a driver's, or lies on top of what is. Pure.
fn is_drivers(relative: &Path, specs: &[String]) -> bool {
    let of_flex = || {
        let kind = relative.strip_prefix("volumes").ok()?.components().next()?;
        Some(is_foreign(&kind.as_os_str().to_string_lossy()))
    };
    of_flex() == Some(true)
        || relative.starts_with(Path::new("volumes").join(csi::FOLDER))
        || relative.starts_with("volumeDevices")
        || specs.iter().any(|spec| relative.starts_with(Path::new(sub_path::FOLDER).join(spec)))
}

/// Whether a folder of `volumes/` is of no kind of the kubelet's own: a FlexVolume driver's.
fn is_foreign(folder: &str) -> bool {
    !folder.starts_with("kubernetes.io~")
}

/// A mount strictly below a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Below {
    point: PathBuf,
    /// An NFS server serves it, or the volume of which it is a bind of a part.
    is_served: bool,
}

/// What is mounted in a pod's folder, from one look at the node's mounts, which are many.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Mounted {
    /// Innermost first.
    pub below: Vec<Below>,
    /// One of them is neither memory nor on the disk which the folder is on.
    pub is_foreign: bool,
}

impl Mounted {
    /// Reads the node's mounts. `None`: what there is cannot be told to another process, a name that is no UTF-8 among it.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn look(settings: &Settings, pod: &PodUid) -> Result<Option<Self>, VolumeError> {
        let mut info = MountInfo::new();
        let mounts: Vec<Mount<'_>> = info.read().map_err(VolumeError::Mounts)?.collect();
        Ok(Self::of(&mounts, &settings.paths.pod(pod), pod))
    }

    /// Pure.
    fn of(mounts: &[Mount<'_>], base: &Path, pod: &PodUid) -> Option<Self> {
        let below = innermost_first(mounts.iter().filter_map(|mount| point_below(mount, base)));
        let is_told = below.iter().all(|below| below.point.to_str().is_some());
        is_told.then(|| Mounted { below, is_foreign: is_foreign_below(mounts, pod) })
    }
}

/// Whether something is mounted in the pod's folder that is neither memory nor on the disk which the folder is on. Pure.
pub fn is_foreign_below(mounts: &[Mount<'_>], pod: &PodUid) -> bool {
    let is_of_pod = |mount: &&Mount<'_>| mount.mount_point.iter().any(|part| part == pod.as_str());
    let others = || mounts.iter().filter(|mount| !is_of_pod(mount));
    mounts.iter().filter(is_of_pod).filter(|mount| !MEMORY.contains(&&*mount.fs_type)).any(|mount| {
        let disk = innermost(others(), &mount.mount_point);
        disk.is_none_or(|disk| disk.device != mount.device)
    })
}

/// Mounts strictly below a directory, innermost first. Those that lie on top of each other are one.
fn mounts_below(base: &Path) -> Result<Vec<Below>, VolumeError> {
    let mut info = MountInfo::new();
    Ok(innermost_first(info.read().map_err(VolumeError::Mounts)?.filter_map(|mount| point_below(&mount, base))))
}

/// Pure.
fn point_below(mount: &Mount<'_>, base: &Path) -> Option<Below> {
    let is_below = mount.mount_point.starts_with(base) && *mount.mount_point != *base;
    is_below.then(|| Below { point: mount.mount_point.to_path_buf(), is_served: nfs::is_nfs(&mount.fs_type) })
}

/// Pure.
fn innermost_first(mounts: impl Iterator<Item = Below>) -> Vec<Below> {
    let mut points: BTreeMap<PathBuf, bool> = BTreeMap::new();
    for mount in mounts {
        *points.entry(mount.point).or_default() |= mount.is_served;
    }
    let mut below: Vec<Below> = points.into_iter().map(|(point, is_served)| Below { point, is_served }).collect();
    below.sort_by_key(|below| std::cmp::Reverse(below.point.components().count()));
    below
}

/// Mount points strictly below a directory, innermost first.
pub fn mount_points_below(base: &Path) -> Result<Vec<PathBuf>, VolumeError> {
    Ok(mounts_below(base)?.into_iter().map(|below| below.point).collect())
}

/// Unmounts one point through its parent directory, opened below the pod's.
pub fn unmount_beneath(dir: &OwnedFd, base: &Path, point: &Path) -> Result<(), String> {
    on_parent(dir, base, point, |parent, name| mount::unmount(parent, name).map_err(|e| chain(&e)))?
}

/// Does something by the point's name in its parent directory, which is opened below the pod's.
fn on_parent<T>(
    dir: &OwnedFd,
    base: &Path,
    point: &Path,
    act: impl FnOnce(BorrowedFd<'_>, &str) -> T,
) -> Result<T, String> {
    let relative = point.strip_prefix(base).map_err(|e| e.to_string())?;
    let name = relative.file_name().and_then(|n| n.to_str()).ok_or("its name is not valid UTF-8")?;
    let parent = match relative.parent().filter(|p| !p.as_os_str().is_empty()) {
        Some(parent) => open::dir_beneath(dir.as_fd(), parent).map_err(|e| chain(&e))?,
        None => dir.try_clone().map_err(|e| e.to_string())?,
    };
    Ok(act(parent.as_fd(), name))
}

fn unmount(dir: &OwnedFd, base: &Path, point: &Path, outcome: &mut Outcome) {
    match unmount_beneath(dir, base, point) {
        Ok(()) => outcome.unmounted.push(point.display().to_string()),
        Err(why) => outcome.left.push(format!("{}: {why}", point.display())),
    }
}

/// `keeps`: a driver has something published, and so its folders stay as they are.
fn remove_volumes(dir: &OwnedFd, keeps: bool, outcome: &mut Outcome) {
    remove_of_plugin(dir, EMPTY_DIR, |volume| volume.to_owned(), outcome);
    for plugin in content::Plugin::ALL {
        remove_of_plugin(dir, plugin.name(), content::marker, outcome);
    }
    if keeps {
        return remove_others(dir, outcome);
    }
    remove_cut_off(dir, outcome);
    for name in ["volumes", "volumeDevices"] {
        if let Err(error) = tree::remove_empty_dirs(dir.as_fd(), name) {
            outcome.left.push(format!("{name}: {}", chain(&error)));
        }
    }
}

/// What a kubelet-volnetd that was killed while it noted a driver's volume has left: nobody was told of that volume.
fn remove_cut_off(dir: &OwnedFd, outcome: &mut Outcome) {
    let folder = Path::new("volumes").join(csi::FOLDER);
    let Ok(volumes) = open::dir_beneath(dir.as_fd(), &folder) else { return };
    for volume in tree::list(volumes.as_fd(), MAX_ENTRIES).unwrap_or_default() {
        if let Ok(noted) = open::dir_beneath(volumes.as_fd(), &volume.name)
            && let Err(error) = data::remove_cut_off(noted.as_fd())
        {
            outcome.left.push(format!("{}: {error}", folder.join(&volume.name).display()));
        }
    }
}

/// The empty folders of all plugins but CSI and FlexVolume drivers.
fn remove_others(dir: &OwnedFd, outcome: &mut Outcome) {
    let volumes = match open::dir_beneath(dir.as_fd(), "volumes") {
        Ok(volumes) => volumes,
        Err(error) if error.is_not_found() => return,
        Err(error) => return outcome.left.push(format!("volumes: {}", chain(&error))),
    };
    for plugin in tree::list(volumes.as_fd(), MAX_ENTRIES).unwrap_or_default() {
        if plugin.name != csi::FOLDER
            && !is_foreign(&plugin.name.to_string_lossy())
            && let Err(error) = tree::remove_empty_dirs(volumes.as_fd(), &plugin.name)
        {
            outcome.left.push(format!("volumes/{}: {}", plugin.name.display(), chain(&error)));
        }
    }
}

/// Volumes whose contents are ours, or die with the pod: each with its marker.
fn remove_of_plugin(dir: &OwnedFd, plugin: &'static str, marker: impl Fn(&str) -> String, outcome: &mut Outcome) {
    let folder = Path::new("volumes").join(escape_qualified_name(plugin));
    let mut failed = |what: &Path, error: &dyn std::error::Error| {
        outcome.left.push(format!("{}: {}", what.display(), chain(error)));
    };
    let parent = match open::dir_beneath(dir.as_fd(), &folder) {
        Ok(parent) => parent,
        Err(error) if error.is_not_found() => return,
        Err(error) => return failed(&folder, &error),
    };
    let entries = match tree::list(parent.as_fd(), MAX_ENTRIES) {
        Ok(entries) => entries,
        Err(error) => return failed(&folder, &error),
    };
    let markers = Path::new("plugins").join(escape_qualified_name(EMPTY_DIR));
    for entry in entries {
        // The marker goes first: a crash in between must not leave a marker without its volume complete.
        let marker = marker(&entry.name.to_string_lossy());
        if let Ok(markers_dir) = open::dir_beneath(dir.as_fd(), &markers)
            && let Err(error) = tree::remove(markers_dir.as_fd(), &marker)
        {
            failed(&markers.join(&marker), &error);
            continue;
        }
        let started = std::time::Instant::now();
        let result = tree::remove(parent.as_fd(), &entry.name);
        let worked = result.is_ok();
        outcome.volumes.push(Unmounted { plugin: plugin.to_owned(), seconds: started.elapsed().as_secs_f64(), worked });
        if let Err(error) = result {
            failed(&folder.join(&entry.name), &error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bulkhead_sys::mountinfo::parse;

    const MOUNTS: &[u8] = b"\
20 1 254:0 / / rw - ext4 /dev/vda rw
30 20 0:50 / /var/lib/kubelet/pods/plain/volumes/kubernetes.io~secret/s rw - tmpfs tmpfs rw
31 20 254:0 /var/x /var/lib/kubelet/pods/plain/volume-subpaths/v/c/0 rw - ext4 /dev/vda rw
32 20 0:51 / /var/lib/kubelet/pods/nfs/volumes/kubernetes.io~nfs/v rw - nfs4 10.0.0.2:/ rw
33 20 8:32 / /var/lib/kubelet/pods/disk/volumes/kubernetes.io~iscsi/v rw - ext4 /dev/sdc rw
34 20 0:52 / /var/lib/kubelet/pods/fuse/volumes/kubernetes.io~empty-dir/v rw - fuse x rw
35 32 0:53 / /var/lib/kubelet/pods/nfs/volumes/kubernetes.io~nfs/v/inside rw - tmpfs tmpfs rw
36 20 0:54 / /var/lib/kubelet/pods/odd/volumes/kubernetes.io~empty-dir/\xff rw - tmpfs tmpfs rw
";

    #[test]
    fn what_is_mounted_in_a_pods_folder_from_one_look() {
        let mounts: Vec<Mount<'_>> = parse(MOUNTS).collect();
        let pod = |uid: &str| PodUid::parse(uid).unwrap();
        for (uid, foreign, below) in [
            ("plain", false, vec![("volumes/kubernetes.io~secret/s", false), ("volume-subpaths/v/c/0", false)]),
            ("none", false, vec![]),
            ("nfs", true, vec![("volumes/kubernetes.io~nfs/v/inside", false), ("volumes/kubernetes.io~nfs/v", true)]),
            ("disk", true, vec![("volumes/kubernetes.io~iscsi/v", false)]),
            ("fuse", true, vec![("volumes/kubernetes.io~empty-dir/v", false)]),
        ] {
            let base = Path::new("/var/lib/kubelet/pods").join(uid);
            let mut below: Vec<Below> =
                below.into_iter().map(|(point, is_served)| Below { point: base.join(point), is_served }).collect();
            let mut mounted = Mounted::of(&mounts, &base, &pod(uid)).unwrap();
            if uid == "plain" {
                below.sort_by(|a, b| a.point.cmp(&b.point));
                mounted.below.sort_by(|a, b| a.point.cmp(&b.point));
            }
            assert_eq!(mounted, Mounted { below, is_foreign: foreign }, "{uid}");
        }
        // A name that is no text cannot be in a request to a worker, which looks for itself.
        assert_eq!(Mounted::of(&mounts, Path::new("/var/lib/kubelet/pods/odd"), &pod("odd")), None);
    }

    #[test]
    fn mounts_of_drivers_are_told_from_others() {
        for (relative, is) in [
            ("volumes/kubernetes.io~csi/pv/mount", true),
            ("volumes/kubernetes.io~csi/pv", true),
            ("volumes/kubernetes.io~csi/pv/mount/inside", true),
            ("volumeDevices/kubernetes.io~csi/pv", true),
            ("volume-subpaths/pv/c/0", true),
            ("volume-subpaths/pv2/c/0", false),
            ("volumes/kubernetes.io~csi2/pv", false),
            ("volumes/vendor~driver/v", true),
            ("volumes/driver/v/inside", true),
            ("volumes/kubernetes.io~empty-dir/pv", false),
            ("volumes/kubernetes.io~local-volume/pv", false),
        ] {
            assert_eq!(is_drivers(Path::new(relative), &["pv".to_owned()]), is, "{relative}");
        }
    }

    #[test]
    fn what_a_write_that_was_cut_off_has_left_holds_no_pod() {
        let root = tempfile::tempdir().unwrap();
        let volume = root.path().join("volumes/kubernetes.io~csi/pv");
        std::fs::create_dir_all(&volume).unwrap();
        std::fs::write(volume.join(".vol_data.json.tmp"), "{").unwrap();
        let dir = OwnedFd::from(std::fs::File::open(root.path()).unwrap());
        let mut outcome = Outcome::default();
        remove_volumes(&dir, false, &mut outcome);
        assert_eq!((outcome.left, root.path().join("volumes").exists()), (Vec::new(), false));
        // One that was noted is a driver's, and stays.
        std::fs::create_dir_all(&volume).unwrap();
        std::fs::write(volume.join("vol_data.json"), "{}").unwrap();
        let mut outcome = Outcome::default();
        remove_volumes(&dir, false, &mut outcome);
        assert_eq!((outcome.left.len(), volume.join("vol_data.json").exists()), (1, true));
    }
}
