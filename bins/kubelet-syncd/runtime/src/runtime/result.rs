//! What came of one sync: each action with its error, and from that when to look again and what statuses will say.

use std::net::IpAddr;
use std::time::SystemTime;

use bulkhead_types::SandboxId;

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
        let texts: Vec<String> = actions.chain(self.error.as_ref().map(|e| e.message.clone())).collect();
        match texts.as_slice() {
            [] => None,
            [one] => Some(one.clone()),
            many => Some(format!("[{}]", many.join(", "))),
        }
    }

    /// When every error is a back-off: the time at which the first of them ends.
    pub fn back_off_until(&self) -> Option<SystemTime> {
        let mut earliest: Option<SystemTime> = None;
        for error in self.errors() {
            let until = error.back_off_until?;
            earliest = Some(earliest.map_or(until, |e| e.min(until)));
        }
        earliest
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

    #[test]
    fn errors_in_sum() {
        let at = |s| SystemTime::UNIX_EPOCH + Duration::from_secs(s);
        let back_off =
            |s| ActionError { back_off_until: Some(at(s)), ..ActionError::new("CrashLoopBackOff", "back-off") };
        let mut result = SyncResult::default();
        assert!(result.is_ok() && result.error_text().is_none() && !result.did_work() && !result.is_transient());
        result.push(Action::StartContainer, "a", Err(back_off(30)));
        result.push(Action::StartContainer, "b", Err(back_off(20)));
        assert_eq!(result.back_off_until(), Some(at(20)));
        assert!(!result.did_work());
        assert_eq!(
            result.error_text().unwrap(),
            "[failed to \"StartContainer\" for \"a\" with CrashLoopBackOff: \"back-off\", failed to \"StartContainer\" for \"b\" with CrashLoopBackOff: \"back-off\"]"
        );
        result.push(Action::StartContainer, "c", Err(ActionError::new("ErrImagePull", "no")));
        assert_eq!(result.back_off_until(), None);
        result.push(Action::StartContainer, "d", Ok(()));
        assert!(result.did_work());
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
