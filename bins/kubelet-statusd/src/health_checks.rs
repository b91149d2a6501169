//! The checks behind `/healthz` as they stand now: what [`crate::health`] decides, of what the other processes say.

use std::sync::Arc;
use std::time::Duration;

use bulkhead_apiclient::Reachability;
use bulkhead_ipc::syncd::NodeState;
use bulkhead_types::Process;
use tokio::sync::{Mutex, watch};
use tokio::time::Instant;

use crate::health::{self, Inputs};
use crate::peers::Peers;
use crate::routes::Surface;

/// How old kubelet-syncd's word on itself may be. The ages in it are compared with minutes, and whoever reaches the port may ask.
const FRESH: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug)]
pub struct HealthChecks {
    peers: Arc<Peers>,
    /// What kubelet-syncd said of itself last; `None`: it did not answer.
    node: Newest<Option<NodeState>>,
    sync_frequency: Duration,
    api_server: Option<watch::Receiver<Reachability>>,
}

impl HealthChecks {
    /// `api_server`: whether it answers; `None` on a standalone node.
    pub fn new(peers: Arc<Peers>, sync_frequency: Duration, api_server: Option<watch::Receiver<Reachability>>) -> Self {
        HealthChecks { peers, node: Newest::default(), sync_frequency, api_server }
    }

    /// Whether the API server answers; `None` on a standalone node.
    pub fn api_server(&self) -> Option<Result<(), String>> {
        let reachability = self.api_server.as_ref()?.borrow().clone();
        Some(health::api_server(&reachability, tokio::time::Instant::now()))
    }

    /// The outcome of every check that this server has.
    pub async fn all(&self, surface: Surface) -> Vec<(&'static str, Result<(), String>)> {
        let inputs = self.inputs(self.node().await);
        health::names(surface).iter().filter_map(|name| Some((*name, health::check(name, &inputs)?))).collect()
    }

    /// The outcome of one check; `None` where this server has none of that name.
    pub async fn one(&self, surface: Surface, name: &str) -> Option<Result<(), String>> {
        if !health::names(surface).contains(&name) {
            return None;
        }
        // Only these need an answer of kubelet-syncd.
        let node = if matches!(name, "syncloop" | "pleg" | "device-plugin") { self.node().await } else { None };
        health::check(name, &self.inputs(node))
    }

    /// What kubelet-syncd says of itself, without the lists, which no check looks at.
    async fn node(&self) -> Option<NodeState> {
        let ask = async || {
            let node = self.peers.node().await?;
            Some(NodeState { images: Vec::new(), api_node_json: Vec::new(), ..node })
        };
        self.node.answer(ask).await
    }

    fn inputs(&self, node: Option<NodeState>) -> Inputs {
        Inputs {
            syncd: self.peers.presence(Process::Syncd),
            node,
            volnetd: self.peers.presence(Process::Volnetd),
            evictiond: self.peers.presence(Process::Evictiond),
            sync_frequency: self.sync_frequency,
        }
    }
}

/// The newest answer to a question that is asked once at a time, and not again while the answer is [`FRESH`].
#[derive(Debug)]
struct Newest<T>(Mutex<Option<(Instant, T)>>);

impl<T> Default for Newest<T> {
    fn default() -> Self {
        Newest(Mutex::new(None))
    }
}

impl<T: Clone> Newest<T> {
    async fn answer(&self, ask: impl AsyncFnOnce() -> T) -> T {
        let mut newest = self.0.lock().await;
        if let Some((_, answer)) = newest.as_ref().filter(|(at, _)| at.elapsed() < FRESH) {
            return answer.clone();
        }
        let answer = ask().await;
        *newest = Some((Instant::now(), answer.clone()));
        answer
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_question_is_for_all_who_wait_and_its_answer_for_a_second() {
        let (newest, asked) = (Newest::default(), AtomicUsize::new(0));
        let ask = async || {
            tokio::time::sleep(3 * FRESH).await;
            asked.fetch_add(1, Ordering::Relaxed)
        };
        let began = Instant::now();
        let answers = futures_util::future::join_all((0..50).map(|_| newest.answer(ask))).await;
        assert_eq!((answers, began.elapsed()), (vec![0; 50], 3 * FRESH));
        tokio::time::advance(FRESH - Duration::from_millis(1)).await;
        assert_eq!(newest.answer(ask).await, 0);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(newest.answer(ask).await, 1);
        tokio::time::advance(FRESH).await;
        assert!(tokio::time::timeout(FRESH, newest.answer(ask)).await.is_err());
        assert_eq!(newest.answer(ask).await, 2, "whoever goes away half-way leaves the question to the next");
    }
}
