//! Which pods to look at, and when: events, requests and lists in; inspections out. Pure, with the clock passed in.
//!
//! The runtime's events are hints. containerd publishes them before its CRI side has taken note, so each one leaves an
//! expectation behind, and the pod is looked at again, at growing intervals, until it is met or given up.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use bulkhead_cri::RuntimeEventKind;
use bulkhead_types::{BackOff, PodUid};
use tokio::time::Instant;

use super::due::DueTimes;
use super::relist::{PlegState, PodLifecycleEvent, PodLifecycleEventKind, PodStates, diff};

/// Events of one pod come in twos and threes; this long after the first they are answered together.
const DEBOUNCE: Duration = Duration::from_millis(2);
/// containerd's CRI side takes note of an exit about this long after the exit's event, and after the one of the end of
/// its output (measured on 1.6: 40 ms and 20 ms); looking earlier is work for nothing.
const EXIT_SETTLES: Duration = Duration::from_millis(45);
const FINISH_SETTLES: Duration = Duration::from_millis(25);
/// First and longest interval between looks at a pod whose expectation is not met.
const RECHECK_MIN: Duration = Duration::from_millis(4);
const RECHECK_MAX: Duration = Duration::from_millis(250);
/// After this an expectation is given up: the event was wrong, or the audit will tell.
const EXPECT_FOR: Duration = Duration::from_secs(3);
/// Retries of a failed inspection; the first is upstream's relist period.
const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(10);
/// How long the looks at a pod wait for its own worker.
pub(super) const BUSY_MAX: Duration = Duration::from_secs(2);
/// After the last start a new sandbox's id is known from the look at its pod: a lookup would be a second one.
const LOOKUP_SETTLES: Duration = Duration::from_millis(20);
/// Ids whose pod is not known yet. Above it they are dropped: the audit finds what they stood for.
const UNRESOLVED_MAX: usize = 256;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AwaitedState {
    NotCreated,
    Ended,
    Gone,
}

#[derive(Debug)]
struct Expectation {
    id: Box<str>,
    want: AwaitedState,
    until: Instant,
}

#[derive(Debug, Default)]
struct Track {
    states: PodStates,
    observed_at: Option<Instant>,
    in_flight: bool,
    expectations: Vec<Expectation>,
    recheck: Duration,
    /// Containers whose status is to be read even if their state did not change.
    refresh: HashSet<Box<str>>,
    /// Asked for since the last inspection began, and of the one in flight.
    tell: bool,
    telling: bool,
    failures: u32,
    /// A list showed the difference, and no event named the pod since.
    from_audit: bool,
}

#[derive(Debug)]
struct Unresolved {
    kind: RuntimeEventKind,
    due: Option<Instant>,
    delay: Duration,
    until: Instant,
}

/// One inspection to be made.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Order {
    pub uid: PodUid,
    pub refresh: HashSet<Box<str>>,
    /// Ids that events have named and of which something is awaited.
    pub named: Vec<Box<str>>,
    /// The audit showed another state than what is known, or the last look failed: what there is, only lists of the pod tell.
    pub in_doubt: bool,
}

/// What an inspection gave.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    pub events: Vec<PodLifecycleEvent>,
    /// How many of them only the audit brought to light.
    pub missed: usize,
}

#[derive(Debug, Default)]
pub(super) struct Tracker {
    pods: HashMap<PodUid, Track>,
    /// When each of them is to be looked at, if it is.
    due: DueTimes,
    unresolved: HashMap<Box<str>, Unresolved>,
    in_flight: usize,
    /// Pods that their workers are changing, and until when that is a reason to wait.
    busy: HashMap<PodUid, Instant>,
}

impl Tracker {
    /// Pods that their workers have begun to change, with how long that is a reason to wait, and pods that they do not change any more.
    /// Ids without a pod are probably of the former, so they wait too.
    pub(super) fn busy(&mut self, changes: Vec<(PodUid, Option<Instant>)>, now: Instant) {
        let was_any = !self.busy.is_empty();
        for (uid, until) in changes {
            match until {
                Some(until) => self.busy.insert(uid, until),
                None => self.busy.remove(&uid),
            };
        }
        if was_any && self.busy.is_empty() {
            for entry in self.unresolved.values_mut().filter(|entry| entry.due.is_some()) {
                entry.due = Some(now + LOOKUP_SETTLES);
                entry.until = now + EXPECT_FOR;
            }
        }
    }

    /// When a lookup may be made, if there is one to make: not while somebody starts something, for a bounded time.
    fn lookups_from(&self) -> Option<Instant> {
        if self.unresolved.is_empty() { None } else { self.busy.values().min().copied() }
    }

    /// An event of a container or sandbox whose pod is known; `settled`: the CRI told it, so its answers agree already.
    pub(super) fn event(&mut self, uid: &PodUid, id: &str, kind: RuntimeEventKind, settled: bool, now: Instant) {
        let track = self.pods.entry(uid.clone()).or_default();
        let state = track.states.get(id).copied();
        let want = match kind {
            // A container that was only created is nothing to act on; whoever created it asks for a look.
            RuntimeEventKind::Created => return,
            RuntimeEventKind::OutOfMemory => {
                track.refresh.insert(id.into());
                None
            }
            RuntimeEventKind::Started if matches!(state, Some(PlegState::Running | PlegState::Exited)) => return,
            RuntimeEventKind::Started => Some(AwaitedState::NotCreated),
            // Unless the runtime's own answer is still waited for.
            RuntimeEventKind::Exited(_) | RuntimeEventKind::Finished(_)
                if state == Some(PlegState::Exited) && !track.expectations.iter().any(|e| &*e.id == id) =>
            {
                return;
            }
            RuntimeEventKind::Exited(_) | RuntimeEventKind::Finished(_) => Some(AwaitedState::Ended),
            RuntimeEventKind::Deleted if state.is_none() && track.observed_at.is_some() => return,
            RuntimeEventKind::Deleted => Some(AwaitedState::Gone),
        };
        if let Some(want) = want {
            track.expectations.retain(|e| &*e.id != id);
            track.expectations.push(Expectation { id: id.into(), want, until: now + EXPECT_FOR });
            track.recheck = RECHECK_MIN;
        }
        track.from_audit = false;
        let pause = match kind {
            RuntimeEventKind::Exited(_) if !settled => EXIT_SETTLES,
            RuntimeEventKind::Finished(_) if !settled => FINISH_SETTLES,
            _ => DEBOUNCE,
        };
        self.due.at(uid, now + pause);
    }

    /// A container has ended by the runtime's own word, and the CRI's events will say so when its answers agree: theirs brings the
    /// look, and time does where it does not come.
    pub(super) fn ends_early(&mut self, uid: &PodUid, id: &str, now: Instant) {
        let track = self.pods.entry(uid.clone()).or_default();
        let runs = track.states.get(id) == Some(&PlegState::Running);
        if runs && !track.expectations.iter().any(|one| &*one.id == id) {
            let until = now + EXPECT_FOR;
            track.expectations.push(Expectation { id: id.into(), want: AwaitedState::Ended, until });
            track.recheck = RECHECK_MIN;
            track.from_audit = false;
            self.due.at(uid, until);
        }
    }

    /// A container is known to have ended before the runtime's answers say so. Gives the event, unless it is known.
    pub(super) fn finished(&mut self, uid: &PodUid, id: &str) -> Option<PodLifecycleEvent> {
        let state = self.pods.get_mut(uid)?.states.get_mut(id).filter(|state| **state == PlegState::Running)?;
        *state = PlegState::Exited;
        Some(PodLifecycleEvent { uid: uid.clone(), kind: PodLifecycleEventKind::ContainerDied, id: id.into() })
    }

    /// An event of an id that no known pod has.
    pub(super) fn unresolved_event(&mut self, id: &str, kind: RuntimeEventKind, now: Instant) {
        // What was never seen and is deleted leaves nothing to find.
        if matches!(kind, RuntimeEventKind::Created | RuntimeEventKind::Deleted) {
            return;
        }
        if let Some(known) = self.unresolved.get_mut(id) {
            known.kind = kind;
        } else if self.unresolved.len() < UNRESOLVED_MAX {
            let entry = Unresolved { kind, due: Some(now + DEBOUNCE), delay: RECHECK_MIN * 2, until: now + EXPECT_FOR };
            self.unresolved.insert(id.into(), entry);
        }
    }

    /// A look at a pod told whose some ids are: no lookup is needed for them.
    pub(super) fn resolve_own(&mut self, uid: &PodUid, now: Instant) {
        let Some(track) = self.pods.get(uid).filter(|_| !self.unresolved.is_empty()) else { return };
        let ids: Vec<Box<str>> = track.states.keys().filter(|id| self.unresolved.contains_key(*id)).cloned().collect();
        for id in ids {
            self.looked_up(&id, Some(uid.clone()), now);
        }
    }

    /// Ids to look up now.
    pub(super) fn take_lookups(&mut self, now: Instant) -> Vec<Box<str>> {
        if self.lookups_from().is_some_and(|from| now < from) {
            return Vec::new();
        }
        let due = self.unresolved.iter_mut().filter(|(_, u)| u.due.is_some_and(|due| due <= now));
        due.map(|(id, u)| {
            u.due = None;
            id.clone()
        })
        .collect()
    }

    /// Answer of a lookup; None: not found, or no answer.
    pub(super) fn looked_up(&mut self, id: &str, owner: Option<PodUid>, now: Instant) {
        let Some(entry) = self.unresolved.get_mut(id) else { return };
        match owner {
            Some(uid) => {
                let kind = entry.kind;
                self.unresolved.remove(id);
                self.event(&uid, id, kind, true, now);
            }
            None if now >= entry.until => drop(self.unresolved.remove(id)),
            None => {
                entry.due = Some(now + entry.delay);
                entry.delay = (entry.delay * 2).min(RECHECK_MAX);
            }
        }
    }

    /// The next look at the pod asks about these containers whatever their states are.
    pub(super) fn refresh(&mut self, uid: &PodUid, ids: HashSet<Box<str>>) {
        self.pods.entry(uid.clone()).or_default().refresh.extend(ids);
    }

    /// Somebody wants a fresh look; with `tell` the pod's worker hears of it even if nothing changed.
    pub(super) fn request(&mut self, uid: &PodUid, tell: bool, now: Instant) {
        self.pods.entry(uid.clone()).or_default().tell |= tell;
        self.due.at(uid, now);
    }

    /// A list of everything, begun at `started`; `audit`: events should have told of all that it shows. Gives the pods
    /// for which it does not stand: they differ from what is known, or are being looked at.
    pub(super) fn listed(
        &mut self,
        pods: &HashMap<PodUid, PodStates>,
        started: Instant,
        now: Instant,
        audit: bool,
    ) -> HashSet<PodUid> {
        for uid in pods.keys() {
            self.pods.entry(uid.clone()).or_default();
        }
        let nothing = PodStates::new();
        let mut doubtful = HashSet::new();
        for (uid, track) in &mut self.pods {
            if track.observed_at.is_some_and(|at| at >= started) {
                continue;
            }
            let differs = pods.get(uid).unwrap_or(&nothing) != &track.states;
            if track.in_flight {
                // That look was begun before the list: another one follows it.
                doubtful.insert(uid.clone());
                self.due.at(uid, now);
            } else if self.due.contains(uid) {
                doubtful.insert(uid.clone());
            } else if differs {
                doubtful.insert(uid.clone());
                track.from_audit = audit;
                self.due.at(uid, now);
            }
        }
        doubtful
    }

    /// Inspections to start now, at most as many as keep `in_flight_max`; each pod has one at a time.
    pub(super) fn take_due(&mut self, now: Instant, in_flight_max: usize) -> Vec<Order> {
        let room = in_flight_max.saturating_sub(self.in_flight);
        if room == 0 {
            return Vec::new();
        }
        let due = self.due.by_time().take_while(|(due, _)| *due <= now).map(|(_, uid)| uid);
        let ready = due.filter(|uid| self.is_free(uid, now)).take(room);
        let ready: Vec<PodUid> = ready.cloned().collect();
        let mut orders = Vec::new();
        for uid in ready {
            self.due.remove(&uid);
            if let Some(track) = self.pods.get_mut(&uid) {
                track.in_flight = true;
                track.telling |= std::mem::take(&mut track.tell);
                self.in_flight += 1;
                let refresh = std::mem::take(&mut track.refresh);
                let named = track.expectations.iter().map(|one| one.id.clone()).chain(refresh.iter().cloned());
                let (named, in_doubt) = (named.collect(), track.from_audit || track.failures > 0);
                orders.push(Order { uid, refresh, named, in_doubt });
            }
        }
        orders
    }

    /// When there is something to do again. None: only when something comes in.
    pub(super) fn next_due(&self, in_flight_max: usize) -> Option<Instant> {
        let not_before = |due: Instant, from: Option<Instant>| from.map_or(due, |from| due.max(from));
        let mut inspection: Option<Instant> = None;
        let has_room = self.in_flight < in_flight_max;
        let inspections = self.due.by_time().take_while(|_| has_room);
        for (due, uid) in inspections.filter(|(_, uid)| !self.is_in_flight(uid)) {
            // Nothing behind it comes earlier.
            if inspection.is_some_and(|first| first <= due) {
                break;
            }
            let at = not_before(due, self.busy.get(uid).copied());
            inspection = Some(inspection.map_or(at, |first| first.min(at)));
        }
        let lookups_from = self.lookups_from();
        let lookups = self.unresolved.values().filter_map(|u| u.due).map(|due| not_before(due, lookups_from));
        inspection.into_iter().chain(lookups).min()
    }

    /// A look at the pod is due, and waits for nothing but room.
    pub(super) fn is_ready(&self, uid: &PodUid, now: Instant) -> bool {
        self.due.of(uid).is_some_and(|due| due <= now) && self.is_free(uid, now)
    }

    fn is_free(&self, uid: &PodUid, now: Instant) -> bool {
        !self.is_in_flight(uid) && self.busy.get(uid).is_none_or(|until| *until <= now)
    }

    fn is_in_flight(&self, uid: &PodUid) -> bool {
        self.pods.get(uid).is_some_and(|track| track.in_flight)
    }

    /// Result of an inspection that began at `observed_at`; None: it failed, and will be tried again. `states` is what
    /// to go by, `answered` what the runtime said: they differ where it is known to be behind.
    pub(super) fn inspected(
        &mut self,
        uid: &PodUid,
        observed_at: Instant,
        states: Option<(PodStates, PodStates)>,
        now: Instant,
    ) -> Outcome {
        let mut outcome = Outcome { events: Vec::new(), missed: 0 };
        let Some(track) = self.pods.get_mut(uid) else { return outcome };
        if track.in_flight {
            track.in_flight = false;
            self.in_flight -= 1;
        }
        let Some((states, answered)) = states else {
            track.failures = track.failures.saturating_add(1);
            let delay = BackOff::new(RETRY_MIN, RETRY_MAX).after(track.failures);
            self.due.at(uid, now + delay);
            return outcome;
        };
        track.failures = 0;
        let mut events = diff(uid, &track.states, &states);
        events.retain(|e| e.kind != PodLifecycleEventKind::ContainerChanged);
        if std::mem::take(&mut track.from_audit) {
            outcome.missed = events.len();
        }
        if std::mem::take(&mut track.telling) && events.is_empty() {
            events.push(PodLifecycleEvent { uid: uid.clone(), kind: PodLifecycleEventKind::PodSync, id: "".into() });
        }
        outcome.events = events;
        track.states = states;
        track.observed_at = Some(observed_at);
        track.expectations.retain(|e| now < e.until && !e.met(&answered));
        if !track.expectations.is_empty() {
            self.due.at(uid, now + track.recheck);
            track.recheck = (track.recheck * 2).min(RECHECK_MAX);
        } else if track.states.is_empty() && !self.due.contains(uid) {
            self.pods.remove(uid);
        }
        outcome
    }
}

impl Expectation {
    fn met(&self, states: &PodStates) -> bool {
        let state = states.get(&self.id);
        match self.want {
            AwaitedState::NotCreated => matches!(state, Some(PlegState::Running | PlegState::Exited)),
            AwaitedState::Ended => matches!(state, None | Some(PlegState::Exited)),
            AwaitedState::Gone => state.is_none(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use RuntimeEventKind as Event;

    fn uid(text: &str) -> PodUid {
        PodUid::parse(text).unwrap()
    }

    fn states(list: &[(&str, PlegState)]) -> PodStates {
        list.iter().map(|(id, state)| (Box::from(*id), *state)).collect()
    }

    /// The runtime's answer, taken as it is.
    fn both(list: &[(&str, PlegState)]) -> Option<(PodStates, PodStates)> {
        Some((states(list), states(list)))
    }

    fn kinds(outcome: &Outcome) -> Vec<PodLifecycleEventKind> {
        outcome.events.iter().map(|e| e.kind).collect()
    }

    /// A tracker that knows pod `u` with container `c` running, and the moment of that.
    fn running() -> (Tracker, PodUid, Instant) {
        let (mut tracker, u, now) = (Tracker::default(), uid("u"), Instant::now());
        let listed = HashMap::from([(u.clone(), states(&[("c", PlegState::Running)]))]);
        assert_eq!(tracker.listed(&listed, now, now, false), HashSet::from([u.clone()]));
        assert_eq!(tracker.take_due(now, 9).len(), 1);
        let outcome = tracker.inspected(&u, now, both(&[("c", PlegState::Running)]), now);
        assert_eq!(kinds(&outcome), [PodLifecycleEventKind::ContainerStarted]);
        assert_eq!((outcome.missed, tracker.next_due(9)), (0, None));
        (tracker, u, now)
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_that_its_worker_changes_is_looked_at_afterwards_or_after_a_while() {
        let (mut tracker, u, now) = running();
        let busy = |until| vec![(uid("u"), until)];
        tracker.busy(busy(Some(now + BUSY_MAX)), now);
        tracker.event(&u, "d", Event::Started, false, now);
        tracker.unresolved_event("new", Event::Started, now);
        let soon = now + DEBOUNCE;
        assert!(tracker.take_due(soon, 8).is_empty() && tracker.take_lookups(soon).is_empty());
        assert_eq!(tracker.next_due(8), Some(now + BUSY_MAX), "and nothing wakes for it before");
        assert_eq!(tracker.take_due(now + BUSY_MAX, 8).len(), 1, "a hung start hides nothing for long");

        let (mut tracker, u, now) = running();
        tracker.busy(busy(Some(now + BUSY_MAX)), now);
        tracker.event(&u, "d", Event::Started, false, now);
        tracker.unresolved_event("new", Event::Started, now);
        tracker.busy(busy(None), soon);
        assert_eq!(tracker.take_due(soon, 8).len(), 1, "at once when the worker is done");
        let seen = both(&[("c", PlegState::Running), ("d", PlegState::Running), ("new", PlegState::Running)]);
        tracker.inspected(&u, soon, seen, soon);
        tracker.resolve_own(&u, soon);
        assert!(tracker.take_lookups(soon + EXPECT_FOR).is_empty(), "the look told whose it is");
    }

    #[tokio::test(start_paused = true)]
    async fn an_exit_is_looked_for_until_the_runtime_knows_of_it() {
        let (mut tracker, u, mut now) = running();
        tracker.event(&u, "c", Event::Exited(Some(0)), true, now);
        tracker.event(&u, "c", Event::Exited(Some(0)), true, now);
        let mut pauses = Vec::new();
        for _ in 0..4 {
            let due = tracker.next_due(9).unwrap();
            pauses.push(due.duration_since(now).as_millis());
            now = due;
            assert_eq!(tracker.take_due(now, 9).len(), 1);
            let outcome = tracker.inspected(&u, now, both(&[("c", PlegState::Running)]), now);
            assert!(outcome.events.is_empty());
        }
        assert_eq!(pauses, [2, 4, 8, 16]);
        now = tracker.next_due(9).unwrap();
        tracker.take_due(now, 9);
        let outcome = tracker.inspected(&u, now, both(&[("c", PlegState::Exited)]), now);
        assert_eq!(kinds(&outcome), [PodLifecycleEventKind::ContainerDied]);
        assert_eq!(tracker.next_due(9), None);
        tracker.event(&u, "c", Event::Exited(Some(0)), true, now);
        tracker.event(&u, "c", Event::Started, true, now);
        assert_eq!(tracker.next_due(9), None, "nothing new in them");
    }

    #[tokio::test(start_paused = true)]
    async fn a_finished_container_is_dead_before_the_runtime_says_so() {
        let (mut tracker, u, now) = running();
        tracker.event(&u, "c", Event::Exited(Some(1)), false, now);
        assert_eq!(tracker.next_due(9), Some(now + EXIT_SETTLES));
        tracker.event(&u, "c", Event::Finished(1), false, now);
        assert_eq!(tracker.next_due(9), Some(now + FINISH_SETTLES));
        assert_eq!(tracker.finished(&u, "c").unwrap().kind, PodLifecycleEventKind::ContainerDied);
        assert_eq!(tracker.finished(&u, "c"), None, "told once");
        let now = now + FINISH_SETTLES;
        tracker.take_due(now, 9);
        let ended = states(&[("c", PlegState::Exited)]);
        let behind = states(&[("c", PlegState::Running)]);
        assert!(tracker.inspected(&u, now, Some((ended, behind)), now).events.is_empty());
        assert_eq!(tracker.next_due(9), Some(now + RECHECK_MIN), "until the runtime agrees");
        let now = now + RECHECK_MIN;
        tracker.take_due(now, 9);
        assert!(tracker.inspected(&u, now, both(&[("c", PlegState::Exited)]), now).events.is_empty());
        assert_eq!(tracker.next_due(9), None);
    }

    #[tokio::test(start_paused = true)]
    async fn an_early_word_of_an_end_leaves_the_look_to_the_event_that_follows() {
        let (mut tracker, u, now) = running();
        tracker.ends_early(&u, "c", now);
        assert_eq!(tracker.finished(&u, "c").unwrap().kind, PodLifecycleEventKind::ContainerDied);
        tracker.ends_early(&u, "c", now + DEBOUNCE);
        assert_eq!(tracker.next_due(9), Some(now + EXPECT_FOR), "in case that none follows");
        let now = now + RECHECK_MAX;
        tracker.event(&u, "c", Event::Exited(Some(0)), true, now);
        assert_eq!(tracker.next_due(9), Some(now + DEBOUNCE));
        let now = now + DEBOUNCE;
        assert_eq!(tracker.take_due(now, 9)[0].named, [Box::from("c")]);
        assert!(tracker.inspected(&u, now, both(&[("c", PlegState::Exited)]), now).events.is_empty(), "told once");
        assert_eq!(tracker.next_due(9), None);
        tracker.ends_early(&u, "c", now);
        tracker.ends_early(&u, "nobody's", now);
        assert_eq!(tracker.next_due(9), None, "nothing new in them");
    }

    #[tokio::test(start_paused = true)]
    async fn a_wrong_event_is_given_up() {
        let (mut tracker, u, mut now) = running();
        let start = now;
        tracker.event(&u, "c", Event::Deleted, true, now);
        let mut looks = 0;
        while let Some(due) = tracker.next_due(9) {
            now = due;
            tracker.take_due(now, 9);
            tracker.inspected(&u, now, both(&[("c", PlegState::Running)]), now);
            looks += 1;
        }
        assert!(now.duration_since(start) <= EXPECT_FOR + RECHECK_MAX && looks < 25, "{looks}");
    }

    #[tokio::test(start_paused = true)]
    async fn requests_tell_and_one_inspection_runs_at_a_time() {
        let (mut tracker, u, now) = running();
        tracker.request(&u, false, now);
        assert_eq!(tracker.take_due(now, 9).len(), 1);
        tracker.request(&u, true, now);
        assert_eq!(tracker.take_due(now, 9), []);
        assert_eq!(tracker.next_due(9), None, "not while it is in flight");
        let same = || both(&[("c", PlegState::Running)]);
        assert_eq!(kinds(&tracker.inspected(&u, now, same(), now)), [], "it began before the request");
        assert_eq!(tracker.take_due(now, 9).len(), 1);
        assert_eq!(kinds(&tracker.inspected(&u, now, same(), now)), [PodLifecycleEventKind::PodSync]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_that_a_list_has_overtaken_is_followed_by_another() {
        let (mut tracker, u, now) = running();
        let later = now + Duration::from_millis(5);
        let same = || both(&[("c", PlegState::Running)]);
        let pods = HashMap::from([(u.clone(), states(&[("c", PlegState::Running)]))]);
        tracker.request(&u, false, now);
        assert_eq!(tracker.take_due(now, 9).len(), 1);
        assert_eq!(tracker.listed(&pods, later, later, false), HashSet::from([u.clone()]));
        tracker.inspected(&u, now, same(), later);
        assert_eq!(tracker.take_due(later, 9).len(), 1, "the list's doubt is still there");
        tracker.inspected(&u, later, same(), later);
        assert_eq!(tracker.listed(&pods, later, later, false), HashSet::new());
        assert_eq!(tracker.take_due(later, 9), []);
    }

    #[tokio::test(start_paused = true)]
    async fn the_audit_counts_changes_without_an_event() {
        let (mut tracker, u, mut now) = running();
        now += Duration::from_secs(60);
        let listed = HashMap::from([(u.clone(), states(&[("c", PlegState::Exited)]))]);
        assert_eq!(tracker.listed(&listed, now, now, true), HashSet::from([u.clone()]));
        tracker.take_due(now, 9);
        let outcome = tracker.inspected(&u, now, both(&[("c", PlegState::Exited)]), now);
        assert_eq!((kinds(&outcome), outcome.missed), (vec![PodLifecycleEventKind::ContainerDied], 1));

        now += Duration::from_secs(60);
        tracker.event(&u, "c", Event::Deleted, true, now);
        assert_eq!(tracker.listed(&HashMap::new(), now, now, true), HashSet::from([u.clone()]));
        now += DEBOUNCE;
        tracker.take_due(now, 9);
        let outcome = tracker.inspected(&u, now, both(&[]), now);
        assert_eq!((kinds(&outcome), outcome.missed), (vec![PodLifecycleEventKind::ContainerRemoved], 0));
        assert!(tracker.pods.is_empty(), "nothing of a pod that is gone is kept");
    }

    #[tokio::test(start_paused = true)]
    async fn failures_are_retried_with_back_off_and_hold_events_back() {
        let (mut tracker, u, mut now) = running();
        tracker.request(&u, false, now);
        assert!(tracker.is_ready(&u, now));
        let mut pauses = Vec::new();
        for _ in 0..6 {
            tracker.take_due(now, 9);
            assert!(tracker.inspected(&u, now, None, now).events.is_empty());
            let due = tracker.next_due(9).unwrap();
            assert!(!tracker.is_ready(&u, now) && tracker.is_ready(&u, due));
            pauses.push(due.duration_since(now).as_secs());
            now = due;
        }
        assert_eq!(pauses, [1, 2, 4, 8, 10, 10]);
        tracker.take_due(now, 9);
        let outcome = tracker.inspected(&u, now, both(&[]), now);
        assert_eq!(kinds(&outcome), [PodLifecycleEventKind::ContainerDied, PodLifecycleEventKind::ContainerRemoved]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_unknown_id_is_looked_up_and_then_forgotten_or_followed() {
        let (mut tracker, u, mut now) = running();
        tracker.unresolved_event("new", Event::Started, now);
        tracker.unresolved_event("old", Event::Deleted, now);
        now = tracker.next_due(9).unwrap();
        assert_eq!(tracker.take_lookups(now), [Box::from("new")]);
        tracker.looked_up("new", None, now);
        now = tracker.next_due(9).unwrap();
        assert_eq!(tracker.take_lookups(now).len(), 1);
        tracker.looked_up("new", Some(u.clone()), now);
        now = tracker.next_due(9).unwrap();
        assert_eq!(tracker.take_due(now, 9)[0].uid, u);

        let mut tracker = Tracker::default();
        for n in 0..1000 {
            tracker.unresolved_event(&format!("x{n}"), Event::Started, now);
        }
        assert_eq!(tracker.unresolved.len(), UNRESOLVED_MAX);
        while let Some(due) = tracker.next_due(9) {
            now = due;
            for id in tracker.take_lookups(now) {
                tracker.looked_up(&id, None, now);
            }
        }
        assert!(tracker.unresolved.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_inspections_than_allowed() {
        let (mut tracker, now) = (Tracker::default(), Instant::now());
        for n in 0..5 {
            tracker.request(&uid(&format!("u{n}")), false, now);
        }
        assert_eq!(tracker.take_due(now, 2).len(), 2);
        assert_eq!(tracker.take_due(now, 2), []);
        assert_eq!(tracker.next_due(2), None, "an answer makes room");
        tracker.inspected(&uid("u9"), now, None, now);
        let first = tracker.pods.iter().find(|(_, t)| t.in_flight).map(|(uid, _)| uid.clone()).unwrap();
        tracker.inspected(&first, now, both(&[]), now);
        assert_eq!(tracker.take_due(now, 2).len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_turn_goes_through_what_is_due_and_not_through_all_pods() {
        let (mut tracker, now) = (Tracker::default(), Instant::now());
        let same = || both(&[("c", PlegState::Running)]);
        let pods: HashMap<PodUid, PodStates> =
            (0..1000).map(|n| (uid(&format!("u{n}")), states(&[("c", PlegState::Running)]))).collect();
        tracker.listed(&pods, now, now, false);
        let mut looks = 0;
        loop {
            let orders = tracker.take_due(now, 16);
            if orders.is_empty() {
                break;
            }
            for order in orders {
                tracker.inspected(&order.uid, now, same(), now);
                looks += 1;
            }
        }
        assert_eq!((looks, tracker.due.by_time().count(), tracker.next_due(16)), (1000, 0, None));
        let (one, other) = (uid("u7"), uid("u8"));
        tracker.request(&other, false, now + DEBOUNCE);
        tracker.event(&one, "c", Event::OutOfMemory, true, now);
        tracker.request(&one, false, now + DEBOUNCE * 9);
        assert_eq!(tracker.due.by_time().count(), 2);
        // The earliest that is free to be looked at, although another's time comes first.
        tracker.busy(vec![(one.clone(), Some(now + BUSY_MAX))], now);
        assert_eq!(tracker.next_due(16), Some(now + DEBOUNCE));
        let orders = tracker.take_due(now + DEBOUNCE, 16);
        assert_eq!(orders.iter().map(|order| &order.uid).collect::<Vec<_>>(), [&other]);
        assert_eq!(tracker.next_due(16), Some(now + BUSY_MAX));
        tracker.request(&other, false, now);
        assert_eq!(tracker.next_due(16), Some(now + BUSY_MAX), "and not while it is in flight");
        assert_eq!(tracker.next_due(1), None, "an answer makes room");
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_out_of_memory_note_is_read_again() {
        let (mut tracker, u, now) = running();
        tracker.event(&u, "c", Event::OutOfMemory, true, now);
        let orders = tracker.take_due(now + DEBOUNCE, 9);
        assert_eq!(orders[0].refresh, HashSet::from([Box::from("c")]));
    }
}
