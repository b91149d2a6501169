//! All workers, what their pods' statuses say, and what is due: the prober's state. No I/O, no waiting.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bulkhead_types::{ContainerId, PodUid};
use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};
use kubelet_model::v1::{Container, Pod};
use tokio::time::Instant;

use super::act::{Attempt, Outcome};
use super::journal::{self, Restored};
use super::metrics::{ProbeMetrics, Series};
use super::results::{ProbeResult, ProbeResults};
use super::schedule::{Beat, Queue, WorkerId};
use super::spec::{ProbeSpec, probe_of};
use super::worker::{Memory, ProbeKind, ProbeOutcome, Sight, Target, TargetState, Tick, Worker};
use kubelet_model::events::{EventType, PodEvent};
use kubelet_model::pod::model::RuntimePod;
use kubelet_model::pod::restart::{may_restart, triggers_restart_all};
use kubelet_model::pod::spec::{
    ContainerKind, PodIdentity, containers, host_network, init_containers, is_deleted, is_phase_terminal, is_sidecar,
};

/// What is due so soon is done with what is due now: fewer wake-ups, and nobody sees the difference.
const TOGETHER: Duration = Duration::from_millis(10);

/// When this process began, by both clocks.
#[derive(Debug, Clone, Copy)]
pub struct Started {
    pub instant: Instant,
    pub time: SystemTime,
}

/// Where probes without a host go; empty: nowhere yet. A pod of the machine's network that has no address, as before a cloud has named the
/// Node's, is reached on this machine all the same (Go dials the local system where upstream's prober names no host).
fn address(pod: &Pod, status: &PodStatus) -> String {
    let local = || host_network(pod).then(|| "127.0.0.1".to_owned());
    status.pod_ip.clone().filter(|ip| !ip.is_empty()).or_else(local).unwrap_or_default()
}

/// One probe of one container.
#[derive(Debug)]
struct Slot {
    uid: PodUid,
    identity: PodIdentity,
    list: ContainerKind,
    container: String,
    worker: Worker,
    spec: Arc<ProbeSpec>,
    beat: Beat,
    /// Where it stands in the queue; None while its probe is made.
    queued: Option<Instant>,
    /// It has had its first beat; before that nothing hurries it.
    begun: bool,
    /// Somebody asked for a probe while one was made.
    hurried: bool,
    series: Series,
}

/// What the status of a pod with probes says.
#[derive(Debug, Default)]
struct PodState {
    is_over: bool,
    is_deleted: bool,
    ip: String,
    targets: HashMap<String, Target>,
}

/// What has changed for others since they asked last.
#[derive(Debug, Default)]
struct News {
    /// Pods that have not heard of a new result, which is not kept yet.
    unsaved: HashSet<PodUid>,
    /// A result of which its pod has heard is not kept.
    told: bool,
    /// A count changed.
    counts: bool,
}

/// The state.
#[derive(Debug)]
pub struct Table {
    began: Started,
    metrics: ProbeMetrics,
    slots: HashMap<WorkerId, Slot>,
    by_pod: HashMap<PodUid, Vec<WorkerId>>,
    seen: HashMap<PodUid, PodState>,
    queue: Queue,
    next_id: WorkerId,
    restored: Restored,
    news: News,
}

impl Table {
    pub fn new(began: Started, metrics: ProbeMetrics, restored: Restored) -> Self {
        Table {
            began,
            metrics,
            slots: HashMap::new(),
            by_pod: HashMap::new(),
            seen: HashMap::new(),
            queue: Queue::default(),
            next_id: 0,
            restored,
            news: News::default(),
        }
    }

    /// Workers for the probes that have none yet. `dice` gives fractions of 1. True: somebody is due sooner than it was.
    pub fn add(&mut self, uid: &PodUid, pod: &Pod, now: Instant, mut dice: impl FnMut() -> f64) -> bool {
        let Ok(identity) = PodIdentity::of(pod) else { return false };
        let sidecars = init_containers(pod).iter().filter(|c| is_sidecar(c)).map(|c| (ContainerKind::Init, c));
        let regular = containers(pod).iter().map(|c| (ContainerKind::Regular, c));
        let mut sooner = false;
        for (list, container) in regular.chain(sidecars) {
            if self.has_ended(uid, &container.name) {
                continue;
            }
            for kind in ProbeKind::ALL {
                let Some(probe) = probe_of(container, kind) else { continue };
                if self.find(uid, &container.name, kind).is_some() {
                    continue;
                }
                let spec = Arc::new(ProbeSpec::of(container, probe));
                // All probes of a node at once, and again each period, is what a start must not come to.
                let is_fresh = now.saturating_duration_since(self.began.instant) < spec.period;
                let first = if is_fresh { now + spec.period.mul_f64(dice()) } else { now };
                sooner |= self.insert(&identity, list, &container.name, kind, spec, first);
            }
        }
        sooner
    }

    fn insert(
        &mut self,
        identity: &PodIdentity,
        list: ContainerKind,
        container: &str,
        kind: ProbeKind,
        spec: Arc<ProbeSpec>,
        first: Instant,
    ) -> bool {
        let PodIdentity { uid, namespace, name } = identity;
        let labels = [kind.as_str(), container, name.as_str(), namespace.as_str(), uid.as_str()];
        let slot = Slot {
            uid: uid.clone(),
            identity: identity.clone(),
            list,
            container: container.to_owned(),
            worker: Worker::new(kind, spec.rules),
            beat: Beat::new(first, spec.period),
            spec,
            queued: Some(first),
            begun: false,
            hurried: false,
            series: Series::new(&self.metrics, labels.map(str::to_owned)),
        };
        let id = self.next_id;
        self.next_id += 1;
        self.slots.insert(id, slot);
        self.by_pod.entry(uid.clone()).or_default().push(id);
        self.queue.insert(first, id)
    }

    fn has_ended(&self, uid: &PodUid, container: &str) -> bool {
        let Some(seen) = self.seen.get(uid) else { return false };
        let ended = |t: &Target| t.state == TargetState::Ended { restarts: false };
        seen.is_over || seen.targets.get(container).is_some_and(ended)
    }

    fn ids(&self, uid: &PodUid) -> &[WorkerId] {
        self.by_pod.get(uid).map_or(&[], Vec::as_slice)
    }

    fn find(&self, uid: &PodUid, container: &str, kind: ProbeKind) -> Option<WorkerId> {
        let is_it = |slot: &Slot| slot.container == container && slot.worker.kind() == kind;
        self.ids(uid).iter().copied().find(|id| self.slots.get(id).is_some_and(is_it))
    }

    fn remove_where(&mut self, uid: &PodUid, ends: impl Fn(ContainerKind, ProbeKind) -> bool) {
        let going = |id: &WorkerId| self.slots.get(id).is_some_and(|slot| ends(slot.list, slot.worker.kind()));
        let ids: Vec<WorkerId> = self.ids(uid).iter().copied().filter(going).collect();
        for id in ids {
            self.remove_worker(id);
        }
    }

    fn remove_worker(&mut self, id: WorkerId) {
        let Some(slot) = self.slots.remove(&id) else { return };
        if let Some(at) = slot.queued {
            self.queue.remove(at, id);
        }
        if let Some(ids) = self.by_pod.get_mut(&slot.uid) {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                self.by_pod.remove(&slot.uid);
            }
        }
        self.news.counts = true;
    }

    /// The pod ends: its regular containers are not ended by a probe any more. Sidecars' go on.
    pub fn stop_liveness_and_startup(&mut self, uid: &PodUid) {
        self.remove_where(uid, |list, kind| list == ContainerKind::Regular && kind != ProbeKind::Readiness);
    }

    /// Nothing of the pod is probed any more.
    pub fn remove(&mut self, uid: &PodUid) {
        self.remove_where(uid, |_, _| true);
    }

    /// Nothing of the pod is left.
    pub fn forget(&mut self, uid: &PodUid) {
        self.remove(uid);
        self.seen.remove(uid);
        self.news.unsaved.remove(uid);
    }

    /// What was known of containers that do not exist any more is dropped.
    pub fn retain(&mut self, exist: &HashSet<ContainerId>) {
        self.restored.retain(exist);
    }

    /// A status was computed. A container that has started and is not ready is probed at once (upstream
    /// `UpdatePodStatus`). True: somebody is due sooner than it was.
    pub fn observe(&mut self, uid: &PodUid, pod: &Pod, status: &PodStatus, now: Instant) -> bool {
        if !has_probes(pod) {
            return false;
        }
        let seen = PodState {
            is_over: is_phase_terminal(status),
            is_deleted: is_deleted(pod),
            ip: address(pod, status),
            targets: targets(pod, status),
        };
        let mut sooner = false;
        for id in self.ids(uid).to_vec() {
            let Some(slot) = self.slots.get_mut(&id).filter(|s| s.worker.kind() == ProbeKind::Readiness) else {
                continue;
            };
            let Some(target) = seen.targets.get(&slot.container) else { continue };
            let is_ready = slot.worker.published() == Some((&target.id, ProbeResult::Success));
            if is_ready || !target.started || !matches!(target.state, TargetState::Running { .. }) || !slot.begun {
                continue;
            }
            match slot.queued {
                Some(at) => {
                    self.queue.remove(at, id);
                    slot.beat.restart(now);
                    slot.queued = Some(now);
                    sooner |= self.queue.insert(now, id);
                }
                None => slot.hurried = true,
            }
        }
        self.seen.insert(uid.clone(), seen);
        sooner
    }

    /// When somebody is due.
    pub fn next(&self) -> Option<Instant> {
        self.queue.first()
    }

    /// Gives each worker that is due its beat, and the probes that follow.
    pub fn due(&mut self, now: Instant, time: SystemTime) -> Vec<(WorkerId, Attempt)> {
        let mut attempts = Vec::new();
        while let Some(id) = self.queue.pop(now + TOGETHER) {
            attempts.extend(self.beat(id, now, time).map(|attempt| (id, attempt)));
        }
        attempts
    }

    fn beat(&mut self, id: WorkerId, now: Instant, time: SystemTime) -> Option<Attempt> {
        let slot = self.slots.get_mut(&id)?;
        slot.queued = None;
        slot.begun = true;
        slot.beat.take(now);
        let nothing = PodState::default();
        let seen = self.seen.get(&slot.uid);
        let is_known = seen.is_some();
        let seen = seen.unwrap_or(&nothing);
        let sight = Sight {
            pod_is_over: seen.is_over,
            pod_is_deleted: seen.is_deleted,
            target: seen.targets.get(&slot.container).filter(|_| is_known),
            began: self.began.time,
            now: time,
        };
        let kind = slot.worker.kind();
        let is_same =
            slot.worker.memory().is_some_and(|memory| sight.target.is_some_and(|target| memory.container == target.id));
        let before = stamp(&slot.worker);
        let tick = slot.worker.tick(&sight, |container| self.restored.take(container, kind));
        let after = stamp(&slot.worker);
        self.news.counts |= before != after || !is_same;
        if is_same && before.map(|(result, ..)| result) != after.map(|(result, ..)| result) {
            self.news.unsaved.insert(slot.uid.clone());
            log_result(slot);
        }
        match tick {
            Tick::Probe if !(seen.ip.is_empty() && slot.spec.action.needs_ip()) => {
                let container = sight.target?.id.clone();
                return Some(Attempt {
                    pod: slot.uid.clone(),
                    container,
                    spec: slot.spec.clone(),
                    ip: seen.ip.clone(),
                });
            }
            Tick::Probe | Tick::Wait => {
                let at = slot.beat.next();
                slot.queued = Some(at);
                self.queue.insert(at, id);
            }
            Tick::End => self.remove_worker(id),
        }
        None
    }

    /// A probe has been made; answers the event that tells of it.
    pub fn done(&mut self, id: WorkerId, outcome: Outcome, took: Duration, now: Instant) -> Option<PodEvent> {
        let slot = self.slots.get_mut(&id)?;
        let kind = slot.worker.kind();
        let warn = |reason: &'static str, message: String| {
            let container = (slot.list, slot.container.as_str());
            PodEvent::container(&slot.identity, container, EventType::Warning, reason, message)
        };
        let name = kind.as_str();
        let (verdict, event) = match outcome {
            Outcome::Success => (Some(ProbeOutcome::Success), None),
            Outcome::Warning(text) => {
                (Some(ProbeOutcome::Success), Some(warn("ProbeWarning", format!("{name} probe warning: {text}"))))
            }
            Outcome::Failure(text) => {
                (Some(ProbeOutcome::Failure), Some(warn("Unhealthy", format!("{name} probe failed: {text}"))))
            }
            Outcome::Error { state, text } => {
                let message = format!("{name} probe errored and resulted in {state} state: {text}");
                (None, Some(warn("Unhealthy", message)))
            }
        };
        if let Some(verdict) = verdict {
            match verdict {
                ProbeOutcome::Success => slot.series.success(took),
                ProbeOutcome::Failure => slot.series.failure(),
            }
            let before = stamp(&slot.worker);
            slot.worker.done(verdict);
            let after = stamp(&slot.worker);
            self.news.counts |= before != after;
            if before.map(|(result, ..)| result) != after.map(|(result, ..)| result) {
                self.news.unsaved.insert(slot.uid.clone());
                log_result(slot);
            }
        }
        if std::mem::take(&mut slot.hurried) {
            slot.beat.restart(now);
        }
        let at = slot.beat.next();
        slot.queued = Some(at);
        self.queue.insert(at, id);
        event
    }

    /// What is to be kept, if it is not what was kept last: the text, and the pods that hear of it then. Counts alone
    /// are not worth a write at once.
    pub fn to_save(&mut self, also_counts: bool) -> Option<(Vec<u8>, HashSet<PodUid>)> {
        if self.news.unsaved.is_empty() && !self.news.told && !(also_counts && self.news.counts) {
            return None;
        }
        let News { unsaved, .. } = std::mem::take(&mut self.news);
        let own = self.slots.values().filter_map(|slot| Some((slot.worker.kind(), slot.worker.memory()?)));
        Some((journal::to_json(own.chain(self.restored.iter())), unsaved))
    }

    /// Pods with a new result that are to hear of it without its being kept; the next [`Table::to_save`] has it.
    pub fn take_untold(&mut self) -> HashSet<PodUid> {
        self.news.told |= !self.news.unsaved.is_empty();
        std::mem::take(&mut self.news.unsaved)
    }

    /// Counts have changed that are not kept.
    pub fn has_new_counts(&self) -> bool {
        self.news.counts
    }

    /// What is published of the pod's containers.
    pub fn results(&self, uid: &PodUid, runtime: &RuntimePod) -> ProbeResults {
        let mut results = ProbeResults::default();
        let mut put = |kind: ProbeKind, container: &ContainerId, result: ProbeResult| {
            let list = match kind {
                ProbeKind::Startup => &mut results.startup,
                ProbeKind::Readiness => &mut results.readiness,
                ProbeKind::Liveness => &mut results.liveness,
            };
            list.insert(container.clone(), result);
        };
        for container in &runtime.containers {
            for kind in ProbeKind::ALL {
                if let Some(Memory { result: Some(result), .. }) = self.restored.get(&container.id, kind) {
                    put(kind, &container.id, *result);
                }
            }
        }
        for slot in self.ids(uid).iter().filter_map(|id| self.slots.get(id)) {
            if let Some((container, result)) = slot.worker.published() {
                put(slot.worker.kind(), container, result);
            }
        }
        results
    }

    /// How many probes there are.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }
}

/// What of a worker's memory is kept, but for whose it is.
type Stamp = (Option<ProbeResult>, Option<ProbeOutcome>, u32, bool);

fn stamp(worker: &Worker) -> Option<Stamp> {
    worker.memory().map(|memory| (memory.result, memory.last, memory.run, memory.on_hold))
}

/// Upstream's words for what a probe has come to (`kubelet.go`, syncLoopIteration). None: it is not told there.
fn status_word(kind: ProbeKind, result: ProbeResult) -> Option<&'static str> {
    match (kind, result) {
        (ProbeKind::Readiness, ProbeResult::Success) => Some("ready"),
        (ProbeKind::Readiness, _) => Some("not ready"),
        (ProbeKind::Startup, ProbeResult::Success) => Some("started"),
        (ProbeKind::Startup, _) | (ProbeKind::Liveness, ProbeResult::Failure) => Some("unhealthy"),
        (ProbeKind::Liveness, _) => None,
    }
}

/// The worker has another result than before.
fn log_result(slot: &Slot) {
    let kind = slot.worker.kind();
    let Some(status) = slot.worker.published().and_then(|(_, result)| status_word(kind, result)) else { return };
    let PodIdentity { namespace, name, .. } = &slot.identity;
    tracing::debug!(
        probe = kind.as_str().to_lowercase(),
        status,
        pod = format!("{namespace}/{name}"),
        "SyncLoop (probe)"
    );
}

fn has_probes(pod: &Pod) -> bool {
    let any = |c: &Container| ProbeKind::ALL.into_iter().any(|kind| probe_of(c, kind).is_some());
    containers(pod).iter().any(any) || init_containers(pod).iter().any(any)
}

/// The containers that may be probed, as the status has them.
fn targets(pod: &Pod, status: &PodStatus) -> HashMap<String, Target> {
    let statuses = || status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
    let ended_with =
        |s: &ContainerStatus| s.state.as_ref().and_then(|state| state.terminated.as_ref()).map(|t| t.exit_code);
    let all_restart = init_containers(pod).iter().chain(containers(pod)).any(|c| {
        let code = statuses().find(|s| s.name == c.name).and_then(ended_with);
        code.is_some_and(|code| triggers_restart_all(c, code))
    });
    let target = |container: &Container| {
        let status = statuses().find(|s| s.name == container.name)?;
        // `containerd://<id>`.
        let id = ContainerId::parse(status.container_id.as_deref()?.rsplit("://").next()?).ok()?;
        let state = match (status.state.as_ref().and_then(|state| state.running.as_ref()), ended_with(status)) {
            (Some(running), _) => {
                let since = running.started_at.as_ref().map(|at| SystemTime::from(at.0));
                TargetState::Running { since }
            }
            (None, Some(code)) => TargetState::Ended { restarts: all_restart || may_restart(container, pod, code) },
            (None, None) => TargetState::Waiting,
        };
        Some((container.name.clone(), Target { id, state, started: status.started == Some(true) }))
    };
    containers(pod).iter().chain(init_containers(pod)).filter_map(target).collect()
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
