//! Metrics of the main loop, names and buckets as upstream's (`pkg/kubelet/metrics/metrics.go`). CRI calls, PLEG and
//! images have theirs beside their code.

use prometheus::{
    DEFAULT_BUCKETS, Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, Opts, Registry,
};

const STARTUP_BUCKETS: [f64; 25] = [
    0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 20.0, 30.0, 45.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0,
    600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0,
];

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
}

impl Metrics {
    /// # Errors
    /// A name that is taken; each is registered once.
    pub fn register(registry: &Registry, node_name: &str) -> Result<Metrics, prometheus::Error> {
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
        gauges("kubelet_node_name", "Name of this node; the value is 1.", &["node"])?
            .with_label_values(&[node_name])
            .set(1.0);
        let worker_duration = HistogramVec::new(
            HistogramOpts::new(
                "kubelet_pod_worker_duration_seconds",
                "Seconds that one piece of work on a pod took, by what caused it.",
            )
            .buckets(DEFAULT_BUCKETS.to_vec()),
            &["operation_type"],
        )?;
        registry.register(Box::new(worker_duration.clone()))?;
        let resize_duration = HistogramVec::new(
            HistogramOpts::new("kubelet_pod_resize_duration_milliseconds", "Milliseconds that a resize took.")
                .buckets(RESIZE_BUCKETS.to_vec()),
            &["success"],
        )?;
        registry.register(Box::new(resize_duration.clone()))?;
        let in_progress_resizes =
            Gauge::new("kubelet_pod_in_progress_resizes", "Pods whose containers do not have what was granted yet.")?;
        registry.register(Box::new(in_progress_resizes.clone()))?;
        let running_pods = Gauge::new("kubelet_running_pods", "Pods with a ready sandbox.")?;
        registry.register(Box::new(running_pods.clone()))?;
        let orphaned_runtime_pods =
            IntCounter::new("kubelet_orphaned_runtime_pods_total", "Pods found in the runtime that no worker knew.")?;
        registry.register(Box::new(orphaned_runtime_pods.clone()))?;
        let restarted_pods = IntCounterVec::new(
            Opts::new(
                "kubelet_restarted_pods_total",
                "Pods that were removed and came back under the same uid while this process watched.",
            ),
            &["static"],
        )?;
        registry.register(Box::new(restarted_pods.clone()))?;
        for label in ["", "true"] {
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
            admission_rejections: counters(
                "kubelet_admission_rejections_total",
                "Pods that were refused, by why.",
                &["reason"],
            )?,
            preemptions: counters(
                "kubelet_preemptions",
                "Pods that were ended to make room for a critical one, by what was short.",
                &["preemption_signal"],
            )?,
            requested_resizes: counters(
                "kubelet_container_requested_resizes_total",
                "Amounts of containers that somebody asked to change, by resource, list and what was done to it.",
                &["resource", "requirement", "operation"],
            )?,
            infeasible_resizes: counters(
                "kubelet_pod_infeasible_resizes_total",
                "Resizes that this node can never do, by why.",
                &["reason_detail"],
            )?,
            deferred_accepted: counters(
                "kubelet_pod_deferred_accepted_resizes_total",
                "Resizes that were granted after they had to wait, by what made them be tried again.",
                &["retry_trigger"],
            )?,
            pending_resizes: gauges(
                "kubelet_pod_pending_resizes",
                "Pods that were not granted what they ask for, by why.",
                &["reason"],
            )?,
            in_progress_resizes,
            resize_duration,
            started_pods: counter("kubelet_started_pods_total", "Sandboxes whose start was tried.")?,
            started_pods_errors: counter("kubelet_started_pods_errors_total", "Sandboxes that could not be started.")?,
            started_containers: counters(
                "kubelet_started_containers_total",
                "Containers whose start was tried.",
                &["container_type"],
            )?,
            terminated_containers: counters(
                "kubelet_terminated_containers_total",
                "Containers that have ended.",
                &["container_type", "exit_code", "reason"],
            )?,
            started_containers_errors: counters(
                "kubelet_started_containers_errors_total",
                "Containers that could not be started, by why.",
                &["container_type", "code"],
            )?,
            worker_duration,
            worker_start: histogram(
                "kubelet_pod_worker_start_duration_seconds",
                "Seconds from the first sight of a pod to the start of work on it.",
                DEFAULT_BUCKETS,
            )?,
            pod_start: histogram(
                "kubelet_pod_start_duration_seconds",
                "Seconds from the first sight of a pod to its running.",
                &STARTUP_BUCKETS,
            )?,
            running_pods,
            running_containers: gauges(
                "kubelet_running_containers",
                "Containers of the runtime, by state.",
                &["container_state"],
            )?,
            desired_pods: gauges("kubelet_desired_pods", "Pods that the sources want.", &["static"])?,
            active_pods: gauges(
                "kubelet_active_pods",
                "Wanted pods that are neither over nor about to end.",
                &["static"],
            )?,
            working_pods: gauges(
                "kubelet_working_pods",
                "Pod workers by stage of life, by whether a source still wants the pod, and by kind of source.",
                &["lifecycle", "config", "static"],
            )?,
            orphaned_runtime_pods,
            restarted_pods,
            containers_per_pod: histogram(
                "kubelet_containers_per_pod_count",
                "Containers of each new pod.",
                &[1.0, 2.0, 4.0, 8.0, 16.0],
            )?,
        })
    }
}
