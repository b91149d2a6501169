//! How a command ended: from the runtime's error stream (v4: a JSON status) to the status that a v5 client gets. Pure.
//!
//! Upstream decodes and makes it anew (`client-go/tools/remotecommand/v4.go`, `apiserver/pkg/util/proxy/streamtranslator.go`),
//! which is why it has `metadata`, and a message within a message; clients match on these words.

use serde::{Deserialize, Serialize};

/// Longest error stream, bytes. A status is a few hundred; what an exec that failed says may be some thousand.
pub const LONGEST: usize = 256 << 10;

const NON_ZERO_EXIT_CODE: &str = "NonZeroExitCode";
const EXIT_CODE: &str = "ExitCode";

/// The last message on the status channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ending {
    /// JSON.
    pub status: Vec<u8>,
    /// Label `code` of `apiserver_stream_translator_requests_total`.
    pub code: &'static str,
}

/// `metav1.Status`, with its fields in upstream's order.
#[derive(Debug, Serialize, Deserialize)]
struct Status {
    #[serde(default)]
    metadata: Metadata,
    #[serde(default)]
    status: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    message: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    reason: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    details: Option<Details>,
    #[serde(default, skip_serializing_if = "is_zero")]
    code: i32,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Metadata {}

#[derive(Debug, Serialize, Deserialize)]
struct Details {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    causes: Vec<Cause>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Cause {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    reason: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    message: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_zero(code: &i32) -> bool {
    *code == 0
}

/// What the runtime's error stream, which is complete, comes to. An empty one that was ended is a success, as upstream's
/// client takes it.
pub fn ending(error_stream: &[u8]) -> Ending {
    if error_stream.is_empty() {
        return success();
    }
    let status: Status = match serde_json::from_slice(error_stream) {
        Ok(status) => status,
        Err(error) => {
            let text = String::from_utf8_lossy(error_stream);
            return failure(&format!("error stream protocol error: {error} in {text:?}"));
        }
    };
    match status.status.as_str() {
        "Success" => success(),
        "Failure" if status.reason == NON_ZERO_EXIT_CODE => exit(status.details.as_ref()),
        "Failure" => failure(&status.message),
        _ => failure("error stream protocol error: unknown error"),
    }
}

/// The stream failed: on the way, or the runtime said so.
pub fn failure(message: &str) -> Ending {
    let cause = Cause { reason: String::new(), message: message.to_owned() };
    let status = Status {
        metadata: Metadata {},
        status: "Failure".into(),
        message: format!("Internal error occurred: {message}"),
        reason: "InternalError".into(),
        details: Some(Details { causes: vec![cause] }),
        code: 500,
    };
    Ending { status: encode(&status), code: "500" }
}

fn success() -> Ending {
    Ending { status: br#"{"metadata":{},"status":"Success"}"#.to_vec(), code: "200" }
}

fn exit(details: Option<&Details>) -> Ending {
    let Some(details) = details else { return failure("error stream protocol error: details must be set") };
    let Some(cause) = details.causes.iter().find(|cause| cause.reason == EXIT_CODE) else {
        return failure(&format!("error stream protocol error: no {EXIT_CODE} cause given"));
    };
    let Some(code) = parse_exit_code(&cause.message) else {
        return failure(&format!("error stream protocol error: invalid exit code value {:?}", cause.message));
    };
    let cause = Cause { reason: EXIT_CODE.into(), message: code.to_string() };
    let status = Status {
        metadata: Metadata {},
        status: "Failure".into(),
        message: format!("command terminated with non-zero exit code: command terminated with exit code {code}"),
        reason: NON_ZERO_EXIT_CODE.into(),
        details: Some(Details { causes: vec![cause] }),
        code: 0,
    };
    // The command failed; the stream did not.
    Ending { status: encode(&status), code: "200" }
}

/// Digits alone, as Go's `ParseUint` takes them.
fn parse_exit_code(text: &str) -> Option<u8> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

fn encode(status: &Status) -> Vec<u8> {
    // Text and numbers are always JSON.
    serde_json::to_vec(status).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn table() {
        let internal = |message: &str| {
            let message = message.replace('"', "\\\"");
            format!(
                r#"{{"metadata":{{}},"status":"Failure","message":"Internal error occurred: {message}","reason":"InternalError","details":{{"causes":[{{"message":"{message}"}}]}},"code":500}}"#
            )
        };
        for (stream, expected, code) in [
            (r#"{"status":"Success"}"#, r#"{"metadata":{},"status":"Success"}"#.to_owned(), "200"),
            ("", r#"{"metadata":{},"status":"Success"}"#.to_owned(), "200"),
            // As containerd writes it.
            (
                r#"{"status":"Failure","message":"command terminated with non-zero exit code: exit status 3","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"3"}]}}"#,
                r#"{"metadata":{},"status":"Failure","message":"command terminated with non-zero exit code: command terminated with exit code 3","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"3"}]}}"#.to_owned(),
                "200",
            ),
            (
                r#"{"status":"Failure","message":"Internal error occurred: error executing command in container: x","reason":"InternalError","code":500}"#,
                internal("Internal error occurred: error executing command in container: x"),
                "500",
            ),
            (r#"{"metadata":{},"status":"Failure","reason":"NonZeroExitCode"}"#, internal("error stream protocol error: details must be set"), "500"),
            (r#"{"status":"Failure","reason":"NonZeroExitCode","details":{}}"#, internal("error stream protocol error: no ExitCode cause given"), "500"),
            (
                r#"{"status":"Failure","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"256"}]}}"#,
                internal(r#"error stream protocol error: invalid exit code value "256""#),
                "500",
            ),
            (r#"{"status":"Other"}"#, internal("error stream protocol error: unknown error"), "500"),
            ("{}", internal("error stream protocol error: unknown error"), "500"),
        ] {
            let ending = ending(stream.as_bytes());
            assert_eq!(String::from_utf8(ending.status).unwrap(), expected, "{stream}");
            assert_eq!(ending.code, code, "{stream}");
        }
        let text = String::from_utf8(ending(b"not JSON").status).unwrap();
        assert!(text.contains("error stream protocol error: expected") && text.contains("not JSON"), "{text}");
        for (text, code) in [("0", Some(0)), ("255", Some(255)), ("+1", None), ("", None), ("-1", None), ("1x", None)] {
            assert_eq!(parse_exit_code(text), code, "{text}");
        }
    }

    proptest! {
        #[test]
        fn whatever_comes_a_status_goes(stream in proptest::collection::vec(any::<u8>(), 0..200)) {
            let ending = ending(&stream);
            let status: serde_json::Value = serde_json::from_slice(&ending.status).unwrap();
            prop_assert!(status["metadata"].is_object());
        }
    }
}
