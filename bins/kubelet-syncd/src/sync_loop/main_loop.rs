//! The loop itself. Every branch is short and none waits: what takes time is a task, what is due later is a time.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_apiclient::random_fraction;
use bulkhead_daemon::progress::{Heartbeat, asked};
use bulkhead_ipc::client::PeerState;
use bulkhead_types::{PodUid, later};
use k8s_openapi::api::core::v1::Node;
use kubelet_model::v1::Pod;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::admission_queue::AdmissionQueue;
use super::evictions::Evictions;
use super::housekeeping::plan::is_removable;
use super::housekeeping::{Housekeeping, container_gc};
use super::node::NodeContext;
use super::node_cgroups::QosTimes;
use super::resize::{Resizes, Trigger};
use super::runtime_health::RuntimeHealth;
use super::runtime_side::Stage;
use super::shutdown::{Shutdowns, UnderWay};
use super::work::{self, Done};
use super::{node_cgroups, view};
use crate::admission::Settings;
use crate::desired::{self, Desired, DesiredPods};
use crate::pod_workers::{Action, Lifecycle, PodView, Retry, UpdateType, Work, WorkKind, WorkQueue, Workers, requeue};
use crate::sources::{PodOp, PodUpdate, Sources};
use kubelet_model::node_facts::NodeFacts;
use kubelet_model::pod::model::RuntimePod;
use kubelet_model::pod::source::SourceKind;
use kubelet_pleg::{PodLifecycleEvent, PodLifecycleEventKind};
use kubelet_runtime::stages;
use kubelet_runtime::status::pod_status::seconds_to_deadline;

/// Between two counts of all pods for the gauges: a burst of events does not count each time, and nobody scrapes more often.
const COUNT_PAUSE: Duration = Duration::from_secs(1);
/// The loop turns at least this often, so that its age says something.
const HEARTBEAT: Duration = Duration::from_secs(20);

/// What the loop listens to.
#[derive(Debug)]
pub struct SyncLoopParts {
    pub node: Arc<NodeContext>,
    pub sources: Arc<Sources>,
    pub updates: mpsc::Receiver<PodUpdate>,
    pub pleg_events: mpsc::Receiver<PodLifecycleEvent>,
    pub evictions: Evictions,
    pub shutdowns: Shutdowns,
    pub stop: CancellationToken,
}

/// The main loop's state; nobody else changes it.
#[derive(Debug)]
pub struct SyncLoop {
    pub(super) node: Arc<NodeContext>,
    pub(super) sources: Arc<Sources>,
    updates: mpsc::Receiver<PodUpdate>,
    pleg_events: mpsc::Receiver<PodLifecycleEvent>,
    stop: CancellationToken,
    heartbeat: Option<Heartbeat>,
    health: watch::Receiver<RuntimeHealth>,
    peer: watch::Receiver<PeerState>,
    /// Our Node as the API server has it.
    pub(super) node_labels: watch::Receiver<Option<Arc<Node>>>,
    /// What is known of this machine, and the addresses of it that pods were told.
    facts: watch::Receiver<Arc<NodeFacts>>,
    host_ips: Vec<IpAddr>,
    /// Pods of which something that they name has changed. None: nobody tells any more.
    object_changes: Option<broadcast::Receiver<PodUid>>,
    pub(super) admission_queue: AdmissionQueue,
    pub(super) evictions: Evictions,
    pub(super) shutdowns: Shutdowns,
    pub(super) shutdown: Option<UnderWay>,
    pub(super) resizes: Resizes,
    pub(super) workers: Workers<Arc<Pod>>,
    pub(super) desired: DesiredPods,
    pub(super) queue: WorkQueue,
    tasks: HashMap<PodUid, CancellationToken>,
    /// Work that has ended: at most one message for each pod is under way.
    done: mpsc::UnboundedReceiver<Done>,
    done_sender: mpsc::UnboundedSender<Done>,
    pub(super) housekeeping: Housekeeping,
    began: Instant,
    qos: QosTimes,
    /// When the gauges of pods are counted next, where something has changed, and when they were.
    count_at: Option<Instant>,
    counted: Instant,
}

impl SyncLoop {
    pub fn new(parts: SyncLoopParts) -> Self {
        let now = Instant::now();
        let SyncLoopParts { node, sources, updates, pleg_events, evictions, shutdowns, stop } = parts;
        let (done_sender, done) = mpsc::unbounded_channel();
        SyncLoop {
            health: node.health.clone(),
            peer: node.volnetd.link().watch(),
            node_labels: node.objects.node(),
            facts: node.shared_facts.watch(),
            host_ips: node.facts().host_ips.clone(),
            object_changes: Some(node.objects.changes()),
            admission_queue: AdmissionQueue::new(Settings::of(&node.config)),
            evictions,
            shutdowns,
            shutdown: None,
            resizes: Resizes::new(now),
            node,
            sources,
            updates,
            pleg_events,
            stop,
            heartbeat: None,
            workers: Workers::default(),
            desired: DesiredPods::default(),
            queue: WorkQueue::default(),
            tasks: HashMap::new(),
            done,
            done_sender,
            housekeeping: Housekeeping::new(now),
            began: now,
            qos: QosTimes::new(now),
            count_at: None,
            counted: now,
        }
    }

    /// The watchdog's beat depends on this loop.
    pub fn with_heartbeat(mut self, heartbeat: Heartbeat) -> Self {
        self.heartbeat = Some(heartbeat);
        self
    }

    /// Turns until the daemon is to stop, or until the sources or PLEG have ended.
    pub async fn run(mut self) {
        // Before the first pod is admitted.
        self.on_shutdown();
        loop {
            self.node.loop_monitor.turned();
            let due = [
                self.qos.next(),
                self.count_at,
                self.queue.next(),
                self.admission_queue.next(),
                self.resizes.next(),
                self.shutdown_next(),
                self.evictions.kills.next(),
            ];
            let first = due.into_iter().flatten().fold(self.housekeeping.next(), Instant::min);
            let wake = first.min(Instant::now() + HEARTBEAT);
            tokio::select! {
                biased;
                () = self.stop.cancelled() => break,
                () = asked(self.heartbeat.as_ref()) => {}
                Some(done) = self.done.recv() => self.on_done(done),
                event = self.pleg_events.recv() => match event {
                    Some(event) => self.on_pleg(event),
                    None => break,
                },
                update = self.updates.recv() => match update {
                    Some(update) => self.on_updates(update),
                    None => break,
                },
                Ok(()) = self.shutdowns.preparing.changed() => self.on_shutdown(),
                Some(question) = self.evictions.questions.recv() => self.on_eviction_question(question),
                Ok(()) = self.health.changed() => self.on_health(),
                Ok(()) = self.peer.changed() => self.on_peer(),
                Ok(()) = self.node_labels.changed() => self.on_node(),
                Ok(()) = self.facts.changed() => self.on_facts(),
                change = next_change(&mut self.object_changes) => self.on_objects(change),
                waited = self.admission_queue.waited() => self.on_waited(waited),
                () = self.node.prober.changed() => self.on_probes(),
                () = self.node.container_manager.news().changed() => self.on_resource_news(),
                () = self.node.ownership.learned() => self.housekeeping.run_at_once(),
                () = self.node.cgroups.qos_unsettled.notified() => self.qos.again(Instant::now()),
                () = tokio::time::sleep_until(wake) => {}
            }
            self.on_time();
            // Before anything that this turn has begun gets to run.
            self.keep_allocations();
        }
        // Work in progress is dropped with its task; the next start takes up from what the runtime and the disk say.
        for cancel in self.tasks.values() {
            cancel.cancel();
        }
    }

    /// All updates that wait are one turn, and what they grant is written once. They are as many as the channel holds: nobody sends
    /// before this turn has ended.
    fn on_updates(&mut self, first: PodUpdate) {
        self.on_update(first);
        while let Ok(update) = self.updates.try_recv() {
            self.on_update(update);
        }
    }

    fn on_update(&mut self, update: PodUpdate) {
        let now = Instant::now();
        log_update(&update);
        let source = update.source;
        let mut pods = update.pods;
        if update.op == PodOp::Add {
            desired::oldest_first(&mut pods);
            // What was refused before a restart takes nothing from what was admitted.
            pods.sort_by_key(|pod| desired::uid_of(pod).is_none_or(|uid| !self.was_admitted(&uid)));
        }
        let uids: Vec<PodUid> = pods.iter().filter_map(|pod| desired::uid_of(pod)).collect();
        for pod in pods {
            let Some(uid) = desired::uid_of(&pod) else { continue };
            match update.op {
                PodOp::Add => self.add_pod(&uid, pod, source, now),
                PodOp::Update | PodOp::Delete => self.update_pod(&uid, pod, source, now),
                PodOp::Reconcile => self.reconcile(uid, pod, source, now),
                PodOp::Remove => self.remove_pod(&uid, now),
                PodOp::Again => self.add_again(&uid, pod, source, now),
            }
        }
        self.sources.consumed(update.source);
        self.check_sources();
        match update.op {
            PodOp::Add => self.resize_added(&uids, now),
            PodOp::Remove => self.retry_resizes(Trigger::PodsRemoved, now),
            PodOp::Update | PodOp::Delete | PodOp::Reconcile | PodOp::Again => {}
        }
        self.count_soon();
    }

    /// A pod that a source has begun to name.
    fn add_pod(&mut self, uid: &PodUid, pod: Arc<Pod>, source: SourceKind, now: Instant) {
        let containers = pod.spec.as_ref().map_or(0, |spec| spec.containers.len());
        self.node.metrics.starts.containers_per_pod.observe(containers as f64);
        self.set_desired(uid, &pod, source, now);
        self.node.allocations.take_up(uid, &pod);
        // From here on it is the pod with what it was granted.
        if let Some(pod) = self.desired.pod(uid) {
            self.admit(uid, &pod, now);
        }
    }

    /// A pod that its source has changed, or that is being deleted.
    fn update_pod(&mut self, uid: &PodUid, pod: Arc<Pod>, source: SourceKind, now: Instant) {
        match self.set_desired(uid, &pod, source, now) {
            Some(before) => {
                self.say_missing_features(&before, &pod);
                self.resize_if_asked(uid, &before, now);
            }
            None => self.node.allocations.take_up(uid, &pod),
        }
        // From here on it is the pod with what it was granted.
        let Some(pod) = self.desired.pod(uid) else { return };
        if self.admission_queue.is_not_admitted(uid) {
            return self.update_not_admitted(uid, &pod, now);
        }
        if self.workers.lifecycle(uid).is_none_or(|at| at < Lifecycle::Terminated) {
            self.node.objects.register_pod(&pod);
        }
        self.update_worker(uid, pod, UpdateType::Update, now);
    }

    /// Puts the pod among the desired ones. Answers what was asked for before, if it was there.
    fn set_desired(&mut self, uid: &PodUid, pod: &Arc<Pod>, source: SourceKind, now: Instant) -> Option<Arc<Pod>> {
        let before = self.desired.get(uid).map(|d| d.asked.clone());
        let granted = self.node.allocations.granted(uid, pod);
        self.desired.insert(uid.clone(), Desired { pod: granted, asked: pod.clone(), source });
        self.node.ownership.knows(uid);
        self.node.volnetd.authority().next_generation();
        self.qos_soon(now);
        view::introduce(&self.node, uid, pod, source);
        before
    }

    /// Only the status differs from what was known. Ours is told anew by whoever writes it; here it matters when somebody
    /// else's condition is one that the pod's readiness waits for.
    fn reconcile(&mut self, uid: PodUid, pod: Arc<Pod>, source: SourceKind, now: Instant) {
        let Some(before) = self.desired.pod(&uid) else { return };
        let asked = pod;
        let pod = self.node.allocations.granted(&uid, &asked);
        self.desired.insert(uid.clone(), Desired { pod: pod.clone(), asked, source });
        // Whoever holds the object that was known until now takes this one: a node of many pods keeps one of each.
        let says_the_same = |old: &Arc<Pod>| Arc::ptr_eq(old, &before) || desired::differ_in_status_only(old, &pod);
        self.workers.replace_pod(&uid, &pod, says_the_same);
        self.node.pods.replace_pod(&uid, &pod);
        if desired::gates_differ(&before, &pod) {
            self.update_worker(&uid, pod, UpdateType::Sync, now);
        }
    }

    /// Pods of the host's network have its addresses in their status, and all pods its `hostIP`. Those are shown at once, and not after
    /// the work that follows: a static pod's status is about to be compared with that of its mirror.
    fn on_facts(&mut self) {
        let facts = self.facts.borrow_and_update().clone();
        if facts.host_ips == self.host_ips {
            return;
        }
        self.host_ips.clone_from(&facts.host_ips);
        let now = Instant::now();
        let all: Vec<_> = self.desired.iter().map(|(uid, desired)| (uid.clone(), desired.pod.clone())).collect();
        for (uid, pod) in all {
            if self.node.pods.status(&uid).is_some() {
                self.show_anew(&uid, &pod);
            }
            self.update_worker(&uid, pod, UpdateType::Sync, now);
        }
    }

    /// The status of a pod that nobody ends, as it is now. An end that has not been read up on is told by the work that follows.
    fn show_anew(&self, uid: &PodUid, pod: &Arc<Pod>) {
        if self.workers.lifecycle(uid) == Some(Lifecycle::Sync)
            && !self.admission_queue.is_not_admitted(uid)
            && !self.node.termination_messages.is_missing(&self.node.cache.get(uid))
        {
            view::refresh(&self.node, uid, pod, Stage::Alive);
        }
    }

    /// Something that pods name on the API server has changed.
    fn on_objects(&mut self, change: Result<PodUid, RecvError>) {
        let now = Instant::now();
        let changed = match change {
            Ok(uid) => vec![uid],
            // Too much has changed to be told one by one.
            Err(RecvError::Lagged(_)) => self.desired.uids().into_iter().collect(),
            Err(RecvError::Closed) => {
                self.object_changes = None;
                return;
            }
        };
        for uid in changed {
            if let Some(pod) = self.desired.pod(&uid) {
                self.update_worker(&uid, pod, UpdateType::Sync, now);
            }
        }
    }

    fn remove_pod(&mut self, uid: &PodUid, now: Instant) {
        let Some(gone) = self.desired.remove(uid) else { return };
        // Its folder of logs was wanted until now, also when its work had ended before.
        self.housekeeping.look_for_logs();
        self.node.allocations.release(uid);
        if self.admission_queue.forget(uid) && self.workers.lifecycle(uid).is_none() {
            // It never began, or not in this life of the process: what one before made of it is pruned.
            self.take_back(uid);
            self.node.forget(uid);
            self.housekeeping.look_for_leftovers();
            self.housekeeping.run_soon(now);
            return;
        }
        self.node.volnetd.authority().next_generation();
        self.qos_soon(now);
        // Before every source has delivered a removal is only noted: housekeeping ends the pod later.
        if self.node.volnetd.authority().sources_ready() {
            self.update_worker(uid, gone.pod, UpdateType::Kill, now);
        }
        self.housekeeping.run_soon(now);
    }

    /// A pod whose manifest was moved away for a moment and is back unchanged. One that was refused is judged anew, one that ends
    /// or has ended begins anew after that, as after a removal; one that runs goes on, where upstream restarts it.
    fn add_again(&mut self, uid: &PodUid, pod: Arc<Pod>, source: SourceKind, now: Instant) {
        if self.admission_queue.is_rejected(uid) || self.workers.termination_requested(uid) {
            self.remove_pod(uid, now);
            self.add_pod(uid, pod, source, now);
        }
    }

    pub(super) fn update_worker(&mut self, uid: &PodUid, pod: Arc<Pod>, kind: UpdateType, now: Instant) {
        if self.admission_queue.is_not_admitted(uid) {
            return;
        }
        let facts = desired::facts(&pod);
        let runtime = self.node.cache.get(uid);
        let ended = !runtime.has_ready_sandbox() && runtime.running().next().is_none();
        let actions = self.workers.update(uid, kind, PodView { pod, facts, runtime_ended: ended }, None, now);
        self.apply(actions, now);
        self.show(uid);
    }

    fn on_pleg(&mut self, event: PodLifecycleEvent) {
        let now = Instant::now();
        let uid = event.uid;
        let pod = self.desired.pod(&uid);
        if let Some(pod) = pod.as_ref().filter(|_| event.kind != PodLifecycleEventKind::ContainerRemoved) {
            let (kind, id) = (event.kind, &*event.id);
            tracing::debug!(pod = desired::object_ref(pod), event = ?kind, id, "SyncLoop (PLEG): event for pod");
        }
        match pod {
            Some(pod) if self.admission_queue.is_pending(&uid) => {
                self.ends_unjudged(&uid, &pod, now);
            }
            Some(_) if self.admission_queue.is_not_admitted(&uid) => {}
            Some(pod) => {
                self.show_seen(&uid, &pod);
                if event.kind != PodLifecycleEventKind::ContainerRemoved {
                    self.update_worker(&uid, pod, UpdateType::Sync, now);
                }
            }
            // An orphaned pod runs.
            None if self.workers.lifecycle(&uid).is_none() => {
                self.housekeeping.run_soon(now);
            }
            None => view::seen(&self.node, &uid, &self.node.cache.get(&uid)),
        }
        if event.kind == PodLifecycleEventKind::ContainerStarted {
            self.node.container_manager.started();
        }
        if event.kind == PodLifecycleEventKind::ContainerDied && !self.admission_queue.is_pending(&uid) {
            self.collect_died(uid, event.id);
        }
        self.count_soon();
    }

    /// What callers see of a pod is right at once, also while the pod's own work goes on.
    fn show_seen(&self, uid: &PodUid, pod: &Arc<Pod>) {
        let runtime = self.node.cache.get(uid);
        if self.workers.lifecycle(uid).is_some_and(|at| at >= Lifecycle::Terminating) {
            // As upstream: between the beginning of the end and the end nothing new is said of its status, and after that nothing at
            // all; that the runtime has less and less of it is no news.
            view::seen(&self.node, uid, &runtime);
        } else if self.node.termination_messages.is_missing(&runtime) {
            self.read_termination_messages(uid.clone(), pod.clone(), runtime);
        } else {
            view::refresh(&self.node, uid, pod, Stage::Alive);
        }
    }

    /// A pod's status is shown when it is read what its containers have said at their end.
    fn read_termination_messages(&self, uid: PodUid, pod: Arc<Pod>, runtime: Arc<RuntimePod>) {
        let node = self.node.clone();
        let incarnation = node.pods.incarnation(&uid);
        tokio::spawn(async move {
            node.termination_messages.learn(&uid, &runtime).await;
            // Meanwhile the pod may have been forgotten, and its uid come back as another one; or its end has begun, and perhaps been
            // told.
            if node.pods.incarnation(&uid) == incarnation && view::lives(&node, &uid) {
                view::refresh(&node, &uid, &pod, Stage::Alive);
            }
        });
    }

    /// A container has died: surplus dead ones of it go.
    fn collect_died(&self, uid: PodUid, died: Box<str>) {
        // All of a pod that a worker ends goes at once when it has ended.
        let everything =
            self.workers.lifecycle(&uid).is_none() && is_removable(&self.workers, &self.desired, &self.sources, &uid);
        if self.node.volnetd.authority().sources_ready() {
            let node = self.node.clone();
            tokio::spawn(async move { container_gc::collect_died(&node, &uid, &died, everything).await });
        }
    }

    /// Results of probes have changed.
    fn on_probes(&mut self) {
        let now = Instant::now();
        for uid in self.node.prober.take_changed() {
            let Some(pod) = self.desired.pod(&uid) else { continue };
            match self.workers.lifecycle(&uid) {
                Some(Lifecycle::Sync) if !self.admission_queue.is_not_admitted(&uid) => {
                    self.show_anew(&uid, &pod);
                    self.update_worker(&uid, pod, UpdateType::Sync, now);
                }
                Some(Lifecycle::Terminating) => view::readiness(&self.node, &uid, &pod),
                _ => {}
            }
        }
    }

    /// The health of pods' devices has changed, or a driver that they wait for is there.
    fn on_resource_news(&mut self) {
        let now = Instant::now();
        for uid in self.node.container_manager.news().take() {
            let Some(pod) = self.desired.pod(&uid) else { continue };
            // It has no pod worker, and is not to get one by this.
            if self.admission_queue.is_not_admitted(&uid) {
                continue;
            }
            self.show_anew(&uid, &pod);
            self.update_worker(&uid, pod, UpdateType::Sync, now);
        }
    }

    fn on_done(&mut self, done: Done) {
        let now = Instant::now();
        self.tasks.remove(&done.uid);
        // The pod was known to the runtime alone: whatever it has on the disk is orphaned.
        if done.kind == WorkKind::TerminatingRuntime {
            self.housekeeping.look_for_leftovers();
        }
        self.node.metrics.workers.duration.with_label_values(&[done.operation]).observe(done.took.as_secs_f64());
        // The look that a sync asks for at its end may have begun already, and the next sync needs no other.
        let actions = self.workers.done(&done.uid, done.kind, done.outcome, done.settled);
        self.apply(actions, now);
        self.show(&done.uid);
        self.retry_pending(now);
        if matches!(done.kind, WorkKind::Terminating | WorkKind::TerminatingRuntime | WorkKind::Terminated) {
            self.retry_resizes(Trigger::PodTerminated, now);
            self.remove_stale_resources(None);
            // It is active no more, and no event of the runtime need follow.
            self.qos_soon(now);
            self.count_soon();
        }
        if self.node.allocations.take_shrunk() {
            self.retry_resizes(Trigger::PodResized, now);
        }
    }

    /// The pods' requests have changed: the QoS cgroups follow.
    pub(super) fn qos_soon(&mut self, now: Instant) {
        self.qos.soon(now);
    }

    /// Does what the pod workers have decided, in order.
    pub(super) fn apply(&mut self, actions: Vec<Action<Arc<Pod>>>, now: Instant) {
        for action in actions {
            match action {
                Action::Run { uid, work } => self.run_work(uid, *work, now),
                Action::Cancel { uid } => {
                    if let Some(cancel) = self.tasks.get(&uid) {
                        cancel.cancel();
                    }
                }
                Action::Requeue { uid, retry } => self.requeue(uid, retry, now),
                Action::Finished { uid } => self.finish(uid, now),
            }
        }
    }

    /// Begins a task, whose end comes back as a message.
    fn run_work(&mut self, uid: PodUid, work: Work<Arc<Pod>>, now: Instant) {
        self.queue.remove(&uid);
        let cancel = self.stop.child_token();
        self.tasks.insert(uid.clone(), cancel.clone());
        if work.last_sync.is_none() {
            let waited = now.duration_since(work.since).as_secs_f64();
            self.node.metrics.workers.start.observe(waited);
            if work.kind == WorkKind::Sync && self.node.pods.is_starting(&uid) {
                let queue = stages::Stage::Queue.name();
                self.node.metrics.starts.stages.with_label_values(&[queue]).observe(waited);
            }
        }
        let stays = work.kind == WorkKind::Terminated && self.stays(&uid);
        if stays {
            self.housekeeping.keep(uid.clone());
        }
        let (node, done) = (self.node.clone(), self.done_sender.clone());
        tokio::spawn(async move {
            let end = work::run(node, uid, work, stays, cancel).await;
            // The loop is gone only when the process is.
            let _ = done.send(end);
        });
    }

    /// The pod is looked at again when its work asks for it, when its deadline passes, or when one of its tokens is to be renewed.
    fn requeue(&mut self, uid: PodUid, retry: Retry, now: Instant) {
        let frequency = self.node.config.sync_frequency();
        let at = requeue::next_look(retry, now, frequency, random_fraction(), self.began);
        let renew = self.node.pods.tokens_renew(&uid);
        let renewal = renew.map(|renew| now + requeue::until_renewal(renew, jiff::Timestamp::now()));
        let at = [self.deadline(&uid, now), renewal].into_iter().flatten().fold(at, Instant::min);
        self.queue.set(&uid, at);
    }

    /// Nothing is left to do for the pod.
    fn finish(&mut self, uid: PodUid, now: Instant) {
        tracing::debug!(pod_uid = %uid, "nothing is left to do for the pod");
        self.node.objects.unregister_pod(&uid);
        self.queue.remove(&uid);
        let waits = self.desired.get(&uid).is_none() || self.workers.restart_requested(&uid);
        self.housekeeping.pod_finished(waits, now);
        if !self.housekeeping.is_kept(&uid) || !self.stays(&uid) {
            let comes_back = self.workers.may_come_back(&uid);
            self.collect_ended(uid, comes_back);
        }
    }

    /// When a pod that lives has been here for as long as it may.
    fn deadline(&self, uid: &PodUid, now: Instant) -> Option<Instant> {
        if self.workers.lifecycle(uid) != Some(Lifecycle::Sync) {
            return None;
        }
        let (pod, status) = (&self.desired.get(uid)?.pod, self.node.pods.status(uid)?);
        let left = seconds_to_deadline(pod, &status, jiff::Timestamp::now())?;
        Some(later(now, Duration::from_secs(u64::try_from(left).unwrap_or(0))))
    }

    /// What tells how the pod ended is kept: it ended by itself, and somebody wants it.
    fn stays(&self, uid: &PodUid) -> bool {
        self.desired.get(uid).is_some()
            && !self.workers.restart_requested(uid)
            && !self.workers.content_should_be_removed(uid)
    }

    fn on_time(&mut self) {
        let now = Instant::now();
        for uid in self.queue.take_due(now) {
            match self.desired.pod(&uid) {
                Some(pod) => self.update_worker(&uid, pod, UpdateType::Sync, now),
                None => {
                    let actions = self.workers.renotify(&uid, now);
                    self.apply(actions, now);
                }
            }
        }
        if self.admission_queue.next().is_some_and(|at| at <= now) {
            self.retry_pending(now);
        }
        if self.resizes.next().is_some_and(|at| at <= now) {
            self.retry_resizes(Trigger::Periodic, now);
        }
        let known = !self.desired.is_empty() || self.node.volnetd.authority().sources_ready();
        if let Some(anew) = self.qos.take_due(now, known && self.node.cgroups.epoch().is_some()) {
            let pods: Vec<Arc<Pod>> = self.active().map(|(_, d)| d.pod.clone()).collect();
            let node = self.node.clone();
            tokio::spawn(async move { node_cgroups::set_qos(&node, &pods, anew).await });
        }
        if self.count_at.is_some_and(|at| at <= now) {
            self.count_at = None;
            self.counted = now;
            self.count();
        }
        self.turn_shutdown(now);
        self.look_at_kills(now);
        self.run_housekeeping(now);
    }

    fn shutdown_next(&self) -> Option<Instant> {
        self.shutdown.as_ref()?.next()
    }

    /// Desired pods that use the node, whether or not they are admitted yet.
    fn active(&self) -> impl Iterator<Item = (&PodUid, &Desired)> {
        self.desired.iter().filter(|(uid, desired)| self.is_active(uid, &desired.pod))
    }

    /// See [`Workers::is_active`].
    pub(super) fn is_active(&self, uid: &PodUid, pod: &Pod) -> bool {
        self.workers.is_active(uid, || self.node.pods.is_over(uid, pod))
    }

    fn on_health(&mut self) {
        let health = self.health.borrow_and_update().clone();
        if !health.network_ready || !health.ready {
            return;
        }
        // Whoever waited for the network need not wait for its own time.
        let now = Instant::now();
        let waiting: Vec<PodUid> =
            self.desired.uids().into_iter().filter(|uid| !self.workers.is_working(uid)).collect();
        for uid in waiting {
            self.queue.add(&uid, now);
        }
    }

    fn on_peer(&mut self) {
        let state = *self.peer.borrow_and_update();
        if state.ready_epoch().is_some() {
            // volnetd has restarted: its journal may hold intents of orphaned pods.
            self.housekeeping.look_for_leftovers();
            self.housekeeping.look_for_missing_links();
            self.housekeeping.run_at_once();
            self.qos.anew_soon(Instant::now());
        }
    }

    /// What callers are told about the worker.
    pub(super) fn show(&self, uid: &PodUid) {
        let Some(lifecycle) = self.workers.lifecycle(uid) else { return };
        let waits_for = self.workers.waits_for(uid).cloned();
        view::lifecycle(&self.node, uid, lifecycle, waits_for.as_ref());
    }

    /// Something that the gauges of pods show has changed: at once where they were not counted a moment ago.
    pub(super) fn count_soon(&mut self) {
        self.count_at.get_or_insert(self.counted + COUNT_PAUSE);
    }

    fn count(&self) {
        let metrics = &self.node.metrics;
        let [deferred, infeasible, under_way] = self.node.allocations.snapshot();
        metrics.resizes.pending.with_label_values(&["deferred"]).set(deferred as f64);
        metrics.resizes.pending.with_label_values(&["infeasible"]).set(infeasible as f64);
        metrics.resizes.in_progress.set(under_way as f64);
        let (mut desired, mut active) = ([0u32; 2], [0u32; 2]);
        for (uid, pod) in self.desired.iter() {
            let is_static = usize::from(pod.source.is_static());
            desired[is_static] += 1;
            active[is_static] += u32::from(self.is_active(uid, &pod.pod));
        }
        for (is_static, label) in ["", "true"].into_iter().enumerate() {
            metrics.pods.desired.with_label_values(&[label]).set(f64::from(desired[is_static]));
            metrics.pods.active.with_label_values(&[label]).set(f64::from(active[is_static]));
        }
        let ephemeral = self.desired.iter().filter_map(|(_, d)| d.pod.spec.as_ref()?.ephemeral_containers.as_ref());
        metrics.pods.ephemeral_containers.set(ephemeral.map(Vec::len).sum::<usize>() as f64);
        view::count_workers(metrics, self.workers.snapshot(|uid| self.desired.get(uid).is_some()));
        view::count_runtime(metrics, &self.node.cache.snapshot());
    }
}

/// Nothing is made of its fields where nobody logs that much.
fn log_update(update: &PodUpdate) {
    let pods = || update.pods.iter().map(|pod| desired::object_ref(pod)).collect::<Vec<_>>();
    tracing::debug!(source = %update.source, pods = ?pods(), "SyncLoop {}", update.op.as_str());
}

/// The next change of something that pods name; never, when nobody tells any more.
async fn next_change(changes: &mut Option<broadcast::Receiver<PodUid>>) -> Result<PodUid, RecvError> {
    match changes {
        Some(changes) => changes.recv().await,
        None => std::future::pending().await,
    }
}
