//! The families that this process adds: who the node is, what it runs, who answers, and its own HTTP requests.

use prometheus::{GaugeVec, HistogramOpts, HistogramVec, IntCounterVec, IntGaugeVec, Opts, Registry};

use crate::routes::Surface;
use crate::streaming::translate::TranslateMetrics;

/// Families that requests change.
#[derive(Debug, Clone)]
pub struct OwnMetrics {
    /// `bulkhead_process_up{process}`: 1 when the process gave its metrics for this scrape.
    pub up: IntGaugeVec,
    pub requests: IntCounterVec,
    pub request_seconds: HistogramVec,
    pub inflight: IntGaugeVec,
    pub streams: TranslateMetrics,
    /// `bulkhead_connections_closed_total{port,reason}`.
    closed: IntCounterVec,
}

/// Why the server closed a connection that its client would have kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closed {
    /// The client took nothing of what it was sent.
    Stalled,
    /// Another client had no place, and this one had proved nothing, or was quiet for longest.
    MadeRoom,
    /// It was new, and all others were at work.
    Refused,
}

impl Closed {
    const ALL: [Closed; 3] = [Closed::Stalled, Closed::MadeRoom, Closed::Refused];

    fn reason(self) -> &'static str {
        match self {
            Closed::Stalled => "stalled",
            Closed::MadeRoom => "made_room",
            Closed::Refused => "refused",
        }
    }
}

fn port(surface: Surface) -> &'static str {
    match surface {
        Surface::Healthz => "healthz",
        Surface::ReadOnly => "readonly",
        Surface::Main => "readwrite",
    }
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
            streams: TranslateMetrics::register(registry)?,
            closed: IntCounterVec::new(
                Opts::new(
                    "bulkhead_connections_closed_total",
                    "[ALPHA] Connections that the node agent's servers closed or refused, by port and by why: the client took \
                     nothing of what it was sent, it made room for another, or there was no room for it.",
                ),
                &["port", "reason"],
            )?,
        };
        for surface in [Surface::Healthz, Surface::ReadOnly, Surface::Main] {
            for why in Closed::ALL {
                metrics.closed.with_label_values(&[port(surface), why.reason()]);
            }
        }
        registry.register(Box::new(metrics.closed.clone()))?;
        registry.register(Box::new(metrics.up.clone()))?;
        registry.register(Box::new(metrics.requests.clone()))?;
        registry.register(Box::new(metrics.request_seconds.clone()))?;
        registry.register(Box::new(metrics.inflight.clone()))?;
        Ok(metrics)
    }

    /// A connection of that port was closed, or not let in.
    pub fn closed(&self, surface: Surface, why: Closed) {
        self.closed.with_label_values(&[port(surface), why.reason()]).inc();
    }
}
