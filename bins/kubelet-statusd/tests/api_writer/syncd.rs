//! A kubelet-syncd that says what it is told to say, and can be restarted.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use bulkhead_ipc::client::Link;
use bulkhead_ipc::common::process_server::{Process as ProcessApi, ProcessServer};
use bulkhead_ipc::common::{
    Cursor, HelloReply, HelloRequest, MetricsReply, MetricsRequest, PrivilegesReply, PrivilegesRequest, SnapshotDone,
};
use bulkhead_ipc::peers::{MethodRule, PeerUsers, Policy, Role};
use bulkhead_ipc::server::{self, Services, ServingStatus};
use bulkhead_ipc::syncd::events_server::{Events, EventsServer};
use bulkhead_ipc::syncd::node_server::{Node, NodeServer};
use bulkhead_ipc::syncd::pod_update::Update;
use bulkhead_ipc::syncd::pods_server::{Pods, PodsServer};
use bulkhead_ipc::syncd::*;
use bulkhead_types::Process;
use futures_util::Stream;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

type Answer<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[derive(Default)]
struct World {
    epoch: u64,
    seq: u64,
    pods: BTreeMap<String, (u64, Option<PodState>)>,
    node: NodeState,
    /// Streams of the node that were begun.
    node_streams: usize,
    events: Vec<Event>,
}

/// The fake and its socket.
pub struct Syncd {
    world: Arc<Mutex<World>>,
    changed: watch::Sender<u64>,
    dir: tempfile::TempDir,
    stop: CancellationToken,
    serving: Option<tokio::task::JoinHandle<()>>,
}

#[derive(Clone)]
struct Service {
    world: Arc<Mutex<World>>,
    changed: watch::Receiver<u64>,
    stop: CancellationToken,
}

const RULES: &[MethodRule] = &[
    MethodRule { method: "/kubelet.syncd.v1.Pods/Watch", peers: &[Role::Operator] },
    MethodRule { method: "/kubelet.syncd.v1.Events/Watch", peers: &[Role::Operator] },
    MethodRule { method: "/kubelet.syncd.v1.Node/Watch", peers: &[Role::Operator] },
    MethodRule { method: "/kubelet.syncd.v1.Node/Get", peers: &[Role::Operator] },
];

impl Syncd {
    pub async fn start() -> Self {
        let world = World { epoch: 1, ..World::default() };
        let mut syncd = Syncd {
            world: Arc::new(Mutex::new(world)),
            changed: watch::Sender::new(0),
            dir: tempfile::tempdir().unwrap(),
            stop: CancellationToken::new(),
            serving: None,
        };
        syncd.serve().await;
        syncd
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("syncd.sock")
    }

    async fn serve(&mut self) {
        self.stop = CancellationToken::new();
        let service = Service { world: self.world.clone(), changed: self.changed.subscribe(), stop: self.stop.clone() };
        let listener = tokio::net::UnixListener::bind(self.socket()).unwrap();
        let users =
            PeerUsers { syncd: 60801, evictiond: 60802, statusd: 60803, pods_cgroup: "/none".into(), no_pods: None };
        let services = Services::new();
        services.health().set_service_status("", ServingStatus::Serving).await;
        let (health, stopping) = (services.health().clone(), self.stop.clone());
        tokio::spawn(async move {
            stopping.cancelled().await;
            health.set_service_status("", ServingStatus::NotServing).await;
        });
        let services = services
            .add(ProcessServer::new(service.clone()))
            .add(PodsServer::new(service.clone()))
            .add(EventsServer::new(service.clone()))
            .add(NodeServer::new(service));
        let stop = self.stop.clone();
        self.serving = Some(tokio::spawn(async move {
            let policy = Policy { users: Arc::new(users), rules: RULES };
            server::serve(listener, policy, services, stop.cancelled_owned()).await.unwrap();
        }));
    }

    /// A new life: another epoch, and of the pods only those that it is told of afterwards.
    pub async fn restart(&mut self, pods: Vec<PodState>) {
        self.stop.cancel();
        if let Some(serving) = self.serving.take() {
            // By then the connections are told to go.
            let _ = tokio::time::timeout(std::time::Duration::from_millis(300), serving).await;
        }
        std::fs::remove_file(self.socket()).unwrap();
        {
            let mut world = self.world.lock();
            world.epoch += 1;
            world.seq = 0;
            world.pods.clear();
            world.events.clear();
        }
        for pod in pods {
            self.tell(pod);
        }
        self.serve().await;
    }

    pub fn link(&self) -> Link {
        Link::open("kubelet-statusd", Process::Syncd, &self.socket())
    }

    fn change(&self, f: impl FnOnce(&mut World, u64)) {
        {
            let mut world = self.world.lock();
            world.seq += 1;
            let seq = world.seq;
            f(&mut world, seq);
        }
        self.changed.send_modify(|n| *n += 1);
    }

    pub fn tell(&self, pod: PodState) {
        self.change(|world, seq| {
            world.pods.insert(pod.uid.clone(), (seq, Some(pod)));
        });
    }

    pub fn forget(&self, uid: &str) {
        self.change(|world, seq| {
            world.pods.insert(uid.to_owned(), (seq, None));
        });
    }

    pub fn node(&self, node: NodeState) {
        self.change(|world, _| world.node = node);
    }

    /// Streams of the node that were begun in all its lives.
    pub fn node_streams(&self) -> usize {
        self.world.lock().node_streams
    }

    pub fn event(&self, mut event: Event) {
        self.change(|world, _| {
            let seq = world.events.len() as u64 + 1;
            event.cursor = Some(Cursor { epoch: world.epoch, seq });
            world.events.push(event);
        });
    }
}

impl Service {
    /// A stream of what a function finds new after a position.
    fn stream<T: Send + 'static>(
        &self,
        start: Option<u64>,
        find: impl Fn(&World, Option<u64>) -> (u64, Vec<T>) + Send + 'static,
    ) -> Answer<T> {
        let mut changed = self.changed.clone();
        changed.mark_changed();
        let begin = (self.world.clone(), changed, start, Vec::new().into_iter(), self.stop.clone(), find);
        Box::pin(futures_util::stream::unfold(
            begin,
            |(world, mut changed, mut at, mut batch, stop, find)| async move {
                loop {
                    let one: Option<T> = batch.next();
                    if let Some(one) = one {
                        return Some((Ok(one), (world, changed, at, batch, stop, find)));
                    }
                    tokio::select! {
                        changed = changed.changed() => changed.ok()?,
                        () = stop.cancelled() => return None,
                    }
                    let (seq, found) = find(&world.lock(), at);
                    at = Some(seq);
                    batch = found.into_iter();
                }
            },
        ))
    }
}

#[tonic::async_trait]
impl ProcessApi for Service {
    async fn hello(&self, _: Request<HelloRequest>) -> Result<Response<HelloReply>, Status> {
        let epoch = self.world.lock().epoch;
        Ok(Response::new(HelloReply { epoch, ready: true, ..Default::default() }))
    }
    async fn privileges(&self, _: Request<PrivilegesRequest>) -> Result<Response<PrivilegesReply>, Status> {
        Err(Status::unimplemented("not asked"))
    }
    async fn metrics(&self, _: Request<MetricsRequest>) -> Result<Response<MetricsReply>, Status> {
        Err(Status::unimplemented("not asked"))
    }
}

#[tonic::async_trait]
impl Pods for Service {
    type ListStream = Answer<PodState>;
    async fn list(&self, _: Request<ListPodsRequest>) -> Result<Response<Self::ListStream>, Status> {
        Err(Status::unimplemented("not asked"))
    }
    async fn get(&self, _: Request<GetPodRequest>) -> Result<Response<PodState>, Status> {
        Err(Status::unimplemented("not asked"))
    }
    type WatchStream = Answer<PodUpdate>;
    async fn watch(&self, request: Request<WatchPodsRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let epoch = self.world.lock().epoch;
        let start = request.into_inner().cursor.filter(|c| c.epoch == epoch).map(|c| c.seq);
        let stream = self.stream(start, move |world, at| {
            let update = |seq, update| PodUpdate { cursor: Some(Cursor { epoch, seq }), update: Some(update) };
            let mut news: Vec<_> = world.pods.iter().filter(|(_, (seq, _))| at.is_none_or(|at| *seq > at)).collect();
            news.sort_by_key(|(_, (seq, _))| *seq);
            let mut updates: Vec<PodUpdate> = news
                .into_iter()
                .filter(|(_, (_, pod))| at.is_some() || pod.is_some())
                .map(|(uid, (seq, pod))| match pod {
                    Some(pod) => update(*seq, Update::Upsert(pod.clone())),
                    None => update(*seq, Update::RemovedUid(uid.clone())),
                })
                .collect();
            if at.is_none() {
                updates.push(update(world.seq, Update::SnapshotDone(SnapshotDone {})));
            }
            (world.seq, updates)
        });
        Ok(Response::new(stream))
    }
}

#[tonic::async_trait]
impl Events for Service {
    type WatchStream = Answer<Event>;
    async fn watch(&self, request: Request<WatchEventsRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let epoch = self.world.lock().epoch;
        let start = request.into_inner().cursor.filter(|c| c.epoch == epoch).map_or(0, |c| c.seq);
        let stream = self.stream(Some(start), |world, at| {
            let at = usize::try_from(at.unwrap()).unwrap();
            (world.events.len() as u64, world.events[at..].to_vec())
        });
        Ok(Response::new(stream))
    }
}

#[tonic::async_trait]
impl Node for Service {
    async fn get(&self, _: Request<GetNodeRequest>) -> Result<Response<NodeState>, Status> {
        Ok(Response::new(self.world.lock().node.clone()))
    }
    type WatchStream = Answer<NodeState>;
    async fn watch(&self, _: Request<WatchNodeRequest>) -> Result<Response<Self::WatchStream>, Status> {
        self.world.lock().node_streams += 1;
        Ok(Response::new(self.stream(None, |world, _| (0, vec![world.node.clone()]))))
    }
}
