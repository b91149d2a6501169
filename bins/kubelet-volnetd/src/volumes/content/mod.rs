//! Volumes whose files come over the API: configMap, secret, projected, downwardAPI. An emptyDir of ours underneath
//! (upstream's wrapper: on disk for configMap, else a tmpfs), the atomic writer on top.
//!
//! Two verbs: setting up makes and mounts the directory, putting replaces all files at once, any number of times. No
//! journal for the files: the disk shows at each moment which set is in force and what is a leftover.

mod files;
mod plan;
mod write;

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use bulkhead_ipc::MAX_CONTENT_BYTES;
use bulkhead_sys::memfd;
use bulkhead_sys::open;
use bulkhead_types::{PodUid, VolumeName};
use prost::Message;

pub use files::{Content, FilePath};
pub use write::WriteError;

use super::empty_dir::{self, Medium};
use super::{VolumeError, pod_dir};
use crate::node::Settings;
use crate::validate::{self, InvalidRequest};

/// Mount points of other volumes inside one.
const MAX_MOUNT_POINTS: usize = 256;

/// Which kind of volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Plugin {
    ConfigMap,
    Secret,
    Projected,
    DownwardApi,
}

impl Plugin {
    pub const ALL: [Plugin; 4] = [Plugin::ConfigMap, Plugin::Secret, Plugin::Projected, Plugin::DownwardApi];

    /// Upstream's name, not escaped.
    pub const fn name(self) -> &'static str {
        match self {
            Plugin::ConfigMap => "kubernetes.io/configmap",
            Plugin::Secret => "kubernetes.io/secret",
            Plugin::Projected => "kubernetes.io/projected",
            Plugin::DownwardApi => "kubernetes.io/downward-api",
        }
    }

    /// Its files never reach a disk.
    pub const fn in_memory(self) -> bool {
        !matches!(self, Plugin::ConfigMap)
    }

    pub fn from_wire(value: i32) -> Result<Self, InvalidRequest> {
        use bulkhead_ipc::volnetd::ContentPlugin as Wire;
        match Wire::try_from(value) {
            Ok(Wire::ConfigMap) => Ok(Plugin::ConfigMap),
            Ok(Wire::Secret) => Ok(Plugin::Secret),
            Ok(Wire::Projected) => Ok(Plugin::Projected),
            Ok(Wire::DownwardApi) => Ok(Plugin::DownwardApi),
            Ok(Wire::Unspecified) | Err(_) => {
                Err(validate::bad("plugin", &value.to_string(), "CONFIG_MAP, SECRET, PROJECTED or DOWNWARD_API"))
            }
        }
    }
}

/// Name of the marker's folder below `plugins/kubernetes.io~empty-dir`.
pub fn marker(volume: &str) -> String {
    format!("wrapped_{volume}")
}

/// Where other volumes are mounted inside one. Upstream makes them with mode 0755 (`MakeNestedMountpoints`).
pub fn mount_points(wire: &[String]) -> Result<Vec<FilePath>, InvalidRequest> {
    if wire.len() > MAX_MOUNT_POINTS {
        return Err(InvalidRequest::TooMany { field: "mount_points", count: wire.len(), max: MAX_MOUNT_POINTS });
    }
    wire.iter().map(|path| FilePath::parse("mount_points", path)).collect()
}

/// Makes the volume's directory, mounts its tmpfs where the kind has one and `may_mount` allows it. Asked twice it changes
/// nothing.
pub fn set_up(
    settings: &Settings,
    pod: &PodUid,
    volume: &VolumeName,
    plugin: Plugin,
    size_limit: Option<u64>,
    mount_points: &[FilePath],
) -> Result<PathBuf, VolumeError> {
    let medium = if plugin.in_memory() { Medium::Memory { size_limit } } else { Medium::Disk };
    let place = empty_dir::Place { plugin: plugin.name(), volume, marker: &marker(volume.as_str()) };
    let path = empty_dir::set_up(settings, pod, place, medium, None)?;
    if !mount_points.is_empty() {
        let dir = open_volume(settings, pod, volume, plugin)?;
        for inside in mount_points {
            open::create_dirs_beneath(dir.as_fd(), inside.as_str(), 0o755).map_err(|source| VolumeError::Open {
                pod: pod.clone(),
                volume: volume.clone(),
                source,
            })?;
        }
    }
    Ok(path)
}

/// Takes the files out of a sealed memfd.
///
/// # Errors
/// Not sealed, too large, no `VolumeContent`, or files that cannot be.
pub fn receive(memfd: &OwnedFd) -> Result<Content, ReceiveError> {
    let bytes = memfd::read_sealed(memfd, MAX_CONTENT_BYTES as u64)?;
    let wire = bulkhead_ipc::volnetd::VolumeContent::decode(&*bytes).map_err(ReceiveError::Decode)?;
    Ok(Content::from_wire(wire)?)
}

/// Why a memfd is no content.
#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    #[error("failed to take over the volume's files")]
    Memfd(#[from] memfd::MemfdError),
    /// The decoder names fields and never their values, which may be secret.
    #[error("the memfd holds no VolumeContent")]
    Decode(#[source] prost::DecodeError),
    #[error(transparent)]
    Invalid(#[from] InvalidRequest),
}

/// Replaces all files of a volume that was set up. False: they were there already.
pub fn put(
    settings: &Settings,
    pod: &PodUid,
    volume: &VolumeName,
    plugin: Plugin,
    content: &Content,
) -> Result<bool, VolumeError> {
    let dir = open_volume(settings, pod, volume, plugin)?;
    write::put(dir.as_fd(), content, new_set_name).map_err(|source| VolumeError::Content {
        pod: pod.clone(),
        volume: volume.clone(),
        source,
    })
}

/// Why the files of a volume were not replaced.
#[derive(Debug, thiserror::Error)]
pub enum PutContentError {
    #[error(transparent)]
    Receive(#[from] ReceiveError),
    #[error(transparent)]
    Volume(#[from] VolumeError),
}

fn open_volume(settings: &Settings, pod: &PodUid, volume: &VolumeName, plugin: Plugin) -> Result<OwnedFd, VolumeError> {
    super::volume_root(pod_dir(settings, pod)?.as_fd(), pod, volume, plugin.name())
}

/// `..<UTC time>.<random digits>`, as upstream names it.
fn new_set_name() -> String {
    // Without random bits the time alone tells sets apart; a name that is taken is not used.
    let mut random = [0; 4];
    let _ = getrandom::fill(&mut random);
    let time = jiff::Timestamp::now().strftime("..%Y_%m_%d_%H_%M_%S").to_string();
    format!("{time}.{}", u32::from_le_bytes(random))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_named_as_upstream_names_them() {
        let name = new_set_name();
        assert!(plan::is_set_name(&name), "{name}");
        let (time, random) = name.rsplit_once('.').unwrap();
        assert_eq!((time.len(), time.matches('_').count()), ("..2026_11_21_17_05_00".len(), 5), "{name}");
        assert!(random.parse::<u32>().is_ok(), "{name}");
    }

    #[test]
    fn mount_points_stay_inside() {
        assert_eq!(mount_points(&["a/b".into()]).unwrap()[0].as_str(), "a/b");
        for bad in ["..", "/a", "..data", ""] {
            assert!(mount_points(&[bad.into()]).is_err(), "{bad}");
        }
        assert!(mount_points(&vec!["a".into(); MAX_MOUNT_POINTS + 1]).is_err());
    }
}
