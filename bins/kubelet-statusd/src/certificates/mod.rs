//! The node's certificates: the client's, with which it speaks to the API server, and its server's. This process asks for
//! them and has them written; it is the only one that ever holds the credentials that a node begins with (decision 37).
//!
//! | module | decides |
//! |---|---|
//! | [`decide`] | what is to be done now: nothing, wait, begin, keep, renew; when, and how long to pause after a failure |
//! | [`leaf`] | what of a certificate matters for that |
//! | [`key`] | keys, their form on the disk, signing requests and their names |
//! | [`request`] | what a signing request looks like, whether one that is there is ours, what its status means |
//! | [`store`], [`client`], [`metrics`] | the shells: the disk by way of kubelet-volnetd, the tasks, what is counted |

pub mod client;
pub mod decide;
#[cfg(test)]
mod decide_tests;
pub mod key;
pub mod leaf;
pub mod metrics;
pub mod request;
pub mod store;

use bulkhead_ipc::client::Link;

use crate::outward::Outward;
use client::ClientCertificate;
use metrics::ClientMetrics;

/// Keeps the certificates that the configuration has the node ask for, until the daemon is to stop.
pub async fn run(outward: Outward, volnetd: Link) {
    let metrics = match outward.config.rotates_client().then(|| ClientMetrics::register(&outward.registry)).transpose()
    {
        Ok(metrics) => metrics,
        Err(error) => {
            // Only a second instance in one process can meet this.
            tracing::error!(%error, "certificates are not kept");
            return;
        }
    };
    let Outward { config, api, broker, stop, .. } = outward;
    let client = ClientCertificate::new(config, api, broker, volnetd, metrics);
    let keep = async {
        if let Some(client) = client {
            client.run().await;
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = keep => {}
    }
}
