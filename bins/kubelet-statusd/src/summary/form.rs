//! The parameters of a request as Go's `net/http` ParseForm reads them, which upstream's handler calls: those of a POST's form,
//! then those of the query. What is malformed is an error, in Go's words.

use std::collections::BTreeMap;

use http::{Method, Request, header};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;

use crate::routes;

/// Most bytes of a form that a POST may bring.
const FORM_MAX: usize = 16 * 1024;

/// Why there are no parameters.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum FormError {
    #[error("mime: no media type")]
    NoMediaType,
    #[error("mime: expected slash after first token")]
    NoSlash,
    #[error("mime: expected token after slash")]
    NoSubtype,
    #[error("mime: unexpected content after media subtype")]
    AfterSubtype,
    #[error("mime: invalid media parameter")]
    Parameter,
    #[error("mime: duplicate parameter name")]
    Duplicate,
    #[error("http: request body too large")]
    TooLarge,
    #[error("invalid semicolon separator in query")]
    Semicolon,
    #[error("invalid URL escape {0:?}")]
    Escape(String),
}

/// The parameters with their values, repeats included.
///
/// # Errors
/// The first thing that is malformed, a form's before the query's; a body that is no form is not looked at.
pub(super) async fn read(request: Request<Incoming>) -> Result<Vec<(String, String)>, FormError> {
    let query = request.uri().query().unwrap_or_default().to_owned();
    let mut form = String::new();
    if request.method() == Method::POST {
        let kind = request.headers().get(header::CONTENT_TYPE).map_or(&[][..], header::HeaderValue::as_bytes);
        if is_form(&String::from_utf8_lossy(kind))? {
            let body = Limited::new(request.into_body(), FORM_MAX).collect().await.map_err(|_| FormError::TooLarge)?;
            form = String::from_utf8_lossy(&body.to_bytes()).into_owned();
        }
    }
    parameters(&form, &query)
}

fn parameters(form: &str, query: &str) -> Result<Vec<(String, String)>, FormError> {
    check_escapes(form)?;
    check_escapes(query)?;
    Ok([form, query].into_iter().flat_map(routes::pairs).collect())
}

/// A semicolon anywhere is told before a broken escape (`net/url`, parseQuery).
fn check_escapes(query: &str) -> Result<(), FormError> {
    if query.contains(';') {
        return Err(FormError::Semicolon);
    }
    let parts = query.split('&').flat_map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        [name, value]
    });
    for part in parts {
        for (index, _) in part.match_indices('%') {
            let escape = &part.as_bytes()[index..];
            if escape.len() < 3 || !escape[1..3].iter().all(u8::is_ascii_hexdigit) {
                let shown = String::from_utf8_lossy(&escape[..escape.len().min(3)]).into_owned();
                return Err(FormError::Escape(shown));
            }
        }
    }
    Ok(())
}

/// Whether a Content-Type says that the body is a form; none says that it is something else.
fn is_form(content_type: &str) -> Result<bool, FormError> {
    Ok(!content_type.is_empty() && media_type(content_type)? == "application/x-www-form-urlencoded")
}

/// The type without its parameters, which are checked (Go's `mime`, ParseMediaType).
fn media_type(text: &str) -> Result<String, FormError> {
    let (base, mut rest) = text.split_at(text.find(';').unwrap_or(text.len()));
    let kind = base.to_lowercase().trim().to_owned();
    check_kind(&kind)?;
    let mut seen: BTreeMap<String, String> = BTreeMap::new();
    loop {
        rest = rest.trim_start();
        if rest.is_empty() {
            return Ok(kind);
        }
        let Some((name, value, left)) = parameter(rest) else {
            // A semicolon at the end is nothing.
            return if rest.trim_end() == ";" { Ok(kind) } else { Err(FormError::Parameter) };
        };
        if seen.get(&name).is_some_and(|earlier| *earlier != value) {
            return Err(FormError::Duplicate);
        }
        seen.insert(name, value);
        rest = left;
    }
}

fn check_kind(kind: &str) -> Result<(), FormError> {
    match token(kind) {
        ("", _) => Err(FormError::NoMediaType),
        (_, "") => Ok(()),
        (_, rest) => match rest.strip_prefix('/').map(token) {
            None => Err(FormError::NoSlash),
            Some(("", _)) => Err(FormError::NoSubtype),
            Some((_, "")) => Ok(()),
            Some(_) => Err(FormError::AfterSubtype),
        },
    }
}

/// `; name=value`: the name in lower case, the value, and what follows.
fn parameter(text: &str) -> Option<(String, String, &str)> {
    let (name, rest) = token(text.strip_prefix(';')?.trim_start());
    let rest = rest.trim_start().strip_prefix('=').filter(|_| !name.is_empty())?.trim_start();
    let (value, rest) = value(rest)?;
    Some((name.to_lowercase(), value, rest))
}

/// A token, or text in quotes.
fn value(text: &str) -> Option<(String, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        let (value, rest) = token(text);
        return (!value.is_empty()).then(|| (value.to_owned(), rest));
    };
    let mut value = String::new();
    let mut chars = quoted.char_indices().peekable();
    while let Some((index, c)) = chars.next() {
        match c {
            '"' => return Some((value, &quoted[index + 1..])),
            '\r' | '\n' => return None,
            '\\' => match chars.next_if(|(_, next)| is_special(*next)) {
                Some((_, escaped)) => value.push(escaped),
                None => value.push(c),
            },
            c => value.push(c),
        }
    }
    None
}

/// What begins a text as a token of RFC 2045, and the rest.
fn token(text: &str) -> (&str, &str) {
    let is_part = |c: char| c.is_ascii_graphic() && !is_special(c);
    text.split_at(text.find(|c: char| !is_part(c)).unwrap_or(text.len()))
}

fn is_special(c: char) -> bool {
    "()<>@,;:\\\"/[]?=".contains(c)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn content_types() {
        for form in [
            "application/x-www-form-urlencoded",
            " Application/X-WWW-Form-urlencoded ; charset=utf-8;",
            "application/x-www-form-urlencoded; a=\"x;\\\"y\"; b = c; a*0=d; B=c",
        ] {
            assert_eq!(is_form(form), Ok(true), "{form}");
        }
        for other in ["", "application/json", "text", "multipart/form-data; boundary=x"] {
            assert_eq!(is_form(other), Ok(false), "{other}");
        }
        for (malformed, why) in [
            (" ", FormError::NoMediaType),
            ("/x", FormError::NoMediaType),
            ("; a=b", FormError::NoMediaType),
            ("a b", FormError::NoSlash),
            ("é/x", FormError::NoMediaType),
            ("application/", FormError::NoSubtype),
            ("a/b/c", FormError::AfterSubtype),
            ("a/b c", FormError::AfterSubtype),
            ("a/b; c", FormError::Parameter),
            ("a/b; =c", FormError::Parameter),
            ("a/b; c=", FormError::Parameter),
            ("a/b; c=\"d", FormError::Parameter),
            ("a/b; c=d e", FormError::Parameter),
            ("a/b;; c=d", FormError::Parameter),
            ("a/b; c=d; C=e", FormError::Duplicate),
        ] {
            assert_eq!(is_form(malformed), Err(why), "{malformed}");
        }
    }

    #[test]
    fn parameters_of_form_and_query() {
        let pairs = parameters("a=1&b=%20", "a=2&&c=x+y%2b").unwrap();
        let pairs: Vec<_> = pairs.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(pairs, [("a", "1"), ("b", " "), ("a", "2"), ("c", "x y+")]);
        for (form, query, why) in [
            ("a=%", "", "invalid URL escape \"%\""),
            ("a=%2", "", "invalid URL escape \"%2\""),
            ("", "%zz=1", "invalid URL escape \"%zz\""),
            ("", "a=%%20", "invalid URL escape \"%%2\""),
            ("", "%a=1", "invalid URL escape \"%a\""),
            ("", "a=%=2", "invalid URL escape \"%=2\""),
            ("a=%1x3", "b=%2", "invalid URL escape \"%1x\""),
            ("", "a=%2;b", "invalid semicolon separator in query"),
        ] {
            assert_eq!(parameters(form, query).unwrap_err().to_string(), why, "{form} {query}");
        }
    }

    proptest! {
        #[test]
        fn nothing_panics(kind in "\\PC{0,30}", query in "[%a-f0-9&=;é]{0,20}") {
            let _ = (is_form(&kind), parameters(&query, &query));
        }
    }
}
