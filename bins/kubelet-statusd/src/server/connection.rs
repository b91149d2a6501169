//! One connection from its first byte to its last: TLS, HTTP, and the times that it has for each step.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bulkhead_daemon::progress::Progress;
use futures_util::future::BoxFuture;
use http::{Request, Response, StatusCode, header};
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};

use super::activity::{Activity, Phase};
use super::answer::{self, Answer};
use super::connection_metrics::{Closed, ConnectionMetrics};
use super::connections::Slot;
use super::limits::Limits;
use super::sending::Sending;
use super::served_body::ServedBody;
use super::tls::Serving;
use super::wire::Watched;
use crate::routes::Surface;

/// Go's server allows so many requests at once on a connection (`net/http`, defaultMaxStreams).
const STREAMS: u32 = 250;
/// Who has shown no certificate that counts has so many: enough for a scraper with a token, and a stranger's streams, whose
/// answers are held for as long as they are not taken, are few.
const STREAMS_UNPROVEN: u32 = 32;
/// How many times within the time that a client may take nothing its connection is looked at.
const LOOKS: u32 = 3;
/// What waits to be sent on one stream of HTTP/2, and in TLS on one connection: a client that does not read costs no more.
const SEND_BUFFER: usize = 16 << 10;
/// Headers of a request of HTTP/2, bytes; more is answered 431. Less than HTTP/1.1 has: each connection may hold them.
const HEADER_LIST: u32 = 128 << 10;
/// More headers than this in one request are answered 431.
const HEADERS: usize = 512;

/// What answers requests.
pub trait Handler: std::fmt::Debug + Send + Sync {
    /// Never fails: what goes wrong is an answer too.
    fn answer(self: Arc<Self>, surface: Surface, request: Request<Incoming>) -> BoxFuture<'static, Answer>;
}

/// What a connection leads to.
#[derive(Debug)]
pub struct Endpoint {
    pub surface: Surface,
    pub handler: Arc<dyn Handler>,
    pub metrics: ConnectionMetrics,
    /// Where the loop that accepts registers with the watchdog.
    pub progress: Progress,
    pub limits: Limits,
    /// None: plain HTTP.
    pub tls: Option<Serving>,
}

/// Who is at the other end: `from` becomes an extension of each request as a `SocketAddr`.
#[derive(Debug, Clone)]
struct Client {
    from: SocketAddr,
    certificates: Option<PeerCertificates>,
}

/// The certificates that the client has shown, its own first; not verified. An extension of each request.
#[derive(Debug, Clone)]
pub struct PeerCertificates(pub Arc<[CertificateDer<'static>]>);

/// Serves the connection to its end. `slot` is given back when the last of it is gone, streams included.
pub async fn serve(stream: TcpStream, from: SocketAddr, slot: Slot, endpoint: Arc<Endpoint>) {
    let activity = slot.activity().clone();
    let served = async {
        match &endpoint.tls {
            None => {
                let client = Client { from, certificates: None };
                let stream = Sending::new(stream, slot.activity().clone());
                http1(Watched::new(stream, slot, true), client, &endpoint).await;
            }
            Some(tls) => https(stream, from, slot, tls, &endpoint).await,
        }
    };
    let mut served = pin!(served);
    tokio::select! {
        () = &mut served => {}
        () = activity.evicted() => {
            tracing::debug!("a connection makes room for another");
            endpoint.metrics.closed(endpoint.surface, Closed::MadeRoom);
        }
    }
}

async fn https(stream: TcpStream, from: SocketAddr, slot: Slot, tls: &Serving, endpoint: &Arc<Endpoint>) {
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
            .accept_with(Sending::new(stream, slot.activity().clone()), |connection| {
                connection.set_buffer_limit(Some(SEND_BUFFER))
            });
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
    // Each request is asked anew; that somebody has a certificate of ours is known already.
    let authority = tls.authority();
    let proves = |shown: &PeerCertificates| authority?.identify(&shown.0).ok()?;
    if certificates.as_ref().and_then(proves).is_some() {
        slot.activity().prove();
    }
    let client = Client { from, certificates };
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

async fn http1<S>(io: Watched<S>, client: Client, endpoint: &Arc<Endpoint>)
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
    ended(InTime::new(served, activity, endpoint.limits).await, endpoint);
}

async fn http2<S>(io: Watched<S>, client: Client, endpoint: &Arc<Endpoint>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let activity = io.activity().clone();
    let service = service(activity.clone(), client, endpoint);
    let streams = if activity.is_proven() { STREAMS } else { STREAMS_UNPROVEN };
    let served = hyper::server::conn::http2::Builder::new(StreamTasks { life: endpoint.limits.answer_life })
        .timer(TokioTimer::new())
        .max_concurrent_streams(streams)
        .max_send_buf_size(SEND_BUFFER)
        .max_header_list_size(HEADER_LIST.min(u32::try_from(endpoint.limits.head_bytes).unwrap_or(u32::MAX)))
        .serve_connection(TokioIo::new(io), hyper::service::service_fn(service));
    ended(InTime::new(served, activity, endpoint.limits).await, endpoint);
}

fn ended(outcome: Result<hyper::Result<()>, TimeUp>, endpoint: &Endpoint) {
    match outcome {
        Err(TimeUp::Quiet) => tracing::debug!("connection closed: its time was up"),
        Err(TimeUp::Stalled) => {
            tracing::debug!("connection closed: its client took nothing of what it was sent");
            endpoint.metrics.closed(endpoint.surface, Closed::Stalled);
        }
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(error = bulkhead_types::chain(&error), "connection ended"),
    }
}

type Answering = Pin<Box<dyn Future<Output = Result<Response<ServedBody>, Infallible>> + Send>>;

/// What answers the requests of one connection.
fn service(
    activity: Arc<Activity>,
    client: Client,
    endpoint: &Arc<Endpoint>,
) -> impl Fn(Request<Incoming>) -> Answering + Send + 'static {
    let endpoint = endpoint.clone();
    move |mut request| {
        let work = activity.begin();
        let deadline = Instant::now() + endpoint.limits.answer_life;
        if let Some(certificates) = &client.certificates {
            request.extensions_mut().insert(certificates.clone());
        }
        request.extensions_mut().insert(client.from);
        request.extensions_mut().insert(activity.clone());
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
    let answer = endpoint.handler.clone().answer(endpoint.surface, request);
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

/// Streams of HTTP/2 as tasks, each for no longer than an answer may take: one whose body is not asked for anything, because
/// its client takes nothing, does not see its own deadline.
#[derive(Debug, Clone, Copy)]
struct StreamTasks {
    life: Duration,
}

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for StreamTasks {
    fn execute(&self, stream: F) {
        let limited = tokio::time::timeout(self.life, stream);
        tokio::spawn(async move {
            let _ = limited.await;
        });
    }
}

/// Why a connection's time was up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TimeUp {
    /// Idle, or at one request's headers.
    Quiet,
    /// What it was sent was not taken.
    Stalled,
}

/// A served connection, dropped when it has been idle, at one request's headers, or has taken nothing for too long.
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

    /// When its time is up if nothing changes, and why. None: never.
    fn end(&self) -> Option<(Instant, TimeUp)> {
        let phase = match self.activity.phase() {
            Phase::Busy => None,
            Phase::Idle(since) => Some(since + self.limits.idle_time),
            Phase::Head(since) => Some(since + self.limits.head_time),
        };
        let patience = if self.activity.is_proven() { self.limits.answer_life } else { self.limits.stall_time };
        let stall = self.activity.stalled().map(|since| (since + patience, TimeUp::Stalled));
        phase.map(|end| (end, TimeUp::Quiet)).into_iter().chain(stall).min_by_key(|(end, _)| *end)
    }

    /// Requests of HTTP/2 are tasks of their own: that one ends or stalls wakes nobody here. So one looks in a while.
    fn look(&self, now: Instant) -> Option<Instant> {
        if self.activity.phase() != Phase::Busy {
            return None;
        }
        let pause = if self.activity.is_proven() { self.limits.idle_time } else { self.limits.stall_time / LOOKS };
        let planned = self.timer.deadline();
        Some(if planned > now && planned <= now + pause { planned } else { now + pause })
    }
}

impl<F: Future<Output = hyper::Result<()>>> Future for InTime<F> {
    type Output = Result<hyper::Result<()>, TimeUp>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let Poll::Ready(outcome) = this.served.as_mut().poll(cx) {
            return Poll::Ready(Ok(outcome));
        }
        loop {
            let (now, end) = (Instant::now(), this.end());
            if let Some((_, why)) = end.filter(|(end, _)| *end <= now) {
                return Poll::Ready(Err(why));
            }
            // One of them there is: without an end it is busy.
            let next =
                end.map(|(end, _)| end).into_iter().chain(this.look(now)).min().unwrap_or(now + this.limits.idle_time);
            if this.timer.deadline() != next {
                this.timer.as_mut().reset(next);
            }
            std::task::ready!(this.timer.as_mut().poll(cx));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::connections::Connections;
    use super::super::source::Source;
    use super::*;

    type Forever = std::future::Pending<hyper::Result<()>>;

    /// A connection at one request, on which nothing happens but what the test does.
    fn at_work() -> (Slot, Limits, InTime<Forever>) {
        let limits = Limits::main(4096);
        let slot = Connections::new(1, limits.stall_time).admit(Source::UNKNOWN).unwrap();
        let served = InTime::new(std::future::pending(), slot.activity().clone(), limits);
        (slot, limits, served)
    }

    async fn lasts(served: &mut InTime<Forever>, time: Duration) -> bool {
        tokio::time::timeout(time, served).await.is_err()
    }

    #[tokio::test(start_paused = true)]
    async fn who_takes_nothing_of_a_body_is_left_after_a_while() {
        let (slot, limits, mut served) = at_work();
        let mut work = slot.activity().begin();
        assert!(lasts(&mut served, Duration::from_secs(3 * 3600)).await, "a body that waits for us is no stall");
        work.gave();
        let given = Instant::now();
        // Whoever takes something now and then goes on.
        for _ in 0..10 {
            assert!(lasts(&mut served, limits.stall_time - Duration::from_secs(1)).await);
            work.asked();
            work.gave();
        }
        let last = Instant::now();
        assert!(last > given + 5 * limits.stall_time);
        assert_eq!((&mut served).await.unwrap_err(), TimeUp::Stalled);
        assert_eq!(last.elapsed(), limits.stall_time);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stalled_connection_is_found_without_a_wake_up() {
        let (slot, limits, mut served) = at_work();
        let mut work = slot.activity().begin();
        let given = async {
            tokio::time::sleep(Duration::from_secs(100)).await;
            work.gave();
            let given = Instant::now();
            // Not dropped: the request stays in work.
            (given, work)
        };
        let (ended, (given, _work)) = tokio::join!(async { ((&mut served).await.is_err(), Instant::now()) }, given);
        let took = ended.1 - given;
        assert!(
            ended.0 && took >= limits.stall_time && took <= limits.stall_time + limits.stall_time / LOOKS,
            "{took:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_socket_that_takes_nothing_ends_also_what_is_idle_to_us() {
        let (slot, limits, mut served) = at_work();
        let begun = Instant::now();
        slot.activity().blocked(true);
        assert_eq!((&mut served).await.unwrap_err(), TimeUp::Stalled);
        assert_eq!(begun.elapsed(), limits.stall_time);
        let (_slot, limits, served) = at_work();
        let begun = Instant::now();
        assert_eq!(served.await.unwrap_err(), TimeUp::Quiet);
        assert_eq!(begun.elapsed(), limits.idle_time);
    }

    #[tokio::test(start_paused = true)]
    async fn somebody_known_may_read_page_by_page() {
        let (slot, limits, mut served) = at_work();
        let mut work = slot.activity().begin();
        slot.activity().prove();
        work.gave();
        let given = Instant::now();
        assert!((&mut served).await.is_err());
        assert_eq!(given.elapsed(), limits.answer_life);
        // What has left HTTP has limits of its own.
        let (slot, limits, mut served) = at_work();
        let _work = slot.activity().begin();
        slot.activity().switch();
        slot.activity().blocked(true);
        assert!(lasts(&mut served, limits.answer_life * 2).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_ends_when_no_answer_may_go_on() {
        use hyper::rt::Executor as _;
        let held = Arc::new(());
        let stream = held.clone();
        StreamTasks { life: Duration::from_secs(10) }.execute(async move {
            let _stream = stream;
            std::future::pending::<()>().await;
        });
        tokio::time::sleep(Duration::from_secs(9)).await;
        assert_eq!(Arc::strong_count(&held), 2);
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
