//! Which URL is asked for: as Go's `net/url` reads and writes the few forms that specs and redirects have. Pure.

use std::fmt;

use super::Get;
use crate::dial::join_host_port;

/// A URL in parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    /// In lower case.
    pub scheme: String,
    /// Without brackets.
    pub host: String,
    /// None: the scheme's.
    pub port: Option<u16>,
    /// Path and query as they are sent; begins with `/`.
    pub uri: String,
}

/// What a redirect points to.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Location {
    pub target: Target,
    /// It names the host itself.
    pub is_absolute: bool,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", self.scheme, self.authority(), self.uri)
    }
}

impl Target {
    pub(super) fn of(get: &Get) -> Self {
        Target {
            scheme: if get.https { "https" } else { "http" }.to_owned(),
            host: get.host.clone(),
            port: Some(get.port),
            uri: uri(&get.path),
        }
    }

    /// As header `Host` has it.
    pub(super) fn authority(&self) -> String {
        match self.port {
            Some(port) => join_host_port(&self.host, port),
            None if self.host.contains(':') => format!("[{}]", self.host),
            None => self.host.clone(),
        }
    }

    /// What the next request tells of this one.
    pub(super) fn as_referer(&self, next: &Target) -> Option<String> {
        (self.scheme != "https" || next.scheme != "http").then(|| self.to_string())
    }

    /// Where header `Location` of the answer points to. None: it cannot be read.
    pub(super) fn join(&self, location: &str) -> Option<Location> {
        if location.bytes().any(|b| b < 0x20 || b == 0x7f) {
            return None;
        }
        let location = location.split('#').next().unwrap_or_default();
        if let Some((scheme, rest)) = scheme_of(location) {
            let rest = rest.strip_prefix("//")?;
            return Some(Location { target: with_authority(scheme, rest)?, is_absolute: true });
        }
        let relative = |uri: String| Location { target: Target { uri, ..self.clone() }, is_absolute: false };
        if let Some(rest) = location.strip_prefix("//") {
            return Some(Location { target: with_authority(self.scheme.clone(), rest)?, is_absolute: false });
        }
        let (path, query) = match location.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (location, None),
        };
        let own_path = self.uri.split('?').next().unwrap_or("/");
        if path.is_empty() {
            let query = query.map(|q| format!("?{q}"));
            let query = query.or_else(|| self.uri.split_once('?').map(|(_, q)| format!("?{q}")));
            return Some(relative(format!("{own_path}{}", query.unwrap_or_default())));
        }
        let path = escaped(path)?;
        let full = if path.starts_with('/') {
            path
        } else {
            let folder = own_path.rfind('/').map_or("/", |at| &own_path[..=at]);
            format!("{folder}{path}")
        };
        let query = query.map(|q| format!("?{q}")).unwrap_or_default();
        Some(relative(format!("{}{query}", without_dots(&full))))
    }
}

fn scheme_of(text: &str) -> Option<(String, &str)> {
    let (scheme, rest) = text.split_once(':')?;
    let mut letters = scheme.bytes();
    let first_ok = letters.next().is_some_and(|b| b.is_ascii_alphabetic());
    let rest_ok = letters.all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'));
    (first_ok && rest_ok).then(|| (scheme.to_ascii_lowercase(), rest))
}

fn with_authority(scheme: String, rest: &str) -> Option<Target> {
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let authority = authority.rsplit('@').next().unwrap_or_default();
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']')?;
            (host, rest.strip_prefix(':').or(rest.is_empty().then_some(""))?)
        }
        None => authority.split_once(':').unwrap_or((authority, "")),
    };
    let port = if port.is_empty() { None } else { Some(port.parse().ok()?) };
    Some(Target { scheme, host: host.to_owned(), port, uri: uri(path) })
}

/// Path and query of a spec as they are sent: what has no place in a URL is escaped, a fragment is left out, and a text
/// that is no URL at all is a path as a whole (upstream `formatURL`).
fn uri(spec: &str) -> String {
    let is_control = |b: u8| b < 0x20 || b == 0x7f;
    let (text, fragment) = spec.split_once('#').unwrap_or((spec, ""));
    let readable = !spec.bytes().any(is_control) && escaped(fragment).is_some();
    let parts = readable.then(|| {
        // Scheme and host of the spec's path count for nothing: it has fields of its own for them.
        let text = scheme_of(text).and_then(|(_, rest)| rest.strip_prefix("//").map(|_| rest)).unwrap_or(text);
        let text = match text.strip_prefix("//") {
            Some(rest) if !rest.starts_with('/') => &rest[rest.find(['/', '?']).unwrap_or(rest.len())..],
            _ => text,
        };
        let (path, query) = match text.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (text, None),
        };
        escaped(path).map(|path| (path, query))
    });
    let (path, query) = match parts.flatten() {
        Some(parts) => parts,
        None => (escape(spec.as_bytes()), None),
    };
    let slash = if path.starts_with('/') { "" } else { "/" };
    match query {
        Some(query) => format!("{slash}{path}?{query}"),
        None => format!("{slash}{path}"),
    }
}

/// A path with everything escaped that has to be. None: a `%` that begins no escape.
fn escaped(path: &str) -> Option<String> {
    let bytes = path.as_bytes();
    let mut plain = Vec::with_capacity(bytes.len());
    let mut is_fine = true;
    let mut rest = bytes;
    while let [first, after @ ..] = rest {
        rest = after;
        if *first == b'%' {
            let [high, low, after @ ..] = rest else { return None };
            let digit = |b: u8| (b as char).to_digit(16).and_then(|d| u8::try_from(d).ok());
            plain.push(digit(*high)? << 4 | digit(*low)?);
            rest = after;
        } else {
            is_fine &= is_path_byte(*first) || b"!'()*[]".contains(first);
            plain.push(*first);
        }
    }
    Some(if is_fine { path.to_owned() } else { escape(&plain) })
}

/// Bytes that Go leaves in a path.
fn is_path_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_.~$&+,/:;=@".contains(&byte)
}

fn escape(bytes: &[u8]) -> String {
    use fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len()), |mut text, byte| {
        if is_path_byte(*byte) {
            text.push(*byte as char);
        } else {
            // Writing to a string does not fail.
            let _ = write!(text, "%{byte:02X}");
        }
        text
    })
}

/// `.` and `..` taken out (RFC 3986, 5.2.4).
fn without_dots(path: &str) -> String {
    let mut out: Vec<&str> = Vec::new();
    let mut is_folder = false;
    for part in path.split('/').skip(1) {
        is_folder = matches!(part, "." | "..");
        match part {
            "." => {}
            ".." => {
                out.pop();
            }
            part => out.push(part),
        }
    }
    let end = if is_folder && !out.is_empty() { "/" } else { "" };
    format!("/{}{end}", out.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(path: &str) -> Target {
        let get = Get {
            https: false,
            host: "10.0.0.1".to_owned(),
            port: 80,
            path: path.to_owned(),
            headers: Vec::new(),
            user_agent: String::new(),
            asker: String::new(),
        };
        Target::of(&get)
    }

    #[test]
    fn paths_as_go_writes_them() {
        for (spec, sent) in [
            ("", "/"),
            ("/", "/"),
            ("healthz", "/healthz"),
            ("/a?b=c&d", "/a?b=c&d"),
            ("/a b", "/a%20b"),
            ("/a%20b/%zz", "/a%2520b/%25zz"),
            ("/a%2Fb", "/a%2Fb"),
            ("/ü", "/%C3%BC"),
            ("/a#frag", "/a"),
            ("/a?b c", "/a?b c"),
            ("http://other:1/x?y", "/x?y"),
            ("//other/x", "/x"),
            ("/x\ny?z", "/x%0Ay%3Fz"),
            ("/it's(fine)*", "/it's(fine)*"),
        ] {
            assert_eq!(target(spec).uri, sent, "{spec:?}");
        }
        assert_eq!(target("/x").to_string(), "http://10.0.0.1:80/x");
    }

    #[test]
    fn redirects_are_resolved() {
        let from = target("/a/b?q=1");
        for (location, to, absolute) in [
            ("/x", "http://10.0.0.1:80/x", false),
            ("x", "http://10.0.0.1:80/a/x", false),
            ("../x/./y/..", "http://10.0.0.1:80/x/", false),
            ("?z", "http://10.0.0.1:80/a/b?z", false),
            ("", "http://10.0.0.1:80/a/b?q=1", false),
            ("https://u:p@Host/p?q#f", "https://Host/p?q", true),
            ("//[::1]:8443/", "http://[::1]:8443/", false),
            ("HTTP://h", "http://h/", true),
        ] {
            let found = from.join(location).unwrap();
            assert_eq!((found.target.to_string().as_str(), found.is_absolute), (to, absolute), "{location}");
        }
        for bad in ["http://h:99999/", "/a\u{7f}", "http://[::1/", "/%zz", "mailto:x"] {
            assert_eq!(from.join(bad), None, "{bad:?}");
        }
    }
}
