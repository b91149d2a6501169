//! The gRPC health check (`grpc.health.v1.Health/Check`) over plain HTTP/2, with what it came to in upstream's words
//! (`pkg/probe/grpc/grpc.go`). A connection of its own for each check.

use std::net::SocketAddr;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use bulkhead_cri::{Code, CriError};
use bulkhead_types::GoDuration;
use bytes::Bytes;
use futures_util::future::{Either, poll_fn, select};
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http2;
use hyper_util::rt::TokioIo;
use percent_encoding::percent_decode;
use prost::Message as _;
use tokio::sync::watch;

use super::act::user_agent;
use kubelet_edges::dial::{self, FirstBytes, Noted};

/// An answer is a few bytes.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// Before the next try to connect, growing by [`PAUSE_GROWS`] (grpc-go's back-off).
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_GROWS: f64 = 1.6;
/// For a connection that is over to say so to the other side, which may not be reading.
const GOODBYE: Duration = Duration::from_secs(1);

#[derive(Clone, PartialEq, prost::Message)]
struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    service: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct HealthCheckResponse {
    #[prost(int32, tag = "1")]
    status: i32,
}

/// How a call ended that did not end well.
#[derive(Debug, PartialEq, Eq)]
struct Status {
    code: Code,
    message: String,
}

impl Status {
    fn new(code: Code, message: impl Into<String>) -> Self {
        Status { code, message: message.into() }
    }
}

/// The library's own tasks for a connection, which would go on as long as the other side reads nothing of what is left to be written.
/// They end [`GOODBYE`] after the other half of the channel has been dropped, if not before.
#[derive(Debug, Clone)]
struct ConnectionTasks(watch::Receiver<()>);

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for ConnectionTasks {
    fn execute(&self, task: F) {
        let mut connection = self.0.clone();
        tokio::spawn(async move {
            let is_over = async {
                // Nothing is ever sent.
                let _ = connection.changed().await;
                tokio::time::sleep(GOODBYE).await;
            };
            tokio::select! {
                () = task => {}
                () = is_over => {}
            }
        });
    }
}

/// Asks `service` of the server whether it serves.
///
/// # Errors
/// The text of the failure.
pub async fn check(host: &str, port: u16, service: &str, timeout: Duration) -> Result<(), String> {
    let mut connected = false;
    let result = tokio::time::timeout(timeout, ask(host, port, service, timeout, &mut connected)).await;
    let within = GoDuration::from_secs(i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX));
    let late = format!("timeout: health rpc did not complete within {within}");
    let status = match result {
        Ok(Ok(1)) => return Ok(()),
        Ok(Ok(other)) => return Err(format!("service unhealthy (responded with {:?})", status_name(other))),
        Err(_) if connected => return Err(late),
        Err(_) => {
            let to = dial::join_host_port(host, port);
            return Err(format!(
                "timeout: failed to connect service {to:?} within {within}: context deadline exceeded"
            ));
        }
        Ok(Err(status)) => status,
    };
    Err(match status.code {
        Code::Unimplemented => format!(
            "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): {}",
            status.message
        ),
        Code::DeadlineExceeded => late,
        code => {
            let error = CriError { code, method: "Check", message: status.message };
            format!("error: health rpc probe failed: {error}")
        }
    })
}

/// Names of the answer's status.
fn status_name(status: i32) -> String {
    match status {
        0 => "UNKNOWN".to_owned(),
        1 => "SERVING".to_owned(),
        2 => "NOT_SERVING".to_owned(),
        3 => "SERVICE_UNKNOWN".to_owned(),
        other => other.to_string(),
    }
}

/// Connects, again and again until the other side speaks HTTP/2, and asks.
async fn ask(host: &str, port: u16, service: &str, timeout: Duration, connected: &mut bool) -> Result<i32, Status> {
    let began = tokio::time::Instant::now();
    let mut pause = PAUSE;
    loop {
        // The pod's own address: there is no name to look up.
        if let Ok(address) = host.parse()
            && let Ok(stream) = dial::connect(SocketAddr::new(address, port)).await
        {
            let (stream, first) = Noted::new(stream);
            let (_in_use, life) = watch::channel(());
            let handshake = http2::Builder::new(ConnectionTasks(life)).handshake(TokioIo::new(stream)).await;
            if let Ok((sender, connection)) = handshake {
                let mut connection = pin!(connection);
                // What is read is read by a task of the library's own.
                let settled = poll_fn(|context| {
                    first.wake(context);
                    if speaks_http2(&first) {
                        return Poll::Ready(true);
                    }
                    connection.as_mut().poll(context).map(|_| false)
                });
                if settled.await {
                    *connected = true;
                    let left = timeout.saturating_sub(began.elapsed());
                    let call = pin!(call(sender, host, port, service, left));
                    return match select(call, connection).await {
                        Either::Left((answer, _)) => answer,
                        Either::Right((ended, call)) => match ended {
                            // What was said before the end counts.
                            Ok(()) => call.await,
                            Err(error) => Err(Status::new(Code::Unavailable, format!("connection error: {error}"))),
                        },
                    };
                }
            }
        }
        tokio::time::sleep(pause).await;
        pause = pause.mul_f64(PAUSE_GROWS);
    }
}

/// The first frame of a server is its settings (RFC 9113, 3.4); the fourth byte of a frame is its type.
fn speaks_http2(first: &FirstBytes) -> bool {
    const SETTINGS: u8 = 4;
    first.count() >= dial::FIRST_BYTES && first.get()[3] == SETTINGS
}

async fn call(
    mut sender: http2::SendRequest<Full<Bytes>>,
    host: &str,
    port: u16,
    service: &str,
    left: Duration,
) -> Result<i32, Status> {
    let message = HealthCheckRequest { service: service.to_owned() }.encode_to_vec();
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes();
    let body = [&[0], &length[..], &message].concat();
    let request = Request::post(format!("http://{}/grpc.health.v1.Health/Check", dial::join_host_port(host, port)))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("user-agent", user_agent())
        .header("grpc-timeout", format!("{}m", left.as_millis().clamp(1, 99_999_999)))
        .body(Full::new(Bytes::from(body)))
        .map_err(|error| Status::new(Code::Internal, error.to_string()))?;
    let broken =
        |error: &dyn std::fmt::Display| Status::new(Code::Unavailable, format!("error reading from server: {error}"));
    let (head, body) = sender.send_request(request).await.map_err(|error| broken(&error))?.into_parts();
    if let Some(ended) = grpc_status(&head.headers) {
        // An answer without a message.
        return Err(ended.err().unwrap_or_else(|| Status::new(Code::Internal, "no message came with the status OK")));
    }
    let kind = head.headers.get("content-type").and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if head.status != StatusCode::OK || !kind.starts_with("application/grpc") {
        return Err(not_grpc(head.status, kind));
    }
    let collected = Limited::new(body, ANSWER_BYTES_MAX).collect().await.map_err(|error| broken(&error))?;
    let trailers = collected.trailers().cloned().unwrap_or_default();
    match grpc_status(&trailers) {
        Some(Ok(())) => {}
        Some(Err(status)) => return Err(status),
        None => return Err(Status::new(Code::Internal, "server closed the stream without sending trailers")),
    }
    let bytes = collected.to_bytes();
    let message = bytes.get(5..).ok_or_else(|| Status::new(Code::Internal, "unexpected EOF"))?;
    match HealthCheckResponse::decode(message) {
        Ok(answer) => Ok(answer.status),
        Err(error) => {
            Err(Status::new(Code::Internal, format!("grpc: failed to unmarshal the received message: {error}")))
        }
    }
}

/// The status that ends a call, if it is there.
fn grpc_status(headers: &HeaderMap) -> Option<Result<(), Status>> {
    let code: i32 = headers.get("grpc-status")?.to_str().ok()?.parse().ok()?;
    if code == 0 {
        return Some(Ok(()));
    }
    let message = headers
        .get("grpc-message")
        .map(|text| percent_decode(text.as_bytes()).decode_utf8_lossy().into_owned())
        .unwrap_or_default();
    Some(Err(Status { code: Code::from(code), message }))
}

/// An HTTP answer that is none of gRPC, as grpc-go sees it.
fn not_grpc(status: StatusCode, kind: &str) -> Status {
    let code = match status.as_u16() {
        400 => Code::Internal,
        401 => Code::Unauthenticated,
        403 => Code::PermissionDenied,
        404 => Code::Unimplemented,
        429 | 502 | 503 | 504 => Code::Unavailable,
        _ => Code::Unknown,
    };
    let text = status.canonical_reason().unwrap_or_default();
    let number = status.as_u16();
    let why = if kind.is_empty() {
        "malformed header: missing HTTP content-type".to_owned()
    } else {
        format!("transport: received unexpected content-type {kind:?}")
    };
    Status::new(code, format!("unexpected HTTP status code received from server: {number} ({text}); {why}"))
}

#[cfg(test)]
#[path = "grpc_tests.rs"]
mod tests;
