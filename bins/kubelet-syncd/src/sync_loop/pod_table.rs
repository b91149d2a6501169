//! The table of pods' records: what this process has found out of each pod, behind one lock that is never held across a wait.
//! What is written of a pod without a record is dropped.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bulkhead_trace::TraceParent;
use bulkhead_types::{Epoch, PodUid};
use k8s_openapi::api::core::v1::PodStatus;
use kubelet_model::v1::Pod;
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use super::pod_records::{Incarnation, PodRecord, PodRecords, Prepared};
use crate::volumes::VolumeError;
use crate::volumes::back_off::{MountBackOff, MountRetry};
use crate::volumes::set_up::Outcomes;
use kubelet_model::pod::model::RuntimePod;
use kubelet_model::pod::spec::is_phase_terminal;
use kubelet_runtime::runtime::result::SyncResult;
use kubelet_runtime::status::pod_status;
use kubelet_runtime::status::reason_cache::StartFailure;

/// Shared by the main loop and all tasks.
#[derive(Debug, Default)]
pub struct PodTable {
    records: Mutex<PodRecords>,
}

impl PodTable {
    fn records(&self) -> MutexGuard<'_, PodRecords> {
        // No method panics between two writes.
        self.records.lock()
    }

    /// What one of those who may does to the record of a pod; nothing is done to that of a pod that is forgotten.
    fn with_record<T>(&self, uid: &PodUid, act: impl FnOnce(&mut PodRecord) -> T) -> Option<T> {
        self.records().get_mut(uid).map(act)
    }

    /// A source names the pod.
    pub fn begin(&self, uid: &PodUid) {
        self.records().begin(uid);
    }

    /// Which of the pods that have had this uid it is now; `None`: there is none.
    pub fn incarnation(&self, uid: &PodUid) -> Option<Incarnation> {
        self.records().incarnation(uid)
    }

    /// The last computed status.
    pub fn status(&self, uid: &PodUid) -> Option<Arc<PodStatus>> {
        self.records().get(uid)?.observed.status.clone()
    }

    pub fn set_status(&self, uid: &PodUid, status: Arc<PodStatus>) {
        self.with_record(uid, |record| record.observed.status = Some(status));
    }

    /// Callers are shown this from now on; `None`: something that is not to be compared with what comes next. Says whether it is what
    /// they are shown already.
    pub fn show(&self, uid: &PodUid, shows: Option<(&Arc<PodStatus>, &Arc<RuntimePod>)>) -> bool {
        let shown = self.with_record(uid, |record| {
            let before = &record.observed.shown;
            let is_same = match (before, shows) {
                (Some((status, runtime)), Some(shows)) => Arc::ptr_eq(status, shows.0) && Arc::ptr_eq(runtime, shows.1),
                _ => false,
            };
            if !is_same {
                record.observed.shown = shows.map(|(status, runtime)| (status.clone(), runtime.clone()));
            }
            is_same
        });
        shown == Some(true)
    }

    /// The pod's sandbox stands from now on.
    pub fn sandbox_made(&self, uid: &PodUid) {
        self.with_record(uid, |record| record.worker.sandbox_made = Some(Instant::now()));
    }

    /// Why the pod is being ended from outside, if it is.
    pub fn termination(&self, uid: &PodUid) -> Option<pod_status::TerminationReason> {
        self.records().get(uid)?.decided.termination.clone()
    }

    /// The pod is to end from outside; what was said first stays. False: something was said before.
    pub fn terminate_pod(&self, uid: &PodUid, termination: pod_status::TerminationReason) -> bool {
        let first = self.with_record(uid, |record| {
            let is_first = record.decided.termination.is_none();
            record.decided.termination.get_or_insert(termination);
            is_first
        });
        first == Some(true)
    }

    /// A number that is larger than every one before it.
    pub fn next_status_version(&self) -> u64 {
        self.records().next_status_version()
    }

    /// The pod has ended by its own status or by its configuration's.
    pub fn is_over(&self, uid: &PodUid, pod: &Pod) -> bool {
        let observed = || {
            self.records().get(uid).and_then(|record| record.observed.status.as_deref()).is_some_and(is_phase_terminal)
        };
        pod.status.as_ref().is_some_and(is_phase_terminal) || observed()
    }

    /// See [`WorkerFacts::prepared`](super::pod_records::WorkerFacts::prepared).
    pub fn prepared(&self, uid: &PodUid, pod: &Arc<Pod>, epoch: Epoch) -> Option<Prepared> {
        self.with_record(uid, |record| record.worker.prepared(pod, epoch)).flatten()
    }

    /// See [`WorkerFacts::replace_pod`](super::pod_records::WorkerFacts::replace_pod).
    pub fn replace_pod(&self, uid: &PodUid, pod: &Arc<Pod>) {
        self.with_record(uid, |record| record.worker.replace_pod(pod));
    }

    /// When the first token that the pod's volumes show is to be replaced.
    pub fn tokens_renew(&self, uid: &PodUid) -> Option<jiff::Timestamp> {
        self.records().get(uid)?.worker.tokens_renew()
    }

    pub fn set_prepared(&self, uid: &PodUid, prepared: Prepared) {
        self.with_record(uid, |record| record.worker.set_prepared(prepared));
    }

    pub fn drop_prepared(&self, uid: &PodUid) {
        self.with_record(uid, |record| record.worker.drop_prepared());
    }

    /// See [`SetUpOnce::settle`](crate::volumes::set_up_once::SetUpOnce::settle).
    pub fn volumes_set_up(
        &self,
        uid: &PodUid,
        outcomes: &mut Outcomes,
        tokens_renew: &mut Option<jiff::Timestamp>,
    ) -> Vec<VolumeError> {
        self.with_record(uid, |record| record.worker.set_up.settle(outcomes, tokens_renew)).unwrap_or_default()
    }

    /// The pod's volumes could not be had, for these reasons; `longest`: the longest wait. `None`: the pod is forgotten.
    pub fn volumes_failed(&self, uid: &PodUid, reasons: &[String], longest: Duration) -> Option<MountRetry> {
        let now = Instant::now();
        self.with_record(uid, |record| {
            record.worker.mounting.get_or_insert_with(|| MountBackOff::new(now)).failed(reasons, longest, now)
        })
    }

    pub fn volumes_ready(&self, uid: &PodUid) {
        self.with_record(uid, |record| record.worker.mounting = None);
    }

    /// Pods of which there is a record.
    pub fn known_pods(&self) -> Vec<PodUid> {
        self.records().uids().cloned().collect()
    }

    /// See [`WorkerFacts::synced`](super::pod_records::WorkerFacts::synced).
    pub fn synced(&self, uid: &PodUid, result: &SyncResult) {
        self.with_record(uid, |record| record.worker.synced(result));
    }

    /// Why containers of the pod could not be started, by their names.
    pub fn start_failures(&self, uid: &PodUid) -> HashMap<String, StartFailure> {
        self.records().get(uid).map(|record| record.worker.reasons.failures().clone()).unwrap_or_default()
    }

    /// Whether the pod's containers are being brought to what its spec says.
    pub fn is_in_sync(&self, uid: &PodUid) -> bool {
        self.records().get(uid).is_some_and(|record| record.worker.in_sync)
    }

    pub fn set_in_sync(&self, uid: &PodUid, in_sync: bool) {
        self.with_record(uid, |record| record.worker.in_sync = in_sync);
    }

    /// The first sight of a pod, for `kubelet_pod_start_duration_seconds`.
    pub fn first_seen(&self, uid: &PodUid) {
        self.with_record(uid, |record| {
            record.worker.first_seen.get_or_insert_with(Instant::now);
        });
    }

    /// Something of the pod is being changed; what comes of it is seen by the next work on it.
    pub fn will_cause(&self, uid: &PodUid) {
        if let Some(span) = bulkhead_trace::current() {
            self.with_record(uid, |record| record.worker.will_cause(span));
        }
    }

    /// The span of the change of which the effects are being seen now.
    pub fn cause(&self, uid: &PodUid) -> Option<TraceParent> {
        self.records().get(uid)?.worker.cause()
    }

    /// The pod has not been seen running yet, by this process.
    pub fn is_starting(&self, uid: &PodUid) -> bool {
        self.records().get(uid).is_none_or(|r| matches!(r.observed.shown_phase.as_str(), "" | "Pending"))
    }

    /// Other processes are shown this phase from now on; gives the one before it.
    pub fn show_phase(&self, uid: &PodUid, phase: &str) -> Option<String> {
        self.with_record(uid, |record| std::mem::replace(&mut record.observed.shown_phase, phase.to_owned()))
    }

    /// When a held-back container of the pod may start again.
    pub fn back_off_until(&self, uid: &PodUid, container: &str) -> Option<SystemTime> {
        self.records().get(uid)?.worker.back_off_until.get(container).copied()
    }

    /// Nothing of the pod is left.
    pub fn forget(&self, uid: &PodUid) {
        self.records().forget(uid);
    }

    /// When the pod's newest sandbox stood.
    pub fn newest_sandbox(&self, uid: &PodUid) -> Option<Instant> {
        self.records().get(uid)?.worker.sandbox_made
    }

    /// The pod was seen running: when it was seen first, which is given once.
    pub fn take_first_seen(&self, uid: &PodUid) -> Option<Instant> {
        self.with_record(uid, |record| record.worker.first_seen.take()).flatten()
    }
}
