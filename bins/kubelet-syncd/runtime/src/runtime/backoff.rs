//! Crash-loop back-off: how long an exited container waits before it starts again.
//!
//! Upstream keeps this in memory and forgets it when the kubelet restarts; here it is handed to a store after each
//! change, so a crash-looping container does not get a fresh start with every restart of this process. A boot of the
//! machine ends all containers through no fault of theirs: then it is forgotten here too. The clock is passed in.
//! Delays and expiry are upstream's (`client-go/util/flowcontrol/backoff.go`,
//! `pkg/kubelet/kubelet.go` backOffPeriod/maxContainerBackOff).

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bulkhead_daemon::state_file;
use bulkhead_types::GoDuration;
use bulkhead_types::hash::fnv1a_64;
use kubelet_model::v1::Container;
use serde::{Deserialize, Serialize};

use kubelet_model::pod::spec::{PodIdentity, image};

/// A container that ran this long since its last restart begins anew. Independent of the maximum.
const EXPIRY: Duration = Duration::from_secs(600);
/// More entries than a node can have containers: a bound on what a damaged file can bring in.
const ENTRIES_MAX: usize = 16_384;

/// Of the saved form.
pub const VERSION: u64 = 1;

/// One container's place in the sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    delay_ms: u64,
    /// When the delay was last raised, milliseconds since 1970.
    updated_ms: u64,
}

/// Saved form.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Saved {
    /// Whose containers these are. Empty: written by a version that did not say.
    #[serde(default)]
    boot_id: String,
    #[serde(deserialize_with = "state_file::map")]
    entries: BTreeMap<String, Entry>,
}

/// Keeps the back-off over a restart. Called after every change; must not block long.
pub trait BackOffStore: Send + Sync {
    fn save(&self, json: &[u8]);
}

/// For tests and for where nothing is to be kept.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoStore;

impl BackOffStore for NoStore {
    fn save(&self, _json: &[u8]) {}
}

/// A start that is held back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldBack {
    /// The whole delay, as messages name it.
    pub delay: Duration,
    pub until: SystemTime,
}

/// Takes a noted start back.
#[derive(Debug)]
#[must_use = "dropping it is fine, but say so: the start counts then"]
pub struct Undo {
    key: String,
    previous: Option<Entry>,
}

/// The back-off of all containers of the node.
#[derive(Debug, Clone)]
pub struct CrashLoopBackOff {
    initial: Duration,
    max: Duration,
    boot_id: String,
    entries: BTreeMap<String, Entry>,
}

impl CrashLoopBackOff {
    /// `initial` is the delay before the second restart; it doubles with each further one up to `max`.
    pub fn new(initial: Duration, max: Duration) -> Self {
        CrashLoopBackOff { initial: initial.min(max), max, boot_id: String::new(), entries: BTreeMap::new() }
    }

    /// The same for the containers of this boot of the machine; empty where it is not known.
    pub fn of_boot(self, boot_id: &str) -> Self {
        CrashLoopBackOff { boot_id: boot_id.to_owned(), ..self }
    }

    /// Takes over what was saved; unreadable or overlong content, and what was saved in another boot, counts as nothing saved.
    pub fn restore(&mut self, json: &[u8]) {
        if let Ok(saved) = serde_json::from_slice::<Saved>(json)
            && saved.entries.len() <= ENTRIES_MAX
            && (saved.boot_id.is_empty() || self.boot_id.is_empty() || saved.boot_id == self.boot_id)
        {
            self.entries = saved.entries;
        }
    }

    /// Whether [`restore`](Self::restore) makes anything of it.
    ///
    /// # Errors
    /// Why not.
    pub fn understands(json: &[u8]) -> serde_json::Result<()> {
        serde_json::from_slice::<Saved>(json).map(drop)
    }

    /// What [`restore`](Self::restore) reads.
    pub fn to_json(&self) -> Vec<u8> {
        state_file::encode(VERSION, &Saved { boot_id: self.boot_id.clone(), entries: self.entries.clone() })
            .unwrap_or_default()
    }

    /// Key of a container: a new image or other resources begin a new sequence.
    pub fn key(pod: &PodIdentity, container: &Container) -> String {
        let resources = container.resources.as_ref().map(|r| serde_json::to_string(r).unwrap_or_default());
        let text = format!(
            "{}/{}/{}/{}/{}/{}",
            pod.name,
            pod.namespace,
            pod.uid,
            container.name,
            image(container),
            resources.unwrap_or_default()
        );
        format!("{:x}", fnv1a_64(text.as_bytes()))
    }

    /// Whether a container that ended at `finished` has to wait at `now`.
    pub fn held_back(&self, key: &str, finished: SystemTime, now: SystemTime) -> Option<HeldBack> {
        let entry = self.entries.get(key)?;
        let raised = UNIX_EPOCH + Duration::from_millis(entry.updated_ms);
        let since = match finished {
            finished if finished <= now => finished,
            // The clock was set back since the exit. A start of ours after that still counts: a runtime whose times are wrong is no
            // reason to start without pauses.
            _ if raised <= now => raised,
            _ => return None,
        };
        if expired(entry, since) {
            return None;
        }
        let delay = Duration::from_millis(entry.delay_ms).min(self.max);
        let until = since + delay;
        (now < until).then_some(HeldBack { delay, until })
    }

    /// Notes a start after an exit at `finished`: the next one waits longer. The result takes it back.
    pub fn next(&mut self, key: &str, finished: SystemTime, now: SystemTime) -> Undo {
        let (initial, max) = (millis(self.initial), millis(self.max));
        let delay_ms = match self.entries.get(key) {
            Some(entry) if !expired(entry, finished.min(now)) => entry.delay_ms.saturating_mul(2).min(max),
            _ => initial,
        };
        let previous = self.entries.insert(key.to_owned(), Entry { delay_ms, updated_ms: since_epoch(now) });
        Undo { key: key.to_owned(), previous }
    }

    /// The start did not come about, through no fault of the container: it does not count.
    pub fn undo(&mut self, undo: Undo) {
        match undo.previous {
            Some(entry) => self.entries.insert(undo.key, entry),
            None => self.entries.remove(&undo.key),
        };
    }

    /// Drops entries that no longer matter. True when there were any.
    pub fn forget_expired(&mut self, now: SystemTime) -> bool {
        let before = self.entries.len();
        self.entries.retain(|_, entry| !expired(entry, now));
        self.entries.len() != before
    }

    /// Number of containers with a delay.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

fn expired(entry: &Entry, event: SystemTime) -> bool {
    since_epoch(event).saturating_sub(entry.updated_ms) > millis(EXPIRY)
}

fn since_epoch(time: SystemTime) -> u64 {
    millis(time.duration_since(UNIX_EPOCH).unwrap_or_default())
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Message of a container in back-off.
pub fn held_back_message(delay: Duration, container: &str, pod: &PodIdentity) -> String {
    let delay = GoDuration::from_millis(i64::try_from(delay.as_millis()).unwrap_or(i64::MAX));
    format!("back-off {delay} restarting failed container={container} pod={pod}")
}

#[cfg(any(test, feature = "fixtures"))]
impl Default for CrashLoopBackOff {
    fn default() -> Self {
        CrashLoopBackOff::new(Duration::from_secs(10), Duration::from_secs(300))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1_000_000 + seconds)
    }

    /// Crashes at once after each start, as soon as it may; returns the delays that it met.
    fn delays(mut back_off: CrashLoopBackOff, rounds: usize) -> Vec<u64> {
        let (mut now, mut found) = (at(0), Vec::new());
        for _ in 0..rounds {
            let finished = now;
            let delay = back_off.held_back("k", finished, now).map_or(0, |h| h.delay.as_secs());
            now += Duration::from_secs(delay);
            assert_eq!(back_off.held_back("k", finished, now), None);
            let _ = back_off.next("k", finished, now);
            found.push(delay);
        }
        found
    }

    #[test]
    fn sequence() {
        let of = |initial, max| CrashLoopBackOff::new(Duration::from_secs(initial), Duration::from_secs(max));
        assert_eq!(delays(CrashLoopBackOff::default(), 9), [0, 10, 20, 40, 80, 160, 300, 300, 300]);
        assert_eq!(delays(of(10, 30), 5), [0, 10, 20, 30, 30]);
        assert_eq!(delays(of(10, 2), 4), [0, 2, 2, 2]);
        assert_eq!(delays(of(1, 60), 9), [0, 1, 2, 4, 8, 16, 32, 60, 60]);
    }

    #[test]
    fn a_long_run_starts_over_and_a_restart_does_not() {
        let mut back_off = CrashLoopBackOff::default();
        let _ = back_off.next("k", at(0), at(0));
        let _ = back_off.next("k", at(1), at(11));
        assert_eq!(back_off.held_back("k", at(12), at(12)).unwrap().delay.as_secs(), 20);
        let mut restored = CrashLoopBackOff::default();
        restored.restore(&back_off.to_json());
        assert_eq!(restored.held_back("k", at(12), at(12)).unwrap().until, at(32));
        assert_eq!(back_off.held_back("k", at(612), at(612)), None, "ran for more than ten minutes");
        let _ = back_off.next("k", at(612), at(612));
        assert_eq!(back_off.held_back("k", at(613), at(613)).unwrap().delay.as_secs(), 10);
        let undo = back_off.next("k", at(613), at(623));
        back_off.undo(undo);
        assert_eq!(back_off.held_back("k", at(613), at(613)).unwrap().delay.as_secs(), 10);
        assert!(!back_off.forget_expired(at(700)));
        assert!(back_off.forget_expired(at(1300)) && back_off.is_empty());
        restored.restore(b"not json");
        assert_eq!(restored.len(), 1);
    }

    #[test]
    fn a_boot_is_no_crash() {
        let of = |boot_id: &str| CrashLoopBackOff::default().of_boot(boot_id);
        let restored = |before: &str, now: &str| {
            let (mut back_off, mut later) = (of(before), of(now));
            let _ = back_off.next("k", at(0), at(0));
            later.restore(&back_off.to_json());
            later.held_back("k", at(1), at(1)).is_some()
        };
        assert!(restored("a", "a"));
        assert!(!restored("a", "b"));
        assert!(restored("", "b") && restored("a", ""), "nobody knows whether it was this boot");
    }

    #[test]
    fn a_clock_set_back_holds_no_longer_than_the_delay() {
        let mut back_off = CrashLoopBackOff::default();
        let _ = back_off.next("k", at(100_000), at(100_000));
        assert_eq!(back_off.held_back("k", at(100_001), at(5)), None, "all that is known is of another time");
        // A container that ends at once, told by a runtime that still has the time of before.
        let _ = back_off.next("k", at(100_001), at(5));
        assert_eq!(back_off.held_back("k", at(100_002), at(6)).unwrap().until, at(25));
        assert_eq!(back_off.held_back("k", at(100_002), at(24)).unwrap().until, at(25), "however often it is asked");
        assert_eq!(back_off.held_back("k", at(100_002), at(25)), None);
    }

    #[test]
    fn message_as_recorded() {
        let pod: kubelet_model::v1::Pod = serde_json::from_value(serde_json::json!(
            {"metadata": {"name": "failonce", "namespace": "golden", "uid": "b97f"}}))
        .unwrap();
        let pod = PodIdentity::of(&pod).unwrap();
        let text = held_back_message(Duration::from_secs(10), "main", &pod);
        assert_eq!(text, "back-off 10s restarting failed container=main pod=failonce_golden(b97f)");
        let text = held_back_message(Duration::from_secs(160), "main", &pod);
        assert!(text.starts_with("back-off 2m40s "));
        let of = |json| serde_json::from_value::<Container>(json).unwrap();
        let plain = of(serde_json::json!({"name": "c", "image": "i"}));
        let other = of(serde_json::json!({"name": "c", "image": "i", "resources": {"limits": {"cpu": "1"}}}));
        assert_ne!(CrashLoopBackOff::key(&pod, &plain), CrashLoopBackOff::key(&pod, &other));
    }

    proptest! {
        #[test]
        fn never_longer_than_the_maximum(
            max in 1u64..=300,
            steps in prop::collection::vec((0u64..2000, 0u64..2000), 1..40),
        ) {
            let mut back_off = CrashLoopBackOff::new(Duration::from_secs(10), Duration::from_secs(max));
            for (finished, now) in steps {
                if let Some(held) = back_off.held_back("k", at(finished), at(now)) {
                    prop_assert!(held.delay.as_secs() <= max);
                    prop_assert!(held.until > at(now) && held.until <= at(now + max));
                } else {
                    let _ = back_off.next("k", at(finished), at(now));
                }
            }
        }
    }
}
