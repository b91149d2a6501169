//! Ports of the host that two pods cannot both have (upstream scheduler plugin `nodeports`).

use std::collections::{HashMap, HashSet};
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

/// Addresses at which a port of a protocol is taken.
#[derive(Debug, Default)]
struct Taken<'a> {
    at_all: bool,
    at: HashSet<&'a str>,
}

impl Taken<'_> {
    fn collides(&self, address: &str) -> bool {
        self.at_all || (address.is_empty() && !self.at.is_empty()) || self.at.contains(address)
    }
}

pub(super) fn check(pod: &Pod, others: &[Arc<Pod>]) -> Option<Obstacle> {
    let mut own = host_ports(pod).peekable();
    own.peek()?;
    let mut taken: HashMap<(&str, i32), Taken<'_>> = HashMap::new();
    for (address, protocol, number) in others.iter().flat_map(|other| host_ports(other)) {
        let taken = taken.entry((protocol, number)).or_default();
        if address.is_empty() {
            taken.at_all = true;
        } else {
            taken.at.insert(address);
        }
    }
    let collides = own
        .any(|(address, protocol, number)| taken.get(&(protocol, number)).is_some_and(|taken| taken.collides(address)));
    let message = "node(s) didn't have free ports for the requested pod ports";
    collides.then_some(Obstacle::Predicate { name: "NodePorts", message })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(ports: &[(&str, &str, i32)]) -> Pod {
        let port = |(address, protocol, number): &(&str, &str, i32)| json!({"containerPort": 1, "hostIP": address, "protocol": protocol, "hostPort": number});
        let ports: Vec<_> = ports.iter().map(port).collect();
        serde_json::from_value(json!({"spec": {"containers": [{"name": "c", "ports": ports}]}})).unwrap()
    }

    #[test]
    fn ports_at_an_address_collide_with_those_at_all_and_at_the_same() {
        let other = [Arc::new(pod(&[("", "TCP", 80), ("10.0.0.1", "UDP", 53), ("0.0.0.0", "", 443)]))];
        for (own, collides) in [
            (("", "TCP", 80), true),
            (("10.0.0.1", "TCP", 80), true),
            (("10.0.0.1", "TCP", 443), true),
            (("", "UDP", 80), false),
            (("", "UDP", 53), true),
            (("0.0.0.0", "UDP", 53), true),
            (("10.0.0.1", "UDP", 53), true),
            (("10.0.0.2", "UDP", 53), false),
            (("10.0.0.1", "UDP", 54), false),
            (("", "TCP", 0), false),
        ] {
            assert_eq!(check(&pod(&[own]), &other).is_some(), collides, "{own:?}");
        }
    }

    /// As many as objects have room for: each with each would take minutes.
    #[test]
    fn many_ports_take_no_long_time() {
        let at = |subnet: i32| -> Vec<(String, i32)> {
            (0..40_000).map(|n| (format!("10.{subnet}.{}.{}", n % 256, n / 256), 1 + n)).collect()
        };
        let pods = [1, 2, 3].map(|subnet| {
            let ports = at(subnet);
            let ports: Vec<_> = ports.iter().map(|(address, number)| (address.as_str(), "TCP", *number)).collect();
            Arc::new(pod(&ports))
        });
        assert!(check(&pods[0], &pods[1..]).is_none());
    }
}
