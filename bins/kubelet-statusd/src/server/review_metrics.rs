//! What is counted of authentication and authorisation, under upstream's names.

use std::time::Duration;

use prometheus::{Histogram, HistogramOpts, HistogramVec, IntCounterVec, IntGaugeVec, Opts, Registry};

use super::reviews::Question;

const CODE: &[&str] = &["code"];
const STATUS: &[&str] = &["status"];
const RESULT: &[&str] = &["name", "result"];
const REQUESTS: &str = "[ALPHA] Number of HTTP requests partitioned by status code.";
const LATENCY: &str = "[ALPHA] Request latency in seconds. Broken down by status code.";
const DELEGATED: [f64; 8] = [0.25, 0.5, 0.7, 1.0, 1.5, 3.0, 5.0, 10.0];
/// Half an hour to a year.
const EXPIRATION: [f64; 14] = [
    0.0,
    1800.0,
    3600.0,
    7200.0,
    21600.0,
    43200.0,
    86400.0,
    172_800.0,
    345_600.0,
    604_800.0,
    2_592_000.0,
    7_776_000.0,
    15_552_000.0,
    31_104_000.0,
];

/// Cheap to clone; all clones count together.
#[derive(Debug, Clone)]
pub struct ReviewMetrics {
    authn: (IntCounterVec, HistogramVec),
    authz: (IntCounterVec, HistogramVec),
    evaluations: (IntCounterVec, HistogramVec),
    fail_open: IntCounterVec,
    cache_requests: (IntCounterVec, HistogramVec),
    fetches: IntCounterVec,
    active: IntGaugeVec,
    expiration: Histogram,
}

impl ReviewMetrics {
    /// # Errors
    /// The registry has families of these names.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let counter = |name: &str, help: &str, labels: &[&str]| {
            let counter = IntCounterVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(counter.clone()))?;
            Ok::<_, prometheus::Error>(counter)
        };
        let histogram = |name: &str, help: &str, labels: &[&str], buckets: &[f64]| {
            let histogram = HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets.to_vec()), labels)?;
            registry.register(Box::new(histogram.clone()))?;
            Ok::<_, prometheus::Error>(histogram)
        };
        let delegated = |part: &str| {
            let name = format!("apiserver_delegated_{part}_request");
            Ok::<_, prometheus::Error>((
                counter(&format!("{name}_total"), REQUESTS, CODE)?,
                histogram(&format!("{name}_duration_seconds"), LATENCY, CODE, &DELEGATED)?,
            ))
        };
        let webhook = "apiserver_authorization_webhook";
        let seconds = prometheus::DEFAULT_BUCKETS;
        let metrics = ReviewMetrics {
            authn: delegated("authn")?,
            authz: delegated("authz")?,
            evaluations: (
                counter(
                    &format!("{webhook}_evaluations_total"),
                    "[ALPHA] Round-trips to authorization webhooks.",
                    RESULT,
                )?,
                histogram(
                    &format!("{webhook}_duration_seconds"),
                    "[ALPHA] Request latency in seconds.",
                    RESULT,
                    seconds,
                )?,
            ),
            fail_open: counter(
                &format!("{webhook}_evaluations_fail_open_total"),
                "[ALPHA] NoOpinion results due to webhook timeout or error.",
                RESULT,
            )?,
            cache_requests: (
                counter("authentication_token_cache_request_total", "[ALPHA]", STATUS)?,
                histogram("authentication_token_cache_request_duration_seconds", "[ALPHA]", STATUS, seconds)?,
            ),
            fetches: counter("authentication_token_cache_fetch_total", "[ALPHA]", STATUS)?,
            active: IntGaugeVec::new(Opts::new("authentication_token_cache_active_fetch_count", "[ALPHA]"), STATUS)?,
            expiration: Histogram::with_opts(
                HistogramOpts::new(
                    "apiserver_client_certificate_expiration_seconds",
                    "[ALPHA] Distribution of the remaining lifetime on the certificate used to authenticate a request.",
                )
                .buckets(EXPIRATION.to_vec()),
            )?,
        };
        registry.register(Box::new(metrics.active.clone()))?;
        registry.register(Box::new(metrics.expiration.clone()))?;
        Ok(metrics)
    }

    /// One question, answered or not. `status`: of the answer.
    pub fn asked(&self, question: Question, status: Option<u16>, result: &str, took: Duration) {
        let code = status.map_or_else(|| "<error>".to_owned(), |status| status.to_string());
        let (requests, seconds) = if question == Question::Token { &self.authn } else { &self.authz };
        requests.with_label_values(&[&code]).inc();
        seconds.with_label_values(&[&code]).observe(took.as_secs_f64());
        if question == Question::Access {
            self.evaluations.0.with_label_values(&["", result]).inc();
            self.evaluations.1.with_label_values(&["", result]).observe(took.as_secs_f64());
        }
    }

    /// Authorisation is not known: nobody is let in for it.
    pub fn no_opinion(&self, result: &str) {
        self.fail_open.with_label_values(&["", result]).inc();
    }

    /// A token was looked for among the remembered ones, and after `took` there was an answer.
    pub fn token(&self, hit: bool, took: Duration) {
        let status = [if hit { "hit" } else { "miss" }];
        self.cache_requests.0.with_label_values(&status).inc();
        self.cache_requests.1.with_label_values(&status).observe(took.as_secs_f64());
    }

    pub fn fetched(&self, ok: bool) {
        self.fetches.with_label_values(&[if ok { "ok" } else { "error" }]).inc();
    }

    /// Somebody waits for an answer (`blocked`), or a question is under way (`in_flight`), for as long as this lives.
    pub fn active(&self, status: &'static str) -> Active {
        let gauge = self.active.with_label_values(&[status]);
        gauge.inc();
        Active(gauge)
    }

    /// `seconds`: until the certificate that a request came with ends.
    pub fn certificate(&self, seconds: f64) {
        self.expiration.observe(seconds);
    }
}

/// See [`ReviewMetrics::active`].
#[derive(Debug)]
pub struct Active(prometheus::IntGauge);

impl Drop for Active {
    fn drop(&mut self) {
        self.0.dec();
    }
}
