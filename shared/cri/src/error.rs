//! What a call to the runtime failed with, in gRPC's terms, and printed as upstream prints it.

use std::error::Error as _;

use tonic::{Code, Status};

/// A failed call. The text is that of Go's gRPC client, because it ends up in pod statuses that tools read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("rpc error: code = {} desc = {message}", go_name(*.code))]
pub struct CriError {
    pub code: Code,
    /// Name of the method, for logs.
    pub method: &'static str,
    /// The runtime's own words, or the transport's.
    pub message: String,
}

impl CriError {
    pub(crate) fn from_status(method: &'static str, status: &Status) -> Self {
        let local = status.source().is_some();
        let code = match status.code() {
            // Only this side's transport makes statuses with a source: the connection broke, or its timer ran out.
            Code::Unknown | Code::Internal if local => Code::Unavailable,
            Code::Cancelled if local => Code::DeadlineExceeded,
            code => code,
        };
        let message = if code == Code::DeadlineExceeded && local {
            "context deadline exceeded".to_owned()
        } else if local {
            chain(status)
        } else {
            status.message().to_owned()
        };
        CriError { code, method, message }
    }

    pub(crate) fn deadline(method: &'static str) -> Self {
        CriError { code: Code::DeadlineExceeded, method, message: "context deadline exceeded".to_owned() }
    }

    /// The stream ended where only an error could end it.
    pub(crate) fn stream_ended(method: &'static str) -> Self {
        CriError { code: Code::Unavailable, method, message: "the runtime closed the stream".to_owned() }
    }

    /// The container, sandbox or image is not there.
    pub fn is_not_found(&self) -> bool {
        self.code == Code::NotFound
    }

    /// The runtime does not know the method.
    pub fn is_unimplemented(&self) -> bool {
        self.code == Code::Unimplemented
    }

    /// No connection, or it broke on the way: whether the call did anything is unknown.
    pub fn is_unavailable(&self) -> bool {
        self.code == Code::Unavailable
    }

    /// No answer in time: whether the call did anything is unknown.
    pub fn is_deadline_exceeded(&self) -> bool {
        self.code == Code::DeadlineExceeded
    }

    /// The outcome is unknown, as opposed to known to be a failure.
    pub fn is_unknown_outcome(&self) -> bool {
        self.is_unavailable() || self.is_deadline_exceeded()
    }

    /// The text without gRPC's prefix where the code says nothing (code Unknown), as upstream shows failed pulls
    /// (upstream `cri-client/pkg/remote_image.go`).
    pub fn plain_text(&self) -> String {
        if self.code == Code::Unknown { self.message.clone() } else { self.to_string() }
    }
}

/// The texts of a local failure, outermost first: "transport error" alone would tell nobody anything.
fn chain(status: &Status) -> String {
    let mut text = status.message().to_owned();
    let mut next = status.source();
    while let Some(error) = next {
        let part = error.to_string();
        if !text.contains(&part) {
            if !text.is_empty() {
                text.push_str(": ");
            }
            text.push_str(&part);
        }
        next = error.source();
    }
    text
}

/// Code names as Go prints them.
pub fn go_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "Canceled",
        Code::Unknown => "Unknown",
        Code::InvalidArgument => "InvalidArgument",
        Code::DeadlineExceeded => "DeadlineExceeded",
        Code::NotFound => "NotFound",
        Code::AlreadyExists => "AlreadyExists",
        Code::PermissionDenied => "PermissionDenied",
        Code::ResourceExhausted => "ResourceExhausted",
        Code::FailedPrecondition => "FailedPrecondition",
        Code::Aborted => "Aborted",
        Code::OutOfRange => "OutOfRange",
        Code::Unimplemented => "Unimplemented",
        Code::Internal => "Internal",
        Code::Unavailable => "Unavailable",
        Code::DataLoss => "DataLoss",
        Code::Unauthenticated => "Unauthenticated",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_as_go_prints_it() {
        let error = CriError::from_status("ExecSync", &Status::not_found("no running task found"));
        assert_eq!(error.to_string(), "rpc error: code = NotFound desc = no running task found");
        assert!(error.is_not_found() && !error.is_unknown_outcome());
        let pull = CriError::from_status("PullImage", &Status::unknown("failed to pull"));
        assert_eq!(pull.plain_text(), "failed to pull");
    }

    #[test]
    fn a_broken_transport_is_unavailable_and_names_its_cause() {
        let broken = Status::from_error(Box::new(std::io::Error::other("socket gone")));
        let error = CriError::from_status("Version", &broken);
        assert!(error.is_unavailable(), "{error:?}");
        assert!(error.message.contains("socket gone"), "{error:?}");
    }
}
