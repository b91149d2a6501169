//! What is counted of device plugins, under upstream's names.

use std::time::Duration;

use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry};

/// Names that are counted apart; a plugin that registers under ever new names is no use to anybody.
const NAMES_MAX: usize = 128;

#[derive(Debug)]
pub struct DeviceMetrics {
    registrations: IntCounterVec,
    allocations: HistogramVec,
    names: std::sync::Mutex<std::collections::BTreeSet<String>>,
}

impl DeviceMetrics {
    /// # Errors
    /// A name that is taken; each is registered once.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let registrations = IntCounterVec::new(
            Opts::new(
                "kubelet_device_plugin_registration_total",
                "[ALPHA] Cumulative number of device plugin registrations. Broken down by resource name.",
            ),
            &["resource_name"],
        )?;
        let allocations = HistogramVec::new(
            HistogramOpts::new(
                "kubelet_device_plugin_alloc_duration_seconds",
                "[ALPHA] Duration in seconds to serve a device plugin Allocation request. Broken down by resource name.",
            ),
            &["resource_name"],
        )?;
        registry.register(Box::new(registrations.clone()))?;
        registry.register(Box::new(allocations.clone()))?;
        Ok(DeviceMetrics { registrations, allocations, names: std::sync::Mutex::default() })
    }

    pub(super) fn registered(&self, resource: &str) {
        let mut names = self.names.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if names.contains(resource) || (names.len() < NAMES_MAX && names.insert(resource.to_owned())) {
            self.registrations.with_label_values(&[resource]).inc();
        }
    }

    pub(super) fn allocated(&self, resource: &str, took: Duration) {
        self.allocations.with_label_values(&[resource]).observe(took.as_secs_f64());
    }
}
