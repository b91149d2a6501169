//! Requests as upstream's `kubelet_http_*` count them: from the head to the last byte of the answer, streams for as long as
//! they are open.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::{Frame, SizeHint};
use prometheus::{Histogram, IntGauge};

use crate::own_metrics::OwnMetrics;
use crate::server::answer::{Body, BoxError};

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
    pub fn begin(own: &OwnMetrics, labels: &[&str; 4]) -> Self {
        own.requests.with_label_values(labels).inc();
        let inflight = own.inflight.with_label_values(labels);
        inflight.inc();
        let seconds = own.request_seconds.with_label_values(labels);
        OpenRequest { _counted: Arc::new(Counted { began: Instant::now(), inflight, seconds }) }
    }

    /// The body of the answer, which keeps the request open until it has been sent or given up.
    pub fn of_body(self, body: Body) -> Body {
        Open { body, _request: self }.boxed_unsync()
    }
}

struct Open {
    body: Body,
    _request: OpenRequest,
}

impl hyper::body::Body for Open {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::answer;
    use prometheus::Registry;

    #[tokio::test]
    async fn counted_while_anything_of_it_is_open() {
        let own = OwnMetrics::register(&Registry::new(), "n", "v1.36.0").unwrap();
        let labels = ["GET", "exec", "readwrite", "true"];
        let inflight = || own.inflight.with_label_values(&labels).get();
        let ended = || own.request_seconds.with_label_values(&labels).get_sample_count();
        let open = OpenRequest::begin(&own, &labels);
        let stream = open.clone();
        let body = open.of_body(answer::body("x"));
        assert_eq!((own.requests.with_label_values(&labels).get(), inflight(), ended()), (1, 1, 0));
        assert_eq!(body.collect().await.unwrap().to_bytes().as_ref(), b"x");
        assert_eq!((inflight(), ended()), (1, 0));
        drop(stream);
        assert_eq!((inflight(), ended()), (0, 1));
    }
}
