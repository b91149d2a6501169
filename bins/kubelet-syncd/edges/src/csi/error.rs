//! What a call that failed leaves behind, by upstream's rule (`isFinalError` in `pkg/volume/csi/csi_client.go`).

use tonic::{Code, Status};

/// What is known of the volume after a failed call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The call was never made: nothing has changed.
    NotCalled,
    /// It may have been done, or be going on.
    Uncertain,
    /// The driver says that it was not done.
    Failed,
}

/// Why a driver's call has no result. Its text is what users see in events.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CsiError {
    /// No driver of this name is registered now.
    #[error("driver name {driver} not found in the list of registered CSI drivers")]
    NotRegistered { driver: String },
    /// In the form of a gRPC error of Go's.
    #[error("rpc error: code = {} desc = {}", bulkhead_cri::go_name(status.code()), status.message())]
    Call { status: Status },
}

impl CsiError {
    /// What is known of the volume now.
    pub fn outcome(&self) -> Outcome {
        match self {
            CsiError::NotRegistered { .. } => Outcome::NotCalled,
            CsiError::Call { status } => match status.code() {
                Code::Cancelled
                | Code::DeadlineExceeded
                | Code::Unavailable
                | Code::ResourceExhausted
                | Code::Aborted => Outcome::Uncertain,
                _ => Outcome::Failed,
            },
        }
    }

    /// The driver's code; `None` when it was not asked.
    pub fn code(&self) -> Option<Code> {
        match self {
            CsiError::NotRegistered { .. } => None,
            CsiError::Call { status } => Some(status.code()),
        }
    }
}

impl From<Status> for CsiError {
    fn from(status: Status) -> Self {
        CsiError::Call { status }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_codes_leave_it_open() {
        let open: Vec<i32> = (1..=16)
            .filter(|code| CsiError::from(Status::new(Code::from_i32(*code), "")).outcome() == Outcome::Uncertain)
            .collect();
        // Canceled, DeadlineExceeded, ResourceExhausted, Aborted, Unavailable.
        assert_eq!(open, [1, 4, 8, 10, 14]);
        let error = CsiError::NotRegistered { driver: "d".into() };
        assert_eq!((error.outcome(), error.code()), (Outcome::NotCalled, None));
        let error = CsiError::from(Status::cancelled("gone"));
        assert_eq!(error.to_string(), "rpc error: code = Canceled desc = gone");
    }
}
