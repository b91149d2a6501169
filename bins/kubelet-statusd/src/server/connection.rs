//! One connection from its first byte to its last: TLS, HTTP, and the times that it has for each step.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response, StatusCode, header};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};

use super::answer::{self, Answer};
use super::connections::{Activity, Phase, Slot};
use super::limits::Limits;
use super::served_body::ServedBody;
use super::tls::Serving;
use super::wire::Watched;
use crate::app::App;
use crate::routes::Surface;

/// Go's server allows so many requests at once on a connection (`net/http`, defaultMaxStreams).
const STREAMS: u32 = 250;
/// What waits to be sent on one stream of HTTP/2, and in TLS on one connection: a client that does not read costs no more.
const SEND_BUFFER: usize = 16 << 10;
/// Headers of a request of HTTP/2, bytes; more is answered 431. Less than HTTP/1.1 has: each connection may hold them.
const HEADER_LIST: u32 = 128 << 10;
/// More headers than this in one request are answered 431.
const HEADERS: usize = 512;

/// What a connection leads to.
#[derive(Debug, Clone)]
pub struct Endpoint {
    pub surface: Surface,
    pub app: Arc<App>,
    pub limits: Limits,
    /// None: plain HTTP.
    pub tls: Option<Serving>,
}

/// Who is at the other end: `from`, where it is known, becomes an extension of each request as a `SocketAddr`.
#[derive(Debug, Clone)]
struct Client {
    from: Option<SocketAddr>,
    certificates: Option<PeerCertificates>,
}

/// The certificates that the client has shown, its own first; not verified. An extension of each request.
#[derive(Debug, Clone)]
pub struct PeerCertificates(pub Arc<[CertificateDer<'static>]>);

/// Serves the connection to its end. `slot` is given back when the last of it is gone, streams included.
pub async fn serve(stream: TcpStream, slot: Slot, endpoint: Arc<Endpoint>) {
    let activity = slot.activity().clone();
    let served = async {
        match &endpoint.tls {
            None => {
                let client = Client { from: stream.peer_addr().ok(), certificates: None };
                http1(Watched::new(stream, slot, true), client, &endpoint).await;
            }
            Some(tls) => https(stream, slot, tls, &endpoint).await,
        }
    };
    let mut served = pin!(served);
    tokio::select! {
        () = &mut served => {}
        () = activity.evicted() => tracing::debug!("an idle connection makes room for another"),
    }
}

async fn https(stream: TcpStream, slot: Slot, tls: &Serving, endpoint: &Endpoint) {
    let handshake = async {
        // No record of TLS begins with a letter.
        let mut first = [0];
        if stream.peek(&mut first).await? == 1 && first[0].is_ascii_alphabetic() {
            refuse_plain(stream).await;
            return Ok(None);
        }
        // Right after the start there may be none yet.
        let config = tls.config().await;
        let accept = tokio_rustls::TlsAcceptor::from(config)
            .accept_with(stream, |connection| connection.set_buffer_limit(Some(SEND_BUFFER)));
        accept.await.map(Some)
    };
    let stream = match tokio::time::timeout(endpoint.limits.handshake_time, handshake).await {
        Ok(Ok(Some(stream))) => stream,
        Ok(Ok(None)) => return,
        Ok(Err(error)) => return tracing::debug!(%error, "TLS handshake error"),
        Err(_) => return tracing::debug!("TLS: no handshake in time"),
    };
    let connection = stream.get_ref().1;
    let certificates = connection.peer_certificates().unwrap_or_default();
    let certificates: Arc<[_]> = certificates.iter().map(|one| one.clone().into_owned()).collect();
    let certificates = (!certificates.is_empty()).then_some(PeerCertificates(certificates));
    let client = Client { from: stream.get_ref().0.peer_addr().ok(), certificates };
    if connection.alpn_protocol() == Some(b"h2") {
        http2(Watched::new(stream, slot, false), client, endpoint).await;
    } else {
        http1(Watched::new(stream, slot, true), client, endpoint).await;
    }
}

/// Tells somebody who does not speak TLS at all what is wrong, in Go's words.
async fn refuse_plain(mut stream: TcpStream) {
    const WORDS: &[u8] = b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n";
    tracing::debug!("TLS: a client speaks plain HTTP");
    let _ = stream.write_all(WORDS).await;
    let _ = stream.shutdown().await;
}

async fn http1<S>(io: Watched<S>, client: Client, endpoint: &Endpoint)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let activity = io.activity().clone();
    let service = service(activity.clone(), client, endpoint);
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        // Times of headers are ours: hyper's would count idleness as slowness.
        .header_read_timeout(None::<Duration>)
        .max_buf_size(endpoint.limits.head_bytes)
        .max_header_size(endpoint.limits.head_bytes)
        .max_headers(HEADERS)
        // As Go writes them: not everybody compares names of headers as one should.
        .title_case_headers(true)
        .serve_connection(TokioIo::new(io), hyper::service::service_fn(service))
        .with_upgrades();
    ended(InTime::new(served, activity, endpoint.limits).await);
}

async fn http2<S>(io: Watched<S>, client: Client, endpoint: &Endpoint)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let activity = io.activity().clone();
    let service = service(activity.clone(), client, endpoint);
    let served = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .max_send_buf_size(SEND_BUFFER)
        .max_header_list_size(HEADER_LIST.min(u32::try_from(endpoint.limits.head_bytes).unwrap_or(u32::MAX)))
        .serve_connection(TokioIo::new(io), hyper::service::service_fn(service));
    ended(InTime::new(served, activity, endpoint.limits).await);
}

fn ended(outcome: Option<hyper::Result<()>>) {
    match outcome {
        None => tracing::debug!("connection closed: its time was up"),
        Some(Ok(())) => {}
        Some(Err(error)) => tracing::debug!(error = bulkhead_types::chain(&error), "connection ended"),
    }
}

type Answering = Pin<Box<dyn Future<Output = Result<Response<ServedBody>, Infallible>> + Send>>;

/// What answers the requests of one connection.
fn service(
    activity: Arc<Activity>,
    client: Client,
    endpoint: &Endpoint,
) -> impl Fn(Request<Incoming>) -> Answering + Send + 'static {
    let endpoint = endpoint.clone();
    move |mut request| {
        let work = activity.begin();
        let deadline = Instant::now() + endpoint.limits.answer_life;
        if let Some(certificates) = &client.certificates {
            request.extensions_mut().insert(certificates.clone());
        }
        if let Some(from) = client.from {
            request.extensions_mut().insert(from);
        }
        let (endpoint, activity) = (endpoint.clone(), activity.clone());
        Box::pin(async move {
            let answer = answer(&endpoint, request).await;
            if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
                activity.switch();
            }
            Ok(answer.map(|body| ServedBody::new(body, deadline, work)))
        })
    }
}

async fn answer(endpoint: &Endpoint, request: Request<Incoming>) -> Answer {
    if announced(&request).is_some_and(|length| length > endpoint.limits.body_bytes) {
        let mut answer = answer::text(StatusCode::PAYLOAD_TOO_LARGE, "the request's body is too large\n");
        if request.version() < http::Version::HTTP_2 {
            answer.headers_mut().insert(header::CONNECTION, http::HeaderValue::from_static("close"));
        }
        return answer;
    }
    let answer = endpoint.app.answer(endpoint.surface, request);
    match endpoint.limits.answer_time {
        None => answer.await,
        Some(limit) => tokio::time::timeout(limit, answer).await.unwrap_or_else(|_| {
            answer::text(StatusCode::SERVICE_UNAVAILABLE, "the node agent did not answer in time\n")
        }),
    }
}

/// How long the client says that the body is. One that is not announced is read by nobody.
fn announced(request: &Request<Incoming>) -> Option<u64> {
    request.headers().get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// A served connection, dropped when it has been idle, or at one request's headers, for too long.
struct InTime<F> {
    served: Pin<Box<F>>,
    activity: Arc<Activity>,
    limits: Limits,
    timer: Pin<Box<Sleep>>,
}

impl<F> InTime<F> {
    fn new(served: F, activity: Arc<Activity>, limits: Limits) -> Self {
        InTime { served: Box::pin(served), activity, limits, timer: Box::pin(tokio::time::sleep(limits.idle_time)) }
    }

    fn next_look(&self) -> Instant {
        let now = Instant::now();
        if self.timer.deadline() > now { self.timer.deadline() } else { now + self.limits.idle_time }
    }
}

impl<F: Future<Output = hyper::Result<()>>> Future for InTime<F> {
    /// None: its time was up.
    type Output = Option<hyper::Result<()>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let Poll::Ready(outcome) = this.served.as_mut().poll(cx) {
            return Poll::Ready(Some(outcome));
        }
        let deadline = match this.activity.phase() {
            // The end of a request of HTTP/2 wakes nobody here: one look in a while.
            Phase::Busy => this.next_look(),
            Phase::Idle(since) => since + this.limits.idle_time,
            Phase::Head(since) => since + this.limits.head_time,
        };
        if this.timer.deadline() != deadline {
            this.timer.as_mut().reset(deadline);
        }
        std::task::ready!(this.timer.as_mut().poll(cx));
        if this.activity.phase() == Phase::Busy {
            // Only the look was due, at this very moment.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(None)
    }
}
