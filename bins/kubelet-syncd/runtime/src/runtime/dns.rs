//! DNS settings of a pod: the node's resolv.conf, the cluster's servers, the pod's policy and additions, and the limits
//! of common resolvers. The runtime writes the file; upstream `pkg/kubelet/network/dns/dns.go` has the rules.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use bulkhead_cri::v1;
use k8s_openapi::api::core::v1::{PodDNSConfig, PodDNSConfigOption};
use kubelet_model::v1::Pod;

use kubelet_model::events::{EventType, NodeEvent, PodEvent};
use kubelet_model::node_facts::NodeFacts;
use kubelet_model::pod::spec::{PodIdentity, host_network};
use kubelet_model::validation::field::quote;

const MAX_NAMESERVERS: usize = 3;
const MAX_SEARCH_PATHS: usize = 32;
const MAX_SEARCH_CHARS: usize = 2048;
const MAX_SEARCH_PATH: usize = 253;
const MAX_RESOLV_CONF_BYTES: u64 = 10 << 20;

/// The node's resolver settings could not be used.
#[derive(Debug, thiserror::Error)]
pub enum ResolvConfError {
    #[error("open {}: {}", path.display(), go_text(source))]
    Open { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Parse(#[from] ParseError),
}

/// The text is no resolv.conf; upstream's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    #[error("nameserver list is empty ")]
    EmptyNameserver,
    #[error("the read limit is reached")]
    TooLong,
}

impl ResolvConfError {
    /// What the pod is told whose sandbox cannot be described.
    pub fn for_pod(&self) -> String {
        match self {
            ResolvConfError::Open { .. } => self.to_string(),
            ResolvConfError::Parse(error) => {
                format!("Encountered error while parsing resolv conf file. Error: {error}")
            }
        }
    }
}

/// The kernel's words as Go writes them.
fn go_text(error: &std::io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut rest = text.chars();
    rest.next().map(|first| first.to_lowercase().chain(rest).collect()).unwrap_or_default()
}

/// A resolv.conf, parsed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ResolvConf {
    pub nameservers: Vec<String>,
    pub searches: Vec<String>,
    pub options: Vec<String>,
}

impl ResolvConf {
    /// Reads the file; one of 10 MiB is refused. An empty path is an empty configuration.
    pub fn read(path: &Path) -> Result<Self, ResolvConfError> {
        if path.as_os_str().is_empty() {
            return Ok(Self::default());
        }
        let failed = |source| ResolvConfError::Open { path: path.to_owned(), source };
        let file = std::fs::File::open(path).map_err(failed)?;
        let mut bytes = Vec::new();
        file.take(MAX_RESOLV_CONF_BYTES).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 >= MAX_RESOLV_CONF_BYTES {
            return Err(ParseError::TooLong.into());
        }
        Ok(Self::parse(&String::from_utf8_lossy(&bytes))?)
    }

    /// Name servers add up, the last `search` line wins, options add up by name.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let mut conf = Self::default();
        for line in text.lines().map(str::trim).filter(|l| !l.starts_with('#')) {
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") => {
                    conf.nameservers.push(words.next().ok_or(ParseError::EmptyNameserver)?.to_owned());
                }
                Some("search") => {
                    conf.searches =
                        words.filter(|w| *w != ".").map(|w| w.strip_suffix('.').unwrap_or(w).to_owned()).collect();
                }
                Some("options") => set_options(&mut conf.options, words.map(str::to_owned)),
                _ => {}
            }
        }
        Ok(conf)
    }
}

fn option_name(option: &str) -> &str {
    option.split(':').next().unwrap_or(option)
}

/// Each replaces the option of its name, in its place, or is appended. Of a pod there may be as many as its object has room for.
fn set_options(options: &mut Vec<String>, more: impl IntoIterator<Item = String>) {
    let named = |(place, option): (usize, &String)| (option_name(option).to_owned(), place);
    let mut places: HashMap<String, usize> = options.iter().enumerate().map(named).collect();
    for option in more {
        match places.entry(option_name(&option).to_owned()) {
            Entry::Occupied(place) => options[*place.get()] = option,
            Entry::Vacant(place) => {
                place.insert(options.len());
                options.push(option);
            }
        }
    }
}

fn append_new(list: &mut Vec<String>, more: impl IntoIterator<Item = String>) {
    for item in more {
        if !list.contains(&item) {
            list.push(item);
        }
    }
}

/// A pod's settings, and the warnings that arose.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PodDns {
    pub config: v1::DnsConfig,
    pub events: Vec<PodEvent>,
    pub node_events: Vec<NodeEvent>,
}

/// The pod's settings.
pub fn pod_dns(pod: &Pod, identity: &PodIdentity, host: &ResolvConf, facts: &NodeFacts) -> PodDns {
    let (mut events, mut node_events) = (Vec::new(), Vec::new());
    let spec = pod.spec.as_ref();
    let policy = spec.and_then(|s| s.dns_policy.as_deref()).unwrap_or("ClusterFirst");
    let from_host = policy == "Default" || (policy == "ClusterFirst" && host_network(pod));
    let mut config = if policy == "None" {
        v1::DnsConfig::default()
    } else if from_host {
        host_dns(host, facts)
    } else if facts.cluster_dns.is_empty() {
        let (kind, reason) = (EventType::Warning, "MissingClusterDNS");
        let message = "kubelet does not have ClusterDNS IP configured and cannot create Pod using \"ClusterFirst\" policy. Falling back to \"Default\" policy.";
        node_events.push(NodeEvent { kind, reason, message: message.to_owned() });
        let message = format!("pod: {:?}. {message}", identity.to_string());
        events.push(PodEvent::pod(identity, kind, reason, message));
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
    PodDns { config, events, node_events }
}

fn host_dns(host: &ResolvConf, facts: &NodeFacts) -> v1::DnsConfig {
    if facts.resolv_conf.as_os_str().is_empty() {
        // No resolver configured: one that answers nothing, instead of whatever the runtime would put in.
        let mut servers = Vec::new();
        append_new(
            &mut servers,
            facts.node_ips.iter().map(|ip| if ip.is_ipv6() { "::1" } else { "127.0.0.1" }.to_owned()),
        );
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
    let text = |option: &PodDNSConfigOption| {
        let name = option.name.clone().unwrap_or_default();
        match option.value.as_deref() {
            None | Some("") => name,
            Some(value) => format!("{name}:{value}"),
        }
    };
    set_options(&mut config.options, own.options.iter().flatten().map(text));
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

/// What is wrong with the node's own file, if anything, once at the start. Pods are told when theirs is made of it.
pub fn check_host_file(facts: &NodeFacts) -> Option<NodeEvent> {
    let path = &facts.resolv_conf;
    let message = match ResolvConf::read(path) {
        Ok(host) => exceeded_limit(path, &host, !facts.cluster_domain.is_empty())?,
        Err(error) => error.to_string(),
    };
    Some(NodeEvent { kind: EventType::Warning, reason: "CheckLimitsForResolvConf", message })
}

/// What of the node's search line would be too much for pods. `cluster`: the cluster's three domains come before it.
fn exceeded_limit(path: &Path, host: &ResolvConf, cluster: bool) -> Option<String> {
    let path = path.display();
    let allowed = MAX_SEARCH_PATHS - if cluster { 3 } else { 0 };
    if host.searches.len() > allowed {
        return Some(format!(
            "Resolv.conf file '{path}' contains search line consisting of more than {allowed} domains!"
        ));
    }
    if host.searches.iter().any(|s| s.len() > MAX_SEARCH_PATH) {
        return Some(format!(
            "Resolv.conf file {} contains a search path which length is more than allowed {MAX_SEARCH_PATH} chars!",
            quote(&path.to_string())
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
    use kubelet_model::node_facts::HostFacts;

    /// As many as an object has room for: each with each would take minutes.
    #[test]
    fn many_options_take_no_long_time() {
        let mut options = vec!["ndots:5".to_owned()];
        let own = (0..180_000).map(|number| format!("{number}:1"));
        set_options(&mut options, own.chain(["ndots:1", "7", "7:2"].map(String::from)));
        assert_eq!((options.len(), &*options[0], &*options[8]), (180_001, "ndots:1", "7:2"));
    }

    fn run(spec: serde_json::Value, host: &str, change: impl Fn(&mut NodeFacts)) -> (v1::DnsConfig, Vec<PodEvent>) {
        let dns = all(spec, host, change);
        (dns.config, dns.events)
    }

    fn all(spec: serde_json::Value, host: &str, change: impl Fn(&mut NodeFacts)) -> PodDns {
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
        let text = "kubelet does not have ClusterDNS IP configured and cannot create Pod using \"ClusterFirst\" policy. Falling back to \"Default\" policy.";
        assert_eq!(events[0].message, format!("pod: \"p_golden(u)\". {text}"));
        let node = all(spec(), HOST, |f| f.cluster_dns.clear()).node_events;
        assert_eq!((node[0].reason, node[0].message.as_str()), ("MissingClusterDNS", text));
        assert!(all(spec(), HOST, |_| {}).node_events.is_empty());
        let (config, _) = run(spec(), "", |f| {
            f.cluster_dns.clear();
            f.resolv_conf = PathBuf::new();
        });
        assert_eq!((config.servers, config.searches), (vec!["127.0.0.1".to_owned()], vec![".".to_owned()]));
        let (config, _) = run(serde_json::json!({"containers": [], "dnsPolicy": "Default"}), "", |f| {
            f.resolv_conf = PathBuf::new();
            f.node_ips = ["fd00::1", "10.0.0.1"].map(|ip| ip.parse().unwrap()).to_vec();
        });
        assert_eq!(config.servers, ["::1", "127.0.0.1"]);
        let (config, _) = run(serde_json::json!({"containers": [], "dnsPolicy": "Default"}), "", |f| {
            f.resolv_conf = PathBuf::new();
            f.host_ips = ["fd00::1", "10.0.0.1"].map(|ip| ip.parse().unwrap()).to_vec();
        });
        assert_eq!(config.servers, ["127.0.0.1"], "--node-ip says nothing");
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
    }

    #[test]
    fn search_paths_that_no_resolver_takes_are_left_out() {
        let spec = |searches: &[String]| serde_json::json!({"containers": [], "dnsPolicy": "None", "dnsConfig": {"nameservers": ["1"], "searches": searches}});
        let long = "a".repeat(254);
        let (config, events) = run(spec(&["x".into(), long.clone(), "y".into()]), "", |_| {});
        assert_eq!(config.searches, ["x", "y"]);
        assert_eq!(
            events[0].message,
            "Search Line limits were exceeded, some search paths have been omitted, the applied search line is: x y"
        );
        // One that is cut for being the 33rd does not make room for others.
        let many: Vec<String> = std::iter::once(long).chain((0..40).map(|i| format!("d{i}"))).collect();
        let (config, events) = run(spec(&many), "", |_| {});
        assert_eq!((config.searches.len(), config.searches.last().unwrap().as_str()), (31, "d30"));
        assert_eq!(events.len(), 1);
        let just: Vec<String> = (0..32).map(|i| format!("d{i}")).collect();
        let (config, events) = run(spec(&just), "", |_| {});
        assert_eq!((config.searches.len(), events.len()), (32, 0));
        // 2048 characters with the blanks between them, and one more.
        let full: Vec<String> =
            (0..16).map(|i| format!("{i:02}{}", "z".repeat(if i < 15 { 125 } else { 126 }))).collect();
        assert_eq!(full.join(" ").len(), 2048);
        assert!(run(spec(&full), "", |_| {}).1.is_empty());
        let mut over = full;
        over[0].push('z');
        assert_eq!(run(spec(&over), "", |_| {}).0.searches.len(), 15);
    }

    #[test]
    fn files_that_are_no_resolv_conf() {
        let parse = |text: &str| ResolvConf::parse(text).map_err(|error| error.to_string());
        assert_eq!(parse("nameserver\n"), Err("nameserver list is empty ".to_owned()));
        let error = ResolvConfError::from(ParseError::EmptyNameserver);
        assert_eq!(
            error.for_pod(),
            "Encountered error while parsing resolv conf file. Error: nameserver list is empty "
        );
        let conf = parse("  nameserver\t1.1.1.1 trailing\r\n; odd\nsearch a. b\nsearch\noptions a:1 a:2 b\n").unwrap();
        assert_eq!((conf.nameservers, conf.searches.len()), (vec!["1.1.1.1".to_owned()], 0));
        assert_eq!(conf.options, ["a:2", "b"]);
        assert_eq!(ResolvConf::read(Path::new("")).unwrap(), ResolvConf::default());
        let error = ResolvConf::read(Path::new("/nonexistent")).unwrap_err();
        assert_eq!(error.for_pod(), "open /nonexistent: no such file or directory");
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(MAX_RESOLV_CONF_BYTES).unwrap();
        let error = ResolvConf::read(file.path()).unwrap_err();
        assert_eq!(error.to_string(), "the read limit is reached");
    }

    #[test]
    fn the_nodes_own_file_is_looked_at() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("resolv.conf");
        let check = |text: &str, domain: &str| {
            std::fs::write(&path, text).unwrap();
            let mut facts = NodeFacts::new(HostFacts::default());
            facts.resolv_conf.clone_from(&path);
            facts.cluster_domain = domain.to_owned();
            check_host_file(&facts).map(|event| {
                assert_eq!((event.kind, event.reason), (EventType::Warning, "CheckLimitsForResolvConf"));
                event.message.replace(&path.display().to_string(), "FILE")
            })
        };
        let domains = |count: usize, length: usize| format!("search {}", vec!["d".repeat(length); count].join(" "));
        assert_eq!(check(&domains(29, 1), "cluster.local"), None);
        assert_eq!(
            check(&domains(30, 1), "cluster.local").unwrap(),
            "Resolv.conf file 'FILE' contains search line consisting of more than 29 domains!"
        );
        assert_eq!(check(&domains(32, 1), ""), None);
        assert_eq!(
            check(&domains(33, 1), "").unwrap(),
            "Resolv.conf file 'FILE' contains search line consisting of more than 32 domains!"
        );
        assert_eq!(
            check(&domains(1, 254), "").unwrap(),
            "Resolv.conf file \"FILE\" contains a search path which length is more than allowed 253 chars!"
        );
        assert_eq!(
            check(&domains(9, 250), "").unwrap(),
            "Resolv.conf file 'FILE' contains search line which length is more than allowed 2048 chars!"
        );
        assert_eq!(check("nameserver", "").unwrap(), "nameserver list is empty ");
        let mut facts = NodeFacts::new(HostFacts::default());
        facts.resolv_conf = "/nonexistent".into();
        let event = check_host_file(&facts).unwrap();
        assert_eq!(event.message, "open /nonexistent: no such file or directory");
        facts.resolv_conf = PathBuf::new();
        assert_eq!(check_host_file(&facts), None);
    }
}
