//! Metrics of the main loop, names and buckets as upstream's (`pkg/kubelet/metrics/metrics.go`). CRI calls, PLEG and
//! images have theirs beside their code.

use prometheus::core::Collector;
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
    pub workers: PodWorkers,
    pub pods: PodCounts,
    pub starts: Starts,
    pub admission: Admissions,
    pub resizes: Resizes,
    pub memory: MemoryQos,
}

/// Of the pod workers.
#[derive(Debug, Clone)]
pub struct PodWorkers {
    pub duration: HistogramVec,
    pub start: Histogram,
    pub orphaned_runtime_pods: IntCounter,
    pub restarted_pods: IntCounterVec,
}

/// How many pods and containers there are now.
#[derive(Debug, Clone)]
pub struct PodCounts {
    pub running: Gauge,
    pub running_containers: GaugeVec,
    pub desired: GaugeVec,
    pub active: GaugeVec,
    pub working: GaugeVec,
    pub ephemeral_containers: Gauge,
}

/// What is started, and how containers end.
#[derive(Debug, Clone)]
pub struct Starts {
    pub stages: HistogramVec,
    pub duration: Histogram,
    pub containers_per_pod: Histogram,
    pub pods: IntCounter,
    pub pods_errors: IntCounter,
    /// Pods with users of their own.
    pub users: IntCounter,
    pub users_errors: IntCounter,
    pub containers: IntCounterVec,
    pub containers_errors: IntCounterVec,
    pub terminated_containers: IntCounterVec,
}

/// Of admission.
#[derive(Debug, Clone)]
pub struct Admissions {
    pub rejections: IntCounterVec,
    pub preemptions: IntCounterVec,
}

/// Of resizes in place.
#[derive(Debug, Clone)]
pub struct Resizes {
    pub requested: IntCounterVec,
    pub duration: HistogramVec,
    pub pending: GaugeVec,
    pub infeasible: IntCounterVec,
    pub in_progress: Gauge,
    pub deferred_accepted: IntCounterVec,
}

/// What memory is kept (gate `MemoryQoS`).
#[derive(Debug, Clone)]
pub struct MemoryQos {
    /// Bytes that are kept for guaranteed pods.
    pub min: Gauge,
    /// Bytes that are kept for burstable pods.
    pub low: Gauge,
}

/// Value of the label `static`: "true", and of pods of the API server nothing (upstream `pkg/kubelet/kubelet_pods.go`,
/// HandlePodCleanups).
pub(crate) const fn static_label(is_static: bool) -> &'static str {
    if is_static { "true" } else { "" }
}

/// Makes metrics and registers each.
struct Families<'a>(&'a Registry);

impl Families<'_> {
    fn put<T: Collector + Clone + 'static>(&self, metric: T) -> Result<T, prometheus::Error> {
        self.0.register(Box::new(metric.clone()))?;
        Ok(metric)
    }

    fn histogram(&self, name: &str, help: &str, buckets: &[f64]) -> Result<Histogram, prometheus::Error> {
        self.put(Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets.to_vec()))?)
    }

    fn histograms(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
        buckets: &[f64],
    ) -> Result<HistogramVec, prometheus::Error> {
        self.put(HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets.to_vec()), labels)?)
    }

    fn gauge(&self, name: &str, help: &str) -> Result<Gauge, prometheus::Error> {
        self.put(Gauge::new(name, help)?)
    }

    fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> Result<GaugeVec, prometheus::Error> {
        self.put(GaugeVec::new(Opts::new(name, help), labels)?)
    }

    fn counter(&self, name: &str, help: &str) -> Result<IntCounter, prometheus::Error> {
        self.put(IntCounter::new(name, help)?)
    }

    fn counters(&self, name: &str, help: &str, labels: &[&str]) -> Result<IntCounterVec, prometheus::Error> {
        self.put(IntCounterVec::new(Opts::new(name, help), labels)?)
    }
}

impl Metrics {
    /// A pod begins anew under its UID (`kubelet_restarted_pods_total`).
    pub fn count_restarted(&self, is_static: bool) {
        self.workers.restarted_pods.with_label_values(&[static_label(is_static)]).inc();
    }

    /// What memory is kept is shown where gate `MemoryQoS` is on, whether the machine's cgroups can do it or not.
    ///
    /// # Errors
    /// A name that is taken; each is registered once.
    pub fn register(registry: &Registry, memory_qos: bool) -> Result<Metrics, prometheus::Error> {
        let families = Families(registry);
        Ok(Metrics {
            workers: PodWorkers::register(&families)?,
            pods: PodCounts::register(&families)?,
            starts: Starts::register(&families)?,
            admission: Admissions::register(&families)?,
            resizes: Resizes::register(&families)?,
            // Nobody asks a registry that is dropped.
            memory: if memory_qos {
                MemoryQos::register(&families)?
            } else {
                MemoryQos::register(&Families(&Registry::new()))?
            },
        })
    }
}

impl PodWorkers {
    fn register(families: &Families<'_>) -> Result<Self, prometheus::Error> {
        let workers = PodWorkers {
            duration: families.histograms(
                "kubelet_pod_worker_duration_seconds",
                "[ALPHA] Duration in seconds to sync a single pod. Broken down by operation type: create, update, or \
                 sync",
                &["operation_type"],
                DEFAULT_BUCKETS,
            )?,
            start: families.histogram(
                "kubelet_pod_worker_start_duration_seconds",
                "[ALPHA] Duration in seconds from kubelet seeing a pod to starting a worker.",
                DEFAULT_BUCKETS,
            )?,
            orphaned_runtime_pods: families.counter(
                "kubelet_orphaned_runtime_pods_total",
                "[ALPHA] Number of pods that have been detected in the container runtime without being already known \
                 to the pod worker. This typically indicates the kubelet was restarted while a pod was force deleted \
                 in the API or in the local configuration, which is unusual.",
            )?,
            restarted_pods: families.counters(
                "kubelet_restarted_pods_total",
                "[ALPHA] Number of pods that have been restarted because they were deleted and recreated with the \
                 same UID while the kubelet was watching them (common for static pods, extremely uncommon for API \
                 pods)",
                &["static"],
            )?,
        };
        for label in [false, true].map(static_label) {
            workers.restarted_pods.with_label_values(&[label]).inc_by(0);
        }
        Ok(workers)
    }
}

impl PodCounts {
    fn register(families: &Families<'_>) -> Result<Self, prometheus::Error> {
        Ok(PodCounts {
            running: families
                .gauge("kubelet_running_pods", "[ALPHA] Number of pods that have a running pod sandbox")?,
            running_containers: families.gauges(
                "kubelet_running_containers",
                "[ALPHA] Number of containers currently running",
                &["container_state"],
            )?,
            desired: families.gauges(
                "kubelet_desired_pods",
                "[ALPHA] The number of pods the kubelet is being instructed to run. static is true if the pod is not \
                 from the apiserver.",
                &["static"],
            )?,
            active: families.gauges(
                "kubelet_active_pods",
                "[ALPHA] The number of pods the kubelet considers active and which are being considered when \
                 admitting new pods. static is true if the pod is not from the apiserver.",
                &["static"],
            )?,
            working: families.gauges(
                "kubelet_working_pods",
                "[ALPHA] Number of pods the kubelet is actually running, broken down by lifecycle phase, whether the \
                 pod is desired, orphaned, or runtime only (also orphaned), and whether the pod is static. An \
                 orphaned pod has been removed from local configuration or force deleted in the API and consumes \
                 resources that are not otherwise visible.",
                &["lifecycle", "config", "static"],
            )?,
            ephemeral_containers: families.gauge(
                "kubelet_managed_ephemeral_containers",
                "[ALPHA] Current number of ephemeral containers in pods managed by this kubelet.",
            )?,
        })
    }
}

impl Starts {
    fn register(families: &Families<'_>) -> Result<Self, prometheus::Error> {
        Ok(Starts {
            stages: families.histograms(
                "bulkhead_pod_start_stage_duration_seconds",
                "[ALPHA] Seconds that the stages of a pod's start took.",
                &["stage"],
                &STAGE_BUCKETS,
            )?,
            duration: families.histogram(
                "kubelet_pod_start_duration_seconds",
                "[ALPHA] Duration in seconds from kubelet seeing a pod for the first time to the pod starting to run",
                &STARTUP_BUCKETS,
            )?,
            containers_per_pod: families.histogram(
                "kubelet_containers_per_pod_count",
                "[ALPHA] The number of containers per pod.",
                &[1.0, 2.0, 4.0, 8.0, 16.0],
            )?,
            pods: families.counter("kubelet_started_pods_total", "[ALPHA] Cumulative number of pods started")?,
            pods_errors: families.counter(
                "kubelet_started_pods_errors_total",
                "[ALPHA] Cumulative number of errors when starting pods",
            )?,
            users: families.counter(
                "kubelet_started_user_namespaced_pods_total",
                "[ALPHA] Cumulative number of pods with user namespaces started. This metric will only be collected \
                 on Linux.",
            )?,
            users_errors: families.counter(
                "kubelet_started_user_namespaced_pods_errors_total",
                "[ALPHA] Cumulative number of errors when starting pods with user namespaces. This metric will only \
                 be collected on Linux.",
            )?,
            containers: families.counters(
                "kubelet_started_containers_total",
                "[ALPHA] Cumulative number of containers started",
                &["container_type"],
            )?,
            containers_errors: families.counters(
                "kubelet_started_containers_errors_total",
                "[ALPHA] Cumulative number of errors when starting containers",
                &["container_type", "code"],
            )?,
            terminated_containers: families.counters(
                "kubelet_terminated_containers_total",
                "[ALPHA] Cumulative number of container terminations.",
                &["container_type", "exit_code", "reason"],
            )?,
        })
    }
}

impl Admissions {
    fn register(families: &Families<'_>) -> Result<Self, prometheus::Error> {
        Ok(Admissions {
            rejections: families.counters(
                "kubelet_admission_rejections_total",
                "[ALPHA] Cumulative number pod admission rejections by the Kubelet.",
                &["reason"],
            )?,
            preemptions: families.counters(
                "kubelet_preemptions",
                "[ALPHA] Cumulative number of pod preemptions by preemption resource",
                &["preemption_signal"],
            )?,
        })
    }
}

impl Resizes {
    fn register(families: &Families<'_>) -> Result<Self, prometheus::Error> {
        Ok(Resizes {
            requested: families.counters(
                "kubelet_container_requested_resizes_total",
                "[ALPHA] Number of requested resizes, counted at the container level. Different resources on the same \
                 container are counted separately. The 'requirement' label refers to 'memory' or 'limits'; the \
                 'operation' label can be one of 'add', 'remove', 'increase' or 'decrease'.",
                &["resource", "requirement", "operation"],
            )?,
            duration: families.histograms(
                "kubelet_pod_resize_duration_milliseconds",
                "[ALPHA] Duration in milliseconds to actuate a pod resize",
                &["success"],
                &RESIZE_BUCKETS,
            )?,
            pending: families.gauges(
                "kubelet_pod_pending_resizes",
                "[ALPHA] Number of pending resizes for pods.",
                &["reason"],
            )?,
            infeasible: families.counters(
                "kubelet_pod_infeasible_resizes_total",
                "[ALPHA] Number of infeasible resizes for pods.",
                &["reason_detail"],
            )?,
            in_progress: families
                .gauge("kubelet_pod_in_progress_resizes", "[ALPHA] Number of in-progress resizes for pods.")?,
            deferred_accepted: families.counters(
                "kubelet_pod_deferred_accepted_resizes_total",
                "[ALPHA] Cumulative number of resizes that were accepted after being deferred.",
                &["retry_trigger"],
            )?,
        })
    }
}

impl MemoryQos {
    fn register(families: &Families<'_>) -> Result<Self, prometheus::Error> {
        Ok(MemoryQos {
            min: families.gauge(
                "kubelet_memory_qos_node_memory_min_bytes",
                "[ALPHA] Total cgroup v2 memory.min in bytes for Guaranteed pods. This memory is hard-reserved and \
                 never reclaimed by the kernel.",
            )?,
            low: families.gauge(
                "kubelet_memory_qos_node_memory_low_bytes",
                "[ALPHA] Total cgroup v2 memory.low in bytes for Burstable pods. This memory is soft-reserved and may \
                 be reclaimed under extreme pressure.",
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
        let counted = ["", "true"].map(|label| metrics.workers.restarted_pods.with_label_values(&[label]).get());
        assert_eq!(counted, [2, 1]);
    }
}
