//! Tokens as requests bring them: in a header, or as a WebSocket sub-protocol, because a browser can set no header
//! (`apiserver/pkg/authentication/request/{bearertoken,websocket}`). Pure.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::header::{AUTHORIZATION, CONNECTION, HeaderMap, HeaderValue, SEC_WEBSOCKET_PROTOCOL, UPGRADE};

const PROTOCOL: &str = "base64url.bearer.authorization.k8s.io.";

/// A token; `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(pub String);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(masked)")
    }
}

/// What is wrong with a token in a sub-protocol; upstream's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    #[error("multiple base64.bearer.authorization tokens specified")]
    Several,
    #[error("invalid base64.bearer.authorization token encoding")]
    Encoding,
    #[error("invalid base64.bearer.authorization token")]
    Text,
    #[error("missing additional subprotocol")]
    Alone,
}

/// The token of `Authorization: Bearer`. None: there is none.
pub fn bearer(headers: &HeaderMap) -> Option<Token> {
    // Bytes that are no text are no token that anybody gave out.
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?.trim();
    let (scheme, rest) = value.split_once(' ')?;
    let token = rest.split(' ').next().unwrap_or_default();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then(|| Token(token.to_owned()))
}

/// The token among the sub-protocols of a WebSocket request. None: there is none, or it is no such request.
///
/// # Errors
/// See [`ProtocolError`].
pub fn sub_protocol(headers: &HeaderMap) -> Result<Option<Token>, ProtocolError> {
    if !is_web_socket(headers) {
        return Ok(None);
    }
    let mut token = None;
    let mut others = 0;
    for protocol in protocols(headers) {
        let Some(encoded) = protocol.strip_prefix(PROTOCOL) else {
            others += 1;
            continue;
        };
        if token.is_some() {
            return Err(ProtocolError::Several);
        }
        let decoded = URL_SAFE_NO_PAD.decode(encoded).map_err(|_| ProtocolError::Encoding)?;
        token = Some(String::from_utf8(decoded).map_err(|_| ProtocolError::Text)?);
    }
    match token.filter(|token| !token.is_empty()) {
        Some(_) if others == 0 => Err(ProtocolError::Alone),
        token => Ok(token.map(Token)),
    }
}

/// Takes out of a request what proved who sent it: nobody behind this point has a use for it.
pub fn strip(headers: &mut HeaderMap) {
    headers.remove(AUTHORIZATION);
    if !protocols(headers).any(|protocol| protocol.starts_with(PROTOCOL)) {
        return;
    }
    let others: Vec<&str> = protocols(headers).filter(|protocol| !protocol.starts_with(PROTOCOL)).collect();
    match HeaderValue::from_str(&others.join(",")) {
        Ok(value) if !value.is_empty() => {
            headers.insert(SEC_WEBSOCKET_PROTOCOL, value);
        }
        _ => {
            headers.remove(SEC_WEBSOCKET_PROTOCOL);
        }
    }
}

fn protocols(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let values = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter();
    values.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(',')).map(str::trim)
}

/// As upstream tells one (`apimachinery/pkg/util/httpstream/wsstream`).
pub fn is_web_socket(headers: &HeaderMap) -> bool {
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok()).unwrap_or_default();
    text(UPGRADE).eq_ignore_ascii_case("websocket")
        && text(CONNECTION).split(',').any(|part| part.trim().eq_ignore_ascii_case("upgrade"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    #[test]
    fn tokens_in_the_header() {
        for (value, expected) in [
            ("Bearer abc", Some("abc")),
            ("bearer abc", Some("abc")),
            ("  BEARER abc  ", Some("abc")),
            ("Bearer abc def", Some("abc")),
            ("Bearer", None),
            ("Bearer ", None),
            ("Bearer  abc", None),
            ("Basic abc", None),
            ("", None),
        ] {
            let found = bearer(&headers(&[("authorization", value)]));
            assert_eq!(found, expected.map(|token| Token(token.to_owned())), "{value:?}");
        }
        assert_eq!(format!("{:?}", Token("secret".into())), "Token(masked)");
        assert!(bearer(&HeaderMap::new()).is_none());
    }

    const UPGRADE_HEADERS: [(&str, &str); 2] = [("upgrade", "WebSocket"), ("connection", "keep-alive, Upgrade")];

    fn offered(protocols: &[&str]) -> HeaderMap {
        let mut pairs = UPGRADE_HEADERS.to_vec();
        pairs.extend(protocols.iter().map(|protocol| ("sec-websocket-protocol", *protocol)));
        headers(&pairs)
    }

    #[test]
    fn tokens_among_sub_protocols() {
        let token = format!("{PROTOCOL}{}", URL_SAFE_NO_PAD.encode("t0ken"));
        let both = format!("{token}, v4.channel.k8s.io");
        assert_eq!(sub_protocol(&offered(&[&both])), Ok(Some(Token("t0ken".into()))));
        assert_eq!(sub_protocol(&offered(&["v4.channel.k8s.io", &token])), Ok(Some(Token("t0ken".into()))));
        assert_eq!(sub_protocol(&offered(&["v4.channel.k8s.io"])), Ok(None));
        assert_eq!(sub_protocol(&offered(&[&token])), Err(ProtocolError::Alone));
        assert_eq!(sub_protocol(&offered(&[&token, &both])), Err(ProtocolError::Several));
        assert_eq!(sub_protocol(&offered(&[&format!("{PROTOCOL}a=b, x")])), Err(ProtocolError::Encoding));
        let binary = format!("{PROTOCOL}{}, x", URL_SAFE_NO_PAD.encode([0xff]));
        assert_eq!(sub_protocol(&offered(&[&binary])), Err(ProtocolError::Text));
        assert_eq!(sub_protocol(&offered(&[PROTOCOL, "x"])), Ok(None), "an empty one is none");
        assert_eq!(sub_protocol(&headers(&[("sec-websocket-protocol", &both)])), Ok(None), "no WebSocket");
    }

    #[test]
    fn what_proved_it_goes_no_further() {
        let token = format!("{PROTOCOL}{}", URL_SAFE_NO_PAD.encode("t0ken"));
        let mut request = offered(&[&format!("{token}, v5.channel.k8s.io"), "v4.channel.k8s.io"]);
        request.insert(AUTHORIZATION, HeaderValue::from_static("Bearer x"));
        strip(&mut request);
        assert!(request.get(AUTHORIZATION).is_none());
        let left: Vec<_> = request.get_all(SEC_WEBSOCKET_PROTOCOL).iter().collect();
        assert_eq!(left, ["v5.channel.k8s.io,v4.channel.k8s.io"]);
        let mut untouched = offered(&["a", "b"]);
        strip(&mut untouched);
        assert_eq!(untouched.get_all(SEC_WEBSOCKET_PROTOCOL).iter().count(), 2);
    }

    proptest! {
        #[test]
        fn nothing_of_a_token_is_left_and_nothing_panics(values in proptest::collection::vec("[ -~]{0,60}", 0..4)) {
            let values: Vec<&str> = values.iter().map(String::as_str).collect();
            let mut request = offered(&values);
            let _ = (sub_protocol(&request), bearer(&request));
            strip(&mut request);
            prop_assert!(protocols(&request).all(|protocol| !protocol.starts_with(PROTOCOL)));
        }
    }
}
