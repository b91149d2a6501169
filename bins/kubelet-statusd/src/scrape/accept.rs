//! In which format and encoding a scraper gets its answer, by its headers. Pure; the rules are those of upstream's
//! libraries (prometheus/common `expfmt`, client_golang `promhttp`), with OpenMetrics offered too (decision 25).

use http::HeaderMap;
use http::header::{ACCEPT, ACCEPT_ENCODING};

/// How an answer is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Prometheus' text format 0.0.4.
    Text,
    /// OpenMetrics text 0.0.1; it is written as 1.0.0 is.
    OpenMetrics001,
    OpenMetrics100,
    /// `io.prometheus.client.MetricFamily` messages, each behind its length.
    Protobuf,
}

/// How names are to be written that the old rules for names do not allow. We have no such names: this is only told back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Escaping {
    AllowUtf8,
    Underscores,
    Dots,
    Values,
}

impl Escaping {
    const fn as_str(self) -> &'static str {
        match self {
            Escaping::AllowUtf8 => "allow-utf-8",
            Escaping::Underscores => "underscores",
            Escaping::Dots => "dots",
            Escaping::Values => "values",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        [Escaping::AllowUtf8, Escaping::Underscores, Escaping::Dots, Escaping::Values]
            .into_iter()
            .find(|escaping| escaping.as_str() == text)
    }
}

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AcceptedFormat {
    pub format: Format,
    pub escaping: Escaping,
    pub gzip: bool,
}

impl AcceptedFormat {
    /// The `Content-Type` of the answer.
    pub fn content_type(self) -> String {
        let kind = match self.format {
            Format::Text => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics001 => "application/openmetrics-text; version=0.0.1; charset=utf-8",
            Format::OpenMetrics100 => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Format::Protobuf => {
                "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
            }
        };
        format!("{kind}; escaping={}", self.escaping.as_str())
    }
}

/// Reads `Accept` and `Accept-Encoding`. What cannot be understood is as if it were not there: the answer is then plain text.
pub fn negotiate(headers: &HeaderMap) -> AcceptedFormat {
    // The first header of this name alone counts, as upstream's.
    let accept = headers.get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let (format, escaping) = format(accept);
    AcceptedFormat { format, escaping, gzip: gzip(headers) }
}

#[derive(Debug)]
struct Clause<'a> {
    media: (&'a str, &'a str),
    q: f64,
    parameters: Vec<(&'a str, &'a str)>,
}

impl Clause<'_> {
    fn parameter(&self, name: &str) -> &str {
        // The last of a name counts.
        self.parameters.iter().rev().find(|(known, _)| *known == name).map_or("", |(_, value)| value)
    }
}

fn clause(text: &str) -> Option<Clause<'_>> {
    let mut parts = text.split(';');
    let media = parts.next().unwrap_or_default().trim_matches(' ');
    let media = match media.split_once('/') {
        Some((kind, sub)) if !sub.is_empty() && !sub.contains('/') => (kind.trim_matches(' '), sub.trim_matches(' ')),
        None if media == "*" => ("*", "*"),
        _ => return None,
    };
    let mut clause = Clause { media, q: 1.0, parameters: Vec::new() };
    for part in parts {
        let Some((name, value)) = part.split_once('=').filter(|(_, value)| !value.is_empty() && !value.contains('='))
        else {
            continue;
        };
        let name = name.trim_matches(' ');
        if name == "q" {
            // What is no number counts as nothing.
            clause.q = value.parse().ok().filter(|q: &f64| !q.is_nan()).unwrap_or(0.0);
        } else {
            clause.parameters.push((name, value.trim_matches(' ')));
        }
    }
    Some(clause)
}

fn format(accept: &str) -> (Format, Escaping) {
    let mut clauses: Vec<Clause<'_>> = accept.split(',').filter_map(|part| clause(part.trim_matches(' '))).collect();
    let wild = |part: &str| u8::from(part == "*");
    // By weight; of equal weights the more exact one, and of equally exact ones the first.
    clauses.sort_by(|a, b| {
        let exactness = |clause: &Clause<'_>| (wild(clause.media.0), wild(clause.media.1));
        b.q.total_cmp(&a.q).then_with(|| exactness(a).cmp(&exactness(b)))
    });
    let mut escaping = Escaping::Underscores;
    for clause in clauses {
        escaping = Escaping::parse(clause.parameter("escaping")).unwrap_or(escaping);
        let format = match (clause.media, clause.parameter("version")) {
            (("application", "vnd.google.protobuf"), _)
                if clause.parameter("proto") == "io.prometheus.client.MetricFamily"
                    && clause.parameter("encoding") == "delimited" =>
            {
                Format::Protobuf
            }
            (("application", "openmetrics-text"), "1.0.0") => Format::OpenMetrics100,
            (("application", "openmetrics-text"), "" | "0.0.1") => Format::OpenMetrics001,
            (("text", "plain"), "" | "0.0.4") => Format::Text,
            _ => continue,
        };
        return (format, escaping);
    }
    (Format::Text, escaping)
}

/// Whether gzip is wanted: only when it is named (or `*` is) with a weight above that of no encoding at all.
fn gzip(headers: &HeaderMap) -> bool {
    let values = headers.get_all(ACCEPT_ENCODING).into_iter().filter_map(|value| value.to_str().ok());
    let (mut identity, mut gzip) = (-1.0, -1.0);
    for (name, q) in values.flat_map(weights) {
        let both = name == "*";
        if both || name == "identity" {
            identity = q.max(identity);
        }
        if both || name == "gzip" {
            gzip = q.max(gzip);
        }
    }
    gzip > identity && gzip > 0.0
}

/// Names and weights up to the first thing that is not understood.
fn weights(value: &str) -> impl Iterator<Item = (&str, f64)> {
    value.split(',').map_while(|part| {
        let (name, weight) = match part.split_once(';') {
            None => (part, Some(1.0)),
            Some((name, weight)) => (name, weight.trim().strip_prefix("q=").and_then(quality)),
        };
        let name = name.trim();
        weight.filter(|_| !name.is_empty()).map(|weight| (name, weight))
    })
}

/// `0`, `1`, `0.25`.
fn quality(text: &str) -> Option<f64> {
    let plain = text.starts_with(['0', '1']) && text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    text.parse().ok().filter(|_| plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use proptest::prelude::*;

    fn accept(text: &str) -> String {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_str(text).unwrap());
        negotiate(&headers).content_type()
    }

    const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores";
    const PROTOBUF: &str = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited";

    #[test]
    fn formats() {
        let open = |version: &str, escaping: &str| {
            format!("application/openmetrics-text; version={version}; charset=utf-8; escaping={escaping}")
        };
        // What Prometheus 2 and 3 send.
        let two = "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        let three = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        for (accepted, expected) in [
            ("", TEXT.to_owned()),
            ("*/*", TEXT.to_owned()),
            ("*", TEXT.to_owned()),
            ("text/html", TEXT.to_owned()),
            ("text/plain", TEXT.to_owned()),
            ("text/plain;version=0.0.4", TEXT.to_owned()),
            (two, open("1.0.0", "underscores")),
            (three, open("1.0.0", "allow-utf-8")),
            ("application/openmetrics-text", open("0.0.1", "underscores")),
            ("application/openmetrics-text; version=0.0.1", open("0.0.1", "underscores")),
            ("application/openmetrics-text; version=2.0.0", TEXT.to_owned()),
            ("application/openmetrics-text;version=1.0.0;q=0.3, text/plain;q=0.9", TEXT.to_owned()),
            ("text/plain;q=0.1, application/openmetrics-text;version=1.0.0;q=0.2", open("1.0.0", "underscores")),
            ("text/plain;version=1.0.0;escaping=dots,*/*;q=0.1", TEXT.replace("underscores", "dots")),
            ("text/plain;escaping=nonsense", TEXT.to_owned()),
            ("text/plain;q=nonsense;version=0.0.4", TEXT.to_owned()),
            ("application/openmetrics-text;q=0.5;q=1;version=1.0.0,text/plain;q=0.9", open("1.0.0", "underscores")),
            ("///,;;,=,a/b;=;c=d=e,application/openmetrics-text;version=1.0.0", open("1.0.0", "underscores")),
            ("application/vnd.google.protobuf;proto=other;encoding=delimited", TEXT.to_owned()),
        ] {
            assert_eq!(accept(accepted), expected, "{accepted}");
        }
        let protobuf = format!("{PROTOBUF};q=0.7,text/plain;version=0.0.4;q=0.2");
        assert_eq!(
            accept(&protobuf),
            "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited; escaping=underscores"
        );
        assert_eq!(negotiate(&HeaderMap::new()).content_type(), TEXT);
    }

    #[test]
    fn encodings() {
        for (value, expected) in [
            ("", false),
            ("gzip", true),
            ("gzip, deflate, br", true),
            ("deflate;q=0.5, gzip;q=0.3", true),
            ("gzip;q=0", false),
            ("gzip;q=0, *", false),
            ("*", false),
            ("identity, gzip", false),
            ("identity;q=0.5, gzip;q=0.6", true),
            ("identity;q=0, gzip;q=0", false),
            ("zstd", false),
            ("gzip;q=2", false),
            ("br, ;, gzip", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.append(ACCEPT_ENCODING, HeaderValue::from_str(value).unwrap());
            assert_eq!(negotiate(&headers).gzip, expected, "{value}");
        }
        let mut two = HeaderMap::new();
        two.append(ACCEPT_ENCODING, HeaderValue::from_static("br"));
        two.append(ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
        assert!(negotiate(&two).gzip);
    }

    proptest! {
        #[test]
        fn nothing_panics(accept in "[ -~]{0,80}", encoding in "[ -~]{0,40}") {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, HeaderValue::from_str(&accept).unwrap());
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_str(&encoding).unwrap());
            prop_assert!(HeaderValue::from_str(&negotiate(&headers).content_type()).is_ok());
        }
    }
}
