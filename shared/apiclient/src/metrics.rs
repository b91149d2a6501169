//! `rest_client_*`: names, labels and buckets as upstream's client has them.

use std::time::Duration;

use prometheus::{Histogram, HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry};

const SECONDS: [f64; 12] = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];

const BYTES: [f64; 11] =
    [64.0, 256.0, 512.0, 1024.0, 4096.0, 16_384.0, 65_536.0, 262_144.0, 1_048_576.0, 4_194_304.0, 16_777_216.0];

/// Label `code` of a request that got no answer.
const NO_ANSWER: &str = "<error>";

#[derive(Debug)]
pub(crate) struct Metrics {
    requests: IntCounterVec,
    retries: IntCounterVec,
    duration: HistogramVec,
    waiting: HistogramVec,
    request_size: HistogramVec,
    answer_size: HistogramVec,
}

impl Metrics {
    pub(crate) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let counter = |name: &str, help: &str, labels: &[&str]| IntCounterVec::new(Opts::new(name, help), labels);
        let buckets = |name: &str, help: &str, bounds: &[f64]| {
            HistogramVec::new(HistogramOpts::new(name, help).buckets(bounds.to_vec()), &["verb", "host"])
        };
        let histogram = |name: &str, help: &str| buckets(name, help, &SECONDS);
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
            request_size: buckets(
                "rest_client_request_size_bytes",
                "[ALPHA] Request size in bytes. Broken down by verb and host.",
                &BYTES,
            )?,
            answer_size: buckets(
                "rest_client_response_size_bytes",
                "[ALPHA] Response size in bytes. Broken down by verb and host.",
                &BYTES,
            )?,
        };
        registry.register(Box::new(metrics.requests.clone()))?;
        registry.register(Box::new(metrics.retries.clone()))?;
        registry.register(Box::new(metrics.duration.clone()))?;
        registry.register(Box::new(metrics.waiting.clone()))?;
        registry.register(Box::new(metrics.request_size.clone()))?;
        registry.register(Box::new(metrics.answer_size.clone()))?;
        Ok(metrics)
    }

    /// One try: `code` None when there was no answer. `call`: how long it took and the bytes that were sent; a watch has
    /// neither, as upstream counts.
    pub(crate) fn request(&self, code: Option<u16>, method: &str, host: &str, call: Option<(Duration, u64)>) {
        let code = code.map_or_else(|| NO_ANSWER.to_owned(), |code| code.to_string());
        self.requests.with_label_values(&[code.as_str(), method, host]).inc();
        if let Some((took, sent)) = call {
            self.duration.with_label_values(&[method, host]).observe(took.as_secs_f64());
            #[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
            self.request_size.with_label_values(&[method, host]).observe(sent as f64);
        }
    }

    /// For the bytes of an answer.
    pub(crate) fn answer_size(&self, method: &str, host: &str) -> Histogram {
        self.answer_size.with_label_values(&[method, host])
    }

    pub(crate) fn retry(&self, code: Option<u16>, method: &str, host: &str) {
        let code = code.map_or_else(|| NO_ANSWER.to_owned(), |code| code.to_string());
        self.retries.with_label_values(&[code.as_str(), method, host]).inc();
    }

    pub(crate) fn waited(&self, method: &str, host: &str, time: Duration) {
        self.waiting.with_label_values(&[method, host]).observe(time.as_secs_f64());
    }
}
