//! What everything that writes to the API server shares.

pub mod gate;

use std::sync::Arc;
use std::time::Duration;

use bulkhead_apiclient::ApiClient;
use bulkhead_config::NodeConfig;
use bulkhead_daemon::progress::Progress;
use bulkhead_ipc::client::Link;
use tokio_util::sync::CancellationToken;

/// What the tasks of the Node, of the pods, of events and of certificates have in common. None of them exists on a standalone node.
#[derive(Debug, Clone)]
pub struct ApiWriter {
    pub config: Arc<NodeConfig>,
    pub api: ApiClient,
    pub syncd: Link,
    pub volnetd: Link,
    pub evictiond: Link,
    pub broker: bulkhead_ipc::broker::BrokerClient,
    /// The process's own folder, locked.
    pub state: Arc<bulkhead_daemon::StateDir>,
    pub registry: prometheus::Registry,
    /// Where the loops register with the watchdog.
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

/// A time as the API writes it.
pub fn seconds(time: jiff::Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
