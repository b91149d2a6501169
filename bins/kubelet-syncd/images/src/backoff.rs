//! Waiting longer after each failed pull of an image for a pod. Pure, with the clock passed in. (client-go
//! `util/flowcontrol`)

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

/// Doubling delays by key. An entry is forgotten, and its sequence starts over, once nothing was heard of it for
/// twice the longest delay.
#[derive(Debug)]
pub struct BackOff {
    initial: Duration,
    max: Duration,
    entries: HashMap<String, Entry>,
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
    pub fn refusal(&self, key: &str, now: Instant) -> Option<&str> {
        let entry = self.entries.get(key)?;
        let since = now.duration_since(entry.updated);
        (!self.expired(entry, now) && since < entry.delay).then_some(entry.message.as_str())
    }

    /// When the next attempt may be made. None: now.
    pub fn until(&self, key: &str, now: Instant) -> Option<Instant> {
        self.refusal(key, now)?;
        self.entries.get(key).map(|entry| entry.updated + entry.delay)
    }

    /// An attempt failed.
    pub fn failed(&mut self, key: String, message: String, now: Instant) {
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn doubles_to_the_maximum_and_starts_over_after_twice_that() {
        let mut back_off = BackOff::new(Duration::from_secs(10), Duration::from_secs(300));
        let mut now = Instant::now();
        assert_eq!(back_off.refusal("u_i", now), None);
        let mut delays = Vec::new();
        for n in 0..7 {
            back_off.failed("u_i".into(), format!("failure {n}"), now);
            assert_eq!(back_off.refusal("u_i", now), Some(format!("failure {n}").as_str()));
            assert_eq!(back_off.refusal("u_j", now), None, "another image of the pod");
            let until = back_off.until("u_i", now).unwrap();
            delays.push(until.duration_since(now).as_secs());
            assert!(back_off.refusal("u_i", until - Duration::from_millis(1)).is_some());
            now = until;
            assert_eq!(back_off.refusal("u_i", now), None);
        }
        assert_eq!(delays, [10, 20, 40, 80, 160, 300, 300]);
        now += Duration::from_secs(301);
        back_off.failed("u_i".into(), String::new(), now);
        assert_eq!(back_off.until("u_i", now).unwrap().duration_since(now), Duration::from_secs(10));
        back_off.collect_garbage(now + Duration::from_secs(600));
        assert_eq!(back_off.entries.len(), 1);
        back_off.collect_garbage(now + Duration::from_secs(601));
        assert!(back_off.entries.is_empty());
    }
}
