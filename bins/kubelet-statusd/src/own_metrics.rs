//! The families that this process adds: who the node is, what it runs, who answers, and its own HTTP requests.

use bulkhead_config::gates::FeatureGates;
use prometheus::{GaugeVec, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGaugeVec, Opts, Registry};

/// Families that requests change.
#[derive(Debug, Clone)]
pub struct OwnMetrics {
    /// `bulkhead_process_up{process}`: 1 when the process gave its metrics for this scrape.
    pub up: IntGaugeVec,
    pub requests: IntCounterVec,
    pub request_seconds: HistogramVec,
    pub inflight: IntGaugeVec,
}

const HTTP_LABELS: [&str; 4] = ["method", "path", "server_type", "long_running"];

impl OwnMetrics {
    /// # Errors
    /// A family of the same name exists already.
    pub fn register(registry: &Registry, node: &str, version: &str) -> Result<Self, prometheus::Error> {
        let name = GaugeVec::new(
            Opts::new("kubelet_node_name", "[ALPHA] The node's name. The count is always 1."),
            &["node"],
        )?;
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
        registry.register(Box::new(build))?;

        let metrics = OwnMetrics {
            up: IntGaugeVec::new(
                Opts::new(
                    "bulkhead_process_up",
                    "[ALPHA] 1 when the process of the node agent gave its metrics for this scrape.",
                ),
                &["process"],
            )?,
            requests: IntCounterVec::new(
                Opts::new(
                    "kubelet_http_requests_total",
                    "[ALPHA] Number of the http requests received since the server started",
                ),
                &HTTP_LABELS,
            )?,
            request_seconds: HistogramVec::new(
                HistogramOpts::new(
                    "kubelet_http_requests_duration_seconds",
                    "[ALPHA] Duration in seconds to serve http requests",
                ),
                &HTTP_LABELS,
            )?,
            inflight: IntGaugeVec::new(
                Opts::new("kubelet_http_inflight_requests", "[ALPHA] Number of the inflight http requests"),
                &HTTP_LABELS,
            )?,
        };
        registry.register(Box::new(metrics.up.clone()))?;
        registry.register(Box::new(metrics.requests.clone()))?;
        registry.register(Box::new(metrics.request_seconds.clone()))?;
        registry.register(Box::new(metrics.inflight.clone()))?;
        Ok(metrics)
    }
    /// What is decided once at the start: feature gates, and that no metric was turned off or hidden.
    ///
    /// # Errors
    /// A family of the same name exists already.
    pub fn register_settings(registry: &Registry, gates: &FeatureGates) -> Result<(), prometheus::Error> {
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
        registry.register(Box::new(enabled))?;
        for (name, help) in [
            ("disabled_metrics_total", "[BETA] The count of disabled metrics."),
            ("hidden_metrics_total", "[BETA] The count of hidden metrics."),
        ] {
            registry.register(Box::new(IntCounter::new(name, help)?))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_as_upstream_names_their_stages() {
        let registry = Registry::new();
        let set = [("EventedPLEG".to_owned(), true)].into();
        OwnMetrics::register_settings(&registry, &FeatureGates::from_map(&set)).unwrap();
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
    }
}
