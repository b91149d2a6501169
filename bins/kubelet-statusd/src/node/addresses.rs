//! Which addresses the Node is given. Pure: what the machine and the resolver say is passed in.
//!
//! The rules are upstream's (`nodestatus/setters.go`, NodeAddress; `kubelet_node_status.go`, validateNodeIP).

use std::net::IpAddr;

use bulkhead_daemon::addresses::{InvalidIp, Probed};
use k8s_openapi::api::core::v1::NodeAddress;

/// Annotation that tells an external cloud provider of `--node-ip`.
pub const PROVIDED_NODE_IP: &str = "alpha.kubernetes.io/provided-node-ip";

/// What the configuration asks for.
#[derive(Debug, Clone, Copy)]
pub struct AddressSettings<'a> {
    /// At most one of each family; an unspecified one alone picks the family.
    pub node_ips: &'a [IpAddr],
    /// Name of the node, which is its Hostname too.
    pub name: &'a str,
    pub external_cloud_provider: bool,
}

/// What to do with the node's addresses.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// None: leave them as they are.
    pub addresses: Option<Vec<NodeAddress>>,
    /// Value of [`PROVIDED_NODE_IP`]; none: it is to go.
    pub provided: Option<String>,
}

/// Why the node's addresses cannot be said; they stay as they are.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    #[error("failed to validate nodeIP: {0}")]
    NodeIp(InvalidIp),
    #[error("failed to validate secondaryNodeIP: {0}")]
    SecondaryNodeIp(InvalidIp),
    #[error("can't get ip address of node {name}: its name does not resolve and there is no default route")]
    None { name: String },
}

/// Whether the name has to be resolved and the default route looked at, for there is nothing better.
pub fn has_to_detect(wanted: &AddressSettings<'_>, has_addresses: bool) -> bool {
    let specified = wanted.node_ips.first().is_some_and(|ip| !ip.is_unspecified());
    let left_to_provider = wanted.external_cloud_provider && (has_addresses || wanted.node_ips.is_empty());
    !specified && !left_to_provider && wanted.name.parse::<IpAddr>().is_err()
}

/// The node's addresses.
///
/// # Errors
/// `--node-ip` is not the machine's or not usable, or nothing was found.
pub fn decide(wanted: &AddressSettings<'_>, has_addresses: bool, probed: &Probed) -> Result<Decision, AddressError> {
    let specified: Vec<IpAddr> = wanted.node_ips.iter().copied().filter(|ip| !ip.is_unspecified()).collect();
    if let Some(first) = specified.first() {
        probed.check(*first).map_err(AddressError::NodeIp)?;
    }
    if let Some(second) = specified.get(1) {
        probed.check(*second).map_err(AddressError::SecondaryNodeIp)?;
    }
    let provided = (wanted.external_cloud_provider && !specified.is_empty())
        .then(|| specified.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(","));
    let set = |ips: &[IpAddr]| {
        let mut addresses: Vec<NodeAddress> = ips.iter().map(|ip| address("InternalIP", &ip.to_string())).collect();
        addresses.push(address("Hostname", wanted.name));
        Ok(Decision { addresses: Some(addresses), provided: provided.clone() })
    };
    if wanted.external_cloud_provider {
        // What the provider has set is its own; a name alone tells it that we are there.
        if has_addresses {
            return Ok(Decision { addresses: None, provided });
        }
        if wanted.node_ips.is_empty() {
            return set(&[]);
        }
    }
    if !specified.is_empty() {
        return set(&specified);
    }
    if let Ok(ip) = wanted.name.parse() {
        return set(&[ip]);
    }
    match probed.detected(wanted.node_ips) {
        Some(ip) => set(&[ip]),
        None => Err(AddressError::None { name: wanted.name.to_owned() }),
    }
}

fn address(kind: &str, address: &str) -> NodeAddress {
    NodeAddress { type_: kind.to_owned(), address: address.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn probed() -> Probed {
        Probed {
            local: ["10.0.0.1", "10.0.0.9", "fd00::1", "127.0.0.1"].map(ip).into(),
            resolved: Vec::new(),
            default_v4: Some(ip("10.0.0.9")),
            default_v6: Some(ip("fd00::1")),
        }
    }

    /// `InternalIP`s in order, or the error.
    fn run(node_ips: &str, name: &str, change: impl FnOnce(&mut Probed)) -> Result<Vec<String>, String> {
        let node_ips: Vec<IpAddr> = node_ips.split(',').filter(|text| !text.is_empty()).map(ip).collect();
        let mut probed = probed();
        change(&mut probed);
        let wanted = AddressSettings { node_ips: &node_ips, name, external_cloud_provider: false };
        let decision = decide(&wanted, true, &probed).map_err(|error| error.to_string())?;
        assert_eq!(decision.provided, None);
        let mut addresses = decision.addresses.unwrap();
        assert_eq!(addresses.pop().unwrap(), address("Hostname", name));
        assert!(addresses.iter().all(|one| one.type_ == "InternalIP"));
        Ok(addresses.into_iter().map(|one| one.address).collect())
    }

    #[test]
    fn without_a_provider() {
        assert_eq!(run("10.0.0.1", "n", |_| {}).unwrap(), ["10.0.0.1"]);
        assert_eq!(run("10.0.0.1,fd00::1", "n", |_| {}).unwrap(), ["10.0.0.1", "fd00::1"]);
        assert_eq!(run("fd00::1,10.0.0.1", "n", |_| {}).unwrap(), ["fd00::1", "10.0.0.1"]);
        assert_eq!(run("", "192.0.2.7", |_| {}).unwrap(), ["192.0.2.7"]);
        assert_eq!(run("", "n", |_| {}).unwrap(), ["10.0.0.9"]);
        assert_eq!(run("0.0.0.0", "n", |_| {}).unwrap(), ["10.0.0.9"]);
        assert_eq!(run("::", "n", |_| {}).unwrap(), ["fd00::1"]);
        assert_eq!(run("", "n", |p| p.default_v4 = None).unwrap(), ["fd00::1"]);
        assert_eq!(run("::", "n", |p| p.default_v6 = None).unwrap(), ["10.0.0.9"]);
    }

    #[test]
    fn the_name_is_asked_before_the_route() {
        let resolved = |list: &'static [&'static str]| {
            move |p: &mut Probed| p.resolved = list.iter().copied().map(ip).collect::<Vec<_>>()
        };
        assert_eq!(run("", "n", resolved(&["10.0.0.1"])).unwrap(), ["10.0.0.1"]);
        assert_eq!(run("", "n", resolved(&["fd00::1", "10.0.0.1"])).unwrap(), ["10.0.0.1"]);
        assert_eq!(run("::", "n", resolved(&["10.0.0.1", "fd00::1"])).unwrap(), ["fd00::1"]);
        // Another family is better than the route.
        assert_eq!(run("", "n", resolved(&["fd00::1"])).unwrap(), ["fd00::1"]);
        // Debian's hosts file: loopback does not count, neither does a stranger's address.
        assert_eq!(run("", "n", resolved(&["127.0.0.1", "192.0.2.1"])).unwrap(), ["10.0.0.9"]);
    }

    #[test]
    fn refusals_have_upstreams_words() {
        let refused = |ips: &str| run(ips, "n", |_| {}).unwrap_err();
        assert_eq!(
            refused("192.0.2.1"),
            "failed to validate nodeIP: node IP: \"192.0.2.1\" not found in the host's network interfaces"
        );
        assert_eq!(refused("127.0.0.1"), "failed to validate nodeIP: nodeIP can't be loopback address");
        assert_eq!(refused("224.0.0.1"), "failed to validate nodeIP: nodeIP can't be a multicast address");
        assert_eq!(refused("169.254.0.1"), "failed to validate nodeIP: nodeIP can't be a link-local unicast address");
        assert_eq!(
            refused("10.0.0.1,fe80::1"),
            "failed to validate secondaryNodeIP: nodeIP can't be a link-local unicast address"
        );
        let nothing = run("", "n", |p| (p.default_v4, p.default_v6) = (None, None)).unwrap_err();
        assert!(nothing.starts_with("can't get ip address of node n"), "{nothing}");
    }

    #[test]
    fn an_external_provider_has_the_say() {
        let decide = |ips: &[IpAddr], has| {
            let wanted = AddressSettings { node_ips: ips, name: "n", external_cloud_provider: true };
            let decision = decide(&wanted, has, &probed()).unwrap();
            let ips: Option<Vec<String>> =
                decision.addresses.map(|list| list.into_iter().map(|one| one.address).collect());
            (ips, decision.provided)
        };
        let both = [ip("10.0.0.1"), ip("fd00::1")];
        assert_eq!(decide(&[], true), (None, None));
        assert_eq!(decide(&[], false), (Some(vec!["n".into()]), None));
        assert_eq!(decide(&both, true), (None, Some("10.0.0.1,fd00::1".into())));
        assert_eq!(
            decide(&both, false),
            (Some(vec!["10.0.0.1".into(), "fd00::1".into(), "n".into()]), Some("10.0.0.1,fd00::1".into()))
        );
        assert_eq!(decide(&[ip("0.0.0.0")], false), (Some(vec!["10.0.0.9".into(), "n".into()]), None));
    }

    #[test]
    fn detection_only_where_it_is_needed() {
        let detect = |ips: &[IpAddr], name: &str, external, has| {
            has_to_detect(&AddressSettings { node_ips: ips, name, external_cloud_provider: external }, has)
        };
        assert!(detect(&[], "n", false, true));
        assert!(detect(&[ip("::")], "n", true, false));
        assert!(!detect(&[ip("10.0.0.1")], "n", false, false));
        assert!(!detect(&[], "10.1.1.1", false, false));
        assert!(!detect(&[], "n", true, false));
        assert!(!detect(&[ip("::")], "n", true, true));
    }
}
