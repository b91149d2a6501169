//! The state of every pod as callers see it, and the order in which it changed.
//!
//! One copy of each pod's newest state; a change gives it the next sequence number. A watcher asks for what is newer than
//! its position, so a slow one skips what is outdated anyway and no queue grows; it is given names, and fetches each state
//! when its turn has come, so that it holds no state that nobody else needs. Removals are remembered for a while; who has
//! slept longer gets everything anew.
//!
//! Sentences for people ([`PodHub::why`], [`PodHub::event`]) change several times while a pod starts or ends, and nothing is done
//! because of them. They are seen at once by whoever asks for the pod; a watcher is told of them together with the pod's next change,
//! or, where there is none, a moment later ([`PodHub::tell_remarks`]).

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use bulkhead_ipc::syncd::{ApiObject, Event, PodState};
use bulkhead_types::PodUid;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;

/// Removals remembered.
const TOMBSTONES: usize = 1024;
/// Events shown with a pod.
const RECENT_EVENTS: usize = 32;
/// Of the message of such an event, bytes; the API server is told the whole.
const RECENT_MESSAGE: usize = 1024;

/// What a watcher is told.
#[derive(Debug, Clone)]
pub enum Change {
    /// Its state is to be fetched ([`PodHub::get`]); where there is none any more, its removal follows.
    Upsert(u64, PodUid),
    Removed(u64, String),
    /// Everything that exists has been named; the number is the position.
    SnapshotDone(u64),
}

#[derive(Debug, Default)]
struct Inner {
    seq: u64,
    pods: HashMap<PodUid, (u64, Arc<PodState>)>,
    order: BTreeMap<u64, PodUid>,
    removed: VecDeque<(u64, PodUid)>,
    /// Removals up to this number are forgotten.
    forgotten: u64,
    /// Pods of which only sentences for people have changed since watchers were told.
    remarked: HashSet<PodUid>,
    /// What the API server has of pods that have no state here (yet, or any more).
    unclaimed: HashMap<PodUid, ApiObject>,
    /// `metadata.managedFields` of pods of the API server, as JSON: shown and used by nothing.
    managed_fields: HashMap<PodUid, Arc<[u8]>>,
}

/// Shared by the main loop, the pods' tasks and the service.
#[derive(Debug)]
pub struct PodHub {
    inner: Mutex<Inner>,
    changed: watch::Sender<u64>,
    remarked: watch::Sender<()>,
}

impl Default for PodHub {
    fn default() -> Self {
        PodHub { inner: Mutex::default(), changed: watch::Sender::new(0), remarked: watch::Sender::new(()) }
    }
}

impl PodHub {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        // No method panics between two writes.
        self.inner.lock()
    }

    /// Changes a pod's state; a new one is made where `f` is told of a pod that is not there yet. Nothing is announced
    /// when nothing changed.
    pub fn modify(&self, uid: &PodUid, f: impl FnOnce(&mut PodState)) {
        let mut inner = self.inner();
        let old = inner.pods.get(uid).map(|(seq, state)| (*seq, state.clone()));
        let mut state = match &old {
            Some((_, state)) => PodState::clone(state),
            None => PodState { uid: uid.to_string(), api: inner.unclaimed.remove(uid), ..PodState::default() },
        };
        f(&mut state);
        if old.as_ref().is_some_and(|(_, old)| **old == state) {
            return;
        }
        inner.seq += 1;
        let seq = inner.seq;
        if let Some((old, _)) = old {
            inner.order.remove(&old);
        }
        inner.order.insert(seq, uid.clone());
        inner.pods.insert(uid.clone(), (seq, Arc::new(state)));
        inner.remarked.remove(uid);
        drop(inner);
        self.changed.send_replace(seq);
    }

    /// Changes sentences for people in the state of a pod that is known.
    fn remark(&self, uid: &PodUid, f: impl FnOnce(&mut PodState)) {
        let mut inner = self.inner();
        let Some((_, state)) = inner.pods.get_mut(uid) else { return };
        f(Arc::make_mut(state));
        if inner.remarked.insert(uid.clone()) {
            drop(inner);
            self.remarked.send_replace(());
        }
    }

    /// Watchers are told of sentences for people that have changed.
    pub fn tell_remarks(&self) {
        let mut inner = self.inner();
        for uid in std::mem::take(&mut inner.remarked) {
            let seq = inner.seq + 1;
            let Some(old) = inner.pods.get_mut(&uid).map(|(at, _)| std::mem::replace(at, seq)) else { continue };
            inner.seq = seq;
            inner.order.remove(&old);
            inner.order.insert(seq, uid);
        }
        let seq = inner.seq;
        drop(inner);
        self.changed.send_if_modified(|told| std::mem::replace(told, seq) != seq);
    }

    /// The same for a pod that is known already; another one stays unknown.
    pub fn modify_known(&self, uid: &PodUid, f: impl FnOnce(&mut PodState)) {
        if self.get(uid).is_some() {
            self.modify(uid, f);
        }
    }

    /// What the API server has of the pod, as the watch saw it last: the pod itself or its mirror. Kept for a pod that
    /// has no state here, until it gets one; never makes a state.
    pub fn set_api(&self, uid: &PodUid, object: Option<ApiObject>) {
        let mut inner = self.inner();
        if inner.pods.contains_key(uid) {
            drop(inner);
            return self.modify(uid, |state| state.api = object);
        }
        match object {
            Some(object) => inner.unclaimed.insert(uid.clone(), object),
            None => inner.unclaimed.remove(uid),
        };
    }

    /// Keeps the pod's managedFields as they were when it was first seen (upstream takes none of later changes either). `json` is not
    /// asked for those of later changes.
    pub fn keep_managed_fields(&self, uid: &PodUid, json: impl FnOnce() -> Option<Vec<u8>>) {
        if self.managed_fields(uid).is_some() {
            return;
        }
        if let Some(json) = json() {
            self.inner().managed_fields.insert(uid.clone(), json.into());
        }
    }

    /// The API server does not have the pod any more.
    pub fn drop_managed_fields(&self, uid: &PodUid) {
        self.inner().managed_fields.remove(uid);
    }

    pub fn managed_fields(&self, uid: &PodUid) -> Option<Arc<[u8]>> {
        self.inner().managed_fields.get(uid).cloned()
    }

    /// What the API server has of the pod.
    pub fn api(&self, uid: &PodUid) -> Option<ApiObject> {
        let inner = self.inner();
        match inner.pods.get(uid) {
            Some((_, state)) => state.api.clone(),
            None => inner.unclaimed.get(uid).cloned(),
        }
    }

    /// What the pod does or waits for, in a sentence.
    pub fn why(&self, uid: &PodUid, why: impl Into<String>) {
        let why = why.into();
        // A change works on a copy of all of it.
        if self.get(uid).is_some_and(|state| state.why != why) {
            self.remark(uid, |state| {
                state.why = why;
                state.why_since = jiff::Timestamp::now().to_string();
            });
        }
    }

    /// Adds an event to the pod's own short list.
    pub fn event(&self, uid: &PodUid, mut event: Event) {
        cut(&mut event.message, RECENT_MESSAGE);
        self.remark(uid, |state| {
            if state.recent_events.len() >= RECENT_EVENTS {
                state.recent_events.remove(0);
            }
            state.recent_events.push(event);
        });
    }

    pub fn remove(&self, uid: &PodUid) {
        let mut inner = self.inner();
        let Some((old, state)) = inner.pods.remove(uid) else { return };
        inner.order.remove(&old);
        inner.remarked.remove(uid);
        if let Some(object) = state.api.clone() {
            inner.unclaimed.insert(uid.clone(), object);
        }
        inner.seq += 1;
        let seq = inner.seq;
        inner.removed.push_back((seq, uid.clone()));
        if inner.removed.len() > TOMBSTONES
            && let Some((forgotten, _)) = inner.removed.pop_front()
        {
            inner.forgotten = forgotten;
        }
        drop(inner);
        self.changed.send_replace(seq);
    }

    pub fn get(&self, uid: &PodUid) -> Option<Arc<PodState>> {
        self.inner().pods.get(uid).map(|(_, state)| state.clone())
    }

    /// All pods, by namespace and name.
    pub fn list(&self) -> Vec<Arc<PodState>> {
        let mut pods: Vec<Arc<PodState>> = self.inner().pods.values().map(|(_, state)| state.clone()).collect();
        pods.sort_by(|a, b| (&a.namespace, &a.name, &a.uid).cmp(&(&b.namespace, &b.name, &b.uid)));
        pods
    }

    /// What is new since `position`; everything, with a closing mark, for a position that is not known (any more).
    /// Answers the new position as well.
    pub fn since(&self, position: Option<u64>) -> (u64, Vec<Change>) {
        let inner = self.inner();
        let known = position.filter(|seq| *seq >= inner.forgotten && *seq <= inner.seq);
        let from = known.map_or(0, |seq| seq + 1);
        let mut changes: Vec<(u64, Change)> =
            inner.order.range(from..).map(|(seq, uid)| (*seq, Change::Upsert(*seq, uid.clone()))).collect();
        if known.is_some() {
            let removed = inner.removed.iter().filter(|(seq, uid)| *seq >= from && !inner.pods.contains_key(uid));
            changes.extend(removed.map(|(seq, uid)| (*seq, Change::Removed(*seq, uid.to_string()))));
            changes.sort_by_key(|(seq, _)| *seq);
        }
        let mut changes: Vec<Change> = changes.into_iter().map(|(_, change)| change).collect();
        if known.is_none() {
            changes.push(Change::SnapshotDone(inner.seq));
        }
        (inner.seq, changes)
    }

    /// Sees the sequence number of each change.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Sees that there is something for [`PodHub::tell_remarks`] to tell.
    pub fn watch_remarks(&self) -> watch::Receiver<()> {
        self.remarked.subscribe()
    }
}

/// Leaves the beginning of a text, whole characters, at most so many bytes with the mark of what is missing.
pub(super) fn cut(text: &mut String, most: usize) {
    const MARK: &str = "...";
    if text.len() > most {
        let mut end = most.saturating_sub(MARK.len());
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.push_str(MARK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uid(text: &str) -> PodUid {
        PodUid::parse(text).unwrap()
    }

    fn text(hub: &PodHub, changes: &[Change]) -> Vec<String> {
        changes
            .iter()
            .map(|c| match c {
                Change::Upsert(_, uid) => {
                    format!("+{uid} {}", hub.get(uid).map(|s| s.phase.clone()).unwrap_or_default())
                }
                Change::Removed(_, uid) => format!("-{uid}"),
                Change::SnapshotDone(_) => "done".to_owned(),
            })
            .collect()
    }

    #[test]
    fn a_watcher_gets_the_newest_state_only() {
        let hub = PodHub::default();
        let phase = |pod: &str, phase: &str| hub.modify(&uid(pod), |s| s.phase = phase.to_owned());
        phase("a", "Pending");
        phase("b", "Pending");
        let (position, changes) = hub.since(None);
        assert_eq!(text(&hub, &changes), ["+a Pending", "+b Pending", "done"]);
        phase("a", "Running");
        phase("a", "Running");
        phase("a", "Succeeded");
        hub.remove(&uid("b"));
        let (next, changes) = hub.since(Some(position));
        assert_eq!(text(&hub, &changes), ["+a Succeeded", "-b"]);
        assert!(hub.since(Some(next)).1.is_empty());
        // A position from the future is another life's.
        assert_eq!(text(&hub, &hub.since(Some(next + 7)).1), ["+a Succeeded", "done"]);
    }

    #[test]
    fn sentences_for_people_are_told_with_the_next_change() {
        let hub = PodHub::default();
        for pod in ["a", "b"] {
            hub.modify(&uid(pod), |s| s.phase = "Pending".to_owned());
        }
        let (position, _) = hub.since(None);
        let (mut changes, mut remarks) = (hub.watch(), hub.watch_remarks());
        changes.mark_unchanged();
        let mut heard = || {
            let heard = (changes.has_changed().unwrap(), remarks.has_changed().unwrap());
            changes.mark_unchanged();
            remarks.mark_unchanged();
            heard
        };
        hub.why(&uid("a"), "waits");
        assert_eq!(heard(), (false, true));
        assert_eq!(hub.get(&uid("a")).unwrap().why, "waits", "whoever asks is told at once");
        hub.event(&uid("a"), Event::default());
        hub.why(&uid("a"), "waits");
        hub.why(&uid("gone"), "waits");
        assert_eq!(heard(), (false, false));
        hub.modify(&uid("b"), |s| s.phase = "Running".to_owned());
        let (position, news) = hub.since(Some(position));
        assert_eq!((text(&hub, &news), heard()), (vec!["+b Running".to_owned()], (true, false)));
        hub.tell_remarks();
        let (position, news) = hub.since(Some(position));
        assert_eq!((text(&hub, &news), heard()), (vec!["+a Pending".to_owned()], (true, false)));
        hub.why(&uid("a"), "runs");
        hub.modify(&uid("a"), |s| s.phase = "Running".to_owned());
        hub.why(&uid("b"), "runs");
        hub.remove(&uid("b"));
        let (position, news) = hub.since(Some(position));
        assert_eq!((text(&hub, &news), heard()), (vec!["+a Running".to_owned(), "-b".to_owned()], (true, true)));
        hub.tell_remarks();
        assert!(hub.since(Some(position)).1.is_empty() && heard() == (false, false), "it was told already");
    }

    #[test]
    fn the_api_servers_copy_outlives_the_state() {
        let hub = PodHub::default();
        let copy = |version: &str| Some(ApiObject { resource_version: version.to_owned(), ..ApiObject::default() });
        let seen = |hub: &PodHub| hub.get(&uid("a")).map(|s| s.api.clone().map(|o| o.resource_version));
        hub.set_api(&uid("a"), copy("1"));
        assert_eq!((seen(&hub), hub.since(None).0), (None, 0), "a copy alone is no pod");
        hub.modify(&uid("a"), |s| s.phase = "Pending".to_owned());
        assert_eq!(seen(&hub), Some(Some("1".to_owned())));
        hub.set_api(&uid("a"), copy("2"));
        hub.remove(&uid("a"));
        assert_eq!(hub.api(&uid("a")), copy("2"));
        hub.modify(&uid("a"), |_| {});
        assert_eq!(seen(&hub), Some(Some("2".to_owned())));
        hub.set_api(&uid("a"), None);
        assert_eq!((seen(&hub), hub.api(&uid("a"))), (Some(None), None));
    }

    #[test]
    fn managed_fields_are_made_once_and_kept_as_they_were_first() {
        let (hub, made) = (PodHub::default(), std::cell::Cell::new(0));
        let keep = |json: Option<&str>| {
            hub.keep_managed_fields(&uid("a"), || {
                made.set(made.get() + 1);
                json.map(|json| json.as_bytes().to_vec())
            });
            hub.managed_fields(&uid("a")).map(|kept| String::from_utf8_lossy(&kept).into_owned())
        };
        assert_eq!(keep(None), None);
        assert_eq!([keep(Some("1")), keep(Some("2"))], [Some("1".to_owned()), Some("1".to_owned())]);
        assert_eq!(made.get(), 2);
        hub.drop_managed_fields(&uid("a"));
        assert_eq!(keep(Some("3")).as_deref(), Some("3"));
    }

    #[test]
    fn recent_events_are_few_and_short() {
        let hub = PodHub::default();
        hub.modify(&uid("a"), |_| {});
        for at in 0..RECENT_EVENTS + 3 {
            let message = format!("{at} {}", "\u{e4}".repeat(10 << 10));
            hub.event(&uid("a"), Event { message, ..Event::default() });
        }
        let state = hub.get(&uid("a")).unwrap();
        assert_eq!(state.recent_events.len(), RECENT_EVENTS);
        for (at, event) in state.recent_events.iter().enumerate() {
            assert!(event.message.len() <= RECENT_MESSAGE && event.message.ends_with("..."));
            assert!(event.message.starts_with(&(at + 3).to_string()));
        }
        let mut short = "as it is".to_owned();
        cut(&mut short, 8);
        assert_eq!(short, "as it is");
    }

    #[test]
    fn who_slept_too_long_gets_everything() {
        let hub = PodHub::default();
        hub.modify(&uid("a"), |_| {});
        let (position, _) = hub.since(None);
        for i in 0..=TOMBSTONES {
            hub.modify(&uid(&format!("x{i}")), |_| {});
            hub.remove(&uid(&format!("x{i}")));
        }
        assert_eq!(text(&hub, &hub.since(Some(position)).1), ["+a ", "done"]);
    }
}
