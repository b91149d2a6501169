//! Each call, before its message is read: may this peer call this method, has it a call to spare, and how much memory
//! may its request take.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tonic::body::Body;
use tracing::Instrument as _;

use crate::context::{POD_UID, REQUEST_ID};
use crate::holding::Holding;
use crate::limits::{DEFAULT_DEADLINE, Gate, RequestBytes, Taken};
use crate::peers::{Peer, Policy, Role};
use crate::refusals::Reason;

/// The span of a call that belongs to somebody's trace; calls outside of any begin none.
fn served_span(parent: &str, method: &str) -> tracing::Span {
    if parent.is_empty() {
        return tracing::Span::none();
    }
    let name = method.trim_start_matches('/');
    tracing::info_span!(
        target: bulkhead_trace::TARGET,
        "call",
        { bulkhead_trace::NAME_FIELD } = name,
        { bulkhead_trace::KIND_FIELD } = "server",
        { bulkhead_trace::PARENT_FIELD } = parent,
        rpc.system = "grpc",
    )
}

/// Checks each call against policy and limits, and opens its tracing span.
#[derive(Debug, Clone)]
pub(crate) struct PeerCheckLayer {
    policy: Arc<Policy>,
    gate: Arc<Gate>,
}

impl PeerCheckLayer {
    pub(crate) fn new(policy: Policy, gate: Arc<Gate>) -> Self {
        PeerCheckLayer { policy: Arc::new(policy), gate }
    }
}

impl<S> tower::Layer<S> for PeerCheckLayer {
    type Service = PeerCheck<S>;
    fn layer(&self, inner: S) -> PeerCheck<S> {
        PeerCheck { inner, policy: self.policy.clone(), gate: self.gate.clone() }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct PeerCheck<S> {
    inner: S,
    policy: Arc<Policy>,
    gate: Arc<Gate>,
}

impl<S> PeerCheck<S> {
    fn admit(&self, peer: Option<&Arc<Peer>>, method: &str) -> Result<(Role, u32, Taken), tonic::Status> {
        let Some(peer) = peer else { return Err(tonic::Status::internal("connection carries no peer identity")) };
        let role = self.policy.check(peer, method).inspect_err(|status| {
            self.gate.refuse(Reason::Method, &**peer, &status.message());
        })?;
        let slot = self.gate.call(role).ok_or_else(|| {
            let why = format!("{} has {} calls in flight already", role.as_str(), self.gate.limits.calls);
            self.gate.refuse(Reason::Calls, &**peer, &why);
            tonic::Status::resource_exhausted(why)
        })?;
        Ok((role, peer.uid, slot))
    }
}

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl<S> tower_service::Service<http::Request<Body>> for PeerCheck<S>
where
    S: tower_service::Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        let method = request.uri().path().to_owned();
        let (role, uid, slot) = match self.admit(request.extensions().get::<Arc<Peer>>(), &method) {
            Ok(admitted) => admitted,
            Err(status) => return Box::pin(async move { Ok(status.into_http()) }),
        };
        let header = |name| request.headers().get(name).and_then(|v: &http::HeaderValue| v.to_str().ok()).unwrap_or("");
        let span = tracing::debug_span!(
            "call",
            method,
            peer = role.as_str(),
            uid,
            request_id = header(REQUEST_ID),
            pod_uid = header(POD_UID)
        );
        let traced = served_span(header(bulkhead_trace::HEADER), &method);
        request.extensions_mut().insert(role);
        let names_deadline = request.headers().contains_key("grpc-timeout");
        let memory = self.gate.request(role);
        let gate = self.gate.clone();
        let request = request.map(|body| Body::new(Metered { body, role, gate, memory }));
        let answered = in_time(names_deadline, self.inner.call(request));
        let answered = async move { Ok(answered.await?.map(|body| Body::new(Holding::new(body, slot)))) };
        Box::pin(answered.instrument(span).instrument(traced))
    }
}

/// Ends a call that names no deadline after the default one; of any other the server's builder has the end.
async fn in_time<E>(
    names_deadline: bool,
    answer: impl Future<Output = Result<http::Response<Body>, E>>,
) -> Result<http::Response<Body>, E> {
    if names_deadline {
        return answer.await;
    }
    let answered = tokio::time::timeout(DEFAULT_DEADLINE, answer).await;
    answered.unwrap_or_else(|_| Ok(tonic::Status::deadline_exceeded("the call named no deadline").into_http()))
}

/// A request's body whose bytes count until they are decoded: the decoder lets go of the body when it has its message.
struct Metered {
    body: Body,
    role: Role,
    gate: Arc<Gate>,
    memory: RequestBytes,
}

impl http_body::Body for Metered {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, tonic::Status>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &polled {
            let bytes = frame.data_ref().map_or(0, Bytes::len);
            if !self.memory.grow(bytes) {
                let why = "its requests that are not complete hold as much memory as they may";
                self.gate.refuse(Reason::Bytes, &self.role.as_str(), &why);
                return Poll::Ready(Some(Err(tonic::Status::resource_exhausted(format!(
                    "{}: {why}",
                    self.role.as_str()
                )))));
            }
        }
        polled
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
    use std::future::{pending, ready};
    use tokio::time::{Instant, timeout};

    #[tokio::test(start_paused = true)]
    async fn a_call_that_names_no_deadline_ends_all_the_same() {
        type Answer = Result<http::Response<Body>, Infallible>;
        let start = Instant::now();
        let ended = in_time(false, pending::<Answer>()).await.unwrap();
        assert_eq!((start.elapsed(), &ended.headers()["grpc-status"]), (DEFAULT_DEADLINE, &http::HeaderValue::from(4)));
        let waits = timeout(DEFAULT_DEADLINE * 2, in_time(true, pending::<Answer>())).await;
        assert!(waits.is_err(), "the server's builder ends it");
        let answer: Answer = Ok(http::Response::new(Body::empty()));
        assert!(in_time(false, ready(answer)).await.unwrap().headers().is_empty());
    }
}
