//! How long operations on volumes take, under upstream's names (`pkg/volume/util/metrics.go`).

use std::time::Duration;

use prometheus::{HistogramOpts, HistogramVec, Registry};

/// An operation's name in `storage_operation_duration_seconds`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    VerifyAttached,
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
}

impl OperationMetrics {
    /// # Errors
    /// The family cannot be made, or its name is taken.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let metrics = Self::unregistered()?;
        registry.register(Box::new(metrics.durations.clone()))?;
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
        Ok(OperationMetrics { durations })
    }

    /// `plugin`: as upstream qualifies it (`kubernetes.io/csi:hostpath.csi.k8s.io`).
    /// `migrated`: its kind is an in-tree one that the driver serves.
    pub fn observe(&self, plugin: &str, operation: Operation, succeeded: bool, migrated: bool, took: Duration) {
        let status = if succeeded { "success" } else { "fail-unknown" };
        let labels = [plugin, operation.name(), status, if migrated { "true" } else { "false" }];
        self.durations.with_label_values(&labels).observe(took.as_secs_f64());
    }
}
