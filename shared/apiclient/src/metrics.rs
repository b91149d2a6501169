//! `rest_client_*`: names, labels and buckets as upstream's client has them.

use std::time::Duration;

use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry};

const SECONDS: [f64; 12] = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];

/// Label `code` of a request that got no answer.
const NO_ANSWER: &str = "<error>";

#[derive(Debug)]
pub(crate) struct Metrics {
    requests: IntCounterVec,
    retries: IntCounterVec,
    duration: HistogramVec,
    waiting: HistogramVec,
}

impl Metrics {
    pub(crate) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let counter = |name: &str, help: &str, labels: &[&str]| IntCounterVec::new(Opts::new(name, help), labels);
        let histogram = |name: &str, help: &str| {
            HistogramVec::new(HistogramOpts::new(name, help).buckets(SECONDS.to_vec()), &["verb", "host"])
        };
        let metrics = Metrics {
            requests: counter(
                "rest_client_requests_total",
                "[ALPHA] Number of HTTP requests, partitioned by status code, method, and host.",
                &["code", "method", "host"],
            )?,
            retries: counter(
                "rest_client_request_retries_total",
                "[ALPHA] Number of request retries, partitioned by status code, verb, and host.",
                &["code", "verb", "host"],
            )?,
            duration: histogram(
                "rest_client_request_duration_seconds",
                "[ALPHA] Request latency in seconds. Broken down by verb, and host.",
            )?,
            waiting: histogram(
                "rest_client_rate_limiter_duration_seconds",
                "[ALPHA] Client side rate limiter latency in seconds. Broken down by verb, and host.",
            )?,
        };
        registry.register(Box::new(metrics.requests.clone()))?;
        registry.register(Box::new(metrics.retries.clone()))?;
        registry.register(Box::new(metrics.duration.clone()))?;
        registry.register(Box::new(metrics.waiting.clone()))?;
        Ok(metrics)
    }

    /// One try: `code` None when there was no answer.
    pub(crate) fn request(&self, code: Option<u16>, method: &str, host: &str, took: Duration) {
        let code = code.map_or_else(|| NO_ANSWER.to_owned(), |code| code.to_string());
        self.requests.with_label_values(&[code.as_str(), method, host]).inc();
        self.duration.with_label_values(&[method, host]).observe(took.as_secs_f64());
    }

    pub(crate) fn retry(&self, code: Option<u16>, method: &str, host: &str) {
        let code = code.map_or_else(|| NO_ANSWER.to_owned(), |code| code.to_string());
        self.retries.with_label_values(&[code.as_str(), method, host]).inc();
    }

    pub(crate) fn waited(&self, method: &str, host: &str, time: Duration) {
        self.waiting.with_label_values(&[method, host]).observe(time.as_secs_f64());
    }
}
