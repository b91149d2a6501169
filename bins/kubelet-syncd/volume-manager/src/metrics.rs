//! How long operations on volumes take, under upstream's names (`pkg/volume/util/metrics.go`).

use std::time::Duration;

use prometheus::{HistogramOpts, HistogramVec, IntCounter, Registry};

/// An operation's name in `storage_operation_duration_seconds`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    VerifyAttached,
    Attach,
    Mount,
    Map,
    Unmount,
    Unmap,
    UnmountDevice,
    Expand,
}

impl Operation {
    const fn name(self) -> &'static str {
        match self {
            Operation::VerifyAttached => "verify_controller_attached_volume",
            Operation::Attach => "volume_attach",
            Operation::Mount => "volume_mount",
            Operation::Map => "map_volume",
            Operation::Unmount => "volume_unmount",
            Operation::Unmap => "unmap_volume",
            Operation::UnmountDevice => "unmount_device",
            Operation::Expand => "volume_fs_resize",
        }
    }
}

/// To be registered once.
#[derive(Debug, Clone)]
pub struct OperationMetrics {
    durations: HistogramVec,
    reconstructed: Outcomes,
    force_cleaned: Outcomes,
}

/// How often something was tried, and how often in vain.
#[derive(Debug, Clone)]
struct Outcomes {
    all: IntCounter,
    failed: IntCounter,
}

impl Outcomes {
    fn new(
        (all, help_of_all): (&str, &str),
        (failed, help_of_failed): (&str, &str),
    ) -> Result<Self, prometheus::Error> {
        Ok(Outcomes { all: IntCounter::new(all, help_of_all)?, failed: IntCounter::new(failed, help_of_failed)? })
    }

    fn register(&self, registry: &Registry) -> Result<(), prometheus::Error> {
        registry.register(Box::new(self.all.clone()))?;
        registry.register(Box::new(self.failed.clone()))
    }
}

impl OperationMetrics {
    /// # Errors
    /// The family cannot be made, or its name is taken.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let metrics = Self::unregistered()?;
        registry.register(Box::new(metrics.durations.clone()))?;
        metrics.reconstructed.register(registry)?;
        metrics.force_cleaned.register(registry)?;
        Ok(metrics)
    }

    /// Counts for nobody.
    ///
    /// # Errors
    /// The family cannot be made.
    pub fn unregistered() -> Result<Self, prometheus::Error> {
        let buckets = vec![0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0];
        let opts = HistogramOpts::new("storage_operation_duration_seconds", "[ALPHA] Storage operation duration");
        let labels = ["volume_plugin", "operation_name", "status", "migrated"];
        let durations = HistogramVec::new(opts.buckets(buckets), &labels)?;
        let reconstructed = Outcomes::new(
            (
                "reconstruct_volume_operations_total",
                "[ALPHA] The number of volumes that were attempted to be reconstructed from the operating system during \
                 kubelet startup. This includes both successful and failed reconstruction.",
            ),
            (
                "reconstruct_volume_operations_errors_total",
                "[ALPHA] The number of volumes that failed reconstruction from the operating system during kubelet startup.",
            ),
        )?;
        let force_cleaned = Outcomes::new(
            (
                "force_cleaned_failed_volume_operations_total",
                "[ALPHA] The number of volumes that were force cleaned after their reconstruction failed during kubelet \
                 startup. This includes both successful and failed cleanups.",
            ),
            (
                "force_cleaned_failed_volume_operation_errors_total",
                "[ALPHA] The number of volumes that failed force cleanup after their reconstruction failed during kubelet \
                 startup.",
            ),
        )?;
        Ok(OperationMetrics { durations, reconstructed, force_cleaned })
    }

    /// `plugin`: as upstream qualifies it (`kubernetes.io/csi:hostpath.csi.k8s.io`).
    /// `migrated`: its kind is an in-tree one that the driver serves.
    pub fn observe(&self, plugin: &str, operation: Operation, succeeded: bool, migrated: bool, took: Duration) {
        let status = if succeeded { "success" } else { "fail-unknown" };
        let labels = [plugin, operation.name(), status, if migrated { "true" } else { "false" }];
        self.durations.with_label_values(&labels).observe(took.as_secs_f64());
    }

    /// Pods' volumes that were found on the disk, and how many of them nobody knows.
    pub fn reconstructed(&self, found: usize, unknown: usize) {
        self.reconstructed.all.inc_by(found as u64);
        self.reconstructed.failed.inc_by(unknown as u64);
    }

    /// One try to take back by its path what nobody knows.
    pub fn force_cleaned(&self, succeeded: bool) {
        self.force_cleaned.all.inc();
        if !succeeded {
            self.force_cleaned.failed.inc();
        }
    }
}
