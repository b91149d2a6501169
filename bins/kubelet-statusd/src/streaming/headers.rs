//! Which headers of a client's request the runtime gets to see. Pure.
//!
//! What says how the stream is spoken passes as it is. The client's credentials end here: the runtime's own token is in
//! the URL, and nobody else's is its business.

use std::net::IpAddr;

use http::{HeaderMap, HeaderName, HeaderValue, header};

/// Credentials, and what is for one connection alone or for a body that is not sent.
const KEPT_BACK: [HeaderName; 12] = [
    header::AUTHORIZATION,
    header::PROXY_AUTHORIZATION,
    header::COOKIE,
    header::CONTENT_LENGTH,
    header::TRANSFER_ENCODING,
    header::TRAILER,
    header::TE,
    header::EXPECT,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("http2-settings"),
    HeaderName::from_static("x-forwarded-for"),
];
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// A sub-protocol that is a bearer token (upstream `apiserver/pkg/authentication/request/websocket`).
const BEARER: &str = "base64url.bearer.authorization.k8s.io.";

/// The headers for the runtime. `host`: for a request without one. `from`: the client's address, where it is known.
pub fn for_runtime(client: &HeaderMap, host: &str, from: Option<IpAddr>) -> HeaderMap {
    let nominated: Vec<String> = texts(client, header::CONNECTION).flat_map(list).collect();
    let mut headers = HeaderMap::with_capacity(client.len() + 1);
    for (name, value) in client {
        let is_nominated = nominated.iter().any(|nominee| nominee == name.as_str());
        let stays = KEPT_BACK.contains(name) || (is_nominated && *name != header::UPGRADE);
        if stays || *name == header::CONNECTION || *name == header::SEC_WEBSOCKET_PROTOCOL {
            continue;
        }
        headers.append(name.clone(), value.clone());
    }
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    for value in client.get_all(header::SEC_WEBSOCKET_PROTOCOL) {
        if let Some(value) = without_bearer(value) {
            headers.append(header::SEC_WEBSOCKET_PROTOCOL, value);
        }
    }
    if !headers.contains_key(header::HOST)
        && let Ok(host) = HeaderValue::from_str(host)
    {
        headers.insert(header::HOST, host);
    }
    let before = texts(client, FORWARDED_FOR).map(str::to_owned);
    let chain: Vec<String> = before.chain(from.map(|ip| ip.to_canonical().to_string())).collect();
    if !chain.is_empty()
        && let Ok(chain) = HeaderValue::from_str(&chain.join(", "))
    {
        headers.insert(FORWARDED_FOR, chain);
    }
    headers
}

/// The headers of the runtime's answer that are for the client. The server that sends them makes what frames a body.
pub fn for_client(runtime: &HeaderMap, upgraded: bool) -> HeaderMap {
    let mut headers = runtime.clone();
    headers.remove(header::TRANSFER_ENCODING);
    headers.remove(header::CONTENT_LENGTH);
    if !upgraded {
        headers.remove(header::CONNECTION);
        headers.remove(header::UPGRADE);
        headers.remove("keep-alive");
    }
    headers
}

fn texts(headers: &HeaderMap, name: HeaderName) -> impl Iterator<Item = &str> {
    headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok())
}

fn list(text: &str) -> Vec<String> {
    text.split(',').map(|part| part.trim().to_ascii_lowercase()).filter(|part| !part.is_empty()).collect()
}

/// The sub-protocols without those that are tokens; `None` when nothing is left.
fn without_bearer(value: &HeaderValue) -> Option<HeaderValue> {
    let Ok(text) = value.to_str() else { return Some(value.clone()) };
    if !text.contains(BEARER) {
        return Some(value.clone());
    }
    let rest: Vec<&str> = text.split(',').map(str::trim).filter(|protocol| !protocol.starts_with(BEARER)).collect();
    HeaderValue::from_str(&rest.join(", ")).ok().filter(|rest| !rest.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        headers
    }

    fn lines(headers: &HeaderMap) -> Vec<String> {
        let mut lines: Vec<String> =
            headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
        lines.sort();
        lines
    }

    #[test]
    fn what_the_runtime_sees() {
        let client = map(&[
            ("host", "node:10250"),
            ("connection", "keep-alive, Upgrade, X-Private"),
            ("upgrade", "SPDY/3.1"),
            ("x-stream-protocol-version", "v4.channel.k8s.io"),
            ("x-stream-protocol-version", "v3.channel.k8s.io"),
            ("user-agent", "kubectl"),
            ("authorization", "Bearer SECRET"),
            ("proxy-authorization", "SECRET"),
            ("cookie", "SECRET"),
            ("content-length", "0"),
            ("x-private", "SECRET"),
            ("x-forwarded-for", "10.0.0.9"),
            ("x-forwarded-for", "10.0.0.8"),
        ]);
        assert_eq!(
            lines(&for_runtime(&client, "unused", Some("::ffff:10.0.0.1".parse().unwrap()))),
            [
                "connection: Upgrade",
                "host: node:10250",
                "upgrade: SPDY/3.1",
                "user-agent: kubectl",
                "x-forwarded-for: 10.0.0.9, 10.0.0.8, 10.0.0.1",
                "x-stream-protocol-version: v3.channel.k8s.io",
                "x-stream-protocol-version: v4.channel.k8s.io",
            ]
        );
    }

    #[test]
    fn a_token_among_sub_protocols_ends_here() {
        let of = |value| {
            let client = map(&[("upgrade", "websocket"), ("sec-websocket-protocol", value)]);
            let headers = for_runtime(&client, "127.0.0.1:1", None);
            assert_eq!(headers.get("host").unwrap(), "127.0.0.1:1");
            headers.get("sec-websocket-protocol").map(|value| value.to_str().unwrap().to_owned())
        };
        assert_eq!(of("v4.channel.k8s.io,base64.channel.k8s.io").unwrap(), "v4.channel.k8s.io,base64.channel.k8s.io");
        let token = "base64url.bearer.authorization.k8s.io.U0VDUkVU, v4.channel.k8s.io";
        assert_eq!(of(token).unwrap(), "v4.channel.k8s.io");
        assert_eq!(of("base64url.bearer.authorization.k8s.io.U0VDUkVU"), None);
    }

    #[test]
    fn what_the_client_sees() {
        let runtime = map(&[
            ("connection", "Upgrade"),
            ("upgrade", "SPDY/3.1"),
            ("x-stream-protocol-version", "v4.channel.k8s.io"),
            ("content-length", "3"),
        ]);
        let upgraded = ["connection: Upgrade", "upgrade: SPDY/3.1", "x-stream-protocol-version: v4.channel.k8s.io"];
        assert_eq!(lines(&for_client(&runtime, true)), upgraded);
        assert_eq!(lines(&for_client(&runtime, false)), ["x-stream-protocol-version: v4.channel.k8s.io"]);
    }
}
