//! Whether a request is a WebSocket's, what it offers, and whether it may become one. Pure.
//!
//! Refusals have the statuses and words of upstream's library (`golang.org/x/net/websocket`).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, Version, header};
use sha1::{Digest as _, Sha1};
use thiserror::Error;

use super::super::super::options::is_websocket;

/// Remote command with half-close and a JSON status (KEP-4006).
pub const V5: &str = "v5.channel.k8s.io";
/// Goes before the name of a SPDY protocol whose bytes are tunnelled.
pub const TUNNEL_PREFIX: &str = "SPDY/3.1+";
/// Protocols of other projects are not tunnelled.
const TUNNEL_SUFFIX: &str = ".k8s.io";
/// RFC 6455, 1.3.
const ACCEPT_SUFFIX: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// A key's length, bytes.
const KEY: usize = 16;

/// A request that may become a WebSocket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handshake {
    accept: HeaderValue,
}

/// Why a request cannot become a WebSocket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Refusal {
    #[error("bad method")]
    Method,
    #[error("not websocket protocol")]
    NotWebSocket,
    #[error("missing or bad WebSocket Version")]
    Version,
    #[error("mismatch challenge/response")]
    Key,
}

impl Refusal {
    /// The answer's status.
    pub fn status(self) -> StatusCode {
        match self {
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::NotWebSocket | Self::Version | Self::Key => StatusCode::BAD_REQUEST,
        }
    }

    /// What the answer says besides.
    pub fn header(self) -> Option<(HeaderName, HeaderValue)> {
        match self {
            Self::Version => Some((header::SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"))),
            Self::Method => Some((header::ALLOW, HeaderValue::from_static("GET"))),
            Self::NotWebSocket | Self::Key => None,
        }
    }
}

/// Sub-protocols in the order of preference. A list may be cut into several headers (RFC 6455, 11.3.4).
pub fn offered(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    headers
        .get_all(header::SEC_WEBSOCKET_PROTOCOL)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .filter(|protocol| !protocol.is_empty())
}

/// Names of the SPDY protocols that the request offers to tunnel.
pub fn tunnelled(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    offered(headers)
        .filter(|protocol| protocol.ends_with(TUNNEL_SUFFIX))
        .filter_map(|protocol| protocol.strip_prefix(TUNNEL_PREFIX))
}

/// Whether the request may become a WebSocket.
///
/// # Errors
/// See [`Refusal`].
pub fn check(method: &Method, version: Version, headers: &HeaderMap) -> Result<Handshake, Refusal> {
    if method != Method::GET {
        return Err(Refusal::Method);
    }
    // The headers that follow exist in this version of HTTP alone.
    if version != Version::HTTP_11 || !is_websocket(headers) {
        return Err(Refusal::NotWebSocket);
    }
    let key = headers.get(header::SEC_WEBSOCKET_KEY).ok_or(Refusal::Key)?.as_bytes().trim_ascii();
    if STANDARD.decode(key).map_or(0, |key| key.len()) != KEY {
        return Err(Refusal::Key);
    }
    if headers.get(header::SEC_WEBSOCKET_VERSION).is_none_or(|version| version.as_bytes().trim_ascii() != b"13") {
        return Err(Refusal::Version);
    }
    let digest = Sha1::new().chain_update(key).chain_update(ACCEPT_SUFFIX).finalize();
    // Base64 is always a valid header.
    let accept = HeaderValue::from_str(&STANDARD.encode(digest)).map_err(|_| Refusal::Key)?;
    Ok(Handshake { accept })
}

impl Handshake {
    /// Makes `answer` the one that ends HTTP on this connection. `protocol`: the one chosen, of those offered.
    pub fn accept<B>(self, answer: &mut Response<B>, protocol: Option<HeaderValue>) {
        *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = answer.headers_mut();
        headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(header::SEC_WEBSOCKET_ACCEPT, self.accept);
        if let Some(protocol) = protocol {
            headers.insert(header::SEC_WEBSOCKET_PROTOCOL, protocol);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// RFC 6455, 1.3.
    const GOOD: [(&str, &str); 4] = [
        ("connection", "keep-alive, Upgrade"),
        ("upgrade", "WebSocket"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ("sec-websocket-version", "13"),
    ];

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    /// [`GOOD`] with one header of another value, or without it.
    fn with(name: &str, value: Option<&str>) -> HeaderMap {
        let mut pairs: Vec<_> = GOOD.into_iter().filter(|(other, _)| *other != name).collect();
        pairs.extend(value.map(|value| (name, value)));
        headers(&pairs)
    }

    #[test]
    fn the_example_of_the_standard() {
        let handshake = check(&Method::GET, Version::HTTP_11, &headers(&GOOD)).unwrap();
        let mut answer = Response::new(());
        handshake.accept(&mut answer, Some(HeaderValue::from_static(V5)));
        assert_eq!(answer.status(), 101);
        for (name, value) in [
            ("upgrade", "websocket"),
            ("connection", "Upgrade"),
            ("sec-websocket-accept", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="),
            ("sec-websocket-protocol", V5),
        ] {
            assert_eq!(answer.headers()[name], value);
        }
    }

    #[test]
    fn refusals() {
        let refused = |method, version, headers: &HeaderMap| {
            let refusal = check(&method, version, headers).unwrap_err();
            (refusal.status().as_u16(), refusal.to_string())
        };
        let got = |headers: HeaderMap| refused(Method::GET, Version::HTTP_11, &headers);
        let good = headers(&GOOD);
        assert_eq!(refused(Method::POST, Version::HTTP_11, &good), (405, "bad method".into()));
        assert_eq!(refused(Method::GET, Version::HTTP_10, &good), (400, "not websocket protocol".into()));
        assert_eq!(refused(Method::GET, Version::HTTP_2, &good), (400, "not websocket protocol".into()));
        for (name, value) in [("upgrade", None), ("upgrade", Some("SPDY/3.1")), ("connection", Some("close"))] {
            assert_eq!(got(with(name, value)), (400, "not websocket protocol".into()), "{name} {value:?}");
        }
        for value in [None, Some("12"), Some("13, 8"), Some("")] {
            assert_eq!(
                got(with("sec-websocket-version", value)),
                (400, "missing or bad WebSocket Version".into()),
                "{value:?}"
            );
        }
        for value in [None, Some(""), Some("x"), Some("dGhlIHNhbXBsZQ=="), Some("dGhlIHNhbXBsZSBub25jZQ==x")] {
            assert_eq!(got(with("sec-websocket-key", value)), (400, "mismatch challenge/response".into()), "{value:?}");
        }
    }

    #[test]
    fn what_is_offered() {
        let offers = |values: &[&str]| {
            let mut pairs = GOOD.to_vec();
            pairs.extend(values.iter().map(|value| ("sec-websocket-protocol", *value)));
            let headers = headers(&pairs);
            (offered(&headers).any(|protocol| protocol == V5), tunnelled(&headers).collect::<Vec<_>>().join(" "))
        };
        assert_eq!(offers(&[]), (false, String::new()));
        assert_eq!(offers(&["v4.channel.k8s.io, v5.channel.k8s.io"]), (true, String::new()));
        assert_eq!(offers(&["v4.channel.k8s.io", ",v5.channel.k8s.io ,"]), (true, String::new()));
        assert_eq!(offers(&["v4.channel.k8s.io,base64.channel.k8s.io"]), (false, String::new()));
        assert_eq!(offers(&["V5.channel.k8s.io"]), (false, String::new()));
        assert_eq!(
            offers(&["SPDY/3.1+portforward.k8s.io, SPDY/3.1+v2.portforward.k8s.io"]),
            (false, "portforward.k8s.io v2.portforward.k8s.io".into())
        );
        assert_eq!(offers(&["SPDY/3.1+portforward.example", "spdy/3.1+portforward.k8s.io"]), (false, String::new()));
    }

    proptest! {
        #[test]
        fn no_headers_panic(
            pairs in proptest::collection::vec((0..6usize, proptest::collection::vec(32..=255u8, 0..40)), 0..12),
        ) {
            let names = ["connection", "upgrade", "sec-websocket-key", "sec-websocket-version", "sec-websocket-protocol", "host"];
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                if let Ok(value) = HeaderValue::from_bytes(&value) {
                    headers.append(names[name], value);
                }
            }
            let _ = (check(&Method::GET, Version::HTTP_11, &headers), tunnelled(&headers).count());
        }
    }
}
