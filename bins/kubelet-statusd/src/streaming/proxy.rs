//! A stream passed through: the client's request is made again at the runtime, its answer is the client's, and from then on
//! bytes are relayed (upstream `apimachinery/pkg/util/proxy/upgradeaware.go`). Which protocol is spoken - SPDY/3.1, or
//! WebSocket up to v4 - only the two ends know.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout_at};

use super::dial::{self, DialError};
use super::headers;
use super::options::is_upgrade;
use super::relay::{self, Limits};
use super::target::StreamUrl;
use crate::open_requests::OpenRequest;
use crate::server::answer::{self, Answer};

/// From the first packet to the runtime to the end of its headers.
const SET_UP: Duration = Duration::from_secs(30);
/// For the rest of a refusal, and for the client to take its 101.
const REST: Duration = Duration::from_secs(10);
/// Of a refusal's body, bytes.
const REFUSAL_MAX: usize = 64 << 10;
/// Of the runtime's headers, and of what it sends before the client has its 101, bytes.
const HEAD_MAX: usize = 16 << 10;
/// After one side has closed.
const LINGER: Duration = Duration::from_secs(10);

/// Why the runtime's streaming server gave no stream. Tells nothing of the URL but its address.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    #[error("Upgrade request required")]
    NoUpgrade,
    #[error(transparent)]
    Dial(#[from] DialError),
    #[error("the runtime's streaming server broke off")]
    Broken(#[source] hyper::Error),
    #[error("the runtime's streaming server did not answer in time")]
    Deadline,
    #[error("invalid upgrade response: status code {0}")]
    NotUpgraded(u16),
    #[error("the request for the runtime could not be made")]
    Request(#[source] http::Error),
}

/// What one stream may take, and what says that it is open: to be kept to its end.
#[derive(Debug)]
pub struct Allowance {
    /// `streamingConnectionIdleTimeout`; `None`: for ever.
    pub idle: Option<Duration>,
    _slot: OwnedSemaphorePermit,
    _counted: Option<OpenRequest>,
}

impl Allowance {
    pub fn new(idle: Option<Duration>, slot: OwnedSemaphorePermit, counted: Option<OpenRequest>) -> Self {
        Allowance { idle, _slot: slot, _counted: counted }
    }
}

/// Makes the request at the runtime and answers the client with what it says. After a 101 the stream goes on by itself.
pub async fn pass_through(mut request: Request<Incoming>, target: &StreamUrl, allowance: Allowance) -> Answer {
    let answered = async {
        if !is_upgrade(request.headers()) {
            return Err(ProxyError::NoUpgrade);
        }
        let deadline = Instant::now() + SET_UP;
        let answer =
            timeout_at(deadline, ask(&request, target, deadline)).await.map_err(|_| ProxyError::Deadline)??;
        match answer.status() {
            StatusCode::SWITCHING_PROTOCOLS => Ok(switch(&mut request, answer, allowance)),
            status if status.as_u16() >= 400 => Ok(refusal(answer).await),
            // Redirects among them: a stream goes where the URL says and nowhere else.
            status => Err(ProxyError::NotUpgraded(status.as_u16())),
        }
    };
    answered.await.unwrap_or_else(|error| {
        tracing::debug!(error = &error as &dyn std::error::Error, "a stream could not be set up");
        answer::text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n"))
    })
}

/// The runtime's answer to the client's request.
async fn ask(
    request: &Request<Incoming>,
    target: &StreamUrl,
    deadline: Instant,
) -> Result<Response<Incoming>, ProxyError> {
    let stream = dial::connect(target, deadline).await?;
    let mut builder = hyper::client::conn::http1::Builder::new();
    // As most clients write them: not every server that speaks an older protocol reads names in any case.
    builder.title_case_headers(true).max_buf_size(HEAD_MAX);
    let (mut sender, connection) = builder.handshake(TokioIo::new(stream)).await.map_err(ProxyError::Broken)?;
    tokio::spawn(async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, "the connection to the runtime's streaming server ended");
        }
    });
    let asked = Request::builder().method(request.method()).uri(target.path());
    let mut asked = asked.body(Empty::<Bytes>::new()).map_err(ProxyError::Request)?;
    *asked.headers_mut() = headers::for_runtime(request.headers(), &target.authority(), client_address(request));
    sender.send_request(asked).await.map_err(ProxyError::Broken)
}

/// The client's address, which the server has put beside its request.
fn client_address(request: &Request<Incoming>) -> Option<IpAddr> {
    request.extensions().get::<SocketAddr>().map(SocketAddr::ip)
}

/// 101 for the client, and the relay that begins when it has been sent.
fn switch(request: &mut Request<Incoming>, mut answer: Response<Incoming>, allowance: Allowance) -> Answer {
    let client = hyper::upgrade::on(request);
    let runtime = hyper::upgrade::on(&mut answer);
    let limits = Limits { idle: allowance.idle, linger: LINGER };
    tokio::spawn(async move {
        let both = async { tokio::try_join!(client, runtime) };
        let (client, runtime) = match tokio::time::timeout(REST, both).await {
            Ok(Ok(both)) => both,
            Ok(Err(error)) => return tracing::debug!(%error, "a stream ended before it had begun"),
            Err(_) => return tracing::debug!("a client did not take the answer to its upgrade"),
        };
        let relayed = relay::relay(TokioIo::new(client), TokioIo::new(runtime), limits).await;
        tracing::debug!(?relayed, "a stream has ended");
        drop(allowance);
    });
    let mut switched = answer::empty(StatusCode::SWITCHING_PROTOCOLS);
    *switched.headers_mut() = headers::for_client(answer.headers(), true);
    switched
}

/// The runtime's refusal, word for word.
async fn refusal(answer: Response<Incoming>) -> Answer {
    let (head, body) = answer.into_parts();
    let body = tokio::time::timeout(REST, Limited::new(body, REFUSAL_MAX).collect()).await;
    let headers: HeaderMap = headers::for_client(&head.headers, false);
    match body {
        Ok(Ok(body)) => {
            let mut refusal = Response::new(answer::body(body.to_bytes()));
            *refusal.status_mut() = head.status;
            *refusal.headers_mut() = headers;
            refusal
        }
        Ok(Err(_)) | Err(_) => answer::text(head.status, "the runtime's refusal could not be read\n"),
    }
}

#[cfg(test)]
#[path = "proxy_tests.rs"]
mod tests;
