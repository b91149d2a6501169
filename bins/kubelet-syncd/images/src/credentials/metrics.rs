//! What programs that give credentials cost and how often they fail, under upstream's names
//! (`pkg/credentialprovider/plugin/metrics.go`). The counters are the process's.

use std::sync::OnceLock;
use std::time::Duration;

use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry};

/// The families, once they are registered.
static COUNTED: OnceLock<(IntCounterVec, HistogramVec)> = OnceLock::new();

/// Registers them; what happened before is not counted.
///
/// # Errors
/// A name that is taken; each is registered once.
pub fn register(registry: &Registry) -> Result<(), prometheus::Error> {
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
        register(&Registry::new()).unwrap();
        ran("a-program", Duration::from_millis(3), true);
        ran("a-program", Duration::from_millis(3), false);
        let (errors, duration) = COUNTED.get().unwrap();
        assert_eq!(errors.with_label_values(&["a-program"]).get(), 1);
        assert_eq!(duration.with_label_values(&["a-program"]).get_sample_count(), 2);
    }
}
