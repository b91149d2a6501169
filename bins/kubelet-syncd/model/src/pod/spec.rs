//! Reading a pod object: who it is, which containers it has and of which kind, and the questions that several
//! decisions ask of it (static? critical? host network?). Nothing here decides anything.

use std::borrow::Cow;

use crate::v1::{Container, Pod, PodSpec, Volume};
use bulkhead_types::{IdError, Namespace, PodName, PodUid};
use k8s_openapi::api::core::v1::{ContainerPort, EphemeralContainer, PodStatus};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::source::SourceKind;
use crate::annotations::{CONFIG_MIRROR, CONFIG_SOURCE};

/// Why a pod object cannot be worked on: a part of its identity is missing or malformed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    #[error("pod has no metadata.{0}")]
    Missing(&'static str),
    #[error("pod's metadata.{field} is not usable")]
    Malformed { field: &'static str, source: IdError },
}

/// Who a pod is, checked once at the edge: every id is safe as a path component.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PodIdentity {
    pub uid: PodUid,
    pub namespace: Namespace,
    pub name: PodName,
}

impl PodIdentity {
    /// Reads uid, namespace (default `default`) and name of the pod.
    pub fn of(pod: &Pod) -> Result<Self, IdentityError> {
        let malformed = |field| move |source| IdentityError::Malformed { field, source };
        let uid = pod.metadata.uid.as_deref().ok_or(IdentityError::Missing("uid"))?;
        let name = pod.metadata.name.as_deref().ok_or(IdentityError::Missing("name"))?;
        let namespace = pod.metadata.namespace.as_deref().filter(|n| !n.is_empty()).unwrap_or("default");
        Ok(PodIdentity {
            uid: PodUid::parse(uid).map_err(malformed("uid"))?,
            namespace: Namespace::parse(namespace).map_err(malformed("namespace"))?,
            name: PodName::parse(name).map_err(malformed("name"))?,
        })
    }
}

/// Upstream's `format.Pod`: what messages and events call a pod.
impl std::fmt::Display for PodIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}_{}({})", self.name, self.namespace, self.uid)
    }
}

/// The three lists a container can be in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ContainerKind {
    Init,
    Regular,
    Ephemeral,
}

impl ContainerKind {
    /// `involvedObject.fieldPath` of events about a container.
    pub fn field_path(self, name: &str) -> String {
        let list = match self {
            ContainerKind::Init => "initContainers",
            ContainerKind::Regular => "containers",
            ContainerKind::Ephemeral => "ephemeralContainers",
        };
        format!("spec.{list}{{{name}}}")
    }
}

/// The spec; an empty one when the object has none (a validated pod always has).
pub fn spec(pod: &Pod) -> Cow<'_, PodSpec> {
    match &pod.spec {
        Some(spec) => Cow::Borrowed(spec),
        None => Cow::Owned(PodSpec::default()),
    }
}

pub fn containers(pod: &Pod) -> &[Container] {
    pod.spec.as_ref().map_or(&[], |s| &s.containers)
}

pub fn init_containers(pod: &Pod) -> &[Container] {
    pod.spec.as_ref().and_then(|s| s.init_containers.as_deref()).unwrap_or(&[])
}

pub fn ephemeral_containers(pod: &Pod) -> &[EphemeralContainer] {
    pod.spec.as_ref().and_then(|s| s.ephemeral_containers.as_deref()).unwrap_or(&[])
}

/// Names of all containers of all kinds.
pub fn container_names(pod: &Pod) -> Vec<String> {
    let plain = init_containers(pod).iter().chain(containers(pod)).map(|container| &container.name);
    plain.chain(ephemeral_containers(pod).iter().map(|container| &container.name)).cloned().collect()
}

/// An ephemeral container as an ordinary one; only the target is left out.
pub fn ephemeral_as_container(ephemeral: &EphemeralContainer) -> Container {
    let e = ephemeral.clone();
    Container {
        args: e.args,
        command: e.command,
        env: e.env,
        env_from: e.env_from,
        image: e.image,
        image_pull_policy: e.image_pull_policy,
        lifecycle: e.lifecycle.map(Box::new),
        liveness_probe: e.liveness_probe.map(Box::new),
        name: e.name,
        ports: e.ports,
        readiness_probe: e.readiness_probe.map(Box::new),
        resize_policy: e.resize_policy,
        resources: e.resources,
        restart_policy: e.restart_policy,
        restart_policy_rules: e.restart_policy_rules,
        security_context: e.security_context.map(Box::new),
        startup_probe: e.startup_probe.map(Box::new),
        stdin: e.stdin,
        stdin_once: e.stdin_once,
        termination_message_path: e.termination_message_path,
        termination_message_policy: e.termination_message_policy,
        tty: e.tty,
        volume_devices: e.volume_devices,
        volume_mounts: e.volume_mounts,
        working_dir: e.working_dir,
    }
}

/// The number of a port that may be given by its name, as probes and hooks give it (upstream `pkg/probe/util.go`
/// ResolveContainerPort).
///
/// # Errors
/// The text that upstream has for a name that no port has, and for a number that no port can have.
pub fn port_number(port: &IntOrString, ports: &[ContainerPort]) -> Result<u16, String> {
    let number = match port {
        IntOrString::Int(number) => i64::from(*number),
        IntOrString::String(name) => {
            let named = ports.iter().find(|port| port.name.as_ref() == Some(name)).map(|p| i64::from(p.container_port));
            // A number that was written as text is one, too.
            let number = named.or_else(|| name.parse().ok());
            number.ok_or_else(|| format!("strconv.Atoi: parsing {name:?}: invalid syntax"))?
        }
    };
    u16::try_from(number).ok().filter(|port| *port > 0).ok_or_else(|| format!("invalid port number: {number}"))
}

/// The container of that name, whichever list it is in.
pub fn find_container<'a>(pod: &'a Pod, name: &str) -> Option<(ContainerKind, Cow<'a, Container>)> {
    if let Some(c) = containers(pod).iter().find(|c| c.name == name) {
        return Some((ContainerKind::Regular, Cow::Borrowed(c)));
    }
    if let Some(c) = init_containers(pod).iter().find(|c| c.name == name) {
        return Some((ContainerKind::Init, Cow::Borrowed(c)));
    }
    let ephemeral = ephemeral_containers(pod).iter().find(|c| c.name == name)?;
    Some((ContainerKind::Ephemeral, Cow::Owned(ephemeral_as_container(ephemeral))))
}

/// A sidecar: an init container with restartPolicy Always.
pub fn is_sidecar(init_container: &Container) -> bool {
    init_container.restart_policy.as_deref() == Some("Always")
}

pub fn has_sidecar(pod: &Pod) -> bool {
    init_containers(pod).iter().any(is_sidecar)
}

pub fn image(container: &Container) -> &str {
    container.image.as_deref().unwrap_or("")
}

/// A volume of an in-tree kind that a CSI driver serves (upstream `pkg/volume/csimigration`); its folders have a name of the
/// driver's and the volume's.
pub fn is_migrated(volume: &Volume) -> bool {
    volume.aws_elastic_block_store.is_some()
        || volume.azure_disk.is_some()
        || volume.azure_file.is_some()
        || volume.cinder.is_some()
        || volume.gce_persistent_disk.is_some()
        || volume.portworx_volume.is_some()
        || volume.vsphere_volume.is_some()
}

pub fn host_network(pod: &Pod) -> bool {
    pod.spec.as_ref().and_then(|s| s.host_network).unwrap_or(false)
}

/// The pod has ended: its phase is `Succeeded` or `Failed`, and no other one follows (upstream `IsPodPhaseTerminal`).
pub fn is_phase_terminal(status: &PodStatus) -> bool {
    matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"))
}

pub fn is_deleted(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

pub fn annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

/// From a file or a URL (upstream `pkg/kubelet/types` IsStaticPod): has a source, and it is not the API server.
pub fn is_static(pod: &Pod) -> bool {
    annotation(pod, CONFIG_SOURCE).is_some_and(|source| SourceKind::parse(source) != Some(SourceKind::Api))
}

/// Upstream `pkg/kubelet/types` IsCriticalPod.
pub fn is_critical(pod: &Pod) -> bool {
    is_static(pod)
        || annotation(pod, CONFIG_MIRROR).is_some()
        || pod.spec.as_ref().and_then(|s| s.priority).is_some_and(|p| p >= 2_000_000_000)
}

/// Upstream `pkg/kubelet/types` IsNodeCriticalPod: decides the OOM score.
pub fn is_node_critical(pod: &Pod) -> bool {
    is_critical(pod) && pod.spec.as_ref().and_then(|s| s.priority_class_name.as_deref()) == Some("system-node-critical")
}

/// Restart policy of the pod; the API's default is Always.
pub fn restart_policy(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|s| s.restart_policy.as_deref()).filter(|p| !p.is_empty()).unwrap_or("Always")
}
