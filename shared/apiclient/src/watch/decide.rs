//! What a watch asks for, and how it goes on after what may happen to it. Pure.

use std::collections::HashSet;
use std::time::Duration;

use kube::core::Status;
use tokio::time::Instant;

use super::lines::LineError;
use crate::object::ObjectRef;

/// Objects in one page of a list (client-go `tools/pager`).
const PAGE: u32 = 500;
/// The server is asked to end a watch after this time, or up to twice of it: not all at once.
const SERVER_ENDS_AFTER_S: f64 = 300.0;
/// Failures in a row without anything in between, after which another way is tried.
const ENOUGH: u32 = 3;
/// The same complaint once in this time.
const REPEAT: Duration = Duration::from_secs(60);
/// Objects that cannot be decoded are named in the log up to this number; who makes more of them does not fill it.
const NAMED_MAX: usize = 256;

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
    /// It was put back to an older state, or one server of several is behind the others.
    #[error("the server has not come as far as our last state: {0}")]
    TooLarge(String),
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
    /// By its end, or because nothing came for too long.
    #[error("a streamed list broke off before it was complete")]
    NoInitialEvents,
    #[error("a list was not complete within {seconds} s")]
    TooSlow { seconds: u64 },
}

/// How a list is gone about when its streamed form has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Instead {
    /// The attempt has failed; the next one asks for a stream again.
    Nothing,
    /// In pages, within the same attempt.
    Pages,
    /// The same; when the pages are granted, other lists begin with pages for a while.
    PagesForAWhile,
}

impl Failure {
    pub(super) fn undecodable(error: &serde_json::Error) -> Self {
        Failure::Undecodable { line: error.line(), column: error.column() }
    }

    pub(super) fn of_status(status: &Status) -> Self {
        match status.code {
            410 => Failure::Expired,
            _ if is_too_large(status) => Failure::TooLarge(status.message.clone()),
            code => Failure::Refused { code, reason: status.reason.clone(), message: status.message.clone() },
        }
    }

    /// What is known is not a place to go on from. Otherwise the watch is resumed where it was.
    pub(super) fn relist(&self) -> bool {
        match self {
            Failure::Expired | Failure::TooLarge(_) | Failure::Undecodable { .. } => true,
            Failure::NoInitialEvents | Failure::TooSlow { .. } => true,
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

    /// An answer that says no, and not merely "later". Enough of them in a row, and the version that the watch is to go on
    /// from may be what the server does not like.
    pub(super) fn says_no(&self) -> bool {
        matches!(self, Failure::Refused { code, .. } if *code != 429)
    }

    /// What follows when a streamed list ends so, the `before`th time after others that did as well. client-go's reflector
    /// falls back on everything that trying again cannot mend; so do we. That a stream was cut off, or had a gap, says
    /// nothing about whether the server streams lists, so it is not remembered.
    pub(super) fn instead_of_a_stream(&self, before: u32) -> Instead {
        match self {
            // Pages would not come any better over this connection.
            Failure::NoAnswer(_) | Failure::GivenUp | Failure::Refused { code: 429, .. } => Instead::Nothing,
            Failure::Expired | Failure::TooLarge(_) | Failure::Broken(_) if before + 1 < ENOUGH => Instead::Nothing,
            // Something on the way may let no stream live.
            Failure::Expired | Failure::TooLarge(_) | Failure::Broken(_) => Instead::Pages,
            Failure::NoInitialEvents | Failure::TooSlow { .. } | Failure::Ended | Failure::Stalled { .. } => {
                Instead::Pages
            }
            Failure::Refused { .. } | Failure::Undecodable { .. } => Instead::PagesForAWhile,
        }
    }
}

/// A watch that was refused so often in a row begins with a new list.
pub(super) fn enough_refusals(in_a_row: u32) -> bool {
    in_a_row >= ENOUGH
}

/// As client-go finds it: by the cause, or in older servers by the message.
fn is_too_large(status: &Status) -> bool {
    const MESSAGE: &str = "Too large resource version";
    let causes = || status.details.iter().flat_map(|details| &details.causes);
    causes().any(|cause| cause.reason == "ResourceVersionTooLarge")
        || (status.reason == "Timeout"
            && (status.message.contains(MESSAGE) || causes().any(|cause| cause.message == MESSAGE)))
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

/// Which objects were named in the log as those that cannot be decoded.
#[derive(Debug, Default)]
pub(super) struct Named(HashSet<ObjectRef>);

impl Named {
    /// True once for an object, and for no more of them than the log is to have.
    pub(super) fn speaks(&mut self, object: &ObjectRef) -> bool {
        self.0.len() < NAMED_MAX && !self.0.contains(object) && self.0.insert(object.clone())
    }

    /// It is gone.
    pub(super) fn forget(&mut self, object: &ObjectRef) {
        self.0.remove(object);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_object_is_named_once_and_not_too_many_of_them() {
        let object = |number: usize| ObjectRef { uid: number.to_string(), ..ObjectRef::default() };
        let mut named = Named::default();
        assert!(named.speaks(&object(0)) && !named.speaks(&object(0)));
        named.forget(&object(0));
        assert_eq!((0..2 * NAMED_MAX).filter(|number| named.speaks(&object(*number))).count(), NAMED_MAX);
        named.forget(&object(0));
        assert!(named.speaks(&object(2 * NAMED_MAX)) && !named.speaks(&object(0)));
    }

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

    fn refused(code: u16) -> Failure {
        Failure::Refused { code, reason: String::new(), message: String::new() }
    }

    #[test]
    fn how_to_go_on() {
        // (failure, relist, ordinary, says no)
        let cases = [
            (Failure::NoAnswer(String::new()), false, false, false),
            (Failure::Broken(String::new()), false, false, false),
            (Failure::Undecodable { line: 1, column: 1 }, true, false, false),
            (Failure::Expired, true, true, false),
            (Failure::TooLarge(String::new()), true, false, false),
            (Failure::Ended, false, true, false),
            (Failure::GivenUp, false, true, false),
            (Failure::Stalled { seconds: 1 }, false, false, false),
            (Failure::NoInitialEvents, true, false, false),
            (Failure::TooSlow { seconds: 1 }, true, false, false),
            (refused(400), true, false, true),
            (refused(401), false, false, true),
            (refused(403), false, false, true),
            (refused(404), true, false, true),
            (refused(422), true, false, true),
            (refused(429), false, false, false),
            (refused(500), false, false, true),
        ];
        for (failure, relist, ordinary, says_no) in cases {
            let found = (failure.relist(), failure.is_ordinary(), failure.says_no());
            assert_eq!(found, (relist, ordinary, says_no), "{failure:?}");
        }
        assert!(!enough_refusals(2) && enough_refusals(3));
        assert!(goes_back("10", "9") && !goes_back("9", "10") && !goes_back("9", "9") && !goes_back("x", "9"));
    }

    #[test]
    fn what_follows_a_streamed_list_that_failed() {
        use Instead::{Nothing, Pages, PagesForAWhile};
        // (failure, the first time, the third time in a row)
        let cases = [
            // client-go asks again.
            (Failure::NoAnswer(String::new()), Nothing, Nothing),
            (Failure::GivenUp, Nothing, Nothing),
            (refused(429), Nothing, Nothing),
            (Failure::Expired, Nothing, Pages),
            (Failure::TooLarge(String::new()), Nothing, Pages),
            // Cut off, a gap, no end: no refusal.
            (Failure::Broken(String::new()), Nothing, Pages),
            (Failure::Ended, Pages, Pages),
            (Failure::Stalled { seconds: 30 }, Pages, Pages),
            (Failure::NoInitialEvents, Pages, Pages),
            (Failure::TooSlow { seconds: 60 }, Pages, Pages),
            // Everything else that a server may say.
            (Failure::Undecodable { line: 1, column: 1 }, PagesForAWhile, PagesForAWhile),
            (refused(400), PagesForAWhile, PagesForAWhile),
            (refused(401), PagesForAWhile, PagesForAWhile),
            (refused(403), PagesForAWhile, PagesForAWhile),
            (refused(404), PagesForAWhile, PagesForAWhile),
            (refused(405), PagesForAWhile, PagesForAWhile),
            (refused(415), PagesForAWhile, PagesForAWhile),
            (refused(422), PagesForAWhile, PagesForAWhile),
            (refused(500), PagesForAWhile, PagesForAWhile),
            (refused(501), PagesForAWhile, PagesForAWhile),
            (refused(503), PagesForAWhile, PagesForAWhile),
            (refused(504), PagesForAWhile, PagesForAWhile),
        ];
        for (failure, first, third) in cases {
            let found = (failure.instead_of_a_stream(0), failure.instead_of_a_stream(2));
            assert_eq!(found, (first, third), "{failure:?}");
            assert_eq!(failure.instead_of_a_stream(1), first, "{failure:?}");
        }
    }

    #[test]
    fn what_a_status_says() {
        let of = |value: serde_json::Value| Failure::of_status(&serde_json::from_value(value).unwrap());
        let timeout = |message: &str, details: serde_json::Value| {
            serde_json::json!({"status": "Failure", "code": 504, "reason": "Timeout", "message": message,
                "details": details})
        };
        let too_large = |failure: Failure| matches!(failure, Failure::TooLarge(_));
        assert_eq!(of(serde_json::json!({"code": 410, "reason": "Gone"})), Failure::Expired);
        let causes = serde_json::json!({"causes": [{"reason": "ResourceVersionTooLarge", "message": "m"}]});
        assert!(too_large(of(timeout("Too large resource version: 9, current: 5", causes))));
        let causes = serde_json::json!({"causes": [{"message": "Too large resource version"}]});
        assert!(too_large(of(timeout("Timeout: ...", causes))), "1.17");
        assert!(!too_large(of(timeout("Timeout: request did not complete", serde_json::json!(null)))));
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
