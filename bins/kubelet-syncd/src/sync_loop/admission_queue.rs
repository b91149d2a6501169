//! The sync loop's side of admission: which pods are active, what is done with a pod that is rejected, and which pods are
//! pending because victims of a preemption still run, because the node's labels may just be changing, or because the container
//! manager has something left to do for them. Decisions are [`crate::admission`]'s.
//!
//! A rejected pod has no pod worker. It is remembered until its source removes it; so is a pending pod.
//!
//! A pod that the runtime shows as over (`restartPolicy` Never or OnFailure, after a restart of this process) is not judged: refused,
//! it would lose what tells that it has run, and run once more after the next restart. Its worker ends it as one that has just ended.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bulkhead_types::{PodUid, Quantity, later};
use kubelet_model::v1::Pod;
use tokio::time::Instant;

use super::housekeeping::plan::ORPHAN_GRACE;
use super::main_loop::SyncLoop;
use super::resource_waits::{ResourceWaits, Waited};
use super::runtime_side::Stage;
use super::view;
use crate::admission::{self, Context, Decision, NodeInfo, Pressure, Rejection, Settings, preemption};
use crate::desired;
use crate::evictions::grace_period;
use crate::pod_workers::{Kill, Lifecycle, PodView, UpdateType};
use kubelet_model::events::{EventSink as _, EventType, PodEvent};
use kubelet_model::pod::resources::Amounts;
use kubelet_model::pod::spec::{PodIdentity, containers, init_containers, is_static};
use kubelet_runtime::status::ended::Course;
use kubelet_runtime::status::pod_status::{self, Fails, TerminationReason};

/// A pod that only the node's labels keep out waits so long for their newest state: the pod and the node come by two
/// watches, and the one may be ahead of the other (upstream asks the API server once more).
const LABELS: Duration = Duration::from_secs(1);
/// The same while the node has not been seen at all.
const LABELS_UNKNOWN: Duration = Duration::from_secs(10);

/// Why a pod is pending, and until when.
#[derive(Debug)]
enum Pending {
    /// Victims that still run.
    Room {
        victims: Vec<PodUid>,
        until: Instant,
    },
    Labels {
        until: Instant,
    },
    /// Something of the container manager's.
    Resources {
        /// The wait, which tells of itself that it is over.
        ticket: u64,
        /// The pod is admitted but for this, and counts.
        given: bool,
    },
    /// What a plugin is still allocating for a pod that was removed.
    Return,
}

impl Pending {
    /// None: whoever it waits for tells.
    fn until(&self) -> Option<Instant> {
        match self {
            Pending::Room { until, .. } | Pending::Labels { until, .. } => Some(*until),
            Pending::Resources { .. } | Pending::Return => None,
        }
    }

    /// The pod does not use the node yet.
    fn is_undecided(&self) -> bool {
        matches!(self, Pending::Labels { .. } | Pending::Resources { given: false, .. } | Pending::Return)
    }
}

/// Pods that are not admitted.
#[derive(Debug)]
pub(super) struct AdmissionQueue {
    settings: Settings,
    rejected: HashSet<PodUid>,
    pending: HashMap<PodUid, Pending>,
    /// Victims of a preemption: what they hold counts as free.
    victims: HashSet<PodUid>,
    /// Pods that had ended before they were judged: they have nothing of the node, also before their worker has said so.
    ended: HashSet<PodUid>,
    waits: ResourceWaits,
}

impl AdmissionQueue {
    pub(super) fn new(settings: Settings) -> Self {
        AdmissionQueue {
            settings,
            rejected: HashSet::new(),
            pending: HashMap::new(),
            victims: HashSet::new(),
            ended: HashSet::new(),
            waits: ResourceWaits::default(),
        }
    }

    /// A wait for the container manager that is over.
    pub(super) async fn waited(&mut self) -> Waited {
        self.waits.over().await
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The pod has no pod worker and is not to get one: it was rejected, or is pending.
    pub(super) fn is_not_admitted(&self, uid: &PodUid) -> bool {
        self.rejected.contains(uid) || self.pending.contains_key(uid)
    }

    /// Whether it is admitted is not decided yet, or something is left to do for it.
    pub(super) fn is_pending(&self, uid: &PodUid) -> bool {
        self.pending.contains_key(uid)
    }

    /// Pods of which it is so.
    pub(super) fn pending(&self) -> HashSet<PodUid> {
        self.pending.keys().cloned().collect()
    }

    /// It was rejected, for good.
    pub(super) fn is_rejected(&self, uid: &PodUid) -> bool {
        self.rejected.contains(uid)
    }

    /// The pod's source has removed it. True when it was not admitted.
    pub(super) fn forget(&mut self, uid: &PodUid) -> bool {
        self.victims.remove(uid);
        self.ended.remove(uid);
        self.rejected.remove(uid) | self.pending.remove(uid).is_some()
    }

    /// When the first pending pod has waited long enough.
    pub(super) fn next(&self) -> Option<Instant> {
        self.pending.values().filter_map(Pending::until).min()
    }
}

impl SyncLoop {
    /// A pod that a source has added: it is admitted, or becomes pending, or is rejected.
    pub(super) fn admit(&mut self, uid: &PodUid, pod: &Arc<Pod>, now: Instant) {
        // A new life of the same uid.
        self.admission_queue.forget(uid);
        // A pod that ends is not checked; its end is its worker's business.
        let facts = desired::facts(pod);
        if self.workers.termination_requested(uid) || facts.terminal_phase {
            return self.start_pod_worker(uid, now);
        }
        if self.resume_eviction(uid, pod, now) {
            return;
        }
        // One that is being deleted starts nothing, and a refusal would take the place of what was reported of it.
        if facts.deleted {
            return self.start_pod_worker(uid, now);
        }
        self.decide_admission(uid, pod, now);
    }

    /// A pod that the runtime has was admitted before.
    pub(super) fn was_admitted(&self, uid: &PodUid) -> bool {
        !self.node.cache.get(uid).sandboxes.is_empty()
    }

    /// What changes while the process runs. A restart under pressure takes nothing away.
    fn admission_context(&self, uid: &PodUid) -> Context {
        let runs = self.was_admitted(uid);
        let pressure = if runs { Pressure::default() } else { self.node.pressure.last() };
        // It ends as the others do, in its turn.
        Context { pressure, shutting_down: self.shutdown.is_some() && !runs }
    }

    fn decide_admission(&mut self, uid: &PodUid, pod: &Arc<Pod>, now: Instant) {
        if self.ends_unjudged(uid, pod, now) {
            return;
        }
        if let Some(wait) = self.node.container_manager.until_decidable(pod) {
            self.node.hub.why(uid, "waits for a plugin that is coming back".to_owned());
            let ticket = self.admission_queue.waits.decidable(uid, wait);
            self.admission_queue.pending.insert(uid.clone(), Pending::Resources { ticket, given: false });
            return;
        }
        self.remove_stale_resources(Some(uid));
        let others = self.others_at_admission(uid);
        let mut node = self.node_info();
        let given = self.node.container_manager.allocatable_for(pod).into_iter();
        let amount = |n: u64| Quantity::from_i64(i64::try_from(n).unwrap_or(i64::MAX));
        node.allocatable.extend(given.map(|(resource, n)| (resource, amount(n))));
        // A resize under way ends no pod that was admitted before it.
        if !self.was_admitted(uid) {
            node.held = self.still_held(&others);
        }
        let (settings, context) = (&self.admission_queue.settings, self.admission_context(uid));
        let is_short = Cell::new(false);
        let give = || {
            let given = self.node.container_manager.admit(pod);
            given.map_err(|refusal| {
                is_short.set(true);
                Rejection::new(refusal.reason, refusal.message)
            })
        };
        match admission::admit_and_give(pod, &others, &node, settings, context, give) {
            Decision::Admit => self.complete_admission(uid, pod, now),
            Decision::Preempt { victims, resource } => self.preempt(uid, victims, &resource, now),
            // What it lacks may be what comes back: upstream's loop, which waits for each answer of a plugin, has it by now.
            Decision::Reject(_) if is_short.get() && self.is_something_coming_back() => {
                self.take_back(uid);
                self.node
                    .hub
                    .why(uid, "waits for a plugin that allocates devices for a pod that was removed".to_owned());
                self.admission_queue.pending.insert(uid.clone(), Pending::Return);
            }
            Decision::Reject(rejection) => self.reject(uid, pod, &rejection, now),
            Decision::RejectByLabels(rejection) => {
                let wait = match (self.node.config.is_standalone(), self.admission_queue.pending.get(uid)) {
                    (true, _) => now,
                    // A refusal is for good, and cannot be based on labels that nobody has seen. A static pod names
                    // what its own manifest knows.
                    (false, waits) if self.node_labels.borrow().is_none() && (waits.is_none() || !is_static(pod)) => {
                        now + LABELS_UNKNOWN
                    }
                    (false, Some(Pending::Labels { until })) => *until,
                    (false, _) => now + LABELS,
                };
                if wait <= now {
                    return self.reject(uid, pod, &rejection, now);
                }
                // It is asked for again.
                self.take_back(uid);
                self.node.hub.why(uid, format!("waits for the node's newest labels: {}", rejection.message));
                self.admission_queue.pending.insert(uid.clone(), Pending::Labels { until: wait });
            }
        }
    }

    /// A pod without a pod worker that is over gets one, which ends it. False: it is not over, or what is over is a former life of a
    /// pod that has come back under its uid.
    pub(super) fn ends_unjudged(&mut self, uid: &PodUid, pod: &Arc<Pod>, now: Instant) -> bool {
        if self.workers.lifecycle(uid).is_some() || self.housekeeping.is_collected(uid) {
            return false;
        }
        match self.node.runtime.course(&self.node, pod, &self.node.cache.get(uid)) {
            Course::Open => return false,
            Course::Ending => {}
            Course::Ended => drop(self.admission_queue.ended.insert(uid.clone())),
        }
        self.start_pod_worker(uid, now);
        true
    }

    /// The pod is admitted, and gets its pod worker once the container manager has nothing left to do for it.
    fn complete_admission(&mut self, uid: &PodUid, pod: &Arc<Pod>, now: Instant) {
        let Some(left) = self.node.container_manager.complete(pod) else { return self.start_pod_worker(uid, now) };
        self.node.hub.why(uid, "waits for a plugin that allocates devices".to_owned());
        let ticket = self.admission_queue.waits.complete(uid, left);
        self.admission_queue.pending.insert(uid.clone(), Pending::Resources { ticket, given: true });
    }

    /// The pod never ran, and gives back what the container manager gave it; while a plugin still allocates for it, once that is over.
    pub(super) fn take_back(&self, uid: &PodUid) {
        if self.admission_queue.waits.completing().any(|other| other == uid) {
            return;
        }
        let runtime = self.node.cache.get(uid);
        if runtime.sandboxes.is_empty() && runtime.containers.is_empty() {
            self.node.container_manager.take_back(uid);
        }
    }

    /// A wait for the container manager is over.
    pub(super) fn on_waited(&mut self, waited: Waited) {
        let Waited { uid, ticket, outcome } = waited;
        match self.admission_queue.pending.get(&uid) {
            Some(Pending::Resources { ticket: current, .. }) if *current == ticket => {}
            // The pod has gone another way since. What it was given is nobody's from now on.
            _ => {
                if self.desired.get(&uid).is_none() && self.workers.lifecycle(&uid).is_none() {
                    self.take_back(&uid);
                }
                return self.decide_on_those_that_wait_for_returns();
            }
        }
        let now = Instant::now();
        let Some(pod) = self.desired.pod(&uid) else {
            self.admission_queue.forget(&uid);
            return self.take_back(&uid);
        };
        match outcome {
            None => self.decide_admission(&uid, &pod, now),
            Some(Ok(())) => self.start_pod_worker(&uid, now),
            Some(Err(refusal)) => self.reject(&uid, &pod, &Rejection::new(refusal.reason, refusal.message), now),
        }
    }

    /// A plugin is still allocating for a pod that no source names any more.
    fn is_something_coming_back(&self) -> bool {
        self.admission_queue.waits.completing().any(|uid| self.desired.get(uid).is_none())
    }

    fn decide_on_those_that_wait_for_returns(&mut self) {
        let pending = self.admission_queue.pending.iter().filter(|(_, why)| matches!(why, Pending::Return));
        let waiting: Vec<PodUid> = pending.map(|(uid, _)| uid.clone()).collect();
        for uid in waiting {
            match self.desired.pod(&uid) {
                Some(pod) => self.decide_admission(&uid, &pod, Instant::now()),
                None => drop(self.admission_queue.forget(&uid)),
            }
        }
    }

    /// What containers have for themselves that are of no pod any more is taken back. `admitted`: a pod that is just being decided on.
    pub(super) fn remove_stale_resources(&self, admitted: Option<&PodUid>) {
        if !self.node.volnetd.authority().sources_ready() {
            return;
        }
        let is_active = |uid: &str, container: &str| {
            let Ok(uid) = PodUid::parse(uid) else { return false };
            let runs = self.node.cache.get(&uid).running().next().is_some();
            let Some(desired) = self.desired.get(&uid) else {
                // Known to the runtime alone, or removed: until its containers have ended, and no plugin allocates for it.
                let ends = self.workers.lifecycle(&uid).is_some_and(|at| at < Lifecycle::Terminated);
                return runs || ends || self.admission_queue.waits.completing().any(|other| *other == uid);
            };
            let has = |name: &str| {
                containers(&desired.pod).iter().chain(init_containers(&desired.pod)).any(|c| c.name == name)
            };
            (runs || admitted == Some(&uid) || self.uses_node(&uid, &desired.pod)) && has(container)
        };
        self.node.container_manager.remove_stale(&is_active);
    }

    /// The pod is admitted and gets its pod worker.
    fn start_pod_worker(&mut self, uid: &PodUid, now: Instant) {
        self.admission_queue.pending.remove(uid);
        let Some(pod) = self.desired.pod(uid) else { return };
        self.node.allocations.allocate(uid, &pod);
        self.node.objects.register_pod(&pod);
        self.update_worker(uid, pod, UpdateType::Create, now);
    }

    /// Pods that use the node, without this one: desired, neither terminated nor in a terminal phase, no victim of a
    /// preemption (upstream `GetActivePods`).
    pub(super) fn active_pods(&self, uid: &PodUid) -> Vec<Arc<Pod>> {
        let counts = |other: &PodUid, pod: &Pod| {
            other != uid && self.uses_node(other, pod) && !self.admission_queue.victims.contains(other)
        };
        self.desired.iter().filter(|(other, d)| counts(other, &d.pod)).map(|(_, d)| d.pod.clone()).collect()
    }

    /// Those that count at a pod's admission. One that is being deleted and of which nothing runs gives back what it had: before a
    /// restart it may have ended, and others may have been admitted since, although nobody could write its last status.
    fn others_at_admission(&self, uid: &PodUid) -> Vec<Arc<Pod>> {
        let mut others = self.active_pods(uid);
        others.retain(|other| {
            // Most are not being deleted, and there may be a thousand of them at each admission.
            if !desired::facts(other).deleted {
                return true;
            }
            let Some(uid) = PodUid::parse(other.metadata.uid.as_deref().unwrap_or_default()).ok() else { return true };
            !self.node.cache.is_certain(&uid) || self.node.cache.get(&uid).running().next().is_some()
        });
        others
    }

    /// The desired pod has, or is to have, something of the node.
    fn uses_node(&self, uid: &PodUid, pod: &Pod) -> bool {
        let undecided = self.admission_queue.pending.get(uid).is_some_and(Pending::is_undecided);
        !undecided && !self.admission_queue.ended.contains(uid) && self.is_active(uid, pod)
    }

    pub(super) fn node_info(&self) -> NodeInfo {
        let (config, capacity) = (&self.node.config, &self.node.cgroups.capacity);
        let amount = |n: u64| Quantity::from_bytes(i64::try_from(n).unwrap_or(i64::MAX));
        let pages = capacity.huge_pages.iter().map(|(size, total)| (huge_page_resource(*size), amount(*total)));
        let mut own: Amounts = pages.collect();
        own.extend(self.node.facts().allocatable.clone());
        own.insert("pods".to_owned(), Quantity::from_i64(config.pod_capacity(capacity.cpus)));
        let node = self.node_labels.borrow().clone();
        let labels = &config.flags.node_labels;
        let mut info = NodeInfo::of(config.node_name.as_str(), labels, node.as_deref(), own);
        let health = self.node.health.borrow();
        if health.known {
            info.supplemental_groups_policy = Some(health.supplemental_groups_policy.unwrap_or_default());
        }
        drop(health);
        info
    }

    fn reject(&mut self, uid: &PodUid, pod: &Arc<Pod>, rejection: &Rejection, now: Instant) {
        // It may have ended while it was pending.
        if self.ends_unjudged(uid, pod, now) {
            return;
        }
        self.admission_queue.pending.remove(uid);
        self.take_back(uid);
        let Rejection { reason, message } = rejection;
        self.node.metrics.admission.rejections.with_label_values(&[admission::metric_label(reason)]).inc();
        if let Ok(identity) = PodIdentity::of(pod) {
            let event = PodEvent::pod(&identity, EventType::Warning, reason.clone(), message.clone());
            self.node.reporter.emit(event);
        }
        let status = pod_status::rejected(pod, reason, message, jiff::Timestamp::now());
        let runtime = self.node.cache.get(uid);
        if runtime.sandboxes.is_empty() && runtime.containers.is_empty() && self.workers.lifecycle(uid).is_none() {
            self.admission_queue.rejected.insert(uid.clone());
            self.node.pods.set_status(uid, Arc::new(status.clone()));
            view::rejected(&self.node, uid, pod, &status);
            return self.update_not_admitted(uid, pod, now);
        }
        // It ran before this process started, and may not any longer.
        let status = Arc::new(pod_status::rejected_while_it_runs(pod, status));
        self.node.pods.set_status(uid, status.clone());
        let facts = desired::facts(pod);
        let actions = if facts.is_static && self.workers.lifecycle(uid).is_none() {
            // Its end is the runtime's pod's alone, which has no status; told is this one, and written once nothing of it runs. It
            // says nothing of containers, as with upstream (`kubelet.go`): `rejectPod` sets a status without them, and
            // `SyncTerminatingRuntimePod` sets none.
            view::publish(&self.node, uid, pod, &runtime, &status, Stage::Alive);
            // A static pod that was never started here would count as ended.
            self.workers.kill_runtime_pod(uid, &facts.full_name, ORPHAN_GRACE, now)
        } else {
            let seen = PodView { pod: pod.clone(), facts, runtime_ended: false };
            self.workers.update(uid, UpdateType::Kill, seen, Some(&Kill::default()), now)
        };
        self.apply(actions, now);
        self.show(uid);
    }

    /// Rejects all that are pending.
    pub(super) fn reject_pending(&mut self, rejection: &Rejection, now: Instant) {
        let pending: Vec<PodUid> = self.admission_queue.pending.keys().cloned().collect();
        for uid in pending {
            match self.desired.pod(&uid) {
                Some(pod) => self.reject(&uid, &pod, rejection, now),
                None => drop(self.admission_queue.forget(&uid)),
            }
        }
    }

    /// Kills victims for the sake of a critical pod, which stays pending until they have ended.
    fn preempt(&mut self, uid: &PodUid, victims: Vec<PodUid>, resource: &str, now: Instant) {
        let wait = self.kill_victims(&victims, resource, now);
        let names: Vec<&str> = victims.iter().map(PodUid::as_str).collect();
        self.node.hub.why(uid, format!("waits for pods to make room: {}", names.join(", ")));
        self.admission_queue.pending.insert(uid.clone(), Pending::Room { victims, until: later(now, wait) });
    }

    /// Kills pods because a critical one needs what they have. Answers how long that may take.
    pub(super) fn kill_victims(&mut self, victims: &[PodUid], resource: &str, now: Instant) -> Duration {
        let mut wait = grace_period::kill(0);
        for victim in victims {
            let Some(pod) = self.desired.pod(victim) else { continue };
            if let Ok(identity) = PodIdentity::of(&pod) {
                let event = PodEvent::pod(&identity, EventType::Warning, preemption::REASON, preemption::MESSAGE);
                self.node.reporter.emit(event);
            }
            self.node.metrics.admission.preemptions.with_label_values(&[resource]).inc();
            self.admission_queue.victims.insert(victim.clone());
            if self.admission_queue.pending.contains_key(victim) {
                let gone = Rejection::new(preemption::REASON, preemption::MESSAGE);
                self.reject(victim, &pod, &gone, now);
                continue;
            }
            let termination = TerminationReason {
                reason: preemption::REASON.to_owned(),
                message: preemption::MESSAGE.to_owned(),
                disruption: Some(preemption::DISRUPTION.to_owned()),
                fails: Fails::UntilStopped,
            };
            self.node.pods.terminate_pod(victim, termination);
            let seen = PodView { facts: desired::facts(&pod), pod, runtime_ended: false };
            let kill = Kill { grace: None, evicted: true, hurried: true };
            let actions = self.workers.update(victim, UpdateType::Kill, seen, Some(&kill), now);
            self.apply(actions, now);
            self.show(victim);
            wait = wait.max(grace_period::kill(self.workers.grace(victim).unwrap_or(0)));
        }
        wait
    }

    /// Looks at pending pods again: at each end of work, when the node has changed, and when a wait is over.
    pub(super) fn retry_pending(&mut self, now: Instant) {
        let (mut ready, mut asked) = (Vec::new(), Vec::new());
        for (uid, waits) in &self.admission_queue.pending {
            let over = waits.until().is_some_and(|until| until <= now);
            match waits {
                Pending::Room { victims, .. } => {
                    let runs =
                        |victim: &&PodUid| self.workers.lifecycle(victim).is_some_and(|at| at < Lifecycle::Terminated);
                    let late: Vec<PodUid> = victims.iter().filter(runs).cloned().collect();
                    if late.is_empty() || over {
                        ready.push((uid.clone(), late));
                    }
                }
                Pending::Labels { .. } if over => asked.push(uid.clone()),
                Pending::Labels { .. } | Pending::Resources { .. } | Pending::Return => {}
            }
        }
        for (uid, late) in ready {
            if self.desired.get(&uid).is_none() {
                self.admission_queue.forget(&uid);
                continue;
            }
            for victim in late {
                self.exceeded_grace_period(&victim);
            }
            // As upstream: once its victims have been killed, a critical pod is admitted, whether or not they have ended.
            if let Some(pod) = self.desired.pod(&uid) {
                self.complete_admission(&uid, &pod, now);
            }
        }
        // Checked once more, and not simply rejected: while nobody has seen the labels, the wait goes on.
        for uid in asked {
            match self.desired.pod(&uid) {
                Some(pod) => self.decide_admission(&uid, &pod, now),
                None => drop(self.admission_queue.forget(&uid)),
            }
        }
    }

    /// Tells that a pod that was to be killed still runs.
    pub(super) fn exceeded_grace_period(&self, victim: &PodUid) {
        let Some(pod) = self.desired.get(victim) else { return };
        if let Ok(identity) = PodIdentity::of(&pod.pod) {
            let message = "Container runtime did not kill the pod within specified grace period.";
            self.node.reporter.emit(PodEvent::pod(&identity, EventType::Warning, "ExceededGracePeriod", message));
        }
    }

    /// The node has changed: labels may fit now.
    pub(super) fn on_node(&mut self) {
        self.node_labels.borrow_and_update();
        let now = Instant::now();
        let by_labels = self.admission_queue.pending.iter().filter(|(_, w)| matches!(w, Pending::Labels { .. }));
        let waiting: Vec<PodUid> = by_labels.map(|(uid, _)| uid.clone()).collect();
        for uid in waiting {
            if let Some(pod) = self.desired.pod(&uid) {
                self.decide_admission(&uid, &pod, now);
            }
        }
    }

    /// A change of a pod that is not admitted. One that is being deleted gets a worker, which ends it: a life of this process before
    /// this one may have admitted it, and made its cgroup, its volumes and its claims ready (upstream `filterTerminalPodsToDelete`).
    pub(super) fn update_not_admitted(&mut self, uid: &PodUid, pod: &Arc<Pod>, now: Instant) {
        let facts = desired::facts(pod);
        if facts.deleted && self.admission_queue.rejected.remove(uid) {
            // It has nothing of the node that another pod could not have.
            self.admission_queue.ended.insert(uid.clone());
            self.update_worker(uid, pod.clone(), UpdateType::Kill, now);
        } else if self.admission_queue.pending.contains_key(uid) && (facts.deleted || facts.terminal_phase) {
            self.admission_queue.pending.remove(uid);
            self.update_worker(uid, pod.clone(), UpdateType::Update, now);
        }
    }
}

/// `hugepages-2Mi`.
fn huge_page_resource(bytes: u64) -> String {
    format!("hugepages-{}", Quantity::from_bytes(i64::try_from(bytes).unwrap_or(i64::MAX)))
}
