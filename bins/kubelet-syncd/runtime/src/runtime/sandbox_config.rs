//! CRI's PodSandboxConfig from a pod and what is known of the node. Pure; the recorded requests of upstream are its spec.

use std::collections::HashSet;
use std::net::IpAddr;

use bulkhead_cri::v1;
use kubelet_model::v1::{Container, Pod};

use super::dns::{ResolvConf, pod_dns};
use super::hosts::{HostName, HostnameError, host_name, sandbox_hostname};
use super::pod_runtime::PodRuntime;
use super::security::{SecurityError, sandbox_security_context, sandbox_sysctls};
use kubelet_model::events::{NodeEvent, PodEvent};
use kubelet_model::node_facts::NodeFacts;
use kubelet_model::pod::labels::{sandbox_annotations, sandbox_labels};
use kubelet_model::pod::resources::{overhead_resources, sandbox_resources};
use kubelet_model::pod::spec::{PodIdentity, containers};

/// Why a sandbox cannot be described. The text goes into the event `FailedCreatePodSandBox`.
#[derive(Debug, thiserror::Error)]
pub enum SandboxConfigError {
    #[error(transparent)]
    Hostname(#[from] HostnameError),
    #[error(transparent)]
    Security(#[from] SecurityError),
}

/// A sandbox's configuration and what was found while making it.
#[derive(Debug, Clone)]
pub struct SandboxPlan {
    pub config: v1::PodSandboxConfig,
    pub host_name: HostName,
    pub events: Vec<PodEvent>,
    pub node_events: Vec<NodeEvent>,
    /// What it was made for; the containers in it have the same.
    pub runtime: PodRuntime,
}

/// Describes the sandbox of `pod`. `cgroup_parent` is what volnetd's EnsurePod returned: a full path, or nothing where pods
/// have no cgroups.
pub fn sandbox_plan(
    pod: &Pod,
    identity: &PodIdentity,
    attempt: u32,
    cgroup_parent: &str,
    resolv_conf: &ResolvConf,
    facts: &NodeFacts,
    runtime: PodRuntime,
) -> Result<SandboxPlan, SandboxConfigError> {
    let host_name = host_name(pod, identity, facts)?;
    let dns = pod_dns(pod, identity, resolv_conf, facts);
    let log_directory =
        facts.pod_logs_dir.join(bulkhead_types::pod_log_dir_name(&identity.namespace, &identity.name, &identity.uid));
    let config = v1::PodSandboxConfig {
        metadata: Some(v1::PodSandboxMetadata {
            name: identity.name.to_string(),
            uid: identity.uid.to_string(),
            namespace: identity.namespace.to_string(),
            attempt,
        }),
        hostname: sandbox_hostname(pod, &host_name)?,
        log_directory: log_directory.to_string_lossy().into_owned(),
        dns_config: Some(dns.config),
        port_mappings: containers(pod).iter().flat_map(port_mappings).collect(),
        labels: sandbox_labels(pod, identity),
        annotations: sandbox_annotations(pod),
        linux: Some(v1::LinuxPodSandboxConfig {
            cgroup_parent: cgroup_parent.to_owned(),
            security_context: Some(sandbox_security_context(pod, runtime.users, &runtime.volume_groups)?),
            sysctls: sandbox_sysctls(pod),
            overhead: Some(overhead_resources(pod, facts)),
            resources: Some(sandbox_resources(pod, facts, runtime.without_quota)),
        }),
    };
    Ok(SandboxPlan { config, host_name, events: dns.events, node_events: dns.node_events, runtime })
}

/// Ports of one container; a name (or, unnamed, the same mapping) counts once.
fn port_mappings(container: &Container) -> Vec<v1::PortMapping> {
    let mut seen = HashSet::new();
    let mut mappings = Vec::new();
    for port in container.ports.iter().flatten() {
        let host_ip = port.host_ip.clone().unwrap_or_default();
        let protocol = port.protocol.as_deref().unwrap_or("TCP");
        let host_port = port.host_port.unwrap_or(0);
        let name = match port.name.as_deref() {
            Some(name) if !name.is_empty() => name.to_owned(),
            _ => {
                let family = match host_ip.parse() {
                    Ok(IpAddr::V6(_)) => "v6",
                    _ if host_ip.is_empty() => "any",
                    _ => "v4",
                };
                format!("{family}-{protocol}-{host_ip}:{}:{host_port}", port.container_port)
            }
        };
        if !seen.insert(name) {
            continue;
        }
        let protocol = match protocol {
            "UDP" => v1::Protocol::Udp,
            "SCTP" => v1::Protocol::Sctp,
            _ => v1::Protocol::Tcp,
        };
        mappings.push(v1::PortMapping {
            protocol: protocol.into(),
            container_port: port.container_port,
            host_port,
            host_ip,
        });
    }
    mappings
}
