//! This process's own metric families. Those with upstream's names have upstream's meaning.

use std::sync::Arc;

use bulkhead_ipc::evictiond::PodStats;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
};
use tokio::sync::Notify;

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
    /// Upstream's: pods evicted, by signal.
    pub evictions: IntCounterVec,
    /// Upstream's: how old the readings were by which pods were evicted, by signal.
    pub stats_age: HistogramVec,
    /// Upstream's: where statistics come from; "cadvisor" is its word for its own making of them, which ours are too.
    pub provider: IntGaugeVec,
    /// Kills for want of memory that the kernel's log told of, by whose they were.
    pub oom_kills: IntCounterVec,
    log_usage: LogUsage,
}

/// Upstream's `kubelet_container_log_filesystem_used_bytes`. Logs are measured for somebody who asks, and who reads the
/// metrics asks: a scrape gets what the newest sample says and has the next one made.
#[derive(Debug, Clone)]
struct LogUsage {
    bytes: IntGaugeVec,
    read: Arc<Notify>,
}

impl Collector for LogUsage {
    fn desc(&self) -> Vec<&Desc> {
        self.bytes.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.read.notify_one();
        self.bytes.collect()
    }
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
            evictions: IntCounterVec::new(
                Opts::new("kubelet_evictions", "[ALPHA] Cumulative number of pod evictions by eviction signal"),
                &["eviction_signal"],
            )?,
            stats_age: HistogramVec::new(
                HistogramOpts::new(
                    "kubelet_eviction_stats_age_seconds",
                    "[ALPHA] Time between when stats are collected, and when pod is evicted based on those stats by eviction signal",
                )
                .buckets(prometheus::DEFAULT_BUCKETS.to_vec()),
                &["eviction_signal"],
            )?,
            provider: IntGaugeVec::new(
                Opts::new(
                    "kubelet_metrics_provider",
                    "[ALPHA] Metrics provider used by kubelet to collect container stats. Values can be 'cadvisor' and 'cri'",
                ),
                &["provider"],
            )?,
            oom_kills: IntCounterVec::new(
                Opts::new(
                    "bulkhead_evictiond_oom_kills_total",
                    "[ALPHA] Cumulative number of out of memory kills read from the kernel's log, by victim: 'system' for want of \
                     the machine's memory, 'cgroup' in a control group with statistics, 'foreign' in another one.",
                ),
                &["victim"],
            )?,
            log_usage: LogUsage {
                bytes: IntGaugeVec::new(
                    Opts::new(
                        "kubelet_container_log_filesystem_used_bytes",
                        "[ALPHA] Bytes used by the container's logs on the filesystem.",
                    ),
                    &["uid", "namespace", "pod", "container"],
                )?,
                read: Arc::default(),
            },
        };
        registry.register(Box::new(metrics.provider.clone()))?;
        registry.register(Box::new(metrics.evictions.clone()))?;
        registry.register(Box::new(metrics.stats_age.clone()))?;
        registry.register(Box::new(metrics.oom_kills.clone()))?;
        registry.register(Box::new(metrics.log_usage.clone()))?;
        registry.register(Box::new(metrics.sample_seconds.clone()))?;
        registry.register(Box::new(metrics.samples_reused.clone()))?;
        registry.register(Box::new(metrics.pods.clone()))?;
        registry.register(Box::new(metrics.volume_seconds.clone()))?;
        Ok(metrics)
    }

    /// Resolves when somebody has read the metrics since the last time.
    pub async fn read(&self) {
        self.log_usage.read.notified().await;
    }

    /// Shows the logs of these pods' containers and of no others.
    pub fn set_log_usage(&self, pods: &[PodStats]) {
        self.log_usage.bytes.reset();
        for pod in pods {
            for container in &pod.containers {
                let Some(used) = container.logs.as_ref().and_then(|logs| logs.used_bytes) else { continue };
                let labels = [pod.uid.as_str(), &pod.namespace, &pod.name, &container.name];
                self.log_usage.bytes.with_label_values(&labels).set(i64::try_from(used).unwrap_or(i64::MAX));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bulkhead_ipc::evictiond::{ContainerStats, FsStats};

    #[tokio::test]
    async fn reading_the_metrics_asks_for_the_next_sample() {
        let registry = Registry::new();
        let metrics = Metrics::register(&registry).unwrap();
        let logs = Some(FsStats { used_bytes: Some(4096), ..Default::default() });
        let container = ContainerStats { name: "main".into(), logs, ..Default::default() };
        let pod = PodStats { name: "web".into(), containers: vec![container], ..Default::default() };
        metrics.set_log_usage(&[pod]);
        let text = bulkhead_daemon::encode_metrics(&registry);
        assert!(text.contains("container=\"main\"") && text.contains("} 4096"), "{text}");
        tokio::time::timeout(std::time::Duration::from_secs(5), metrics.read()).await.unwrap();
        metrics.set_log_usage(&[]);
        assert!(!bulkhead_daemon::encode_metrics(&registry).contains("log_filesystem_used_bytes{"));
    }
}
