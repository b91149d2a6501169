//! Metrics of probes, names and labels as upstream's (`pkg/kubelet/prober/prober_manager.go`). A probe's series go with it.

use std::time::Duration;

use prometheus::{DEFAULT_BUCKETS, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, Opts, Registry};

/// Registered once for the process.
#[derive(Debug, Clone)]
pub struct ProbeMetrics {
    total: IntCounterVec,
    duration: HistogramVec,
}

/// Results as the label has them.
const RESULTS: [&str; 3] = ["successful", "failed", "unknown"];

impl ProbeMetrics {
    /// # Errors
    /// A name that is taken; each is registered once.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let total = IntCounterVec::new(
            Opts::new(
                "prober_probe_total",
                "[BETA] Cumulative number of a liveness, readiness or startup probe for a container by result.",
            ),
            &["probe_type", "result", "container", "pod", "namespace", "pod_uid"],
        )?;
        let duration = HistogramVec::new(
            HistogramOpts::new("prober_probe_duration_seconds", "[ALPHA] Duration in seconds for a probe response.")
                .buckets(DEFAULT_BUCKETS.to_vec()),
            &["probe_type", "container", "pod", "namespace"],
        )?;
        registry.register(Box::new(total.clone()))?;
        registry.register(Box::new(duration.clone()))?;
        Ok(ProbeMetrics { total, duration })
    }
}

/// The series of one probe. Handles of its counters are looked up once; the time is looked up each time, because it has no label
/// with the pod's uid: it is removed with a probe of an earlier pod of the same name, and begins anew with the next success, as
/// upstream's.
#[derive(Debug)]
pub struct Series {
    metrics: ProbeMetrics,
    /// probe_type, container, pod, namespace, pod_uid.
    labels: [String; 5],
    successful: Option<IntCounter>,
    failed: Option<IntCounter>,
}

impl Series {
    /// `labels`: probe_type, container, pod, namespace, pod_uid.
    pub fn new(metrics: &ProbeMetrics, labels: [String; 5]) -> Self {
        Series { metrics: metrics.clone(), labels, successful: None, failed: None }
    }

    fn counter(&self, result: &str) -> IntCounter {
        let [kind, container, pod, namespace, uid] = &self.labels;
        self.metrics.total.with_label_values(&[kind, result, container, pod, namespace, uid])
    }

    fn of_duration(&self) -> [&str; 4] {
        let [kind, container, pod, namespace, _] = &self.labels;
        [kind, container, pod, namespace]
    }

    pub fn success(&mut self, took: Duration) {
        if self.successful.is_none() {
            self.successful = Some(self.counter("successful"));
        }
        self.successful.iter().for_each(IntCounter::inc);
        self.metrics.duration.with_label_values(&self.of_duration()).observe(took.as_secs_f64());
    }

    pub fn failure(&mut self) {
        if self.failed.is_none() {
            self.failed = Some(self.counter("failed"));
        }
        self.failed.iter().for_each(IntCounter::inc);
    }
}

impl Drop for Series {
    fn drop(&mut self) {
        let [kind, container, pod, namespace, uid] = &self.labels;
        for result in RESULTS {
            // It is there only if there was such a result.
            let _ = self.metrics.total.remove_label_values(&[kind, result, container, pod, namespace, uid]);
        }
        let _ = self.metrics.duration.remove_label_values(&self.of_duration());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_go_with_the_probe() {
        let registry = Registry::new();
        let metrics = ProbeMetrics::register(&registry).unwrap();
        let labels = ["Readiness", "c", "p", "ns", "u"].map(str::to_owned);
        let mut series = Series::new(&metrics, labels);
        assert!(registry.gather().is_empty());
        series.success(Duration::from_millis(3));
        series.failure();
        series.failure();
        let mut text = Vec::new();
        prometheus::Encoder::encode(&prometheus::TextEncoder::new(), &registry.gather(), &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let line = |result: &str, count: u32| {
            let labels = "container=\"c\",namespace=\"ns\",pod=\"p\",pod_uid=\"u\",probe_type=\"Readiness\"";
            format!("prober_probe_total{{{labels},result=\"{result}\"}} {count}")
        };
        assert!(text.contains(&line("successful", 1)) && text.contains(&line("failed", 2)), "{text}");
        assert!(text.contains("prober_probe_duration_seconds_count{"), "{text}");
        drop(series);
        assert!(registry.gather().is_empty());
    }

    #[test]
    fn the_time_of_a_pod_that_was_made_again_is_told_after_the_first_one_s_end() {
        let metrics = ProbeMetrics::register(&Registry::new()).unwrap();
        let series = |uid| Series::new(&metrics, ["Readiness", "c", "p", "ns", uid].map(str::to_owned));
        let (mut first, mut second) = (series("u1"), series("u2"));
        first.success(Duration::from_millis(3));
        second.success(Duration::from_millis(3));
        drop(first);
        second.success(Duration::from_millis(3));
        let told = prometheus::core::Collector::collect(&metrics.duration);
        let counts: Vec<_> =
            told[0].get_metric().iter().map(|series| series.get_histogram().get_sample_count()).collect();
        assert_eq!(counts, [1]);
    }
}
