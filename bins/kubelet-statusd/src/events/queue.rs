//! This process's own events until they are sent: bounded, never waits, the oldest goes first.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use super::Record;
use super::object::Occurrence;
use crate::lru::Lru;
use crate::oldest_first::OldestFirst;

/// Events kept (upstream's channel has as many places).
const CAPACITY: usize = 1000;
/// And so many bytes of them.
const BYTES_MAX: usize = 1 << 20;
/// Further behind the last event's time than this the clock was set back, and what came before is no measure any more.
const SET_BACK: Duration = Duration::from_secs(1);
/// Pods whose resource version is remembered; more than a node runs.
const VERSIONS: usize = 4096;

#[derive(Debug)]
struct Shared {
    waiting: Mutex<OldestFirst<Occurrence>>,
    came: Notify,
    dropped: AtomicU64,
    last: Mutex<Timestamp>,
    versions: Mutex<Lru<u64, String>>,
    busy: watch::Sender<usize>,
}

/// Takes events of this process; bounded, never waits.
#[derive(Debug, Clone)]
pub struct EventQueue {
    shared: Arc<Shared>,
}

/// The other end of an [`EventQueue`].
#[derive(Debug)]
pub struct OwnEvents {
    shared: Arc<Shared>,
}

impl EventQueue {
    /// The queue and its other end, for [`super::run`].
    pub fn new() -> (Self, OwnEvents) {
        let shared = Arc::new(Shared {
            waiting: Mutex::new(OldestFirst::new(CAPACITY, BYTES_MAX, Occurrence::bytes)),
            came: Notify::new(),
            dropped: AtomicU64::new(0),
            last: Mutex::new(Timestamp::MIN),
            versions: Mutex::new(Lru::new(VERSIONS)),
            busy: watch::Sender::new(0),
        });
        (EventQueue { shared: shared.clone() }, OwnEvents { shared })
    }

    /// Keeps the event, with the time of now, until it can be sent.
    pub fn record(&self, record: Record) {
        let occurrence = Occurrence {
            involved: record.involved,
            kind: record.kind.to_owned(),
            reason: record.reason,
            message: record.message,
            annotations: BTreeMap::new(),
            time: self.unique_time(Timestamp::now()),
        };
        let gone = self.shared.waiting.lock().push(occurrence);
        self.shared.dropped.fetch_add(u64::try_from(gone).unwrap_or(u64::MAX), Ordering::Relaxed);
        self.shared.came.notify_one();
    }

    /// A time that no other event of this process has.
    fn unique_time(&self, now: Timestamp) -> Timestamp {
        let mut last = self.shared.last.lock();
        *last = time_after(*last, now);
        *last
    }

    /// Remembers the resource version under which a pod came to be known here: its events name it.
    pub fn pod_seen(&self, uid: &str, version: &str) {
        let mut versions = self.shared.versions.lock();
        if versions.get(&hash(uid)).is_none() {
            versions.put(hash(uid), version.to_owned());
        }
    }

    /// Takes how many pods start or end just now.
    pub fn pods_busy(&self, pods: usize) {
        self.shared.busy.send_if_modified(|before| std::mem::replace(before, pods) != pods);
    }

    /// See [`EventQueue::pods_busy`].
    pub fn busy_pods(&self) -> watch::Receiver<usize> {
        self.shared.busy.subscribe()
    }

    /// See [`EventQueue::pod_seen`].
    pub fn pod_version(&self, uid: &str) -> Option<String> {
        self.shared.versions.lock().get(&hash(uid)).cloned()
    }
}

/// The next event's time, unlike the last one's. Of a clock that was far ahead for a while nothing stays.
fn time_after(last: Timestamp, now: Timestamp) -> Timestamp {
    if last < now || last.duration_since(now).unsigned_abs() > SET_BACK {
        return now;
    }
    Timestamp::from_nanosecond(last.as_nanosecond().saturating_add(1)).unwrap_or(now)
}

impl OwnEvents {
    /// Waits for the next event.
    pub async fn next(&mut self) -> Occurrence {
        loop {
            if let Some(occurrence) = self.try_next() {
                return occurrence;
            }
            self.shared.came.notified().await;
        }
    }

    /// The next event, if there is one.
    pub fn try_next(&mut self) -> Option<Occurrence> {
        self.shared.waiting.lock().pop()
    }

    /// How many were dropped since this was last asked.
    pub fn dropped(&self) -> u64 {
        self.shared.dropped.swap(0, Ordering::Relaxed)
    }
}

fn hash(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::Involved;

    fn record(message: String) -> Record {
        Record { involved: Involved::Node, kind: "Normal", reason: "Starting".into(), message }
    }

    #[tokio::test]
    async fn bounded_in_order_each_at_its_own_time() {
        let (queue, mut own) = EventQueue::new();
        for i in 0..CAPACITY + 3 {
            queue.record(record(i.to_string()));
        }
        assert_eq!((own.dropped(), own.dropped()), (3, 0));
        let mut last = Timestamp::MIN;
        for i in 3..CAPACITY + 3 {
            let event = own.next().await;
            assert_eq!(event.message, i.to_string());
            assert!(event.time > last);
            last = event.time;
        }
    }

    #[test]
    fn times_are_unlike_and_of_the_clock_as_it_is() {
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let (second, hour) = (Duration::from_secs(1), Duration::from_secs(3600));
        let nanosecond = Duration::from_nanos(1);
        for (what, last, expected) in [
            ("the first", Timestamp::MIN, now),
            ("later", now - second, now),
            ("at once", now, now + nanosecond),
            ("many at once", now + second, now + second + nanosecond),
            ("the clock was an hour ahead", now + hour, now),
        ] {
            assert_eq!(time_after(last, now), expected, "{what}");
        }
    }

    #[test]
    fn bounded_in_bytes_too() {
        let (queue, mut own) = EventQueue::new();
        for _ in 0..100 {
            queue.record(record("x".repeat(100 << 10)));
        }
        let kept: Vec<Occurrence> = std::iter::from_fn(|| own.try_next()).collect();
        assert_eq!((kept.len(), own.dropped()), (10, 90));
    }

    #[test]
    fn a_pods_first_version_stays() {
        let (queue, _own) = EventQueue::new();
        queue.pod_seen("u", "5");
        queue.pod_seen("u", "9");
        assert_eq!((queue.pod_version("u").as_deref(), queue.pod_version("v")), (Some("5"), None));
    }
}
