//! What travels with every call beside its message: a request id, where the call is about one a pod uid, and while traces
//! are recorded the span that the call is made in.
//!
//! All are gRPC metadata (`x-request-id`, `x-pod-uid`, `traceparent`), so a log line of any process leads to the lines of
//! the others that belong to the same piece of work.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bulkhead_types::{FAR, PodUid};

pub const REQUEST_ID: &str = "x-request-id";
pub const POD_UID: &str = "x-pod-uid";

/// Identity of a piece of work that may cross processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallContext {
    pub request_id: Box<str>,
    pub pod_uid: Option<PodUid>,
}

impl CallContext {
    /// A new piece of work: an id unique for the machine's uptime in practice (process id and a counter).
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let count = NEXT.fetch_add(1, Ordering::Relaxed);
        CallContext { request_id: format!("{:x}-{count:x}", std::process::id()).into(), pod_uid: None }
    }

    /// A new piece of work about this pod.
    pub fn for_pod(pod: &PodUid) -> Self {
        CallContext { pod_uid: Some(pod.clone()), ..CallContext::new() }
    }

    /// Wraps a message for a unary or streaming call. The deadline goes along as `grpc-timeout`, [`FAR`] at most.
    pub fn request<T>(&self, message: T, deadline: Duration) -> tonic::Request<T> {
        let mut request = self.streaming_request(message);
        request.set_timeout(deadline.min(FAR));
        request
    }

    /// Wraps a message for a call whose answer is an open-ended stream: only its start has a (server's) deadline.
    pub fn streaming_request<T>(&self, message: T) -> tonic::Request<T> {
        let mut request = tonic::Request::new(message);
        if let Ok(value) = self.request_id.parse() {
            request.metadata_mut().insert(REQUEST_ID, value);
        }
        if let Some(value) = self.pod_uid.as_ref().and_then(|uid| uid.as_str().parse().ok()) {
            request.metadata_mut().insert(POD_UID, value);
        }
        if let Some(value) = bulkhead_trace::current().and_then(|current| current.to_string().parse().ok()) {
            request.metadata_mut().insert(bulkhead_trace::HEADER, value);
        }
        request
    }

    /// Reads the context of an incoming call; what is missing or odd is replaced, never refused.
    pub fn of<T>(request: &tonic::Request<T>) -> Self {
        let text = |key: &str| request.metadata().get(key).and_then(|v| v.to_str().ok());
        let mut context = CallContext::new();
        if let Some(id) = text(REQUEST_ID).filter(|id| id.len() <= 64) {
            context.request_id = id.into();
        }
        context.pod_uid = text(POD_UID).and_then(|uid| PodUid::parse(uid).ok());
        context
    }
}

impl Default for CallContext {
    fn default() -> Self {
        CallContext::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_of_any_length_can_be_told() {
        for (deadline, told) in [(Duration::from_secs(5), "5000000u"), (Duration::MAX, "52560000M")] {
            let request = CallContext::new().request((), deadline);
            assert_eq!(request.metadata().get("grpc-timeout").unwrap(), told);
        }
    }
}
