//! A pod as it is kept: upstream's core/v1 Pod, with room for what is set and not for all that could be.
//!
//! The generated types have every optional part in place, so a volume takes 3208 bytes, whatever its kind, and a container
//! 2144.
//! Here they are boxed. What lies in the boxes, metadata and status are the generated types.
//! What is read and written is the same, to the order of fields and the words of errors.
//! Only a field that a JSON text has twice is refused here, where for the generated types the last one counts; of a
//! `serde_json::Value`, as [`crate::decode`] reads one, no field can be there twice.

use std::collections::BTreeMap;
use std::fmt;

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
use serde::de::{Deserializer, Error as _, MapAccess, Unexpected, Visitor};
use serde::{Deserialize, Serialize, Serializer, forward_to_deserialize_any};

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
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
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
        #[serde(rename = "Pod", expecting = "Pod", rename_all = "camelCase")]
        struct Read {
            #[serde(default, deserialize_with = "text")]
            api_version: Option<String>,
            #[serde(default, deserialize_with = "text")]
            kind: Option<String>,
            #[serde(default, deserialize_with = "or_default")]
            metadata: ObjectMeta,
            spec: Option<PodSpec>,
            status: Option<PodStatus>,
        }
        let Read { api_version, kind, metadata, spec, status } = Read::deserialize(OfObject(deserializer))?;
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

/// A text that is there is no null.
fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    String::deserialize(deserializer).map(Some)
}

/// Gives a structure that serde has derived an object, and nothing else: it would take a list as well, its items for the fields in
/// their order, and as many as there are.
struct OfObject<T>(T);

impl<'de, D: Deserializer<'de>> Deserializer<'de> for OfObject<D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_any(OfObject(visitor))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_struct(name, fields, OfObject(visitor))
    }

    fn is_human_readable(&self) -> bool {
        self.0.is_human_readable()
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

impl<'de, V: Visitor<'de>> Visitor<'de> for OfObject<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.expecting(f)
    }

    fn visit_map<A: MapAccess<'de>>(self, object: A) -> Result<V::Value, A::Error> {
        self.0.visit_map(object)
    }
}

/// For types with `remote = "Self"`: what serde derives is then a function of the type's own, which these call.
macro_rules! read_from_objects {
    ($($kept:ident),+) => {$(
        impl Serialize for $kept {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                $kept::serialize(self, serializer)
            }
        }

        impl<'de> Deserialize<'de> for $kept {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                $kept::deserialize(OfObject(deserializer))
            }
        }
    )+};
}

read_from_objects!(PodSpec, Container, Volume);

/// What is wanted of a pod, with the fields of upstream's `PodSpec`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self", expecting = "PodSpec", default, rename_all = "camelCase")]
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
#[serde(remote = "Self", expecting = "Container", default, rename_all = "camelCase")]
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
#[serde(remote = "Self", expecting = "Volume", default, rename_all = "camelCase")]
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
