//! The requests to a driver's node service (upstream `pkg/volume/csi/csi_client.go`). Secrets are put in last, by who calls.

use std::collections::BTreeMap;

use bulkhead_csi::v1;
use bulkhead_csi::v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};

use super::policy::{Capabilities, access_mode};
use crate::spec::{CsiSource, VolumeSpec};

/// Names and values of a context or of secrets.
pub type Pairs = BTreeMap<String, String>;

/// Keys that a driver with podInfoOnMount gets.
const POD_NAME: &str = "csi.storage.k8s.io/pod.name";
const POD_NAMESPACE: &str = "csi.storage.k8s.io/pod.namespace";
const POD_UID: &str = "csi.storage.k8s.io/pod.uid";
const SERVICE_ACCOUNT: &str = "csi.storage.k8s.io/serviceAccount.name";
const EPHEMERAL: &str = "csi.storage.k8s.io/ephemeral";
/// Key of the tokens, in the context or among the secrets.
pub const TOKENS: &str = "csi.storage.k8s.io/serviceAccount.tokens";

/// The pod as a driver is told it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodInfo {
    pub name: String,
    pub namespace: String,
    pub uid: String,
    pub service_account: String,
}

impl PodInfo {
    /// What is added to the volume's context. `ephemeral`: the volume is an inline one.
    pub fn context(&self, ephemeral: bool) -> Pairs {
        [
            (POD_NAME, self.name.clone()),
            (POD_NAMESPACE, self.namespace.clone()),
            (POD_UID, self.uid.clone()),
            (SERVICE_ACCOUNT, self.service_account.clone()),
            (EPHEMERAL, ephemeral.to_string()),
        ]
        .map(|(key, value)| (key.to_owned(), value))
        .into()
    }
}

/// The option of mount that gives all of a file system one SELinux label. The quotes are for the comma in it.
fn context_option(label: &str) -> Option<String> {
    (!label.is_empty()).then(|| format!("context={label:?}"))
}

/// `mount_group`: the pod's fsGroup, where the driver takes it. `label`: the SELinux label of all files; empty: none.
fn capability(
    spec: &VolumeSpec,
    source: &CsiSource,
    can: Capabilities,
    mount_group: Option<i64>,
    label: &str,
) -> v1::VolumeCapability {
    let access_type = if spec.block {
        AccessType::Block(BlockVolume {})
    } else {
        AccessType::Mount(MountVolume {
            fs_type: source.fs_type.clone(),
            mount_flags: if source.ephemeral { &[] } else { spec.mount_options.as_slice() }
                .iter()
                .cloned()
                .chain(context_option(label))
                .collect(),
            volume_mount_group: mount_group
                .filter(|_| can.mount_group)
                .map(|group| group.to_string())
                .unwrap_or_default(),
        })
    };
    let mode = access_mode(spec.first_access_mode(), can.single_node_multi_writer);
    v1::VolumeCapability { access_mode: Some(AccessMode { mode: mode.into() }), access_type: Some(access_type) }
}

/// NodeStageVolume.
pub fn stage(
    spec: &VolumeSpec,
    source: &CsiSource,
    can: Capabilities,
    mount_group: Option<i64>,
    path: String,
    publish_context: Pairs,
    label: &str,
) -> v1::NodeStageVolumeRequest {
    v1::NodeStageVolumeRequest {
        volume_id: source.handle.clone(),
        publish_context,
        staging_target_path: path,
        volume_capability: Some(capability(spec, source, can, mount_group, label)),
        secrets: Pairs::new(),
        volume_context: source.attributes.clone(),
    }
}

/// What a publication needs beside the volume.
#[derive(Debug, Clone, Default)]
pub struct Publication {
    /// Empty where nothing is staged.
    pub staging_path: String,
    pub target_path: String,
    pub publish_context: Pairs,
    pub mount_group: Option<i64>,
    /// SELinux label of all files; empty: none.
    pub label: String,
    /// Of the pod, where the driver wants to know it; of tokens, where they go there.
    pub extra_context: Pairs,
}

/// NodePublishVolume.
pub fn publish(
    spec: &VolumeSpec,
    source: &CsiSource,
    can: Capabilities,
    publication: Publication,
) -> v1::NodePublishVolumeRequest {
    let mut volume_context = source.attributes.clone();
    volume_context.extend(publication.extra_context);
    v1::NodePublishVolumeRequest {
        volume_id: source.handle.clone(),
        publish_context: publication.publish_context,
        staging_target_path: publication.staging_path,
        target_path: publication.target_path,
        volume_capability: Some(capability(spec, source, can, publication.mount_group, &publication.label)),
        readonly: spec.read_only,
        secrets: Pairs::new(),
        volume_context,
    }
}

/// NodeExpandVolume. `path`: where the volume is published, or staged; `bytes`: the new size.
pub fn expand(
    spec: &VolumeSpec,
    source: &CsiSource,
    can: Capabilities,
    path: String,
    staging_path: String,
    bytes: i64,
) -> v1::NodeExpandVolumeRequest {
    v1::NodeExpandVolumeRequest {
        volume_id: source.handle.clone(),
        volume_path: path,
        capacity_range: Some(v1::CapacityRange { required_bytes: bytes, limit_bytes: 0 }),
        staging_target_path: staging_path,
        volume_capability: Some(capability(spec, source, can, None, "")),
        secrets: Pairs::new(),
    }
}

#[cfg(test)]
#[path = "requests_tests.rs"]
mod tests;
