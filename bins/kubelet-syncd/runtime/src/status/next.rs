//! What a new look at a pod makes of the status that was told last: it may not take back what was true, nor tell of an
//! end that is none, nor contradict itself.

use k8s_openapi::api::core::v1::PodStatus;

use super::phase::Phase;
use super::pod_status::{self, StatusInput};
use super::terminate::terminate;
use super::{conditions, transition};

/// How far a pod's end has come, for its status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    Alive,
    /// Its containers were stopped because it ends.
    Stopped,
    /// That was the runtime's last word on it.
    Gone,
}

/// What is known besides the inputs of the status itself.
#[derive(Debug, Clone, Copy)]
pub struct Observation<'a> {
    /// What this process has told last.
    pub last: Option<&'a PodStatus>,
    pub stage: Stage,
    /// The pod's containers are just being brought to what its spec says.
    pub in_sync: bool,
    /// The pod has a sandbox that this look at the runtime has not seen yet.
    pub newer_sandbox: bool,
}

/// The status told last, or the API server's copy, says that the pod has ended, or `status` does.
pub fn is_over(status: &PodStatus) -> bool {
    status.phase.as_deref().and_then(Phase::parse).is_some_and(Phase::is_terminal)
}

/// The next status, and what kept a computed one from being it.
pub fn next(input: &StatusInput<'_>, look: Observation<'_>) -> (PodStatus, Option<String>) {
    let Observation { last, stage, in_sync, newer_sandbox } = look;
    let mut status = pod_status::generate(input);
    // A look at the runtime that began before the sandbox stood does not take back that it does.
    if let Some(last) = last.filter(|_| stage == Stage::Alive && newer_sandbox) {
        conditions::keep(&mut status, last, conditions::SANDBOX_READY);
    }
    // Between the end of one instance and the start of the next that a sync has decided on, a container seems to have ended
    // for good, or all of them: whether that is so is known when that sync is over, and a look follows it. Once it were
    // told, the next instance could not be.
    if let Some(last) = last.filter(|last| !is_over(last))
        && stage == Stage::Alive
        && input.termination.is_none()
        && in_sync
        && (is_over(&status) || transition::ends_for_good(input.pod, last, &status))
    {
        status = last.clone();
    }
    let mut dropped = None;
    if let Some(last) = last.or(input.pod.status.as_ref())
        && let Some(why) = transition::illegal(input.pod, last, &status)
    {
        status = last.clone();
        dropped = Some(why);
    }
    if stage == Stage::Gone {
        status = terminate(input.pod, &status);
    }
    (status, dropped)
}
