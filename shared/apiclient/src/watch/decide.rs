//! What a watch asks for, and how it goes on after what may happen to it. Pure.

use std::time::Duration;

use kube::core::Status;
use tokio::time::Instant;

use super::lines::LineError;

/// Objects in one page of a list (client-go `tools/pager`).
const PAGE: u32 = 500;
/// The server is asked to end a watch after this time, or up to twice of it: not all at once.
const SERVER_ENDS_AFTER_S: f64 = 300.0;
/// The same complaint once in this time.
const REPEAT: Duration = Duration::from_secs(60);

/// Why an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Failure {
    #[error("{0}")]
    NoAnswer(String),
    #[error("the server answered {code} {reason}: {message}")]
    Refused { code: u16, reason: String, message: String },
    /// Code 410, or a server that knows less than we do.
    #[error("the server does not know any more what came after our last state")]
    Expired,
    /// Without the decoder's words: they may quote a secret.
    #[error("an answer cannot be decoded (line {line}, column {column})")]
    Undecodable { line: usize, column: usize },
    #[error("{0}")]
    Broken(String),
    /// By ourselves: there is a new connection to go on with.
    #[error("the connection was given up")]
    GivenUp,
    #[error("the server ended the watch")]
    Ended,
    #[error("nothing came for {seconds} s: the connection is given up")]
    Stalled { seconds: u64 },
    #[error("a streamed list did not come to its end")]
    NoInitialEvents,
}

impl Failure {
    pub(super) fn undecodable(error: serde_json::Error) -> Self {
        Failure::Undecodable { line: error.line(), column: error.column() }
    }

    pub(super) fn of_status(status: &Status) -> Self {
        match status.code {
            410 => Failure::Expired,
            code => Failure::Refused { code, reason: status.reason.clone(), message: status.message.clone() },
        }
    }

    /// What is known is not a place to go on from. Otherwise the watch is resumed where it was.
    pub(super) fn relist(&self) -> bool {
        match self {
            Failure::Expired | Failure::Undecodable { .. } | Failure::NoInitialEvents => true,
            // The version we go on from is not one for this server.
            Failure::Refused { code, .. } => matches!(code, 400 | 404 | 405 | 422),
            Failure::NoAnswer(_) | Failure::Broken(_) | Failure::GivenUp | Failure::Ended | Failure::Stalled { .. } => {
                false
            }
        }
    }

    /// Nobody has to hear of it when the watch was a good one.
    pub(super) fn is_ordinary(&self) -> bool {
        matches!(self, Failure::Ended | Failure::Expired | Failure::GivenUp)
    }

    /// An answer to a streamed list that a plain list may not get.
    pub(super) fn refuses_streaming(&self) -> bool {
        match self {
            Failure::NoInitialEvents => true,
            Failure::Refused { code, .. } => matches!(code, 400 | 405 | 415 | 422 | 501),
            _ => false,
        }
    }
}

impl From<LineError> for Failure {
    fn from(error: LineError) -> Self {
        match error {
            LineError::GivenUp => Failure::GivenUp,
            LineError::Stalled(after) => Failure::Stalled { seconds: after.as_secs() },
            error => Failure::Broken(error.to_string()),
        }
    }
}

/// Whether `new` is an earlier state than `old`. Versions that are no numbers say nothing (KEP-5504: they are numbers).
pub(super) fn goes_back(old: &str, new: &str) -> bool {
    match (old.parse::<u128>(), new.parse::<u128>()) {
        (Ok(old), Ok(new)) => new < old,
        _ => false,
    }
}

/// What is asked for in every request of a watch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Query<'a> {
    pub(super) field_selector: &'a str,
    pub(super) label_selector: &'a str,
}

impl Query<'_> {
    fn with(&self, pairs: &[(&str, &str)]) -> String {
        let selectors = [("fieldSelector", self.field_selector), ("labelSelector", self.label_selector)];
        let mut query = String::new();
        for (key, value) in selectors.iter().chain(pairs).filter(|(_, value)| !value.is_empty()) {
            if !query.is_empty() {
                query.push('&');
            }
            query.push_str(key);
            query.push('=');
            escape(value, &mut query);
        }
        query
    }

    /// A list that is consistent with the present. `token`: where the last page ended, empty for the first one.
    pub(super) fn page(&self, token: &str) -> String {
        self.with(&[("limit", &PAGE.to_string()), ("continue", token)])
    }

    /// A watch that begins with what exists.
    pub(super) fn streamed_list(&self, fraction: f64) -> String {
        self.with(&[
            ("watch", "true"),
            ("sendInitialEvents", "true"),
            ("resourceVersionMatch", "NotOlderThan"),
            ("allowWatchBookmarks", "true"),
            ("timeoutSeconds", &timeout_seconds(fraction)),
        ])
    }

    /// A watch that goes on from a version.
    pub(super) fn resume(&self, at: &str, fraction: f64) -> String {
        self.with(&[
            ("watch", "true"),
            ("resourceVersion", at),
            ("allowWatchBookmarks", "true"),
            ("timeoutSeconds", &timeout_seconds(fraction)),
        ])
    }
}

fn timeout_seconds(fraction: f64) -> String {
    (SERVER_ENDS_AFTER_S * (1.0 + fraction.clamp(0.0, 1.0))).to_string().split('.').next().unwrap_or("300").to_owned()
}

/// Percent-encoding of a query's value.
fn escape(text: &str, out: &mut String) {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
}

/// Which complaints are new enough for the log.
#[derive(Debug, Default)]
pub(super) struct Quiet {
    said: Option<(String, Instant)>,
}

impl Quiet {
    /// True for a new text, and for the old one after a while.
    pub(super) fn speaks(&mut self, now: Instant, text: &str) -> bool {
        let speaks = match &self.said {
            Some((said, at)) => said != text || now.duration_since(*at) >= REPEAT,
            None => true,
        };
        if speaks {
            self.said = Some((text.to_owned(), now));
        }
        speaks
    }

    pub(super) fn reset(&mut self) {
        self.said = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries() {
        let query = Query { field_selector: "spec.nodeName=a b", label_selector: "" };
        assert_eq!(query.page(""), "fieldSelector=spec.nodeName%3Da%20b&limit=500");
        assert_eq!(query.page("x/="), "fieldSelector=spec.nodeName%3Da%20b&limit=500&continue=x%2F%3D");
        let all = Query { field_selector: "", label_selector: "" };
        assert_eq!(all.resume("7", 0.0), "watch=true&resourceVersion=7&allowWatchBookmarks=true&timeoutSeconds=300");
        assert!(all.resume("7", 0.9999).ends_with("timeoutSeconds=599"));
        assert_eq!(
            all.streamed_list(0.5),
            "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds=450"
        );
    }

    #[test]
    fn how_to_go_on() {
        let refused = |code| Failure::Refused { code, reason: String::new(), message: String::new() };
        let stalled = Failure::Stalled { seconds: 1 };
        // (failure, relist, ordinary, refuses streaming)
        let cases = [
            (Failure::NoAnswer(String::new()), false, false, false),
            (Failure::Broken(String::new()), false, false, false),
            (Failure::Undecodable { line: 1, column: 1 }, true, false, false),
            (Failure::Expired, true, true, false),
            (Failure::Ended, false, true, false),
            (Failure::GivenUp, false, true, false),
            (stalled, false, false, false),
            (Failure::NoInitialEvents, true, false, true),
            (refused(400), true, false, true),
            (refused(401), false, false, false),
            (refused(403), false, false, false),
            (refused(404), true, false, false),
            (refused(422), true, false, true),
            (refused(429), false, false, false),
            (refused(500), false, false, false),
        ];
        for (failure, relist, ordinary, streaming) in cases {
            let found = (failure.relist(), failure.is_ordinary(), failure.refuses_streaming());
            assert_eq!(found, (relist, ordinary, streaming), "{failure:?}");
        }
        assert!(goes_back("10", "9") && !goes_back("9", "10") && !goes_back("9", "9") && !goes_back("x", "9"));
    }

    #[tokio::test(start_paused = true)]
    async fn the_same_complaint_once_a_minute() {
        let (mut quiet, start) = (Quiet::default(), Instant::now());
        assert!(quiet.speaks(start, "a") && !quiet.speaks(start, "a") && quiet.speaks(start, "b"));
        assert!(quiet.speaks(start, "a") && quiet.speaks(start + REPEAT, "a"));
        quiet.reset();
        assert!(quiet.speaks(start, "a"));
    }
}
