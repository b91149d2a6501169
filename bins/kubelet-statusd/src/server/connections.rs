//! Which connections there are, what each is doing, and which of them has to go when there are too many.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// What one connection is doing. Whoever serves it looks at [`Activity::phase`] after each step.
#[derive(Debug)]
pub struct Activity {
    /// Requests in work, their answers' bodies included.
    requests: AtomicUsize,
    /// It has left HTTP and belongs to a stream: never idle.
    switched: AtomicBool,
    since: Mutex<Since>,
    evicted: Notify,
}

#[derive(Debug, Clone, Copy)]
struct Since {
    idle: Instant,
    /// The first byte of a request whose headers have not ended.
    head: Option<Instant>,
}

/// What a connection waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// For a request, since then.
    Idle(Instant),
    /// For the rest of a request's headers, since then.
    Head(Instant),
    /// For an answer, or it is a stream.
    Busy,
}

impl Activity {
    fn new() -> Self {
        Activity {
            requests: AtomicUsize::new(0),
            switched: AtomicBool::new(false),
            since: Mutex::new(Since { idle: Instant::now(), head: None }),
            evicted: Notify::new(),
        }
    }

    fn since(&self) -> MutexGuard<'_, Since> {
        self.since.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn phase(&self) -> Phase {
        if self.requests.load(Ordering::Relaxed) > 0 || self.is_switched() {
            return Phase::Busy;
        }
        let since = *self.since();
        since.head.map_or(Phase::Idle(since.idle), Phase::Head)
    }

    /// Bytes came. Between requests they are the beginning of the next: then true.
    pub fn received(&self) -> bool {
        let between = self.requests.load(Ordering::Relaxed) == 0 && !self.is_switched();
        if between {
            let mut since = self.since();
            since.head = since.head.or_else(|| Some(Instant::now()));
        }
        between
    }

    /// A request's headers are complete; the request is in work for as long as the answer lives.
    pub fn begin(self: &Arc<Self>) -> InWork {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.since().head = None;
        InWork(self.clone())
    }

    /// HTTP is over on this connection, but not the connection.
    pub fn switch(&self) {
        self.switched.store(true, Ordering::Relaxed);
    }

    pub fn is_switched(&self) -> bool {
        self.switched.load(Ordering::Relaxed)
    }

    /// Resolves when the connection has to make room for another.
    pub async fn evicted(&self) {
        self.evicted.notified().await;
    }
}

/// One request in work.
#[derive(Debug)]
pub struct InWork(Arc<Activity>);

impl Drop for InWork {
    fn drop(&mut self) {
        if self.0.requests.fetch_sub(1, Ordering::Relaxed) == 1 {
            *self.0.since() = Since { idle: Instant::now(), head: None };
        }
    }
}

/// Requests whose headers are long and not complete yet, of one server: strangers may send them, and they are in memory.
const LONG_HEADS: usize = 64;

/// All connections of a server.
#[derive(Debug)]
pub struct Connections {
    limit: usize,
    list: Mutex<Listed>,
    long_heads: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct Listed {
    next: u64,
    all: BTreeMap<u64, Arc<Activity>>,
}

/// A connection's place; free again when it is dropped.
#[derive(Debug)]
pub struct Slot {
    connections: Arc<Connections>,
    id: u64,
    activity: Arc<Activity>,
}

impl Slot {
    pub fn activity(&self) -> &Arc<Activity> {
        &self.activity
    }

    /// Room for headers that are long; None: too many others have some.
    pub fn long_head(&self) -> Option<OwnedSemaphorePermit> {
        self.connections.long_heads.clone().try_acquire_owned().ok()
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.connections.listed().all.remove(&self.id);
    }
}

impl Connections {
    pub fn new(limit: usize) -> Arc<Self> {
        let long_heads = Arc::new(Semaphore::new(LONG_HEADS));
        Arc::new(Connections { limit: limit.max(1), list: Mutex::default(), long_heads })
    }

    fn listed(&self) -> MutexGuard<'_, Listed> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a new connection. When all are taken, the one that has waited for a request for longest is told to go
    /// (one that dawdles over a request's headers counts as waiting). None: all of them are at work.
    pub fn admit(self: &Arc<Self>) -> Option<Slot> {
        let mut listed = self.listed();
        if listed.all.len() >= self.limit {
            let idle = |(id, activity): (&u64, &Arc<Activity>)| match activity.phase() {
                Phase::Idle(since) | Phase::Head(since) => Some((since, *id)),
                Phase::Busy => None,
            };
            let (_, oldest) = listed.all.iter().filter_map(idle).min()?;
            // It is off the list at once: its own end finds nothing there to remove.
            if let Some(activity) = listed.all.remove(&oldest) {
                activity.evicted.notify_one();
            }
        }
        let id = listed.next;
        listed.next += 1;
        let activity = Arc::new(Activity::new());
        listed.all.insert(id, activity.clone());
        drop(listed);
        Some(Slot { connections: self.clone(), id, activity })
    }

    pub fn count(&self) -> usize {
        self.listed().all.len()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_idle_or_at_its_headers_or_busy() {
        let slot = Connections::new(4).admit().unwrap();
        let activity = slot.activity();
        let start = Instant::now();
        assert_eq!(activity.phase(), Phase::Idle(start));
        tokio::time::advance(Duration::from_secs(1)).await;
        activity.received();
        let head = Instant::now();
        tokio::time::advance(Duration::from_secs(1)).await;
        activity.received();
        assert_eq!(activity.phase(), Phase::Head(head), "from the first byte on");
        let (one, two) = (activity.begin(), activity.begin());
        activity.received();
        drop(one);
        assert_eq!(activity.phase(), Phase::Busy);
        tokio::time::advance(Duration::from_secs(1)).await;
        drop(two);
        assert_eq!(activity.phase(), Phase::Idle(Instant::now()));
        activity.switch();
        assert_eq!(activity.phase(), Phase::Busy);
    }

    #[tokio::test(start_paused = true)]
    async fn the_longest_idle_makes_room_and_the_busy_never() {
        let connections = Connections::new(2);
        let first = connections.admit().unwrap();
        tokio::time::advance(Duration::from_secs(1)).await;
        let second = connections.admit().unwrap();
        let work = first.activity().begin();
        let third = connections.admit().unwrap();
        second.activity().evicted().await;
        assert_eq!(connections.count(), 2);
        drop(second);
        assert_eq!(connections.count(), 2, "its place was taken already");
        let more = third.activity().begin();
        assert!(connections.admit().is_none());
        drop((work, more));
        drop(first);
        assert!(connections.admit().is_some());
    }
}
