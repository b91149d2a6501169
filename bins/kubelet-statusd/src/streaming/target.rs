//! The one-time URL of a stream at the runtime: what of it is believed, and that nobody ever prints it.
//!
//! Its path holds the token that opens the stream, so the type shows it to nobody but the connection that it is written to.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Longest URL taken, bytes; those of known runtimes have about 50.
const LONGEST: usize = 4 << 10;

/// Where the runtime serves one stream.
#[derive(Clone, PartialEq, Eq)]
pub struct StreamUrl {
    tls: bool,
    host: Host,
    port: u16,
    path: Box<str>,
}

/// The URL's host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Host {
    Address(IpAddr),
    Name(Box<str>),
}

/// Why a URL is none that is dialed. Says nothing of its path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    #[error("URL is not set")]
    Empty,
    #[error("the runtime's streaming URL is not usable: {0}")]
    Unusable(&'static str),
    #[error("unknown scheme: {0}")]
    Scheme(String),
}

impl StreamUrl {
    /// Reads what the runtime answered. Without a scheme it is http, as upstream takes it.
    ///
    /// # Errors
    /// It is no absolute URL with a host and of a scheme that runtimes serve streams with.
    pub fn parse(text: &str) -> Result<Self, UrlError> {
        if text.is_empty() {
            return Err(UrlError::Empty);
        }
        if text.len() > LONGEST {
            return Err(UrlError::Unusable("it is too long"));
        }
        let text = if text.starts_with("//") { format!("http:{text}") } else { text.to_owned() };
        let uri: http::Uri = text.parse().map_err(|_| UrlError::Unusable("it is no URL"))?;
        let tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            Some(other) => return Err(UrlError::Scheme(other.chars().take(32).collect())),
            None => return Err(UrlError::Unusable("it has no scheme")),
        };
        let authority = uri.authority().ok_or(UrlError::Unusable("it has no host"))?;
        if authority.as_str().contains('@') {
            return Err(UrlError::Unusable("it has a user"));
        }
        let port = match (authority.port_u16(), tls) {
            (Some(port), _) => port,
            // One that is out of range counts as none there.
            (None, _) if authority.as_str() != authority.host() => {
                return Err(UrlError::Unusable("its port is none"));
            }
            (None, false) => 80,
            (None, true) => 443,
        };
        if port == 0 {
            return Err(UrlError::Unusable("it has port 0"));
        }
        let host = authority.host();
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let host = match bare.parse() {
            Ok(address) => Host::Address(address),
            Err(_) if bare.is_empty() => return Err(UrlError::Unusable("it has no host")),
            Err(_) => Host::Name(bare.into()),
        };
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        Ok(StreamUrl { tls, host, port, path: path.into() })
    }

    /// Path and query: the token. Written to the runtime's connection and nowhere else.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Whether the runtime speaks TLS there.
    pub fn is_tls(&self) -> bool {
        self.tls
    }

    pub fn host(&self) -> &Host {
        &self.host
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// `host:port`, for the `Host` header where the client sent none.
    pub fn authority(&self) -> String {
        match &self.host {
            Host::Address(IpAddr::V6(address)) => format!("[{address}]:{}", self.port),
            Host::Address(IpAddr::V4(address)) => format!("{address}:{}", self.port),
            Host::Name(name) => format!("{name}:{}", self.port),
        }
    }

    /// The addresses that stand for the host without asking anybody: a wildcard, which a runtime names when it listens on
    /// all addresses, is the loopback one (as for Go's dialer). `None`: a name that has to be looked up.
    pub fn addresses(&self) -> Option<Vec<IpAddr>> {
        let loopback = (IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST));
        match &self.host {
            Host::Address(IpAddr::V4(Ipv4Addr::UNSPECIFIED)) => Some(vec![loopback.0]),
            // Such a listener takes IPv4 as well, unless the machine says otherwise.
            Host::Address(IpAddr::V6(Ipv6Addr::UNSPECIFIED)) => Some(vec![loopback.0, loopback.1]),
            Host::Address(address) => Some(vec![*address]),
            Host::Name(name) if name.eq_ignore_ascii_case("localhost") => Some(vec![loopback.0, loopback.1]),
            Host::Name(_) => None,
        }
    }
}

impl fmt::Debug for StreamUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        write!(f, "StreamUrl({scheme}://{}/<redacted>)", self.authority())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_runtimes_answer() {
        let cases: [(&str, bool, &str, u16, &str); 9] = [
            ("http://127.0.0.1:35127/exec/t0", false, "127.0.0.1:35127", 35127, "/exec/t0"),
            ("https://127.0.0.1:10010/attach/t", true, "127.0.0.1:10010", 10010, "/attach/t"),
            ("http://[::]:10010/portforward/t", false, "[::]:10010", 10010, "/portforward/t"),
            ("http://[::1]/cri/exec/t?x=1", false, "[::1]:80", 80, "/cri/exec/t?x=1"),
            ("https://node-1.example/exec/t", true, "node-1.example:443", 443, "/exec/t"),
            ("//127.0.0.1:1/exec/t", false, "127.0.0.1:1", 1, "/exec/t"),
            ("HTTP://localhost:7/exec/t", false, "localhost:7", 7, "/exec/t"),
            ("http://127.0.0.1:9", false, "127.0.0.1:9", 9, "/"),
            ("http://10.0.0.1:9/exec/t#f", false, "10.0.0.1:9", 9, "/exec/t"),
        ];
        for (text, tls, authority, port, path) in cases {
            let url = StreamUrl::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            let seen = (url.is_tls(), url.authority(), url.port(), url.path().to_owned());
            assert_eq!(seen, (tls, authority.to_owned(), port, path.to_owned()), "{text}");
        }
    }

    #[test]
    fn what_is_not_dialed() {
        for (text, error) in [
            ("", "URL is not set"),
            ("unix:///run/x.sock", "the runtime's streaming URL is not usable: it is no URL"),
            ("ftp://127.0.0.1/x", "unknown scheme: ftp"),
            ("/exec/t", "the runtime's streaming URL is not usable: it has no scheme"),
            ("http://user:SECRET@127.0.0.1:1/exec/t", "the runtime's streaming URL is not usable: it has a user"),
            ("http://127.0.0.1:0/exec/t", "the runtime's streaming URL is not usable: it has port 0"),
            ("http://127.0.0.1:99999/exec/t", "the runtime's streaming URL is not usable: its port is none"),
            ("http://127.0.0.1:/exec/t", "the runtime's streaming URL is not usable: its port is none"),
            ("http://127.0.0.1:1/a b\r\nX: y", "the runtime's streaming URL is not usable: it is no URL"),
        ] {
            assert_eq!(StreamUrl::parse(text).map_err(|e| e.to_string()), Err(error.to_owned()), "{text}");
        }
        let long = format!("http://127.0.0.1:1/{}", "x".repeat(LONGEST));
        assert!(StreamUrl::parse(&long).is_err());
    }

    #[test]
    fn a_wildcard_is_the_loopback_address() {
        let of = |text: &str| StreamUrl::parse(text).unwrap().addresses();
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        assert_eq!(of("http://0.0.0.0:1/t"), Some(vec![ip("127.0.0.1")]));
        assert_eq!(of("http://[::]:1/t"), Some(vec![ip("127.0.0.1"), ip("::1")]));
        assert_eq!(of("http://LocalHost:1/t"), Some(vec![ip("127.0.0.1"), ip("::1")]));
        assert_eq!(of("http://192.0.2.7:1/t"), Some(vec![ip("192.0.2.7")]));
        assert_eq!(of("http://elsewhere:1/t"), None);
    }

    proptest! {
        #[test]
        fn never_panics_and_never_prints_the_token(text in ".{0,60}", token in "[A-Za-z0-9_-]{8,12}") {
            let _ = StreamUrl::parse(&text);
            let url = StreamUrl::parse(&format!("http://127.0.0.1:1/exec/{token}?key={token}")).unwrap();
            let printed = format!("{url:?} {url:#?}");
            prop_assert!(!printed.contains(&token), "{printed}");
        }
    }
}
