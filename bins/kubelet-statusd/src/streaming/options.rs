//! What a request for a stream asks for: its query and the headers that say which protocol it will speak. Pure; the rules
//! and words are upstream's (`cri-streaming/pkg/streaming/{remotecommand/httpstream,portforward/websocket}.go`,
//! `streaming/pkg/httpstream`).

use http::{HeaderMap, header};

use crate::routes::pairs;

/// Most ports of one request; the runtime gives each its own channels.
const PORTS_MAX: usize = 1024;
/// Sub-protocol of remote commands that this process translates.
const STREAM_CLOSE: &str = "v5.channel.k8s.io";
/// Prefix and suffix of sub-protocols that carry SPDY inside WebSocket messages.
const TUNNEL: (&str, &str) = ("SPDY/3.1+", ".k8s.io");

/// Which streams of a process the client wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamOptions {
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
    pub tty: bool,
}

/// What is wrong with a query; the text is for the client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    #[error("you must specify at least 1 of stdin, stdout, stderr")]
    NoStream,
    #[error("query parameter \"port\" is required")]
    NoPort,
    #[error("query parameter \"port\" cannot be empty")]
    EmptyPort,
    #[error("unable to parse {0:?} as a port: strconv.ParseUint: parsing {1:?}: {2}")]
    NotAPort(String, String, &'static str),
    // A number in Go's quotes, which are for characters.
    #[error("port '\\x00' must be > 0")]
    PortZero,
    #[error("more than {PORTS_MAX} ports")]
    TooManyPorts,
}

/// The first value of a name counts, and only the literal `1` is true. A terminal has one output.
///
/// # Errors
/// No stream is asked for.
pub fn streams(query: &str) -> Result<StreamOptions, OptionsError> {
    let on = |name: &str| pairs(query).find(|(key, _)| key == name).is_some_and(|(_, value)| value == "1");
    let tty = on("tty");
    let options = StreamOptions { stdin: on("input"), stdout: on("output"), stderr: on("error") && !tty, tty };
    let any = options.stdin || options.stdout || options.stderr;
    if any { Ok(options) } else { Err(OptionsError::NoStream) }
}

/// The program and its arguments, in order.
pub fn command(query: &str) -> Vec<String> {
    pairs(query).filter(|(key, _)| key == "command").map(|(_, value)| value).collect()
}

/// The command of `/run`: one value, split at each space; without one, a program without a name.
pub fn run_command(query: &str) -> Vec<String> {
    let value = pairs(query).find(|(key, _)| key == "cmd").map(|(_, value)| value).unwrap_or_default();
    value.split(' ').map(str::to_owned).collect()
}

/// Ports that the runtime has to know beforehand: those of a WebSocket, which has its channels by number. SPDY names them
/// in each stream.
///
/// # Errors
/// A WebSocket without ports, or with one that is none.
pub fn ports(query: &str, headers: &HeaderMap) -> Result<Vec<i32>, OptionsError> {
    if !is_websocket(headers) {
        return Ok(Vec::new());
    }
    let mut ports = Vec::new();
    let mut named = false;
    for (_, value) in pairs(query).filter(|(key, _)| key == "port") {
        named = true;
        if value.is_empty() {
            return Err(OptionsError::EmptyPort);
        }
        for text in value.split(',') {
            let port = port(text).map_err(|why| OptionsError::NotAPort(value.clone(), text.to_owned(), why))?;
            if port == 0 {
                return Err(OptionsError::PortZero);
            }
            if ports.len() == PORTS_MAX {
                return Err(OptionsError::TooManyPorts);
            }
            ports.push(i32::from(port));
        }
    }
    if named { Ok(ports) } else { Err(OptionsError::NoPort) }
}

/// A port in digits alone, as Go reads it.
fn port(text: &str) -> Result<u16, &'static str> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err("invalid syntax");
    }
    text.parse().map_err(|_| "value out of range")
}

/// `timeout` of a checkpoint in seconds: the last value counts; 0 when there is none. `None`: it is no number.
pub fn checkpoint_timeout(query: &str) -> Option<i64> {
    match pairs(query).filter(|(key, _)| key == "timeout").last() {
        Some((_, value)) => value.parse().ok(),
        None => Some(0),
    }
}

/// Any `Connection` header that contains `upgrade`, as upstream looks for it.
pub fn is_upgrade(headers: &HeaderMap) -> bool {
    headers
        .get_all(header::CONNECTION)
        .iter()
        .any(|value| value.to_str().is_ok_and(|text| text.to_ascii_lowercase().contains("upgrade")))
}

/// An upgrade to WebSocket.
pub fn is_websocket(headers: &HeaderMap) -> bool {
    let upgrade = headers.get(header::UPGRADE).and_then(|value| value.to_str().ok());
    upgrade.is_some_and(|text| text.eq_ignore_ascii_case("websocket")) && is_upgrade(headers)
}

/// A WebSocket whose client can close one channel (`v5.channel.k8s.io`): no runtime speaks that yet.
pub fn wants_stream_close(headers: &HeaderMap) -> bool {
    offers(headers, |protocol| protocol == STREAM_CLOSE)
}

/// A WebSocket that carries SPDY (`SPDY/3.1+portforward.k8s.io`).
pub fn wants_tunnel(headers: &HeaderMap) -> bool {
    offers(headers, |protocol| protocol.starts_with(TUNNEL.0) && protocol.ends_with(TUNNEL.1))
}

/// The first `Sec-WebSocket-Protocol` header counts.
fn offers(headers: &HeaderMap, wanted: impl Fn(&str) -> bool) -> bool {
    let offered = headers.get(header::SEC_WEBSOCKET_PROTOCOL).and_then(|value| value.to_str().ok());
    is_websocket(headers) && offered.unwrap_or_default().split(',').any(|protocol| wanted(protocol.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderName, HeaderValue};
    use proptest::prelude::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn which_streams() {
        let of = |stdin, stdout, stderr, tty| Ok(StreamOptions { stdin, stdout, stderr, tty });
        for (query, expected) in [
            ("output=1", of(false, true, false, false)),
            ("input=1&output=1&error=1", of(true, true, true, false)),
            ("input=1&output=1&error=1&tty=1", of(true, true, false, true)),
            ("output=true", Err(OptionsError::NoStream)),
            ("output=0&output=1", Err(OptionsError::NoStream)),
            ("output=1&output=0", of(false, true, false, false)),
            ("stdout=1", Err(OptionsError::NoStream)),
            ("tty=1", Err(OptionsError::NoStream)),
            ("error=1&tty=1", Err(OptionsError::NoStream)),
            ("", Err(OptionsError::NoStream)),
        ] {
            assert_eq!(streams(query), expected, "{query}");
        }
        assert_eq!(OptionsError::NoStream.to_string(), "you must specify at least 1 of stdin, stdout, stderr");
    }

    #[test]
    fn which_command() {
        assert_eq!(command("command=sh&input=1&command=-c&command=echo+a%20b%26c"), ["sh", "-c", "echo a b&c"]);
        assert!(command("").is_empty());
        assert_eq!(run_command("cmd=ls+-l%20%20/x&cmd=rm"), ["ls", "-l", "", "/x"]);
        assert_eq!(run_command(""), [""]);
    }

    #[test]
    fn which_ports() {
        let websocket = headers(&[("connection", "Upgrade"), ("upgrade", "websocket")]);
        let of = |query: &str| ports(query, &websocket).map_err(|error| error.to_string());
        assert_eq!(of("port=80&port=443,65535"), Ok(vec![80, 443, 65535]));
        let refused = |query: &str, why: &str| assert_eq!(of(query), Err(why.to_owned()), "{query}");
        refused("", "query parameter \"port\" is required");
        refused("ports=1", "query parameter \"port\" is required");
        refused("port=80&port=", "query parameter \"port\" cannot be empty");
        refused("port=0", "port '\\x00' must be > 0");
        let words = "unable to parse \"80,x\" as a port: strconv.ParseUint: parsing \"x\": invalid syntax";
        refused("port=80,x", words);
        let words = "unable to parse \"65536\" as a port: strconv.ParseUint: parsing \"65536\": value out of range";
        refused("port=65536", words);
        refused("port=%2B1", "unable to parse \"+1\" as a port: strconv.ParseUint: parsing \"+1\": invalid syntax");
        let many: Vec<&str> = vec!["1"; PORTS_MAX + 1];
        assert_eq!(ports(&format!("port={}", many.join(",")), &websocket), Err(OptionsError::TooManyPorts));
        // SPDY names its ports in the streams.
        assert_eq!(ports("port=x", &headers(&[("connection", "Upgrade"), ("upgrade", "SPDY/3.1")])), Ok(Vec::new()));
    }

    #[test]
    fn a_checkpoints_time() {
        for (query, expected) in [
            ("", Some(0)),
            ("timeout=5&timeout=7", Some(7)),
            ("timeout=-1", Some(-1)),
            ("timeout=1s", None),
            ("timeout=", None),
        ] {
            assert_eq!(checkpoint_timeout(query), expected, "{query}");
        }
    }

    #[test]
    fn which_protocol() {
        let spdy = headers(&[("connection", "keep-alive, UPGRADE"), ("upgrade", "SPDY/3.1")]);
        assert!(is_upgrade(&spdy) && !is_websocket(&spdy) && !wants_tunnel(&spdy));
        assert!(!is_upgrade(&headers(&[("connection", "close"), ("upgrade", "websocket")])));
        let websocket = |protocol| {
            headers(&[("connection", "Upgrade"), ("upgrade", "WebSocket"), ("sec-websocket-protocol", protocol)])
        };
        for (protocol, close, tunnel) in [
            ("v4.channel.k8s.io", false, false),
            ("v4.channel.k8s.io, v5.channel.k8s.io", true, false),
            ("SPDY/3.1+portforward.k8s.io", false, true),
            ("SPDY/3.1+.k8s.io,x", false, true),
            ("SPDY/3.1+portforward", false, false),
        ] {
            let headers = websocket(protocol);
            assert_eq!((wants_stream_close(&headers), wants_tunnel(&headers)), (close, tunnel), "{protocol}");
        }
        let not_upgraded = headers(&[("sec-websocket-protocol", "v5.channel.k8s.io")]);
        assert!(!wants_stream_close(&not_upgraded));
    }

    proptest! {
        #[test]
        fn no_query_panics(query in "[a-z=&%+,0-9]{0,80}") {
            let websocket = headers(&[("connection", "Upgrade"), ("upgrade", "websocket")]);
            let _ = (streams(&query), command(&query), run_command(&query), ports(&query, &websocket));
            let _ = checkpoint_timeout(&query);
        }
    }
}
