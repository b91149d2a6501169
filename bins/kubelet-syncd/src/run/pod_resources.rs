//! The pod resources API's socket: asked of kubelet-volnetd, which binds it and keeps a copy (decision 83).

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_daemon::RunError;
use bulkhead_ipc::broker::BrokerClient;
use bulkhead_ipc::volnetd::open_request::Kind;
use bulkhead_ipc::volnetd::{Listener, listener};
use kubelet_pod_resources::{EndpointMetrics, Lister};
use tokio::net::UnixListener;
use tonic::Code;

use super::stages::Start;
use crate::service::pod_resources::NodeHolds;

/// Before kubelet-volnetd is asked again: while it is away, and where the path cannot be bound.
const AGAIN: Duration = Duration::from_millis(500);
const MUCH_LATER: Duration = Duration::from_secs(30);

/// Serves from here on, as soon as there is a socket.
pub(super) fn begin(start: &Start) -> Result<(), RunError> {
    let metrics = EndpointMetrics::register(&start.daemon.registry)?;
    let active_pods = start.config.feature_gates().enabled("KubeletPodResourcesListUseActivePods");
    let providers = NodeHolds { view: start.view.clone(), hub: start.reporter.hub.clone() };
    let lister = Lister::new(Arc::new(providers), metrics, active_pods);
    let (broker, stop) = (start.daemon.broker.clone(), start.daemon.stop.clone());
    tokio::spawn(async move {
        let listening = tokio::select! {
            socket = socket(&broker) => listening(socket),
            () = stop.cancelled() => return,
        };
        let served = match listening {
            Ok(listener) => kubelet_pod_resources::serve(listener, lister, stop.cancelled_owned()).await,
            Err(error) => return tracing::error!(%error, "Failed to create listener for podResources endpoint"),
        };
        if let Err(error) = served {
            tracing::error!(error = &error as &dyn std::error::Error, "Failed to serve");
        }
    });
    Ok(())
}

/// Until there is one.
async fn socket(broker: &BrokerClient) -> OwnedFd {
    loop {
        let kind = listener::Kind::PodResources.into();
        match broker.open(Kind::Listener(Listener { kind })).await {
            Ok(socket) => return socket,
            Err(error) if matches!(error.code(), Code::Unavailable | Code::DeadlineExceeded) => {
                tokio::time::sleep(AGAIN).await
            }
            Err(error) => {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "Failed to create listener for podResources endpoint"
                );
                tokio::time::sleep(MUCH_LATER).await;
            }
        }
    }
}

fn listening(socket: OwnedFd) -> std::io::Result<UnixListener> {
    UnixListener::from_std(std::os::unix::net::UnixListener::from(socket))
}
