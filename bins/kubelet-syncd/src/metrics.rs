//! Metrics of the main loop, names and buckets as upstream's (`pkg/kubelet/metrics/metrics.go`). CRI calls, PLEG and
//! images have theirs beside their code.

use prometheus::{
    DEFAULT_BUCKETS, Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, Opts, Registry,
};

pub const STARTUP_BUCKETS: [f64; 25] = [
    0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 20.0, 30.0, 45.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0,
    600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0,
];

/// From a cgroup's millisecond to a pull's minutes.
const STAGE_BUCKETS: [f64; 14] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 300.0];

/// Milliseconds.
const RESIZE_BUCKETS: [f64; 14] = [
    10.0, 50.0, 100.0, 500.0, 1000.0, 2000.0, 5000.0, 10_000.0, 20_000.0, 30_000.0, 60_000.0, 120_000.0, 300_000.0,
    600_000.0,
];

/// Registered once for the process.
#[derive(Debug, Clone)]
pub struct Metrics {
    pub worker_duration: HistogramVec,
    pub worker_start: Histogram,
    pub start_stages: HistogramVec,
    pub pod_start: Histogram,
    pub running_pods: Gauge,
    pub running_containers: GaugeVec,
    pub desired_pods: GaugeVec,
    pub active_pods: GaugeVec,
    pub working_pods: GaugeVec,
    pub orphaned_runtime_pods: IntCounter,
    pub restarted_pods: IntCounterVec,
    pub containers_per_pod: Histogram,
    pub started_pods: IntCounter,
    pub started_pods_errors: IntCounter,
    /// Pods with users of their own.
    pub started_users: IntCounter,
    pub started_users_errors: IntCounter,
    pub ephemeral_containers: Gauge,
    pub started_containers: IntCounterVec,
    pub started_containers_errors: IntCounterVec,
    pub terminated_containers: IntCounterVec,
    pub admission_rejections: IntCounterVec,
    pub preemptions: IntCounterVec,
    pub requested_resizes: IntCounterVec,
    pub resize_duration: HistogramVec,
    pub pending_resizes: GaugeVec,
    pub infeasible_resizes: IntCounterVec,
    pub in_progress_resizes: Gauge,
    pub deferred_accepted: IntCounterVec,
    /// Bytes that are kept for guaranteed pods.
    pub memory_min: Gauge,
    /// Bytes that are kept for burstable pods.
    pub memory_low: Gauge,
}

/// Value of the label `static`: "true", and of pods of the API server nothing (upstream `pkg/kubelet/kubelet_pods.go`,
/// HandlePodCleanups).
pub(crate) const fn static_label(is_static: bool) -> &'static str {
    if is_static { "true" } else { "" }
}

impl Metrics {
    /// A pod begins anew under its UID (`kubelet_restarted_pods_total`).
    pub fn count_restarted(&self, is_static: bool) {
        self.restarted_pods.with_label_values(&[static_label(is_static)]).inc();
    }

    /// What memory is kept is shown where gate `MemoryQoS` is on, whether the machine's cgroups can do it or not.
    ///
    /// # Errors
    /// A name that is taken; each is registered once.
    pub fn register(registry: &Registry, memory_qos: bool) -> Result<Metrics, prometheus::Error> {
        let memory = |name: &str, help: &str| -> Result<Gauge, prometheus::Error> {
            let metric = Gauge::new(name, help)?;
            if memory_qos {
                registry.register(Box::new(metric.clone()))?;
            }
            Ok(metric)
        };
        let histogram = |name: &str, help: &str, buckets: &[f64]| -> Result<Histogram, prometheus::Error> {
            let metric = Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets.to_vec()))?;
            registry.register(Box::new(metric.clone()))?;
            Ok(metric)
        };
        let gauges = |name: &str, help: &str, labels: &[&str]| -> Result<GaugeVec, prometheus::Error> {
            let metric = GaugeVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(metric.clone()))?;
            Ok(metric)
        };
        let worker_duration = HistogramVec::new(
            HistogramOpts::new(
                "kubelet_pod_worker_duration_seconds",
                "[ALPHA] Duration in seconds to sync a single pod. Broken down by operation type: create, update, \
                 or sync",
            )
            .buckets(DEFAULT_BUCKETS.to_vec()),
            &["operation_type"],
        )?;
        registry.register(Box::new(worker_duration.clone()))?;
        let resize_duration = HistogramVec::new(
            HistogramOpts::new(
                "kubelet_pod_resize_duration_milliseconds",
                "[ALPHA] Duration in milliseconds to actuate a pod resize",
            )
            .buckets(RESIZE_BUCKETS.to_vec()),
            &["success"],
        )?;
        registry.register(Box::new(resize_duration.clone()))?;
        let in_progress_resizes =
            Gauge::new("kubelet_pod_in_progress_resizes", "[ALPHA] Number of in-progress resizes for pods.")?;
        registry.register(Box::new(in_progress_resizes.clone()))?;
        let running_pods =
            Gauge::new("kubelet_running_pods", "[ALPHA] Number of pods that have a running pod sandbox")?;
        registry.register(Box::new(running_pods.clone()))?;
        let ephemeral_containers = Gauge::new(
            "kubelet_managed_ephemeral_containers",
            "[ALPHA] Current number of ephemeral containers in pods managed by this kubelet.",
        )?;
        registry.register(Box::new(ephemeral_containers.clone()))?;
        let orphaned_runtime_pods = IntCounter::new(
            "kubelet_orphaned_runtime_pods_total",
            "[ALPHA] Number of pods that have been detected in the container runtime without being already known \
             to the pod worker. This typically indicates the kubelet was restarted while a pod was force deleted \
             in the API or in the local configuration, which is unusual.",
        )?;
        registry.register(Box::new(orphaned_runtime_pods.clone()))?;
        let restarted_pods = IntCounterVec::new(
            Opts::new(
                "kubelet_restarted_pods_total",
                "[ALPHA] Number of pods that have been restarted because they were deleted and recreated with the \
                 same UID while the kubelet was watching them (common for static pods, extremely uncommon for API \
                 pods)",
            ),
            &["static"],
        )?;
        registry.register(Box::new(restarted_pods.clone()))?;
        for label in [false, true].map(static_label) {
            restarted_pods.with_label_values(&[label]).inc_by(0);
        }
        let counter = |name: &str, help: &str| -> Result<IntCounter, prometheus::Error> {
            let metric = IntCounter::new(name, help)?;
            registry.register(Box::new(metric.clone()))?;
            Ok(metric)
        };
        let counters = |name: &str, help: &str, labels: &[&str]| -> Result<IntCounterVec, prometheus::Error> {
            let metric = IntCounterVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(metric.clone()))?;
            Ok(metric)
        };
        Ok(Metrics {
            memory_min: memory(
                "kubelet_memory_qos_node_memory_min_bytes",
                "[ALPHA] Total cgroup v2 memory.min in bytes for Guaranteed pods. This memory is hard-reserved and \
                 never reclaimed by the kernel.",
            )?,
            memory_low: memory(
                "kubelet_memory_qos_node_memory_low_bytes",
                "[ALPHA] Total cgroup v2 memory.low in bytes for Burstable pods. This memory is soft-reserved and may \
                 be reclaimed under extreme pressure.",
            )?,
            admission_rejections: counters(
                "kubelet_admission_rejections_total",
                "[ALPHA] Cumulative number pod admission rejections by the Kubelet.",
                &["reason"],
            )?,
            preemptions: counters(
                "kubelet_preemptions",
                "[ALPHA] Cumulative number of pod preemptions by preemption resource",
                &["preemption_signal"],
            )?,
            requested_resizes: counters(
                "kubelet_container_requested_resizes_total",
                "[ALPHA] Number of requested resizes, counted at the container level. Different resources on the \
                 same container are counted separately. The 'requirement' label refers to 'memory' or 'limits'; \
                 the 'operation' label can be one of 'add', 'remove', 'increase' or 'decrease'.",
                &["resource", "requirement", "operation"],
            )?,
            infeasible_resizes: counters(
                "kubelet_pod_infeasible_resizes_total",
                "[ALPHA] Number of infeasible resizes for pods.",
                &["reason_detail"],
            )?,
            deferred_accepted: counters(
                "kubelet_pod_deferred_accepted_resizes_total",
                "[ALPHA] Cumulative number of resizes that were accepted after being deferred.",
                &["retry_trigger"],
            )?,
            pending_resizes: gauges(
                "kubelet_pod_pending_resizes",
                "[ALPHA] Number of pending resizes for pods.",
                &["reason"],
            )?,
            in_progress_resizes,
            resize_duration,
            started_pods: counter("kubelet_started_pods_total", "[ALPHA] Cumulative number of pods started")?,
            started_pods_errors: counter(
                "kubelet_started_pods_errors_total",
                "[ALPHA] Cumulative number of errors when starting pods",
            )?,
            started_users: counter(
                "kubelet_started_user_namespaced_pods_total",
                "[ALPHA] Cumulative number of pods with user namespaces started. This metric will only be collected on \
                 Linux.",
            )?,
            started_users_errors: counter(
                "kubelet_started_user_namespaced_pods_errors_total",
                "[ALPHA] Cumulative number of errors when starting pods with user namespaces. This metric will only be \
                 collected on Linux.",
            )?,
            ephemeral_containers,
            started_containers: counters(
                "kubelet_started_containers_total",
                "[ALPHA] Cumulative number of containers started",
                &["container_type"],
            )?,
            terminated_containers: counters(
                "kubelet_terminated_containers_total",
                "[ALPHA] Cumulative number of container terminations.",
                &["container_type", "exit_code", "reason"],
            )?,
            started_containers_errors: counters(
                "kubelet_started_containers_errors_total",
                "[ALPHA] Cumulative number of errors when starting containers",
                &["container_type", "code"],
            )?,
            worker_duration,
            start_stages: {
                let times = HistogramVec::new(
                    HistogramOpts::new(
                        "bulkhead_pod_start_stage_duration_seconds",
                        "[ALPHA] Seconds that the stages of a pod's start took.",
                    )
                    .buckets(STAGE_BUCKETS.to_vec()),
                    &["stage"],
                )?;
                registry.register(Box::new(times.clone()))?;
                times
            },
            worker_start: histogram(
                "kubelet_pod_worker_start_duration_seconds",
                "[ALPHA] Duration in seconds from kubelet seeing a pod to starting a worker.",
                DEFAULT_BUCKETS,
            )?,
            pod_start: histogram(
                "kubelet_pod_start_duration_seconds",
                "[ALPHA] Duration in seconds from kubelet seeing a pod for the first time to the pod starting to \
                 run",
                &STARTUP_BUCKETS,
            )?,
            running_pods,
            running_containers: gauges(
                "kubelet_running_containers",
                "[ALPHA] Number of containers currently running",
                &["container_state"],
            )?,
            desired_pods: gauges(
                "kubelet_desired_pods",
                "[ALPHA] The number of pods the kubelet is being instructed to run. static is true if the pod is not \
             from the apiserver.",
                &["static"],
            )?,
            active_pods: gauges(
                "kubelet_active_pods",
                "[ALPHA] The number of pods the kubelet considers active and which are being considered when \
                 admitting new pods. static is true if the pod is not from the apiserver.",
                &["static"],
            )?,
            working_pods: gauges(
                "kubelet_working_pods",
                "[ALPHA] Number of pods the kubelet is actually running, broken down by lifecycle phase, whether \
                 the pod is desired, orphaned, or runtime only (also orphaned), and whether the pod is static. An \
                 orphaned pod has been removed from local configuration or force deleted in the API and consumes \
                 resources that are not otherwise visible.",
                &["lifecycle", "config", "static"],
            )?,
            orphaned_runtime_pods,
            restarted_pods,
            containers_per_pod: histogram(
                "kubelet_containers_per_pod_count",
                "[ALPHA] The number of containers per pod.",
                &[1.0, 2.0, 4.0, 8.0, 16.0],
            )?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_static_pods_are_counted_as_static() {
        let metrics = Metrics::register(&Registry::new(), false).unwrap();
        metrics.count_restarted(false);
        metrics.count_restarted(false);
        metrics.count_restarted(true);
        let counted = ["", "true"].map(|label| metrics.restarted_pods.with_label_values(&[label]).get());
        assert_eq!(counted, [2, 1]);
    }
}
