//! What becomes of an event: sent, counted together with an equal one, put together with similar ones, or not sent at all
//! (upstream `staging/src/k8s.io/client-go/tools/record/events_cache.go`).
//!
//! The clock is the events' own: what waited for the API server is judged as if it had not.

use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::time::Duration;

use bulkhead_types::TokenBucket;
use jiff::Timestamp;

use super::object::{EventObject, name};
use crate::lru::Lru;

/// Entries of each memory.
const MEMORY: usize = 4096;
/// So many different messages about one thing are put together...
const SIMILAR: usize = 10;
/// ...when each came within this of the one before.
const SIMILAR_WITHIN: i64 = 600;
/// Events about one object from one source: in a second, and at once.
const SPAM_PER_SECOND: f64 = 1.0 / 300.0;
const SPAM_BURST: f64 = 25.0;
const COMBINED: &str = "(combined from similar events): ";

/// What to do with an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Correlation {
    Create(EventObject),
    /// It is there already; its count, time and message are to be renewed. If it is not there any more it is created as
    /// it stands here.
    Count(EventObject),
    /// Too many about this object.
    Spam,
}

#[derive(Debug)]
struct Similar {
    messages: Vec<u64>,
    last: Timestamp,
}

#[derive(Debug, Clone)]
struct SeenEvent {
    name: String,
    first: Timestamp,
    count: u32,
}

/// The three memories.
#[derive(Debug)]
pub struct Correlator {
    similar: Lru<u64, Similar>,
    seen: Lru<u64, SeenEvent>,
    spam: Lru<u64, TokenBucket>,
}

impl Default for Correlator {
    fn default() -> Self {
        Correlator { similar: Lru::new(MEMORY), seen: Lru::new(MEMORY), spam: Lru::new(MEMORY) }
    }
}

impl Correlator {
    /// Judges one event, in the order in which they happened.
    pub fn judge(&mut self, event: EventObject) -> Correlation {
        let now = event.last;
        let (event, key) = self.aggregate(event);
        let event = self.observe(event, key);
        if self.is_spam(&event, now) {
            return Correlation::Spam;
        }
        if event.count > 1 { Correlation::Count(event) } else { Correlation::Create(event) }
    }

    /// The event, or the one that stands for all similar ones; and under which key it is counted.
    fn aggregate(&mut self, event: EventObject) -> (EventObject, u64) {
        let now = event.last;
        let own = key(&event, (&event.kind, &event.reason, &event.message, event.involved["fieldPath"].as_str()));
        let group = key(&event, (&event.kind, &event.reason, "similar"));
        let message = hash(&event.message);
        let recent = |similar: &&mut Similar| now.as_second() - similar.last.as_second() <= SIMILAR_WITHIN;
        let mut messages = self
            .similar
            .get(&group)
            .filter(recent)
            .map(|similar| std::mem::take(&mut similar.messages))
            .unwrap_or_default();
        if !messages.contains(&message) {
            messages.push(message);
        }
        let many = messages.len() >= SIMILAR;
        if many {
            messages.remove(0);
        }
        self.similar.put(group, Similar { messages, last: now });
        if !many {
            return (event, own);
        }
        let object = event.involved["name"].as_str().unwrap_or_default();
        let combined = EventObject {
            name: name(object, now),
            message: format!("{COMBINED}{}", event.message),
            first: now,
            count: 1,
            reporting: false,
            ..event
        };
        (combined, group)
    }

    /// Counts it.
    fn observe(&mut self, mut event: EventObject, key: u64) -> EventObject {
        if let Some(seen) = self.seen.get(&key) {
            event.name.clone_from(&seen.name);
            event.first = seen.first;
            event.count = seen.count.saturating_add(1);
        }
        self.seen.put(key, SeenEvent { name: event.name.clone(), first: event.first, count: event.count });
        event
    }

    fn is_spam(&mut self, event: &EventObject, now: Timestamp) -> bool {
        let key = key(event, (&event.kind, "spam"));
        let now = Duration::try_from(now.duration_since(Timestamp::UNIX_EPOCH)).unwrap_or_default();
        if let Some(bucket) = self.spam.get(&key) {
            return !bucket.try_take(now);
        }
        let mut bucket = TokenBucket::new(SPAM_PER_SECOND, SPAM_BURST, now);
        let spam = !bucket.try_take(now);
        self.spam.put(key, bucket);
        spam
    }
}

/// The source and the object, and what else distinguishes.
fn key(event: &EventObject, more: impl Hash) -> u64 {
    let involved = ["apiVersion", "kind", "namespace", "name", "uid"].map(|field| event.involved[field].as_str());
    hash((&event.host, involved, more))
}

fn hash(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
#[path = "correlate_tests.rs"]
mod tests;
