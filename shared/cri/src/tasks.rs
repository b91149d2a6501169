//! What to do about a task that containerd has and its CRI side has lost.
//!
//! When the caller of StartContainer goes away in the middle of the call, containerd 1.6 may give up between making the
//! task and noting it: the container is EXITED for the CRI, its task is not, and RemoveContainer is refused from then on
//! ("cannot delete running task"), and with it the removal of the pod. No call of the CRI gets out of that, a restart of
//! containerd does; so does its own task service, which is on the same socket.

use std::time::Duration;

use tonic::metadata::MetadataValue;
use tonic::{Code, Request};

use crate::client::CriClient;
use crate::containerd::tasks::{DeleteTaskRequest, KillRequest};
use crate::error::CriError;

const KILL: u32 = 9;
/// How long a killed task may take to be seen stopped.
const TRIES: usize = 20;
const PAUSE: Duration = Duration::from_millis(100);

impl CriError {
    /// The removal of a dead container failed because its task is still there.
    pub fn is_lost_task(&self) -> bool {
        self.code == Code::FailedPrecondition && self.message.contains("cannot delete running task")
    }
}

impl CriClient {
    /// Ends and deletes the task of a container that the CRI calls dead, in one of containerd's namespaces. That there is
    /// none is success. `container`: a `ContainerId`.
    ///
    /// # Errors
    /// containerd's refusal, or a task that does not end within about 2 s: try again later.
    pub async fn end_lost_task(&self, namespace: &'static str, container: &str) -> Result<(), CriError> {
        const METHOD: &str = "containerd_delete_task";
        let work = async {
            let mut last = None;
            for _ in 0..TRIES {
                let delete = DeleteTaskRequest { container_id: container.to_owned() };
                match self.tasks.clone().delete(within(namespace, delete)).await {
                    Ok(_) => return Ok(()),
                    Err(status) if status.code() == Code::NotFound => return Ok(()),
                    // Not stopped yet.
                    Err(status) if status.code() == Code::FailedPrecondition => last = Some(status),
                    Err(status) => return Err(CriError::from_status(METHOD, &status)),
                }
                let kill =
                    KillRequest { container_id: container.to_owned(), signal: KILL, all: true, ..Default::default() };
                // What it says does not matter: the next delete tells.
                let _ = self.tasks.clone().kill(within(namespace, kill)).await;
                tokio::time::sleep(PAUSE).await;
            }
            Err(last.map_or_else(|| CriError::deadline(METHOD), |status| CriError::from_status(METHOD, &status)))
        };
        tokio::time::timeout(self.deadlines.request, work).await.unwrap_or_else(|_| Err(CriError::deadline(METHOD)))
    }
}

fn within<T>(namespace: &'static str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("containerd-namespace", MetadataValue::from_static(namespace));
    request
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_that_refusal_is_a_lost_task() {
        let error = |code, message: &str| CriError { code, method: "RemoveContainer", message: message.to_owned() };
        let text = "failed to delete containerd container \"c1\": cannot delete running task c1: failed precondition";
        assert!(error(Code::FailedPrecondition, text).is_lost_task());
        assert!(!error(Code::Unknown, text).is_lost_task());
        assert!(!error(Code::FailedPrecondition, "something else").is_lost_task());
    }
}
