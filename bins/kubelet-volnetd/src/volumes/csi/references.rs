//! Where else on the machine a file system that is mounted once a node is mounted (upstream `SearchMountPoints` of mount-utils,
//! `HasMountRefs` of `pkg/volume/util`): who works in it there must not lose it, whoever has mounted it.
//!
//! A file system is one with another by its device and by the folder of the device that is mounted. Of a server (NFS, Ceph, and whoever
//! else shares a superblock) two volumes may be both. Upstream then refuses to take either of them back while the other is there; here
//! what is another volume's does not count: its own folder of staging, and what pods have of it.

use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use bulkhead_sys::mount::is_corrupted;
use bulkhead_sys::mountinfo::{Mount, MountInfo, innermost};
use bulkhead_sys::open;
use bulkhead_types::{FlexDriver, PodUid};
use serde::{Deserialize, Serialize};

use super::super::disk::place::DiskPlace;
use super::super::{VolumeError, pod_dir, sub_path};
use super::data::VolData;
use super::paths::{self, Device, Staged};
use super::{CsiError, way};
use crate::node::Settings;

/// Upstream's kubernetesPluginPathPrefix. What a folder's path has from there on its other paths have too, where the root directory
/// is seen at several places.
const PLUGINS: &str = "/plugins/kubernetes.io/";
/// Folders of staging of all drivers.
const OF_CSI: &str = "/plugins/kubernetes.io/csi/";
const OF_FLEX: &str = "/plugins/kubernetes.io/flexvolume/";

/// What a driver has mounted once a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Once {
    Csi(Staged),
    /// A FlexVolume driver's.
    Flex(DiskPlace),
}

impl Once {
    /// In words: the volume.
    pub fn what(&self) -> String {
        match self {
            Once::Csi(staged) => staged.what(),
            Once::Flex(place) => place.to_string(),
        }
    }

    /// Below the root directory.
    fn relative(&self) -> PathBuf {
        match self {
            Once::Csi(staged) => Path::new("plugins").join(paths::PLUGIN).join(staged.target()),
            Once::Flex(place) => place.mount(),
        }
    }

    /// The refusal to take it back, in upstream's words.
    pub fn refusal(&self, settings: &Settings, references: &[String]) -> VolumeError {
        let path = settings.told(&settings.paths.root_dir.join(self.relative()));
        CsiError::MountedElsewhere { path, references: references.join(" ") }.into()
    }
}

/// Where else it is mounted, as far as that counts.
///
/// # Errors
/// mountinfo cannot be read.
pub fn elsewhere(settings: &Settings, once: &Once) -> Result<Vec<String>, VolumeError> {
    let target = settings.paths.root_dir.join(once.relative());
    let pods = settings.paths.pods();
    let mut info = MountInfo::new();
    let mounts: Vec<Mount<'_>> = info.read().map_err(VolumeError::Mounts)?.collect();
    let counts = |point: &&Path| match (place(&target, &pods, point), once) {
        (Place::OwnOrAnothers, _) => false,
        (Place::OfPod { uid, spec, is_bind }, Once::Csi(staged)) => {
            is_of(settings, uid, spec, &staged.device).unwrap_or(!is_bind)
        }
        // What pods have of a FlexVolume is looked at before (`disk::global`).
        (Place::OfPod { .. }, Once::Flex(_)) => false,
        (Place::Elsewhere, _) => true,
    };
    let others = of(&mounts, &target).into_iter().filter(counts);
    Ok(others.map(|point| point.display().to_string()).collect())
}

/// Whether it is served by nobody any more: upstream's GetMountRefs finds no references of such a mount. See [`way::ask`].
pub fn is_dead(settings: &Settings, once: &Once) -> bool {
    let shown = &settings.paths.root_dir;
    let Ok(root) = open::base_dir(shown) else { return false };
    let target = match way::handle(root.as_fd(), shown, &once.relative()) {
        Ok(Some((target, _))) => target,
        Ok(None) => return false,
        Err(error) => return matches!(error, CsiError::Io { source, .. } if is_corrupted(&source)),
    };
    drop(root);
    way::ask(target).is_err_and(|errno| is_corrupted(&errno.into()))
}

/// Mount points of what is at `path`, without the mount that it is on. Pure.
fn of<'a>(mounts: &'a [Mount<'a>], path: &Path) -> Vec<&'a Path> {
    let Some(on) = innermost(mounts.iter(), path) else { return Vec::new() };
    let inside = path.strip_prefix(&on.mount_point).unwrap_or(path);
    let root = if inside.as_os_str().is_empty() { on.root.to_path_buf() } else { on.root.join(inside) };
    let is_same = |mount: &&Mount<'_>| mount.id != on.id && mount.device == on.device && *mount.root == *root;
    mounts.iter().filter(is_same).map(|mount| &*mount.mount_point).collect()
}

/// What a mount point is, by its path.
#[derive(Debug, PartialEq, Eq)]
enum Place<'a> {
    /// The folder itself by another path, another volume's, or a volume of a pod's that is of no CSI driver.
    OwnOrAnothers,
    /// What a pod has of a volume of a CSI driver's; or a bind of a subPath, of a volume of any kind.
    OfPod { uid: &'a str, spec: &'a str, is_bind: bool },
    /// An operator's, or another program's.
    Elsewhere,
}

/// Pure.
fn place<'a>(target: &Path, pods: &Path, point: &'a Path) -> Place<'a> {
    let (target, text) = (target.to_string_lossy(), point.to_string_lossy());
    let own = target.find(PLUGINS).map_or(&*target, |at| &target[at..]);
    if text.contains(own) || is_once_a_node(point) {
        return Place::OwnOrAnothers;
    }
    let names: Option<Vec<&str>> =
        point.strip_prefix(pods).ok().and_then(|inside| inside.iter().map(|n| n.to_str()).collect());
    match names.as_deref() {
        Some([uid, "volumes", paths::FOLDER, spec, ..]) => Place::OfPod { uid, spec, is_bind: false },
        Some([_, "volumes", _, _, ..]) => Place::OwnOrAnothers,
        Some([uid, sub_path::FOLDER, spec, ..]) => Place::OfPod { uid, spec, is_bind: true },
        _ => Place::Elsewhere,
    }
}

/// Whether it is where some driver mounts once a node, CSI or FlexVolume. Pure.
fn is_once_a_node(point: &Path) -> bool {
    let text = point.to_string_lossy();
    let of_flex = || point.parent().is_some_and(|folder| folder.ends_with(FlexDriver::MOUNTS));
    text.contains(OF_CSI) && text.ends_with("/globalmount") || text.contains(OF_FLEX) && of_flex()
}

/// Whether what a pod has under this name is of the device; None where no file of ours says so.
fn is_of(settings: &Settings, uid: &str, spec: &str, device: &Device) -> Option<bool> {
    let pod = PodUid::parse(uid).ok()?;
    let dir = pod_dir(settings, &pod).ok()?;
    let folder = way::folder(dir.as_fd(), &settings.paths.pod(&pod), &paths::pod_folder(spec)).ok()??;
    let data = VolData::read(folder.as_fd()).ok()??;
    data.device().map(|of_pod| of_pod == *device)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bulkhead_sys::mountinfo::parse;

    const STAGED: &str = "/r/plugins/kubernetes.io/csi/d/h/globalmount";

    fn points(text: &str, path: &str) -> Vec<String> {
        let mounts: Vec<_> = parse(text.as_bytes()).collect();
        of(&mounts, Path::new(path)).iter().map(|point| point.display().to_string()).collect()
    }

    #[test]
    fn a_file_system_is_one_by_its_device_and_root() {
        let text = "\
1 0 254:0 / / rw - ext4 /dev/vda rw
2 1 8:1 / /r/plugins/kubernetes.io/csi/d/h/globalmount rw - xfs /dev/sdb rw
3 1 8:1 / /mnt/again rw - xfs /dev/sdb rw
4 1 8:1 /part /mnt/part rw - xfs /dev/sdb rw
5 1 8:2 / /mnt/other rw - xfs /dev/sdc rw
6 1 254:0 /r/plugins/kubernetes.io/csi/d/plain/globalmount /mnt/plain rw - ext4 /dev/vda rw
";
        assert_eq!(points(text, STAGED), ["/mnt/again"]);
        // A driver that mounts nothing where it stages.
        assert_eq!(points(text, "/r/plugins/kubernetes.io/csi/d/plain/globalmount"), ["/mnt/plain"]);
        assert!(points(text, "/r/plugins/kubernetes.io/csi/d/none/globalmount").is_empty());
        assert!(points("", STAGED).is_empty());
    }

    #[test]
    fn places() {
        let of_pod = |spec, is_bind| Place::OfPod { uid: "u", spec, is_bind };
        for (point, wanted) in [
            ("/mnt/by-hand", Place::Elsewhere),
            ("/r/plugins/d/own", Place::Elsewhere),
            ("/r/pods/u/etc-hosts", Place::Elsewhere),
            ("/mnt/disk/r/plugins/kubernetes.io/csi/d/h/globalmount", Place::OwnOrAnothers),
            ("/r/plugins/kubernetes.io/csi/d/other/globalmount", Place::OwnOrAnothers),
            ("/r/pods/u/volumes/kubernetes.io~csi/pv/mount", of_pod("pv", false)),
            ("/r/pods/u/volumes/kubernetes.io~nfs/v", Place::OwnOrAnothers),
            ("/r/pods/u/volume-subpaths/pv/c/0", of_pod("pv", true)),
            ("/r/plugins/kubernetes.io/flexvolume/v/d/mounts/v", Place::OwnOrAnothers),
            ("/r/plugins/kubernetes.io/flexvolume/v/d/other/v", Place::Elsewhere),
        ] {
            for once in [STAGED, "/r/plugins/kubernetes.io/flexvolume/v/d/mounts/own"] {
                assert_eq!(place(Path::new(once), Path::new("/r/pods"), Path::new(point)), wanted, "{once}: {point}");
            }
        }
        let flex = "/r/plugins/kubernetes.io/flexvolume/v/d/mounts/own";
        let seen_elsewhere = Path::new("/mnt/disk").join(flex.trim_start_matches('/'));
        assert_eq!(place(Path::new(flex), Path::new("/r/pods"), &seen_elsewhere), Place::OwnOrAnothers);
    }
}
