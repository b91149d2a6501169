//! What is counted of device plugins, under upstream's names.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry};

/// Names that are counted apart at a time: a plugin that registers under ever new names is no use to anybody.
const NAMES_MAX: usize = 128;

#[derive(Debug)]
pub struct DeviceMetrics {
    registrations: IntCounterVec,
    allocations: HistogramVec,
    /// What is counted, and when it was last.
    names: parking_lot::Mutex<BTreeMap<String, Instant>>,
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
        Ok(DeviceMetrics { registrations, allocations, names: parking_lot::Mutex::default() })
    }

    /// Whether a name is counted. Where there are too many, it takes the place of the one that was counted last the longest ago and
    /// is no resource of the node (`is_known`) any more.
    fn counts(&self, resource: &str, is_known: impl Fn(&str) -> bool) -> bool {
        let mut names = self.names.lock();
        if !names.contains_key(resource) && names.len() >= NAMES_MAX {
            let unknown = names.iter().filter(|(name, _)| !is_known(name));
            let Some(gone) = unknown.min_by_key(|(_, last)| **last).map(|(name, _)| name.clone()) else { return false };
            names.remove(&gone);
            // It may have been counted by one of the two alone.
            let _ = self.registrations.remove_label_values(&[&gone]);
            let _ = self.allocations.remove_label_values(&[&gone]);
        }
        names.insert(resource.to_owned(), Instant::now());
        true
    }

    pub(super) fn registered(&self, resource: &str, is_known: impl Fn(&str) -> bool) {
        if self.counts(resource, is_known) {
            self.registrations.with_label_values(&[resource]).inc();
        }
    }

    pub(super) fn allocated(&self, resource: &str, took: Duration, is_known: impl Fn(&str) -> bool) {
        if self.counts(resource, is_known) {
            self.allocations.with_label_values(&[resource]).observe(took.as_secs_f64());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_have_gone_make_room_for_new_ones() {
        let registry = Registry::new();
        let metrics = DeviceMetrics::register(&registry).unwrap();
        let is_known = |name: &str| name == "example.com/0";
        for n in 0..NAMES_MAX + 2 {
            metrics.registered(&format!("example.com/{n}"), is_known);
        }
        metrics.allocated("example.com/3", Duration::from_secs(1), is_known);
        metrics.allocated("example.com/other", Duration::from_secs(1), is_known);
        let count = |of: &str| {
            let families = registry.gather();
            let family = families.iter().find(|family| family.name() == of).unwrap();
            let label = |metric: &prometheus::proto::Metric| metric.get_label()[0].value().to_owned();
            family.get_metric().iter().map(label).collect::<std::collections::BTreeSet<_>>()
        };
        let registered = count("kubelet_device_plugin_registration_total");
        // Beside the one that is there those that came last, but for the one whose place another took.
        assert_eq!(registered.len(), NAMES_MAX - 1);
        assert!(registered.contains("example.com/0") && registered.contains("example.com/129"));
        assert!(registered.contains("example.com/3"));
        for gone in [1, 2, 4] {
            assert!(!registered.contains(&format!("example.com/{gone}")), "{gone}");
        }
        let allocated = ["example.com/3", "example.com/other"].map(str::to_owned);
        assert_eq!(count("kubelet_device_plugin_alloc_duration_seconds"), allocated.into());
        // All of them are there: no place.
        metrics.registered("example.com/new", |_| true);
        assert_eq!(count("kubelet_device_plugin_registration_total"), registered);
    }
}
