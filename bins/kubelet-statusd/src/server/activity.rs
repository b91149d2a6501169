//! What one connection is doing, whether its client has proved who it is, and since when it has taken nothing of what it is
//! to be sent.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::connections::Connections;
use super::source::Source;

/// See the module. Whoever serves the connection looks at [`Activity::phase`] after each step.
#[derive(Debug)]
pub struct Activity {
    pub(super) id: u64,
    pub(super) source: Source,
    /// Where it is listed by its source for as long as it has proved nothing.
    connections: Weak<Connections>,
    /// Requests in work, their answers' bodies included.
    requests: AtomicUsize,
    /// It has left HTTP and belongs to a stream: never idle.
    switched: AtomicBool,
    proven: AtomicBool,
    since: Mutex<Since>,
    evicted: Notify,
}

#[derive(Debug)]
struct Since {
    idle: Instant,
    /// The first byte of a request whose headers have not ended.
    head: Option<Instant>,
    /// There was always a request in work.
    busy: Instant,
    /// The socket has taken nothing of what is to be sent.
    blocked: Option<Instant>,
    /// Bodies that gave something and were not asked for more: what they gave is not taken. As many as there are streams.
    given: BTreeMap<u64, Instant>,
    next: u64,
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
    pub(super) fn new(id: u64, source: Source, connections: Weak<Connections>) -> Self {
        let now = Instant::now();
        Activity {
            id,
            source,
            connections,
            requests: AtomicUsize::new(0),
            switched: AtomicBool::new(false),
            proven: AtomicBool::new(false),
            since: Mutex::new(Since {
                idle: now,
                head: None,
                busy: now,
                blocked: None,
                given: BTreeMap::new(),
                next: 0,
            }),
            evicted: Notify::new(),
        }
    }

    pub fn phase(&self) -> Phase {
        if self.requests.load(Ordering::Relaxed) > 0 || self.is_switched() {
            return Phase::Busy;
        }
        let since = self.since.lock();
        since.head.map_or(Phase::Idle(since.idle), Phase::Head)
    }

    /// Since when the client has taken nothing, though there is something: on the socket, or of an answer's body. A body
    /// that has nothing to give waits for us, and a stream that has left HTTP has limits of its own.
    pub fn stalled(&self) -> Option<Instant> {
        if self.is_switched() {
            return None;
        }
        let since = self.since.lock();
        since.blocked.into_iter().chain(since.given.values().copied()).min()
    }

    /// Since when nothing is heard of the client: the older, the sooner it makes room for another.
    pub fn quiet(&self) -> Instant {
        self.stalled().unwrap_or_else(|| match self.phase() {
            Phase::Idle(since) | Phase::Head(since) => since,
            Phase::Busy => self.since.lock().busy,
        })
    }

    /// Bytes came. Between requests they are the beginning of the next: then true.
    pub fn received(&self) -> bool {
        let between = self.requests.load(Ordering::Relaxed) == 0 && !self.is_switched();
        if between {
            let mut since = self.since.lock();
            since.head = since.head.or_else(|| Some(Instant::now()));
        }
        between
    }

    /// The socket takes nothing more for now, or it does again.
    pub fn blocked(&self, blocked: bool) {
        let mut since = self.since.lock();
        since.blocked = blocked.then(|| since.blocked.unwrap_or_else(Instant::now));
    }

    /// A request's headers are complete; the request is in work for as long as the answer lives.
    pub fn begin(self: &Arc<Self>) -> InWork {
        let first = self.requests.fetch_add(1, Ordering::Relaxed) == 0;
        let mut since = self.since.lock();
        since.head = None;
        if first {
            since.busy = Instant::now();
        }
        InWork { activity: self.clone(), given: None }
    }

    /// HTTP is over on this connection, but not the connection. Whoever was let in to do that, if only as anybody, is
    /// counted among streams from now on, and nobody here could end it.
    pub fn switch(&self) {
        self.switched.store(true, Ordering::Relaxed);
        self.prove();
    }

    pub fn is_switched(&self) -> bool {
        self.switched.load(Ordering::Relaxed)
    }

    /// The client has proved who it is: from now on it is not counted among those of its source, which may be many behind
    /// one address.
    pub fn prove(&self) {
        if !self.proven.swap(true, Ordering::Relaxed)
            && let Some(connections) = self.connections.upgrade()
        {
            connections.proven(self);
        }
    }

    pub fn is_proven(&self) -> bool {
        self.proven.load(Ordering::Relaxed)
    }

    /// Resolves when the connection has to make room for another.
    pub async fn evicted(&self) {
        self.evicted.notified().await;
    }

    pub(super) fn evict(&self) {
        self.evicted.notify_one();
    }
}

/// One request in work.
#[derive(Debug)]
pub struct InWork {
    activity: Arc<Activity>,
    given: Option<u64>,
}

impl InWork {
    /// The answer's body has given something, which is to be taken.
    pub fn gave(&mut self) {
        let mut since = self.activity.since.lock();
        let key = *self.given.get_or_insert(since.next);
        since.next = since.next.max(key + 1);
        since.given.insert(key, Instant::now());
    }

    /// The answer's body is asked for more: what it gave has been taken.
    pub fn asked(&mut self) {
        if let Some(key) = self.given.take() {
            self.activity.since.lock().given.remove(&key);
        }
    }
}

impl Drop for InWork {
    fn drop(&mut self) {
        self.asked();
        if self.activity.requests.fetch_sub(1, Ordering::Relaxed) == 1 {
            let mut since = self.activity.since.lock();
            since.idle = Instant::now();
            since.head = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_idle_or_at_its_headers_or_busy() {
        let slot = Connections::new(4, Duration::MAX).admit(Source::UNKNOWN).unwrap();
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
    async fn what_is_not_taken_is_a_stall_and_what_is_not_there_is_none() {
        let slot = Connections::new(4, Duration::MAX).admit(Source::UNKNOWN).unwrap();
        let activity = slot.activity();
        let (mut one, mut two) = (activity.begin(), activity.begin());
        let begun = Instant::now();
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!((activity.stalled(), activity.quiet()), (None, begun), "bodies that wait for us");
        one.gave();
        let first = Instant::now();
        tokio::time::advance(Duration::from_secs(1)).await;
        two.gave();
        let second = Instant::now();
        assert_eq!(activity.stalled(), Some(first));
        one.asked();
        assert_eq!(activity.stalled(), Some(second), "each body for itself");
        tokio::time::advance(Duration::from_secs(1)).await;
        two.gave();
        activity.blocked(true);
        let blocked = Instant::now();
        tokio::time::advance(Duration::from_secs(1)).await;
        activity.blocked(true);
        two.asked();
        assert_eq!(activity.stalled(), Some(blocked), "since the first time");
        activity.switch();
        assert_eq!(activity.stalled(), None, "streams have limits of their own");
        activity.blocked(false);
        drop((one, two));
        assert_eq!(activity.since.lock().given.len(), 0);
    }
}
