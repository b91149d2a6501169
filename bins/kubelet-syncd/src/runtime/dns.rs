//! DNS settings of a pod: the node's resolv.conf, the cluster's servers, the pod's policy and additions, and the limits
//! of common resolvers. The runtime writes the file; upstream `pkg/kubelet/network/dns/dns.go` has the rules.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use bulkhead_cri::v1;
use k8s_openapi::api::core::v1::{Pod, PodDNSConfig};

use super::events::{EventType, PodEvent};
use super::node_facts::NodeFacts;
use super::podspec::{PodIdentity, host_network};

const MAX_NAMESERVERS: usize = 3;
const MAX_SEARCH_PATHS: usize = 32;
const MAX_SEARCH_CHARS: usize = 2048;
const MAX_SEARCH_PATH: usize = 253;
const MAX_RESOLV_CONF_BYTES: u64 = 10 << 20;

/// The node's resolver settings could not be used.
#[derive(Debug, thiserror::Error)]
pub enum ResolvConfError {
    #[error("open {path}")]
    Open { path: PathBuf, source: std::io::Error },
    #[error("Encountered error while parsing resolv conf file. Error: nameserver list is empty ")]
    EmptyNameserver,
}

/// A resolv.conf, parsed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ResolvConf {
    pub nameservers: Vec<String>,
    pub searches: Vec<String>,
    pub options: Vec<String>,
}

impl ResolvConf {
    /// Reads at most 10 MiB of the file. An empty path is an empty configuration.
    pub fn read(path: &Path) -> Result<Self, ResolvConfError> {
        if path.as_os_str().is_empty() {
            return Ok(Self::default());
        }
        let failed = |source| ResolvConfError::Open { path: path.to_owned(), source };
        let file = std::fs::File::open(path).map_err(failed)?;
        let mut bytes = Vec::new();
        file.take(MAX_RESOLV_CONF_BYTES).read_to_end(&mut bytes).map_err(failed)?;
        Self::parse(&String::from_utf8_lossy(&bytes))
    }

    /// Name servers add up, the last `search` line wins, options add up by name.
    pub fn parse(text: &str) -> Result<Self, ResolvConfError> {
        let mut conf = Self::default();
        for line in text.lines().map(str::trim).filter(|l| !l.starts_with('#')) {
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") => {
                    conf.nameservers.push(words.next().ok_or(ResolvConfError::EmptyNameserver)?.to_owned());
                }
                Some("search") => {
                    conf.searches =
                        words.filter(|w| *w != ".").map(|w| w.strip_suffix('.').unwrap_or(w).to_owned()).collect();
                }
                Some("options") => words.for_each(|option| set_option(&mut conf.options, option.to_owned())),
                _ => {}
            }
        }
        Ok(conf)
    }
}

fn option_name(option: &str) -> &str {
    option.split(':').next().unwrap_or(option)
}

/// Replaces the option of that name, in its place, or appends it.
fn set_option(options: &mut Vec<String>, option: String) {
    match options.iter_mut().find(|o| option_name(o) == option_name(&option)) {
        Some(old) => *old = option,
        None => options.push(option),
    }
}

fn append_new(list: &mut Vec<String>, more: impl IntoIterator<Item = String>) {
    for item in more {
        if !list.contains(&item) {
            list.push(item);
        }
    }
}

/// The pod's settings, and warnings about it that arose.
pub fn pod_dns(
    pod: &Pod,
    identity: &PodIdentity,
    host: &ResolvConf,
    facts: &NodeFacts,
) -> (v1::DnsConfig, Vec<PodEvent>) {
    let mut events = Vec::new();
    let spec = pod.spec.as_ref();
    let policy = spec.and_then(|s| s.dns_policy.as_deref()).unwrap_or("ClusterFirst");
    let from_host = policy == "Default" || (policy == "ClusterFirst" && host_network(pod));
    let mut config = if policy == "None" {
        v1::DnsConfig::default()
    } else if from_host {
        host_dns(host, facts)
    } else if facts.cluster_dns.is_empty() {
        let message = format!(
            "pod: {:?}. kubelet does not have ClusterDNS IP configured and cannot create Pod using \"ClusterFirst\" policy. Falling back to \"Default\" policy.",
            identity.to_string()
        );
        events.push(PodEvent::pod(identity, EventType::Warning, "MissingClusterDNS", message));
        host_dns(host, facts)
    } else {
        v1::DnsConfig {
            servers: facts.cluster_dns.clone(),
            searches: cluster_searches(identity.namespace.as_str(), &facts.cluster_domain, &host.searches),
            options: vec!["ndots:5".to_owned()],
        }
    };
    if let Some(own) = spec.and_then(|s| s.dns_config.as_ref()) {
        add_own(&mut config, own);
    }
    for message in fit_limits(&mut config) {
        events.push(PodEvent::pod(identity, EventType::Warning, "DNSConfigForming", message));
    }
    (config, events)
}

fn host_dns(host: &ResolvConf, facts: &NodeFacts) -> v1::DnsConfig {
    if facts.resolv_conf.as_os_str().is_empty() {
        // No resolver configured: one that answers nothing, instead of whatever the runtime would put in.
        let mut servers: Vec<String> =
            facts.host_ips.iter().map(|ip| if ip.is_ipv6() { "::1" } else { "127.0.0.1" }.to_owned()).collect();
        if servers.is_empty() {
            servers.push("127.0.0.1".to_owned());
        }
        return v1::DnsConfig { servers, searches: vec![".".to_owned()], options: Vec::new() };
    }
    let ResolvConf { nameservers, searches, options } = host.clone();
    v1::DnsConfig { servers: nameservers, searches, options }
}

fn cluster_searches(namespace: &str, domain: &str, host: &[String]) -> Vec<String> {
    if domain.is_empty() {
        return host.to_vec();
    }
    let mut searches = vec![format!("{namespace}.svc.{domain}"), format!("svc.{domain}"), domain.to_owned()];
    append_new(&mut searches, host.iter().cloned());
    searches
}

fn add_own(config: &mut v1::DnsConfig, own: &PodDNSConfig) {
    let mut servers = Vec::new();
    append_new(&mut servers, config.servers.drain(..).chain(own.nameservers.iter().flatten().cloned()));
    config.servers = servers;
    let mut searches = Vec::new();
    append_new(&mut searches, config.searches.drain(..).chain(own.searches.iter().flatten().cloned()));
    config.searches = searches;
    for option in own.options.iter().flatten() {
        let name = option.name.clone().unwrap_or_default();
        let text = match option.value.as_deref() {
            None | Some("") => name,
            Some(value) => format!("{name}:{value}"),
        };
        set_option(&mut config.options, text);
    }
}

/// Cuts what resolvers would not take; each cut is one message.
fn fit_limits(config: &mut v1::DnsConfig) -> Vec<String> {
    let mut messages = Vec::new();
    if config.servers.len() > MAX_NAMESERVERS {
        config.servers.truncate(MAX_NAMESERVERS);
        messages.push(format!(
            "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: {}",
            config.servers.join(" ")
        ));
    }
    let before = config.searches.len();
    config.searches.truncate(MAX_SEARCH_PATHS);
    config.searches.retain(|s| s.len() <= MAX_SEARCH_PATH);
    while config.searches.join(" ").len() > MAX_SEARCH_CHARS {
        config.searches.pop();
    }
    if config.searches.len() < before {
        messages.push(format!(
            "Search Line limits were exceeded, some search paths have been omitted, the applied search line is: {}",
            config.searches.join(" ")
        ));
    }
    messages
}

/// What is wrong with the node's own search line, if anything (event `CheckLimitsForResolvConf` on the node).
pub fn check_host_limits(path: &Path, host: &ResolvConf, facts: &NodeFacts) -> Option<String> {
    let path = path.display();
    let allowed = MAX_SEARCH_PATHS - if facts.cluster_domain.is_empty() { 0 } else { 3 };
    if host.searches.len() > allowed {
        return Some(format!(
            "Resolv.conf file '{path}' contains search line consisting of more than {allowed} domains!"
        ));
    }
    if host.searches.iter().any(|s| s.len() > MAX_SEARCH_PATH) {
        let quoted = path.to_string();
        return Some(format!(
            "Resolv.conf file {quoted:?} contains a search path which length is more than allowed {MAX_SEARCH_PATH} chars!"
        ));
    }
    (host.searches.join(" ").len() > MAX_SEARCH_CHARS).then(|| {
        format!(
            "Resolv.conf file '{path}' contains search line which length is more than allowed {MAX_SEARCH_CHARS} chars!"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::node_facts::HostFacts;

    fn run(spec: serde_json::Value, host: &str, change: impl Fn(&mut NodeFacts)) -> (v1::DnsConfig, Vec<PodEvent>) {
        let pod: Pod = serde_json::from_value(serde_json::json!(
            {"metadata": {"name": "p", "namespace": "golden", "uid": "u"}, "spec": spec}))
        .unwrap();
        let mut facts = NodeFacts::new(HostFacts::default());
        facts.cluster_dns = vec!["10.96.0.10".into()];
        facts.cluster_domain = "cluster.local".into();
        change(&mut facts);
        pod_dns(&pod, &PodIdentity::of(&pod).unwrap(), &ResolvConf::parse(host).unwrap(), &facts)
    }

    const HOST: &str = "# comment\nnameserver 10.255.255.53\nsearch old\nsearch example.com. . svc.cluster.local\noptions ndots:2 edns0\noptions ndots:3\n";

    #[test]
    fn policies() {
        let of = |policy: &str, host_network: bool| {
            run(serde_json::json!({"containers": [], "dnsPolicy": policy, "hostNetwork": host_network}), HOST, |_| {}).0
        };
        let cluster = of("ClusterFirst", false);
        assert_eq!(cluster.servers, ["10.96.0.10"]);
        assert_eq!(cluster.searches, ["golden.svc.cluster.local", "svc.cluster.local", "cluster.local", "example.com"]);
        assert_eq!(cluster.options, ["ndots:5"]);
        assert_eq!(of("ClusterFirstWithHostNet", true), cluster);
        let host = of("ClusterFirst", true);
        assert_eq!(host.servers, ["10.255.255.53"]);
        assert_eq!(host.searches, ["example.com", "svc.cluster.local"]);
        assert_eq!(host.options, ["ndots:3", "edns0"]);
        assert_eq!(of("Default", false), host);
        assert_eq!(of("None", false), v1::DnsConfig::default());
    }

    #[test]
    fn own_settings_are_added() {
        let (config, events) = run(
            serde_json::json!({"containers": [], "dnsPolicy": "None", "dnsConfig": {"nameservers": ["1.2.3.4", "1.2.3.4"],
                "searches": ["a.b"], "options": [{"name": "ndots", "value": "3"}, {"name": "edns0"}]}}),
            HOST,
            |_| {},
        );
        assert_eq!((config.servers, config.searches), (vec!["1.2.3.4".to_owned()], vec!["a.b".to_owned()]));
        assert_eq!(config.options, ["ndots:3", "edns0"]);
        assert!(events.is_empty());
    }

    #[test]
    fn without_cluster_dns_or_resolver() {
        let spec = || serde_json::json!({"containers": [], "dnsPolicy": "ClusterFirst"});
        let (config, events) = run(spec(), HOST, |f| f.cluster_dns.clear());
        assert_eq!(config.servers, ["10.255.255.53"]);
        assert_eq!(events[0].reason, "MissingClusterDNS");
        assert!(events[0].message.starts_with("pod: \"p_golden(u)\". kubelet does not have ClusterDNS IP"));
        let (config, _) = run(spec(), "", |f| {
            f.cluster_dns.clear();
            f.resolv_conf = PathBuf::new();
        });
        assert_eq!((config.servers, config.searches), (vec!["127.0.0.1".to_owned()], vec![".".to_owned()]));
    }

    #[test]
    fn limits_cut_and_say_so() {
        let many: Vec<String> = (0..40).map(|i| format!("{i}.{}", "x".repeat(80))).collect();
        let (config, events) = run(
            serde_json::json!({"containers": [], "dnsPolicy": "None", "dnsConfig": {"nameservers": ["1", "2", "3", "4"],
                "searches": many}}),
            "",
            |_| {},
        );
        assert_eq!(config.servers, ["1", "2", "3"]);
        assert_eq!(config.searches.len(), 24);
        assert_eq!(events.len(), 2);
        assert!(events.iter().all(|e| e.reason == "DNSConfigForming"));
        assert!(events[0].message.ends_with("the applied nameserver line is: 1 2 3"));
        assert!(ResolvConf::parse("nameserver\n").is_err());
        assert_eq!(ResolvConf::read(Path::new("")).unwrap(), ResolvConf::default());
        assert!(ResolvConf::read(Path::new("/nonexistent")).is_err());
    }
}
