//! What everything that writes to the API server shares.

use std::sync::Arc;

use bulkhead_apiclient::ApiClient;
use bulkhead_config::NodeConfig;
use bulkhead_ipc::client::Link;
use tokio_util::sync::CancellationToken;

use crate::events::EventQueue;

/// Shared by the node's, the pods' and the events' tasks. None of them exists on a standalone node.
#[derive(Debug, Clone)]
pub struct Outward {
    pub config: Arc<NodeConfig>,
    pub api: ApiClient,
    pub syncd: Link,
    pub evictiond: Link,
    pub broker: bulkhead_ipc::broker::BrokerClient,
    /// The process's own folder, locked.
    pub state: Arc<bulkhead_daemon::StateDir>,
    pub registry: prometheus::Registry,
    /// Records an event; never waits.
    pub events: EventQueue,
    pub stop: CancellationToken,
}
