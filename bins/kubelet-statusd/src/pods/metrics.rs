//! What is measured of the writing, under upstream's names (`pkg/kubelet/metrics/metrics.go`).

use std::time::Duration;

use prometheus::{Histogram, HistogramOpts, IntCounterVec, IntGauge, Opts, Registry};

/// Upper bounds in seconds.
const SYNC_BUCKETS: [f64; 11] = [0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0];

/// Families of this task.
#[derive(Debug, Clone)]
pub struct PodMetrics {
    sync: Histogram,
    mirror_pods: IntGauge,
    requests: IntCounterVec,
}

impl PodMetrics {
    /// # Errors
    /// A family cannot be made.
    pub fn new() -> Result<Self, prometheus::Error> {
        let sync = HistogramOpts::new(
            "kubelet_pod_status_sync_duration_seconds",
            "[ALPHA] Duration in seconds to sync a pod status update. Measures time from detection of a change to pod \
             status until the API is successfully updated for that pod, even if multiple intevening changes to pod \
             status occur.",
        );
        Ok(PodMetrics {
            sync: Histogram::with_opts(sync.buckets(SYNC_BUCKETS.to_vec()))?,
            mirror_pods: IntGauge::new(
                "kubelet_mirror_pods",
                "[ALPHA] The number of mirror pods the kubelet will try to create (one per admitted static pod)",
            )?,
            requests: IntCounterVec::new(
                Opts::new(
                    "bulkhead_pod_requests_total",
                    "[ALPHA] Requests about pods that write to the API server, by what they do and what came of them.",
                ),
                &["action", "outcome"],
            )?,
        })
    }

    /// # Errors
    /// A family of the same name exists already.
    pub fn register(&self, registry: &Registry) -> Result<(), prometheus::Error> {
        registry.register(Box::new(self.sync.clone()))?;
        registry.register(Box::new(self.mirror_pods.clone()))?;
        registry.register(Box::new(self.requests.clone()))
    }

    /// A change has reached the API server after so long.
    pub fn synced(&self, after: Duration) {
        self.sync.observe(after.as_secs_f64());
    }

    pub fn mirror_pods(&self, count: usize) {
        self.mirror_pods.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    pub fn request(&self, action: &str, outcome: &str) {
        self.requests.with_label_values(&[action, outcome]).inc();
    }
}
