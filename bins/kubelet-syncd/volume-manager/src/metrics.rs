//! How long operations on volumes take, under upstream's names (`pkg/volume/util/metrics.go`).

use std::time::Duration;

use prometheus::{GaugeVec, HistogramOpts, HistogramVec, IntCounter, Opts, Registry};

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
    UnmapDevice,
    Expand,
}

impl Operation {
    /// Upstream's (`pkg/volume/util/operationexecutor/operation_generator.go`).
    pub const fn name(self) -> &'static str {
        match self {
            Operation::VerifyAttached => "verify_controller_attached_volume",
            Operation::Attach => "volume_attach",
            Operation::Mount => "volume_mount",
            Operation::Map => "map_volume",
            Operation::Unmount => "volume_unmount",
            Operation::Unmap => "unmap_volume",
            Operation::UnmountDevice => "unmount_device",
            Operation::UnmapDevice => "unmap_device",
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

/// Name and help of a family of counters.
struct Family<'a> {
    name: &'a str,
    help: &'a str,
}

/// How often something was tried, and how often in vain.
#[derive(Debug, Clone)]
struct Outcomes {
    all: IntCounter,
    failed: IntCounter,
}

impl Outcomes {
    fn new(all: Family<'_>, failed: Family<'_>) -> Result<Self, prometheus::Error> {
        let counter = |Family { name, help }: Family<'_>| IntCounter::new(name, help);
        Ok(Outcomes { all: counter(all)?, failed: counter(failed)? })
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
            Family {
                name: "reconstruct_volume_operations_total",
                help: "[ALPHA] The number of volumes that were attempted to be reconstructed from the operating system during \
                 kubelet startup. This includes both successful and failed reconstruction.",
            },
            Family {
                name: "reconstruct_volume_operations_errors_total",
                help: "[ALPHA] The number of volumes that failed reconstruction from the operating system during kubelet startup.",
            },
        )?;
        let force_cleaned = Outcomes::new(
            Family {
                name: "force_cleaned_failed_volume_operations_total",
                help: "[ALPHA] The number of volumes that were force cleaned after their reconstruction failed during kubelet \
                 startup. This includes both successful and failed cleanups.",
            },
            Family {
                name: "force_cleaned_failed_volume_operation_errors_total",
                help: "[ALPHA] The number of volumes that failed force cleanup after their reconstruction failed during kubelet \
                 startup.",
            },
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

/// What SELinux labels of volumes came to (upstream `desired_state_of_wold_selinux_metrics.go`). Gauges that only grow, as
/// upstream's. To be registered once.
#[derive(Debug, Clone)]
pub struct SeLinuxMetrics {
    pod_mismatch: Severity,
    volume_mismatch: Severity,
    admitted: GaugeVec,
}

/// The same for volumes that are mounted with a label, and for those that will be one day.
#[derive(Debug, Clone)]
struct Severity {
    errors: GaugeVec,
    warnings: GaugeVec,
}

impl Severity {
    fn new(what: &str, help: &str, labels: &[&str]) -> Result<Self, prometheus::Error> {
        let family = |kind: &str, more: &str| {
            let name = format!("volume_manager_selinux_{what}_mismatch_{kind}_total");
            GaugeVec::new(Opts::new(name, format!("[ALPHA] {help} {more}")), labels)
        };
        let (errors, warnings) = (
            "Kubelet can't start such a Pod then and it will retry, therefore value of this metric may not represent the actual \
             nr. of Pods.",
            "They are not errors yet, but they will become real errors when SELinuxMountReadWriteOncePod feature is expanded to \
             all volume access modes.",
        );
        Ok(Severity { errors: family("errors", errors)?, warnings: family("warnings", warnings)? })
    }

    fn count(&self, labels: &[&str], is_error: bool) {
        if is_error { &self.errors } else { &self.warnings }.with_label_values(labels).inc();
    }
}

impl SeLinuxMetrics {
    /// # Errors
    /// A family cannot be made, or its name is taken.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let metrics = Self::unregistered()?;
        let Self { pod_mismatch, volume_mismatch, admitted } = &metrics;
        for family in
            [&pod_mismatch.errors, &pod_mismatch.warnings, &volume_mismatch.errors, &volume_mismatch.warnings, admitted]
        {
            registry.register(Box::new(family.clone()))?;
        }
        Ok(metrics)
    }

    /// Counts for nobody.
    ///
    /// # Errors
    /// A family cannot be made.
    pub fn unregistered() -> Result<Self, prometheus::Error> {
        let pods = "Number of errors when a Pod defines different SELinux contexts for its containers that use the same volume.";
        let volumes = "Number of errors when a Pod uses a volume that is already mounted with a different SELinux context than \
                       the Pod needs.";
        let both = ["volume_plugin", "access_mode"];
        let admitted = Opts::new(
            "volume_manager_selinux_volumes_admitted_total",
            "[ALPHA] Number of volumes whose SELinux context was fine and will be mounted with mount -o context option.",
        );
        Ok(SeLinuxMetrics {
            pod_mismatch: Severity::new("pod_context", pods, &both[1..])?,
            volume_mismatch: Severity::new("volume_context", volumes, &both)?,
            admitted: GaugeVec::new(admitted, &both)?,
        })
    }

    /// Containers of a pod label a volume in different ways.
    pub fn pod_mismatch(&self, access_mode: &str, is_error: bool) {
        self.pod_mismatch.count(&[access_mode], is_error);
    }

    /// Another pod has the volume with another label.
    pub fn volume_mismatch(&self, plugin: &str, access_mode: &str, is_error: bool) {
        self.volume_mismatch.count(&[plugin, access_mode], is_error);
    }

    /// A volume whose label is known.
    pub fn admitted(&self, plugin: &str, access_mode: &str) {
        self.admitted.with_label_values(&[plugin, access_mode]).inc();
    }
}
