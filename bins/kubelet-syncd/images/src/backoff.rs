//! Waiting longer after each failed pull of an image for a pod. Pure, with the clock passed in. (client-go
//! `util/flowcontrol`)

use std::collections::HashMap;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};
use tokio::time::Instant;

/// Of the saved form.
pub const VERSION: u64 = 1;
/// More than a node has containers: a bound on what is written, and on what a damaged file can bring in.
const ENTRIES_MAX: usize = 16_384;
/// Bytes of a message that outlive a restart.
const MESSAGE_MAX: usize = 1024;

/// Keeps the back-off over a restart. Called after failures, on threads for blocking work, one call at a time.
pub trait BackOffStore: Send + Sync {
    fn save(&self, saved: &Saved);
}

impl std::fmt::Debug for dyn BackOffStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BackOffStore")
    }
}

/// What is pulled for whom: another image of the pod, or another pod of the image, waits for itself.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Key {
    pub pod_uid: String,
    /// As the container names it.
    pub image: String,
}

/// An attempt that is too early yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldBack {
    pub key: Key,
    /// When the last attempt failed.
    pub failed: Instant,
    pub until: Instant,
    /// What it failed with.
    pub message: String,
}

/// What outlives a restart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    /// In which boot of the machine the clock counts.
    boot_id: String,
    #[serde(deserialize_with = "understood")]
    entries: Vec<SavedEntry>,
}

/// Without what another version has made another form of.
fn understood<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<SavedEntry>, D::Error> {
    let all = Vec::<serde_json::Value>::deserialize(deserializer)?;
    Ok(all.into_iter().filter_map(|entry| serde_json::from_value(entry).ok()).collect())
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct SavedEntry {
    #[serde(flatten)]
    key: Key,
    delay_ms: u64,
    /// Milliseconds since boot.
    failed_ms: u64,
    message: String,
}

/// Doubling delays by key. An entry is forgotten, and its sequence starts over, once nothing was heard of it for
/// twice the longest delay.
#[derive(Debug)]
pub struct BackOff {
    initial: Duration,
    max: Duration,
    entries: HashMap<Key, Entry>,
}

#[derive(Debug)]
struct Entry {
    delay: Duration,
    updated: Instant,
    /// Of the last failure, for whoever is told to wait.
    message: String,
}

impl BackOff {
    pub fn new(initial: Duration, max: Duration) -> Self {
        BackOff { initial, max, entries: HashMap::new() }
    }

    /// What the last attempt failed with, while it is too early for another one.
    pub fn refusal(&self, key: &Key, now: Instant) -> Option<&str> {
        let entry = self.entries.get(key)?;
        let since = now.duration_since(entry.updated);
        (!self.expired(entry, now) && since < entry.delay).then_some(entry.message.as_str())
    }

    /// When the next attempt may be made. None: now.
    pub fn until(&self, key: &Key, now: Instant) -> Option<Instant> {
        self.refusal(key, now)?;
        self.entries.get(key).map(|entry| entry.updated + entry.delay)
    }

    /// Everything that has to wait.
    pub fn held_back(&self, now: Instant) -> Vec<HeldBack> {
        let held = self.entries.iter().filter_map(|(key, entry)| {
            let until = self.until(key, now)?;
            Some(HeldBack { key: key.clone(), failed: entry.updated, until, message: entry.message.clone() })
        });
        let mut held: Vec<HeldBack> = held.collect();
        held.sort_by(|one, other| one.key.cmp(&other.key));
        held
    }

    /// An attempt failed.
    pub fn failed(&mut self, key: Key, message: String, now: Instant) {
        let delay = match self.entries.get(&key) {
            Some(entry) if !self.expired(entry, now) => (entry.delay * 2).min(self.max),
            _ => self.initial,
        };
        self.entries.insert(key, Entry { delay, updated: now, message });
    }

    /// Drops what is forgotten; to be called now and then.
    pub fn collect_garbage(&mut self, now: Instant) {
        let max = self.max;
        self.entries.retain(|_, entry| now.duration_since(entry.updated) <= max * 2);
    }

    fn expired(&self, entry: &Entry, now: Instant) -> bool {
        now.duration_since(entry.updated) > self.max * 2
    }

    /// What [`restore`](Self::restore) reads. `since_boot`: the time of `now`, milliseconds.
    pub fn saved(&self, boot_id: &str, now: Instant, since_boot: u64) -> Saved {
        let milliseconds = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let entry = |(key, entry): (&Key, &Entry)| SavedEntry {
            key: key.clone(),
            delay_ms: milliseconds(entry.delay),
            failed_ms: since_boot.saturating_sub(milliseconds(now.duration_since(entry.updated))),
            message: cut(&entry.message),
        };
        let live = self.entries.iter().filter(|(_, entry)| !self.expired(entry, now));
        let mut entries: Vec<SavedEntry> = live.map(entry).collect();
        // The newest are those that matter.
        entries.sort_by_key(|entry| std::cmp::Reverse(entry.failed_ms));
        entries.truncate(ENTRIES_MAX);
        Saved { boot_id: boot_id.to_owned(), entries }
    }

    /// Takes over what was saved in this boot of the machine.
    pub fn restore(&mut self, saved: Saved, boot_id: &str, now: Instant, since_boot: u64) {
        if saved.boot_id != boot_id || saved.entries.len() > ENTRIES_MAX {
            return;
        }
        for saved in saved.entries {
            let age = Duration::from_millis(since_boot.saturating_sub(saved.failed_ms));
            let delay = Duration::from_millis(saved.delay_ms).min(self.max);
            let Some(updated) = now.checked_sub(age) else { continue };
            let entry = Entry { delay, updated, message: saved.message };
            if !self.expired(&entry, now) {
                self.entries.insert(saved.key, entry);
            }
        }
    }
}

fn cut(message: &str) -> String {
    if message.len() <= MESSAGE_MAX {
        return message.to_owned();
    }
    let mut end = MESSAGE_MAX;
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}...", &message[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(image: &str) -> Key {
        Key { pod_uid: "u".into(), image: image.into() }
    }

    #[tokio::test(start_paused = true)]
    async fn goes_on_after_a_restart_in_the_same_boot() {
        let (initial, max) = (Duration::from_secs(10), Duration::from_secs(300));
        let mut before = BackOff::new(initial, max);
        let began = Instant::now() + Duration::from_secs(1000);
        before.failed(key("i"), "first".into(), began);
        before.failed(key("i"), "é".repeat(MESSAGE_MAX), began + Duration::from_secs(10));
        let later = began + Duration::from_secs(15);
        let saved = before.saved("boot", later, 50_000);
        let mut json = serde_json::to_value(&saved).unwrap();
        json["entries"].as_array_mut().unwrap().push(serde_json::json!({"curve": "flat"}));
        let saved: Saved = serde_json::from_value(json).unwrap();
        let restored = |boot: &str, since_boot: u64| {
            let mut back_off = BackOff::new(initial, max);
            back_off.restore(saved.clone(), boot, later, since_boot);
            back_off.held_back(later)
        };
        // The process was away for three seconds of the twenty.
        let [held] = restored("boot", 53_000).try_into().unwrap();
        assert_eq!(held.key, key("i"));
        assert_eq!(held.until.duration_since(later), Duration::from_secs(12));
        assert!(held.message.starts_with('é') && held.message.ends_with("...") && held.message.len() < 1100);
        assert_eq!(restored("boot", 66_000), [], "its time is over");
        assert_eq!(restored("another", 53_000), []);
        assert_eq!(restored("boot", 10_000).len(), 1, "a clock that cannot be");
        let mut back_off = BackOff::new(initial, max);
        back_off.restore(saved.clone(), "boot", later, 66_000);
        back_off.failed(key("i"), String::new(), later);
        let delay = back_off.until(&key("i"), later).unwrap().duration_since(later);
        assert_eq!(delay, Duration::from_secs(40), "the sequence goes on");
    }

    #[tokio::test(start_paused = true)]
    async fn doubles_to_the_maximum_and_starts_over_after_twice_that() {
        let mut back_off = BackOff::new(Duration::from_secs(10), Duration::from_secs(300));
        let mut now = Instant::now();
        assert_eq!(back_off.refusal(&key("i"), now), None);
        let mut delays = Vec::new();
        for n in 0..7 {
            back_off.failed(key("i"), format!("failure {n}"), now);
            assert_eq!(back_off.refusal(&key("i"), now), Some(format!("failure {n}").as_str()));
            assert_eq!(back_off.refusal(&key("j"), now), None, "another image of the pod");
            let until = back_off.until(&key("i"), now).unwrap();
            delays.push(until.duration_since(now).as_secs());
            assert!(back_off.refusal(&key("i"), until - Duration::from_millis(1)).is_some());
            now = until;
            assert_eq!(back_off.refusal(&key("i"), now), None);
        }
        assert_eq!(delays, [10, 20, 40, 80, 160, 300, 300]);
        now += Duration::from_secs(301);
        back_off.failed(key("i"), String::new(), now);
        assert_eq!(back_off.until(&key("i"), now).unwrap().duration_since(now), Duration::from_secs(10));
        back_off.collect_garbage(now + Duration::from_secs(600));
        assert_eq!(back_off.entries.len(), 1);
        back_off.collect_garbage(now + Duration::from_secs(601));
        assert!(back_off.entries.is_empty());
    }
}
