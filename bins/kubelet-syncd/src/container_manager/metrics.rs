//! Upstream's metrics of the CPU, memory and topology managers, made from what the managers have when they are asked for.

use std::sync::Arc;

use kubelet_container_manager::ContainerManager as Managers;
use kubelet_container_manager::topology::{Counts, Policy, Refusal, Scope};
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Gauge, GaugeVec, Histogram, HistogramOpts, IntCounter, IntCounterVec, Opts, Registry};

use super::ContainerManager;

/// Milliseconds: 0.05 and each twice the one before it.
const ADMISSION_BUCKETS: [f64; 15] =
    [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4, 204.8, 409.6, 819.2];

/// Counted as pods are admitted.
#[derive(Debug, Clone)]
pub struct AdmissionMetrics {
    requests: IntCounter,
    errors: IntCounter,
    milliseconds: Histogram,
    aligned: IntCounterVec,
    aligned_failures: IntCounterVec,
}

impl AdmissionMetrics {
    /// # Errors
    /// A name that is taken.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let metrics = AdmissionMetrics::new()?;
        registry.register(Box::new(metrics.requests.clone()))?;
        registry.register(Box::new(metrics.errors.clone()))?;
        registry.register(Box::new(metrics.milliseconds.clone()))?;
        registry.register(Box::new(metrics.aligned.clone()))?;
        registry.register(Box::new(metrics.aligned_failures.clone()))?;
        Ok(metrics)
    }

    fn new() -> Result<Self, prometheus::Error> {
        let alignment = |name: &str, help: &str| IntCounterVec::new(Opts::new(name, help), &["scope", "boundary"]);
        let duration = HistogramOpts::new(
            "kubelet_topology_manager_admission_duration_ms",
            "[ALPHA] Duration in milliseconds to serve a pod admission request.",
        );
        Ok(AdmissionMetrics {
            requests: IntCounter::new(
                "kubelet_topology_manager_admission_requests_total",
                "[ALPHA] The number of admission requests where resources have to be aligned.",
            )?,
            errors: IntCounter::new(
                "kubelet_topology_manager_admission_errors_total",
                "[ALPHA] The number of admission request failures where resources could not be aligned.",
            )?,
            milliseconds: Histogram::with_opts(duration.buckets(ADMISSION_BUCKETS.to_vec()))?,
            aligned: alignment(
                "kubelet_container_aligned_compute_resources_count",
                "[ALPHA] Cumulative number of aligned compute resources allocated to containers by alignment type.",
            )?,
            aligned_failures: alignment(
                "kubelet_container_aligned_compute_resources_failure_count",
                "[ALPHA] Cumulative number of failures to allocate aligned compute resources to containers by alignment type.",
            )?,
        })
    }

    /// The series that upstream shows from the start.
    pub fn begin(&self, managers: &Managers) {
        if managers.topology().policy() != Policy::None {
            for scope in ["container", "pod"] {
                self.aligned.with_label_values(&[scope, "numa_node"]).inc_by(0);
                self.aligned_failures.with_label_values(&[scope, "numa_node"]).inc_by(0);
            }
        }
        if managers.cpu().is_some() {
            for boundary in ["physical_cpu", "uncore_cache"] {
                self.aligned.with_label_values(&["container", boundary]).inc_by(0);
            }
            self.aligned_failures.with_label_values(&["container", "physical_cpu"]).inc_by(0);
        }
    }

    /// A pod with so many containers was admitted or refused. `before`: the CPU manager's counts until then.
    pub fn admitted(&self, managers: &Managers, before: Counts, containers: usize, refused: Option<&Refusal>, ms: f64) {
        self.requests.inc();
        self.milliseconds.observe(ms);
        let (policy, scope) = (managers.topology().policy(), managers.topology().scope());
        if refused.is_some() && policy != Policy::None {
            self.errors.inc();
        }
        if policy == Policy::SingleNumaNode {
            let (label, granted) = match scope {
                Scope::Container => ("container", u64::try_from(containers).unwrap_or(u64::MAX)),
                Scope::Pod => ("pod", 1),
            };
            match refused {
                None => self.aligned.with_label_values(&[label, "numa_node"]).inc_by(granted),
                Some(refusal) if refusal.reason == Refusal::topology().reason => {
                    self.aligned_failures.with_label_values(&[label, "numa_node"]).inc();
                }
                Some(_) => {}
            }
        }
        let Some(cpu) = managers.cpu() else { return };
        let (now, aligned) = (cpu.counts, |boundary| self.aligned.with_label_values(&["container", boundary]));
        if cpu.gives_whole_cores() {
            // Of what pods have of their own upstream counts none.
            let failed = now.node.errors - before.node.errors;
            aligned("physical_cpu").inc_by((now.node.requests - before.node.requests).saturating_sub(failed));
            self.aligned_failures.with_label_values(&["container", "physical_cpu"]).inc_by(failed);
        }
        aligned("uncore_cache").inc_by(now.uncore_aligned - before.uncore_aligned);
    }
}

/// Who has what, at the moment of a scrape.
#[derive(Debug)]
pub struct Allocations {
    manager: Arc<ContainerManager>,
    shared: Gauge,
    exclusive: Gauge,
    by_node: GaugeVec,
    cpu: [IntCounter; 2],
    memory: [IntCounter; 2],
    /// With gate PodLevelResourceManagers.
    levels: Option<Levels>,
}

/// What the managers gave of what the node has, and of what pods have of their own.
#[derive(Debug)]
struct Levels {
    allocations: IntCounterVec,
    errors: IntCounterVec,
    assignments: IntCounterVec,
}

impl Levels {
    fn new() -> Result<Self, prometheus::Error> {
        let counter =
            |name: &str, help: &str, by: &str| IntCounterVec::new(Opts::new(name, help), &["resource_name", by]);
        Ok(Levels {
            allocations: counter(
                "resource_manager_allocations_total",
                "[ALPHA] Number of exclusive resource allocations performed by a resource manager.",
                "source",
            )?,
            errors: counter(
                "resource_manager_allocation_errors_total",
                "[ALPHA] Number of errors encountered during exclusive resource allocation.",
                "source",
            )?,
            assignments: counter(
                "resource_manager_container_assignments",
                "[ALPHA] Number of containers with a specific type of resource assignment.",
                "assignment_type",
            )?,
        })
    }

    fn show(&self, resource: &str, counts: Counts) {
        // A series of nothing is not shown.
        let show = |family: &IntCounterVec, label: &str, count: u64| {
            if count > 0 {
                let series = family.with_label_values(&[resource, label]);
                series.inc_by(count.saturating_sub(series.get()));
            }
        };
        for (source, given) in [("node", counts.node), ("pod", counts.pod)] {
            show(&self.allocations, source, given.allocations);
            show(&self.errors, source, given.errors);
        }
        show(&self.assignments, "node_exclusive", counts.node.exclusive);
        show(&self.assignments, "pod_exclusive", counts.pod.exclusive);
        show(&self.assignments, "pod_shared", counts.pod.shared);
    }
}

impl Allocations {
    /// # Errors
    /// None that a constant table can cause.
    pub fn new(manager: Arc<ContainerManager>) -> Result<Self, prometheus::Error> {
        let by_node =
            Opts::new("kubelet_cpu_manager_allocation_per_numa", "[ALPHA] Number of CPUs allocated per NUMA node");
        let levels = manager.managers.lock().has_pod_level().then(Levels::new).transpose()?;
        Ok(Allocations {
            manager,
            levels,
            shared: Gauge::new(
                "kubelet_cpu_manager_shared_pool_size_millicores",
                "[ALPHA] The size of the shared CPU pool for non-guaranteed QoS pods, in millicores.",
            )?,
            exclusive: Gauge::new(
                "kubelet_cpu_manager_exclusive_cpu_allocation_count",
                "[ALPHA] The total number of CPUs exclusively allocated to containers running on this node",
            )?,
            by_node: GaugeVec::new(by_node, &["numa_node"])?,
            cpu: [
                IntCounter::new(
                    "kubelet_cpu_manager_pinning_requests_total",
                    "[ALPHA] The number of cpu core allocations which required pinning.",
                )?,
                IntCounter::new(
                    "kubelet_cpu_manager_pinning_errors_total",
                    "[ALPHA] The number of cpu core allocations which required pinning failed.",
                )?,
            ],
            memory: [
                IntCounter::new(
                    "kubelet_memory_manager_pinning_requests_total",
                    "[ALPHA] The number of memory pages allocations which required pinning.",
                )?,
                IntCounter::new(
                    "kubelet_memory_manager_pinning_errors_total",
                    "[ALPHA] The number of memory pages allocations which required pinning that failed.",
                )?,
            ],
        })
    }

    fn parts(&self) -> Vec<&dyn Collector> {
        let ([cpu, cpu_errors], [memory, memory_errors]) = (&self.cpu, &self.memory);
        let mut parts: Vec<&dyn Collector> =
            vec![&self.shared, &self.exclusive, &self.by_node, cpu, cpu_errors, memory, memory_errors];
        if let Some(Levels { allocations, errors, assignments }) = &self.levels {
            parts.extend([allocations, errors, assignments].map(|family| family as &dyn Collector));
        }
        parts
    }

    fn show(&self, managers: &Managers) {
        let cpu = managers.cpu().map(|cpu| cpu.counts).unwrap_or_default();
        let memory = managers.memory().map(|memory| memory.counts).unwrap_or_default();
        let counted = [("cpu", &self.cpu, cpu), ("memory", &self.memory, memory)];
        for (resource, [requests, errors], counts) in counted {
            requests.inc_by(counts.requests().saturating_sub(requests.get()));
            errors.inc_by(counts.errors().saturating_sub(errors.get()));
            if let Some(levels) = &self.levels {
                levels.show(resource, counts);
            }
        }
        let Some(cpu) = managers.cpu() else { return };
        self.shared.set((cpu.available().len() * 1000) as f64);
        self.exclusive.set(cpu.exclusive().len() as f64);
        for (node, count) in cpu.exclusive_by_node() {
            self.by_node.with_label_values(&[&node.to_string()]).set(count as f64);
        }
    }
}

impl Collector for Allocations {
    fn desc(&self) -> Vec<&Desc> {
        self.parts().into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.show(&self.manager.managers.lock());
        self.parts().into_iter().flat_map(Collector::collect).collect()
    }
}
