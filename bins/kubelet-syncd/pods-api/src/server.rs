//! The three methods, on a socket of their own.

use std::pin::Pin;
use std::sync::Arc;

use futures_util::{Stream, stream};
use kubelet_pod_resources::connections;
use kubelet_pod_resources::rate::Limiter;
use serde_json::Value;
use tokio::net::UnixListener;
use tokio::sync::Semaphore;
use tonic::{Request, Response, Status};

use crate::encode;
use crate::provider::Providers;
use crate::v1alpha1::pods_server::{Pods, PodsServer};
use crate::v1alpha1::{
    GetPodRequest, GetPodResponse, ListPodsRequest, ListPodsResponse, WatchPodsEvent, WatchPodsRequest,
};
use crate::watch::Watcher;

/// A request is a UID at most.
const MAX_REQUEST_BYTES: usize = 4 << 10;
/// Watches at a time, of all clients together.
const WATCHES: usize = 64;

/// Answers all methods. Cheap to clone.
#[derive(Clone)]
pub struct PodsApi {
    providers: Arc<dyn Providers>,
    limiter: Arc<Limiter>,
    watches: Arc<Semaphore>,
}

impl std::fmt::Debug for PodsApi {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PodsApi").finish_non_exhaustive()
    }
}

impl PodsApi {
    pub fn new(providers: Arc<dyn Providers>) -> Self {
        PodsApi { providers, limiter: Arc::default(), watches: Arc::new(Semaphore::new(WATCHES)) }
    }
}

/// Serves until `stop` resolves.
///
/// # Errors
/// The HTTP/2 server itself cannot run; a failing connection ends alone.
pub async fn serve(
    listener: UnixListener,
    api: PodsApi,
    stop: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error> {
    connections::server()
        .add_service(PodsServer::new(api).max_decoding_message_size(MAX_REQUEST_BYTES))
        .serve_with_incoming_shutdown(connections::clients(listener), stop)
        .await
}

fn encoded(pod: &Value) -> Result<Vec<u8>, Status> {
    encode::pod(pod).map_err(|error| Status::internal(format!("failed to marshal pod: {error}")))
}

/// As upstream, the rate is that of lists and gets; a watch is bounded by its number.
#[tonic::async_trait]
impl Pods for PodsApi {
    type WatchPodsStream = Pin<Box<dyn Stream<Item = Result<WatchPodsEvent, Status>> + Send>>;

    async fn watch_pods(&self, _: Request<WatchPodsRequest>) -> Result<Response<Self::WatchPodsStream>, Status> {
        let place = self.watches.clone().try_acquire_owned();
        let place = place.map_err(|_| Status::resource_exhausted(format!("there are {WATCHES} watches already")))?;
        let watcher = Watcher::new(self.providers.clone());
        let events = stream::unfold(Some((watcher, place)), |state| async move {
            let (mut watcher, place) = state?;
            match watcher.next().await {
                Ok(event) => Some((Ok(event), Some((watcher, place)))),
                Err(status) => Some((Err(status), None)),
            }
        });
        Ok(Response::new(Box::pin(events)))
    }

    async fn list_pods(&self, _: Request<ListPodsRequest>) -> Result<Response<ListPodsResponse>, Status> {
        self.limiter.allow()?;
        let mut uids = self.providers.uids();
        uids.sort();
        let pods = uids.iter().filter_map(|uid| self.providers.pod(uid).pod);
        Ok(Response::new(ListPodsResponse { pods: pods.map(|pod| encoded(&pod)).collect::<Result<_, _>>()? }))
    }

    async fn get_pod(&self, request: Request<GetPodRequest>) -> Result<Response<GetPodResponse>, Status> {
        self.limiter.allow()?;
        let uid = request.into_inner().pod_uid;
        let pod = self.providers.pod(&uid).pod;
        let pod = pod.ok_or_else(|| Status::not_found(format!("pod with UID {uid} not found")))?;
        Ok(Response::new(GetPodResponse { pod: encoded(&pod)? }))
    }
}
