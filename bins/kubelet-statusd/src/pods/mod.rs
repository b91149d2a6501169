//! Pod status, mirror pods, and the deletion of pods that have ended.
//!
//! kubelet-syncd computes what each pod is; this is the one place that writes it to the API server. A pod's wanted status
//! and the newest copy of what the server has go through [`decide`], which answers the next request or none; [`status_store`]
//! gives each pod its turn and its pauses; [`writer`] sends. Nothing is kept on disk: after a restart of either process
//! the same comparison leads to the same requests.

pub mod copies;
pub mod decide;
pub mod diff;
mod entry;
pub mod facts;
pub(crate) mod feed;
pub mod merge;
pub mod metrics;
pub mod mirror;
pub mod normal;
pub mod requests;
pub mod status_store;
pub mod writer;

use bulkhead_apiclient::Lane;
use bulkhead_daemon::progress::LOOP_BOUND;
use tokio::sync::watch;

use crate::api_writer::ApiWriter;
use crate::events::EventQueue;

use facts::Facts;
pub use metrics::PodMetrics;
pub use writer::Writer;

/// Writes what kubelet-syncd says of its pods until the daemon is to stop. `events`: where events are recorded; `node`: what
/// kubelet-syncd says of the node.
pub async fn run(writer: ApiWriter, events: EventQueue, node: watch::Receiver<Facts>) {
    let stop = writer.stop.clone();
    tokio::select! {
        () = stop.cancelled() => {}
        () = write(writer, events, node) => {}
    }
}

async fn write(writer: ApiWriter, events: EventQueue, node: watch::Receiver<Facts>) {
    let metrics = match PodMetrics::new().and_then(|metrics| metrics.register(&writer.registry).map(|()| metrics)) {
        Ok(metrics) => metrics,
        Err(error) => {
            tracing::error!(%error, "pods' status is not written: failed to register metrics");
            return std::future::pending().await;
        }
    };
    writer.api.ready().await;
    let writer = Writer {
        client: writer.api.client(Lane::Main),
        syncd: writer.syncd.clone(),
        node,
        metrics,
        events,
        heartbeat: writer.progress.register("pods", LOOP_BOUND),
    };
    writer.run().await;
}
