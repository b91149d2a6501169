//! What is counted of plugins and of drivers' calls, under upstream's names (`pkg/kubelet/pluginmanager/metrics`,
//! `pkg/volume/csi/csi_metrics.go`).

use std::path::PathBuf;
use std::time::Duration;

use kubelet_edges::csi::CallObserver;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{HistogramOpts, HistogramVec, IntGaugeVec, Opts, Registry};
use tonic::Code;

use super::PluginTable;

/// Of `pkg/volume/util/metrics.go`.
const SECONDS: [f64; 13] = [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0];

/// `plugin_manager_total_plugins`.
#[derive(Debug)]
pub struct PluginCounts {
    table: PluginTable,
    folder: PathBuf,
    plugins: IntGaugeVec,
}

impl PluginCounts {
    /// `folder`: `plugins_registry`, absolute.
    ///
    /// # Errors
    /// The family cannot be made.
    pub fn new(table: PluginTable, folder: PathBuf) -> Result<Self, prometheus::Error> {
        let opts = Opts::new("plugin_manager_total_plugins", "[ALPHA] Number of plugins in Plugin Manager");
        let plugins = IntGaugeVec::new(opts, &["socket_path", "state"])?;
        Ok(PluginCounts { table, folder, plugins })
    }
}

impl Collector for PluginCounts {
    fn desc(&self) -> Vec<&Desc> {
        self.plugins.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.plugins.reset();
        for (socket, registered) in self.table.states() {
            let path = self.folder.join(socket).display().to_string();
            self.plugins.with_label_values(&[path.as_str(), "desired_state_of_world"]).set(1);
            if registered {
                self.plugins.with_label_values(&[path.as_str(), "actual_state_of_world"]).set(1);
            }
        }
        self.plugins.collect()
    }
}

/// `csi_operations_seconds`.
#[derive(Debug)]
pub struct CallSeconds {
    seconds: HistogramVec,
    migrated: bool,
}

impl CallSeconds {
    /// # Errors
    /// The name is taken.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let opts = HistogramOpts::new(
            "csi_operations_seconds",
            "[ALPHA] Container Storage Interface operation duration with gRPC error code status total",
        )
        .buckets(SECONDS.to_vec());
        let seconds = HistogramVec::new(opts, &["driver_name", "method_name", "grpc_status_code", "migrated"])?;
        registry.register(Box::new(seconds.clone()))?;
        Ok(CallSeconds { seconds, migrated: false })
    }

    /// The same of calls about volumes of in-tree kinds.
    pub fn of_migrated(&self) -> Self {
        CallSeconds { seconds: self.seconds.clone(), migrated: true }
    }
}

impl CallObserver for CallSeconds {
    fn call_ended(&self, driver: &str, method: &'static str, code: Code, took: Duration) {
        let migrated = if self.migrated { "true" } else { "false" };
        self.seconds
            .with_label_values(&[driver, method, bulkhead_cri::go_name(code), migrated])
            .observe(took.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use prometheus::proto::Bucket;

    use super::*;

    #[test]
    fn calls_are_counted_as_upstream_counts_them() {
        let registry = Registry::new();
        let plain = CallSeconds::register(&registry).unwrap();
        plain.call_ended("d", "/csi.v1.Node/NodeStageVolume", Code::Ok, Duration::from_secs(1));
        plain.of_migrated().call_ended("d", "/csi.v1.Node/NodeStageVolume", Code::Ok, Duration::from_secs(900));
        let families = registry.gather();
        assert_eq!(families.len(), 1);
        let seen: Vec<(String, u64, Option<f64>)> = families[0]
            .get_metric()
            .iter()
            .map(|metric| {
                let migrated = metric.get_label().iter().find(|label| label.name() == "migrated").unwrap();
                let buckets = metric.get_histogram().get_bucket();
                (migrated.value().to_owned(), buckets[12].cumulative_count(), buckets.last().map(Bucket::upper_bound))
            })
            .collect();
        assert_eq!(seen, [("false".to_owned(), 1, Some(600.0)), ("true".to_owned(), 0, Some(600.0))]);
    }
}
