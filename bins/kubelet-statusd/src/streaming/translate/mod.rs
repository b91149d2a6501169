//! The protocols of streams that no runtime speaks, put into the one that all do: a WebSocket in `v5.channel.k8s.io` for exec
//! and attach, and SPDY in WebSocket messages for port-forward, become SPDY/3.1 to the runtime (KEP-4006, gate
//! ExtendWebSocketsToKubelet).

pub mod channels;
#[cfg(test)]
mod entry_tests;
#[cfg(test)]
mod fake_runtime;
mod metrics;
mod pipe;
mod remote_command;
#[cfg(test)]
mod remote_command_tests;
mod runtime;
pub mod spdy;
pub mod status;
mod streams;
mod tunnel;
#[cfg(test)]
mod tunnel_tests;
pub mod websocket;

use std::time::Duration;

use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::time::timeout;

pub use self::metrics::{Subresource, TranslateMetrics};
use self::runtime::UpgradeError;
use super::options::StreamOptions;
use super::proxy::Allowance;
use super::target::StreamUrl;
use crate::server::answer::{self, Answer};

/// The runtime's protocols of remote command that have a status in JSON, the newest first. All runtimes have the older.
const REMOTE_COMMAND: [&str; 2] = ["v5.channel.k8s.io", "v4.channel.k8s.io"];

/// How long things may take.
#[derive(Debug, Clone)]
pub struct Timing {
    /// With nothing read from the client and nothing written to it; `None`: for ever.
    pub idle: Option<Duration>,
    /// To write the last message.
    pub status: Duration,
    /// For the runtime to take all streams, and for the client to take its answer.
    pub open: Duration,
    /// Between two pings to the runtime.
    pub ping: Duration,
    /// To read what a client sends although all was said.
    pub drain: Duration,
}

impl Timing {
    /// Upstream's, but for `idle`, which upstream does not take from its configuration here.
    fn new(idle: Option<Duration>) -> Self {
        Timing {
            idle,
            status: Duration::from_secs(10),
            open: Duration::from_secs(30),
            ping: Duration::from_secs(5),
            drain: Duration::from_secs(5),
        }
    }
}

/// Exec or attach for a client that offers `v5.channel.k8s.io`. `target` is dialed once the client knows that it is
/// connected; what goes wrong after that is told in its protocol. `options` are those that the runtime was told.
pub fn remote_command(
    metrics: &TranslateMetrics,
    subresource: Subresource,
    mut request: Request<Incoming>,
    target: StreamUrl,
    options: StreamOptions,
    allowance: Allowance,
) -> Answer {
    metrics.requested(subresource);
    let handshake = match websocket::check(request.method(), request.version(), request.headers()) {
        Ok(handshake) => handshake,
        Err(refusal) => {
            metrics.translated("400");
            return refused(refusal);
        }
    };
    let (metrics, timing) = (metrics.clone(), Timing::new(allowance.idle));
    let upgraded = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let Some(client) = become_websocket(upgraded, &timing).await else { return };
        let connect = async {
            let connected = runtime::connect(&target, &REMOTE_COMMAND).await;
            connected.map(|spdy| spdy.io).map_err(|error| match error {
                UpgradeError::Refused(_) | UpgradeError::NotUpgraded => error.to_string(),
                _ => format!("error sending request: {error}"),
            })
        };
        metrics.translated(remote_command::serve(client, connect, options, &timing).await);
        drop(allowance);
    });
    let mut answer = answer::empty(StatusCode::OK);
    handshake.accept(&mut answer, Some(HeaderValue::from_static(websocket::V5)));
    answer
}

/// Port-forward for a client that offers to tunnel SPDY. The runtime is asked first: what it refuses is relayed.
pub async fn port_forward(
    metrics: &TranslateMetrics,
    mut request: Request<Incoming>,
    target: StreamUrl,
    allowance: Allowance,
) -> Answer {
    metrics.requested(Subresource::PortForward);
    let handshake = match websocket::check(request.method(), request.version(), request.headers()) {
        Ok(handshake) => handshake,
        Err(refusal) => {
            metrics.tunnelled(refusal.status());
            return refused(refusal);
        }
    };
    let protocols: Vec<&str> = websocket::tunnelled(request.headers()).collect();
    if protocols.is_empty() {
        metrics.tunnelled(StatusCode::BAD_REQUEST);
        return answer::text(StatusCode::BAD_REQUEST, "unable to upgrade: no tunneling spdy protocols provided\n");
    }
    let spdy = match runtime::connect(&target, &protocols).await {
        Ok(spdy) => spdy,
        Err(UpgradeError::Refused(refusal)) => {
            metrics.tunnelled(refusal.status());
            return relay(refusal);
        }
        Err(error) => {
            tracing::warn!(%error, "no stream for a port-forward");
            metrics.tunnelled(StatusCode::INTERNAL_SERVER_ERROR);
            return answer::text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n"));
        }
    };
    let protocol = spdy.protocol.as_ref().and_then(|chosen| tunnel_protocol(chosen, request.headers()));
    let (upgraded, timing) = (hyper::upgrade::on(&mut request), Timing::new(allowance.idle));
    tokio::spawn(async move {
        if let Some(client) = become_websocket(upgraded, &timing).await {
            tunnel::serve(client, spdy.io, &timing).await;
        }
        drop(allowance);
    });
    metrics.tunnelled(StatusCode::SWITCHING_PROTOCOLS);
    let mut answer = answer::empty(StatusCode::OK);
    handshake.accept(&mut answer, protocol);
    answer
}

/// The client's connection once it has the answer; `None` when it does not take it.
async fn become_websocket(upgraded: OnUpgrade, timing: &Timing) -> Option<TokioIo<Upgraded>> {
    match timeout(timing.open, upgraded).await {
        Ok(Ok(client)) => Some(TokioIo::new(client)),
        Ok(Err(error)) => {
            tracing::debug!(%error, "a client left before it was a WebSocket");
            None
        }
        Err(_) => {
            tracing::debug!("a client did not take the answer to its upgrade");
            None
        }
    }
}

fn refused(refusal: websocket::Refusal) -> Answer {
    let mut answer = answer::text(refusal.status(), refusal.to_string());
    if let Some((name, value)) = refusal.header() {
        answer.headers_mut().insert(name, value);
    }
    answer
}

/// The runtime's refusal, of which only what is about its body is kept of the headers.
fn relay(refusal: Response<bytes::Bytes>) -> Answer {
    let (head, body) = refusal.into_parts();
    let mut answer = Response::new(answer::body(body));
    *answer.status_mut() = head.status;
    for name in [header::CONTENT_TYPE, header::X_CONTENT_TYPE_OPTIONS] {
        if let Some(value) = head.headers.get(&name) {
            answer.headers_mut().insert(name, value.clone());
        }
    }
    answer
}

/// The WebSocket's name of what the runtime chose, if the client offered it.
fn tunnel_protocol(chosen: &HeaderValue, offers: &HeaderMap) -> Option<HeaderValue> {
    let chosen = chosen.to_str().ok()?.trim();
    websocket::tunnelled(offers).find(|offered| *offered == chosen)?;
    HeaderValue::from_str(&format!("{}{chosen}", websocket::TUNNEL_PREFIX)).ok()
}
