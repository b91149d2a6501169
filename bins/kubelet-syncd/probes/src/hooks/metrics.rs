//! What hooks count, under upstream's names (`pkg/kubelet/metrics/metrics.go`). Hooks run in many places of the code: the
//! counters are the process's.

use std::sync::OnceLock;

use prometheus::{IntCounter, Registry};

/// The counters, once they are registered.
static COUNTED: OnceLock<HookMetrics> = OnceLock::new();

#[derive(Debug)]
struct HookMetrics {
    http_fallbacks: IntCounter,
    cut_sleeps: IntCounter,
}

/// Registers them; what happened before is not counted.
///
/// # Errors
/// A name that is taken; each is registered once.
pub fn register(registry: &Registry) -> Result<(), prometheus::Error> {
    let counter = |name: &str, help: &str| -> Result<IntCounter, prometheus::Error> {
        let counter = IntCounter::new(name, help)?;
        registry.register(Box::new(counter.clone()))?;
        Ok(counter)
    };
    let metrics = HookMetrics {
        http_fallbacks: counter(
            "kubelet_lifecycle_handler_http_fallbacks_total",
            "[ALPHA] The number of times lifecycle handlers successfully fell back to http from https.",
        )?,
        cut_sleeps: counter(
            "kubelet_sleep_action_terminated_early_total",
            "[ALPHA] The number of times lifecycle sleep handler got terminated before it finishes",
        )?,
    };
    // A second registry gets nothing: the first one counts.
    let _ = COUNTED.set(metrics);
    Ok(())
}

/// A request over TLS got a plain answer, and a plain request worked.
pub(super) fn fell_back() {
    if let Some(counted) = COUNTED.get() {
        counted.http_fallbacks.inc();
    }
}

/// Counts a sleep that is dropped before its end.
#[derive(Debug, Default)]
pub(super) struct Sleeping {
    over: bool,
}

impl Sleeping {
    pub(super) fn is_over(&mut self) {
        self.over = true;
    }
}

impl Drop for Sleeping {
    fn drop(&mut self) {
        if let Some(counted) = COUNTED.get().filter(|_| !self.over) {
            counted.cut_sleeps.inc();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_to_its_end_is_not_counted() {
        register(&Registry::new()).unwrap();
        let cut = || COUNTED.get().unwrap().cut_sleeps.get();
        let before = cut();
        Sleeping::default().is_over();
        assert_eq!(cut(), before);
        drop(Sleeping::default());
        assert_eq!(cut(), before + 1);
    }
}
