//! The handle to the generator: what others ask of it and tell it, and whether it is healthy.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bulkhead_cri::CriClient;
use bulkhead_types::{ContainerId, PodUid};
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};

use super::cache::{Busy, Making, PodCache};
use super::metrics::PlegMetrics;
use super::options::PlegOptions;
use super::relist::PodLifecycleEvent;
use super::run::PlegTask;
use super::shared::{PlegStats, Shared};

/// Events waiting for a slow subscriber; upstream's capacity. Above it they are dropped and counted, the cache stays right, and
/// the subscriber is told to look at their pods when it has room again.
const SUBSCRIBER_CAPACITY: usize = 1000;
/// Without a successful list for this long PLEG is unhealthy and the node not ready.
const RELIST_THRESHOLD: Duration = Duration::from_secs(180);

/// Why PLEG is unhealthy; upstream's words, they end up in the Ready condition.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlegUnhealthy {
    #[error("pleg has yet to be successful")]
    NeverListed,
    #[error(
        "pleg was last seen active {} ago; threshold is {}",
        go_duration(.elapsed),
        go_duration(&RELIST_THRESHOLD)
    )]
    Stale { elapsed: Duration },
}

fn go_duration(duration: &Duration) -> bulkhead_types::GoDuration {
    bulkhead_types::GoDuration::from_nanos(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX))
}

/// Handle to the generator. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Pleg {
    shared: Arc<Shared>,
}

impl Pleg {
    /// Makes the generator. Nothing happens before the task is run; when the task is dropped, all waiting ends.
    ///
    /// # Errors
    /// A metric of the same name is registered already.
    pub fn new(
        client: CriClient,
        options: PlegOptions,
        registry: &prometheus::Registry,
    ) -> Result<(Pleg, PlegTask), prometheus::Error> {
        let metrics = PlegMetrics::register(registry)?;
        let shared = Arc::new(Shared {
            cache: Arc::default(),
            subscribers: Mutex::default(),
            stats: Mutex::default(),
            last_list: Mutex::default(),
            listed_once: watch::Sender::new(false),
            connected: AtomicBool::new(false),
        });
        let task = PlegTask::new(client, options, metrics, shared.clone());
        Ok((Pleg { shared }, task))
    }

    /// Events from now on. Each subscriber gets every event; one that falls [`SUBSCRIBER_CAPACITY`] behind loses some, and gets a
    /// `PodSync` of each of their pods when it has read on.
    pub fn subscribe(&self) -> mpsc::Receiver<PodLifecycleEvent> {
        self.shared.subscribers.lock().add(SUBSCRIBER_CAPACITY)
    }

    pub fn cache(&self) -> Arc<PodCache> {
        self.shared.cache.clone()
    }

    /// Asks for a fresh look at one pod, as after a sync that did something. Its events follow, or a `PodSync`.
    pub fn request(&self, uid: &PodUid) {
        self.shared.cache.want(uid);
    }

    /// [`Pleg::request`], asking also about these containers what cannot be seen from their states: they were changed
    /// while they run.
    pub fn refresh<'a>(&self, uid: &PodUid, containers: impl Iterator<Item = &'a ContainerId>) {
        self.shared.cache.want_anew(uid, containers);
    }

    /// Says that we are making, stopping or removing this pod's sandbox and containers: the runtime's events of that are our own
    /// doing, and one look afterwards (see [`Pleg::request`]) tells as much as one after each of them. Held for a bounded time only,
    /// so an end in the middle is not missed for long.
    pub fn busy(&self, uid: &PodUid) -> Busy {
        self.shared.cache.busy(uid)
    }

    /// Says that a call is about to make a sandbox or a container of this pod. While all of a pod is known by its ids, looks ask
    /// about these, which costs the runtime less than lists do.
    pub fn making(&self, uid: &PodUid) -> Making {
        self.shared.cache.making(uid)
    }

    /// Says that the runtime has removed this sandbox or container for us: looks do not ask about it any more.
    pub fn removed(&self, id: &str) {
        self.shared.cache.removed(id);
    }

    /// Whether the runtime could be listed lately.
    ///
    /// # Errors
    /// With upstream's message when not.
    pub fn health(&self) -> Result<(), PlegUnhealthy> {
        let last = *self.shared.last_list.lock();
        let elapsed = last.ok_or(PlegUnhealthy::NeverListed)?.elapsed();
        if elapsed > RELIST_THRESHOLD { Err(PlegUnhealthy::Stale { elapsed }) } else { Ok(()) }
    }

    /// Time since the last successful look at the runtime; None before the first.
    pub fn list_age(&self) -> Option<Duration> {
        self.shared.last_list.lock().map(|last| last.elapsed())
    }

    pub fn stats(&self) -> PlegStats {
        *self.shared.stats.lock()
    }

    /// An event stream stands and a list made after it was opened succeeded.
    pub fn connected(&self) -> bool {
        self.shared.connected.load(Ordering::Relaxed)
    }

    /// Waits until every pod that the runtime had at the start is in the cache: nothing may be decided earlier.
    pub async fn first_relist(&self) {
        let mut listed = self.shared.listed_once.subscribe();
        // An error means that the sender is gone; it lives in `self`.
        let _ = listed.wait_for(|done| *done).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unhealthy_in_upstreams_words() {
        let stale = PlegUnhealthy::Stale { elapsed: Duration::from_millis(184_500) };
        assert_eq!(stale.to_string(), "pleg was last seen active 3m4.5s ago; threshold is 3m0s");
    }
}
