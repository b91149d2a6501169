//! A volume as it was resolved: from the pod's spec, or from its claim and PersistentVolume.

use std::collections::BTreeMap;
use std::fmt;

use bulkhead_ipc::common::{FcDisk, IscsiDisk};
use bulkhead_ipc::volnetd::DiskPlace;
use k8s_openapi::api::core::v1::VolumeNodeAffinity;

/// Upstream's plugin.
pub const FC: &str = "kubernetes.io/fc";
/// The same of iSCSI.
pub const ISCSI: &str = "kubernetes.io/iscsi";
/// The same of all FlexVolume drivers, below which their volumes are mounted once a node.
pub const FLEX: &str = "kubernetes.io/flexvolume";

/// The node's name of a volume (upstream UniqueVolumeName). What is attached is listed by it in the Node's status.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UniqueName(pub String);

impl fmt::Debug for UniqueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for UniqueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// An object by namespace and name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectRef {
    pub namespace: String,
    pub name: String,
}

/// The claim that a volume was found by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// status.capacity.storage, bytes; 0 where it says nothing.
    pub capacity: i64,
}

/// Of a CSI driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CsiSource {
    pub driver: String,
    pub handle: String,
    pub fs_type: String,
    pub attributes: BTreeMap<String, String>,
    pub stage_secret: Option<ObjectRef>,
    pub publish_secret: Option<ObjectRef>,
    pub expand_secret: Option<ObjectRef>,
    /// An inline volume of the pod: not attached, not staged.
    pub ephemeral: bool,
    /// Of an in-tree kind that the driver serves.
    pub migrated: bool,
}

/// A disk behind Fibre Channel.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FcSource {
    pub wwns: Vec<String>,
    pub lun: Option<u32>,
    pub wwids: Vec<String>,
    pub fs_type: String,
}

impl FcSource {
    /// By its targets, or else by identifiers of its own (upstream getWwnsLunWwids); `None`: by neither.
    pub fn disk(&self) -> Option<FcDisk> {
        match self.lun {
            Some(lun) if !self.wwns.is_empty() => {
                Some(FcDisk { target_wwns: self.wwns.clone(), lun, wwids: Vec::new() })
            }
            _ if self.wwids.is_empty() => None,
            _ => {
                let wwids = self.wwids.iter().map(|wwid| wwid.replace(' ', "_")).collect();
                Some(FcDisk { wwids, ..FcDisk::default() })
            }
        }
    }

    /// Upstream GetVolumeName: lists as Go prints them.
    fn volume_name(&self) -> String {
        match self.lun {
            Some(lun) if !self.wwns.is_empty() => format!("[{}]:{lun}", self.wwns.join(" ")),
            _ => format!("[{}]", self.wwids.join(" ")),
        }
    }

    /// Upstream makePDNameInternal.
    fn folder(&self) -> Option<String> {
        let disk = self.disk()?;
        Some(if disk.target_wwns.is_empty() {
            disk.wwids.join("-")
        } else {
            format!("{}-lun-{}", disk.target_wwns.join("-"), disk.lun)
        })
    }
}

/// A disk of an iSCSI target.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct IscsiSource {
    /// As they are written: the target's first.
    pub portals: Vec<String>,
    pub iqn: String,
    pub lun: u32,
    pub interface: String,
    pub initiator_name: String,
    /// CHAP of discovery is wanted: nothing is discovered, but the secret is to be there.
    pub chap_discovery: bool,
    /// CHAP of sessions is wanted.
    pub chap_session: bool,
    /// With CHAP's names and passwords; its namespace is empty where it is the pod's.
    pub secret: Option<ObjectRef>,
    pub fs_type: String,
}

/// Upstream portalMounter.
fn with_port(portal: &str) -> String {
    if portal.contains(':') { portal.to_owned() } else { format!("{portal}:3260") }
}

impl IscsiSource {
    /// Without passwords (upstream createISCSIDisk). `volume`: the name of the specification.
    pub fn disk(&self, volume: &str) -> IscsiDisk {
        let portals: Vec<String> = self.portals.iter().map(|portal| with_port(portal)).collect();
        let own = || format!("{}:{volume}", portals.first().map_or("", String::as_str));
        let interface = if self.initiator_name.is_empty() { self.interface.clone() } else { own() };
        IscsiDisk {
            portals,
            iqn: self.iqn.clone(),
            lun: self.lun,
            interface,
            init_interface: self.interface.clone(),
            initiator_name: self.initiator_name.clone(),
            chap: None,
        }
    }

    /// Upstream makePDNameInternal.
    fn folder(&self, volume: &str) -> String {
        let disk = self.disk(volume);
        let first = disk.portals.first().map_or("", String::as_str);
        format!("iface-{}/{first}-{}-lun-{}", disk.interface, disk.iqn, disk.lun)
    }
}

/// Of a FlexVolume driver.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FlexSource {
    /// `vendor/driver`, or `driver` alone.
    pub driver: String,
    pub fs_type: String,
    pub options: BTreeMap<String, String>,
    /// Its namespace is empty where it is the pod's.
    pub secret: Option<ObjectRef>,
    pub can: FlexCan,
}

/// What a FlexVolume driver says it can do, as far as it makes a difference to what is done next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FlexCan {
    /// A controller attaches its volumes, and it mounts them once a node.
    pub attach: bool,
    /// It has a part in expansions.
    pub expand: bool,
    /// What is mounted has figures.
    pub measure: bool,
}

/// What makes a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    Csi(CsiSource),
    /// A folder or device of this node (PersistentVolume `local`).
    Local {
        path: String,
        fs_type: String,
    },
    /// An export of an NFS server, by an inline volume or a PersistentVolume.
    Nfs {
        server: String,
        path: String,
    },
    Fc(FcSource),
    Iscsi(IscsiSource),
    Flex(FlexSource),
    /// PersistentVolume `hostPath`; `kind` as the API writes it.
    HostPath {
        path: String,
        kind: String,
    },
}

/// A resolved volume.
#[derive(Debug, Clone, PartialEq)]
pub struct VolumeSpec {
    /// The PersistentVolume's name; of an inline volume its name in the pod.
    pub name: String,
    pub source: Source,
    /// volumeMode Block.
    pub block: bool,
    /// The pod's use of the claim.
    pub read_only: bool,
    /// Empty for an inline volume.
    pub access_modes: Vec<String>,
    pub mount_options: Vec<String>,
    pub node_affinity: Option<VolumeNodeAffinity>,
    pub claim: Option<Claim>,
    /// The PersistentVolume's size in bytes; 0 where there is none.
    pub capacity: i64,
    /// The same as the PersistentVolume writes it.
    pub capacity_text: String,
    /// Annotation `pv.beta.kubernetes.io/gid`.
    pub gid: Option<i64>,
}

impl VolumeSpec {
    /// Of an inline volume: no claim says anything of it.
    pub fn inline(name: String, source: Source) -> Self {
        VolumeSpec {
            name,
            source,
            block: false,
            read_only: false,
            access_modes: Vec::new(),
            mount_options: Vec::new(),
            node_affinity: None,
            claim: None,
            capacity: 0,
            capacity_text: String::new(),
            gid: None,
        }
    }

    /// The mode that the driver is told; an inline volume's is ReadWriteOnce.
    pub fn first_access_mode(&self) -> &str {
        self.access_modes.first().map_or("ReadWriteOnce", String::as_str)
    }

    /// Only one pod of the cluster may use it.
    pub fn is_single_pod(&self) -> bool {
        self.access_modes.iter().any(|mode| mode == "ReadWriteOncePod")
    }

    pub fn csi(&self) -> Option<&CsiSource> {
        match &self.source {
            Source::Csi(source) => Some(source),
            Source::Local { .. } | Source::HostPath { .. } | Source::Nfs { .. } => None,
            Source::Fc(_) | Source::Iscsi(_) | Source::Flex(_) => None,
        }
    }

    /// Where kubelet-volnetd has it once a node, if it is a disk that is attached, or a FlexVolume driver's that attaches.
    pub fn place(&self) -> Option<DiskPlace> {
        let (plugin, name) = match &self.source {
            Source::Fc(source) => (FC, source.folder()?),
            Source::Iscsi(source) => (ISCSI, source.folder(&self.name)),
            Source::Flex(source) if source.can.attach => (FLEX, format!("{}/{}", source.driver, self.name)),
            _ => return None,
        };
        Some(DiskPlace { plugin: plugin.to_owned(), name, block: self.block })
    }

    /// Whether the node has a part in its expansion.
    pub fn grows(&self) -> bool {
        match &self.source {
            Source::Csi(_) | Source::Local { .. } => true,
            Source::Flex(source) => source.can.expand,
            Source::Nfs { .. } | Source::HostPath { .. } | Source::Fc(_) | Source::Iscsi(_) => false,
        }
    }

    /// Whether it may become larger for a pod that has it.
    pub fn may_grow(&self) -> bool {
        self.claim.is_some() && self.grows() && !self.read_only
    }

    /// Upstream's plugin, and for metrics its driver.
    pub fn plugin(&self) -> String {
        match &self.source {
            Source::Csi(source) => format!("kubernetes.io/csi:{}", source.driver),
            Source::Local { .. } => "kubernetes.io/local-volume".to_owned(),
            Source::HostPath { .. } => "kubernetes.io/host-path".to_owned(),
            Source::Nfs { .. } => "kubernetes.io/nfs".to_owned(),
            Source::Fc(_) => FC.to_owned(),
            Source::Iscsi(_) => ISCSI.to_owned(),
            Source::Flex(source) => source.driver.clone(),
        }
    }

    /// `pod_uid`: what only one pod has is named by it.
    pub fn unique_name(&self, pod_uid: &str) -> UniqueName {
        UniqueName(match &self.source {
            Source::Csi(source) if source.ephemeral => format!("kubernetes.io/csi/{pod_uid}-{}", self.name),
            Source::Csi(source) => crate::names::unique(&source.driver, &source.handle),
            Source::Local { .. } => format!("kubernetes.io/local-volume/{}", self.name),
            Source::HostPath { .. } => format!("kubernetes.io/host-path/{pod_uid}-{}", self.name),
            Source::Nfs { .. } => format!("kubernetes.io/nfs/{pod_uid}-{}", self.name),
            Source::Fc(source) => format!("{FC}/{}", source.volume_name()),
            // As upstream, pods with volumes of their own have one of such a name together.
            Source::Flex(source) if source.can.attach => format!("{}/{}", source.driver, self.name),
            // Upstream GetUniqueVolumeNameFromSpecWithPod, of a plugin that does not attach.
            Source::Flex(source) => format!("{}/{pod_uid}-{}", source.driver, self.name),
            Source::Iscsi(source) => {
                let first = source.portals.first().map_or("", String::as_str);
                format!("{ISCSI}/{first}:{}:{}", source.iqn, source.lun)
            }
        })
    }
}
