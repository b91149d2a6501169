//! The next request for a pod, if any: from what is wanted and what the API server has, without memory.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use bulkhead_ipc::syncd::{PodState, WorkerState};
use bulkhead_types::{IdError, PodUid};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::copies::ApiCopy;
use super::diff::{diff, is_order_only};
use super::merge::{IllegalTransition, Terms, is_terminal, merge, phase};
use super::mirror::{MirrorError, Owner, StaticPod};
use super::normal::{Status, fingerprint, parse};
use crate::strategic::ORDER;

/// What kubelet-syncd says of a pod, as far as it is to be told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Desired {
    pub uid: PodUid,
    pub namespace: String,
    pub name: String,
    pub is_static: bool,
    /// It runs or is to run; else it is on its way out or has ended.
    pub live: bool,
    pub finished: bool,
    pub phase: Box<str>,
    /// v1.PodStatus as JSON; empty while there is none.
    pub status: Box<[u8]>,
    pub static_pod: Box<[u8]>,
    pub may_delete: bool,
    pub containers_may_run: bool,
    /// The span that the status comes from, while traces are recorded.
    pub trace_parent: Box<str>,
}

impl Desired {
    /// Splits a state, as kubelet-syncd sends it, into what is wanted and what the API server was seen to have.
    ///
    /// # Errors
    /// A uid is none.
    pub fn of(state: PodState) -> Result<(Self, Option<ApiCopy>), IdError> {
        let worker = state.worker();
        let desired = Desired {
            is_static: state.is_static || matches!(state.source.as_str(), "file" | "http"),
            live: matches!(worker, WorkerState::Unspecified | WorkerState::Waiting | WorkerState::Sync),
            finished: worker == WorkerState::Finished,
            phase: state.phase.into_boxed_str(),
            uid: PodUid::parse(&state.uid)?,
            namespace: state.namespace,
            name: state.name,
            status: state.status_json.into_boxed_slice(),
            static_pod: state.static_pod_json.into_boxed_slice(),
            may_delete: state.may_delete,
            containers_may_run: state.containers_may_run,
            trace_parent: state.trace_parent.into_boxed_str(),
        };
        Ok((desired, state.api.map(ApiCopy::seen).transpose()?))
    }

    /// Whether work on it is under way: it starts, or its end has begun.
    pub fn is_busy(&self) -> bool {
        if self.live { &*self.phase == "Pending" } else { !self.finished }
    }

    /// Tells one wanted status from another.
    pub fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (&self.status, self.containers_may_run).hash(&mut hasher);
        hasher.finish()
    }
}

/// What a decision depends on beside the pod.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    /// The newest copy; `None`: the server has none.
    pub api: Option<&'a ApiCopy>,
    /// Who owns mirror pods; `None` while the node is not registered, is being deleted, or while it is not known whether
    /// there is a mirror pod.
    pub owner: Option<&'a Owner>,
    /// Another static pod of the same name has not ended: the mirror pod is still that one's.
    pub namesake: bool,
    /// No other static pod of the same name is known, not even one that has ended.
    pub is_only_one: bool,
    /// The final DELETE was accepted, and nothing happened to the object since.
    pub deletion_pending: bool,
    pub now: Timestamp,
}

/// How soon a patch is to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Urgency {
    Now,
    /// Nobody acts on it by itself; it may go with the next change.
    Minor,
}

/// The next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    Nothing,
    Patch {
        body: Vec<u8>,
        urgency: Urgency,
        /// Fingerprint of the status that it leads to, see [`fingerprint`].
        makes: u64,
        /// The pod has ended and may go once the server has been told this, whatever it makes of it.
        then_delete: bool,
    },
    /// The pod has ended and may go.
    DeletePod,
    DeleteMirror,
    CreateMirror {
        body: Vec<u8>,
    },
    /// kubelet-syncd said something that cannot be told; it is left until it says something else.
    Refused(Refusal),
}

/// Why nothing can be told.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("status is no JSON object")]
    Status,
    #[error("the API server's copy of the status is no JSON object")]
    Copy,
    #[error(transparent)]
    Transition(#[from] IllegalTransition),
    #[error(transparent)]
    Mirror(#[from] MirrorError),
}

/// Decides.
pub fn decide(desired: &Desired, around: Context<'_>) -> Decision {
    let decision = if desired.is_static { for_static(desired, around) } else { for_pod(desired, around) };
    decision.unwrap_or_else(Decision::Refused)
}

fn for_pod(desired: &Desired, around: Context<'_>) -> Result<Decision, Refusal> {
    // Another uid under the name, or a mirror pod, is not the pod that was run here.
    let Some(api) = around.api.filter(|api| api.uid == desired.uid && api.mirror_hash.is_empty()) else {
        return Ok(Decision::Nothing);
    };
    let old = parse(&api.status).ok_or(Refusal::Copy)?;
    let may_go = api.deleting && desired.may_delete && is_terminal(phase(&old));
    match patch(desired, api, &old, around.now)? {
        Decision::Nothing if may_go => Ok(Decision::DeletePod),
        // What nobody acts upon is not told of an object that goes now; of one that a finalizer holds it is.
        Decision::Patch { urgency: Urgency::Minor, .. } if may_go && !around.deletion_pending => {
            Ok(Decision::DeletePod)
        }
        Decision::Patch { body, urgency, makes, .. } => {
            Ok(Decision::Patch { body, urgency, makes, then_delete: may_go })
        }
        decision => Ok(decision),
    }
}

fn for_static(desired: &Desired, around: Context<'_>) -> Result<Decision, Refusal> {
    // What stands under the name and is no mirror pod is somebody's pod.
    if around.api.is_some_and(|api| api.mirror_hash.is_empty()) || desired.static_pod.is_empty() {
        return Ok(Decision::Nothing);
    }
    let pod = StaticPod::parse(&desired.static_pod)?;
    let fits = |api: &ApiCopy| api.mirror_hash == pod.hash && !api.deleting;
    match (around.api, around.owner) {
        (Some(api), _) if fits(api) => {
            let old = parse(&api.status).ok_or(Refusal::Copy)?;
            patch(desired, api, &old, around.now)
        }
        // It ended before its predecessor's mirror pod could be deleted, which nobody else does.
        (Some(api), _) if desired.finished && around.is_only_one && api.mirror_hash != pod.hash => {
            Ok(Decision::DeleteMirror)
        }
        _ if !desired.live || around.namesake => Ok(Decision::Nothing),
        (Some(_), _) => Ok(Decision::DeleteMirror),
        (None, Some(owner)) => Ok(Decision::CreateMirror { body: pod.mirror(owner).to_string().into_bytes() }),
        (None, None) => Ok(Decision::Nothing),
    }
}

fn patch(desired: &Desired, api: &ApiCopy, old: &Status, now: Timestamp) -> Result<Decision, Refusal> {
    if desired.status.is_empty() {
        return Ok(Decision::Nothing);
    }
    let new = parse(&desired.status).ok_or(Refusal::Status)?;
    let terms = Terms { containers_may_run: desired.containers_may_run, is_static: desired.is_static, now };
    let merged = merge(old, &new, terms)?;
    let change = diff(old, &merged);
    if is_order_only(&change) {
        return Ok(Decision::Nothing);
    }
    let urgency = urgency(&change);
    let body = json!({"metadata": {"uid": api.uid}, "status": change}).to_string().into_bytes();
    Ok(Decision::Patch { body, urgency, makes: fingerprint(&merged), then_delete: false })
}

/// Minor: the sandbox is ready before anything runs in it, a generation was noticed, the cgroup's numbers settled.
fn urgency(change: &Status) -> Urgency {
    let minor = change.iter().all(|(key, value)| match key.as_str() {
        "observedGeneration" | "resources" | "allocatedResources" => true,
        "conditions" => value.as_array().into_iter().flatten().all(is_minor_condition),
        key => key.starts_with(ORDER),
    });
    if minor { Urgency::Minor } else { Urgency::Now }
}

fn is_minor_condition(change: &Value) -> bool {
    let generation_only = change
        .as_object()
        .is_some_and(|fields| fields.keys().all(|key| matches!(key.as_str(), "type" | "observedGeneration")));
    generation_only || (change["type"] == "PodReadyToStartContainers" && change.get("$patch").is_none())
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
