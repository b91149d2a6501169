//! The sockets for agents on the node: the pod resources API's (decision 83) and, with the gate PodsAPI, the pods API's (decision 87).
//! Each is asked of kubelet-volnetd, which binds it and keeps a copy.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_config::Feature;
use bulkhead_daemon::RunError;
use bulkhead_ipc::broker::BrokerClient;
use bulkhead_ipc::volnetd::open_request::Kind;
use bulkhead_ipc::volnetd::{Listener, listener};
use kubelet_pod_resources::{EndpointMetrics, Lister};
use kubelet_pods_api::PodsApi;
use tokio::net::UnixListener;
use tonic::Code;

use super::stages::Start;
use crate::service::pod_resources::NodeHolds;
use crate::service::pods_api::NodePods;

/// Before kubelet-volnetd is asked again: while it is away, and where the path cannot be bound.
const AGAIN: Duration = Duration::from_millis(500);
const MUCH_LATER: Duration = Duration::from_secs(30);

/// Serves from here on, as soon as there are sockets.
pub(super) fn begin(start: &Start) -> Result<(), RunError> {
    let (view, hub, gates) = (&start.view, &start.reporter.hub, start.config.feature_gates());
    let metrics = EndpointMetrics::register(&start.daemon.registry)?;
    let holds = Arc::new(NodeHolds { view: view.clone(), hub: hub.clone() });
    let lister = Lister::new(holds, metrics, gates.enabled(Feature::KubeletPodResourcesListUseActivePods));
    let stop = start.daemon.stop.clone();
    spawn(start, listener::Kind::PodResources, "podResources", |listener| async move {
        kubelet_pod_resources::serve(listener, lister, stop.cancelled_owned()).await
    });
    if gates.enabled(Feature::PodsAPI) {
        let pods = PodsApi::new(Arc::new(NodePods { view: view.clone(), hub: hub.clone() }));
        let stop = start.daemon.stop.clone();
        spawn(start, listener::Kind::PodsApi, "pods API", |listener| async move {
            kubelet_pods_api::serve(listener, pods, stop.cancelled_owned()).await
        });
    }
    Ok(())
}

/// `what`: upstream's name of it in logs.
fn spawn<Serving>(
    start: &Start,
    kind: listener::Kind,
    what: &'static str,
    serve: impl FnOnce(UnixListener) -> Serving + Send + 'static,
) where
    Serving: Future<Output = Result<(), tonic::transport::Error>> + Send,
{
    let (broker, stop) = (start.daemon.broker.clone(), start.daemon.stop.clone());
    tokio::spawn(async move {
        let listening = tokio::select! {
            socket = socket(&broker, kind, what) => UnixListener::from_std(socket.into()),
            () = stop.cancelled() => return,
        };
        let served = match listening {
            Ok(listener) => serve(listener).await,
            Err(error) => return tracing::error!(%error, "Failed to create listener for {what} endpoint"),
        };
        if let Err(error) = served {
            tracing::error!(error = &error as &dyn std::error::Error, "Failed to serve");
        }
    });
}

/// Until there is one.
async fn socket(broker: &BrokerClient, kind: listener::Kind, what: &str) -> OwnedFd {
    loop {
        match broker.open(Kind::Listener(Listener { kind: kind.into() })).await {
            Ok(socket) => return socket,
            Err(error) if matches!(error.code(), Code::Unavailable | Code::DeadlineExceeded) => {
                tokio::time::sleep(AGAIN).await
            }
            Err(error) => {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "Failed to create listener for {what} endpoint"
                );
                tokio::time::sleep(MUCH_LATER).await;
            }
        }
    }
}
