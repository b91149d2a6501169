//! The lifecycle event generator against a stand-in for a runtime that has the CRI's own events, and misbehaves.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use bulkhead_cri::containerd::service::events_server::{Events, EventsServer};
use bulkhead_cri::containerd::{payload, service};
use bulkhead_cri::v1::runtime_service_server::{RuntimeService, RuntimeServiceServer};
use bulkhead_cri::{CriClient, CriDeadlines, DirectConnector, v1};
use bulkhead_types::PodUid;
use kubelet_model::pod::model::RunState;
use kubelet_pleg::{EventSource, Pleg, PlegOptions, PodLifecycleEvent, PodLifecycleEventKind};
use parking_lot::Mutex;
use prost::Message as _;
use tokio::sync::{broadcast, mpsc};
use tokio::time::Instant;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::{BroadcastStream, UnixListenerStream};
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status};

const LIMIT: Duration = Duration::from_secs(10);
const RUNNING: i32 = v1::ContainerState::ContainerRunning as i32;
const EXITED: i32 = v1::ContainerState::ContainerExited as i32;

/// One container a pod, no sandboxes; the container `hung` never answers its status.
#[derive(Clone)]
struct Runtime {
    containers: Arc<Mutex<BTreeMap<String, i32>>>,
    /// When a container's state was set, in nanoseconds, of those that were not there from the beginning.
    times: Arc<Mutex<BTreeMap<String, i64>>>,
    /// None: this runtime has no events.
    events: Option<broadcast::Sender<v1::ContainerEventResponse>>,
    /// It is containerd, and has events of its own.
    own_events: Option<broadcast::Sender<service::Envelope>>,
    /// Lists of one pod or one id that were asked for.
    filtered: Arc<AtomicUsize>,
}

impl Runtime {
    fn new(containers: &[(&str, i32)], with_events: bool) -> Self {
        Runtime {
            containers: Arc::new(Mutex::new(containers.iter().map(|(id, state)| ((*id).to_owned(), *state)).collect())),
            times: Arc::default(),
            events: with_events.then(|| broadcast::channel(16).0),
            own_events: None,
            filtered: Arc::default(),
        }
    }

    fn count(&self, id: &str, labels: &BTreeMap<String, String>) {
        self.filtered.fetch_add(usize::from(!id.is_empty() || !labels.is_empty()), Ordering::Relaxed);
    }

    fn filtered(&self) -> usize {
        self.filtered.load(Ordering::Relaxed)
    }
}

fn uid_of(container: &str) -> PodUid {
    PodUid::parse(&format!("uid-{container}")).unwrap()
}

fn labels(container: &str) -> BTreeMap<String, String> {
    BTreeMap::from([
        ("io.kubernetes.pod.uid".to_owned(), uid_of(container).to_string()),
        ("io.kubernetes.pod.name".to_owned(), container.to_owned()),
        ("io.kubernetes.pod.namespace".to_owned(), "default".to_owned()),
    ])
}

fn selects(wanted: &BTreeMap<String, String>, labels: &BTreeMap<String, String>) -> bool {
    wanted.iter().all(|(key, value)| labels.get(key) == Some(value))
}

#[tonic::async_trait]
impl Events for Runtime {
    async fn subscribe(
        &self,
        _: Request<service::SubscribeRequest>,
    ) -> Result<Response<BoxStream<service::Envelope>>, Status> {
        let Some(events) = &self.own_events else { return Err(Status::unimplemented("no events")) };
        let stream = BroadcastStream::new(events.subscribe());
        Ok(Response::new(Box::pin(stream.map(|event| event.map_err(|_| Status::data_loss("lagged"))))))
    }
}

#[tonic::async_trait]
impl RuntimeService for Runtime {
    async fn version(&self, _: Request<v1::VersionRequest>) -> Result<Response<v1::VersionResponse>, Status> {
        if self.own_events.is_none() {
            return Err(Status::unimplemented("no version"));
        }
        let (name, version) = ("containerd".to_owned(), "v2.1.4".to_owned());
        Ok(Response::new(v1::VersionResponse { runtime_name: name, runtime_version: version, ..Default::default() }))
    }

    async fn list_pod_sandbox(
        &self,
        request: Request<v1::ListPodSandboxRequest>,
    ) -> Result<Response<v1::ListPodSandboxResponse>, Status> {
        let filter = request.into_inner().filter.unwrap_or_default();
        self.count(&filter.id, &filter.label_selector);
        Ok(Response::new(v1::ListPodSandboxResponse::default()))
    }

    async fn list_containers(
        &self,
        request: Request<v1::ListContainersRequest>,
    ) -> Result<Response<v1::ListContainersResponse>, Status> {
        let filter = request.into_inner().filter.unwrap_or_default();
        self.count(&filter.id, &filter.label_selector);
        let containers = self.containers.lock();
        let containers = containers.iter().filter(|(id, _)| filter.id.is_empty() || filter.id == **id);
        let containers = containers.filter(|(id, _)| selects(&filter.label_selector, &labels(id)));
        let containers = containers.map(|(id, state)| v1::Container {
            id: id.clone(),
            pod_sandbox_id: "s".into(),
            state: *state,
            labels: labels(id),
            ..Default::default()
        });
        Ok(Response::new(v1::ListContainersResponse { containers: containers.collect() }))
    }

    async fn container_status(
        &self,
        request: Request<v1::ContainerStatusRequest>,
    ) -> Result<Response<v1::ContainerStatusResponse>, Status> {
        let id = request.into_inner().container_id;
        if id == "hung" {
            std::future::pending::<()>().await;
        }
        let state = self.containers.lock().get(&id).copied();
        let state = state.ok_or_else(|| Status::not_found("no such container"))?;
        let time = self.times.lock().get(&id).copied().unwrap_or_default();
        let finished_at = if state == EXITED { time } else { 0 };
        let labels = labels(&id);
        let status = v1::ContainerStatus { labels, id, state, started_at: time, finished_at, ..Default::default() };
        Ok(Response::new(v1::ContainerStatusResponse { status: Some(status), ..Default::default() }))
    }

    async fn get_container_events(
        &self,
        _: Request<v1::GetEventsRequest>,
    ) -> Result<Response<BoxStream<v1::ContainerEventResponse>>, Status> {
        let Some(events) = &self.events else { return Err(Status::unimplemented("no events")) };
        let stream = BroadcastStream::new(events.subscribe());
        Ok(Response::new(Box::pin(stream.map(|event| event.map_err(|_| Status::data_loss("lagged"))))))
    }
}

/// The runtime, the generator, and what it told.
struct Bench {
    runtime: Runtime,
    pleg: Pleg,
    events: mpsc::Receiver<PodLifecycleEvent>,
    _folder: tempfile::TempDir,
}

impl Bench {
    async fn start(containers: &[(&str, i32)], with_events: bool, options: PlegOptions) -> Self {
        Bench::with(Runtime::new(containers, with_events), options).await
    }

    async fn with(runtime: Runtime, options: PlegOptions) -> Self {
        Bench::counted(runtime, options, CriDeadlines::default(), &prometheus::Registry::new()).await
    }

    async fn counted(
        runtime: Runtime,
        options: PlegOptions,
        deadlines: CriDeadlines,
        registry: &prometheus::Registry,
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cri.sock");
        let listener = tokio::net::UnixListener::bind(&path).unwrap();
        let service = RuntimeServiceServer::new(runtime.clone());
        let own_events = EventsServer::new(runtime.clone());
        tokio::spawn(
            tonic::transport::Server::builder()
                .add_service(service)
                .add_service(own_events)
                .serve_with_incoming(UnixListenerStream::new(listener)),
        );
        let client = CriClient::new(Arc::new(DirectConnector(path)), deadlines);
        let (pleg, task) = Pleg::new(client, options, registry).unwrap();
        let events = pleg.subscribe();
        tokio::spawn(task.run());
        Bench { runtime, pleg, events, _folder: folder }
    }

    fn set(&self, id: &str, state: Option<i32>) {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos();
        self.runtime.times.lock().insert(id.to_owned(), i64::try_from(now).unwrap());
        let mut containers = self.runtime.containers.lock();
        match state {
            Some(state) => containers.insert(id.to_owned(), state),
            None => containers.remove(id),
        };
    }

    fn tell(&self, id: &str, kind: v1::ContainerEventType) {
        let metadata = v1::PodSandboxMetadata { uid: uid_of(id).to_string(), ..Default::default() };
        let event = v1::ContainerEventResponse {
            container_id: id.into(),
            container_event_type: kind as i32,
            pod_sandbox_status: Some(v1::PodSandboxStatus { metadata: Some(metadata), ..Default::default() }),
            ..Default::default()
        };
        self.runtime.events.as_ref().unwrap().send(event).unwrap();
    }

    /// containerd's own word that the container's process has ended.
    fn tell_own(&self, id: &str, exit_code: u32) {
        let exit =
            payload::TaskExit { container_id: id.into(), id: id.into(), exit_status: exit_code, ..Default::default() };
        let mut envelope = service::Envelope { topic: "/tasks/exit".into(), ..Default::default() };
        let event = envelope.event.get_or_insert_default();
        event.type_url = "containerd.events.TaskExit".into();
        event.value = exit.encode_to_vec();
        self.runtime.own_events.as_ref().unwrap().send(envelope).unwrap();
    }

    async fn next(&mut self) -> (PodLifecycleEventKind, String) {
        let event = tokio::time::timeout(LIMIT, self.events.recv()).await.expect("an event comes").unwrap();
        (event.kind, event.uid.to_string())
    }

    async fn connected(&self) {
        let deadline = Instant::now() + LIMIT;
        while !self.pleg.connected() {
            assert!(Instant::now() < deadline);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// The stream stands, and the second list is over that follows its opening: the next one is the audit.
    async fn settled(&self) {
        self.connected().await;
        let deadline = Instant::now() + LIMIT;
        while self.pleg.stats().relists < 2 {
            assert!(Instant::now() < deadline, "{:?}", self.pleg.stats());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

#[tokio::test]
async fn the_cris_own_events_are_preferred() {
    let mut bench = Bench::start(&[("a", RUNNING)], true, PlegOptions::default()).await;
    bench.pleg.first_relist().await;
    assert_eq!(bench.next().await, (PodLifecycleEventKind::ContainerStarted, "uid-a".into()));
    bench.connected().await;
    assert_eq!(bench.pleg.stats().source, Some(EventSource::Cri));

    bench.set("b", Some(RUNNING));
    bench.tell("b", v1::ContainerEventType::ContainerStartedEvent);
    assert_eq!(bench.next().await, (PodLifecycleEventKind::ContainerStarted, "uid-b".into()));
    bench.set("a", Some(EXITED));
    bench.tell("a", v1::ContainerEventType::ContainerStoppedEvent);
    assert_eq!(bench.next().await, (PodLifecycleEventKind::ContainerDied, "uid-a".into()));
    bench.set("a", None);
    bench.tell("a", v1::ContainerEventType::ContainerDeletedEvent);
    assert_eq!(bench.next().await, (PodLifecycleEventKind::ContainerRemoved, "uid-a".into()));

    // A look at what is not there, or has not changed, is nobody's event.
    let cache = bench.pleg.cache();
    assert!(cache.get_newer_than(&uid_of("none"), Instant::now()).await.unwrap().containers.is_empty());
    assert_eq!(cache.get_newer_than(&uid_of("b"), Instant::now()).await.unwrap().containers.len(), 1);
    bench.pleg.request(&uid_of("b"));
    assert_eq!(bench.next().await, (PodLifecycleEventKind::PodSync, "uid-b".into()));
    assert_eq!(bench.pleg.stats().events_missed, 0);
}

#[tokio::test]
async fn containerds_own_word_of_an_end_counts_before_the_cris() {
    let mut runtime = Runtime::new(&[("a", RUNNING)], true);
    let own_events = broadcast::channel(16).0;
    runtime.own_events = Some(own_events.clone());
    let mut bench = Bench::with(runtime, PlegOptions::default()).await;
    bench.pleg.first_relist().await;
    assert_eq!(bench.next().await.0, PodLifecycleEventKind::ContainerStarted);
    bench.connected().await;
    assert_eq!(bench.pleg.stats().source, Some(EventSource::Cri));
    let deadline = Instant::now() + LIMIT;
    while own_events.receiver_count() == 0 {
        assert!(Instant::now() < deadline, "nobody listens");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }

    // While its worker ends it nobody looks at the pod, and the CRI says that it runs until all is cleared away.
    let (uid, looks) = (uid_of("a"), bench.pleg.stats().inspections);
    let busy = bench.pleg.busy(&uid);
    bench.tell_own("nobody's", 1);
    bench.tell_own("a", 3);
    assert_eq!(bench.next().await, (PodLifecycleEventKind::ContainerDied, "uid-a".into()));
    let ended = bench.pleg.cache().get(&uid);
    assert_eq!((ended.containers[0].state, ended.containers[0].exit_code), (RunState::Exited, 3));
    // When what was told after it has been looked at, nothing more has been asked than that took.
    bench.set("b", Some(RUNNING));
    bench.tell("b", v1::ContainerEventType::ContainerStartedEvent);
    assert_eq!(bench.next().await, (PodLifecycleEventKind::ContainerStarted, "uid-b".into()));
    let looks = looks + 1;
    assert_eq!((bench.pleg.stats().inspections, bench.runtime.filtered()), (looks, 2), "nothing is asked for its end");

    // The CRI's event brings the look.
    bench.set("a", Some(EXITED));
    bench.tell("a", v1::ContainerEventType::ContainerStoppedEvent);
    drop(busy);
    let deadline = Instant::now() + LIMIT;
    while bench.pleg.stats().inspections == looks {
        assert!(Instant::now() < deadline, "nobody has looked");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(bench.pleg.cache().get(&uid).containers[0].state, RunState::Exited);
}

#[tokio::test]
async fn the_audit_finds_and_counts_what_events_missed() {
    let options = PlegOptions { audit_interval: Duration::from_millis(2500), ..PlegOptions::default() };
    let mut bench = Bench::start(&[("a", RUNNING)], true, options).await;
    bench.pleg.first_relist().await;
    assert_eq!(bench.next().await.0, PodLifecycleEventKind::ContainerStarted);
    // The list that follows each connection is none.
    bench.settled().await;
    bench.set("a", Some(EXITED));
    assert_eq!(bench.next().await, (PodLifecycleEventKind::ContainerDied, "uid-a".into()));
    assert_eq!(bench.pleg.stats().events_missed, 1);
    assert_eq!(bench.pleg.stats().runtime_events, 0);
}

/// As a proxy before the runtime: it opens the stream, and that is all.
#[tokio::test]
async fn a_stream_that_tells_nothing_is_relied_on_until_something_happens() {
    let (audit_interval, relist_interval) = (LIMIT * 10, Duration::from_millis(50));
    let options = PlegOptions { audit_interval, relist_interval, ..PlegOptions::default() };
    let mut bench = Bench::start(&[("a", RUNNING)], true, options).await;
    bench.pleg.first_relist().await;
    assert_eq!(bench.next().await.0, PodLifecycleEventKind::ContainerStarted);
    bench.connected().await;
    // From when on it is taken to listen, and after the list that follows each connection.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    bench.settled().await;
    let idle = bench.pleg.stats().relists;
    tokio::time::sleep(Duration::from_millis(2500)).await;
    assert_eq!(bench.pleg.stats().relists, idle, "nothing has happened that it could have told");

    // A start of our own: who made it asks for a look, and nobody tells of its end.
    bench.set("b", Some(RUNNING));
    bench.pleg.request(&uid_of("b"));
    assert_eq!(bench.next().await, (PodLifecycleEventKind::ContainerStarted, "uid-b".into()));
    bench.set("b", Some(EXITED));
    assert_eq!(bench.next().await, (PodLifecycleEventKind::ContainerDied, "uid-b".into()));
    assert!(bench.pleg.stats().relists > idle && bench.pleg.stats().events_missed == 0);

    // Its first word brings the trust back.
    bench.set("a", Some(EXITED));
    bench.tell("a", v1::ContainerEventType::ContainerStoppedEvent);
    assert_eq!(bench.next().await, (PodLifecycleEventKind::ContainerDied, "uid-a".into()));
    // Lists come to an end, each of which would be followed by the next at once.
    let (mut relists, deadline) = (0, Instant::now() + LIMIT);
    while bench.pleg.stats().relists != relists {
        assert!(Instant::now() < deadline, "{:?}", bench.pleg.stats());
        relists = bench.pleg.stats().relists;
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

#[tokio::test]
async fn a_runtime_without_events_is_relisted() {
    let options = PlegOptions { relist_interval: Duration::from_millis(50), ..PlegOptions::default() };
    let mut bench = Bench::start(&[], false, options).await;
    bench.pleg.first_relist().await;
    bench.set("a", Some(RUNNING));
    assert_eq!(bench.next().await, (PodLifecycleEventKind::ContainerStarted, "uid-a".into()));
    bench.set("a", None);
    assert_eq!(bench.next().await.0, PodLifecycleEventKind::ContainerDied);
    assert_eq!(bench.next().await.0, PodLifecycleEventKind::ContainerRemoved);
    let stats = bench.pleg.stats();
    assert_eq!((stats.source, stats.events_missed, stats.connection_errors), (None, 0, 0));
    assert!(bench.pleg.cache().snapshot().is_empty() && bench.pleg.health().is_ok());
    assert_eq!(bench.runtime.filtered(), 0, "what the list of everything showed of a pod is not asked for again");
}

#[tokio::test]
async fn pods_that_were_there_are_looked_at_by_their_ids() {
    let names: Vec<String> = (0..20).map(|n| format!("c{n}")).collect();
    let containers: Vec<(&str, i32)> = names.iter().map(|name| (name.as_str(), RUNNING)).collect();
    let mut bench = Bench::start(&containers, true, PlegOptions::default()).await;
    bench.pleg.first_relist().await;
    let cache = bench.pleg.cache();
    for name in &names {
        assert_eq!(bench.next().await.0, PodLifecycleEventKind::ContainerStarted);
        let pod = cache.get(&uid_of(name));
        assert_eq!((pod.namespace.as_str(), pod.name.as_str(), pod.containers.len()), ("default", name.as_str(), 1));
    }
    // And after the list that follows the opening of the stream.
    bench.settled().await;
    assert_eq!(bench.runtime.filtered(), 0);

    // What an event tells of first, lists are asked about.
    bench.set("late", Some(RUNNING));
    bench.tell("late", v1::ContainerEventType::ContainerStartedEvent);
    assert_eq!(bench.next().await, (PodLifecycleEventKind::ContainerStarted, "uid-late".into()));
    assert_eq!(bench.runtime.filtered(), 2);
}

/// More pods than a subscriber may be events behind.
#[tokio::test]
async fn a_slow_subscriber_hears_of_every_pod() {
    let names: Vec<String> = (0..1100).map(|n| format!("c{n}")).collect();
    let containers: Vec<(&str, i32)> = names.iter().map(|name| (name.as_str(), RUNNING)).collect();
    let mut bench = Bench::start(&containers, true, PlegOptions::default()).await;
    bench.pleg.first_relist().await;
    assert_eq!(bench.pleg.stats().events_discarded, 100);
    let mut unheard: BTreeSet<PodUid> = names.iter().map(|name| uid_of(name)).collect();
    while !unheard.is_empty() {
        let event = tokio::time::timeout(LIMIT, bench.events.recv()).await;
        let Ok(Some(event)) = event else { panic!("never heard of {unheard:?}") };
        unheard.remove(&event.uid);
    }
    // Nothing of it is left.
    assert!(tokio::time::timeout(Duration::from_millis(300), bench.events.recv()).await.is_err());
}

#[tokio::test]
async fn a_hung_call_holds_up_one_pod() {
    let mut bench = Bench::start(&[("a", RUNNING), ("hung", RUNNING)], true, PlegOptions::default()).await;
    assert_eq!(bench.next().await, (PodLifecycleEventKind::ContainerStarted, "uid-a".into()));
    bench.connected().await;
    bench.set("a", Some(EXITED));
    bench.tell("a", v1::ContainerEventType::ContainerStoppedEvent);
    assert_eq!(bench.next().await, (PodLifecycleEventKind::ContainerDied, "uid-a".into()));
    let cache = bench.pleg.cache();
    let fresh = tokio::time::timeout(LIMIT, cache.get_newer_than(&uid_of("a"), Instant::now())).await.unwrap();
    assert_eq!(fresh.unwrap().containers.len(), 1);
    let uid = uid_of("hung");
    assert!(!cache.is_certain(&uid) && cache.snapshot().iter().any(|(known, _)| *known == uid));
    let hung = cache.get_newer_than(&uid, Instant::now());
    assert!(tokio::time::timeout(Duration::from_millis(300), hung).await.is_err(), "listed and unknown is not absent");
    tokio::time::timeout(LIMIT * 2, bench.pleg.first_relist()).await.expect("the start does not wait for it for ever");
}

/// What alerts on slow runtimes read: the list itself is quick.
#[tokio::test]
async fn a_relist_lasts_as_long_as_the_looks_that_it_causes() {
    let registry = prometheus::Registry::new();
    let options = PlegOptions { relist_interval: LIMIT * 10, events: false, ..PlegOptions::default() };
    let deadlines = CriDeadlines { request: Duration::from_secs(1) };
    let runtime = Runtime::new(&[("a", RUNNING), ("hung", RUNNING)], false);
    let bench = Bench::counted(runtime, options, deadlines, &registry).await;
    bench.pleg.first_relist().await;
    let families = registry.gather();
    let relists = families.iter().find(|family| family.name() == "kubelet_pleg_relist_duration_seconds").unwrap();
    let relists = relists.get_metric()[0].get_histogram();
    assert_eq!(relists.get_sample_count(), 1);
    assert!(relists.get_sample_sum() >= 1.0, "{relists:?}");
}
