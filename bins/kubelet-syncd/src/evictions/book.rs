//! Evictions that were accepted, each written down before its pod's first signal, until the pod is gone.

use std::collections::BTreeMap;
use std::time::Duration;

use bulkhead_ipc::syncd::{EvictRequest, EvictionInFlight, EvictionKind, EvictionOutcome};
use bulkhead_types::PodUid;
use kubelet_runtime::status::termination::head;
use serde::{Deserialize, Serialize};

use super::grace_period;

/// The form of the state file.
pub const VERSION: u64 = 1;
/// Letters of an id.
const ID_MAX: usize = 64;
/// Bytes of a message, which goes into a status and an event. Upstream has no bound; a pod may have a thousand containers, of each of
/// which something is said, and all of a request goes into one message of the internal API.
const MESSAGE_MAX: usize = 96 << 10;
/// Entries of annotations, and bytes of all of them: with an event's message they go into one message of the internal API, too.
const ANNOTATIONS_MAX: (usize, usize) = (8, 144 << 10);
/// Bytes that are kept of a message whose pod is finished, until somebody deletes the pod: its status has had all of it.
const FINISHED_MESSAGE_MAX: usize = 4 << 10;

/// An eviction: what was asked for, and when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Eviction {
    pub id: String,
    /// A threshold of the node, and not a limit of the pod's own.
    pub threshold: bool,
    pub signal: String,
    /// Seconds; can only shorten.
    pub grace_period: u64,
    pub message: String,
    /// Of the event, which is told when the eviction is accepted, and not again.
    #[serde(default, skip_serializing)]
    pub annotations: BTreeMap<String, String>,
    pub disruption_target: bool,
    /// Milliseconds since the boot with this id.
    pub accepted_ms: u64,
    pub boot_id: String,
}

/// All of them, as the state file has them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    #[serde(default, deserialize_with = "bulkhead_daemon::state_file::map")]
    pub evictions: BTreeMap<PodUid, Eviction>,
}

/// Where they are kept.
pub trait EvictionStore: std::fmt::Debug + Send + Sync {
    /// Returns when it is on the disk.
    ///
    /// # Errors
    /// It is not.
    fn save(&self, evictions: &Saved) -> std::io::Result<()>;
}

/// Time since the machine's boot, and which boot that is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moment {
    pub since_boot: Duration,
    pub boot_id: String,
}

impl Moment {
    /// Now, in the boot with this id.
    pub fn now(boot_id: &str) -> Self {
        Moment { since_boot: bulkhead_sys::clock::since_boot(), boot_id: boot_id.to_owned() }
    }
}

/// A pod, as far as its eviction depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PodFacts {
    /// Some source names it.
    pub known: bool,
    pub critical: bool,
    /// Its containers have ended, or it was never admitted.
    pub ended: bool,
}

/// What is wrong with a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {found} is not allowed, {allowed}")]
pub struct BadRequest {
    field: &'static str,
    found: String,
    allowed: &'static str,
}

/// The evictions that were accepted.
#[derive(Debug)]
pub struct EvictionBook {
    saved: Saved,
    store: Box<dyn EvictionStore>,
}

impl EvictionBook {
    pub fn new(saved: Saved, store: Box<dyn EvictionStore>) -> Self {
        EvictionBook { saved, store }
    }

    pub fn get(&self, uid: &PodUid) -> Option<&Eviction> {
        self.saved.evictions.get(uid)
    }

    /// Whether the pod may be evicted, and if so it is written down. `finished`: whether nothing of a pod is left to do.
    ///
    /// # Errors
    /// It could not be written, and not because the disk is full; then nothing was accepted.
    pub fn accept(
        &mut self,
        uid: &PodUid,
        eviction: Eviction,
        pod: PodFacts,
        now: &Moment,
        finished: impl Fn(&PodUid) -> bool,
    ) -> std::io::Result<EvictionOutcome> {
        let outcome = self.judge(uid, &eviction, pod, now, &finished);
        if outcome == EvictionOutcome::Accepted {
            let mut next = self.saved.clone();
            for (_, old) in next.evictions.iter_mut().filter(|(uid, _)| finished(uid)) {
                old.message.truncate(head(&old.message, FINISHED_MESSAGE_MAX).len());
            }
            next.evictions.insert(uid.clone(), eviction);
            match self.store.save(&next) {
                // What frees the disk must not wait for room on it: a restart before the pod's end would forget the eviction,
                // and the node, still short, would make another one.
                Err(error) if error.kind() == std::io::ErrorKind::StorageFull => {
                    tracing::warn!(pod_uid = %uid, %error, "failed to save the eviction");
                }
                saved => saved?,
            }
            self.saved = next;
        }
        Ok(outcome)
    }

    fn judge(
        &self,
        uid: &PodUid,
        eviction: &Eviction,
        pod: PodFacts,
        now: &Moment,
        finished: impl Fn(&PodUid) -> bool,
    ) -> EvictionOutcome {
        if !pod.known {
            return EvictionOutcome::RefusedUnknown;
        }
        if self.saved.evictions.contains_key(uid) {
            return EvictionOutcome::Already;
        }
        if pod.critical {
            return EvictionOutcome::RefusedCritical;
        }
        if pod.ended {
            return EvictionOutcome::RefusedEnding;
        }
        // As upstream's manager, which begins nothing while it waits for pods that exceeded limits of their own, either.
        let in_flight = |(uid, other): (&PodUid, &Eviction)| {
            age(other, now).is_some_and(|age| age < grace_period::wait(other.grace_period)) && !finished(uid)
        };
        if eviction.threshold && self.saved.evictions.iter().any(in_flight) {
            return EvictionOutcome::RefusedBusy;
        }
        EvictionOutcome::Accepted
    }

    /// Those of which the pod is not finished.
    pub fn in_flight(&self, now: &Moment, finished: impl Fn(&PodUid) -> bool) -> Vec<EvictionInFlight> {
        let unfinished = self.saved.evictions.iter().filter(|(uid, _)| !finished(uid));
        unfinished
            .map(|(uid, eviction)| {
                let wait = grace_period::wait(eviction.grace_period);
                EvictionInFlight {
                    id: eviction.id.clone(),
                    uid: uid.to_string(),
                    kind: if eviction.threshold { EvictionKind::Threshold } else { EvictionKind::LocalStorage }.into(),
                    signal: eviction.signal.clone(),
                    age_seconds: age(eviction, now).unwrap_or(wait).as_secs_f64(),
                    wait_seconds: wait.as_secs_f64(),
                }
            })
            .collect()
    }

    /// Forgets pods that are gone. What cannot be written now is with the next change.
    pub fn retain(&mut self, is_there: impl Fn(&PodUid) -> bool) {
        let before = self.saved.evictions.len();
        self.saved.evictions.retain(|uid, _| is_there(uid));
        if self.saved.evictions.len() != before
            && let Err(error) = self.store.save(&self.saved)
        {
            tracing::warn!(%error, "failed to remove evictions of pods that are gone from the state file");
        }
    }
}

/// Since it was accepted; `None`: in another boot.
fn age(eviction: &Eviction, now: &Moment) -> Option<Duration> {
    let is_this_boot = eviction.boot_id == now.boot_id;
    is_this_boot.then(|| now.since_boot.saturating_sub(Duration::from_millis(eviction.accepted_ms)))
}

impl Eviction {
    /// What a request asks for.
    ///
    /// # Errors
    /// A field is not as the API has it.
    pub fn of(request: EvictRequest, now: &Moment) -> Result<Self, BadRequest> {
        let kind = request.kind();
        let bad = |field, found: String, allowed| Err(BadRequest { field, found, allowed });
        let is_id = |id: &str| id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        if request.id.is_empty() || request.id.len() > ID_MAX || !is_id(&request.id) {
            return bad("id", format!("{:?}", request.id), "1 to 64 letters, digits and dashes are");
        }
        if kind == EvictionKind::Unspecified {
            return bad("kind", request.kind.to_string(), "THRESHOLD or LOCAL_STORAGE is");
        }
        if request.signal.is_empty() || request.signal.len() > ID_MAX {
            return bad("signal", format!("{:?}", request.signal), "1 to 64 bytes are");
        }
        let Ok(grace_period) = u64::try_from(request.grace_period_seconds) else {
            return bad("grace_period_seconds", request.grace_period_seconds.to_string(), "0 and more is");
        };
        if request.message.is_empty() || request.message.len() > MESSAGE_MAX {
            return bad("message", format!("{} bytes", request.message.len()), "1 to 98304 bytes are");
        }
        let (entries, bytes) = ANNOTATIONS_MAX;
        let length: usize = request.annotations.iter().map(|(key, value)| key.len().saturating_add(value.len())).sum();
        if request.annotations.len() > entries || length > bytes {
            let found = format!("{} entries of {length} bytes", request.annotations.len());
            return bad("annotations", found, "8 of up to 147456 bytes together are");
        }
        Ok(Eviction {
            id: request.id,
            threshold: kind == EvictionKind::Threshold,
            signal: request.signal,
            grace_period,
            message: request.message,
            annotations: request.annotations.into_iter().collect(),
            disruption_target: request.disruption_target,
            accepted_ms: u64::try_from(now.since_boot.as_millis()).unwrap_or(u64::MAX),
            boot_id: now.boot_id.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use parking_lot::Mutex;

    use super::*;

    #[derive(Debug, Default, Clone)]
    struct Disk {
        broken: Arc<AtomicBool>,
        full: Arc<AtomicBool>,
        file: Arc<Mutex<Saved>>,
    }

    impl EvictionStore for Disk {
        fn save(&self, evictions: &Saved) -> std::io::Result<()> {
            if self.broken.load(Ordering::Relaxed) {
                return Err(std::io::ErrorKind::ReadOnlyFilesystem.into());
            }
            if self.full.load(Ordering::Relaxed) {
                return Err(std::io::ErrorKind::StorageFull.into());
            }
            *self.file.lock() = evictions.clone();
            Ok(())
        }
    }

    fn uid(text: &str) -> PodUid {
        PodUid::parse(text).unwrap()
    }

    fn at(seconds: u64) -> Moment {
        Moment { since_boot: Duration::from_secs(seconds), boot_id: "boot".into() }
    }

    fn request(kind: EvictionKind) -> EvictRequest {
        EvictRequest {
            id: "1-a".into(),
            uid: "p".into(),
            kind: kind.into(),
            signal: "memory.available".into(),
            message: "The node was low on resource: memory. ".into(),
            grace_period_seconds: 1,
            ..EvictRequest::default()
        }
    }

    fn threshold(now: &Moment) -> Eviction {
        Eviction::of(request(EvictionKind::Threshold), now).unwrap()
    }

    const ALIVE: PodFacts = PodFacts { known: true, critical: false, ended: false };

    #[test]
    fn what_is_refused_and_why() {
        use EvictionOutcome::{Accepted, Already, RefusedBusy, RefusedCritical, RefusedEnding, RefusedUnknown};
        let disk = Disk::default();
        let mut book = EvictionBook::new(Saved::default(), Box::new(disk.clone()));
        let mut ask = |pod: &str, facts: PodFacts, seconds: u64, kind, finished: bool| {
            let now = at(seconds);
            let eviction = Eviction::of(request(kind), &now).unwrap();
            book.accept(&uid(pod), eviction, facts, &now, |_| finished).unwrap()
        };
        let (node, local) = (EvictionKind::Threshold, EvictionKind::LocalStorage);
        assert_eq!(ask("a", PodFacts::default(), 100, node, false), RefusedUnknown);
        assert_eq!(ask("a", PodFacts { critical: true, ..ALIVE }, 100, node, false), RefusedCritical);
        assert_eq!(ask("a", PodFacts { ended: true, ..ALIVE }, 100, node, false), RefusedEnding);
        assert_eq!(ask("a", ALIVE, 100, node, false), Accepted);
        assert_eq!(ask("a", ALIVE, 101, node, false), Already, "asked once more");
        assert_eq!(ask("b", ALIVE, 129, node, false), RefusedBusy);
        assert_eq!(ask("b", ALIVE, 129, local, false), Accepted, "a limit of its own");
        assert_eq!(ask("c", ALIVE, 129, node, true), Accepted, "the others have ended");
        assert_eq!(ask("d", ALIVE, 168, node, false), RefusedBusy);
        assert_eq!(ask("d", ALIVE, 169, node, false), Accepted, "that one hangs");
        assert_eq!(disk.file.lock().evictions.len(), 4);
    }

    #[test]
    fn nothing_is_accepted_that_is_not_on_the_disk() {
        let disk = Disk::default();
        let mut book = EvictionBook::new(Saved::default(), Box::new(disk.clone()));
        disk.broken.store(true, Ordering::Relaxed);
        let now = at(1);
        assert!(book.accept(&uid("a"), threshold(&now), ALIVE, &now, |_| false).is_err());
        assert!(book.get(&uid("a")).is_none());
        disk.broken.store(false, Ordering::Relaxed);
        assert_eq!(book.accept(&uid("a"), threshold(&now), ALIVE, &now, |_| false).unwrap(), EvictionOutcome::Accepted);
        let after_a_restart = EvictionBook::new(disk.file.lock().clone(), Box::new(disk.clone()));
        assert_eq!(after_a_restart.get(&uid("a")), Some(&threshold(&now)));
        book.retain(|_| false);
        assert!(disk.file.lock().evictions.is_empty());
    }

    #[test]
    fn a_full_disk_keeps_nobody_from_being_evicted() {
        let disk = Disk::default();
        let mut book = EvictionBook::new(Saved::default(), Box::new(disk.clone()));
        disk.full.store(true, Ordering::Relaxed);
        let now = at(1);
        let outcome = book.accept(&uid("a"), threshold(&now), ALIVE, &now, |_| false).unwrap();
        assert_eq!((outcome, book.get(&uid("a")).is_some()), (EvictionOutcome::Accepted, true));
    }

    #[test]
    fn of_another_boot_nothing_keeps_out() {
        let mut book = EvictionBook::new(Saved::default(), Box::new(Disk::default()));
        let before = at(500);
        book.accept(&uid("a"), threshold(&before), ALIVE, &before, |_| false).unwrap();
        let now = Moment { since_boot: Duration::from_secs(3), boot_id: "next".into() };
        assert_eq!(book.accept(&uid("b"), threshold(&now), ALIVE, &now, |_| false).unwrap(), EvictionOutcome::Accepted);
        let in_flight = book.in_flight(&now, |uid| uid.as_str() == "b");
        assert_eq!((in_flight.len(), in_flight[0].uid.as_str(), in_flight[0].age_seconds), (1, "a", 40.0));
    }

    #[test]
    fn others_wait_for_as_long_as_the_pod_may_take() {
        use EvictionOutcome::{Accepted, RefusedBusy};
        for (kind, grace, waits) in [
            (EvictionKind::Threshold, 1, 40),
            (EvictionKind::Threshold, 60, 120),
            (EvictionKind::LocalStorage, 1, 40),
            (EvictionKind::Threshold, i64::MAX, 365 * 24 * 3600 + 30),
        ] {
            let mut book = EvictionBook::new(Saved::default(), Box::new(Disk::default()));
            let first = EvictRequest { grace_period_seconds: grace, ..request(kind) };
            let first = Eviction::of(first, &at(100)).unwrap();
            assert_eq!(book.accept(&uid("a"), first, ALIVE, &at(100), |_| false).unwrap(), Accepted);
            let told = book.in_flight(&at(101), |_| false).remove(0);
            assert_eq!(Duration::from_secs_f64(told.wait_seconds), Duration::from_secs(waits));
            for (after, outcome) in [(waits - 1, RefusedBusy), (waits, Accepted)] {
                let now = at(100 + after);
                assert_eq!(
                    book.accept(&uid("b"), threshold(&now), ALIVE, &now, |_| false).unwrap(),
                    outcome,
                    "{grace}"
                );
            }
        }
    }

    #[test]
    fn a_pod_of_many_containers_with_long_names_may_be_evicted() {
        let names = vec!["n".repeat(63); 500].join(",");
        let said = "Container was using 100Mi, request is 0, has larger consumption of memory. ";
        let request = EvictRequest {
            message: said.repeat(1000),
            annotations: [("offending_containers".to_owned(), names)].into(),
            ..request(EvictionKind::Threshold)
        };
        let eviction = Eviction::of(request.clone(), &at(1)).unwrap();
        assert_eq!((&eviction.message, eviction.annotations.len()), (&request.message, 1));
    }

    #[test]
    fn little_is_kept_of_what_was_said_of_pods_that_are_finished() {
        let disk = Disk::default();
        let mut book = EvictionBook::new(Saved::default(), Box::new(disk.clone()));
        let long = EvictRequest {
            message: "x".repeat(MESSAGE_MAX),
            annotations: [("k".to_owned(), "v".to_owned())].into(),
            ..request(EvictionKind::LocalStorage)
        };
        for pod in ["a", "b", "c"] {
            let eviction = Eviction::of(long.clone(), &at(1)).unwrap();
            assert_eq!(
                book.accept(&uid(pod), eviction, ALIVE, &at(1), |one| *one == uid("a")).unwrap(),
                EvictionOutcome::Accepted
            );
        }
        let kept = |pod: &str| book.get(&uid(pod)).unwrap().message.len();
        assert_eq!(["a", "b", "c"].map(kept), [FINISHED_MESSAGE_MAX, MESSAGE_MAX, MESSAGE_MAX]);
        assert!(!serde_json::to_string(&*disk.file.lock()).unwrap().contains("annotations"));
    }

    #[test]
    fn bad_requests_name_their_field() {
        type Change = fn(&mut EvictRequest);
        let cases: [(&str, Change); 6] = [
            ("id", |r| r.id = "../x".into()),
            ("kind", |r| r.kind = 9),
            ("signal", |r| r.signal.clear()),
            ("grace_period_seconds", |r| r.grace_period_seconds = -1),
            ("message", |r| r.message = "x".repeat(MESSAGE_MAX + 1)),
            ("annotations", |r| r.annotations = [("k".to_owned(), "v".repeat(ANNOTATIONS_MAX.1))].into()),
        ];
        for (field, change) in cases {
            let mut request = request(EvictionKind::Threshold);
            change(&mut request);
            let error = Eviction::of(request, &at(1)).unwrap_err().to_string();
            assert!(error.starts_with(field), "{error}");
        }
    }
}
