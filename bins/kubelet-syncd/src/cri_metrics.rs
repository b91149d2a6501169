//! Metrics of the calls to the runtime, under upstream's names (upstream `kuberuntime/instrumented_services.go`).

use std::time::Duration;

use bulkhead_cri::{CallObserver, CriError};
use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry};

/// To be given to [`bulkhead_cri::CriClient::observed_by`].
#[derive(Debug, Clone)]
pub struct CriMetrics {
    operations: IntCounterVec,
    durations: HistogramVec,
    errors: IntCounterVec,
}

impl CriMetrics {
    /// # Errors
    /// A name that is taken; each is registered once.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let counter = |name: &str, help: &str| -> Result<IntCounterVec, prometheus::Error> {
            let counter = IntCounterVec::new(Opts::new(name, help), &["operation_type"])?;
            registry.register(Box::new(counter.clone()))?;
            Ok(counter)
        };
        // From 5 ms to about 12 minutes.
        let buckets = prometheus::exponential_buckets(0.005, 2.5, 14)?;
        let durations = HistogramVec::new(
            HistogramOpts::new(
                "kubelet_runtime_operations_duration_seconds",
                "[ALPHA] Duration in seconds of runtime operations. Broken down by operation type.",
            )
            .buckets(buckets),
            &["operation_type"],
        )?;
        registry.register(Box::new(durations.clone()))?;
        Ok(CriMetrics {
            operations: counter(
                "kubelet_runtime_operations_total",
                "[ALPHA] Cumulative number of runtime operations by operation type.",
            )?,
            durations,
            errors: counter(
                "kubelet_runtime_operations_errors_total",
                "[ALPHA] Cumulative number of runtime operation errors by operation type.",
            )?,
        })
    }
}

impl CallObserver for CriMetrics {
    fn call_ended(&self, operation: &'static str, took: Duration, error: Option<&CriError>) {
        self.operations.with_label_values(&[operation]).inc();
        self.durations.with_label_values(&[operation]).observe(took.as_secs_f64());
        if error.is_some() {
            self.errors.with_label_values(&[operation]).inc();
        }
    }
}

/// How long sandboxes take to be made, by the handler of the pod's runtime class.
#[derive(Debug, Clone)]
pub struct SandboxMetrics {
    durations: HistogramVec,
    errors: IntCounterVec,
}

impl SandboxMetrics {
    /// # Errors
    /// A name that is taken; each is registered once.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let durations = HistogramVec::new(
            HistogramOpts::new(
                "kubelet_run_podsandbox_duration_seconds",
                "[ALPHA] Duration in seconds of the run_podsandbox operations. Broken down by RuntimeClass.Handler.",
            ),
            &["runtime_handler"],
        )?;
        let errors = IntCounterVec::new(
            Opts::new(
                "kubelet_run_podsandbox_errors_total",
                "[ALPHA] Cumulative number of the run_podsandbox operation errors by RuntimeClass.Handler.",
            ),
            &["runtime_handler"],
        )?;
        registry.register(Box::new(durations.clone()))?;
        registry.register(Box::new(errors.clone()))?;
        Ok(SandboxMetrics { durations, errors })
    }

    /// `handler`: empty for the runtime's own choice.
    pub fn ran(&self, handler: &str, took: Duration, worked: bool) {
        self.durations.with_label_values(&[handler]).observe(took.as_secs_f64());
        if !worked {
            self.errors.with_label_values(&[handler]).inc();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counted_by_operation() {
        let registry = Registry::new();
        let metrics = CriMetrics::register(&registry).unwrap();
        let error = CriError { code: bulkhead_cri::Code::NotFound, method: "container_status", message: String::new() };
        metrics.call_ended("container_status", Duration::from_millis(3), Some(&error));
        metrics.call_ended("container_status", Duration::from_millis(3), None);
        assert_eq!(metrics.operations.with_label_values(&["container_status"]).get(), 2);
        assert_eq!(metrics.errors.with_label_values(&["container_status"]).get(), 1);
        assert_eq!(metrics.durations.with_label_values(&["container_status"]).get_sample_count(), 2);
        assert!(CriMetrics::register(&registry).is_err());
    }
}
