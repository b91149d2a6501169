//! The gRPC side: snapshots first, then changes, from wherever the caller's cursor points.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_ipc::common::{Cursor, SnapshotDone};
use bulkhead_ipc::syncd as api;
use bulkhead_ipc::syncd::events_server::Events;
use bulkhead_ipc::syncd::node_server::Node;
use bulkhead_ipc::syncd::pods_server::Pods;
use bulkhead_types::{Epoch, PodUid};
use futures_util::Stream;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::fits::fitting;
use super::named_pod::{self, Meant};
use super::node_view::NodeView;
use super::running_pods::RunningPods;
use crate::hub::events::EventRing;
use crate::hub::pods::{Change, PodHub};

/// A stream of messages, as the services give it.
pub(super) type Answer<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// All services.
#[derive(Clone)]
pub struct SyncdApi {
    pub epoch: Epoch,
    pub pods: Arc<PodHub>,
    pub events: Arc<EventRing>,
    pub node: Arc<NodeView>,
    pub running: Arc<RunningPods>,
    /// Ends the streams, which never end by themselves.
    pub stop: CancellationToken,
}

impl std::fmt::Debug for SyncdApi {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SyncdApi").field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

#[tonic::async_trait]
impl Pods for SyncdApi {
    type ListStream = Answer<api::PodState>;

    async fn list(&self, _: Request<api::ListPodsRequest>) -> Result<Response<Self::ListStream>, Status> {
        // Names now, each state when its turn has come: who reads slowly holds none.
        let uids: Vec<_> = self.pods.list().iter().filter_map(|state| PodUid::parse(&state.uid).ok()).collect();
        let pods = self.pods.clone();
        let states = uids.into_iter().filter_map(move |uid| pods.get(&uid));
        Ok(Response::new(Box::pin(futures_util::stream::iter(states.map(|state| Ok(fitting(&state)))))))
    }

    async fn get(&self, request: Request<api::GetPodRequest>) -> Result<Response<api::PodState>, Status> {
        let wanted = request.into_inner();
        let sources = self.node.sources();
        let desired = sources.as_ref().map(|sources| sources.pods()).unwrap_or_default();
        let all_ready = sources.is_some_and(|sources| sources.all_ready());
        match named_pod::meant(&wanted, &self.pods.list(), &desired, all_ready) {
            Meant::Pod(state) => Ok(Response::new(fitting(state))),
            Meant::MayCome => Err(Status::unavailable("kubelet-syncd does not know all pods yet")),
            Meant::Nothing => {
                Err(Status::not_found(format!("no pod {}/{} on this node", wanted.namespace, wanted.name)))
            }
        }
    }

    type WatchStream = Answer<api::PodUpdate>;

    async fn watch(&self, request: Request<api::WatchPodsRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let epoch = self.epoch.get();
        let position = request.into_inner().cursor.filter(|c| c.epoch == epoch).map(|c| c.seq);
        let mut watch = self.pods.watch();
        watch.mark_changed();
        let reader = Reader {
            pods: self.pods.clone(),
            watch,
            remarks: self.pods.watch_remarks(),
            // Sentences that changed while nobody watched have woken nobody, and a pod that has one wakes nobody again.
            tell_at: Some(Instant::now() + REMARKS_WAIT),
            position,
            batch: Vec::new().into_iter(),
            stop: self.stop.clone(),
        };
        let stream = futures_util::stream::unfold(reader, move |mut reader| async move {
            let update = reader.next(epoch).await?;
            Some((Ok(update), reader))
        });
        Ok(Response::new(Box::pin(stream)))
    }
}

/// How long sentences for people wait for a change of the pod that they can go along with. A person does not notice.
const REMARKS_WAIT: Duration = Duration::from_millis(500);

/// A watcher's place.
struct Reader {
    pods: Arc<PodHub>,
    watch: tokio::sync::watch::Receiver<u64>,
    remarks: tokio::sync::watch::Receiver<()>,
    /// When sentences that have changed are told at the latest.
    tell_at: Option<Instant>,
    position: Option<u64>,
    batch: std::vec::IntoIter<Change>,
    stop: CancellationToken,
}

impl Reader {
    async fn next(&mut self, epoch: u64) -> Option<api::PodUpdate> {
        loop {
            if let Some(update) = self.batch.find_map(|change| update(epoch, change, &self.pods)) {
                return Some(update);
            }
            let remarks_wait = async {
                match self.tell_at {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = self.watch.changed() => changed.ok()?,
                changed = self.remarks.changed() => {
                    changed.ok()?;
                    self.tell_at.get_or_insert_with(|| Instant::now() + REMARKS_WAIT);
                    continue;
                }
                () = remarks_wait => {
                    self.tell_at = None;
                    self.pods.tell_remarks();
                    continue;
                }
                () = self.stop.cancelled() => return None,
            }
            let (position, changes) = self.pods.since(self.position);
            self.position = Some(position);
            self.batch = changes.into_iter();
        }
    }
}

/// `None`: the pod has gone meanwhile, which is a change of its own. A state that is newer than the change is told once more
/// later.
fn update(epoch: u64, change: Change, pods: &PodHub) -> Option<api::PodUpdate> {
    use api::pod_update::Update;
    let (seq, update) = match change {
        Change::Upsert(seq, uid) => (seq, Update::Upsert(fitting(&*pods.get(&uid)?))),
        Change::Removed(seq, uid) => (seq, Update::RemovedUid(uid)),
        Change::SnapshotDone(seq) => (seq, Update::SnapshotDone(SnapshotDone {})),
    };
    Some(api::PodUpdate { cursor: Some(Cursor { epoch, seq }), update: Some(update) })
}

#[tonic::async_trait]
impl Events for SyncdApi {
    type WatchStream = Answer<api::Event>;

    async fn watch(&self, request: Request<api::WatchEventsRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let epoch = self.epoch.get();
        let position = request.into_inner().cursor.filter(|c| c.epoch == epoch).map_or(0, |c| c.seq);
        let mut watch = self.events.watch();
        watch.mark_changed();
        let start = (self.events.clone(), watch, position, self.stop.clone());
        let stream = futures_util::stream::unfold(start, |(ring, mut watch, mut position, stop)| async move {
            loop {
                // One at a time: who reads slowly holds one event, and not its own copy of the queue.
                if let Some(event) = ring.after(position, 1).pop() {
                    position = event.cursor.map_or(position, |c| c.seq);
                    return Some((Ok(event), (ring, watch, position, stop)));
                }
                tokio::select! {
                    changed = watch.changed() => changed.ok()?,
                    () = stop.cancelled() => return None,
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

#[cfg(test)]
mod tests {
    use super::*;
    use bulkhead_config::NodeConfig;
    use futures_util::StreamExt as _;

    fn api() -> SyncdApi {
        let pods = Arc::new(PodHub::default());
        let config = Arc::new(NodeConfig::for_tests(std::path::Path::new("/nowhere")));
        let node = NodeView::new(config, pods.clone());
        SyncdApi {
            epoch: Epoch::from_random(7),
            pods,
            events: Arc::new(EventRing::new(7)),
            node,
            running: Arc::default(),
            stop: CancellationToken::new(),
        }
    }

    fn uid(number: usize) -> PodUid {
        PodUid::parse(&format!("u{number}")).unwrap()
    }

    fn phase(api: &SyncdApi, pod: usize, phase: &str) {
        api.pods.modify(&uid(pod), |state| state.phase = phase.to_owned());
    }

    /// Whoever reads nothing, or stops in the middle, holds no state that is outdated meanwhile; and misses nothing.
    #[tokio::test]
    async fn slow_readers_hold_no_states() {
        const READERS: usize = 64;
        let api = api();
        for pod in 0..3 {
            phase(&api, pod, "Pending");
        }
        let mut watches = Vec::new();
        let mut lists = Vec::new();
        let mut outdated = Vec::new();
        for round in 0..READERS {
            let mut watch =
                Pods::watch(&api, Request::new(api::WatchPodsRequest::default())).await.unwrap().into_inner();
            watch.next().await.unwrap().unwrap();
            watches.push(watch);
            let mut list = api.list(Request::new(api::ListPodsRequest::default())).await.unwrap().into_inner();
            list.next().await.unwrap().unwrap();
            lists.push(list);
            for pod in 0..3 {
                outdated.push(Arc::downgrade(&api.pods.get(&uid(pod)).unwrap()));
                phase(&api, pod, &round.to_string());
            }
        }
        assert_eq!(outdated.iter().filter(|state| state.upgrade().is_some()).count(), 0, "states are held");
        api.pods.remove(&uid(2));

        for mut watch in watches {
            let mut seen = std::collections::HashMap::new();
            let last = api.pods.since(None).0;
            let mut position = 0;
            while position < last {
                let update = watch.next().await.unwrap().unwrap();
                let cursor = update.cursor.unwrap();
                assert!(cursor.seq >= position, "a position to go on from");
                position = cursor.seq;
                match update.update.unwrap() {
                    api::pod_update::Update::Upsert(state) => seen.insert(state.uid, state.phase),
                    api::pod_update::Update::RemovedUid(uid) => seen.insert(uid, "removed".to_owned()),
                    api::pod_update::Update::SnapshotDone(_) => None,
                };
            }
            let newest = (READERS - 1).to_string();
            assert_eq!((&seen["u0"], &seen["u1"]), (&newest, &newest));
            assert!(seen.get("u2").is_none_or(|phase| phase == "removed"), "{seen:?}");
        }
        for list in lists {
            let rest: Vec<_> = list.map(|state| state.unwrap().uid).collect().await;
            assert_eq!(rest, ["u1"], "what has gone is not listed");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_changed_while_nobody_watched_keeps_no_later_sentence_back() {
        let api = api();
        phase(&api, 0, "Pending");
        api.pods.why(&uid(0), "waits");
        let mut watch = Pods::watch(&api, Request::new(api::WatchPodsRequest::default())).await.unwrap().into_inner();
        for _ in 0..2 {
            watch.next().await.unwrap().unwrap();
        }
        api.pods.why(&uid(0), "goes");
        let update = watch.next().await.unwrap().unwrap().update.unwrap();
        assert!(matches!(update, api::pod_update::Update::Upsert(state) if state.why == "goes"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_watcher_is_told_of_sentences_a_moment_later() {
        let api = api();
        phase(&api, 0, "Pending");
        let mut watch = Pods::watch(&api, Request::new(api::WatchPodsRequest::default())).await.unwrap().into_inner();
        for _ in 0..2 {
            watch.next().await.unwrap().unwrap();
        }
        let began = Instant::now();
        for why in ["waits", "still waits"] {
            assert!(futures_util::poll!(watch.next()).is_pending());
            api.pods.why(&uid(0), why);
        }
        let update = watch.next().await.unwrap().unwrap().update.unwrap();
        assert!(matches!(update, api::pod_update::Update::Upsert(state) if state.why == "still waits"));
        assert_eq!(began.elapsed(), REMARKS_WAIT);
        api.pods.why(&uid(0), "goes");
        assert!(futures_util::poll!(watch.next()).is_pending());
        phase(&api, 0, "Running");
        let update = watch.next().await.unwrap().unwrap().update.unwrap();
        assert!(matches!(update, api::pod_update::Update::Upsert(state) if state.why == "goes"));
        assert_eq!(began.elapsed(), REMARKS_WAIT, "at once");
    }

    #[tokio::test]
    async fn a_slow_reader_of_events_gets_the_number_that_it_missed() {
        let api = api();
        let push = |message: String| api.events.push(api::Event { message, ..api::Event::default() });
        push("first".into());
        let mut events =
            Events::watch(&api, Request::new(api::WatchEventsRequest::default())).await.unwrap().into_inner();
        assert_eq!(events.next().await.unwrap().unwrap().message, "first");
        for _ in 0..1000 {
            push("x".repeat(20 << 10));
        }
        let next = events.next().await.unwrap().unwrap();
        assert!(next.dropped > 700, "{}", next.dropped);
        assert_eq!(events.next().await.unwrap().unwrap().dropped, 0);
    }
}
