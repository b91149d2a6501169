//! Events: from kubelet-syncd's stream and this process's own, aggregated, limited, and kept while nobody takes them.
//!
//! kubelet-syncd's queue is read from where the last run got to, also while the API server is away; what was read and not
//! sent is kept in the state folder ([`backlog`]), so that neither a restart of this process nor the end of kubelet-syncd
//! loses it; an event's name follows from its time and place, so that what is sent twice is
//! refused the second time. [`correlate`] decides what becomes of an event, [`send`] brings it there.

pub mod backlog;
pub mod correlate;
mod feed;
pub mod metrics;
pub mod object;
mod queue;
pub mod send;

use bulkhead_apiclient::Lane;
use bulkhead_daemon::progress::LOOP_BOUND;

use crate::api_writer::ApiWriter;

pub use metrics::EventMetrics;
pub use queue::{EventQueue, OwnEvents};
pub use send::Sender;

/// What an event is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Involved {
    Node,
    Pod {
        namespace: String,
        name: String,
        uid: String,
        field_path: String,
    },
    /// Another object of the core API; one without a namespace has an empty one.
    Object {
        kind: String,
        namespace: String,
        name: String,
        uid: String,
        resource_version: String,
    },
}

/// An event to record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub involved: Involved,
    /// "Normal" or "Warning".
    pub kind: &'static str,
    pub reason: String,
    pub message: String,
}

/// Sends events until the daemon is to stop.
pub async fn run(writer: ApiWriter, queue: EventQueue, own: OwnEvents) {
    let metrics = match EventMetrics::new().and_then(|metrics| metrics.register(&writer.registry).map(|()| metrics)) {
        Ok(metrics) => metrics,
        Err(error) => {
            tracing::error!(%error, "event recorder disabled: failed to register metrics");
            writer.stop.cancelled().await;
            return;
        }
    };
    let backlog = backlog::Backlog::read(writer.state.clone());
    let stop = writer.stop.clone();
    let work = async {
        writer.api.ready().await;
        let sender = Sender {
            client: writer.api.client(Lane::Events),
            syncd: writer.syncd.clone(),
            node: writer.config.node_name.to_string(),
            queue,
            backlog: backlog.clone(),
            metrics,
            heartbeat: writer.progress.register("events", LOOP_BOUND),
        };
        tokio::join!(sender.run(own), backlog.keep());
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = work => {}
    }
    backlog.write().await;
}
