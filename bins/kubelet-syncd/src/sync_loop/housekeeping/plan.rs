//! Which desired pods get a worker again, and which of the runtime's pods are killed (upstream `HandlePodCleanups`). Pure: facts in,
//! a plan out; the main loop carries it out.
//!
//! Nothing here runs before every source has delivered. A pod of the runtime is killed only where no pod worker knows it, no
//! source names it, it is not that of a manifest that could not be taken, and it is this instance's ([`crate::ownership`]).

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use bulkhead_types::PodUid;

use crate::desired::DesiredPods;
use crate::ownership::Owner;
use crate::pod_workers::Workers;
use crate::pod_workers::state::PodWorkerSync;
use crate::sources::Sources;
use kubelet_model::pod::model::RuntimePod;

/// Grace period of orphaned pods, seconds (upstream: 1).
pub const ORPHAN_GRACE: u64 = 1;

/// What housekeeping is to do.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Admitted pods without a pod worker: they are started.
    pub restart: Vec<PodUid>,
    /// The same of pods that have ended: their worker has nothing to start, but their status is shown and their end is seen
    /// through. Upstream leaves them until they change.
    pub show: Vec<PodUid>,
    /// Orphaned pods, which are killed. With their full names.
    pub kill: Vec<(PodUid, String)>,
    /// Those that are left alone, because their manifest may be one that could not be taken. With their full names.
    pub spared: Vec<(PodUid, String)>,
    /// Pods of the runtime that no worker knows and of which the owner is not known: the runtime is asked.
    pub ask: Vec<Arc<RuntimePod>>,
    /// Pods that a source names, that a pod worker knows, or of which something runs. What belongs to any other pod may be
    /// removed (`SyncLoop::start_prune`).
    pub known: HashSet<PodUid>,
}

/// What a plan is made of.
#[derive(Clone, Copy)]
pub struct PlanInputs<'a> {
    /// What the pod workers know after their own pass.
    pub workers: &'a BTreeMap<PodUid, PodWorkerSync>,
    /// All pods that sources name.
    pub desired: &'a HashSet<PodUid>,
    /// Those of them that were admitted.
    pub admitted: &'a HashSet<PodUid>,
    /// Those of them that have ended by their own status.
    pub ended: &'a HashSet<PodUid>,
    pub runtime: &'a [(PodUid, Arc<RuntimePod>)],
    /// None where it is not known yet.
    pub owner: &'a dyn Fn(&RuntimePod) -> Option<Owner>,
    /// The pod's manifest may be one that could not be taken.
    pub spares: &'a dyn Fn(&PodUid) -> bool,
}

/// Decides.
pub fn plan(inputs: &PlanInputs<'_>) -> Plan {
    let PlanInputs { workers, desired, admitted, ended, runtime, owner, spares } = *inputs;
    let mut alone: Vec<PodUid> = admitted.iter().filter(|uid| !workers.contains_key(*uid)).cloned().collect();
    alone.sort();
    let (show, restart) = alone.into_iter().partition(|uid| ended.contains(uid));
    let (mut kill, mut spared, mut ask) = (Vec::new(), Vec::new(), Vec::new());
    let orphans = runtime.iter().filter(|(uid, _)| !workers.contains_key(uid) && !desired.contains(uid));
    for (uid, pod) in orphans.filter(|(_, pod)| is_alive(pod)) {
        match owner(pod) {
            Some(Owner::Ours) if spares(uid) => spared.push((uid.clone(), format!("{}_{}", pod.name, pod.namespace))),
            Some(Owner::Ours) => kill.push((uid.clone(), format!("{}_{}", pod.name, pod.namespace))),
            Some(Owner::Foreign | Owner::Unclear) => {}
            None => ask.push(pod.clone()),
        }
    }
    let mut known: HashSet<PodUid> = desired.union(&workers.keys().cloned().collect()).cloned().collect();
    known.extend(runtime.iter().filter(|(_, pod)| is_alive(pod)).map(|(uid, _)| uid.clone()));
    Plan { restart, show, kill, spared, ask, known }
}

/// All that has ended of the pod may go: its dead containers beyond those that are kept of each, its empty sandboxes, its logs.
pub fn is_removable<P: Clone>(workers: &Workers<P>, desired: &DesiredPods, sources: &Sources, uid: &PodUid) -> bool {
    workers.content_should_be_removed(uid) && (desired.get(uid).is_some() || !sources.spares(uid))
}

/// Something of it runs.
pub fn is_alive(pod: &RuntimePod) -> bool {
    pod.has_ready_sandbox() || pod.running().next().is_some()
}

/// A pass that found something to do is followed by another one soon; else events tell.
pub fn is_settled(plan: &Plan, workers: &BTreeMap<PodUid, PodWorkerSync>) -> bool {
    plan.restart.is_empty()
        && plan.show.is_empty()
        && plan.kill.is_empty()
        // Whether it is still to be spared no event tells.
        && plan.spared.is_empty()
        && plan.ask.is_empty()
        && workers.values().all(|known| !known.orphan)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::desired::Desired;
    use crate::pod_workers::Lifecycle;
    use crate::sources::file::{Change, Content, Entry, EntryKind, FileConfig, Listing, ManifestStore, StoreError};
    use crate::sources::uids::Forgetful;
    use crate::sources::{FoundPod, SetSink as _, SourcesConfig};
    use bulkhead_types::{NodeName, SandboxId};
    use kubelet_model::pod::model::{SandboxState, SandboxStatus};
    use kubelet_model::pod::source::SourceKind;
    use kubelet_model::v1::Pod;
    use serde_json::json;
    use std::time::Duration;
    use tokio::time::Instant;

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

    /// A folder with one file that cannot be taken.
    struct Refused;

    impl ManifestStore for Refused {
        async fn list(&mut self) -> Result<Listing, StoreError> {
            let entries = vec![Entry { name: "web.yaml".into(), kind: EntryKind::Regular }];
            Ok(Listing::Folder { device: 1, entries })
        }

        async fn read(&mut self, _: &str) -> Result<Content, StoreError> {
            Ok(Content::Bytes(b"x: [".to_vec()))
        }

        async fn changed(&mut self) -> Change {
            std::future::pending().await
        }
    }

    #[tokio::test]
    async fn of_a_pod_that_is_spared_nothing_goes_when_one_of_its_containers_dies() {
        let found = |name: &str| FoundPod::of_file(name, "default", &format!("{name}-n"));
        let config = SourcesConfig {
            node: NodeName::parse("n").unwrap().into(),
            file: Some(FileConfig { path: "/m".into(), check_every: Duration::from_secs(20) }),
            http: None,
            api: true,
            running: vec![found("spared"), found("rejected")],
        };
        let (sources, mut updates) = Sources::start(config, Refused, Box::new(Forgetful), Arc::new(|_| {}));
        assert_eq!(updates.recv().await.unwrap().source, SourceKind::File);
        let wanted: Pod = serde_json::from_value(json!({"metadata": {"uid": "unheard", "name": "unheard"}})).unwrap();
        assert!(sources.api_sender().unwrap().set(vec![wanted.clone()]).await);
        assert_eq!(updates.recv().await.unwrap().source, SourceKind::Api);
        let mut desired = DesiredPods::default();
        let pod = Arc::new(wanted);
        desired.insert(uid("rejected"), Desired { pod: pod.clone(), asked: pod, source: SourceKind::File });
        let mut workers = Workers::<()>::default();
        let all = ["spared", "unheard", "rejected", "orphan"].map(uid);
        let removable = |workers: &Workers<()>| -> Vec<&PodUid> {
            all.iter().filter(|uid| is_removable(workers, &desired, &sources, uid)).collect()
        };
        assert!(removable(&workers).is_empty(), "before the first pass nobody knows what is wanted");
        workers.sync_known(&desired.uids(), Instant::now());
        assert_eq!(removable(&workers), [&all[2], &all[3]]);
    }

    #[test]
    fn only_orphaned_pods_of_ours_that_run_are_killed() {
        let known = |orphan| PodWorkerSync { lifecycle: Lifecycle::Sync, orphan, has_config: true, is_static: true };
        let workers = BTreeMap::from([(uid("worker"), known(false))]);
        let desired = HashSet::from([uid("worker"), uid("wanted"), uid("ended"), uid("over")]);
        let workers = workers.into_iter().chain([(uid("over"), known(false))]).collect();
        let ended = HashSet::from([uid("ended"), uid("over")]);
        let runtime = [
            (uid("worker"), sandbox(SandboxState::Ready)),
            (uid("wanted"), sandbox(SandboxState::Ready)),
            (uid("dead"), sandbox(SandboxState::NotReady)),
            (uid("orphan"), sandbox(SandboxState::Ready)),
            (uid("spared"), sandbox(SandboxState::Ready)),
            (uid("theirs"), named("theirs")),
            (uid("unclear"), named("unclear")),
            (uid("unasked"), named("unasked")),
        ];
        let owner = |pod: &RuntimePod| match pod.name.as_str() {
            "theirs" => Some(Owner::Foreign),
            "unclear" => Some(Owner::Unclear),
            "unasked" => None,
            _ => Some(Owner::Ours),
        };
        // What somebody wants or what is not ours does not depend on it.
        let spares = |pod: &PodUid| *pod != uid("orphan");
        let plan = plan(&PlanInputs {
            workers: &workers,
            desired: &desired,
            admitted: &desired,
            ended: &ended,
            runtime: &runtime,
            owner: &owner,
            spares: &spares,
        });
        assert_eq!((plan.restart.as_slice(), plan.show.as_slice()), (&[uid("wanted")][..], &[uid("ended")][..]));
        assert_eq!(plan.kill, [(uid("orphan"), "p_n".to_owned())]);
        assert_eq!(plan.spared, [(uid("spared"), "p_n".to_owned())]);
        assert_eq!(
            plan.known,
            ["worker", "wanted", "ended", "over", "orphan", "spared", "theirs", "unclear", "unasked"].map(uid).into()
        );
        assert_eq!(plan.ask, [named("unasked")]);
        let asks = Plan { ask: vec![named("unasked")], ..Plan::default() };
        assert!(!is_settled(&asks, &workers));
        let spares = Plan { spared: plan.spared.clone(), ..Plan::default() };
        assert!(!is_settled(&spares, &workers));
        assert!(!is_settled(&plan, &workers));
        assert!(is_settled(&Plan::default(), &workers));
        assert!(!is_settled(&Plan::default(), &BTreeMap::from([(uid("x"), known(true))])));
    }
}
