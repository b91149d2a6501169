//! What came of one sync: each action with its error, and from that when to look again and what statuses will say.

use std::net::IpAddr;
use std::time::SystemTime;

use bulkhead_types::{SandboxId, go_aggregate};

/// Why a container that ends again and again is not started yet.
pub const CRASH_LOOP_BACK_OFF: &str = "CrashLoopBackOff";

/// Kinds of action, named as upstream names them in error texts (`pkg/kubelet/container/sync_result.go`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    StartContainer,
    KillContainer,
    RemoveContainer,
    CreatePodSandbox,
    KillPodSandbox,
    ResizePodInPlace,
}

impl Action {
    pub const fn as_str(self) -> &'static str {
        match self {
            Action::StartContainer => "StartContainer",
            Action::KillContainer => "KillContainer",
            Action::RemoveContainer => "RemoveContainer",
            Action::CreatePodSandbox => "CreatePodSandbox",
            Action::KillPodSandbox => "KillPodSandbox",
            Action::ResizePodInPlace => "ResizePodInPlace",
        }
    }
}

/// Why an action failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}: {message:?}")]
pub struct ActionError {
    /// For a container's start: its waiting reason.
    pub reason: String,
    pub message: String,
    /// Held back until then.
    pub back_off_until: Option<SystemTime>,
    /// Another process or the runtime did not answer: nothing is known to be wrong with the pod.
    pub transient: bool,
}

impl ActionError {
    pub fn new(reason: impl Into<String>, message: impl Into<String>) -> Self {
        ActionError { reason: reason.into(), message: message.into(), back_off_until: None, transient: false }
    }

    /// The pod is to end, or something newer is wanted of it: nothing is known to be wrong with it.
    pub fn cancelled() -> Self {
        ActionError { transient: true, ..ActionError::new("", "context canceled") }
    }
}

/// One action on one thing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActionResult {
    pub action: Action,
    /// Container name, or the pod in upstream's form.
    pub target: String,
    pub error: Option<ActionError>,
}

/// All that a sync did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SyncResult {
    pub actions: Vec<ActionResult>,
    /// The sync as a whole could not go on.
    pub error: Option<ActionError>,
    /// The sandbox that this sync made, and its addresses.
    pub new_sandbox: Option<(SandboxId, Vec<IpAddr>)>,
}

impl SyncResult {
    pub(super) fn push(&mut self, action: Action, target: &str, outcome: Result<(), ActionError>) {
        self.actions.push(ActionResult { action, target: target.to_owned(), error: outcome.err() });
    }

    fn errors(&self) -> impl Iterator<Item = &ActionError> {
        self.actions.iter().filter_map(|a| a.error.as_ref()).chain(&self.error)
    }

    pub fn is_ok(&self) -> bool {
        self.errors().next().is_none()
    }

    /// Something at the runtime was changed: PLEG should look at this pod.
    pub fn did_work(&self) -> bool {
        self.actions.iter().any(|a| a.error.as_ref().is_none_or(|e| e.back_off_until.is_none()))
    }

    /// Containers were removed so that all of the pod start anew, and nothing went wrong: they are started by a sync that follows at
    /// once (upstream `kubelet.go` SyncPod). The runtime's events need not ask for it: they tell of nothing but removals where nothing
    /// else ran.
    pub fn is_reset(&self) -> bool {
        self.is_ok() && self.actions.iter().any(|a| a.action == Action::RemoveContainer)
    }

    /// The whole error as upstream writes it, None when all went well.
    pub fn error_text(&self) -> Option<String> {
        let actions = self.actions.iter().filter_map(|a| {
            let error = a.error.as_ref()?;
            Some(format!(
                "failed to {:?} for {:?} with {}: {:?}",
                a.action.as_str(),
                a.target,
                error.reason,
                error.message
            ))
        });
        go_aggregate(actions.chain(self.error.as_ref().map(|e| e.message.clone())))
    }

    /// When the first of the back-offs ends, whatever else has failed (upstream MinBackoffExpiration).
    pub fn back_off_until(&self) -> Option<SystemTime> {
        self.errors().filter_map(|e| e.back_off_until).min()
    }

    /// Nothing keeps the pod but restarts that are held back, which nothing ends early. An image that cannot be pulled yet is none of
    /// them: it may come to the node in another way (upstream has a BackoffError for CrashLoopBackOff alone).
    pub fn only_restarts_wait(&self) -> bool {
        !self.is_ok() && self.errors().all(|e| e.reason == CRASH_LOOP_BACK_OFF)
    }

    /// Something failed that no back-off explains, and somebody has answered.
    pub fn is_broken(&self) -> bool {
        !self.is_transient() && self.errors().any(|e| e.back_off_until.is_none())
    }

    /// Every error came from somebody not answering: try again soon, and blame nothing on the pod.
    pub fn is_transient(&self) -> bool {
        !self.is_ok() && self.errors().all(|e| e.transient)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn held_back(reason: &str, until: u64) -> ActionError {
        ActionError { back_off_until: Some(at(until)), ..ActionError::new(reason, "back-off") }
    }

    #[test]
    fn errors_in_sum() {
        let back_off = |s| held_back(CRASH_LOOP_BACK_OFF, s);
        let mut result = SyncResult::default();
        assert!(result.is_ok() && result.error_text().is_none() && !result.did_work() && !result.is_transient());
        assert!(result.back_off_until().is_none() && !result.only_restarts_wait() && !result.is_broken());
        result.push(Action::StartContainer, "a", Err(back_off(30)));
        result.push(Action::StartContainer, "b", Err(back_off(20)));
        assert_eq!(result.back_off_until(), Some(at(20)));
        assert!(!result.did_work());
        assert_eq!(
            result.error_text().unwrap(),
            "[failed to \"StartContainer\" for \"a\" with CrashLoopBackOff: \"back-off\", failed to \"StartContainer\" for \"b\" with CrashLoopBackOff: \"back-off\"]"
        );
        result.push(Action::StartContainer, "c", Err(ActionError::new("ErrImagePull", "no")));
        assert_eq!(result.back_off_until(), Some(at(20)));
        result.push(Action::StartContainer, "d", Ok(()));
        assert!(result.did_work());
    }

    /// With the rows of upstream's sync_result_test.go, `TestMinBackoffExpiration`.
    #[test]
    fn what_is_waited_for() {
        let (crash, image) = (|s| held_back(CRASH_LOOP_BACK_OFF, s), |s| held_back("ImagePullBackOff", s));
        let other = || ActionError::new("CreateContainerConfigError", "no");
        let away = || ActionError { transient: true, ..ActionError::new("CreateContainerError", "away") };
        for (errors, until, only_restarts, broken) in [
            (vec![], None, false, false),
            (vec![other()], None, false, true),
            (vec![other(), other()], None, false, true),
            (vec![crash(5)], Some(5), true, false),
            (vec![crash(10), crash(3)], Some(3), true, false),
            (vec![other(), crash(7)], Some(7), false, true),
            (vec![crash(10), crash(3), other(), crash(5)], Some(3), false, true),
            (vec![image(5)], Some(5), false, false),
            (vec![image(5), crash(7)], Some(5), false, false),
            (vec![image(7), crash(5)], Some(5), false, false),
            (vec![away()], None, false, false),
            (vec![away(), crash(5)], Some(5), false, true),
        ] {
            let mut result = SyncResult::default();
            let what = format!("{errors:?}");
            errors.into_iter().for_each(|error| result.push(Action::StartContainer, "a", Err(error)));
            let got = (result.back_off_until(), result.only_restarts_wait(), result.is_broken());
            assert_eq!(got, (until.map(at), only_restarts, broken), "{what}");
        }
    }

    #[test]
    fn what_was_reset() {
        let mut result = SyncResult::default();
        result.push(Action::KillContainer, "a", Ok(()));
        assert!(!result.is_reset());
        result.push(Action::RemoveContainer, "a", Ok(()));
        assert!(result.is_reset());
        result.push(Action::RemoveContainer, "b", Err(ActionError::new("RemoveContainerError", "busy")));
        assert!(!result.is_reset(), "it is tried again in its time");
    }
}
