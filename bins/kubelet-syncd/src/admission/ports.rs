//! Ports of the host that two pods cannot both have (upstream scheduler plugin `nodeports`).

use std::sync::Arc;

use k8s_openapi::api::core::v1::ContainerPort;
use kubelet_model::v1::Pod;

use super::Obstacle;
use kubelet_model::pod::spec::{containers, init_containers, is_sidecar};

/// Address (empty: all), protocol, number.
type HostPort<'a> = (&'a str, &'a str, i32);

fn host_ports(pod: &Pod) -> impl Iterator<Item = HostPort<'_>> {
    let all = containers(pod).iter().chain(init_containers(pod).iter().filter(|c| is_sidecar(c)));
    all.flat_map(|c| c.ports.iter().flatten()).filter_map(host_port)
}

fn host_port(port: &ContainerPort) -> Option<HostPort<'_>> {
    let number = port.host_port.filter(|number| *number > 0)?;
    let address = port.host_ip.as_deref().filter(|ip| *ip != "0.0.0.0").unwrap_or("");
    let protocol = port.protocol.as_deref().filter(|p| !p.is_empty()).unwrap_or("TCP");
    Some((address, protocol, number))
}

fn collide(a: HostPort<'_>, b: HostPort<'_>) -> bool {
    a.1 == b.1 && a.2 == b.2 && (a.0.is_empty() || b.0.is_empty() || a.0 == b.0)
}

pub(super) fn check(pod: &Pod, others: &[Arc<Pod>]) -> Option<Obstacle> {
    let taken = |own| others.iter().any(|other| host_ports(other).any(|theirs| collide(own, theirs)));
    let message = "node(s) didn't have free ports for the requested pod ports";
    host_ports(pod).any(taken).then_some(Obstacle::Predicate { name: "NodePorts", message })
}
