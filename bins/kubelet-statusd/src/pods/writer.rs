//! The loop around the store: news in, requests out, answers in. Decides nothing.

use std::time::{Duration, Instant};

use bulkhead_daemon::progress::Heartbeat;
use bulkhead_ipc::client::Link;
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use jiff::Timestamp;
use kube::Client;
use tokio::sync::mpsc::{Receiver, channel};
use tokio::sync::watch;

use super::copies::ApiCopy;
use super::decide::Desired;
use super::facts::Facts;
use super::feed::{self, News};
use super::metrics::PodMetrics;
use super::requests::{Job, Outcome, send};
use super::status_store::StatusStore;
use crate::events::EventQueue;

/// News that wait; kubelet-syncd keeps the newest state of each pod itself, so few do.
const NEWS: usize = 16;

/// What is wanted of a pod, and what the API server was seen to have of it.
type Pod = Box<(Desired, Option<ApiCopy>)>;

/// What the writer needs.
#[derive(Clone)]
pub struct Writer {
    pub client: Client,
    pub syncd: Link,
    /// What is known of the node.
    pub node: watch::Receiver<Facts>,
    pub metrics: PodMetrics,
    /// Learns pods' resource versions, which events name, and how many pods start or end.
    pub events: EventQueue,
    /// The loop's registration with the watchdog. Requests under way end by their own deadline, and are polled where the loop is.
    pub heartbeat: Heartbeat,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").finish_non_exhaustive()
    }
}

impl Writer {
    /// Writes for ever; dropped, it stops at once (what was under way is unknown, and written again by the next).
    pub async fn run(self) {
        let (sender, news) = channel(NEWS);
        let seed = getrandom::u64().unwrap_or(1);
        let store = StatusStore::new(seed, self.metrics.clone());
        let pods = feed::pods(self.syncd.clone(), sender, |state| Desired::of(state).map(Box::new));
        tokio::join!(pods, self.turn(store, news));
    }

    async fn turn(&self, mut store: StatusStore, mut news: Receiver<News<Pod>>) {
        let mut in_flight: FuturesUnordered<BoxFuture<'static, (Job, Outcome)>> = FuturesUnordered::new();
        let mut node = self.node.clone();
        node.mark_changed();
        loop {
            while let Some(job) = store.next(Instant::now(), Timestamp::now()) {
                tracing::debug!(pod_uid = job.uid(), name = %job.name, action = job.action.name(), "request");
                let client = self.client.clone();
                in_flight.push(Box::pin(async move {
                    let outcome = send(&client, &job).await;
                    (job, outcome)
                }));
            }
            self.events.pods_busy(store.busy());
            let wake = store.wake_at();
            tokio::select! {
                one = news.recv() => match one {
                    Some(one) => self.take(&mut store, one),
                    None => return,
                },
                Ok(()) = node.changed() => {
                    let facts = node.borrow_and_update().clone();
                    store.node(facts, Instant::now());
                }
                Some((job, outcome)) = in_flight.next() => {
                    self.metrics.request(job.action.name(), outcome.name());
                    store.finished(&job, outcome, Instant::now());
                }
                () = sleep_until(wake) => {}
                () = self.heartbeat.asked() => {}
            }
        }
    }

    fn take(&self, store: &mut StatusStore, news: News<Pod>) {
        let now = Instant::now();
        match news {
            News::Connected(epoch) => store.connected(epoch, now),
            News::Pod(pod) => {
                let (desired, seen) = *pod;
                if let Some(api) = seen.as_ref().filter(|api| api.uid == desired.uid) {
                    self.events.pod_seen(desired.uid.as_str(), &api.version);
                }
                store.upsert(desired, seen, now);
            }
            News::Removed(uid) => store.removed(&uid, now),
            News::SnapshotDone => store.snapshot_done(now),
        }
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        // Timers have a resolution of 1 ms: a wait of less would turn in a circle.
        Some(at) => {
            let left = at.saturating_duration_since(Instant::now());
            tokio::time::sleep(left.max(Duration::from_millis(1))).await;
        }
        None => std::future::pending().await,
    }
}
