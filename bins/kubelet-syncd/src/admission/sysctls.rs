//! Which kernel parameters a pod may set: those that a namespace isolates and that harm nobody else, and what the operator
//! allows besides (upstream `pkg/kubelet/sysctl`).

use std::collections::BTreeMap;

use kubelet_model::v1::Pod;

use super::Rejection;
use kubelet_model::validation::sysctl::{Namespace, normalize};

/// Parameters that are safe, and since which kernel they are isolated.
const SAFE: [(&str, (u32, u32)); 12] = [
    ("kernel.shm_rmid_forced", (0, 0)),
    ("net.ipv4.ip_local_port_range", (0, 0)),
    ("net.ipv4.tcp_syncookies", (0, 0)),
    ("net.ipv4.ping_group_range", (0, 0)),
    ("net.ipv4.ip_unprivileged_port_start", (0, 0)),
    ("net.ipv4.ip_local_reserved_ports", (3, 16)),
    ("net.ipv4.tcp_keepalive_time", (4, 5)),
    ("net.ipv4.tcp_keepalive_intvl", (4, 5)),
    ("net.ipv4.tcp_keepalive_probes", (4, 5)),
    ("net.ipv4.tcp_fin_timeout", (4, 6)),
    ("net.ipv4.tcp_rmem", (4, 15)),
    ("net.ipv4.tcp_wmem", (4, 15)),
];

/// Names and prefixes that may be set.
#[derive(Debug, Clone, Default)]
pub struct Allowlist {
    names: BTreeMap<String, Namespace>,
    prefixes: Vec<(String, Namespace)>,
}

impl Allowlist {
    /// `kernel`: major and minor version; None: not known, then what depends on it is not safe. `unsafe_patterns`:
    /// `allowedUnsafeSysctls`, checked with the configuration; what is not known to be isolated is left out.
    pub fn new(kernel: Option<(u32, u32)>, unsafe_patterns: &[String]) -> Self {
        let mut list = Allowlist::default();
        let safe = SAFE.iter().filter(|(_, since)| *since == (0, 0) || kernel.is_some_and(|now| now >= *since));
        for name in safe.map(|(name, _)| *name).chain(unsafe_patterns.iter().map(String::as_str)) {
            let name = normalize(name);
            let (name, is_prefix) = match name.split_once('*') {
                Some((prefix, _)) => (prefix, true),
                None => (&*name, false),
            };
            match Namespace::of(name) {
                Some(namespace) if is_prefix => list.prefixes.push((name.to_owned(), namespace)),
                Some(namespace) => drop(list.names.insert(name.to_owned(), namespace)),
                None => {}
            }
        }
        list
    }

    /// What is wrong with setting it, if anything.
    fn check(&self, name: &str, host_network: bool, host_ipc: bool) -> Option<String> {
        let name = normalize(name);
        let by_prefix = || self.prefixes.iter().find(|(prefix, _)| name.starts_with(prefix.as_str())).map(|(_, n)| n);
        let Some(namespace) = self.names.get(&*name).or_else(by_prefix) else {
            return Some(format!("{name:?} not allowlisted"));
        };
        let shared = match namespace {
            Namespace::Ipc => host_ipc,
            Namespace::Net => host_network,
        };
        shared.then(|| format!("{name:?} not allowed with host {} enabled", namespace.as_str()))
    }
}

pub(super) fn check(pod: &Pod, allowed: &Allowlist) -> Option<Rejection> {
    let spec = pod.spec.as_ref()?;
    let sysctls = spec.security_context.as_ref()?.sysctls.as_ref()?;
    let (host_network, host_ipc) = (spec.host_network == Some(true), spec.host_ipc == Some(true));
    let wrong = sysctls.iter().find_map(|s| allowed.check(&s.name, host_network, host_ipc))?;
    Some(Rejection::new("SysctlForbidden", format!("forbidden sysctl: {wrong}")))
}

/// Major and minor number of a release such as `6.1.0-18-amd64`.
pub fn kernel_version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.trim().split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}
