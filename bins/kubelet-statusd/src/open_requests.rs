//! Requests as upstream's `kubelet_http_*` count them: from the head to the last byte of the answer, streams for as long as
//! they are open.

use std::sync::Arc;
use std::time::Instant;

use bulkhead_ipc::holding::Holding;
use http_body_util::BodyExt as _;
use prometheus::{Histogram, HistogramOpts, HistogramVec, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};

use crate::server::answer::Body;

const LABELS: [&str; 4] = ["method", "path", "server_type", "long_running"];

/// The families that requests change.
#[derive(Debug, Clone)]
pub struct RequestMetrics {
    requests: IntCounterVec,
    seconds: HistogramVec,
    inflight: IntGaugeVec,
}

impl RequestMetrics {
    /// # Errors
    /// A family of the same name exists already.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let metrics = RequestMetrics {
            requests: IntCounterVec::new(
                Opts::new(
                    "kubelet_http_requests_total",
                    "[ALPHA] Number of the http requests received since the server started",
                ),
                &LABELS,
            )?,
            seconds: HistogramVec::new(
                HistogramOpts::new(
                    "kubelet_http_requests_duration_seconds",
                    "[ALPHA] Duration in seconds to serve http requests",
                ),
                &LABELS,
            )?,
            inflight: IntGaugeVec::new(
                Opts::new("kubelet_http_inflight_requests", "[ALPHA] Number of the inflight http requests"),
                &LABELS,
            )?,
        };
        registry.register(Box::new(metrics.requests.clone()))?;
        registry.register(Box::new(metrics.seconds.clone()))?;
        registry.register(Box::new(metrics.inflight.clone()))?;
        Ok(metrics)
    }
}

/// A request that is not over. It is over when the last copy is dropped: the body of the answer holds one, and the task of
/// a stream that took the connection over finds another among the request's extensions, to keep.
#[derive(Debug, Clone)]
pub struct OpenRequest {
    _counted: Arc<Counted>,
}

#[derive(Debug)]
struct Counted {
    began: Instant,
    inflight: IntGauge,
    seconds: Histogram,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.inflight.dec();
        self.seconds.observe(self.began.elapsed().as_secs_f64());
    }
}

impl OpenRequest {
    /// `labels`: method, path, server_type, long_running.
    pub fn begin(metrics: &RequestMetrics, labels: &[&str; 4]) -> Self {
        metrics.requests.with_label_values(labels).inc();
        let inflight = metrics.inflight.with_label_values(labels);
        inflight.inc();
        let seconds = metrics.seconds.with_label_values(labels);
        OpenRequest { _counted: Arc::new(Counted { began: Instant::now(), inflight, seconds }) }
    }

    /// The body of the answer, which keeps the request open until it has been sent or given up.
    pub fn of_body(self, body: Body) -> Body {
        Holding::new(body, self).boxed_unsync()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::answer;

    #[tokio::test]
    async fn counted_while_anything_of_it_is_open() {
        let metrics = RequestMetrics::register(&Registry::new()).unwrap();
        let labels = ["GET", "exec", "readwrite", "true"];
        let inflight = || metrics.inflight.with_label_values(&labels).get();
        let ended = || metrics.seconds.with_label_values(&labels).get_sample_count();
        let open = OpenRequest::begin(&metrics, &labels);
        let stream = open.clone();
        let body = open.of_body(answer::body("x"));
        assert_eq!((metrics.requests.with_label_values(&labels).get(), inflight(), ended()), (1, 1, 0));
        assert_eq!(body.collect().await.unwrap().to_bytes().as_ref(), b"x");
        assert_eq!((inflight(), ended()), (1, 0));
        drop(stream);
        assert_eq!((inflight(), ended()), (0, 1));
    }
}
