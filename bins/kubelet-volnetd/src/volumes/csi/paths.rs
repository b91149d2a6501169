//! Names of drivers and volumes, and where upstream keeps what concerns them (`pkg/volume/csi`): all paths are built here, of
//! names that have been checked, and no name can lead out of its folder.

use std::fmt;
use std::path::{Path, PathBuf};

use bulkhead_ipc::volnetd as wire;
use bulkhead_types::{InstancePaths, PodUid, VolumeName, is_dns1123_subdomain};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::validate::{self, InvalidRequest, bad};

/// The plugin's name; its folders are `plugins/<name>` and `<name, escaped>` below those of pods.
pub const PLUGIN: &str = "kubernetes.io/csi";
/// Escaped.
pub const FOLDER: &str = "kubernetes.io~csi";

/// Below `plugins/kubernetes.io/csi`: what concerns block volumes. No driver can be named so.
pub const BLOCK: &str = "volumeDevices";

const STAGING: &str = "staging";
const PUBLISH: &str = "publish";

/// The driver's folder of a file system, and where a pod's is mounted.
const GLOBAL: &str = "globalmount";
const MOUNT: &str = "mount";

/// As the CSI specification bounds a driver's name, in bytes.
const MAX_DRIVER: usize = 63;
/// Bytes; the specification has 128, upstream none.
const MAX_HANDLE: usize = 4096;

/// A driver's name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Driver(Box<str>);

impl Driver {
    /// As the API server checks it (ValidateCSIDriverName).
    ///
    /// # Errors
    /// What is allowed.
    pub fn parse(text: &str) -> Result<Self, InvalidRequest> {
        let ok = text.len() <= MAX_DRIVER && is_dns1123_subdomain(&text.to_ascii_lowercase()) && text != BLOCK;
        if ok {
            Ok(Driver(text.into()))
        } else {
            let allowed = "1 to 63 letters, digits, '-' and '.', each part between dots beginning and ending with a letter or digit, but for volumeDevices";
            Err(bad("driver", text, allowed))
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for Driver {
    type Error = InvalidRequest;
    fn try_from(text: String) -> Result<Self, InvalidRequest> {
        Self::parse(&text)
    }
}

impl From<Driver> for String {
    fn from(driver: Driver) -> String {
        driver.0.into()
    }
}

/// What a driver calls a volume. It is never a path: its SHA-256 is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Handle(Box<str>);

impl Handle {
    /// # Errors
    /// What is allowed.
    pub fn parse(text: &str) -> Result<Self, InvalidRequest> {
        if text.is_empty() || text.len() > MAX_HANDLE || text.contains('\0') {
            return Err(bad("volume_handle", text, "1 to 4096 bytes without NUL"));
        }
        Ok(Handle(text.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Name of the folder.
    pub fn hash(&self) -> String {
        hash(self.as_str())
    }
}

impl TryFrom<String> for Handle {
    type Error = InvalidRequest;
    fn try_from(text: String) -> Result<Self, InvalidRequest> {
        Self::parse(&text)
    }
}

impl From<Handle> for String {
    fn from(handle: Handle) -> String {
        handle.0.into()
    }
}

/// SHA-256, in hexadecimal digits.
pub fn hash(text: &str) -> String {
    Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Whose volume it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    pub driver: Driver,
    pub handle: Handle,
}

/// What is staged once a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Staged {
    pub device: Device,
    /// Of a block volume, whose folders it names.
    pub block: Option<VolumeName>,
}

/// What is staged, and of which `vol_data.json` does not say whose it is: known by its folder alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Nameless {
    /// `hash` names the folder below the driver's.
    FileSystem {
        driver: Driver,
        hash: String,
    },
    Block(VolumeName),
}

impl Nameless {
    /// # Errors
    /// A name that is none.
    pub fn from_wire(wire: Option<&wire::CsiDevice>, folder: &str) -> Result<Self, InvalidRequest> {
        let wire = wire.ok_or(InvalidRequest::Missing { field: "device" })?;
        if !wire.volume_handle.is_empty() {
            return Err(bad("volume_handle", &wire.volume_handle, "empty where a folder is named"));
        }
        if wire.block {
            return Ok(Nameless::Block(validate::volume(&wire.spec_name)?));
        }
        if !is_hash(folder) {
            return Err(bad("folder", folder, "64 hexadecimal digits"));
        }
        Ok(Nameless::FileSystem { driver: Driver::parse(&wire.driver)?, hash: folder.to_owned() })
    }

    /// Of a block volume.
    pub fn block(&self) -> Option<&VolumeName> {
        match self {
            Nameless::FileSystem { .. } => None,
            Nameless::Block(spec) => Some(spec),
        }
    }

    /// As [`Staged::data_folder`].
    pub fn data_folder(&self) -> PathBuf {
        match self {
            Nameless::FileSystem { driver, hash } => Path::new(driver.as_str()).join(hash),
            Nameless::Block(spec) => block_data(spec),
        }
    }

    /// As [`Staged::target`].
    pub fn target(&self) -> PathBuf {
        match self {
            Nameless::FileSystem { .. } => self.data_folder().join(GLOBAL),
            Nameless::Block(spec) => staging(spec),
        }
    }

    /// In words.
    pub fn what(&self) -> String {
        match self {
            Nameless::FileSystem { driver, hash } => format!("the volume in the folder {hash} of driver {driver}"),
            Nameless::Block(spec) => format!("the block volume {spec} of an unknown driver"),
        }
    }
}

/// Whether it is the name of a folder as [`Handle::hash`] makes them.
pub fn is_hash(name: &str) -> bool {
    name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// What is published to one pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Published {
    pub pod: PodUid,
    /// Name of the PersistentVolume, or of the inline volume.
    pub spec: VolumeName,
    pub block: bool,
    /// None: `vol_data.json` cannot be read, and so nobody knows.
    pub device: Option<Device>,
}

fn device(wire: &wire::CsiDevice) -> Result<Device, InvalidRequest> {
    Ok(Device { driver: Driver::parse(&wire.driver)?, handle: Handle::parse(&wire.volume_handle)? })
}

impl Staged {
    /// # Errors
    /// A name that is none.
    pub fn from_wire(wire: Option<&wire::CsiDevice>) -> Result<Self, InvalidRequest> {
        let wire = wire.ok_or(InvalidRequest::Missing { field: "device" })?;
        let block = wire.block.then(|| validate::volume(&wire.spec_name)).transpose()?;
        Ok(Staged { device: device(wire)?, block })
    }

    /// Below `plugins/kubernetes.io/csi`: the folder that holds `vol_data.json`.
    pub fn data_folder(&self) -> PathBuf {
        match &self.block {
            None => Path::new(self.device.driver.as_str()).join(self.device.handle.hash()),
            Some(spec) => block_data(spec),
        }
    }

    /// The same: where the driver stages it.
    pub fn target(&self) -> PathBuf {
        match &self.block {
            None => self.data_folder().join(GLOBAL),
            Some(spec) => staging(spec),
        }
    }

    /// In words.
    pub fn what(&self) -> String {
        match &self.block {
            None => format!("the volume {} of driver {}", shortened(self.device.handle.as_str()), self.device.driver),
            Some(spec) => format!("the block volume {spec} of driver {}", self.device.driver),
        }
    }
}

impl Published {
    /// # Errors
    /// A name that is none. Driver and handle may both be empty where `may_be_unknown`.
    pub fn from_wire(pod: &str, wire: Option<&wire::CsiDevice>, may_be_unknown: bool) -> Result<Self, InvalidRequest> {
        let wire = wire.ok_or(InvalidRequest::Missing { field: "device" })?;
        let is_unknown = may_be_unknown && wire.driver.is_empty() && wire.volume_handle.is_empty();
        Ok(Published {
            pod: validate::pod_uid(pod)?,
            spec: validate::volume(&wire.spec_name)?,
            block: wire.block,
            device: if is_unknown { None } else { Some(device(wire)?) },
        })
    }

    /// What has to be staged first.
    pub fn staged(&self) -> Option<Staged> {
        let device = self.device.clone()?;
        Some(Staged { device, block: self.block.then(|| self.spec.clone()) })
    }

    /// In words.
    pub fn what(&self) -> String {
        let kind = if self.block { "block volume" } else { "volume" };
        format!("{kind} {} of pod {}", self.spec, self.pod)
    }
}

/// The first characters of what may be long.
pub fn shortened(text: &str) -> String {
    match text.char_indices().nth(64) {
        Some((at, _)) => format!("{}...", text.get(..at).unwrap_or_default()),
        None => text.to_owned(),
    }
}

// Below `plugins/kubernetes.io/csi`, of block volumes.

/// The folder of `vol_data.json`.
pub fn block_data(spec: &VolumeName) -> PathBuf {
    Path::new(BLOCK).join(spec.as_str()).join("data")
}

pub fn staging(spec: &VolumeName) -> PathBuf {
    Path::new(BLOCK).join(STAGING).join(spec.as_str())
}

/// Of all pods.
pub fn publish(spec: &str) -> PathBuf {
    Path::new(BLOCK).join(PUBLISH).join(spec)
}

/// The folder in which each pod's device is bound.
pub fn map(spec: &str) -> PathBuf {
    Path::new(BLOCK).join(spec).join("dev")
}

/// Folders of [`BLOCK`] that are no volume's.
pub const NO_VOLUMES: [&str; 2] = [STAGING, PUBLISH];

// Below the folder of a pod.

/// The folder that holds `vol_data.json` of a volume with a file system.
pub fn pod_folder(spec: &str) -> PathBuf {
    Path::new("volumes").join(FOLDER).join(spec)
}

/// Where a driver publishes it.
pub fn pod_mount(spec: &str) -> PathBuf {
    pod_folder(spec).join(MOUNT)
}

/// The folder of links to block volumes.
pub fn pod_links() -> PathBuf {
    Path::new("volumeDevices").join(FOLDER)
}

/// `plugins/kubernetes.io/csi`, absolute.
pub fn base(paths: &InstancePaths) -> PathBuf {
    paths.root_dir.join("plugins").join(PLUGIN)
}

/// Where the driver publishes it to a pod, absolute. It is told this by the root directory's written name
/// ([`Settings::told`](crate::node::Settings::told)).
pub fn target(paths: &InstancePaths, published: &Published) -> PathBuf {
    if published.block {
        base(paths).join(publish(published.spec.as_str())).join(published.pod.as_str())
    } else {
        paths.pod(&published.pod).join(pod_mount(published.spec.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_that_lead_somewhere_are_none() {
        for bad in ["", ".", "..", "a/b", "../x", "/", "a\nb", "a..b", "-a", "a_b", "volumeDevices", &"x".repeat(64)] {
            assert!(Driver::parse(bad).is_err(), "{bad:?}");
        }
        for good in ["hostpath.csi.k8s.io", "Upper.Case", "pv", &"x".repeat(63)] {
            assert_eq!(Driver::parse(good).unwrap().as_str(), good);
        }
        for bad in ["", "a\0b", &"x".repeat(4097)] {
            assert!(Handle::parse(bad).is_err());
        }
        for good in ["..", "/", "a\nb", "../../etc", &"x".repeat(4096)] {
            assert_eq!(Handle::parse(good).unwrap().hash().len(), 64);
        }
    }

    #[test]
    fn paths_are_upstreams() {
        let wire = |block| wire::CsiDevice {
            driver: "hostpath.csi.k8s.io".into(),
            volume_handle: "8afac6de-e688-11f1-8eba-5646475931de".into(),
            block,
            spec_name: "pvc-1".into(),
        };
        let staged = Staged::from_wire(Some(&wire(false))).unwrap();
        // Recorded of upstream's kubelet.
        let folder = "hostpath.csi.k8s.io/0ba48fb370beb8b5d5f50bf64ad35bce2a422e5bc530ee39d55bfeeda6e88618";
        assert_eq!(staged.data_folder(), Path::new(folder));
        assert_eq!(staged.target(), Path::new(folder).join("globalmount"));
        let staged = Staged::from_wire(Some(&wire(true))).unwrap();
        assert_eq!(staged.data_folder(), Path::new("volumeDevices/pvc-1/data"));
        assert_eq!(staged.target(), Path::new("volumeDevices/staging/pvc-1"));
        let paths = InstancePaths { root_dir: "/r".into(), run_dir: "/x".into(), pod_logs_dir: "/x".into() };
        let of = |block| target(&paths, &Published::from_wire("u", Some(&wire(block)), false).unwrap());
        assert_eq!(of(false), Path::new("/r/pods/u/volumes/kubernetes.io~csi/pvc-1/mount"));
        assert_eq!(of(true), Path::new("/r/plugins/kubernetes.io/csi/volumeDevices/publish/pvc-1/u"));
        let unknown = wire::CsiDevice { spec_name: "pvc-1".into(), ..Default::default() };
        assert!(Published::from_wire("u", Some(&unknown), false).is_err());
        assert_eq!(Published::from_wire("u", Some(&unknown), true).unwrap().device, None);
    }

    proptest! {
        #[test]
        fn no_path_leaves_its_folder(driver in ".{0,70}", handle in ".{0,80}", spec in "[a-z./\\n\\x00-]{0,20}", block in any::<bool>()) {
            let wire = wire::CsiDevice { driver, volume_handle: handle, block, spec_name: spec };
            if let Ok(staged) = Staged::from_wire(Some(&wire)) {
                for path in [staged.data_folder(), staged.target()] {
                    prop_assert!(path.components().all(|c| matches!(c, std::path::Component::Normal(_))));
                    prop_assert_eq!(path.components().count(), 3 - usize::from(!block && path == staged.data_folder()));
                }
            }
        }
    }
}
