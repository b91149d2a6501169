//! What all work on pods shares: facts that never change, clients of other processes and of the runtime, and the table of pods'
//! records, under a lock that is never held across a wait.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use bulkhead_config::NodeConfig;
use bulkhead_ipc::volnetd::SetQosRequest;
use bulkhead_trace::TraceParent;
use bulkhead_types::{Epoch, PodUid, Quantity};
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use tokio::sync::watch;
use tokio::time::Instant;

use super::events::Reporter;
use super::pod_records::{Incarnation, PodRecord, PodRecords, Prepared};
use super::prune_gate::PruneGate;
use super::runtime_health::RuntimeHealth;
use super::termination_messages::TerminationMessages;
use crate::cgroups::Capacity;
use crate::hub::PodHub;
use crate::metrics::Metrics;
use crate::ownership::Ownership;
use crate::volumes::back_off::{MountBackOff, MountRetry};
use kubelet_edges::volnetd::Volnetd;
use kubelet_model::node_facts::{NodeFacts, SharedFacts};
use kubelet_model::objects::Objects;
use kubelet_pleg::{Pleg, PodCache};
use kubelet_probes::prober::Prober;
use kubelet_runtime::allocation::Allocations;
use kubelet_runtime::runtime::result::SyncResult;
use kubelet_runtime::status::pod_status;
use kubelet_runtime::status::reason_cache::StartFailure;

/// Shared by the main loop and all tasks.
#[derive(Debug)]
pub struct NodeContext {
    pub config: Arc<NodeConfig>,
    facts: SharedFacts,
    pub capacity: Capacity,
    /// `kubeReserved` and `systemReserved` together.
    pub reserved: BTreeMap<String, Quantity>,
    /// `enforceNodeAllocatable` has `pods`.
    pub enforce_pods: bool,
    /// Memory that pods may have in sum, bytes.
    pub allocatable_memory: u64,
    pub sync_frequency: Duration,
    pub volnetd: Volnetd,
    /// What pods name on the API server.
    pub objects: Arc<dyn Objects>,
    pub pleg: Pleg,
    pub cache: Arc<PodCache>,
    pub health: watch::Receiver<RuntimeHealth>,
    pub hub: Arc<PodHub>,
    pub reporter: Arc<Reporter>,
    pub metrics: Metrics,
    pub runtime: super::RuntimeSide,
    pub prober: Arc<Prober>,
    pub termination_messages: TerminationMessages,
    pub ownership: Arc<Ownership>,
    /// What pods were granted, and what they have.
    pub allocations: Arc<Allocations>,
    /// As the runtime says; empty: the configured one.
    pub cgroup_driver: String,
    /// Start of the process: what the cache says from then on may be relied on.
    pub started: Instant,
    /// volnetd's life in which the top of the cgroup tree is in place.
    pub cgroups: watch::Receiver<Option<Epoch>>,
    /// The values of the QoS levels that were written last; absent: they are not known. Held while they are written.
    pub qos_written: tokio::sync::Mutex<Option<SetQosRequest>>,
    pub prune_gate: PruneGate,
    records: Mutex<PodRecords>,
    last_turn: Mutex<Option<Instant>>,
}

/// Everything that is given at the start.
#[derive(Debug)]
pub struct NodeParts {
    pub config: Arc<NodeConfig>,
    pub facts: SharedFacts,
    pub capacity: Capacity,
    pub reserved: BTreeMap<String, Quantity>,
    pub allocatable_memory: u64,
    pub volnetd: Volnetd,
    pub objects: Arc<dyn Objects>,
    pub pleg: Pleg,
    pub health: watch::Receiver<RuntimeHealth>,
    pub reporter: Arc<Reporter>,
    pub metrics: Metrics,
    pub runtime: super::RuntimeSide,
    pub prober: Arc<Prober>,
    pub termination_messages: TerminationMessages,
    pub ownership: Arc<Ownership>,
    pub allocations: Arc<Allocations>,
    pub cgroup_driver: String,
    pub started: Instant,
    pub cgroups: watch::Receiver<Option<Epoch>>,
}

impl NodeContext {
    pub fn new(parts: NodeParts) -> Self {
        let enforce = &parts.config.kubelet.enforce_node_allocatable;
        NodeContext {
            enforce_pods: enforce.iter().any(|what| what == "pods"),
            sync_frequency: parts.config.sync_frequency(),
            cache: parts.pleg.cache(),
            hub: parts.reporter.hub.clone(),
            config: parts.config,
            facts: parts.facts,
            capacity: parts.capacity,
            reserved: parts.reserved,
            allocatable_memory: parts.allocatable_memory,
            volnetd: parts.volnetd,
            objects: parts.objects,
            pleg: parts.pleg,
            health: parts.health,
            reporter: parts.reporter,
            metrics: parts.metrics,
            runtime: parts.runtime,
            prober: parts.prober,
            termination_messages: parts.termination_messages,
            ownership: parts.ownership,
            allocations: parts.allocations,
            cgroup_driver: parts.cgroup_driver,
            started: parts.started,
            cgroups: parts.cgroups,
            qos_written: tokio::sync::Mutex::default(),
            prune_gate: PruneGate::default(),
            records: Mutex::default(),
            last_turn: Mutex::default(),
        }
    }

    fn records(&self) -> MutexGuard<'_, PodRecords> {
        // No method panics between two writes.
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The facts as they are now.
    pub fn facts(&self) -> Arc<NodeFacts> {
        self.facts.get()
    }

    /// Sees each change of them.
    pub fn watch_facts(&self) -> watch::Receiver<Arc<NodeFacts>> {
        self.facts.watch()
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
    pub fn status(&self, uid: &PodUid) -> Option<PodStatus> {
        self.records().get(uid)?.observed.status.clone()
    }

    pub fn set_status(&self, uid: &PodUid, status: PodStatus) {
        self.with_record(uid, |record| record.observed.status = Some(status));
    }

    /// The pod's sandbox stands from now on.
    pub fn sandbox_made(&self, uid: &PodUid) {
        self.with_record(uid, |record| record.worker.sandbox_made = Some(Instant::now()));
    }

    /// Whether the runtime's picture of the pod may be from before its sandbox stood.
    pub fn knows_of_newer_sandbox(&self, uid: &PodUid) -> bool {
        let made = self.records().get(uid).and_then(|record| record.worker.sandbox_made);
        made.is_some_and(|made| !self.cache.is_since(uid, made))
    }

    /// Why the pod is being ended from outside, if it is.
    pub fn termination(&self, uid: &PodUid) -> Option<pod_status::TerminationReason> {
        self.records().get(uid)?.decided.termination.clone()
    }

    /// The pod is to end as failed; what was said first stays. False: something was said before.
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
        let over = |status: &PodStatus| matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
        let observed = || self.records().get(uid).and_then(|record| record.observed.status.as_ref()).is_some_and(over);
        pod.status.as_ref().is_some_and(over) || observed()
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
        self.records().get(uid)?.worker.prepared.as_ref()?.tokens_renew
    }

    pub fn set_prepared(&self, uid: &PodUid, prepared: Prepared) {
        self.with_record(uid, |record| record.worker.prepared = Some(prepared));
    }

    pub fn drop_prepared(&self, uid: &PodUid) {
        self.with_record(uid, |record| record.worker.prepared = None);
    }

    /// The pod's volumes could not be had, for these reasons. `None`: the pod is forgotten.
    pub fn volumes_failed(&self, uid: &PodUid, reasons: &[String]) -> Option<MountRetry> {
        let now = Instant::now();
        self.with_record(uid, |record| {
            record.worker.mounting.get_or_insert_with(|| MountBackOff::new(now)).failed(reasons, now)
        })
    }

    pub fn volumes_ready(&self, uid: &PodUid) {
        self.with_record(uid, |record| record.worker.mounting = None);
    }

    /// Nothing of the pod is left: callers are told, and its uid may come back as a new pod.
    pub fn forget(&self, uid: &PodUid) {
        self.records().forget(uid);
        self.objects.unregister_pod(uid);
        self.allocations.forget(uid);
        self.prober.forget(uid);
        self.hub.remove(uid);
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

    pub fn started_running(&self, uid: &PodUid) {
        let seen = self.with_record(uid, |record| record.worker.first_seen.take()).flatten();
        if let Some(seen) = seen {
            self.metrics.pod_start.observe(seen.elapsed().as_secs_f64());
        }
    }

    /// The main loop has turned.
    pub fn turned(&self) {
        *self.last_turn.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Since the main loop's last turn.
    pub fn loop_age(&self) -> Duration {
        let last = *self.last_turn.lock().unwrap_or_else(PoisonError::into_inner);
        last.map_or(Duration::ZERO, |at| at.elapsed())
    }

    /// The limit on all pods together is wanted, and volnetd has set it.
    pub fn limits_pods(&self) -> bool {
        self.enforce_pods && self.cgroups.borrow().is_some()
    }

    /// Waits until volnetd can take verbs for pods; answers its epoch.
    pub async fn cgroups_ready(&self) -> Option<Epoch> {
        let mut cgroups = self.cgroups.clone();
        cgroups.wait_for(Option::is_some).await.ok().and_then(|epoch| *epoch)
    }

    /// When a held-back container of the pod may start again.
    pub fn back_off_until(&self, uid: &PodUid, container: &str) -> Option<SystemTime> {
        self.records().get(uid)?.worker.back_off_until.get(container).copied()
    }
}
