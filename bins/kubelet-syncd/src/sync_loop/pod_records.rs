//! What this process has found out of each pod, in one record: made when a source names the pod, gone when nothing of the
//! pod is left. A uid may come back (a static pod's does), so each record has an incarnation: what is written of an
//! absent pod is dropped, and a task that may outlive its pod asks whether it is still the same one.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bulkhead_trace::TraceParent;
use bulkhead_types::{Epoch, PodUid};
use k8s_openapi::api::core::v1::PodStatus;
use kubelet_model::v1::Pod;
use tokio::time::Instant;

use crate::volumes::back_off::MountBackOff;
use crate::volumes::set_up::ContentHashes;
use crate::volumes::set_up_once::SetUpOnce;
use kubelet_model::pod::model::RuntimePod;
use kubelet_runtime::runtime::container_config::MountedVolumes;
use kubelet_runtime::runtime::result::{ActionResult, SyncResult};
use kubelet_runtime::status::pod_status;
use kubelet_runtime::status::reason_cache::ReasonCache;

/// Within this time what is seen of a pod comes of what was done last.
const EFFECTS_SEEN: Duration = Duration::from_secs(2);

/// Which of the pods that have had one uid, in the life of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Incarnation(u64);

/// What volnetd has made for a pod, valid for one life of volnetd and one version of the pod's spec.
#[derive(Debug, Clone)]
pub struct Prepared {
    pub epoch: Epoch,
    pub pod: Arc<Pod>,
    pub cgroup_parent: String,
    pub volumes: MountedVolumes,
    /// What the volumes with files from the API show.
    pub contents: ContentHashes,
    /// When the first token among them is to be replaced.
    pub tokens_renew: Option<jiff::Timestamp>,
}

/// A pod's facts, by who writes them.
#[derive(Debug)]
pub struct PodRecord {
    incarnation: Incarnation,
    /// The main loop.
    pub decided: Decided,
    /// The pod worker.
    pub worker: WorkerFacts,
    /// Whoever has looked at the runtime.
    pub observed: Observed,
}

#[derive(Debug, Default)]
pub struct Decided {
    /// Why the pod is ended from outside, if it is.
    pub termination: Option<pod_status::TerminationReason>,
}

#[derive(Debug, Default)]
pub struct WorkerFacts {
    /// First sight of the pod by its worker, until it was seen running.
    pub first_seen: Option<Instant>,
    /// When the pod's newest sandbox stood.
    pub sandbox_made: Option<Instant>,
    prepared: Option<Prepared>,
    /// What stays of the pod's volumes where preparing it again fails.
    pub set_up: SetUpOnce,
    /// The pod waits for its volumes.
    pub mounting: Option<MountBackOff>,
    /// Why the last attempts to start containers failed.
    pub reasons: ReasonCache,
    /// Until when containers are held back, by their names.
    pub back_off_until: HashMap<String, SystemTime>,
    /// The pod's containers are being brought to what its spec says.
    pub in_sync: bool,
    /// The span of the last work that has changed something, and when: the work that sees the change belongs to its trace.
    caused: Option<(TraceParent, Instant)>,
}

impl WorkerFacts {
    /// Something of the pod is being changed; what comes of it is seen by the next work on it.
    pub fn will_cause(&mut self, span: TraceParent) {
        self.caused = Some((span, Instant::now()));
    }

    /// The span of the change of which the effects are being seen now.
    pub fn cause(&self) -> Option<TraceParent> {
        self.caused.filter(|(_, since)| since.elapsed() < EFFECTS_SEEN).map(|(span, _)| span)
    }

    /// Takes in what came of a sync.
    pub fn synced(&mut self, result: &SyncResult) {
        self.reasons.update(result);
        let held = |action: &ActionResult| Some((action.target.clone(), action.error.as_ref()?.back_off_until?));
        self.back_off_until = result.actions.iter().filter_map(held).collect();
    }

    /// What was prepared, if it is still good for this pod in this life of volnetd.
    pub fn prepared(&mut self, pod: &Arc<Pod>, epoch: Epoch) -> Option<Prepared> {
        self.replace_pod(pod);
        self.prepared.clone().filter(|prepared| prepared.epoch == epoch && Arc::ptr_eq(&prepared.pod, pod))
    }

    pub fn set_prepared(&mut self, prepared: Prepared) {
        self.set_up.show(&prepared.contents, prepared.tokens_renew);
        self.prepared = Some(prepared);
    }

    /// The next sync prepares the pod again.
    pub fn drop_prepared(&mut self) {
        self.prepared = None;
    }

    /// When the first token that the pod's volumes show is to be replaced.
    pub fn tokens_renew(&self) -> Option<jiff::Timestamp> {
        self.prepared.as_ref()?.tokens_renew
    }

    /// What was made for another version of the pod with the same spec is for this one too: a status or a label that changes
    /// makes a new object, and only the spec says what is to be made.
    pub fn replace_pod(&mut self, pod: &Arc<Pod>) {
        // Mostly it is the same object: specs are compared where it is not.
        let Some(prepared) = self.prepared.as_mut().filter(|prepared| !Arc::ptr_eq(&prepared.pod, pod)) else { return };
        if prepared.pod.spec == pod.spec {
            prepared.pod = pod.clone();
        }
    }
}

#[derive(Debug, Default)]
pub struct Observed {
    /// The last computed status: the same object for as long as the same is computed.
    pub status: Option<Arc<PodStatus>>,
    /// What callers were shown last of a pod that lives, if nothing else has changed what they see since.
    pub shown: Option<(Arc<PodStatus>, Arc<RuntimePod>)>,
    /// The phase that other processes were shown last; empty: none yet.
    pub shown_phase: String,
}

/// The records of all pods.
#[derive(Debug, Default)]
pub struct PodRecords {
    pods: HashMap<PodUid, PodRecord>,
    begun: u64,
    /// Statuses shown so far.
    status_versions: u64,
}

impl PodRecords {
    /// There is such a pod. Nothing happens where there is a record of it.
    pub fn begin(&mut self, uid: &PodUid) {
        let begun = &mut self.begun;
        self.pods.entry(uid.clone()).or_insert_with(|| {
            *begun += 1;
            let incarnation = Incarnation(*begun);
            PodRecord {
                incarnation,
                decided: Decided::default(),
                worker: WorkerFacts::default(),
                observed: Observed::default(),
            }
        });
    }

    /// Nothing of the pod is left.
    pub fn forget(&mut self, uid: &PodUid) {
        self.pods.remove(uid);
    }

    /// A number that is larger than every one before it.
    pub fn next_status_version(&mut self) -> u64 {
        self.status_versions += 1;
        self.status_versions
    }

    pub fn get(&self, uid: &PodUid) -> Option<&PodRecord> {
        self.pods.get(uid)
    }

    /// For those who write while the pod is there: the main loop, and the pod's own worker, which ends before it is forgotten.
    pub fn get_mut(&mut self, uid: &PodUid) -> Option<&mut PodRecord> {
        self.pods.get_mut(uid)
    }

    pub fn uids(&self) -> impl Iterator<Item = &PodUid> {
        self.pods.keys()
    }

    pub fn incarnation(&self, uid: &PodUid) -> Option<Incarnation> {
        self.pods.get(uid).map(|record| record.incarnation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uid() -> PodUid {
        PodUid::parse("a").unwrap()
    }

    fn status(phase: &str) -> Arc<PodStatus> {
        Arc::new(PodStatus { phase: Some(phase.to_owned()), ..PodStatus::default() })
    }

    #[test]
    fn what_is_written_of_a_forgotten_pod_is_dropped() {
        let mut records = PodRecords::default();
        assert!(records.get_mut(&uid()).is_none());
        records.begin(&uid());
        records.get_mut(&uid()).unwrap().observed.status = Some(status("Succeeded"));
        records.begin(&uid());
        assert_eq!(records.get(&uid()).unwrap().observed.status, Some(status("Succeeded")), "it had begun already");
        records.forget(&uid());
        assert!(records.get_mut(&uid()).is_none());
    }

    #[test]
    fn a_uid_that_comes_back_is_another_pod() {
        let mut records = PodRecords::default();
        records.begin(&uid());
        let first = records.incarnation(&uid());
        records.forget(&uid());
        assert_eq!(records.incarnation(&uid()), None);
        records.begin(&uid());
        assert!(first.is_some() && records.incarnation(&uid()).is_some() && records.incarnation(&uid()) != first);
        assert_eq!(records.get(&uid()).unwrap().observed.status, None);
    }
}
