//! One GET as probes and hooks make it: HTTP/1.1 over a connection of its own, redirects on the same host followed, a
//! certificate never looked at, no proxy, a bounded answer, one time limit for everything
//! (upstream `pkg/probe/http`, and what Go's HTTP client does for it). Failures are worded as Go's client words them:
//! they go into events.
//!
//! Written by hand because it is made hundreds of times a second: a request and its answer cost a few microseconds here
//! beside what the kernel takes for the connection. A parser's library (httparse) would not make it shorter: what an answer
//! that is none is called, and which of these Go takes all the same (lines that end with LF alone), would stay here.

mod request;
mod response;
mod tls;
mod url;

#[cfg(test)]
mod tests;

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};

use crate::dial;
pub use response::Failure;
use response::{Head, Reader};
use url::{Location, Target};

/// More of a body is not read (upstream `pkg/probe/http/http.go`).
pub const BODY_BYTES_MAX: usize = 10 << 10;
/// Requests of one GET: the first one and those that follow redirects.
const REQUESTS_MAX: usize = 10;

/// What to ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Get {
    pub https: bool,
    /// A name or a literal address, IPv6 without brackets.
    pub host: String,
    pub port: u16,
    /// With query, as the spec gives it.
    pub path: String,
    /// As the spec gives them. `Host` sets the request's host, `User-Agent` and `Accept` replace ours; an empty one is
    /// left out.
    pub headers: Vec<(String, String)>,
    pub user_agent: String,
    /// For whom, where a name has to be looked up: see [`resolver::lookup`](crate::resolver::lookup).
    pub asker: String,
}

/// An answer, whatever its status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    /// At most [`BODY_BYTES_MAX`]; more is cut.
    pub body: Vec<u8>,
    /// The answer is a redirect to another host, which is not followed.
    pub redirect_refused: bool,
}

/// Kinds of failure that somebody treats differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GetErrorKind {
    /// The server does not speak TLS but HTTP.
    PlainAnswer,
    /// No answer within the time.
    TimedOut,
    /// An answer began; its body could not be read (in time).
    Body,
    /// Anything else: not reached, broken off, no HTTP, a request that cannot be made.
    Other,
}

/// Why there is no answer, in Go's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct GetError {
    pub kind: GetErrorKind,
    pub text: String,
}

impl GetError {
    fn other(text: impl Into<String>) -> Self {
        GetError { kind: GetErrorKind::Other, text: text.into() }
    }
}

/// How far it has come, for the words of a failure.
struct Progress {
    target: Target,
    in_body: bool,
}

/// Makes the request.
///
/// # Errors
/// See [`GetErrorKind`].
pub async fn get(request: &Get, timeout: Duration) -> Result<Answer, GetError> {
    let mut progress = Progress { target: Target::of(request), in_body: false };
    // On the heap: whoever waits for it (a hook, within the start of a container) would else be as large as its buffers.
    let result = tokio::time::timeout(timeout, Box::pin(follow(request, &mut progress))).await;
    let Progress { target, in_body } = progress;
    match result {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) if in_body => Err(GetError { kind: GetErrorKind::Body, text: error.text }),
        Ok(Err(error)) => {
            Err(GetError { kind: error.kind, text: format!("Get {:?}: {}", target.to_string(), error.text) })
        }
        Err(_) if in_body => Err(GetError {
            kind: GetErrorKind::Body,
            text: "context deadline exceeded (Client.Timeout or context cancellation while reading body)".to_owned(),
        }),
        Err(_) => Err(GetError {
            kind: GetErrorKind::TimedOut,
            text: format!(
                "Get {:?}: context deadline exceeded (Client.Timeout exceeded while awaiting headers)",
                target.to_string()
            ),
        }),
    }
}

async fn follow(request: &Get, progress: &mut Progress) -> Result<Answer, GetError> {
    let first_host = progress.target.host.clone();
    let mut host = request::host_header(request);
    let mut referer = None;
    for number in 1.. {
        let bytes = request::bytes(request, &progress.target, host.as_deref(), referer.as_deref());
        let bytes = bytes.map_err(GetError::other)?;
        let target = progress.target.clone();
        let answer = exchange(&target, &request.asker, &bytes, &mut progress.in_body).await?;
        let Some(location) = answer.1.filter(|_| matches!(answer.0.status, 301..=303 | 307 | 308)) else {
            return Ok(answer.0);
        };
        let failed = || format!("failed to parse Location header {location:?}");
        let Location { target: next, is_absolute } = target.join(&location).ok_or_else(|| GetError::other(failed()))?;
        if next.host != first_host {
            return Ok(Answer { redirect_refused: true, ..answer.0 });
        }
        progress.in_body = false;
        if number >= REQUESTS_MAX {
            return Err(GetError::other("stopped after 10 redirects"));
        }
        if is_absolute {
            host = None;
        }
        referer = target.as_referer(&next);
        progress.target = next;
    }
    Err(GetError::other("stopped after 10 redirects"))
}

/// One request on a connection of its own; with the answer comes where it points to.
async fn exchange(
    target: &Target,
    asker: &str,
    request: &[u8],
    in_body: &mut bool,
) -> Result<(Answer, Option<String>), GetError> {
    let port = match (target.port, target.scheme.as_str()) {
        (Some(port), "http" | "https") => port,
        (None, "http") => 80,
        (None, "https") => 443,
        (_, scheme) => return Err(GetError::other(format!("unsupported protocol scheme {scheme:?}"))),
    };
    let stream = dial::dial(&target.host, port, asker).await.map_err(GetError::other)?;
    // Between which addresses, for the words of a failure.
    let between = stream.local_addr().ok().zip(stream.peer_addr().ok());
    let broken = |doing: &str, error: &std::io::Error| match (error.raw_os_error(), between) {
        (Some(_), Some((from, to))) => {
            GetError::other(format!("{doing} tcp {from}->{to}: {doing}: {}", dial::words(error)))
        }
        _ => GetError::other(error.to_string()),
    };
    if target.scheme == "https" {
        let stream = tls::connect(stream, &target.host).await?;
        over(stream, request, in_body, broken).await
    } else {
        over(stream, request, in_body, broken).await
    }
}

async fn over(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    request: &[u8],
    in_body: &mut bool,
    broken: impl Fn(&str, &std::io::Error) -> GetError,
) -> Result<(Answer, Option<String>), GetError> {
    // A server that refuses early may have answered already: what it says counts more than the broken pipe.
    let sent = async {
        stream.write_all(request).await?;
        stream.flush().await
    };
    let sent = sent.await;
    match (read_answer(stream, in_body).await, sent) {
        (Ok(answer), _) => Ok(answer),
        (Err(_), Err(error)) if !*in_body => Err(broken("write", &error)),
        (Err(Failure::Read(error)), _) => Err(broken("read", &error)),
        (Err(Failure::Said(text)), _) => Err(GetError::other(text)),
    }
}

/// Reads one answer, and where it points to. `in_body` is set once its head has come.
///
/// # Errors
/// What came is no answer, or it ended too early.
pub async fn read_answer(
    stream: impl AsyncRead + Unpin,
    in_body: &mut bool,
) -> Result<(Answer, Option<String>), Failure> {
    let mut reader = Reader::new(stream);
    let Head { status, framing, location } = reader.head().await?;
    *in_body = true;
    let body = reader.body(framing, BODY_BYTES_MAX).await?;
    Ok((Answer { status, body, redirect_refused: false }, location))
}
