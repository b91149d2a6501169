//! How a connection to the runtime's streaming server becomes a SPDY connection: one POST, answered with 101.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Incoming;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use thiserror::Error;
use tokio::time::{Instant, timeout_at};

use super::super::dial::{self, BoxedIo, DialError};
use super::super::target::StreamUrl;

/// From the first packet to the runtime's 101; upstream gives the dial alone 30 s.
const DEADLINE: Duration = Duration::from_secs(30);
/// Longest refusal that is read, bytes.
const LONGEST_REFUSAL: usize = 64 << 10;

/// Names the protocols that are tried, of which the runtime takes the first that it knows, and its answer that one.
const PROTOCOL_HEADER: &str = "x-stream-protocol-version";
const SPDY: &str = "SPDY/3.1";

/// Why there is no SPDY connection. Never names the URL's token.
#[derive(Debug, Error)]
pub enum UpgradeError {
    #[error(transparent)]
    Dial(#[from] DialError),
    #[error("{0}")]
    Http(hyper::Error),
    #[error("the container runtime did not answer in time")]
    Deadline,
    #[error("the request cannot be made: {0}")]
    Request(http::Error),
    /// Answered with a status that is not 101.
    #[error("{}", refusal_words(.0))]
    Refused(Response<Bytes>),
    /// Answered with 101, but for another protocol.
    #[error("unable to upgrade: missing upgrade headers in response")]
    NotUpgraded,
}

/// A SPDY connection.
#[derive(Debug)]
pub struct Spdy {
    pub io: TokioIo<Upgraded>,
    /// What the runtime chose of the protocols.
    pub protocol: Option<HeaderValue>,
}

/// Connects, and asks for one of `protocols`.
///
/// # Errors
/// See [`UpgradeError`].
pub async fn connect(target: &StreamUrl, protocols: &[&str]) -> Result<Spdy, UpgradeError> {
    let deadline = Instant::now() + DEADLINE;
    let io = dial::connect(target, deadline).await?;
    timeout_at(deadline, upgrade(io, target, protocols)).await.unwrap_or(Err(UpgradeError::Deadline))
}

async fn upgrade(io: BoxedIo, target: &StreamUrl, protocols: &[&str]) -> Result<Spdy, UpgradeError> {
    let mut request = Request::builder()
        .method(Method::POST)
        .uri(target.path())
        .header(header::HOST, target.authority())
        .header(header::CONNECTION, "Upgrade")
        .header(header::UPGRADE, SPDY);
    for protocol in protocols {
        request = request.header(PROTOCOL_HEADER, *protocol);
    }
    let request = request.body(Empty::<Bytes>::new()).map_err(UpgradeError::Request)?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(io)).await.map_err(UpgradeError::Http)?;
    // It ends by itself: with the upgrade, or when the answer was read.
    tokio::spawn(connection.with_upgrades());
    let response = sender.send_request(request).await.map_err(UpgradeError::Http)?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Err(UpgradeError::Refused(whole(response).await));
    }
    let says = |name: header::HeaderName, word: &str| {
        let value = response.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        value.to_ascii_lowercase().contains(&word.to_ascii_lowercase())
    };
    if !says(header::CONNECTION, "upgrade") || !says(header::UPGRADE, SPDY) {
        return Err(UpgradeError::NotUpgraded);
    }
    let protocol = response.headers().get(PROTOCOL_HEADER).cloned();
    let io = hyper::upgrade::on(response).await.map_err(UpgradeError::Http)?;
    Ok(Spdy { io: TokioIo::new(io), protocol })
}

/// A refusal with as much of its body as came.
async fn whole(response: Response<Incoming>) -> Response<Bytes> {
    let (head, body) = response.into_parts();
    let body = Limited::new(body, LONGEST_REFUSAL).collect().await.map(http_body_util::Collected::to_bytes);
    Response::from_parts(head, body.unwrap_or_default())
}

/// As upstream's client puts it (`streaming/pkg/httpstream/spdy/roundtripper.go`): a status' message, else the text.
fn refusal_words(response: &Response<Bytes>) -> String {
    if response.status().is_redirection() {
        return "redirect not allowed".into();
    }
    let text = String::from_utf8_lossy(response.body());
    let parsed: Option<serde_json::Value> = serde_json::from_str(&text).ok();
    let field = |name: &str| {
        let value = parsed.as_ref()?.get(name)?.as_str()?.trim();
        (!value.is_empty()).then(|| value.to_owned())
    };
    let words = field("message").or_else(|| field("error")).unwrap_or_else(|| text.trim().to_owned());
    let words = if words.is_empty() { "empty server response" } else { &words };
    format!("unable to upgrade connection: {words}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    /// What comes of a runtime that gives this answer, and what it was asked.
    async fn answered(answer: &'static str) -> (Result<Spdy, UpgradeError>, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let url = StreamUrl::parse(&format!("http://{address}/exec/TOKEN")).unwrap();
        let runtime = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut asked = Vec::new();
            while !asked.ends_with(b"\r\n\r\n") {
                asked.push(stream.read_u8().await.unwrap());
            }
            stream.write_all(answer.as_bytes()).await.unwrap();
            String::from_utf8(asked).unwrap().to_ascii_lowercase()
        };
        tokio::join!(connect(&url, &["v5.channel.k8s.io", "v4.channel.k8s.io"]), runtime)
    }

    #[tokio::test]
    async fn one_post_and_a_connection() {
        let answer = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\
                      X-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\nfirst bytes";
        let (spdy, asked) = answered(answer).await;
        let mut spdy = spdy.unwrap();
        assert_eq!(spdy.protocol.unwrap(), "v4.channel.k8s.io");
        let mut first = String::new();
        spdy.io.read_to_string(&mut first).await.unwrap();
        assert_eq!(first, "first bytes");
        assert!(asked.starts_with("post /exec/token http/1.1\r\n"), "{asked}");
        for line in [
            "connection: upgrade",
            "upgrade: spdy/3.1",
            "x-stream-protocol-version: v5.channel.k8s.io",
            "x-stream-protocol-version: v4.channel.k8s.io",
        ] {
            assert!(asked.lines().any(|asked| asked == line), "{line} in {asked}");
        }
    }

    #[tokio::test]
    async fn refusals_in_upstreams_words() {
        for (answer, words) in [
            ("HTTP/1.1 404 Not Found\r\nContent-Length: 6\r\n\r\ngone\r\n", "unable to upgrade connection: gone"),
            ("HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n", "unable to upgrade connection: empty server response"),
            ("HTTP/1.1 403 No\r\nContent-Length: 15\r\n\r\n{\"message\":\"m\"}", "unable to upgrade connection: m"),
            ("HTTP/1.1 302 Found\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n", "redirect not allowed"),
            (
                "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
                "unable to upgrade: missing upgrade headers in response",
            ),
        ] {
            let (spdy, _) = answered(answer).await;
            let text = spdy.unwrap_err().to_string();
            assert!(text == words && !text.contains("TOKEN"), "{text}");
        }
        let (spdy, _) = answered("nonsense\r\n\r\n").await;
        assert!(matches!(spdy, Err(UpgradeError::Http(_))));
    }
}
