//! The request's bytes: header names and values in the form and order that Go's client gives them. Pure.

use std::collections::BTreeMap;

use super::Get;
use super::url::Target;

/// Never taken from the spec as they stand.
const OWN: [&str; 5] = ["Host", "User-Agent", "Content-Length", "Transfer-Encoding", "Trailer"];

/// The spec's headers by canonical name.
fn by_name(get: &Get) -> BTreeMap<String, Vec<&str>> {
    let mut headers: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (name, value) in &get.headers {
        headers.entry(canonical(name)).or_default().push(value);
    }
    headers
}

fn first<'a>(headers: &BTreeMap<String, Vec<&'a str>>, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|values| values.first().copied())
}

/// The host that the spec's headers ask for.
pub(super) fn host_header(get: &Get) -> Option<String> {
    first(&by_name(get), "Host").filter(|host| !host.is_empty()).map(str::to_owned)
}

/// All of the request. `host`: instead of the URL's. `referer`: where a redirect came from.
///
/// # Errors
/// In Go's words: a header that cannot be sent.
pub(super) fn bytes(get: &Get, target: &Target, host: Option<&str>, referer: Option<&str>) -> Result<Vec<u8>, String> {
    let mut headers = by_name(get);
    let agent = first(&headers, "User-Agent").unwrap_or(&get.user_agent).to_owned();
    headers.entry("Accept".to_owned()).or_insert_with(|| vec!["*/*"]);
    if first(&headers, "Accept") == Some("") {
        headers.remove("Accept");
    }
    if let Some(referer) = referer {
        headers.entry("Referer".to_owned()).or_insert_with(|| vec![referer]);
    }
    for (name, values) in &headers {
        if name.is_empty() || !name.bytes().all(is_token_byte) {
            return Err(format!("net/http: invalid header field name {name:?}"));
        }
        if values.iter().any(|value| value.bytes().any(|b| (b < 0x20 && b != b'\t') || b == 0x7f)) {
            return Err(format!("net/http: invalid header field value for {name:?}"));
        }
    }
    let authority = target.authority();
    let host = host.unwrap_or(&authority);
    if !host.bytes().all(|b| b.is_ascii_graphic()) {
        return Err("http: invalid Host header".to_owned());
    }
    let mut out = Vec::with_capacity(256);
    let mut line = |parts: [&str; 3]| {
        parts.iter().for_each(|part| out.extend_from_slice(part.as_bytes()));
        out.extend_from_slice(b"\r\n");
    };
    line(["GET ", &target.uri, " HTTP/1.1"]);
    line(["Host: ", host, ""]);
    let agent = agent.trim_matches([' ', '\t']);
    if !agent.is_empty() {
        line(["User-Agent: ", agent, ""]);
    }
    for (name, values) in headers.iter().filter(|(name, _)| !OWN.contains(&name.as_str())) {
        values.iter().for_each(|value| line([&format!("{name}: "), value.trim_matches([' ', '\t']), ""]));
    }
    let closes = |value: &&str| value.split(',').any(|token| token.trim().eq_ignore_ascii_case("close"));
    if !headers.get("Connection").is_some_and(|values| values.iter().any(closes)) {
        line(["Connection: close", "", ""]);
    }
    line(["", "", ""]);
    Ok(out)
}

/// Bytes of a header's name (RFC 9110, token).
fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// `x-some-thing` as `X-Some-Thing`; what is no name at all stays as it is.
fn canonical(name: &str) -> String {
    if !name.bytes().all(is_token_byte) {
        return name.to_owned();
    }
    let mut upper = true;
    let each = |letter: char| {
        let written = if upper { letter.to_ascii_uppercase() } else { letter.to_ascii_lowercase() };
        upper = letter == '-';
        written
    };
    name.chars().map(each).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(headers: &[(&str, &str)]) -> Result<String, String> {
        let get = Get {
            https: false,
            host: "10.0.0.1".to_owned(),
            port: 80,
            path: "/p".to_owned(),
            headers: headers.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect(),
            user_agent: "kube-probe/1.36".to_owned(),
            asker: String::new(),
        };
        let bytes = bytes(&get, &Target::of(&get), host_header(&get).as_deref(), None)?;
        Ok(String::from_utf8(bytes).unwrap())
    }

    #[test]
    fn as_go_sends_it() {
        assert_eq!(
            sent(&[]).unwrap(),
            "GET /p HTTP/1.1\r\nHost: 10.0.0.1:80\r\nUser-Agent: kube-probe/1.36\r\nAccept: */*\r\nConnection: close\r\n\r\n"
        );
        assert_eq!(
            sent(&[("x-b", "1"), ("X-A", " 2 "), ("X-B", "3"), ("host", "example.com"), ("user-agent", "me")]).unwrap(),
            "GET /p HTTP/1.1\r\nHost: example.com\r\nUser-Agent: me\r\nAccept: */*\r\nX-A: 2\r\nX-B: 1\r\nX-B: 3\r\n\
             Connection: close\r\n\r\n"
        );
        assert_eq!(
            sent(&[("Accept", ""), ("User-Agent", ""), ("Connection", "Close"), ("Content-Length", "7")]).unwrap(),
            "GET /p HTTP/1.1\r\nHost: 10.0.0.1:80\r\nConnection: Close\r\n\r\n"
        );
    }

    #[test]
    fn what_cannot_be_sent_is_refused() {
        assert_eq!(sent(&[("a b", "x")]).unwrap_err(), "net/http: invalid header field name \"a b\"");
        assert_eq!(sent(&[("a", "x\r\nB: y")]).unwrap_err(), "net/http: invalid header field value for \"A\"");
        assert_eq!(sent(&[("Host", "a b")]).unwrap_err(), "http: invalid Host header");
    }
}
