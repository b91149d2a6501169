//! The loop around the book: news in, requests out, answers in. Decides nothing.

use std::time::{Duration, Instant};

use bulkhead_daemon::progress::Turn;
use bulkhead_ipc::client::Link;
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use jiff::Timestamp;
use kube::Client;
use tokio::sync::mpsc::{Receiver, channel};
use tokio::sync::watch;

use super::book::Book;
use super::facts::Facts;
use super::feed::{self, News};
use super::metrics::PodMetrics;
use super::requests::{Job, Outcome, send};
use crate::events::EventQueue;

/// News that wait; kubelet-syncd keeps the newest state of each pod itself, so few do.
const NEWS: usize = 16;

/// What the writer needs.
#[derive(Clone)]
pub struct Writer {
    pub client: Client,
    pub syncd: Link,
    /// What is known of the node.
    pub node: watch::Receiver<Facts>,
    pub metrics: PodMetrics,
    /// Learns pods' resource versions, which events name.
    pub events: EventQueue,
    /// The promise to the watchdog. Requests under way end by their own deadline, and are polled where it is kept.
    pub turn: Turn,
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
        let book = Book::new(seed, self.metrics.clone());
        let pods = feed::pods(self.syncd.clone(), sender);
        tokio::join!(pods, self.turn(book, news));
    }

    async fn turn(&self, mut book: Book, mut news: Receiver<News>) {
        let mut in_flight: FuturesUnordered<BoxFuture<'static, (Job, Outcome)>> = FuturesUnordered::new();
        let mut node = self.node.clone();
        node.mark_changed();
        loop {
            while let Some(job) = book.next(Instant::now(), Timestamp::now()) {
                tracing::debug!(pod = %job.pod, name = %job.name, action = job.action.name(), "request");
                let client = self.client.clone();
                in_flight.push(Box::pin(async move {
                    let outcome = send(&client, &job).await;
                    (job, outcome)
                }));
            }
            let wake = book.wake_at();
            tokio::select! {
                one = news.recv() => match one {
                    Some(one) => self.take(&mut book, one),
                    None => return,
                },
                Ok(()) = node.changed() => {
                    let facts = node.borrow_and_update().clone();
                    book.node(facts, Instant::now());
                }
                Some((job, outcome)) = in_flight.next() => {
                    self.metrics.request(job.action.name(), outcome.name());
                    book.finished(&job, outcome, Instant::now());
                }
                () = sleep_until(wake) => {}
                () = self.turn.asked() => {}
            }
        }
    }

    fn take(&self, book: &mut Book, news: News) {
        let now = Instant::now();
        match news {
            News::Connected(epoch) => book.connected(epoch),
            News::Pod(state) => {
                if let Some(api) = state.api.as_ref().filter(|api| api.uid == state.uid) {
                    self.events.pod_seen(&state.uid, &api.resource_version);
                }
                book.upsert(*state, now);
            }
            News::Removed(uid) => book.removed(&uid, now),
            News::SnapshotDone => book.snapshot_done(now),
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
