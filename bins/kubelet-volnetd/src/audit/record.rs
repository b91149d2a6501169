//! One record, as it stands on the disk: a line of JSON.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::Act;

/// Longer texts are cut; bytes.
const TEXT_MAX: usize = 512;

/// Fields as `AuditRecord` of the internal API has them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Record {
    pub sequence: u64,
    pub time: String,
    pub peer: String,
    pub verb: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub pod_uid: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub object: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub target: String,
    pub code: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    pub seconds: f64,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub request_id: String,
    #[serde(skip_serializing_if = "is_zero")]
    pub dropped_before: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's form")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Record {
    pub(super) fn of(
        act: Act,
        time: Timestamp,
        took: Duration,
        target: String,
        code: tonic::Code,
        message: &str,
    ) -> Self {
        Record {
            sequence: 0,
            time: time.to_string(),
            peer: act.peer.map_or("unknown", |role| role.as_str()).to_owned(),
            verb: act.verb,
            pod_uid: cut(act.pod_uid),
            object: cut(act.object),
            target: cut(target),
            code: code_name(code).to_owned(),
            message: cut(message.to_owned()),
            seconds: took.as_secs_f64(),
            request_id: cut(act.request_id),
            dropped_before: 0,
        }
    }

    pub fn is_failure(&self) -> bool {
        self.code != code_name(tonic::Code::Ok)
    }
}

/// At most [`TEXT_MAX`] bytes of it, and no part of a letter.
fn cut(mut text: String) -> String {
    if text.len() > TEXT_MAX {
        text.truncate((0..=TEXT_MAX - 3).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0));
        text.push_str("...");
    }
    text
}

/// As gRPC's documents write it.
fn code_name(code: tonic::Code) -> &'static str {
    use tonic::Code;
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

/// Which records are wanted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// So many, the newest ones.
    pub newest: Option<usize>,
    pub pod_uid: Option<String>,
    /// The whole verb, its service or its method.
    pub verb: Option<String>,
    pub failed: bool,
}

impl Filter {
    pub fn takes(&self, record: &Record) -> bool {
        let is_verb = |wanted: &String| {
            record.verb == *wanted || record.verb.split('/').any(|part| part.eq_ignore_ascii_case(wanted))
        };
        self.pod_uid.as_ref().is_none_or(|uid| record.pod_uid == *uid)
            && self.verb.as_ref().is_none_or(is_verb)
            && (!self.failed || record.is_failure())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_between_letters() {
        assert_eq!(cut("a".repeat(TEXT_MAX)), "a".repeat(TEXT_MAX));
        let long = cut("ä".repeat(TEXT_MAX));
        assert!(long.len() <= TEXT_MAX && long.ends_with("ä..."), "{}", long.len());
    }

    #[test]
    fn filters() {
        let record = Record {
            verb: "Volumes/TearDownPod".into(),
            pod_uid: "u".into(),
            code: "UNAVAILABLE".into(),
            ..Record::default()
        };
        let takes = |filter: Filter| filter.takes(&record);
        let verb = |verb: &str| Filter { verb: Some(verb.into()), ..Filter::default() };
        assert!(takes(Filter::default()) && takes(Filter { failed: true, ..Filter::default() }));
        assert!(takes(verb("Volumes/TearDownPod")) && takes(verb("volumes")) && takes(verb("TearDownPod")));
        assert!(!takes(verb("TearDown")) && !takes(verb("")));
        assert!(!takes(Filter { pod_uid: Some("v".into()), ..Filter::default() }));
        let well = Record { code: "OK".into(), ..record.clone() };
        assert!(!Filter { failed: true, ..Filter::default() }.takes(&well));
    }
}
