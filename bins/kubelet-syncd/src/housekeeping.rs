//! What is left over, and what may be done about it. Pure: facts in, a plan out; the main loop carries it out.
//!
//! Nothing here runs before every source has delivered. A pod of the runtime is ended only when no worker knows it and it
//! is this instance's ([`crate::ownership`]).

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use bulkhead_types::PodUid;

use crate::ownership::Owner;
use crate::pod::model::RuntimePod;
use crate::pod_workers::state::Known;

/// Grace period of pods that nobody knows, seconds (upstream: 1).
pub const ORPHAN_GRACE: u64 = 1;

/// What housekeeping is to do.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Pods that are wanted and have no worker (any more): create them.
    pub create: Vec<PodUid>,
    /// The same of pods that are over: their worker has nothing to start, but what they are is shown and their end is seen
    /// through. Upstream leaves them until they change.
    pub show: Vec<PodUid>,
    /// Pods of the runtime that no worker knows: end them. With their full names.
    pub kill: Vec<(PodUid, String)>,
    /// Pods that no worker knows and of which it is not known whose they are: the runtime is to be asked.
    pub ask: Vec<Arc<RuntimePod>>,
    /// Pods that are somebody's concern: a source names them, a pod worker knows them, or something of theirs runs. What
    /// belongs to any other pod may be removed (`SyncLoop::start_prune`).
    pub known: HashSet<PodUid>,
}

/// Decides. `workers`: what the pod workers know after their own pass; `inside`: wanted pods that were let in; `over`:
/// those that have ended by their own status; `owner`: None where it is not known yet.
pub fn plan(
    workers: &BTreeMap<PodUid, Known>,
    inside: &HashSet<PodUid>,
    over: &HashSet<PodUid>,
    desired: &HashSet<PodUid>,
    runtime: &[(PodUid, Arc<RuntimePod>)],
    owner: impl Fn(&RuntimePod) -> Option<Owner>,
) -> Plan {
    let mut alone: Vec<PodUid> = inside.iter().filter(|uid| !workers.contains_key(*uid)).cloned().collect();
    alone.sort();
    let (show, create) = alone.into_iter().partition(|uid| over.contains(uid));
    let (mut kill, mut ask) = (Vec::new(), Vec::new());
    let orphans = runtime.iter().filter(|(uid, _)| !workers.contains_key(uid) && !desired.contains(uid));
    for (uid, pod) in orphans.filter(|(_, pod)| is_alive(pod)) {
        match owner(pod) {
            Some(Owner::Ours) => kill.push((uid.clone(), format!("{}_{}", pod.name, pod.namespace))),
            Some(Owner::Foreign | Owner::Unclear) => {}
            None => ask.push(pod.clone()),
        }
    }
    let mut known: HashSet<PodUid> = desired.union(&workers.keys().cloned().collect()).cloned().collect();
    known.extend(runtime.iter().filter(|(_, pod)| is_alive(pod)).map(|(uid, _)| uid.clone()));
    Plan { create, show, kill, ask, known }
}

/// Something of it runs.
fn is_alive(pod: &RuntimePod) -> bool {
    pod.has_ready_sandbox() || pod.running().next().is_some()
}

/// A pass that found something to do is followed by another one soon; else events tell.
pub fn is_settled(plan: &Plan, workers: &BTreeMap<PodUid, Known>) -> bool {
    plan.create.is_empty()
        && plan.show.is_empty()
        && plan.kill.is_empty()
        && plan.ask.is_empty()
        && workers.values().all(|known| !known.orphan)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::model::{SandboxState, SandboxStatus};
    use crate::pod_workers::Lifecycle;
    use bulkhead_types::SandboxId;

    fn uid(text: &str) -> PodUid {
        PodUid::parse(text).unwrap()
    }

    fn sandbox(state: SandboxState) -> Arc<RuntimePod> {
        let status = SandboxStatus {
            id: SandboxId::parse("s").unwrap(),
            attempt: 0,
            state,
            created_at: std::time::SystemTime::UNIX_EPOCH,
            host_network: false,
            has_network: true,
            ips: Vec::new(),
        };
        Arc::new(RuntimePod {
            name: "p".into(),
            namespace: "n".into(),
            sandboxes: vec![status],
            ..RuntimePod::default()
        })
    }

    fn named(name: &str) -> Arc<RuntimePod> {
        Arc::new(RuntimePod { name: name.into(), ..sandbox(SandboxState::Ready).as_ref().clone() })
    }

    #[test]
    fn only_unknown_living_pods_of_ours_are_ended() {
        let known = |orphan| Known { lifecycle: Lifecycle::Sync, orphan, has_config: true, is_static: true };
        let workers = BTreeMap::from([(uid("worker"), known(false))]);
        let desired = HashSet::from([uid("worker"), uid("wanted"), uid("ended"), uid("over")]);
        let workers = workers.into_iter().chain([(uid("over"), known(false))]).collect();
        let over = HashSet::from([uid("ended"), uid("over")]);
        let runtime = [
            (uid("worker"), sandbox(SandboxState::Ready)),
            (uid("wanted"), sandbox(SandboxState::Ready)),
            (uid("dead"), sandbox(SandboxState::NotReady)),
            (uid("orphan"), sandbox(SandboxState::Ready)),
            (uid("theirs"), named("theirs")),
            (uid("unclear"), named("unclear")),
            (uid("unasked"), named("unasked")),
        ];
        let plan = plan(&workers, &desired, &over, &desired, &runtime, |pod| match pod.name.as_str() {
            "theirs" => Some(Owner::Foreign),
            "unclear" => Some(Owner::Unclear),
            "unasked" => None,
            _ => Some(Owner::Ours),
        });
        assert_eq!((plan.create.as_slice(), plan.show.as_slice()), (&[uid("wanted")][..], &[uid("ended")][..]));
        assert_eq!(plan.kill, [(uid("orphan"), "p_n".to_owned())]);
        assert_eq!(
            plan.known,
            ["worker", "wanted", "ended", "over", "orphan", "theirs", "unclear", "unasked"].map(uid).into()
        );
        assert_eq!(plan.ask, [named("unasked")]);
        let asks = Plan { ask: vec![named("unasked")], ..Plan::default() };
        assert!(!is_settled(&asks, &workers));
        assert!(!is_settled(&plan, &workers));
        assert!(is_settled(&Plan::default(), &workers));
        assert!(!is_settled(&Plan::default(), &BTreeMap::from([(uid("x"), known(true))])));
    }
}
