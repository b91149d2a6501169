//! The state machine of the pod workers, pure: which piece of work a pod gets next, and which never again.
//!
//! A pod goes `sync -> terminating -> terminated -> finished` and never back; it is forgotten only when its uid is no
//! longer wanted, or wanted anew. One piece of work at a time, one waiting update at most (the newest wins). Rules as in
//! upstream `pkg/kubelet/pod_workers.go`; what differs is that nothing here runs by itself: [`Workers`] answers each call
//! with the actions that follow from it.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use tokio::time::Instant;

use bulkhead_types::PodUid;

use super::messages::{Action, Kill, Lifecycle, Outcome, PodFacts, PodView, Termination, UpdateType, Work, WorkKind};
use super::requeue::Retry;

/// Shortest grace period, seconds, that a pod is given.
const MIN_GRACE: u64 = 1;

#[derive(Debug, Clone)]
struct Update<P> {
    kind: UpdateType,
    pod: Option<(P, PodFacts)>,
    since: Instant,
}

#[derive(Debug)]
pub(super) struct Worker<P> {
    pub(super) full_name: String,
    pub(super) is_static: bool,
    pub(super) has_config: bool,
    pub(super) started: bool,
    /// The runtime showed it although no configuration named it.
    pub(super) observed_runtime: bool,
    pub(super) terminating: bool,
    pub(super) terminated: bool,
    pub(super) finished: bool,
    pub(super) deleted: bool,
    pub(super) evicted: bool,
    /// Its end is not to wait for that of others.
    pub(super) hurried: bool,
    pub(super) restart_requested: bool,
    /// Seconds; 0 until the first termination request.
    pub(super) grace: u64,
    pending: Option<Update<P>>,
    active: Option<Update<P>>,
    pub(super) working: bool,
    last_sync: Option<Instant>,
}

impl<P> Worker<P> {
    fn new() -> Self {
        Worker {
            full_name: String::new(),
            is_static: false,
            has_config: false,
            started: false,
            observed_runtime: false,
            terminating: false,
            terminated: false,
            finished: false,
            deleted: false,
            evicted: false,
            hurried: false,
            restart_requested: false,
            grace: 0,
            pending: None,
            active: None,
            working: false,
            last_sync: None,
        }
    }

    pub(super) fn lifecycle(&self) -> Lifecycle {
        if self.finished {
            Lifecycle::Finished
        } else if self.terminated {
            Lifecycle::Terminated
        } else if self.terminating {
            Lifecycle::Terminating
        } else if self.started {
            Lifecycle::Sync
        } else {
            Lifecycle::Waiting
        }
    }

    /// Puts the last update in line again, for the next step of the same pod. The waiting one, if any, stays.
    fn requeue_last(&mut self, now: Instant)
    where
        P: Clone,
    {
        if self.pending.is_none()
            && let Some(active) = &self.active
        {
            self.pending = Some(Update { kind: active.kind, pod: active.pod.clone(), since: now });
        }
    }
}

/// The smallest of what is asked for; it can only shrink (upstream calculateEffectiveGracePeriod).
fn effective_grace(current: u64, facts: Option<&PodFacts>, kill: Option<u64>) -> u64 {
    let mut grace = current;
    let mut overridden = false;
    for wanted in [facts.and_then(|f| f.deletion_grace), kill].into_iter().flatten() {
        if grace == 0 || wanted < grace {
            grace = wanted;
            overridden = true;
        }
    }
    if !overridden && grace == 0 {
        grace = facts.and_then(|f| f.spec_grace).unwrap_or(0);
    }
    grace.max(MIN_GRACE)
}

/// What [`Workers::sync_known`] says about a pod that has a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PodWorkerSync {
    pub lifecycle: Lifecycle,
    /// No configuration names it any more.
    pub orphan: bool,
    pub has_config: bool,
    pub is_static: bool,
}

/// All pod workers of the node.
#[derive(Debug)]
pub struct Workers<P> {
    pub(super) pods: HashMap<PodUid, Worker<P>>,
    pub(super) started_static: HashMap<String, PodUid>,
    pub(super) waiting_static: HashMap<String, VecDeque<PodUid>>,
    /// The first [`Workers::sync_known`] has happened.
    pub(super) synced: bool,
}

impl<P> Default for Workers<P> {
    fn default() -> Self {
        Workers { pods: HashMap::new(), started_static: HashMap::new(), waiting_static: HashMap::new(), synced: false }
    }
}

impl<P: Clone> Workers<P> {
    /// An update of a pod that some source configures.
    pub fn update(
        &mut self,
        uid: &PodUid,
        kind: UpdateType,
        seen: PodView<P>,
        kill: Option<&Kill>,
        now: Instant,
    ) -> Vec<Action<P>> {
        let PodView { pod, facts, runtime_ended } = seen;
        let first = !self.pods.contains_key(uid);
        let worker = self.pods.entry(uid.clone()).or_insert_with(Worker::new);
        if first && facts.terminal_phase && runtime_ended {
            worker.started = true;
            worker.terminating = true;
            worker.terminated = true;
        }
        worker.full_name.clone_from(&facts.full_name);
        worker.is_static = facts.is_static;
        worker.has_config = true;
        if kind == UpdateType::Create && worker.terminating && !first {
            worker.restart_requested = true;
            return Vec::new();
        }
        if worker.finished {
            return Vec::new();
        }
        let mut became_terminating = false;
        if !worker.terminating && (facts.deleted || facts.terminal_phase || kind == UpdateType::Kill) {
            worker.deleted |= facts.deleted;
            worker.terminating = true;
            became_terminating = true;
        }
        worker.deleted |= facts.deleted;
        let mut hurried = false;
        if let Some(kill) = kill {
            worker.evicted |= kill.evicted;
            hurried = kill.evicted || kill.hurried;
        }
        let mut shortened = false;
        if worker.terminating && !worker.terminated {
            let grace = effective_grace(worker.grace, Some(&facts), kill.and_then(|k| k.grace));
            shortened = worker.grace != 0 && grace < worker.grace;
            worker.grace = grace;
        }
        // Its signals may be waiting for their turn, with the grace period of before.
        let asks_anew = shortened || (hurried && !worker.hurried && worker.terminating && !worker.terminated);
        worker.hurried |= hurried || shortened;
        if first && facts.is_static && !worker.started {
            self.waiting_static.entry(facts.full_name.clone()).or_default().push_back(uid.clone());
        }
        self.enqueue(uid, Update { kind, pod: Some((pod, facts)), since: now }, became_terminating || asks_anew)
    }

    /// The runtime shows a pod that no worker knows (any more): it is ended, whoever started it.
    pub fn kill_runtime_pod(&mut self, uid: &PodUid, full_name: &str, grace: u64, now: Instant) -> Vec<Action<P>> {
        let worker = self.pods.entry(uid.clone()).or_insert_with(Worker::new);
        if worker.full_name.is_empty() {
            worker.full_name = full_name.to_owned();
        }
        worker.observed_runtime = true;
        if worker.finished || worker.terminated {
            return Vec::new();
        }
        let pod = worker.pending.as_ref().or(worker.active.as_ref()).and_then(|u| u.pod.clone());
        let became_terminating = !worker.terminating;
        if became_terminating {
            worker.deleted = true;
            worker.terminating = true;
        }
        let new = effective_grace(worker.grace, pod.as_ref().map(|(_, f)| f), Some(grace));
        let shortened = worker.grace != 0 && new < worker.grace;
        worker.grace = new;
        worker.hurried |= shortened;
        self.enqueue(uid, Update { kind: UpdateType::Kill, pod, since: now }, became_terminating || shortened)
    }

    fn enqueue(&mut self, uid: &PodUid, mut update: Update<P>, cancel: bool) -> Vec<Action<P>> {
        let Some(worker) = self.pods.get_mut(uid) else { return Vec::new() };
        if let Some(waiting) = &worker.pending {
            update.since = waiting.since;
        }
        worker.pending = Some(update);
        if worker.working {
            return if cancel { vec![Action::Cancel { uid: uid.clone() }] } else { Vec::new() };
        }
        self.try_run(uid)
    }

    /// Starts the waiting update's work, if the pod may have any.
    fn try_run(&mut self, uid: &PodUid) -> Vec<Action<P>> {
        let Some(worker) = self.pods.get(uid) else { return Vec::new() };
        if worker.working || worker.pending.is_none() || worker.finished {
            return Vec::new();
        }
        if !worker.started && worker.is_static && worker.has_config {
            if worker.terminating {
                // Ended before it began: nothing was ever made for it.
                if let Some(worker) = self.pods.get_mut(uid) {
                    worker.finished = true;
                    worker.pending = None;
                }
                return self.finished(uid);
            }
            if !self.may_start_static(uid) {
                return vec![Action::Requeue { uid: uid.clone(), retry: Retry::Failed { back_off: None } }];
            }
        }
        let Some(worker) = self.pods.get_mut(uid) else { return Vec::new() };
        let Some(update) = worker.pending.take() else { return Vec::new() };
        worker.started = true;
        worker.working = true;
        let kind = match worker.lifecycle() {
            Lifecycle::Terminated | Lifecycle::Finished => WorkKind::Terminated,
            Lifecycle::Terminating if update.pod.is_none() => WorkKind::TerminatingRuntime,
            Lifecycle::Terminating => WorkKind::Terminating,
            Lifecycle::Waiting | Lifecycle::Sync => WorkKind::Sync,
        };
        let work = Work {
            kind,
            update: update.kind,
            pod: update.pod.as_ref().map(|(pod, _)| pod.clone()),
            termination: Termination { grace_seconds: worker.grace, hurried: worker.hurried },
            evicted: worker.evicted,
            last_sync: worker.last_sync,
            since: update.since,
        };
        worker.active = Some(update);
        vec![Action::Run { uid: uid.clone(), work: Box::new(work) }]
    }

    /// Only one uid of a full name is started; the others wait in the order of their arrival.
    fn may_start_static(&mut self, uid: &PodUid) -> bool {
        let Some(worker) = self.pods.get(uid) else { return false };
        let name = worker.full_name.clone();
        if let Some(started) = self.started_static.get(&name) {
            return started == uid;
        }
        if let Some(waiting) = self.waiting_static.get_mut(&name) {
            while let Some(next) = waiting.front() {
                if next == uid {
                    waiting.pop_front();
                    break;
                }
                match self.pods.get(next) {
                    Some(other) if !other.terminating => return false,
                    // It ended while it waited.
                    _ => waiting.pop_front(),
                };
            }
            if waiting.is_empty() {
                self.waiting_static.remove(&name);
            }
        }
        self.started_static.insert(name, uid.clone());
        true
    }

    /// A piece of work has ended, and changes nothing at the runtime since `now`.
    pub fn done(&mut self, uid: &PodUid, kind: WorkKind, outcome: Outcome, now: Instant) -> Vec<Action<P>> {
        let Some(worker) = self.pods.get_mut(uid) else { return Vec::new() };
        worker.working = false;
        worker.last_sync = Some(now);
        let mut retry = Retry::Success;
        match (kind, outcome) {
            // Whoever cancelled has put an update in line; should that be gone, the last one is looked at again.
            (_, Outcome::Cancelled) | (WorkKind::Sync, Outcome::Again) => {
                worker.requeue_last(now);
                retry = Retry::PhaseTransition;
            }
            (_, Outcome::Failed(how)) => retry = how,
            (WorkKind::Terminated, _) | (WorkKind::TerminatingRuntime, _) => {
                worker.terminating = true;
                worker.terminated = true;
                worker.finished = true;
                worker.pending = None;
                return self.finished(uid);
            }
            (WorkKind::Terminating, _) => {
                worker.terminated = true;
                worker.requeue_last(now);
                retry = Retry::PhaseTransition;
            }
            (WorkKind::Sync, Outcome::Terminal) => {
                if !worker.terminating {
                    worker.terminating = true;
                    let facts = worker.active.as_ref().and_then(|u| u.pod.as_ref()).map(|(_, f)| f.clone());
                    worker.grace = effective_grace(worker.grace, facts.as_ref(), None);
                }
                worker.requeue_last(now);
                retry = Retry::PhaseTransition;
            }
            (WorkKind::Sync, Outcome::Done) => {}
        }
        if worker.pending.is_some() {
            return self.try_run(uid);
        }
        vec![Action::Requeue { uid: uid.clone(), retry }]
    }

    /// A finished pod gives its full name to the next one in line.
    fn finished(&mut self, uid: &PodUid) -> Vec<Action<P>> {
        let mut actions = vec![Action::Finished { uid: uid.clone() }];
        let Some(name) = self.pods.get(uid).map(|w| w.full_name.clone()) else { return actions };
        actions.extend(self.release_name(uid, &name));
        actions
    }

    fn release_name(&mut self, uid: &PodUid, name: &str) -> Vec<Action<P>> {
        if let Some(waiting) = self.waiting_static.get_mut(name) {
            waiting.retain(|other| other != uid);
        }
        if self.started_static.get(name) != Some(uid) {
            return Vec::new();
        }
        self.started_static.remove(name);
        let waiting: Vec<PodUid> =
            self.waiting_static.get(name).map(|w| w.iter().cloned().collect()).unwrap_or_default();
        waiting.iter().flat_map(|next| self.try_run(next)).collect()
    }

    /// The time of a pod has come and no source names it any more: the last update again.
    pub fn renotify(&mut self, uid: &PodUid, now: Instant) -> Vec<Action<P>> {
        if let Some(worker) = self.pods.get_mut(uid) {
            if !worker.finished {
                worker.requeue_last(now);
            }
            return self.try_run(uid);
        }
        Vec::new()
    }

    /// Housekeeping's pass: forgets finished pods and starts to terminate orphaned ones. Only once all pod sources have synced.
    pub fn sync_known(
        &mut self,
        desired: &HashSet<PodUid>,
        now: Instant,
    ) -> (BTreeMap<PodUid, PodWorkerSync>, Vec<Action<P>>) {
        self.synced = true;
        let mut known = BTreeMap::new();
        let mut actions = Vec::new();
        let uids: Vec<PodUid> = self.pods.keys().cloned().collect();
        for uid in uids {
            let orphan = !desired.contains(&uid);
            let Some(worker) = self.pods.get_mut(&uid) else { continue };
            if (worker.restart_requested || orphan) && Self::end_or_forget(worker, orphan, now) {
                let name = worker.full_name.clone();
                self.pods.remove(&uid);
                actions.extend(self.release_name(&uid, &name));
                continue;
            }
            actions.extend(self.try_run(&uid));
            if let Some(worker) = self.pods.get(&uid) {
                let state = PodWorkerSync {
                    lifecycle: worker.lifecycle(),
                    orphan,
                    has_config: worker.has_config,
                    is_static: worker.is_static,
                };
                known.insert(uid, state);
            }
        }
        (known, actions)
    }

    /// True when the worker is to be forgotten.
    fn end_or_forget(worker: &mut Worker<P>, orphan: bool, now: Instant) -> bool {
        if worker.finished {
            return true;
        }
        if !orphan {
            return false;
        }
        worker.deleted = true;
        if !worker.started && !worker.observed_runtime {
            return true;
        }
        let begins = !worker.terminating;
        if begins {
            let facts = worker.pending.as_ref().or(worker.active.as_ref()).and_then(|u| u.pod.as_ref());
            worker.grace = effective_grace(worker.grace, facts.map(|(_, f)| f), None);
            worker.terminating = true;
        }
        // Right after what it is doing now its end begins. One that ends already is not to skip its delay after a failure.
        if begins || !worker.working {
            worker.requeue_last(now);
        }
        false
    }

    /// Another object says the same of the pod as that which `is_old` knows: it takes its place, and nothing happens.
    pub fn replace_pod(&mut self, uid: &PodUid, pod: &P, is_old: impl Fn(&P) -> bool) {
        let Some(worker) = self.pods.get_mut(uid) else { return };
        let updates = worker.pending.iter_mut().chain(worker.active.iter_mut());
        for (old, _) in updates.filter_map(|update| update.pod.as_mut()) {
            if is_old(old) {
                *old = pod.clone();
            }
        }
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
