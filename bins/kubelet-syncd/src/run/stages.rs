//! The stages of a start, each with what the one before it has made: [`Connections`], [`Followers`], [`Machine`], [`Server`],
//! [`Learned`], [`Loops`].

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bulkhead_apiclient::ApiClient;
use bulkhead_config::{Feature, NodeConfig, shutdown};
use bulkhead_cri::CriClient;
use bulkhead_cri::v1::VersionResponse;
use bulkhead_daemon::addresses::Prober as AddressProber;
use bulkhead_daemon::{Daemon, RunError};
use bulkhead_ipc::client::Link;
use bulkhead_ipc::syncd::NodeImage;
use bulkhead_types::{Epoch, Process};
use tokio::sync::{Notify, Semaphore, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{RuntimeApis, adoption, agents, claims, facts, plugins, resources, runtime, volumes};
use crate::api::live::{ApiObjects, Certifying, initial_node};
use crate::api::pod_certificates::metrics::CertificateStates;
use crate::api::pods::{ApiPods, PodSource};
use crate::api::storage::StorageObjects;
use crate::api::{node as api_node, pods as api_pods};
use crate::cgroups::{Capacity, Reserved, reserved};
use crate::container_manager::dra::DraManager;
use crate::container_manager::{ContainerManager, News};
use crate::cri_metrics::{CriMetrics, SandboxMetrics};
use crate::evictions::book::EvictionBook;
use crate::evictions::pressure::PressureReports;
use crate::manifests::BrokerManifests;
use crate::metrics::Metrics;
use crate::node_resources::{self, NodeResources, texts};
use crate::node_shutdown::logind;
use crate::node_shutdown::record::Record;
use crate::ooms::OomReports;
use crate::ownership::{OwnedCgroups, Ownership};
use crate::private_state::PrivateState;
use crate::service::logs::Parts as LogParts;
use crate::service::node_view::{ApiParts, FirstParts, NodeView};
use crate::service::silence;
use crate::service::streams::StreamParts;
use crate::sources::{DroppedPod, FileConfig, ForNode, FoundPod, HttpConfig, PodUpdate, Sources, SourcesConfig};
use crate::start_latency::StartTimes;
use crate::start_limit::{self, HOLD, StartLimiter};
use crate::sync_loop::cpu_sets;
use crate::sync_loop::events::Reporter;
use crate::sync_loop::evictions::{self, Evictions};
use crate::sync_loop::image_fs::ImageFs;
use crate::sync_loop::image_store::ImageStore;
use crate::sync_loop::loop_monitor::LoopMonitor;
use crate::sync_loop::node::NodeContext;
use crate::sync_loop::node_cgroups::NodeCgroups;
use crate::sync_loop::pod_table::PodTable;
use crate::sync_loop::prune_gate::PruneGate;
use crate::sync_loop::runtime_health::{self, RuntimeHealth};
use crate::sync_loop::sandbox_image::{self, SandboxImage};
use crate::sync_loop::shutdown::Shutdowns;
use crate::sync_loop::termination_messages::TerminationMessages;
use crate::sync_loop::{
    RuntimeMetrics, RuntimeParts, RuntimeSide, SyncLoop, SyncLoopParts, image_list, node_cgroups, runtime_settings,
};
use crate::take_down::{self, TakeDowns};
use crate::volumes::set_up::FILES_ON_THEIR_WAY;
use kubelet_edges::csi::CsiClient;
use kubelet_edges::volnetd::{Authority, Volnetd};
use kubelet_images::credentials::{self, Keyring};
use kubelet_images::export::Export;
use kubelet_images::{ImageManager, ImageMetrics};
use kubelet_model::events::{EventSink as _, EventType, PodEvent};
use kubelet_model::node_facts::{HostFacts, SharedFacts};
use kubelet_model::objects::{NoObjects, Objects};
use kubelet_model::pod::spec::PodIdentity;
use kubelet_model::selinux::SeLinux;
use kubelet_model::validation::Gates;
use kubelet_pleg::{Pleg, PlegOptions, PodLifecycleEvent};
use kubelet_probes::hooks;
use kubelet_probes::prober::leftover::Leftovers;
use kubelet_probes::prober::metrics::ProbeMetrics;
use kubelet_probes::prober::table::Started;
use kubelet_probes::prober::{self, Prober};
use kubelet_runtime::allocation::{self, Allocations};
use kubelet_runtime::runtime::dns;
use kubelet_runtime::runtime::request_check;
use kubelet_volume_manager::VolumeManager;

/// Neither the sync loop nor PLEG waits for anybody in its loop: a turn takes milliseconds, also with hundreds of pods.
const LOOP_BOUND: Duration = Duration::from_secs(20);

/// After SIGTERM, for sandboxes and containers that are being made; within the 5 s that a daemon has to stop.
const FINISH: Duration = Duration::from_secs(4);
/// After these, for upstream's files of allocations; within the same 5 s.
const EXPORT: Duration = Duration::from_millis(800);

/// A start does not wait longer for logind.
const SHUTDOWN_KNOWN: Duration = Duration::from_secs(5);

/// A start does not wait longer for the resolver; what it says later is taken then.
const RESOLVE_AT_START: Duration = Duration::from_millis(250);

/// What every stage has at hand.
pub(super) struct Start {
    pub(super) daemon: Arc<Daemon>,
    pub(super) config: Arc<NodeConfig>,
    pub(super) reporter: Arc<Reporter>,
    pub(super) view: Arc<NodeView>,
    pub(super) runtime_apis: RuntimeApis,
    /// When this process began.
    pub(super) started: Instant,
}

/// First stage: whom everything is asked of.
pub(super) struct Connections {
    state: PrivateState,
    link: Link,
    authority: Arc<Authority>,
    volnetd: Volnetd,
    pub(super) cri: CriClient,
    /// The drivers that are registered.
    csi: CsiClient,
}

impl Connections {
    /// `None`: the daemon is to stop, and the state folder was not to be had yet.
    pub(super) async fn open(start: &Start) -> Result<Option<Self>, RunError> {
        let daemon = &start.daemon;
        let state = tokio::select! {
            state = daemon.state_dir() => PrivateState::new(state?),
            () = daemon.stop.cancelled() => return Ok(None),
        };
        let link = daemon.link(Process::Volnetd);
        let authority = Arc::new(Authority::new(daemon.epoch));
        let volnetd = Volnetd::new(link.clone(), daemon.broker.clone(), authority.clone());
        let cri = runtime::runtime_client(&daemon.broker, &start.config)
            .observed_by(Arc::new(CriMetrics::register(&daemon.registry)?));
        start.runtime_apis.stats.set(cri.clone());
        let csi = plugins::csi_client(start)?;
        Ok(Some(Connections { state, link, authority, volnetd, cri, csi }))
    }
}

/// Second stage: tasks that follow the runtime from here on.
pub(super) struct Followers {
    health: watch::Receiver<RuntimeHealth>,
    answered: watch::Receiver<Option<Instant>>,
    version: watch::Receiver<Option<VersionResponse>>,
    image_fs: watch::Receiver<String>,
    sandbox_image: watch::Receiver<String>,
    images: watch::Receiver<Arc<[NodeImage]>>,
    /// Garbage collection has removed an image.
    removed: Arc<Notify>,
    pleg: Pleg,
    pleg_events: mpsc::Receiver<PodLifecycleEvent>,
    metrics: Metrics,
    shutdowns: Shutdowns,
}

impl Followers {
    pub(super) fn begin(start: &Start, connections: &Connections) -> Result<Self, RunError> {
        let (daemon, config, cri) = (&start.daemon, &start.config, &connections.cri);
        let (told_health, health) = watch::channel(RuntimeHealth::default());
        let (told_answered, answered) = watch::channel(None);
        let (told_version, version) = watch::channel(None);
        let told = runtime_health::Told { health: told_health, answered: told_answered, version: told_version };
        tokio::spawn(runtime_health::follow(cri.clone(), told));
        let (image_fs_sender, image_fs) = watch::channel(String::new());
        tokio::spawn(runtime_settings::follow(
            ImageFs { client: cri.clone(), health: health.clone() },
            image_fs_sender,
        ));
        let (images_sender, images) = watch::channel(Arc::default());
        let max_images = config.kubelet.node_status_max_images();
        let ring = start.reporter.ring.clone();
        let removed = Arc::new(Notify::new());
        let (client, seen) = (cri.clone(), health.clone());
        tokio::spawn(image_list::follow(client, seen, ring, removed.clone(), max_images, images_sender));
        let streamed = config.feature_gates().enabled(Feature::CRIListStreaming);
        let options = PlegOptions::default();
        let options = if streamed { options.with_streamed_lists() } else { options };
        let (pleg, pleg_task) = Pleg::new(cri.clone(), options, &daemon.registry)?;
        tokio::spawn(pleg_task.with_heartbeat(daemon.progress.register("pleg", LOOP_BOUND)).run());
        let pleg_events = pleg.subscribe();
        let (told_image, sandbox_image) = watch::channel(String::new());
        let sandboxes = sandbox_image::Known { client: cri.clone(), pleg: pleg.clone() };
        let asked = SandboxImage { sandboxes, health: health.clone(), version: version.clone() };
        tokio::spawn(runtime_settings::follow(asked, told_image));
        let metrics = Metrics::register(&daemon.registry, config.feature_gates().enabled(Feature::MemoryQoS))?;
        let shutdowns = shutdowns(start, connections)?;
        Ok(Followers {
            health,
            answered,
            version,
            image_fs,
            sandbox_image,
            images,
            removed,
            pleg,
            pleg_events,
            metrics,
            shutdowns,
        })
    }

    /// What other processes are shown from now on.
    pub(super) fn shown(&self, connections: &Connections, machine: &Machine) -> FirstParts {
        FirstParts {
            cri: connections.cri.clone(),
            pleg: self.pleg.clone(),
            health: self.health.clone(),
            answered: self.answered.clone(),
            version: self.version.clone(),
            image_fs: self.image_fs.clone(),
            sandbox_image: self.sandbox_image.clone(),
            images: self.images.clone(),
            authority: connections.authority.clone(),
            resources: machine.resources.clone(),
            swap_capacity: machine.host.swap_capacity,
            preparing: self.shutdowns.preparing.clone(),
        }
    }
}

/// What the machine has, and what of it pods may have. It is read once.
pub(super) struct Machine {
    capacity: Capacity,
    reserved: Reserved,
    resources: NodeResources,
    host: HostFacts,
}

impl Machine {
    pub(super) fn read(config: &NodeConfig) -> Self {
        let capacity = Capacity::read();
        let reserved = reserved(&config.kubelet.kube_reserved, &config.kubelet.system_reserved);
        let resources = node_resources::of_node(config, &capacity, &reserved);
        let host = HostFacts {
            selinux_enabled: SeLinux::is_on(&config.internal.selinux_root),
            ..HostFacts::read(std::path::Path::new("/"))
        };
        Machine { capacity, reserved, resources, host }
    }
}

/// Third stage: what is read from the API server; on a standalone node nothing.
pub(super) struct Server {
    client: Option<ApiClient>,
    objects: Arc<dyn Objects>,
    node_seen: watch::Receiver<api_node::NodeSeen>,
    pods_seen: watch::Sender<ApiPods>,
}

impl Server {
    pub(super) fn connect(start: &Start, connections: &Connections, machine: &Machine) -> Result<Self, RunError> {
        let (daemon, config) = (&start.daemon, &start.config);
        let resources = &machine.resources;
        let initial = initial_node(config, &texts(&resources.capacity), &texts(&resources.allocatable));
        let (pods_seen, pods) = watch::channel(ApiPods::default());
        if config.is_standalone() {
            let (_, node_seen) = watch::channel(api_node::NodeSeen::default());
            let objects = Arc::new(NoObjects::with_node(initial));
            return Ok(Server { client: None, objects, node_seen, pods_seen });
        }
        let (broker, link) = (daemon.broker.clone(), connections.link.clone());
        let client = ApiClient::start("kubelet-syncd", config.clone(), broker, link).with_metrics(&daemon.registry)?;
        let writes = start.runtime_apis.storage.writes.clone();
        let certifying = Certifying { writes, events: start.reporter.clone() };
        let objects = ApiObjects::start(&client, config, initial, &certifying);
        if let Some(certificates) = objects.certificates() {
            daemon.registry.register(Box::new(CertificateStates::new(certificates)?))?;
        }
        let node_seen = objects.node_seen();
        let reachability = client.reachability();
        start.view.set_api(ApiParts { node: node_seen.clone(), pods, reachability });
        Ok(Server { client: Some(client), objects, node_seen, pods_seen })
    }
}

/// Fourth stage: what has to be known before anything is decided.
pub(super) struct Learned {
    ownership: Arc<Ownership>,
    cgroup_driver: String,
    /// Static pods that the runtime has.
    running: Vec<FoundPod>,
    facts: SharedFacts,
}

impl Learned {
    /// `None`: the daemon is to stop.
    pub(super) async fn wait(
        start: &Start,
        connections: &Connections,
        followers: &Followers,
        machine: &Machine,
        server: &Server,
    ) -> Option<Self> {
        let (daemon, config) = (&start.daemon, &start.config);
        let Connections { cri, volnetd, state, .. } = connections;
        let (cgroups, recorded) = (OwnedCgroups::of(config), adoption::recorded_pods(state));
        let ownership = Arc::new(Ownership::new(cgroups, cri.clone(), volnetd.clone(), recorded));
        // Nothing is decided before the runtime has said what it has.
        let runtime = async {
            let mut version = followers.version.clone();
            let version = version.wait_for(Option::is_some).await.ok().and_then(|version| version.clone());
            let driver = runtime::cgroup_driver(cri, &daemon.registry).await;
            followers.pleg.first_relist().await;
            let mut health = followers.health.clone();
            // Which features the runtime has is part of the requests to it.
            let _ = health.wait_for(|health| health.known).await;
            let running = adoption::found_static_pods(cri).await;
            let running = adoption::not_foreign(running, &ownership, &followers.pleg.cache(), start.started).await;
            (version.unwrap_or_default(), driver, running)
        };
        let mut detection = AddressProber::default();
        let found = async {
            if !api_node::is_host_asked(config) {
                return Vec::new();
            }
            detection.host_ips(&config.node_ips, config.node_name.as_str(), RESOLVE_AT_START).await
        };
        let ((version, cgroup_driver, running), host_ips) = tokio::select! {
            known = async { tokio::join!(runtime, found) } => known,
            () = daemon.stop.cancelled() => return None,
        };
        let (host, health) = (machine.host.clone(), followers.health.clone());
        let facts = facts::node_facts(config, host, &machine.resources, &version, &health.borrow(), host_ips);
        let facts = SharedFacts::new(facts);
        let node_seen = server.node_seen.clone();
        tokio::spawn(runtime_health::keep_handlers(health, facts.clone()));
        tokio::spawn(api_node::keep_addresses(node_seen.clone(), config.clone(), detection, facts.clone()));
        tokio::spawn(api_node::keep_pod_cidrs(config.kubelet.pod_cidr.clone(), node_seen, cri.clone()));
        Some(Learned { ownership, cgroup_driver, running, facts })
    }
}

/// Last stage: the sync loop, with all that it decides by.
pub(super) struct Loops {
    sync_loop: SyncLoop,
    /// Cuts off what the sync loop's workers are doing.
    end: CancellationToken,
    /// Ends after that, once upstream's files of allocations are as the book is.
    exported: JoinHandle<()>,
}

impl Loops {
    pub(super) async fn begin(
        start: &Start,
        connections: Connections,
        followers: Followers,
        machine: Machine,
        server: Server,
        known: Learned,
    ) -> Result<Self, RunError> {
        let (daemon, config, reporter) = (&start.daemon, &start.config, &start.reporter);
        let Connections { state, link, .. } = &connections;
        state.after_another_kubelet(&known.running);
        let starts = StartTimes::register(&daemon.registry)?;
        register_counters(start)?;
        let pleg = followers.pleg.clone();
        let runtime = runtime_side(start, &connections, &machine, &server, pleg, starts.clone())?;
        export_image_pulls(start, runtime.images()).await;
        let end = CancellationToken::new();
        let (allocations, exported) = allocations(start, state, end.clone()).await;
        let prober = prober(start, &connections)?;
        let memory = machine.capacity.memory;
        let news = Arc::new(News::default());
        let claims = claims::start(start, server.client.clone(), news.clone())?;
        let devices = resources::devices(start, followers.pleg.cache(), news.clone(), state.clone()).await?;
        let others = resources::Others { devices: devices.clone(), news, claims: claims.clone() };
        let container_manager = resources::start(start, memory, &followers.pleg.cache(), others).await?;
        let (cgroups_ready, ready) = watch::channel(None);
        let cgroups = pod_cgroups(config, &machine, known.cgroup_driver.clone(), ready);
        let pressure = PressureReports::new(state.pressure(), &config.boot_id, Arc::new(state.clone()));
        let pressure = Arc::new(pressure);
        let reader = StorageObjects::start(server.client.clone(), server.objects.clone());
        let volume_manager =
            volumes::begin(start, connections.csi.clone(), connections.volnetd.clone(), reader.clone())?;
        let managers = Managers {
            runtime,
            allocations,
            prober,
            container_manager,
            claims: claims.clone(),
            volume_manager: volume_manager.clone(),
            cgroups,
            pressure: pressure.clone(),
        };
        let node = Arc::new(node_context(start, &connections, &followers, &machine, &server, &known, managers));
        tokio::spawn(node_cgroups::keep_node_cgroups(node.clone(), cgroups_ready));
        tokio::spawn(resources::keep_files(node.container_manager.clone()));
        tokio::spawn(cpu_sets::keep(node.clone()));
        let (sources, updates) = start_sources(start, &connections, known.running);
        start.view.set_sync_loop(node.clone(), sources.clone());
        let silent = silence::register(&daemon.registry)?;
        tokio::spawn(silence::tell(start.view.clone(), reporter.clone(), silent));
        serve_runtime_apis(start, &connections, &node, &sources);
        if let (Some(client), Some(sender)) = (server.client, sources.api_sender()) {
            let (hub, mirror_pods, statics) = (reporter.hub.clone(), node.mirror_pods.clone(), sources.statics());
            let node = config.node_name.clone();
            let source = PodSource { node, sender, hub, mirror_pods, statics, seen: server.pods_seen, starts };
            tokio::spawn(watch_pods(client, source, server.node_seen));
        }
        plugins::begin(start, &connections.csi, plugins::Takers { devices, claims }, link.clone())?;
        agents::begin(start)?;
        plugins::refresh(start, &connections.csi, &reader, &volume_manager);
        if let Some(event) = dns::check_host_file(&node.facts()) {
            reporter.emit_node(event);
        }
        let (questions, asked) = evictions::questions();
        start.runtime_apis.evictions.set(questions, pressure);
        let ooms = OomReports::new(state.ooms(), &config.boot_id, Arc::new(state.clone()));
        start.runtime_apis.ooms.set(ooms, reporter.clone());
        let book = EvictionBook::new(state.evictions(), Box::new(state.clone()));
        let evictions = Evictions::new(book, asked);
        start.runtime_apis.images.set(ImageStore::new(node.clone(), followers.removed));
        let shutdowns = known_shutdown(followers.shutdowns).await;
        let pleg_events = followers.pleg_events;
        let parts = SyncLoopParts { node, sources, updates, pleg_events, evictions, shutdowns, stop: end.clone() };
        let sync_loop = SyncLoop::new(parts).with_heartbeat(daemon.progress.register("sync loop", LOOP_BOUND));
        Ok(Loops { sync_loop, end, exported })
    }

    /// Until the daemon is to stop. `calls`: the runtime's, of which some must not be cut off.
    pub(super) async fn run(self, daemon: &Daemon, calls: CriClient) -> Result<(), RunError> {
        // The sync loop's end cuts off what its workers are doing, so it comes after the calls that must not be cut off.
        let finish = async {
            daemon.stop.cancelled().await;
            if !calls.finish(FINISH).await {
                tracing::warn!("a sandbox or container is still being made or removed, its call is cut off");
            }
            self.end.cancel();
            std::future::pending::<()>().await
        };
        tokio::select! {
            () = self.sync_loop.run() => {}
            () = finish => {}
        }
        if daemon.stop.is_cancelled() {
            if tokio::time::timeout(EXPORT, self.exported).await.is_err() {
                tracing::warn!("upstream's checkpoints of resources may lack the last changes");
            }
            Ok(())
        } else {
            Err("the main loop has ended: a pod source or PLEG is gone".into())
        }
    }
}

/// Who decides or does one kind of thing for all pods.
struct Managers {
    runtime: RuntimeSide,
    allocations: Arc<Allocations>,
    prober: Arc<Prober>,
    container_manager: Arc<ContainerManager>,
    claims: Arc<DraManager>,
    volume_manager: Arc<VolumeManager>,
    cgroups: NodeCgroups,
    pressure: Arc<PressureReports>,
}

/// What the sync loop and all of its tasks share.
fn node_context(
    start: &Start,
    connections: &Connections,
    followers: &Followers,
    machine: &Machine,
    server: &Server,
    known: &Learned,
    managers: Managers,
) -> NodeContext {
    let Managers { runtime, allocations, prober, container_manager, claims, volume_manager, cgroups, pressure } =
        managers;
    NodeContext {
        config: start.config.clone(),
        shared_facts: known.facts.clone(),
        allocatable_memory: machine.resources.allocatable_memory(),
        started: start.started,
        volnetd: connections.volnetd.clone(),
        files_on_their_way: Semaphore::new(FILES_ON_THEIR_WAY),
        volume_manager,
        objects: server.objects.clone(),
        mirror_pods: Arc::default(),
        pleg: followers.pleg.clone(),
        cache: followers.pleg.cache(),
        health: followers.health.clone(),
        hub: start.reporter.hub.clone(),
        spared_logs: Arc::default(),
        reporter: start.reporter.clone(),
        metrics: followers.metrics.clone(),
        runtime,
        prober,
        termination_messages: TerminationMessages::new(start.daemon.broker.clone()),
        ownership: known.ownership.clone(),
        allocations,
        container_manager,
        claims,
        pods: PodTable::default(),
        cgroups,
        pressure,
        prune_gate: PruneGate::default(),
        loop_monitor: LoopMonitor::default(),
    }
}

/// The pods' cgroup tree. `ready`: once it is there.
fn pod_cgroups(
    config: &NodeConfig,
    machine: &Machine,
    driver: String,
    ready: watch::Receiver<Option<Epoch>>,
) -> NodeCgroups {
    NodeCgroups {
        capacity: machine.capacity.clone(),
        reserved: machine.reserved.clone(),
        enforce_pods: config.kubelet.enforces_pods(),
        qos_reserved: facts::qos_reserved(config, &machine.capacity, &machine.reserved),
        driver,
        ready,
        limited: AtomicBool::default(),
        qos_written: tokio::sync::Mutex::default(),
        qos_unsettled: Notify::new(),
    }
}

/// From here on pods are wanted; those that run are known to their manifests.
fn start_sources(
    start: &Start,
    connections: &Connections,
    running: Vec<FoundPod>,
) -> (Arc<Sources>, mpsc::Receiver<PodUpdate>) {
    let (sources, updates) = Sources::start(
        sources_config(&start.config, running),
        BrokerManifests::new(start.daemon.broker.clone(), connections.link.clone()),
        Box::new(connections.state.clone()),
        dropped_sink(start.reporter.clone()),
    );
    (Arc::new(sources), updates)
}

/// Calls that need the runtime, and what the sync loop knows of it, are answered from here on.
fn serve_runtime_apis(start: &Start, connections: &Connections, node: &NodeContext, sources: &Arc<Sources>) {
    start.runtime_apis.logs.set(LogParts {
        hub: node.hub.clone(),
        spared: node.spared_logs.clone(),
        volnetd: connections.volnetd.clone(),
        broker: start.daemon.broker.clone(),
        cri: connections.cri.clone(),
    });
    start.runtime_apis.streams.set(StreamParts {
        cri: connections.cri.clone(),
        cache: node.cache.clone(),
        sources: sources.clone(),
        mirror_pods: node.mirror_pods.clone(),
        checkpoints_dir: start.config.paths.checkpoints(),
        request_timeout: start.config.runtime_request_timeout(),
    });
}

/// Follows logind where pods get time at a shutdown of the machine.
fn shutdowns(start: &Start, connections: &Connections) -> Result<Shutdowns, RunError> {
    let (config, gates) = (&start.config.kubelet, start.config.feature_gates());
    let groups = shutdown::grace_periods(config, &gates);
    let by_priority = gates.enabled(Feature::GracefulNodeShutdownBasedOnPodPriority);
    let broker = start.daemon.broker.clone();
    let (enabled, own) = (by_priority && !groups.is_empty(), Arc::new(connections.state.clone()));
    let record = Record::register(&start.daemon.registry, broker, enabled, own, &start.config.boot_id)?;
    let (preparing, release) = if groups.is_empty() {
        tracing::debug!("No graceful configuration specified, node shutdown will be immediate");
        logind::off()
    } else {
        tracing::info!(seconds = shutdown::total(&groups).as_secs(), "Creating node shutdown manager");
        logind::follow(connections.volnetd.clone())
    };
    Ok(Shutdowns { groups, preparing, release, record, elapsed: None })
}

/// The same once it is known whether a shutdown has begun: no pod is admitted, and none started again, before that.
async fn known_shutdown(mut shutdowns: Shutdowns) -> Shutdowns {
    if !shutdowns.groups.is_empty() {
        let known = shutdowns.preparing.wait_for(Option::is_some);
        if tokio::time::timeout(SHUTDOWN_KNOWN, known).await.is_err() {
            tracing::warn!("nobody has said yet whether the machine goes down");
        }
        let elapsed = shutdowns.record.load(shutdown::total(&shutdowns.groups)).await;
        shutdowns.elapsed = elapsed.filter(|_| *shutdowns.preparing.borrow() == Some(true));
    }
    shutdowns
}

/// Families of metrics that no part registers with itself.
fn register_counters(start: &Start) -> Result<(), RunError> {
    let registry = &start.daemon.registry;
    hooks::metrics::register(registry)?;
    let providers = start.config.credential_providers.as_ref();
    credentials::metrics::register(registry, providers.and_then(|all| all.config_hash.as_deref()))?;
    Ok(())
}

fn runtime_side(
    start: &Start,
    connections: &Connections,
    machine: &Machine,
    server: &Server,
    pleg: Pleg,
    starts: Arc<StartTimes>,
) -> Result<RuntimeSide, RunError> {
    let (daemon, config, registry) = (&start.daemon, &start.config, &start.daemon.registry);
    let providers = config.credential_providers.as_ref();
    let keyring = Arc::new(Keyring::new(server.objects.clone(), daemon.broker.clone(), providers));
    let refusals = request_check::counter()?;
    registry.register(Box::new(refusals.clone()))?;
    let metrics = RuntimeMetrics {
        images: ImageMetrics::register(registry)?,
        sandboxes: SandboxMetrics::register(registry)?,
        starts,
    };
    let parts = RuntimeParts {
        cri: connections.cri.clone(),
        volnetd: connections.volnetd.clone(),
        state: connections.state.clone(),
        limiter: StartLimiter::new(start_limit::slots(machine.capacity.cpus), HOLD),
        places: StartLimiter::to_prepare(start_limit::to_prepare(machine.capacity.cpus), HOLD),
        take_downs: TakeDowns::new(take_down::Slots::of(machine.capacity.cpus)),
        pleg,
        reporter: start.reporter.clone(),
        keyring,
        metrics,
    };
    Ok(RuntimeSide::new(config, parts).with_refusals(refusals))
}

/// Records of image pulls are compared with upstream's files, which are kept up to date from here on.
async fn export_image_pulls(start: &Start, images: &Arc<ImageManager<CriClient>>) {
    if images.notes_pulls() {
        let export = Export::begin(start.daemon.broker.clone(), images).await;
        tokio::spawn(export.keep(images.clone()));
    }
}

/// What pods were granted, as it was saved; it is exported in upstream's form from here on until `end`.
async fn allocations(
    start: &Start,
    state: &PrivateState,
    end: CancellationToken,
) -> (Arc<Allocations>, JoinHandle<()>) {
    let broker = &start.daemon.broker;
    let saved = allocation::export::load(state.allocations(), broker).await;
    let gates = allocation::Gates::of(&start.config.feature_gates());
    let allocations = Arc::new(Allocations::new(saved, Arc::new(state.clone()), gates));
    let exported = tokio::spawn(allocation::export::keep(allocations.clone(), broker.clone(), end));
    (allocations, exported)
}

fn prober(start: &Start, connections: &Connections) -> Result<Arc<Prober>, RunError> {
    let store = Arc::new(connections.state.clone());
    let began = SystemTime::now().checked_sub(start.started.elapsed()).unwrap_or(UNIX_EPOCH);
    let began = Started { instant: start.started, time: began };
    let prober = Arc::new(Prober::new(began, ProbeMetrics::register(&start.daemon.probes)?, &*store));
    let leftovers = Leftovers::new(connections.volnetd.clone());
    tokio::spawn(prober::run(prober.clone(), connections.cri.clone(), leftovers, start.reporter.clone(), store));
    Ok(prober)
}

/// Pods of the API server are asked for once it has said what it has of our Node, as upstream does it: a pod is admitted
/// by the Node's labels and taints.
async fn watch_pods(client: ApiClient, source: PodSource, node: watch::Receiver<api_node::NodeSeen>) {
    if api_node::known_or_late(node, client.reachability()).await {
        let changes = api_pods::changes(&client, &source.node);
        source.run(changes).await;
    }
}

/// How strictly static pods are checked.
fn validation_gates(config: &NodeConfig) -> Gates {
    Gates { strict_ip_cidr: config.feature_gates().enabled(Feature::StrictIPCIDRValidation) }
}

fn sources_config(config: &NodeConfig, running: Vec<FoundPod>) -> SourcesConfig {
    let kubelet = &config.kubelet;
    let headers = kubelet.static_pod_url_header.iter();
    let headers = headers.flat_map(|(name, values)| values.iter().map(|value| (name.clone(), value.clone()))).collect();
    SourcesConfig {
        node: ForNode { name: config.node_name.clone(), gates: validation_gates(config) },
        file: config.static_pod_path().map(|path| FileConfig {
            path: std::path::absolute(path).unwrap_or_else(|_| path.to_owned()),
            check_every: config.file_check_frequency(),
        }),
        http: (!kubelet.static_pod_url.is_empty()).then(|| HttpConfig {
            url: kubelet.static_pod_url.clone(),
            headers,
            check_every: config.http_check_frequency(),
        }),
        api: !config.is_standalone(),
        running,
    }
}

fn dropped_sink(reporter: Arc<Reporter>) -> crate::sources::DroppedSink {
    Arc::new(move |dropped: DroppedPod| match PodIdentity::of(&dropped.pod) {
        Ok(pod) => reporter.emit(PodEvent::pod(&pod, EventType::Warning, dropped.reason, dropped.message)),
        Err(error) => tracing::warn!(error = &error as &dyn std::error::Error, "pod dropped: {}", dropped.message),
    })
}
