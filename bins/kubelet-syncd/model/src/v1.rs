//! A pod as it is kept: upstream's core/v1 Pod, with room for what is set and not for all that could be.
//!
//! The generated types have every optional part in place, so a volume takes 3208 bytes, whatever its kind, and a container
//! 2144.
//! These here have boxes there; all that lies in them are the generated types, and so are metadata and status.
//! What is read and written is the same, to the order of fields.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    AWSElasticBlockStoreVolumeSource, Affinity, AzureDiskVolumeSource, AzureFileVolumeSource, CSIVolumeSource,
    CephFSVolumeSource, CinderVolumeSource, ConfigMapVolumeSource, ContainerPort, ContainerResizePolicy,
    ContainerRestartRule, DownwardAPIVolumeSource, EmptyDirVolumeSource, EnvFromSource, EnvVar, EphemeralContainer,
    EphemeralVolumeSource, FCVolumeSource, FlexVolumeSource, FlockerVolumeSource, GCEPersistentDiskVolumeSource,
    GitRepoVolumeSource, GlusterfsVolumeSource, HostAlias, HostPathVolumeSource, ISCSIVolumeSource, ImageVolumeSource,
    Lifecycle, LocalObjectReference, NFSVolumeSource, PersistentVolumeClaimVolumeSource,
    PhotonPersistentDiskVolumeSource, PodDNSConfig, PodOS, PodReadinessGate, PodResourceClaim, PodSchedulingGate,
    PodSchedulingGroup, PodSecurityContext, PodStatus, PortworxVolumeSource, Probe, ProjectedVolumeSource,
    QuobyteVolumeSource, RBDVolumeSource, ResourceRequirements, ScaleIOVolumeSource, SecretVolumeSource,
    SecurityContext, StorageOSVolumeSource, Toleration, TopologySpreadConstraint, VolumeDevice, VolumeMount,
    VsphereVirtualDiskVolumeSource,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::{Metadata, NamespaceResourceScope, Resource};
use serde::de::{Deserializer, Error as _, Unexpected};
use serde::{Deserialize, Serialize};

/// A pod, with the fields of upstream's `Pod`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Pod {
    pub metadata: ObjectMeta,
    pub spec: Option<PodSpec>,
    pub status: Option<PodStatus>,
}

impl Resource for Pod {
    const API_VERSION: &'static str = "v1";
    const GROUP: &'static str = "";
    const KIND: &'static str = "Pod";
    const VERSION: &'static str = "v1";
    const URL_PATH_SEGMENT: &'static str = "pods";
    type Scope = NamespaceResourceScope;
}

impl Metadata for Pod {
    type Ty = ObjectMeta;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl Serialize for Pod {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Written<'a> {
            api_version: &'static str,
            kind: &'static str,
            metadata: &'a ObjectMeta,
            #[serde(skip_serializing_if = "Option::is_none")]
            spec: &'a Option<PodSpec>,
            #[serde(skip_serializing_if = "Option::is_none")]
            status: &'a Option<PodStatus>,
        }
        let Pod { metadata, spec, status } = self;
        Written { api_version: Self::API_VERSION, kind: Self::KIND, metadata, spec, status }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Pod {
    /// An `apiVersion` or `kind` that is there must be a pod's.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename = "Pod", rename_all = "camelCase")]
        struct Read {
            api_version: Option<String>,
            kind: Option<String>,
            #[serde(default, deserialize_with = "or_default")]
            metadata: ObjectMeta,
            spec: Option<PodSpec>,
            status: Option<PodStatus>,
        }
        let Read { api_version, kind, metadata, spec, status } = Read::deserialize(deserializer)?;
        for (is, must) in [(api_version, Pod::API_VERSION), (kind, Pod::KIND)] {
            if let Some(other) = is.filter(|is| is != must) {
                return Err(D::Error::invalid_value(Unexpected::Str(&other), &must));
            }
        }
        Ok(Pod { metadata, spec, status })
    }
}

/// Null is what is not there, as in all of the API.
fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(deserializer: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// What is wanted of a pod, with the fields of upstream's `PodSpec`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodSpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active_deadline_seconds: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Box<Affinity>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub automount_service_account_token: Option<bool>,
    #[serde(deserialize_with = "or_default")]
    pub containers: Vec<Container>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dns_config: Option<Box<PodDNSConfig>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dns_policy: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enable_service_links: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ephemeral_containers: Option<Vec<EphemeralContainer>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_aliases: Option<Vec<HostAlias>>,
    #[serde(rename = "hostIPC", skip_serializing_if = "Option::is_none")]
    pub host_ipc: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_network: Option<bool>,
    #[serde(rename = "hostPID", skip_serializing_if = "Option::is_none")]
    pub host_pid: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_users: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname_override: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_pull_secrets: Option<Vec<LocalObjectReference>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub init_containers: Option<Vec<Container>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<BTreeMap<String, String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub os: Option<PodOS>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overhead: Option<BTreeMap<String, Quantity>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preemption_policy: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub readiness_gates: Option<Vec<PodReadinessGate>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_claims: Option<Vec<PodResourceClaim>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restart_policy: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime_class_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduler_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduling_gates: Option<Vec<PodSchedulingGate>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduling_group: Option<PodSchedulingGroup>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub security_context: Option<PodSecurityContext>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_account: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_account_name: Option<String>,
    #[serde(rename = "setHostnameAsFQDN", skip_serializing_if = "Option::is_none")]
    pub set_hostname_as_fqdn: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share_process_namespace: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subdomain: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub termination_grace_period_seconds: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tolerations: Option<Vec<Toleration>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology_spread_constraints: Option<Vec<TopologySpreadConstraint>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volumes: Option<Vec<Volume>>,
}

/// A container of any kind but the ephemeral, with the fields of upstream's `Container`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Container {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub args: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub env: Option<Vec<EnvVar>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub env_from: Option<Vec<EnvFromSource>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lifecycle: Option<Box<Lifecycle>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub liveness_probe: Option<Box<Probe>>,
    #[serde(deserialize_with = "or_default")]
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ports: Option<Vec<ContainerPort>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub readiness_probe: Option<Box<Probe>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resize_policy: Option<Vec<ContainerResizePolicy>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restart_policy: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restart_policy_rules: Option<Vec<ContainerRestartRule>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub security_context: Option<Box<SecurityContext>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub startup_probe: Option<Box<Probe>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdin: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdin_once: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub termination_message_path: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub termination_message_policy: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tty: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_devices: Option<Vec<VolumeDevice>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_mounts: Option<Vec<VolumeMount>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub working_dir: Option<String>,
}

/// A volume of a pod, with the fields of upstream's `Volume`: of its kinds one is set, and only that one takes room.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Volume {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aws_elastic_block_store: Option<Box<AWSElasticBlockStoreVolumeSource>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub azure_disk: Option<Box<AzureDiskVolumeSource>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub azure_file: Option<Box<AzureFileVolumeSource>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cephfs: Option<Box<CephFSVolumeSource>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cinder: Option<Box<CinderVolumeSource>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_map: Option<Box<ConfigMapVolumeSource>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub csi: Option<Box<CSIVolumeSource>>,
    #[serde(rename = "downwardAPI", skip_serializing_if = "Option::is_none")]
    pub downward_api: Option<Box<DownwardAPIVolumeSource>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub empty_dir: Option<Box<EmptyDirVolumeSource>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ephemeral: Option<Box<EphemeralVolumeSource>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fc: Option<Box<FCVolumeSource>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flex_volume: Option<Box<FlexVolumeSource>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flocker: Option<Box<FlockerVolumeSource>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gce_persistent_disk: Option<Box<GCEPersistentDiskVolumeSource>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub git_repo: Option<Box<GitRepoVolumeSource>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub glusterfs: Option<Box<GlusterfsVolumeSource>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_path: Option<Box<HostPathVolumeSource>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<Box<ImageVolumeSource>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iscsi: Option<Box<ISCSIVolumeSource>>,
    #[serde(deserialize_with = "or_default")]
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nfs: Option<Box<NFSVolumeSource>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim: Option<Box<PersistentVolumeClaimVolumeSource>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub photon_persistent_disk: Option<Box<PhotonPersistentDiskVolumeSource>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub portworx_volume: Option<Box<PortworxVolumeSource>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub projected: Option<Box<ProjectedVolumeSource>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quobyte: Option<Box<QuobyteVolumeSource>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rbd: Option<Box<RBDVolumeSource>>,
    #[serde(rename = "scaleIO", skip_serializing_if = "Option::is_none")]
    pub scale_io: Option<Box<ScaleIOVolumeSource>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<Box<SecretVolumeSource>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storageos: Option<Box<StorageOSVolumeSource>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vsphere_volume: Option<Box<VsphereVirtualDiskVolumeSource>>,
}

#[cfg(test)]
#[path = "v1_tests.rs"]
mod tests;
