//! This process's own metric families. Those with upstream's names have upstream's meaning.

use prometheus::{Histogram, HistogramOpts, HistogramVec, IntCounter, IntGauge, Registry};

/// All families that evictiond registers.
#[derive(Debug, Clone)]
pub struct Metrics {
    /// Time that one sample of all cgroups takes.
    pub sample_seconds: Histogram,
    /// Requests for statistics that an existing sample answered.
    pub samples_reused: IntCounter,
    /// Pods in the last sample.
    pub pods: IntGauge,
    /// Upstream's: how long measuring a volume takes, by `du` or `statfs`.
    pub volume_seconds: HistogramVec,
}

impl Metrics {
    /// # Errors
    /// A family of the same name exists already.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let metrics = Metrics {
            sample_seconds: Histogram::with_opts(
                HistogramOpts::new(
                    "bulkhead_evictiond_sample_duration_seconds",
                    "[ALPHA] Duration in seconds of one sample of the node's and all pods' cgroups.",
                )
                .buckets(vec![0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0]),
            )?,
            samples_reused: IntCounter::new(
                "bulkhead_evictiond_samples_reused_total",
                "[ALPHA] Cumulative number of requests for statistics answered by an existing sample.",
            )?,
            pods: IntGauge::new("bulkhead_evictiond_sampled_pods", "[ALPHA] Number of pods in the last sample.")?,
            volume_seconds: HistogramVec::new(
                HistogramOpts::new(
                    "kubelet_volume_metric_collection_duration_seconds",
                    "[ALPHA] Duration in seconds to calculate volume stats",
                ),
                &["metric_source"],
            )?,
        };
        registry.register(Box::new(metrics.sample_seconds.clone()))?;
        registry.register(Box::new(metrics.samples_reused.clone()))?;
        registry.register(Box::new(metrics.pods.clone()))?;
        registry.register(Box::new(metrics.volume_seconds.clone()))?;
        Ok(metrics)
    }
}
