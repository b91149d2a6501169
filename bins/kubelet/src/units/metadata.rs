//! Addresses of cloud metadata services, which kubelet-statusd's unit may not reach, and when it must all the same (decision 58).

use std::net::IpAddr;

use bulkhead_config::NodeConfig;
use bulkhead_daemon::privileges::METADATA_ADDRESSES;
use bulkhead_sys::systemd::{self, Property, Value};

const STATUSD: &str = "kubelet-statusd.service";

/// Opens them where this machine needs them. What fails is told, with what an administrator can do.
pub fn open_where_needed(config: &NodeConfig) {
    let resolver = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    let Some(why) = needed(config, &resolver) else { return };
    let all: Vec<(IpAddr, u8)> =
        METADATA_ADDRESSES.iter().map(|address| (*address, if address.is_ipv4() { 32 } else { 128 })).collect();
    let property = Property { name: "IPAddressAllow", value: Value::Addresses(all) };
    match systemd::set_properties(STATUSD, &[property]) {
        Ok(()) => tracing::info!("{STATUSD} may reach metadata addresses until the next boot: {why}"),
        Err(error) => tracing::warn!(
            error = &error as &dyn std::error::Error,
            "{STATUSD} may not reach metadata addresses, though {why}: a drop-in with IPAddressAllow= opens them"
        ),
    }
}

/// Why they are needed, if they are. Pure.
fn needed(config: &NodeConfig, resolver: &str) -> Option<String> {
    if config.kubeconfig_runs_program || config.bootstrap_runs_program {
        return Some("a program gives the node's credential, and may ask there for it".to_owned());
    }
    let servers = resolver.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        (words.next()? == "nameserver").then(|| words.next()).flatten()
    });
    // "fe80::1%eth0": the zone is not the address's.
    let mut servers = servers.filter_map(|server| server.split('%').next()?.parse::<IpAddr>().ok());
    let server = servers.find(|server| METADATA_ADDRESSES.contains(server))?;
    Some(format!("the machine's resolver is {server}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_opened_for_the_machines_resolver_and_for_programs() {
        let plain = NodeConfig::for_tests(std::path::Path::new("/t"));
        for (resolver, opened) in [
            ("", false),
            ("nameserver 10.0.0.2\nsearch example\n", false),
            ("# nameserver 169.254.169.254\n; nameserver 169.254.169.254\n", false),
            ("search x\nnameserver   169.254.169.254\n", true),
            ("nameserver 10.0.0.2\nnameserver fe80::a9fe:a9fe%eth0\n", true),
            ("nameserver\nnameserver what\n", false),
        ] {
            assert_eq!(needed(&plain, resolver).is_some(), opened, "{resolver:?}");
        }
        let api = NodeConfig { kubeconfig_runs_program: true, ..plain.clone() };
        let bootstrap = NodeConfig { bootstrap_runs_program: true, ..plain };
        assert!(needed(&api, "").is_some() && needed(&bootstrap, "").is_some());
    }
}
