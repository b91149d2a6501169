//! Clean-up, all of it: the main loop's passes over all pods, garbage collection, and the removal of what pods that are gone have
//! left (upstream `HandlePodCleanups`, `StartGarbageCollection`).
//!
//! | module | what it cleans up |
//! |---|---|
//! | [`plan`] | nothing: decides which pods are restarted, and which of the runtime's are killed |
//! | [`container_gc`] | dead containers and empty sandboxes |
//! | [`collected`] | nothing: which pods what is left of is being removed |
//! | [`removals`] | nothing: when what is left of a pod is removed |
//! | [`left`] | nothing: which pods may have left something that a prune has spared |
//! | [`leftovers`] | folders, mounts, cgroups and logs of pods that are gone |
//! | [`log_links`] | links to logs that a start could not make |
//!
//! Here is when each of them runs. Nothing is removed before every source has delivered.

mod collected;
pub(super) mod container_gc;
mod left;
mod leftovers;
mod log_links;
pub(super) mod plan;
mod removals;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bulkhead_types::{PodUid, go_aggregate};
use tokio::time::Instant;

use self::collected::Collected;
use self::left::Left;
use self::plan::{Plan, PlanInputs};
use self::removals::{Removals, Urgency};
use super::main_loop::SyncLoop;
use super::resize::Trigger;
use super::view;
use crate::logs::place::of_spared;
use crate::pod_workers::state::PodWorkerSync;
use crate::pod_workers::{Lifecycle, UpdateType};
use kubelet_model::events::{EventSink as _, EventType, NodeEvent};
use kubelet_model::pod::model::RuntimePod;

/// Housekeeping while something is left over, and while nothing is.
const HOUSEKEEPING_BUSY: Duration = Duration::from_secs(2);
const HOUSEKEEPING_IDLE: Duration = Duration::from_secs(60);
/// Container garbage collection of the whole node.
const GC_PERIOD: Duration = Duration::from_secs(60);
/// The next one while a pod that was removed has not been forgotten yet.
const GC_AGAIN: Duration = Duration::from_secs(10);

/// A pass looks at all pods. After one so many times as long is left to everything else, however many pods end meanwhile; and no longer
/// than until the next pass of a busy node, because a pass in which the process was stopped says nothing of how long one takes.
const REST: u32 = 20;
/// Pods that end together are one pass.
const REST_MIN: Duration = Duration::from_millis(50);
/// Between two prunes, each of which reads the folders, cgroups and logs of all pods: nobody waits for what is left of a pod that is gone.
const PRUNE_PAUSE: Duration = Duration::from_secs(2);

/// When the next passes are due, and what they have to do.
#[derive(Debug)]
pub(super) struct Housekeeping {
    at: Instant,
    /// The pass before takes its rest until then.
    rests_until: Instant,
    gc_at: Instant,
    /// What belongs to pods that are gone is to be removed from the disk: at the start, and when an orphan was seen.
    prune: bool,
    /// No prune begins before.
    prune_from: Instant,
    /// The last removal could not remove everything.
    prune_again: Arc<AtomicBool>,
    /// A pod has ended or was removed: garbage collection looks for log directories of pods that are gone.
    logs: bool,
    /// A life of volnetd or of ours has begun: a start that it interrupted may have left a container's log without its link.
    links: bool,
    /// Pods that ended while a source named them: their dead containers, logs and folders stay until no source does.
    ended: HashSet<PodUid>,
    /// Pods that a prune may have spared because a source named them.
    left: Left,
    /// Pods whose former life is being collected.
    collected: Collected,
    /// Whose turn it is.
    removals: Removals,
    /// Orphaned pods that are left alone, with what was told of each.
    spared: BTreeMap<PodUid, String>,
}

impl Housekeeping {
    pub(super) fn new(now: Instant) -> Self {
        Housekeeping {
            at: now + HOUSEKEEPING_BUSY,
            rests_until: now,
            gc_at: now + GC_PERIOD,
            prune: true,
            prune_from: now,
            prune_again: Arc::default(),
            logs: true,
            links: true,
            ended: HashSet::new(),
            left: Left::default(),
            collected: Collected::default(),
            removals: Removals::default(),
            spared: BTreeMap::new(),
        }
    }

    /// When the first of the passes is due.
    pub(super) fn next(&self) -> Instant {
        self.at.max(self.rests_until).min(self.gc_at)
    }

    /// A pass has ended that began then.
    fn rest(&mut self, began: Instant) {
        let ended = Instant::now();
        let rest = ended.saturating_duration_since(began).saturating_mul(REST);
        self.rests_until = ended + rest.clamp(REST_MIN, HOUSEKEEPING_BUSY);
    }

    /// A pod that is gone may have left folders, mounts and cgroups.
    pub(super) fn look_for_leftovers(&mut self) {
        self.prune = true;
    }

    /// A pod that is gone may have left its log directory.
    pub(super) fn look_for_logs(&mut self) {
        self.logs = true;
    }

    /// A start that was interrupted may have left a container's log without its link.
    pub(super) fn look_for_missing_links(&mut self) {
        self.links = true;
    }

    /// What is left of this pod stays until no source names it.
    pub(super) fn keep(&mut self, ended: PodUid) {
        self.ended.insert(ended);
    }

    /// Whether [`Housekeeping::keep`] was called for it.
    pub(super) fn is_kept(&self, uid: &PodUid) -> bool {
        self.ended.contains(uid)
    }

    /// What the runtime has of the pod may be a former life's, which is being removed: a pod of the same uid that has come back.
    pub(super) fn is_collected(&self, uid: &PodUid) -> bool {
        self.collected.contains(uid)
    }

    /// There is something to prune, and the last prune was a while ago. Where it was not, a pass follows when it is.
    fn may_prune(&mut self, now: Instant) -> bool {
        if self.prune && self.prune_from > now {
            self.at = self.at.min(self.prune_from);
        }
        self.prune && self.prune_from <= now
    }

    /// A prune begins. `again`: it spares something.
    fn prunes(&mut self, again: bool, now: Instant) {
        self.prune = again;
        self.prune_from = now + PRUNE_PAUSE;
    }

    /// A pass now, or as soon as the one before has rested.
    pub(super) fn run_at_once(&mut self) {
        self.at = Instant::now();
    }

    /// Nothing is left to do for a pod. `waits`: no source names it any more, so that its worker is to be forgotten, or its worker is to
    /// begin anew. For any other pod a pass has nothing to do until its source removes it.
    pub(super) fn pod_finished(&mut self, waits: bool, now: Instant) {
        if waits {
            self.run_at_once();
        } else {
            self.run_soon(now);
        }
        self.look_for_logs();
    }

    /// A pass soon.
    pub(super) fn run_soon(&mut self, now: Instant) {
        self.at = self.at.min(now + HOUSEKEEPING_BUSY);
    }
}

/// One event for all that failed.
fn collection_failed(errors: &[String]) -> Option<NodeEvent> {
    let message = go_aggregate(errors)?;
    Some(NodeEvent { kind: EventType::Warning, reason: "ContainerGCFailed", message })
}

/// What there is to tell of pods that are spared; `told`: what was told before, which follows.
fn spared_anew(told: &mut BTreeMap<PodUid, String>, spared: &[(PodUid, String)], untaken: &[String]) -> Vec<NodeEvent> {
    told.retain(|uid, _| spared.iter().any(|(other, _)| other == uid));
    // None: they have just been taken or removed.
    let spared = spared.iter().filter(|_| !untaken.is_empty());
    let news = spared.filter_map(|(uid, name)| {
        let message = format!(
            "running pod {name} ({uid}) is left alone and not managed, because its manifest may be one that could not be taken: {}",
            untaken.join("; ")
        );
        let is_known = told.insert(uid.clone(), message.clone()).is_some_and(|before| before == message);
        (!is_known).then_some(NodeEvent { kind: EventType::Warning, reason: "StaticPodNotTaken", message })
    });
    news.collect()
}

impl SyncLoop {
    /// A pod has ended and no source names it: its dead containers and sandboxes go, and the folders if they were kept. Those of a pod
    /// that its source still names go when it does not any more: until then a prune would spare them.
    ///
    /// `comes_back`: the pod begins anew, or may, and what the runtime has of its former life is not to be taken for the new one.
    pub(super) fn collect_ended(&mut self, uid: PodUid, comes_back: bool) {
        let node = self.node.clone();
        // Taken here: a pod of the same uid that begins anew must not lose what it makes meanwhile.
        let old = node.cache.get(&uid);
        if self.desired.get(&uid).is_none() {
            self.housekeeping.prune |= self.housekeeping.ended.remove(&uid);
        } else {
            self.housekeeping.left.insert(uid.clone());
            node.runtime.begins_anew(&uid, &old);
        }
        let collected = self.housekeeping.collected.begin(&uid);
        let (disk_pressure, shutdown) = (node.pressure.last().disk, self.shutdown.is_some());
        let urgency = Urgency { comes_back, disk_pressure, shutdown };
        let removals = self.housekeeping.removals.clone();
        tokio::spawn(async move {
            let _turn = if urgency.is_urgent() { None } else { removals.turn(node.runtime.all_down()).await };
            container_gc::collect_ended(&node, &uid, &old).await;
            drop(collected);
        });
    }

    /// The passes that are due.
    pub(super) fn run_housekeeping(&mut self, now: Instant) {
        if self.housekeeping.at.max(self.housekeeping.rests_until) <= now {
            self.housekeeping.at = now + HOUSEKEEPING_IDLE;
            let began = Instant::now();
            self.housekeep(now);
            self.housekeeping.rest(began);
        }
        if self.housekeeping.gc_at <= now {
            self.housekeeping.gc_at = now + GC_PERIOD;
            self.start_gc();
        }
    }

    pub(super) fn check_sources(&mut self) {
        let authority = self.node.volnetd.authority();
        if !authority.sources_ready() && self.sources.all_ready() {
            tracing::info!(pods = self.desired.len(), "all pod sources synced");
            // One that runs on may be pending: its admission waits for a plugin, or for the Node's labels.
            let runs_on = |uid: &PodUid| {
                self.workers.lifecycle(uid) == Some(Lifecycle::Sync) || self.admission_queue.is_pending(uid)
            };
            let awaited = self.desired.iter().filter(|(uid, _)| runs_on(uid));
            self.node.volume_manager.await_pods(awaited.map(|(uid, desired)| (uid, &*desired.pod)));
            authority.set_sources_ready();
            self.housekeeping.run_at_once();
            // Containers that died before this process began need not wait a whole period.
            self.housekeeping.gc_at = self.housekeeping.gc_at.min(Instant::now() + HOUSEKEEPING_BUSY);
            self.retry_resizes(Trigger::PodsAdded, Instant::now());
        }
    }

    fn housekeep(&mut self, now: Instant) {
        self.node.pressure.write_down();
        self.check_sources();
        if !self.node.volnetd.authority().sources_ready() {
            self.housekeeping.at = now + HOUSEKEEPING_BUSY;
            return;
        }
        let desired = self.desired.uids();
        let (known, actions) = self.workers.sync_known(&desired, now);
        self.apply(actions, now);
        self.remove_stale_resources(None);
        self.collect_unnamed(&known, &desired);
        let is_known = |uid: &PodUid| known.contains_key(uid) || desired.contains(uid);
        self.housekeeping.prune |= self.housekeeping.left.forget_unknown(is_known);
        // A desired pod loses its worker only to begin anew: what it ended as does not count any more.
        for uid in desired.iter().filter(|uid| !known.contains_key(*uid) && !self.admission_queue.is_not_admitted(uid))
        {
            self.node.forget(uid);
        }
        let runtime = self.node.cache.snapshot();
        let plan = self.plan(&known, &desired, &runtime);
        self.restart_pods(&plan, now);
        self.node.ownership.learn(plan.ask.clone());
        self.report_spared(&plan, &runtime);
        self.kill_orphans(&plan, now);
        for uid in self.node.pods.known_pods() {
            if self.workers.lifecycle(&uid).is_none() && !desired.contains(&uid) {
                self.node.forget(&uid);
                self.queue.remove(&uid);
            }
        }
        if !plan::is_settled(&plan, &known) {
            self.housekeeping.at = now + HOUSEKEEPING_BUSY;
        }
        if std::mem::take(&mut self.housekeeping.links) {
            let node = self.node.clone();
            tokio::spawn(async move {
                // The runtime's word on a container that has just been started may still be under way.
                tokio::time::sleep(HOUSEKEEPING_BUSY).await;
                log_links::link_logs(&node).await;
            });
        }
        self.housekeeping.prune |= self.housekeeping.prune_again.swap(false, Ordering::Relaxed);
        if self.housekeeping.may_prune(now) {
            self.start_prune(plan.known, &known, now);
        }
        self.forget_what_is_gone(&runtime, &desired);
        self.give_claims_back(&runtime);
        self.count_soon();
    }

    /// Pods that ended while a source named them, and that none names any more.
    fn collect_unnamed(&mut self, known: &BTreeMap<PodUid, PodWorkerSync>, desired: &HashSet<PodUid>) {
        let ended = self.housekeeping.ended.iter();
        let unnamed = ended.filter(|uid| !known.contains_key(*uid) && !desired.contains(*uid));
        for uid in unnamed.cloned().collect::<Vec<_>>() {
            // They are few: what is deleted while it runs is not kept.
            self.collect_ended(uid, true);
        }
    }

    fn plan(
        &self,
        known: &BTreeMap<PodUid, PodWorkerSync>,
        desired: &HashSet<PodUid>,
        runtime: &[(PodUid, Arc<RuntimePod>)],
    ) -> Plan {
        let over = self.desired.iter().filter(|(uid, d)| self.node.pods.is_over(uid, &d.pod));
        let admitted = desired.iter().filter(|uid| !self.admission_queue.is_not_admitted(uid));
        plan::plan(&PlanInputs {
            workers: known,
            desired,
            admitted: &admitted.cloned().collect(),
            ended: &over.map(|(uid, _)| uid.clone()).collect(),
            runtime,
            owner: &|pod| self.node.ownership.decided(pod),
            spares: &|uid| self.sources.spares(uid),
        })
    }

    /// Desired pods without a pod worker get one.
    fn restart_pods(&mut self, plan: &Plan, now: Instant) {
        for uid in &plan.restart {
            tracing::info!(pod_uid = %uid, "pod will be restarted because it is desired and not known to the pod workers (likely due to UID reuse)");
            let is_static = self.desired.get(uid).is_some_and(|desired| desired.source.is_static());
            self.node.metrics.count_restarted(is_static);
            self.begin_anew(uid, now);
        }
        for uid in &plan.show {
            tracing::info!(pod_uid = %uid, "pod that has ended is desired again under the same UID");
            self.begin_anew(uid, now);
        }
    }

    /// Pods that are left alone: their logs are looked after, and the node has an event of each.
    fn report_spared(&mut self, plan: &Plan, runtime: &[(PodUid, Arc<RuntimePod>)]) {
        let is_spared = |uid: &PodUid| plan.spared.iter().any(|(spared, _)| spared == uid);
        let spared = runtime.iter().filter(|(uid, _)| is_spared(uid));
        let logs = spared.flat_map(|(uid, pod)| of_spared(uid, pod, &self.node.config.paths));
        self.node.spared_logs.set(logs.collect());
        let untaken = if plan.spared.is_empty() { Vec::new() } else { self.sources.untaken() };
        // Of one that a source wants by now the main loop only has not heard yet.
        let unmanaged = plan.spared.iter().filter(|(uid, _)| self.sources.pod(uid).is_none()).cloned();
        for event in spared_anew(&mut self.housekeeping.spared, &unmanaged.collect::<Vec<_>>(), &untaken) {
            self.node.reporter.emit_node(event);
        }
    }

    fn kill_orphans(&mut self, plan: &Plan, now: Instant) {
        for (uid, name) in &plan.kill {
            tracing::warn!(pod_uid = %uid, name, "killing orphaned pod");
            self.node.metrics.workers.orphaned_runtime_pods.inc();
            self.housekeeping.prune = true;
            let actions = self.workers.kill_runtime_pod(uid, name, plan::ORPHAN_GRACE, now);
            self.apply(actions, now);
        }
    }

    /// What pods have of drivers that are not there any more, or have ended, is given back.
    fn give_claims_back(&self, runtime: &[(PodUid, Arc<RuntimePod>)]) {
        let alive = |uid: &&PodUid| self.workers.lifecycle(uid).is_some_and(|at| at < Lifecycle::Terminated);
        let undecided = |uid: &&PodUid| self.workers.lifecycle(uid).is_none();
        let desired = self.desired.uids();
        let runs = runtime.iter().filter(|(_, pod)| pod.running().next().is_some()).map(|(uid, _)| uid);
        let active = self.workers.uids().filter(alive).chain(desired.iter().filter(undecided)).chain(runs);
        self.node.claims.only(active.map(ToString::to_string).collect());
    }

    /// What is kept of pods and containers ends with them.
    fn forget_what_is_gone(&mut self, runtime: &[(PodUid, Arc<RuntimePod>)], desired: &HashSet<PodUid>) {
        // A pod keeps its users to its last process, an orphaned one as well; what is left of it is not waited for, as in upstream's
        // SyncTerminatedPod: they may be those that a new pod waits for.
        let alive: HashSet<&PodUid> =
            runtime.iter().filter(|(_, pod)| plan::is_alive(pod)).map(|(uid, _)| uid).collect();
        let has_work = |uid: &PodUid| self.workers.lifecycle(uid).is_some();
        self.evictions.retain(|uid| desired.contains(uid));
        self.node.runtime.retain_former_lives(|uid| desired.contains(uid));
        self.node.runtime.retain_users(|uid| desired.contains(uid) || alive.contains(uid) || has_work(uid));
        let mut granted = desired.clone();
        granted.extend(self.workers.uids().cloned());
        self.node.allocations.retain(&granted);
        self.node.runtime.forget_expired();
        self.node.ownership.retain(runtime, desired);
        let exist = runtime.iter().flat_map(|(_, pod)| pod.containers.iter().map(|c| c.id.clone())).collect();
        self.node.termination_messages.retain(&exist);
        self.node.prober.retain(&exist);
        self.node.runtime.retain_containers(&exist);
    }

    /// A desired pod without a worker gets one, and is shown again.
    fn begin_anew(&mut self, uid: &PodUid, now: Instant) {
        let Some((pod, source)) = self.desired.get(uid).map(|d| (d.pod.clone(), d.source)) else { return };
        view::introduce(&self.node, uid, &pod, source);
        self.admission_queue.forget(uid);
        self.node.objects.register_pod(&pod);
        self.update_worker(uid, pod, UpdateType::Create, now);
    }

    /// Once nothing of an orphan lives any more, what it left on the disk may go.
    fn start_prune(&mut self, mut keep: HashSet<PodUid>, known: &BTreeMap<PodUid, PodWorkerSync>, now: Instant) {
        keep.extend(self.workers.uids().cloned());
        let node = self.node.clone();
        if node.volnetd.link().state().ready_epoch().is_none() || node.prune_gate.is_pruning() {
            self.housekeeping.run_soon(now);
            return;
        }
        // An orphan that is still ending keeps its things; another pass follows when it has ended.
        self.housekeeping.prunes(known.values().any(|k| k.orphan), now);
        node.volume_manager.retain(|uid| keep.contains(uid));
        node.prune_gate.begin(keep.clone());
        let again = self.housekeeping.prune_again.clone();
        tokio::spawn(async move {
            if !leftovers::prune(&node, &keep).await {
                again.store(true, Ordering::Relaxed);
            }
            node.prune_gate.end();
        });
    }

    /// Log directories of pods that are gone are to be removed, by the next pass where not by this one: which pods are known. Others
    /// wait until that has ended: their new directories would be taken for leftovers.
    fn begin_with_logs(&mut self, removable: &HashSet<PodUid>) -> Option<Vec<String>> {
        let waits = self.node.prune_gate.is_pruning();
        if waits || self.workers.uids().any(|uid| self.desired.get(uid).is_none()) {
            // What has not been forgotten yet keeps its logs this time.
            self.housekeeping.logs = true;
            self.housekeeping.gc_at = self.housekeeping.gc_at.min(Instant::now() + GC_AGAIN);
        }
        if waits {
            return None;
        }
        let mut known = self.desired.uids();
        known.extend(self.workers.uids().cloned());
        known.extend(self.node.cache.snapshot().into_iter().map(|(uid, _)| uid).filter(|u| !removable.contains(u)));
        let names = known.iter().map(ToString::to_string).collect();
        self.node.prune_gate.begin(known);
        Some(names)
    }

    /// Dead containers and sandboxes of the whole node, and logs of pods that are gone.
    fn start_gc(&mut self) {
        if !self.node.volnetd.authority().sources_ready() {
            return;
        }
        let removable: HashSet<PodUid> = self
            .node
            .cache
            .snapshot()
            .into_iter()
            .map(|(uid, _)| uid)
            .filter(|uid| plan::is_removable(&self.workers, &self.desired, &self.sources, uid))
            .collect();
        let known = std::mem::take(&mut self.housekeeping.logs).then(|| self.begin_with_logs(&removable)).flatten();
        // Nothing of a pod that waits for its admission goes: it is what tells how far the pod has come.
        let spared = self.admission_queue.pending();
        let (node, again) = (self.node.clone(), self.housekeeping.prune_again.clone());
        tokio::spawn(async move {
            let mut logs_failed = None;
            // First: pods that it does not know wait for its end, and containers take their time.
            if let Some(known) = known {
                if let Err(error) = leftovers::prune_logs(&node, known).await {
                    again.store(true, Ordering::Relaxed);
                    logs_failed = error;
                }
                node.prune_gate.end();
            }
            let health = node.health.borrow().clone();
            let mut failed = Vec::new();
            if health.silent {
                // Nobody can say what is there, and nothing can be removed.
                failed.push(health.reason);
            } else {
                container_gc::collect_node(&node, &removable, &spared).await;
            }
            failed.extend(logs_failed);
            if let Some(event) = collection_failed(&failed) {
                node.reporter.emit_node(event);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn pods_that_end_together_are_one_pass_and_few_prunes() {
        let now = Instant::now();
        let mut housekeeping = Housekeeping::new(now);
        housekeeping.run_at_once();
        assert_eq!(housekeeping.next(), now, "the first at once");
        housekeeping.rest(now);
        housekeeping.run_at_once();
        assert_eq!(housekeeping.next(), now + REST_MIN);

        assert!(housekeeping.may_prune(now), "what an earlier life has left");
        housekeeping.prunes(false, now);
        assert!(!housekeeping.may_prune(now + PRUNE_PAUSE * 2), "nothing is due");
        housekeeping.look_for_leftovers();
        housekeeping.at = now + HOUSEKEEPING_IDLE;
        assert!(!housekeeping.may_prune(now + REST_MIN));
        assert_eq!(housekeeping.next(), now + PRUNE_PAUSE, "and a pass comes for it");
        assert!(housekeeping.may_prune(now + PRUNE_PAUSE));
    }

    #[tokio::test(start_paused = true)]
    async fn a_pass_is_at_once_only_for_a_pod_that_waits_for_it() {
        let now = Instant::now();
        for (waits, at) in [(true, now), (false, now + HOUSEKEEPING_BUSY)] {
            let mut housekeeping = Housekeeping { at: now + HOUSEKEEPING_IDLE, logs: false, ..Housekeeping::new(now) };
            housekeeping.pod_finished(waits, now);
            assert_eq!((housekeeping.next(), housekeeping.logs), (at, true));
        }
    }

    #[test]
    fn of_a_pod_that_is_spared_is_told_once_and_when_the_reason_changes() {
        let mut told = BTreeMap::new();
        let mut tell = |spared: &[&str], untaken: &[&str]| {
            let spared: Vec<_> = spared.iter().map(|uid| (PodUid::parse(uid).unwrap(), format!("{uid}_ns"))).collect();
            let untaken: Vec<String> = untaken.iter().map(ToString::to_string).collect();
            spared_anew(&mut told, &spared, &untaken).into_iter().map(|event| event.message).collect::<Vec<_>>()
        };
        let first = tell(&["a"], &["/m/x: not root's", "/m/y: invalid"]);
        assert!(first.len() == 1 && first[0].contains("a_ns (a)"), "{first:?}");
        assert!(first[0].ends_with(": /m/x: not root's; /m/y: invalid"), "{first:?}");
        assert!(tell(&["a"], &["/m/x: not root's", "/m/y: invalid"]).is_empty());
        assert_eq!(tell(&["a", "b"], &["/m/x: not root's", "/m/y: invalid"]).len(), 1, "of another pod");
        assert_eq!(tell(&["a", "b"], &["/m/x: not root's"]).len(), 2, "for another reason");
        assert!(tell(&["a"], &[]).is_empty(), "the files have been removed");
        assert!(tell(&[], &[]).is_empty());
        assert_eq!(tell(&["a"], &["/m/x: not root's"]).len(), 1, "anew");
    }

    #[test]
    fn one_event_for_all_that_failed() {
        let of = |errors: &[&str]| {
            collection_failed(&errors.iter().map(ToString::to_string).collect::<Vec<_>>()).map(|event| event.message)
        };
        assert_eq!(of(&[]), None);
        assert_eq!(of(&["no answer"]).unwrap(), "no answer");
        assert_eq!(of(&["no answer", "no folder", "no answer"]).unwrap(), "[no answer, no folder]");
    }
}
