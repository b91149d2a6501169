//! One request from its caller to the server and back: credentials as they are now, its turn, its deadline, its retries.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bulkhead_types::chain;
use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http::header::{ACCEPT, HeaderValue, USER_AGENT};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Body as _;
use kube::client::Body;
use parking_lot::Mutex;
use tokio::time::Instant;
use tower_service::Service;

use crate::backoff::random_fraction;
use crate::body::AnswerBody;
use crate::budget::Budget;
use crate::session::{Session, Shared};
use crate::{Lane, retry};

/// How long a watch may take to begin; it has no other deadline.
const WATCH_HEAD: Duration = Duration::from_secs(30);
/// A longer wait for the rate limit is worth a line in the log (client-go's `longThrottleLatency` is 1 s).
const LONG_WAIT: Duration = Duration::from_secs(1);

/// Why a request got no answer. What it did on the server is unknown.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    #[error("there are no credentials for the API server yet")]
    NoCredentials,
    #[error("{method} {url}: no answer within {} s", .timeout.as_secs_f32())]
    Deadline { method: Method, url: String, timeout: Duration },
    #[error("{method} {url}: {text}")]
    Transport { method: Method, url: String, text: String, source: hyper_util::client::legacy::Error },
    #[error("the request cannot be addressed")]
    Address(#[from] http::Error),
    #[error("the request's body cannot be read")]
    Body(#[source] kube::Error),
}

impl CallError {
    /// Whether an error of a [`kube::Client`] is that of a connection that stood and was lost, so that the same request may be
    /// answered on the next one: no server that refuses connections or cannot be reached at all, and no want of credentials.
    pub fn is_lost_connection(error: &(dyn std::error::Error + 'static)) -> bool {
        causes(error).any(|cause| match cause.downcast_ref() {
            Some(CallError::Transport { source, .. }) => !source.is_connect() || causes(source).any(is_reset),
            Some(CallError::Deadline { .. }) => true,
            _ => false,
        })
    }
}

fn causes<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error), |error| error.source())
}

fn is_reset(cause: &(dyn std::error::Error + 'static)) -> bool {
    let error = cause.downcast_ref::<std::io::Error>();
    error.is_some_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset)
}

/// Sends a lane's requests. `kube::Client` wraps it.
#[derive(Clone)]
pub(crate) struct LaneService {
    shared: Arc<Shared>,
    lane: Lane,
    budget: Option<Arc<Mutex<Budget>>>,
    timeout: Duration,
}

impl LaneService {
    pub(crate) fn new(shared: Arc<Shared>, lane: Lane) -> Self {
        let budget = lane.budget(&shared.config).map(|budget| Arc::new(Mutex::new(budget)));
        let timeout = lane.timeout(&shared.config);
        LaneService { shared, lane, budget, timeout }
    }

    async fn send(self, request: Request<Body>) -> Result<Response<AnswerBody>, CallError> {
        let (head, body) = request.into_parts();
        let is_watch = head.uri.query().is_some_and(is_watch);
        let body = body.collect().await.map_err(CallError::Body)?.to_bytes();
        let mut retries = 0;
        loop {
            let session = self.shared.session().ok_or(CallError::NoCredentials)?;
            self.take_turn(&head.method, session.host()).await;
            let mut request = Request::new(Full::new(body.clone()));
            *request.method_mut() = head.method.clone();
            *request.uri_mut() = session.locate(&head.uri)?;
            *request.headers_mut() = head.headers.clone();
            self.add_headers(&session, &mut request);
            let (pause, answer) = match self.attempt(&session, request, is_watch).await {
                Ok(response) => {
                    match retry::again_after(response.status(), response.headers(), retries, random_fraction()) {
                        None => return Ok(response),
                        Some(pause) => (pause, Some(response.status())),
                    }
                }
                // A connection that broke under a request that changes nothing: once more, on another one.
                Err(CallError::Transport { source, .. })
                    if retries == 0 && head.method == Method::GET && !source.is_connect() =>
                {
                    (Duration::ZERO, None)
                }
                Err(error) => return Err(error),
            };
            retries += 1;
            if let Some(metrics) = self.shared.metrics.get() {
                metrics.retry(answer.map(|status| status.as_u16()), head.method.as_str(), session.host());
            }
            tracing::debug!(method = %head.method, path = head.uri.path(), ?answer, ?pause, "sending a request again");
            tokio::time::sleep(pause).await;
        }
    }

    async fn take_turn(&self, method: &Method, host: &str) {
        let Some(budget) = &self.budget else { return };
        let wait = budget.lock().take(Instant::now().into_std());
        if let Some(metrics) = self.shared.metrics.get() {
            metrics.waited(method.as_str(), host, wait);
        }
        if wait.is_zero() {
            return;
        }
        if wait >= LONG_WAIT {
            tracing::debug!(lane = ?self.lane, seconds = wait.as_secs_f32(), "the client's rate limit holds a request back");
        }
        tokio::time::sleep(wait).await;
    }

    fn add_headers(&self, session: &Session, request: &mut Request<Full<Bytes>>) {
        let headers = request.headers_mut();
        headers.entry(ACCEPT).or_insert(HeaderValue::from_static("application/json"));
        headers.insert(USER_AGENT, self.shared.user_agent.clone());
        for name in session.headers().keys() {
            headers.remove(name);
        }
        for (name, value) in session.headers() {
            headers.append(name, value.clone());
        }
    }

    /// One try.
    async fn attempt(
        &self,
        session: &Session,
        request: Request<Full<Bytes>>,
        is_watch: bool,
    ) -> Result<Response<AnswerBody>, CallError> {
        let (method, url) = (request.method().clone(), request.uri().path().to_owned());
        let sent = request.body().size_hint().exact().unwrap_or(0);
        let connections = session.connections();
        let place = if is_watch { connections.for_watch(self.lane) } else { connections.for_call(self.lane) };
        let timeout = if is_watch { WATCH_HEAD } else { self.timeout };
        let started = Instant::now();
        let deadline = started + timeout;
        let outcome = tokio::time::timeout_at(deadline, place.slot().client().request(request)).await;
        let code = outcome.as_ref().ok().and_then(|answer| answer.as_ref().ok()).map(|answer| answer.status().as_u16());
        if let Some(metrics) = self.shared.metrics.get() {
            let call = (!is_watch).then(|| (started.elapsed(), sent));
            metrics.request(code, method.as_str(), session.host(), call);
        }
        match outcome {
            Ok(Ok(response)) => {
                self.shared.reachability.answered();
                if response.status() == StatusCode::UNAUTHORIZED {
                    self.shared.refused(session);
                }
                let slot = place.slot().clone();
                let size =
                    self.shared.metrics.get().map(|metrics| metrics.answer_size(method.as_str(), session.host()));
                let mut response = response.map(|body| {
                    if is_watch {
                        AnswerBody::of_watch(body, place)
                    } else {
                        AnswerBody::of_call(body, place, deadline, size)
                    }
                });
                response.extensions_mut().insert(slot);
                Ok(response)
            }
            Ok(Err(source)) => {
                let text = chain(&source);
                self.shared.reachability.failed(&text);
                Err(CallError::Transport { method, url, text, source })
            }
            Err(_) => {
                // A connection that is half open takes everything and answers nothing: the next request gets another.
                place.slot().abandon();
                let error = CallError::Deadline { method, url, timeout };
                self.shared.reachability.failed(&error.to_string());
                Err(error)
            }
        }
    }
}

impl Service<Request<Body>> for LaneService {
    type Response = Response<AnswerBody>;
    type Error = CallError;
    type Future = BoxFuture<'static, Result<Response<AnswerBody>, CallError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), CallError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        self.clone().send(request).boxed()
    }
}

/// Whether a query asks for a watch.
fn is_watch(query: &str) -> bool {
    query.split('&').any(|pair| matches!(pair, "watch" | "watch=1" | "watch=true"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watches_are_counted_apart_from_calls() {
        for query in ["watch=1", "a=b&watch=true", "watch=true&x"] {
            assert!(is_watch(query));
        }
        for query in ["", "watch=0", "watch=false", "fieldSelector=watch%3D1", "xwatch=1"] {
            assert!(!is_watch(query));
        }
    }
}
