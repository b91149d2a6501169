//! What everything that writes to the API server shares.

use std::sync::Arc;
use std::time::Duration;

use bulkhead_apiclient::ApiClient;
use bulkhead_config::NodeConfig;
use bulkhead_daemon::progress::Progress;
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
    /// Where the loops make their promise to the watchdog.
    pub progress: Progress,
    pub stop: CancellationToken,
}

/// A request that is not answered by then is not answered: more than the client's own deadline and its rate limit take.
pub(crate) const ANSWER_DEADLINE: Duration = Duration::from_secs(75);
/// A server that asks for a longer pause is asked again after this one.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// The pause that an answer asks for before the next try, if any.
pub(crate) fn retry_after(status: &kube::core::Status) -> Option<Duration> {
    let seconds = status.details.as_ref().map(|details| u64::from(details.retry_after_seconds)).filter(|s| *s > 0)?;
    Some(Duration::from_secs(seconds).min(LONGEST_PAUSE))
}
