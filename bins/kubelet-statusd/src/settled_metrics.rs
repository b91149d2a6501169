//! Families whose values follow from the configuration and the machine: who the node is, what it runs, feature gates,
//! what is turned off, and counts of things that this node cannot do, where none of them is the truth.

use bulkhead_apiclient::ApiClient;
use bulkhead_config::NodeConfig;
use bulkhead_config::gates::FeatureGates;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Gauge, GaugeVec, IntCounter, IntGauge, IntGaugeVec, Opts, Registry};

/// Counters of what cannot happen here.
const NEVER: [(&str, &str); 3] = [
    ("disabled_metrics_total", "[BETA] The count of disabled metrics."),
    ("hidden_metrics_total", "[BETA] The count of hidden metrics."),
    // A slow watcher of the pods API is told the newest state, and nothing is dropped.
    ("kubelet_pod_watch_events_dropped_total", "[ALPHA] Cumulative number of pod watch events dropped."),
];

/// Registers them.
///
/// # Errors
/// A family of the same name exists already.
pub fn register(registry: &Registry, config: &NodeConfig) -> Result<(), prometheus::Error> {
    identity(registry, config.node_name.as_str(), &config.version)?;
    gates(registry, &config.feature_gates())?;
    let counters = |families: &[(&str, &str)]| -> Result<(), prometheus::Error> {
        families.iter().try_for_each(|(name, help)| registry.register(Box::new(IntCounter::new(*name, *help)?)))
    };
    let gauge = |name: &str, help: &str, value: i64| -> Result<(), prometheus::Error> {
        let gauge = IntGauge::new(name, help)?;
        gauge.set(value);
        registry.register(Box::new(gauge))
    };
    counters(&NEVER)?;
    if let Some(version) = cgroup_version() {
        gauge("kubelet_cgroup_version", "[ALPHA] cgroup version on the hosts.", version)?;
    }
    Ok(())
}

fn identity(registry: &Registry, node: &str, version: &str) -> Result<(), prometheus::Error> {
    let name =
        GaugeVec::new(Opts::new("kubelet_node_name", "[ALPHA] The node's name. The count is always 1."), &["node"])?;
    name.with_label_values(&[node]).set(1.0);
    registry.register(Box::new(name))?;
    let build = GaugeVec::new(
        Opts::new(
            "kubernetes_build_info",
            "[BETA] A metric with a constant '1' value labeled by major, minor, git version, git commit, git tree \
             state, build date, Go version, and compiler from which Kubernetes was built, and platform on which it is running.",
        ),
        &[
            "major",
            "minor",
            "git_version",
            "git_commit",
            "git_tree_state",
            "build_date",
            "go_version",
            "compiler",
            "platform",
        ],
    )?;
    let minor = bulkhead_config::version::MINOR.to_string();
    let platform = format!("linux/{}", bulkhead_types::go_arch());
    build.with_label_values(&["1", &minor, version, "", "", "", "", "rustc", &platform]).set(1.0);
    registry.register(Box::new(build))
}

fn gates(registry: &Registry, gates: &FeatureGates) -> Result<(), prometheus::Error> {
    let enabled = IntGaugeVec::new(
        Opts::new(
            "kubernetes_feature_enabled",
            "[BETA] This metric records the data about the stage and enablement of a k8s feature.",
        ),
        &["name", "stage"],
    )?;
    for (name, stage, on) in gates.all() {
        enabled.with_label_values(&[name, stage]).set(on.into());
    }
    registry.register(Box::new(enabled))
}

/// As upstream decides it: by what is mounted at the root of all cgroups.
fn cgroup_version() -> Option<i64> {
    const CGROUP2_MAGIC: u64 = 0x6367_7270;
    let mounted = rustix::fs::statfs("/sys/fs/cgroup").ok()?;
    Some(if u64::try_from(mounted.f_type).ok()? == CGROUP2_MAGIC { 2 } else { 1 })
}

/// `kubelet_certificate_manager_client_ttl_seconds`: for how long the client certificate in use is good. It is there where
/// client certificates are to be rotated, as upstream's.
#[derive(Debug)]
pub struct ClientCertificate {
    api: ApiClient,
    left: Gauge,
}

impl ClientCertificate {
    /// # Errors
    /// The family cannot be made.
    pub fn new(api: ApiClient) -> Result<Self, prometheus::Error> {
        let left = Gauge::new(
            "kubelet_certificate_manager_client_ttl_seconds",
            "[ALPHA] Gauge of the TTL (time-to-live) of the Kubelet's client certificate. The value is in seconds until \
             certificate expiry (negative if already expired). If client certificate is invalid or unused, the value will \
             be +INF.",
        )?;
        Ok(ClientCertificate { api, left })
    }
}

impl Collector for ClientCertificate {
    fn desc(&self) -> Vec<&Desc> {
        self.left.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.left.set(seconds_left(self.api.certificate_expires(), jiff::Timestamp::now()));
        self.left.collect()
    }
}

/// Whole seconds until then; infinite without an end.
pub fn seconds_left(expires: Option<jiff::Timestamp>, now: jiff::Timestamp) -> f64 {
    expires.map_or(f64::INFINITY, |at| at.duration_since(now).as_secs_f64().trunc())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_as_upstream_names_their_stages() {
        let registry = Registry::new();
        let mut config = NodeConfig::for_tests(std::path::Path::new("/none"));
        config.kubelet.feature_gates = [("EventedPLEG".to_owned(), true)].into();
        register(&registry, &config).unwrap();
        let text = bulkhead_daemon::encode_metrics(&registry);
        for line in [
            "kubernetes_feature_enabled{name=\"AllAlpha\",stage=\"ALPHA\"} 0",
            "kubernetes_feature_enabled{name=\"EventedPLEG\",stage=\"ALPHA\"} 1",
            "kubernetes_feature_enabled{name=\"NodeSwap\",stage=\"\"} 1",
            "kubernetes_feature_enabled{name=\"GitRepoVolumeDriver\",stage=\"DEPRECATED\"} 0",
            "hidden_metrics_total 0",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in\n{text}");
        }
        let node = format!("kubelet_node_name{{node=\"{}\"}} 1", config.node_name);
        assert!(text.lines().any(|line| line == node), "{node} in\n{text}");
        let build = text.lines().find(|line| line.starts_with("kubernetes_build_info{"));
        assert!(build.is_some_and(|line| line.contains(&format!("git_version=\"{}\"", config.version))), "{build:?}");
    }

    #[test]
    fn time_left() {
        let now = jiff::Timestamp::from_second(1_800_000_000).unwrap();
        let at = |milliseconds: i64| Some(jiff::Timestamp::from_millisecond(1_800_000_000_000 + milliseconds).unwrap());
        assert_eq!(seconds_left(at(1_900), now), 1.0);
        assert_eq!(seconds_left(at(-1_900), now), -1.0);
        assert_eq!(seconds_left(None, now), f64::INFINITY);
    }
}
