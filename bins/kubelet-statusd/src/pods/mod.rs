//! Pod status, mirror pods, and the deletion of pods that have ended.
//!
//! kubelet-syncd computes what each pod is; this is the one place that writes it to the API server. A pod's wanted status
//! and the newest copy of what the server has go through [`decide`], which answers the next request or none; [`book`]
//! gives each pod its turn and its pauses; [`writer`] sends. Nothing is kept on disk: after a restart of either process
//! the same comparison leads to the same requests.

pub mod book;
pub mod copies;
pub mod decide;
pub mod diff;
mod entry;
pub mod facts;
pub(crate) mod feed;
pub mod gate;
pub mod merge;
pub mod metrics;
pub mod mirror;
pub mod normal;
pub mod requests;
pub mod writer;

use bulkhead_apiclient::Lane;
use bulkhead_daemon::progress::LOOP_BOUND;
use tokio::sync::watch;

use crate::outward::Outward;

use facts::Facts;
pub use metrics::PodMetrics;
pub use writer::Writer;

/// Writes what kubelet-syncd says of its pods until the daemon is to stop. `node`: what it says of the node.
pub async fn run(outward: Outward, node: watch::Receiver<Facts>) {
    let stop = outward.stop.clone();
    tokio::select! {
        () = stop.cancelled() => {}
        () = write(outward, node) => {}
    }
}

async fn write(outward: Outward, node: watch::Receiver<Facts>) {
    let metrics = match PodMetrics::new().and_then(|metrics| metrics.register(&outward.registry).map(|()| metrics)) {
        Ok(metrics) => metrics,
        Err(error) => {
            tracing::error!(%error, "pods' states are not written: their metrics cannot be registered");
            return std::future::pending().await;
        }
    };
    outward.api.ready().await;
    let writer = Writer {
        client: outward.api.client(Lane::Main),
        syncd: outward.syncd.clone(),
        node,
        metrics,
        events: outward.events.clone(),
        turn: outward.progress.promise("pods", LOOP_BOUND),
    };
    writer.run().await;
}
