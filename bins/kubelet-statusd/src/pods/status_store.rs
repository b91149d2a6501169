//! Which request is next: the pods, their order, their pauses. No clock and no network of its own.
//!
//! One request at a time for a pod, [`IN_FLIGHT`] for all; of a pod always the newest state; a pod whose request was
//! refused waits alone. What kubelet-syncd no longer names is forgotten, never deleted.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::{Duration, Instant};

use bulkhead_types::PodUid;
use jiff::Timestamp;

use super::copies::ApiCopy;
use super::decide::{Context, Decision, Desired, Urgency, decide};
use super::entry::{Entry, Gone};
use super::facts::{Facts, Orphans};
use super::metrics::PodMetrics;
use super::mirror::Owner;
use super::requests::{Action, Job, Outcome};
use crate::api_writer::gate::{ANSWERED, Gate, Jitter};

/// Requests at once.
pub const IN_FLIGHT: usize = 8;
/// Changes of one pod that come together are written together.
const SETTLE: Duration = Duration::from_millis(3);
/// How long a change that nobody acts upon waits for another: a look of upstream's relist, which shows it no sooner. Longer for a pod
/// that is being deleted: its end is near, unless many end at once, and then a request less for each of them ends all of them sooner.
const MINOR: Duration = Duration::from_secs(1);
const MINOR_DELETING: Duration = Duration::from_secs(10);
/// Somebody else wrote over our status: we write again, but not in a race (upstream's period of reconciliation).
const RECONCILE: Duration = Duration::from_secs(10);
/// After our own creation of a mirror pod that no watch has shown, we look.
const LOOK_AFTER: Duration = Duration::from_secs(10);

/// All pods.
#[derive(Debug)]
pub struct StatusStore {
    pods: HashMap<PodUid, Entry>,
    due: BTreeSet<(Instant, PodUid)>,
    in_flight: usize,
    /// Pods with a request under way, those that were forgotten meanwhile and may come again among them: of two requests for a pod the
    /// older one might arrive last.
    under_way: HashSet<PodUid>,
    gate: Gate,
    facts: Facts,
    orphans: Orphans,
    /// Of the pods, those that were named since the stream began.
    named: HashSet<PodUid>,
    /// Pods that start or end, see [`Desired::is_busy`].
    busy: usize,
    epoch: u64,
    jitter: Jitter,
    metrics: PodMetrics,
}

impl StatusStore {
    /// `seed`: for the spread of retries.
    pub fn new(seed: u64, metrics: PodMetrics) -> Self {
        StatusStore {
            pods: HashMap::new(),
            due: BTreeSet::new(),
            in_flight: 0,
            under_way: HashSet::new(),
            gate: Gate::default(),
            facts: Facts::default(),
            orphans: Orphans::default(),
            named: HashSet::new(),
            busy: 0,
            epoch: 0,
            jitter: Jitter::new(seed),
            metrics,
        }
    }

    /// A stream of pods begins: a snapshot, or what changed since.
    pub fn connected(&mut self, epoch: u64, now: Instant) {
        self.named.clear();
        if self.epoch != epoch {
            self.epoch = epoch;
            for entry in self.pods.values_mut() {
                entry.forget_gone();
            }
            // What is known of the node may be of this life already, and its pods may be no news.
            self.wake_static(now);
        }
    }

    /// A pod's newest state. Answers whether it was news.
    pub fn upsert(&mut self, desired: Desired, seen: Option<ApiCopy>, now: Instant) -> bool {
        let uid = desired.uid.clone();
        self.named.insert(uid.clone());
        let is_static = desired.is_static;
        let was_busy = self.pods.get(&uid).is_some_and(|before| before.desired.is_busy());
        self.busy = self.busy - usize::from(was_busy) + usize::from(desired.is_busy());
        // What others wait for: that the pod runs, has ended, may go. Nothing more comes with the last, and little with the others.
        let turns = self.pods.get(&uid).is_some_and(|before| before.desired.phase != desired.phase);
        let settles = if turns || desired.may_delete { Duration::ZERO } else { SETTLE };
        let wakes_others = is_static && (desired.finished || !self.pods.contains_key(&uid));
        let news = match self.pods.get_mut(&uid) {
            Some(entry) => entry.update(desired, seen),
            None => {
                self.pods.insert(uid.clone(), Entry::new(desired, seen));
                true
            }
        };
        if news {
            if let Some(entry) = self.pods.get_mut(&uid) {
                entry.changed_at.get_or_insert(now);
            }
            self.schedule(&uid, now + settles);
        }
        if wakes_others {
            self.wake_static(now);
        }
        if is_static {
            self.count_mirrors();
        }
        news
    }

    /// A pod is no more.
    pub fn removed(&mut self, uid: &PodUid, now: Instant) {
        let Some(entry) = self.pods.remove(uid) else { return };
        self.named.remove(uid);
        self.busy -= usize::from(entry.desired.is_busy());
        if let Some(due) = entry.due {
            self.due.remove(&(due, uid.clone()));
        }
        if entry.desired.is_static {
            self.wake_static(now);
            self.count_mirrors();
        }
    }

    /// The snapshot was complete: what it did not name is no more.
    pub fn snapshot_done(&mut self, now: Instant) {
        let unnamed: Vec<PodUid> = self.pods.keys().filter(|uid| !self.named.contains(*uid)).cloned().collect();
        for uid in unnamed {
            self.removed(&uid, now);
        }
    }

    /// What is known of the node.
    pub fn node(&mut self, facts: Facts, now: Instant) {
        if self.facts != facts {
            self.orphans.keep(&facts.orphans, now);
            self.facts = facts;
            self.wake_static(now);
        }
    }

    /// How many pods start or end while others are to run on; none where the machine is going down.
    pub fn busy(&self) -> usize {
        if self.facts.shutting_down { 0 } else { self.busy }
    }

    /// When [`StatusStore::next`] may have something, if only time passes.
    pub fn wake_at(&self) -> Option<Instant> {
        let pod = self.due.first().map(|(at, _)| *at);
        let orphan = self.orphans_allowed().then(|| self.orphans.due()).flatten();
        let work = pod.into_iter().chain(orphan).min()?;
        self.gate.opens_at(work, self.in_flight, IN_FLIGHT).map(|opens| opens.max(work))
    }

    /// The next request that is due, if one may start.
    pub fn next(&mut self, now: Instant, wall: Timestamp) -> Option<Job> {
        while self.gate.admits(now, self.in_flight, IN_FLIGHT) {
            let uid = match self.due.first() {
                Some((at, _)) if *at <= now => self.due.pop_first()?.1,
                _ => return self.next_orphan(now),
            };
            if let Some(job) = self.look_at(&uid, now, wall) {
                self.start();
                return Some(job);
            }
        }
        None
    }

    fn next_orphan(&mut self, now: Instant) -> Option<Job> {
        if !self.orphans_allowed() {
            return None;
        }
        let pods = &self.pods;
        let busy = |namespace: &str, name: &str| {
            pods.values().any(|e| is_named(&e.desired, namespace, name) && !e.desired.finished)
        };
        let job = self.orphans.next(now, busy)?;
        self.start();
        Some(job)
    }

    fn start(&mut self) {
        self.in_flight += 1;
        self.gate.starts();
    }

    fn orphans_allowed(&self) -> bool {
        self.facts.epoch == self.epoch && self.facts.api_synced && self.facts.sources_ready
    }

    fn look_at(&mut self, uid: &PodUid, now: Instant, wall: Timestamp) -> Option<Job> {
        let owner: Option<Owner> =
            self.facts.owner.clone().filter(|_| self.facts.epoch == self.epoch && self.facts.api_synced);
        let namesake = self.has_namesake(uid, |other| !other.finished);
        let is_only_one = !self.has_namesake(uid, |_| true);
        let entry = self.pods.get_mut(uid)?;
        entry.due = None;
        if self.under_way.contains(uid) {
            return None;
        }
        if let Some(until) = entry.not_before.filter(|until| *until > now) {
            self.schedule(uid, until);
            return None;
        }
        let api = entry.api();
        let deletion_pending = entry.deletion_pending();
        let around =
            Context { api: api.as_ref(), owner: owner.as_ref(), namesake, is_only_one, deletion_pending, now: wall };
        let look_at = entry.unseen_since().map(|since| since + LOOK_AFTER);
        let action = match look_at {
            _ if entry.look => Some(Action::Look),
            Some(at) if at <= now => Some(Action::Look),
            _ => chosen(entry, api.as_ref(), decide(&entry.desired, around)),
        };
        let Some(action) = action else {
            // As it should be.
            entry.minor_since = None;
            entry.changed_at = None;
            if let Some(at) = look_at {
                self.schedule(uid, at);
            }
            return None;
        };
        if let Some(until) = held_back(entry, &action, api.as_ref(), now) {
            self.schedule(uid, until);
            return None;
        }
        entry.minor_since = None;
        self.under_way.insert(uid.clone());
        let target = api.as_ref().map(|api| api.uid.clone());
        Some(Job {
            pod: Some(uid.clone()),
            namespace: entry.desired.namespace.clone(),
            name: entry.desired.name.clone(),
            target,
            fingerprint: entry.desired.fingerprint(),
            trace_parent: entry.desired.trace_parent.to_string(),
            action,
        })
    }

    /// A request has ended.
    pub fn finished(&mut self, job: &Job, outcome: Outcome, now: Instant) {
        self.in_flight = self.in_flight.saturating_sub(1);
        if matches!(outcome, Outcome::Silent) {
            if self.gate.silent(now, &mut self.jitter) {
                tracing::warn!(
                    pod_uid = job.uid(),
                    "the API server does not answer; pods' states are kept until it does"
                );
            }
        } else if self.gate.answered() {
            tracing::info!("the API server answers again");
        }
        if matches!(job.action, Action::DeleteOrphan) {
            if let Some(target) = &job.target {
                self.orphans.finished(target, &outcome, now, &mut self.jitter);
            }
            return;
        }
        let Some(uid) = &job.pod else { return };
        self.under_way.remove(uid);
        // Forgotten meanwhile: whatever came of it, nobody asks.
        let Some(entry) = self.pods.get_mut(uid) else { return };
        let pause = settle_outcome(entry, job, outcome, now, &self.metrics);
        match pause {
            Pause::None | Pause::Settled => {
                entry.failures = 0;
                entry.not_before = None;
            }
            Pause::Unchanged => {}
            Pause::AtLeast(least) => {
                entry.failures = entry.failures.saturating_add(1);
                entry.not_before = Some(now + least.max(self.jitter.pause(ANSWERED, entry.failures)));
            }
        }
        let (again, is_static) = (entry.not_before.unwrap_or(now).max(now), entry.desired.is_static);
        if matches!(pause, Pause::Settled) {
            self.unschedule(uid);
        } else {
            self.reschedule(uid, again);
        }
        if is_static {
            self.count_mirrors();
        }
    }

    /// Another static pod of the same name of which this is true.
    fn has_namesake(&self, uid: &PodUid, is: impl Fn(&Desired) -> bool) -> bool {
        let Some(entry) = self.pods.get(uid).filter(|entry| entry.desired.is_static) else { return false };
        let me = &entry.desired;
        self.pods.values().any(|other| {
            other.desired.uid != me.uid && is(&other.desired) && is_named(&other.desired, &me.namespace, &me.name)
        })
    }

    fn wake_static(&mut self, now: Instant) {
        let uids: Vec<PodUid> =
            self.pods.iter().filter(|(_, e)| e.desired.is_static).map(|(uid, _)| uid.clone()).collect();
        for uid in uids {
            self.schedule(&uid, now + SETTLE);
        }
    }

    /// Looks at the pod at that time, unless it is to be looked at earlier anyway.
    fn schedule(&mut self, uid: &PodUid, at: Instant) {
        let Some(entry) = self.pods.get_mut(uid) else { return };
        match entry.due {
            Some(due) if due <= at => return,
            Some(due) => {
                self.due.remove(&(due, uid.clone()));
            }
            None => {}
        }
        entry.due = Some(at);
        self.due.insert((at, uid.clone()));
    }

    fn reschedule(&mut self, uid: &PodUid, at: Instant) {
        self.unschedule(uid);
        self.schedule(uid, at);
    }

    fn unschedule(&mut self, uid: &PodUid) {
        if let Some(entry) = self.pods.get_mut(uid)
            && let Some(due) = entry.due.take()
        {
            self.due.remove(&(due, uid.clone()));
        }
    }

    /// Looks at all pods: where something of a static one has changed, and those are few.
    fn count_mirrors(&self) {
        let mirrors = self.pods.values().filter(|e| e.desired.is_static && e.has_copy()).count();
        self.metrics.mirror_pods(mirrors);
    }
}

/// What an outcome means for the pod's next turn.
enum Pause {
    /// It went well: at once.
    None,
    /// It went well, and a look would show that nothing is left to do.
    Settled,
    /// Neither well nor badly.
    Unchanged,
    /// Not before this, and longer each time.
    AtLeast(Duration),
}

fn settle_outcome(entry: &mut Entry, job: &Job, outcome: Outcome, now: Instant, metrics: &PodMetrics) -> Pause {
    let looked = std::mem::take(&mut entry.look) || matches!(job.action, Action::Look);
    // A look after a conflict: what it finds is worth another try, not an immediate one.
    let after_look = if entry.failures > 0 { Pause::AtLeast(Duration::ZERO) } else { Pause::Unchanged };
    match outcome {
        Outcome::Object(copy) => {
            let pause = match &job.action {
                Action::Patch { body, makes, .. } => {
                    entry.wrote(job.fingerprint, body, &copy, now);
                    let stands = entry.desired.fingerprint() == job.fingerprint;
                    if stands && let Some(since) = entry.changed_at.take() {
                        metrics.synced(now.duration_since(since));
                    }
                    if stands && entry.is_told(*makes, &copy) { Pause::Settled } else { Pause::None }
                }
                Action::DeletePod => {
                    entry.deleted = Some(Gone::of(&copy));
                    Pause::None
                }
                // Still there, a finalizer holds it.
                Action::DeleteMirror | Action::DeleteOrphan => Pause::AtLeast(Duration::ZERO),
                Action::Create { .. } => Pause::None,
                Action::Look => after_look,
            };
            entry.answered(copy, now);
            pause
        }
        Outcome::Done => {
            if let (Action::DeletePod, Some(api)) = (&job.action, entry.api()) {
                entry.deleted = Some(Gone::of(&api));
            }
            entry.is_gone(now);
            Pause::None
        }
        // The namespace is not there (yet).
        Outcome::Missing if matches!(job.action, Action::Create { .. }) => Pause::AtLeast(Duration::ZERO),
        Outcome::Missing => {
            entry.is_gone(now);
            if looked { after_look } else { Pause::None }
        }
        Outcome::Conflict => {
            // Another pod under the name, or a race: which, only a look tells.
            entry.look = true;
            entry.failures = entry.failures.saturating_add(1);
            Pause::Unchanged
        }
        Outcome::Later(after) => {
            entry.look = looked;
            Pause::AtLeast(after.unwrap_or_default())
        }
        Outcome::Refused => {
            entry.refused = true;
            Pause::AtLeast(ANSWERED.longest)
        }
        Outcome::Silent => {
            entry.look = looked;
            Pause::Unchanged
        }
    }
}

fn is_named(desired: &Desired, namespace: &str, name: &str) -> bool {
    desired.is_static && desired.namespace == namespace && desired.name == name
}

/// The request for a decision, when there is one.
fn chosen(entry: &Entry, api: Option<&ApiCopy>, decision: Decision) -> Option<Action> {
    // A server that makes something else of a status is not asked again, nor does that keep a pod that has ended.
    let decision = match decision {
        Decision::Patch { body, then_delete, .. } if api.is_some_and(|api| entry.is_settled(&body, api)) => {
            if then_delete {
                Decision::DeletePod
            } else {
                Decision::Nothing
            }
        }
        decision => decision,
    };
    match decision {
        Decision::Nothing => None,
        Decision::Patch { body, urgency, makes, .. } => {
            Some(Action::Patch { body, minor: urgency == Urgency::Minor, makes })
        }
        Decision::DeletePod if entry.deletion_pending() => None,
        Decision::DeletePod => Some(Action::DeletePod),
        Decision::DeleteMirror => Some(Action::DeleteMirror),
        Decision::CreateMirror { body } => Some(Action::Create { body }),
        Decision::Refused(refusal) => {
            tracing::warn!(pod = %entry.desired.name, namespace = %entry.desired.namespace, uid = %entry.desired.uid,
                "status is not written: {refusal}");
            None
        }
    }
}

/// Until when a request is to wait: for company, because somebody else writes what we just wrote, or because the watch
/// still shows what we just deleted.
fn held_back(entry: &mut Entry, action: &Action, api: Option<&ApiCopy>, now: Instant) -> Option<Instant> {
    if matches!(action, Action::DeletePod) {
        return Some(entry.gone_before(api?)? + RECONCILE).filter(|until| *until > now);
    }
    let Action::Patch { minor, .. } = action else { return None };
    if let Some(at) = api.and_then(|api| entry.overwritten_since(api)) {
        return Some(at + RECONCILE).filter(|until| *until > now);
    }
    if !minor {
        return None;
    }
    let wait = if api.is_some_and(|api| api.deleting) { MINOR_DELETING } else { MINOR };
    let since = *entry.minor_since.get_or_insert(now);
    Some(since + wait).filter(|until| *until > now)
}

#[cfg(test)]
#[path = "status_store_tests.rs"]
mod tests;
