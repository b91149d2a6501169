//! What programs that give credentials cost and how often they fail, under upstream's names
//! (`pkg/credentialprovider/plugin/metrics.go`). The counters are the process's.

use std::sync::OnceLock;
use std::time::Duration;

use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, IntGaugeVec, Opts, Registry};

/// The families, once they are registered.
static COUNTED: OnceLock<(IntCounterVec, HistogramVec)> = OnceLock::new();

/// Registers them; what happened before is not counted. `config_hash`: of the configuration of the programs, where there is one.
///
/// # Errors
/// A name that is taken; each is registered once.
pub fn register(registry: &Registry, config_hash: Option<&str>) -> Result<(), prometheus::Error> {
    let errors = IntCounterVec::new(
        Opts::new(
            "kubelet_credential_provider_plugin_errors_total",
            "[ALPHA] Number of errors from credential provider plugin",
        ),
        &["plugin_name"],
    )?;
    let duration = HistogramVec::new(
        HistogramOpts::new(
            "kubelet_credential_provider_plugin_duration",
            "[ALPHA] Duration of execution in seconds for credential provider plugin",
        ),
        &["plugin_name"],
    )?;
    registry.register(Box::new(errors.clone()))?;
    registry.register(Box::new(duration.clone()))?;
    if let Some(hash) = config_hash {
        let info = IntGaugeVec::new(
            Opts::new(
                "kubelet_credential_provider_config_info",
                "[ALPHA] Information about the last applied credential provider configuration with hash as label",
            ),
            &["hash"],
        )?;
        info.with_label_values(&[hash]).set(1);
        registry.register(Box::new(info))?;
    }
    // A second registry gets nothing: the first one counts.
    let _ = COUNTED.set((errors, duration));
    Ok(())
}

/// A program has run.
pub(super) fn ran(plugin: &str, took: Duration, worked: bool) {
    let Some((errors, duration)) = COUNTED.get() else { return };
    duration.with_label_values(&[plugin]).observe(took.as_secs_f64());
    if !worked {
        errors.with_label_values(&[plugin]).inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_program() {
        register(&Registry::new(), None).unwrap();
        ran("a-program", Duration::from_millis(3), true);
        ran("a-program", Duration::from_millis(3), false);
        let (errors, duration) = COUNTED.get().unwrap();
        assert_eq!(errors.with_label_values(&["a-program"]).get(), 1);
        assert_eq!(duration.with_label_values(&["a-program"]).get_sample_count(), 2);
    }

    #[test]
    fn the_configuration_is_named_by_its_hash() {
        for hash in [None, Some("sha256:00")] {
            let registry = Registry::new();
            register(&registry, hash).unwrap();
            let families = registry.gather();
            let info = families.iter().find(|family| family.name() == "kubelet_credential_provider_config_info");
            let series = info.map(|family| {
                let series = &family.get_metric()[0];
                (series.get_label()[0].value(), series.get_gauge().get_value())
            });
            assert_eq!(series, hash.map(|hash| (hash, 1.0)));
        }
    }
}
