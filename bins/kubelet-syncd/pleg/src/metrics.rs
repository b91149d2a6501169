//! PLEG's metrics under upstream's names (upstream `pkg/kubelet/metrics/metrics.go`), and the one that is ours.

use prometheus::{DEFAULT_BUCKETS, Gauge, Histogram, HistogramOpts, IntCounter, Opts, Registry};

#[derive(Debug, Clone)]
pub(super) struct PlegMetrics {
    pub relist_duration: Histogram,
    pub relist_interval: Histogram,
    pub pod_relist_duration: Histogram,
    pub discard_events: IntCounter,
    pub last_seen: Gauge,
    pub connection_success: IntCounter,
    pub connection_error: IntCounter,
    pub connection_latency: Histogram,
    pub events_missed: IntCounter,
}

impl PlegMetrics {
    pub(super) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let histogram = |name: &str, help: &str| -> Result<Histogram, prometheus::Error> {
            let histogram = Histogram::with_opts(HistogramOpts::new(name, help).buckets(DEFAULT_BUCKETS.to_vec()))?;
            registry.register(Box::new(histogram.clone()))?;
            Ok(histogram)
        };
        let counter = |name: &str, help: &str| -> Result<IntCounter, prometheus::Error> {
            let counter = IntCounter::with_opts(Opts::new(name, help))?;
            registry.register(Box::new(counter.clone()))?;
            Ok(counter)
        };
        let last_seen = Gauge::new(
            "kubelet_pleg_last_seen_seconds",
            "[ALPHA] Timestamp in seconds when PLEG was last seen active.",
        )?;
        registry.register(Box::new(last_seen.clone()))?;
        Ok(PlegMetrics {
            relist_duration: histogram(
                "kubelet_pleg_relist_duration_seconds",
                "[ALPHA] Duration in seconds for relisting pods in PLEG.",
            )?,
            relist_interval: histogram(
                "kubelet_pleg_relist_interval_seconds",
                "[ALPHA] Interval in seconds between relisting in PLEG.",
            )?,
            pod_relist_duration: histogram(
                "kubelet_pleg_pod_relist_duration_seconds",
                "[ALPHA] Duration in seconds for relisting a single pod in PLEG.",
            )?,
            discard_events: counter("kubelet_pleg_discard_events", "[ALPHA] The number of discard events in PLEG.")?,
            last_seen,
            connection_success: counter(
                "kubelet_evented_pleg_connection_success_count",
                "[ALPHA] The number of times a streaming client was obtained to receive CRI Events.",
            )?,
            connection_error: counter(
                "kubelet_evented_pleg_connection_error_count",
                "[ALPHA] The number of errors encountered during the establishment of streaming connection with \
                 the CRI runtime.",
            )?,
            connection_latency: histogram(
                "kubelet_evented_pleg_connection_latency_seconds",
                "[ALPHA] The latency of streaming connection with the CRI runtime, measured in seconds.",
            )?,
            events_missed: counter(
                "bulkhead_pleg_events_missed_total",
                "Changes that only the audit relist brought to light: the runtime's events had not told of them.",
            )?,
        })
    }
}
