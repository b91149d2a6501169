//! The gRPC side: snapshots first, then changes, from wherever the caller's cursor points.

use std::pin::Pin;
use std::sync::Arc;

use bulkhead_ipc::common::{Cursor, SnapshotDone};
use bulkhead_ipc::syncd as api;
use bulkhead_ipc::syncd::events_server::Events;
use bulkhead_ipc::syncd::node_server::Node;
use bulkhead_ipc::syncd::pods_server::Pods;
use bulkhead_types::Epoch;
use futures_util::Stream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::hub::{Change, PodHub};
use super::node_view::NodeView;
use super::ring::EventRing;

/// Events sent in one go to a reader that was away.
const EVENT_BATCH: usize = 64;

/// A stream of messages, as the services give it.
pub(super) type Answer<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// All services.
#[derive(Clone)]
pub struct SyncdApi {
    pub epoch: Epoch,
    pub pods: Arc<PodHub>,
    pub events: Arc<EventRing>,
    pub node: Arc<NodeView>,
    /// Ends the streams, which never end by themselves.
    pub stop: CancellationToken,
}

impl std::fmt::Debug for SyncdApi {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SyncdApi").field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

impl SyncdApi {
    /// Whether a pod that is not known may be one of this node all the same: after a start its source has not delivered yet,
    /// or it is on its way from there.
    fn may_come(&self, wanted: &api::GetPodRequest) -> bool {
        let Some(sources) = self.node.sources() else { return true };
        let named = |pod: &k8s_openapi::api::core::v1::Pod| {
            let metadata = &pod.metadata;
            let namespace = metadata.namespace.as_deref().unwrap_or("default");
            metadata.uid.as_deref() == Some(wanted.name.as_str())
                || (metadata.name.as_deref() == Some(wanted.name.as_str())
                    && (wanted.namespace.is_empty() || namespace == wanted.namespace))
        };
        !sources.all_ready() || sources.pods().iter().any(|pod| named(pod))
    }
}

#[tonic::async_trait]
impl Pods for SyncdApi {
    type ListStream = Answer<api::PodState>;

    async fn list(&self, _: Request<api::ListPodsRequest>) -> Result<Response<Self::ListStream>, Status> {
        let pods = self.pods.list().into_iter().map(|state| Ok(api::PodState::clone(&state)));
        Ok(Response::new(Box::pin(futures_util::stream::iter(pods))))
    }

    async fn get(&self, request: Request<api::GetPodRequest>) -> Result<Response<api::PodState>, Status> {
        let wanted = request.into_inner();
        let named = |state: &&Arc<api::PodState>| {
            state.uid == wanted.name
                || (state.name == wanted.name && (wanted.namespace.is_empty() || state.namespace == wanted.namespace))
        };
        match self.pods.list().iter().find(named) {
            Some(state) => Ok(Response::new(api::PodState::clone(state))),
            None if self.may_come(&wanted) => Err(Status::unavailable("kubelet-syncd does not know all pods yet")),
            None => Err(Status::not_found(format!("no pod {}/{} on this node", wanted.namespace, wanted.name))),
        }
    }

    type WatchStream = Answer<api::PodUpdate>;

    async fn watch(&self, request: Request<api::WatchPodsRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let epoch = self.epoch.get();
        let position = request.into_inner().cursor.filter(|c| c.epoch == epoch).map(|c| c.seq);
        let mut watch = self.pods.watch();
        watch.mark_changed();
        let reader =
            Reader { pods: self.pods.clone(), watch, position, batch: Vec::new().into_iter(), stop: self.stop.clone() };
        let stream = futures_util::stream::unfold(reader, move |mut reader| async move {
            let change = reader.next().await?;
            Some((Ok(update(epoch, change)), reader))
        });
        Ok(Response::new(Box::pin(stream)))
    }
}

/// A watcher's place.
struct Reader {
    pods: Arc<PodHub>,
    watch: tokio::sync::watch::Receiver<u64>,
    position: Option<u64>,
    batch: std::vec::IntoIter<Change>,
    stop: CancellationToken,
}

impl Reader {
    async fn next(&mut self) -> Option<Change> {
        loop {
            if let Some(change) = self.batch.next() {
                return Some(change);
            }
            tokio::select! {
                changed = self.watch.changed() => changed.ok()?,
                () = self.stop.cancelled() => return None,
            }
            let (position, changes) = self.pods.since(self.position);
            self.position = Some(position);
            self.batch = changes.into_iter();
        }
    }
}

fn update(epoch: u64, change: Change) -> api::PodUpdate {
    use api::pod_update::Update;
    let (seq, update) = match change {
        Change::Upsert(seq, state) => (seq, Update::Upsert(api::PodState::clone(&state))),
        Change::Removed(seq, uid) => (seq, Update::RemovedUid(uid)),
        Change::SnapshotDone(seq) => (seq, Update::SnapshotDone(SnapshotDone {})),
    };
    api::PodUpdate { cursor: Some(Cursor { epoch, seq }), update: Some(update) }
}

#[tonic::async_trait]
impl Events for SyncdApi {
    type WatchStream = Answer<api::Event>;

    async fn watch(&self, request: Request<api::WatchEventsRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let epoch = self.epoch.get();
        let position = request.into_inner().cursor.filter(|c| c.epoch == epoch).map_or(0, |c| c.seq);
        let mut watch = self.events.watch();
        watch.mark_changed();
        let start = (self.events.clone(), watch, position, Vec::new().into_iter(), self.stop.clone());
        let stream =
            futures_util::stream::unfold(start, |(ring, mut watch, mut position, mut batch, stop)| async move {
                loop {
                    let next: Option<api::Event> = batch.next();
                    if let Some(event) = next {
                        position = event.cursor.map_or(position, |c| c.seq);
                        return Some((Ok(event), (ring, watch, position, batch, stop)));
                    }
                    let waiting = ring.after(position, EVENT_BATCH);
                    if waiting.is_empty() {
                        tokio::select! {
                            changed = watch.changed() => changed.ok()?,
                            () = stop.cancelled() => return None,
                        }
                    } else {
                        batch = waiting.into_iter();
                    }
                }
            });
        Ok(Response::new(Box::pin(stream)))
    }
}

#[tonic::async_trait]
impl Node for SyncdApi {
    async fn get(&self, _: Request<api::GetNodeRequest>) -> Result<Response<api::NodeState>, Status> {
        Ok(Response::new(self.node.state()))
    }

    type WatchStream = Answer<api::NodeState>;

    async fn watch(&self, _: Request<api::WatchNodeRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let start = (self.node.watcher(), self.stop.clone());
        let stream = futures_util::stream::unfold(start, |(mut watcher, stop)| async move {
            let state = tokio::select! {
                state = watcher.next() => state,
                () = stop.cancelled() => return None,
            };
            Some((Ok(state), (watcher, stop)))
        });
        Ok(Response::new(Box::pin(stream)))
    }
}
