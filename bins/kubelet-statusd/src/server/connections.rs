//! Which connections there are, and which of them has to go when there are too many.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::activity::{Activity, Phase};
use super::source::Source;

/// Requests whose headers are long and not complete yet, of one server: strangers may send them, and they are in memory.
const LONG_HEADS: usize = 64;
/// Of a source that has too many connections, so many of the oldest are compared. A new connection costs no more than
/// this, however many there are.
const COMPARED: usize = 64;

/// All connections of a server.
#[derive(Debug)]
pub struct Connections {
    limit: usize,
    /// A proven client that takes nothing for so long may have to make room.
    stall_time: Duration,
    list: Mutex<Listed>,
    long_heads: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct Listed {
    next: u64,
    all: BTreeMap<u64, Arc<Activity>>,
    unproven: Unproven,
}

/// The connections whose clients have not proved who they are, by where they come from.
#[derive(Debug, Default)]
struct Unproven {
    sources: HashMap<Source, BTreeMap<u64, Arc<Activity>>>,
    /// The last has most; of several with as many it is the one with the oldest connection.
    order: BTreeSet<(usize, Reverse<u64>, Source)>,
}

impl Unproven {
    fn change(&mut self, source: Source, change: impl FnOnce(&mut BTreeMap<u64, Arc<Activity>>)) {
        let place = |of: &BTreeMap<u64, Arc<Activity>>| Some((of.len(), Reverse(*of.first_key_value()?.0), source));
        let of = self.sources.entry(source).or_default();
        if let Some(place) = place(of) {
            self.order.remove(&place);
        }
        change(of);
        if let Some(place) = place(of) {
            self.order.insert(place);
        } else {
            self.sources.remove(&source);
        }
    }

    fn add(&mut self, activity: &Arc<Activity>) {
        self.change(activity.source, |of| {
            of.insert(activity.id, activity.clone());
        });
    }

    fn remove(&mut self, activity: &Activity) {
        self.change(activity.source, |of| {
            of.remove(&activity.id);
        });
    }

    /// Of the source with most, the one that has been quiet for longest.
    fn first_to_go(&self) -> Option<u64> {
        let (_, _, source) = self.order.last()?;
        let oldest = self.sources.get(source)?.iter().take(COMPARED);
        oldest.map(|(id, activity)| (activity.quiet(), *id)).min().map(|(_, id)| id)
    }
}

impl Listed {
    fn remove(&mut self, id: u64) -> Option<Arc<Activity>> {
        let activity = self.all.remove(&id)?;
        self.unproven.remove(&activity);
        Some(activity)
    }

    /// Who makes room: of those that have proved nothing one of the source with most. Where all have proved who they are,
    /// the one that has waited for a request for longest (one that dawdles over a request's headers counts as waiting),
    /// and at last one that has long taken nothing. None: all of them are at work.
    fn first_to_go(&self, stall_time: Duration) -> Option<u64> {
        if let Some(id) = self.unproven.first_to_go() {
            return Some(id);
        }
        let idle = |activity: &Activity| match activity.phase() {
            Phase::Idle(since) | Phase::Head(since) => Some((since, activity.id)),
            Phase::Busy => None,
        };
        let now = Instant::now();
        let stalled = |activity: &Activity| {
            let since = activity.stalled().filter(|since| now.duration_since(*since) >= stall_time)?;
            Some((since, activity.id))
        };
        let all = || self.all.values().map(AsRef::as_ref);
        let found = all().filter_map(idle).min().or_else(|| all().filter_map(stalled).min());
        found.map(|(_, id)| id)
    }
}

/// A connection's place; free again when it is dropped.
#[derive(Debug)]
pub struct Slot {
    connections: Arc<Connections>,
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
        self.connections.list.lock().remove(self.activity.id);
    }
}

impl Connections {
    pub fn new(limit: usize, stall_time: Duration) -> Arc<Self> {
        let long_heads = Arc::new(Semaphore::new(LONG_HEADS));
        Arc::new(Connections { limit: limit.max(1), stall_time, list: Mutex::default(), long_heads })
    }

    /// A place for a new connection. When all are taken, another is told to go. None: all of them are at work.
    pub fn admit(self: &Arc<Self>, source: Source) -> Option<Slot> {
        let mut listed = self.list.lock();
        if listed.all.len() >= self.limit {
            let id = listed.first_to_go(self.stall_time)?;
            // It is off the list at once: its own end finds nothing there to remove.
            if let Some(activity) = listed.remove(id) {
                activity.evict();
            }
        }
        let id = listed.next;
        listed.next += 1;
        let activity = Arc::new(Activity::new(id, source, Arc::downgrade(self)));
        listed.all.insert(id, activity.clone());
        listed.unproven.add(&activity);
        drop(listed);
        Some(Slot { connections: self.clone(), activity })
    }

    pub(super) fn proven(&self, activity: &Activity) {
        self.list.lock().unproven.remove(activity);
    }

    pub fn count(&self) -> usize {
        self.list.lock().all.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STALL: Duration = Duration::from_secs(30);

    fn source(last: u8) -> Source {
        Source::from(std::net::SocketAddr::from(([192, 0, 2, last], 1)))
    }

    /// Lets time go by, so that each connection has its own age.
    async fn later() {
        tokio::time::advance(Duration::from_secs(1)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn of_the_proven_the_longest_idle_makes_room_and_the_busy_never() {
        let connections = Connections::new(2, STALL);
        let admit = || connections.admit(source(1));
        let first = admit().unwrap();
        later().await;
        let second = admit().unwrap();
        first.activity().prove();
        second.activity().prove();
        let work = first.activity().begin();
        let third = admit().unwrap();
        third.activity().prove();
        second.activity().evicted().await;
        assert_eq!(connections.count(), 2);
        drop(second);
        assert_eq!(connections.count(), 2, "its place was taken already");
        let mut more = third.activity().begin();
        assert!(admit().is_none());
        // One that has long taken nothing is at work no more.
        more.gave();
        tokio::time::advance(STALL - Duration::from_secs(1)).await;
        assert!(admit().is_none());
        later().await;
        let fourth = admit().unwrap();
        fourth.activity().prove();
        third.activity().evicted().await;
        drop((work, first, more, third));
        assert!(admit().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn under_pressure_the_unproven_of_the_source_with_most_go_first() {
        let connections = Connections::new(6, STALL);
        // An old idle connection that has proved who it is, from where most come from; one from elsewhere.
        let proven = connections.admit(source(1)).unwrap();
        proven.activity().prove();
        proven.activity().prove();
        let elsewhere = connections.admit(source(2)).unwrap();
        later().await;
        let mut many = Vec::new();
        for _ in 0..4 {
            let slot = connections.admit(source(1)).unwrap();
            let mut work = slot.activity().begin();
            later().await;
            work.gave();
            many.push((slot, work));
        }
        // The first of them has had something taken since.
        later().await;
        many[0].1.asked();
        many[0].1.gave();
        let newest = connections.admit(source(3)).unwrap();
        many[1].0.activity().evicted().await;
        assert_eq!((connections.count(), many[1].0.activity().phase()), (6, Phase::Busy));
        // Nobody has more than one now but the first: it goes on until there is a tie, which the oldest loses.
        let mut more: Vec<Slot> = (4..7).map(|last| connections.admit(source(last)).unwrap()).collect();
        for (slot, _) in [&many[2], &many[3]] {
            slot.activity().evicted().await;
        }
        elsewhere.activity().evicted().await;
        assert!(connections.list.lock().unproven.order.iter().all(|(number, ..)| *number == 1));
        // Those that prove themselves leave the count; with nobody else left the longest idle goes.
        for slot in more.iter().chain([&newest, &many[0].0]) {
            slot.activity().prove();
        }
        assert!(
            connections.list.lock().unproven.order.is_empty() && connections.list.lock().unproven.sources.is_empty()
        );
        more.push(connections.admit(source(9)).unwrap());
        proven.activity().evicted().await;
        drop((more, newest, many, elsewhere, proven));
        assert_eq!(connections.count(), 0);
        let listed = connections.list.lock();
        assert!(listed.unproven.order.is_empty() && listed.unproven.sources.is_empty());
    }
}
