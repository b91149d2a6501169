//! What this process counts, under upstream's names.

use std::time::Instant;

use prometheus::{Error, Gauge, HistogramOpts, HistogramVec, IntCounter, Registry};

/// Upstream's bounds for storage operations, seconds (`pkg/volume/util/metrics.go`).
const STORAGE_BUCKETS: [f64; 13] = [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0];

/// Handles are cheap to clone and may be used from any thread.
#[derive(Debug, Clone)]
pub struct Metrics {
    storage: HistogramVec,
    cgroups: HistogramVec,
    cleaned: Gauge,
    not_cleaned: Gauge,
    pub audit_dropped: IntCounter,
}

/// What is done to a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StorageOperation {
    Mount,
    Unmount,
}

/// What is done to a cgroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CgroupOperation {
    Create,
    Update,
    Destroy,
}

impl Metrics {
    /// Registers all of them.
    ///
    /// # Errors
    /// A name is taken already.
    pub fn new(registry: &Registry) -> Result<Self, Error> {
        let storage = HistogramVec::new(
            HistogramOpts::new("storage_operation_duration_seconds", "[ALPHA] Storage operation duration")
                .buckets(STORAGE_BUCKETS.to_vec()),
            &["volume_plugin", "operation_name", "status", "migrated"],
        )?;
        let cgroups = HistogramVec::new(
            HistogramOpts::new(
                "kubelet_cgroup_manager_duration_seconds",
                "[ALPHA] Duration in seconds for cgroup manager operations. Broken down by method.",
            ),
            &["operation_type"],
        )?;
        let cleaned = Gauge::new(
            "kubelet_orphan_pod_cleaned_volumes",
            "[ALPHA] The total number of orphaned Pods whose volumes were cleaned in the last periodic sweep.",
        )?;
        let not_cleaned = Gauge::new(
            "kubelet_orphan_pod_cleaned_volumes_errors",
            "[ALPHA] The number of orphaned Pods whose volumes failed to be cleaned in the last periodic sweep.",
        )?;
        let audit_dropped = IntCounter::new(
            "bulkhead_volnetd_audit_records_dropped_total",
            "Records of privileged acts that were not kept: the disk was full or too slow.",
        )?;
        registry.register(Box::new(audit_dropped.clone()))?;
        registry.register(Box::new(storage.clone()))?;
        registry.register(Box::new(cgroups.clone()))?;
        registry.register(Box::new(cleaned.clone()))?;
        registry.register(Box::new(not_cleaned.clone()))?;
        Ok(Metrics { storage, cgroups, cleaned, not_cleaned, audit_dropped })
    }

    /// `seconds`: how long it took.
    pub fn storage(&self, plugin: &str, operation: StorageOperation, seconds: f64, worked: bool) {
        let operation = match operation {
            StorageOperation::Mount => "volume_mount",
            StorageOperation::Unmount => "volume_unmount",
        };
        let status = if worked { "success" } else { "fail-unknown" };
        self.storage.with_label_values(&[plugin, operation, status, "false"]).observe(seconds);
    }

    pub fn cgroup(&self, operation: CgroupOperation, started: Instant) {
        let operation = match operation {
            CgroupOperation::Create => "create",
            CgroupOperation::Update => "update",
            CgroupOperation::Destroy => "destroy",
        };
        self.cgroups.with_label_values(&[operation]).observe(started.elapsed().as_secs_f64());
    }

    /// Pods of one sweep.
    pub fn orphans(&self, cleaned: u32, not_cleaned: u32) {
        self.cleaned.set(f64::from(cleaned));
        self.not_cleaned.set(f64::from(not_cleaned));
    }
}
