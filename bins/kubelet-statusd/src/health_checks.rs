//! The checks behind `/healthz` as they stand now: what [`crate::health`] decides, of what the other processes say.

use std::sync::Arc;
use std::time::Duration;

use bulkhead_apiclient::Reachability;
use bulkhead_ipc::syncd::NodeState;
use bulkhead_types::Process;
use tokio::sync::watch;

use crate::health::{self, Inputs};
use crate::peers::Peers;
use crate::routes::Surface;

/// See the module.
#[derive(Debug)]
pub struct HealthChecks {
    peers: Arc<Peers>,
    sync_frequency: Duration,
    api_server: Option<watch::Receiver<Reachability>>,
}

impl HealthChecks {
    /// `api_server`: whether it answers; `None` on a standalone node.
    pub fn new(peers: Arc<Peers>, sync_frequency: Duration, api_server: Option<watch::Receiver<Reachability>>) -> Self {
        HealthChecks { peers, sync_frequency, api_server }
    }

    /// Whether the API server answers; `None` on a standalone node.
    pub fn api_server(&self) -> Option<Result<(), String>> {
        let reachability = self.api_server.as_ref()?.borrow().clone();
        Some(health::api_server(&reachability, tokio::time::Instant::now()))
    }

    /// The outcome of every check that this server has.
    pub async fn all(&self, surface: Surface) -> Vec<(&'static str, Result<(), String>)> {
        let inputs = self.inputs(self.peers.node().await);
        health::names(surface).iter().filter_map(|name| Some((*name, health::check(name, &inputs)?))).collect()
    }

    /// The outcome of one check; `None` where this server has none of that name.
    pub async fn one(&self, surface: Surface, name: &str) -> Option<Result<(), String>> {
        if !health::names(surface).contains(&name) {
            return None;
        }
        // Only these need an answer of kubelet-syncd.
        let node = if matches!(name, "syncloop" | "pleg" | "device-plugin") { self.peers.node().await } else { None };
        health::check(name, &self.inputs(node))
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
