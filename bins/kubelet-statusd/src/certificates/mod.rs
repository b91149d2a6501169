//! The node's certificates: the client's, with which it speaks to the API server, and its server's. This process asks for
//! them and has them written; it is the only one that ever holds the credentials that a node begins with (decision 37).
//!
//! | module | decides |
//! |---|---|
//! | [`decide`] | what is to be done now: nothing, wait, begin, keep, renew; when, and how long to pause after a failure |
//! | [`leaf`] | what of a certificate matters for that |
//! | [`key`] | keys, their form on the disk, signing requests and their names |
//! | [`request`] | what a signing request looks like, whether one that is there is ours, what its status means |
//! | [`pending`] | which request an earlier start of this process sent already |
//! | [`store`], [`client`], [`serving`], [`metrics`] | the shells: the disk by way of kubelet-volnetd, the tasks, what is counted |

pub mod client;
pub mod decide;
#[cfg(test)]
mod decide_tests;
pub mod key;
pub mod leaf;
pub mod metrics;
pub mod pending;
pub mod request;
pub mod serving;
pub mod store;

use k8s_openapi::api::core::v1::NodeAddress;
use tokio::sync::watch;

use crate::api_writer::ApiWriter;
use client::ClientCertificate;
use metrics::{ClientMetrics, ServingMetrics};
use serving::ServingCertificate;

/// Keeps the certificates that the configuration has the node ask for, until the daemon is to stop. `addresses`: the Node's.
pub async fn run(writer: ApiWriter, addresses: watch::Receiver<Vec<NodeAddress>>) {
    let (client, serving) = match (client(&writer), serving(&writer, addresses)) {
        (Ok(client), Ok(serving)) => (client, serving),
        (Err(error), _) | (_, Err(error)) => {
            // Only a second instance in one process can meet this.
            tracing::error!(%error, "certificates are not requested: failed to register metrics");
            return;
        }
    };
    let keep_client = async {
        if let Some(client) = client {
            client.run().await;
        }
    };
    let keep_serving = async {
        if let Some(serving) = serving {
            serving.run().await;
        }
    };
    tokio::select! {
        () = writer.stop.cancelled() => {}
        _ = async { tokio::join!(keep_client, keep_serving) } => {}
    }
}

fn client(writer: &ApiWriter) -> prometheus::Result<Option<ClientCertificate>> {
    let ApiWriter { config, api, broker, volnetd, state, registry, .. } = writer;
    let metrics = config.rotates_client().then(|| ClientMetrics::register(registry)).transpose()?;
    Ok(ClientCertificate::new(config.clone(), api.clone(), broker.clone(), volnetd.clone(), state.clone(), metrics))
}

fn serving(
    writer: &ApiWriter,
    addresses: watch::Receiver<Vec<NodeAddress>>,
) -> prometheus::Result<Option<ServingCertificate>> {
    let ApiWriter { config, api, broker, volnetd, state, registry, .. } = writer;
    // Without a server nobody would be shown it.
    if !config.asks_for_serving() || !config.serves_https() {
        return Ok(None);
    }
    let metrics = ServingMetrics::register(registry)?;
    let disk = (broker.clone(), volnetd.clone());
    Ok(Some(ServingCertificate::new(config, api.clone(), disk, state.clone(), metrics, addresses)))
}
