//! Puts the parts together, in the order in which one needs the other.

mod adoption;
mod facts;
mod runtime;

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bulkhead_apiclient::ApiClient;
use bulkhead_config::NodeConfig;
use bulkhead_daemon::addresses::Prober as AddressProber;
use bulkhead_daemon::{Daemon, RunError};
use bulkhead_ipc::MAX_MESSAGE_BYTES;
use bulkhead_ipc::syncd::events_server::EventsServer;
use bulkhead_ipc::syncd::node_server::NodeServer;
use bulkhead_ipc::syncd::pods_server::PodsServer;
use bulkhead_ipc::syncd::stats_server::StatsServer;
use bulkhead_ipc::syncd::streams_server::StreamsServer;
use bulkhead_ipc::syncd::views_server::ViewsServer;
use bulkhead_types::Process;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::allocation::{self, Allocations};
use crate::api::live::{ApiObjects, initial_node};
use crate::api::pods::{ApiPods, PodSource};
use crate::api::{node as api_node, pods as api_pods};
use crate::cgroups::{Capacity, reserved};
use crate::cri_metrics::{CriMetrics, SandboxMetrics};
use crate::events::{EventSink as _, EventType, PodEvent};
use crate::hooks;
use crate::hub::{EventRing, PodHub};
use crate::images::ImageMetrics;
use crate::images::credentials::{self, Keyring};
use crate::manifests::BrokerManifests;
use crate::metrics::Metrics;
use crate::node_facts::{HostFacts, SharedFacts};
use crate::node_resources::{self, texts};
use crate::objects::{NoObjects, Objects};
use crate::ownership::{OwnedCgroups, Ownership};
use crate::pleg::{Pleg, PlegOptions};
use crate::pod::spec::PodIdentity;
use crate::private_state::PrivateState;
use crate::prober::leftover::Leftovers;
use crate::prober::metrics::ProbeMetrics;
use crate::prober::table::Started;
use crate::prober::{self, Prober};
use crate::runtime::dns;
use crate::runtime::request_check;
use crate::service::api::SyncdApi;
use crate::service::node_view::{ApiParts, FirstParts, NodeView};
use crate::service::stats::StatsApi;
use crate::service::streams::{StreamParts, StreamsApi};
use crate::service::{rules, silence};
use crate::sources::{DroppedPod, FileConfig, HttpConfig, RunningPod, Sources, SourcesConfig};
use crate::start_latency::StartTimes;
use crate::start_limit::{HOLD, StartLimiter, slots};
use crate::sync_loop::events::Reporter;
use crate::sync_loop::node::{NodeContext, NodeParts};
use crate::sync_loop::runtime_health::{self, RuntimeHealth};
use crate::sync_loop::termination_messages::TerminationMessages;
use crate::sync_loop::{RuntimeMetrics, RuntimeSide, SyncLoop, SyncLoopParts, image_fs, image_list, upkeep};
use crate::volnetd::{Authority, Volnetd};
use crate::volumes::metrics::VolumeCounts;

/// Neither the sync loop nor PLEG waits for anybody in its loop: a turn takes milliseconds, also with hundreds of pods.
const LOOP_BOUND: Duration = Duration::from_secs(20);

/// Default of `nodeStatusMaxImages`.
const MAX_IMAGES: i32 = 50;

/// After SIGTERM, for sandboxes and containers that are being made; within the 5 s that a daemon has to stop.
const FINISH: Duration = Duration::from_secs(4);

/// A start does not wait longer for the resolver; what it says later is taken then.
const RESOLVE_AT_START: Duration = Duration::from_millis(250);

/// The daemon's work, from the first socket to the last.
///
/// # Errors
/// The socket cannot be served, the state folder is held by another instance, or a metric's name is taken.
pub async fn run(daemon: Arc<Daemon>) -> Result<(), RunError> {
    let started = Instant::now();
    let config = daemon.config.clone();
    let ring = Arc::new(EventRing::new(daemon.epoch.get()));
    let hub = Arc::new(PodHub::default());
    let reporter = Arc::new(Reporter { ring: ring.clone(), hub: hub.clone() });
    let view = NodeView::new(config.clone(), hub.clone());

    // Callers are answered from the first moment on: that little is known yet is an answer.
    let service =
        SyncdApi { epoch: daemon.epoch, pods: hub, events: ring, node: view.clone(), stop: daemon.stop.clone() };
    let runtime_apis = RuntimeApis::default();
    let services = daemon
        .services()?
        .add(PodsServer::new(service.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES))
        .add(ViewsServer::new(service.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES))
        .add(EventsServer::new(service.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES))
        .add(NodeServer::new(service).max_decoding_message_size(MAX_MESSAGE_BYTES))
        .add(StatsServer::new(runtime_apis.stats.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES))
        .add(StreamsServer::new(runtime_apis.streams.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES));
    let serving = daemon.serve(services, rules::RULES);
    let working = work(&daemon, config, started, reporter, view, runtime_apis);
    tokio::pin!(serving, working);
    tokio::select! {
        served = &mut serving => {
            // Told to stop: what the runtime is in the middle of is finished first.
            served?;
            working.await
        }
        worked = &mut working => {
            worked?;
            serving.await
        }
    }
}

/// Services that put others' questions to the runtime, once there is a connection to it.
#[derive(Debug, Default)]
struct RuntimeApis {
    streams: StreamsApi,
    stats: StatsApi,
}

async fn work(
    daemon: &Arc<Daemon>,
    config: Arc<NodeConfig>,
    started: Instant,
    reporter: Arc<Reporter>,
    view: Arc<NodeView>,
    runtime_apis: RuntimeApis,
) -> Result<(), RunError> {
    let state = tokio::select! {
        state = daemon.state_dir() => PrivateState::new(state?),
        () = daemon.stop.cancelled() => return Ok(()),
    };
    let link = daemon.link(Process::Volnetd);
    let authority = Arc::new(Authority::new(daemon.epoch));
    let volnetd = Volnetd::new(link.clone(), daemon.broker.clone(), authority.clone());
    let cri =
        runtime::runtime_client(&daemon.broker, &config).observed_by(Arc::new(CriMetrics::register(&daemon.registry)?));
    runtime_apis.stats.set(cri.clone());

    let (health_sender, health) = watch::channel(RuntimeHealth::default());
    let (answered_sender, answered) = watch::channel(None);
    tokio::spawn(runtime_health::follow(cri.clone(), health_sender, answered_sender));
    let (image_fs_sender, image_fs) = watch::channel(String::new());
    tokio::spawn(image_fs::follow(cri.clone(), health.clone(), image_fs_sender));
    let (images_sender, images) = watch::channel(Arc::default());
    let max_images = config.kubelet.node_status_max_images.unwrap_or(MAX_IMAGES);
    tokio::spawn(image_list::follow(cri.clone(), health.clone(), reporter.ring.clone(), max_images, images_sender));
    let (pleg, pleg_task) = Pleg::new(cri.clone(), PlegOptions::default(), &daemon.registry)?;
    tokio::spawn(pleg_task.with_heartbeat(daemon.progress.register("pleg", LOOP_BOUND)).run());
    let pleg_events = pleg.subscribe();
    let metrics = Metrics::register(&daemon.registry, config.feature_gates().enabled("MemoryQoS"))?;
    daemon.set_ready().await;

    let capacity = Capacity::read();
    let reserved = reserved(&config.kubelet.kube_reserved, &config.kubelet.system_reserved);
    let resources = node_resources::of_node(&config, &capacity, &reserved);
    let host = HostFacts::read(std::path::Path::new("/"));
    view.set_first(FirstParts {
        cri: cri.clone(),
        pleg: pleg.clone(),
        health: health.clone(),
        answered,
        image_fs,
        images,
        authority,
        resources: resources.clone(),
        swap_capacity: host.swap_capacity,
    });

    // The API server need not be there: static pods do not wait for it.
    let initial = initial_node(&config, &texts(&resources.capacity), &texts(&resources.allocatable));
    let server = if config.is_standalone() {
        None
    } else {
        let client = ApiClient::start("kubelet-syncd", config.clone(), daemon.broker.clone(), link.clone());
        let client = client.with_metrics(&daemon.registry)?;
        let objects = ApiObjects::start(&client, &config, initial.clone());
        Some((client, objects))
    };
    let objects: Arc<dyn Objects> = match &server {
        Some((_, objects)) => objects.clone(),
        None => Arc::new(NoObjects::with_node(initial)),
    };
    let (pods_seen_sender, pods_seen) = watch::channel(ApiPods::default());
    let (_, nothing) = watch::channel(api_node::NodeSeen::default());
    let node_seen = server.as_ref().map_or(nothing, |(_, objects)| objects.node_seen());
    if let Some((client, _)) = &server {
        let reachability = client.reachability();
        view.set_api(ApiParts { node: node_seen.clone(), pods: pods_seen, reachability });
    }

    let ownership = Arc::new(Ownership::new(
        OwnedCgroups::of(&config),
        cri.clone(),
        volnetd.clone(),
        adoption::recorded_pods(&state),
    ));

    // Nothing is decided before the runtime has said what it has.
    let known = async {
        let version = runtime::runtime_version(&cri).await;
        let driver = runtime::cgroup_driver(&cri, &daemon.registry).await;
        pleg.first_relist().await;
        let mut health = health.clone();
        // Which features the runtime has is part of the requests to it.
        let _ = health.wait_for(|health| health.known).await;
        let running = adoption::running_static_pods(&cri).await;
        let running = adoption::not_foreign(running, &ownership, &pleg.cache(), started).await;
        (version, driver, running)
    };
    let mut detection = AddressProber::default();
    let found = detection.host_ips(&config.node_ips, config.node_name.as_str(), RESOLVE_AT_START);
    let ((version, cgroup_driver, running), host_ips) = tokio::select! {
        known = async { tokio::join!(known, found) } => known,
        () = daemon.stop.cancelled() => return Ok(()),
    };
    view.set_runtime(version.clone());

    let facts = SharedFacts::new(facts::node_facts(&config, host, &resources, &version, &health.borrow(), host_ips));
    tokio::spawn(runtime_health::keep_handlers(health.clone(), facts.clone()));
    tokio::spawn(api_node::keep_addresses(node_seen.clone(), config.clone(), detection, facts.clone()));
    tokio::spawn(api_node::keep_pod_cidrs(config.kubelet.pod_cidr.clone(), node_seen.clone(), cri.clone()));
    let starts = StartTimes::register(&daemon.registry)?;
    hooks::metrics::register(&daemon.registry)?;
    credentials::metrics::register(&daemon.registry)?;
    daemon.registry.register(Box::new(VolumeCounts::new(reporter.hub.clone())?))?;
    let limiter = StartLimiter::new(slots(capacity.cpus), HOLD);
    let keyring = Arc::new(Keyring::new(objects.clone(), daemon.broker.clone(), config.credential_providers.as_ref()));
    let runtime = RuntimeSide::new(
        cri.clone(),
        volnetd.clone(),
        &config,
        state.clone(),
        limiter,
        reporter.clone(),
        keyring,
        RuntimeMetrics {
            images: ImageMetrics::register(&daemon.registry)?,
            sandboxes: SandboxMetrics::register(&daemon.registry)?,
            starts: starts.clone(),
        },
    );
    let refusals = request_check::counter()?;
    daemon.registry.register(Box::new(refusals.clone()))?;
    let runtime = runtime.with_refusals(refusals);
    let saved = allocation::export::load(state.allocations(), &daemon.broker).await;
    let gates = allocation::Gates::of(&config.feature_gates());
    let allocations = Arc::new(Allocations::new(saved, Arc::new(state.clone()), gates));
    tokio::spawn(allocation::export::keep(allocations.clone(), daemon.broker.clone()));
    let store = Arc::new(state.clone());
    let began =
        Started { instant: started, time: SystemTime::now().checked_sub(started.elapsed()).unwrap_or(UNIX_EPOCH) };
    let prober = Arc::new(Prober::new(began, ProbeMetrics::register(&daemon.probes)?, &*store));
    let leftovers = Leftovers::new(volnetd.clone());
    tokio::spawn(prober::run(prober.clone(), cri.clone(), leftovers, reporter.clone(), store));
    let (cgroups_sender, cgroups) = watch::channel(None);
    let node = Arc::new(NodeContext::new(NodeParts {
        config: config.clone(),
        facts,
        capacity,
        reserved,
        allocatable_memory: resources.allocatable_memory(),
        volnetd,
        objects,
        pleg: pleg.clone(),
        health,
        reporter: reporter.clone(),
        metrics,
        runtime,
        prober,
        termination_messages: TerminationMessages::new(daemon.broker.clone()),
        ownership,
        allocations,
        cgroup_driver,
        started,
        cgroups,
    }));
    tokio::spawn(upkeep::keep_node_cgroups(node.clone(), cgroups_sender));

    let (sources, updates) = Sources::start(
        sources_config(&config, running),
        BrokerManifests::new(daemon.broker.clone(), link),
        Box::new(state),
        dropped_sink(reporter.clone()),
    );
    let sources = Arc::new(sources);
    view.set_sync_loop(node.clone(), sources.clone());
    tokio::spawn(silence::tell(view.clone(), reporter.clone(), silence::register(&daemon.registry)?));
    let calls = cri.clone();
    runtime_apis.streams.set(StreamParts {
        cri,
        cache: pleg.cache(),
        sources: sources.clone(),
        hub: reporter.hub.clone(),
        checkpoints_dir: config.paths.checkpoints(),
        request_timeout: config.runtime_request_timeout(),
    });
    if let (Some((client, _)), Some(sender)) = (&server, sources.api_sender()) {
        let source = PodSource {
            node: config.node_name.clone(),
            sender,
            hub: reporter.hub.clone(),
            statics: sources.statics(),
            seen: pods_seen_sender,
            starts,
        };
        tokio::spawn(watch_pods(client.clone(), source, node_seen));
    }
    if let Some(event) = dns::check_host_file(&node.facts()) {
        reporter.emit_node(event);
    }
    // The sync loop's end cuts off what its workers are doing, so it comes after the calls that must not be cut off.
    let end = CancellationToken::new();
    let sync_loop = SyncLoop::new(SyncLoopParts { node, sources, updates, pleg_events, stop: end.clone() })
        .with_heartbeat(daemon.progress.register("sync loop", LOOP_BOUND));
    let finish = async {
        daemon.stop.cancelled().await;
        if !calls.finish(FINISH).await {
            tracing::warn!("a sandbox or container is still being made or removed, its call is cut off");
        }
        end.cancel();
        std::future::pending::<()>().await
    };
    tokio::select! {
        () = sync_loop.run() => {}
        () = finish => {}
    }
    if daemon.stop.is_cancelled() {
        Ok(())
    } else {
        Err("the main loop has ended: a pod source or PLEG is gone".into())
    }
}

/// Pods of the API server are asked for once it has said what it has of our Node, as upstream does it: a pod is admitted
/// by the Node's labels and taints.
async fn watch_pods(client: ApiClient, source: PodSource, node: watch::Receiver<api_node::NodeSeen>) {
    if api_node::known_or_late(node, client.reachability()).await {
        let changes = api_pods::changes(&client, &source.node);
        source.run(changes).await;
    }
}

fn sources_config(config: &NodeConfig, running: Vec<RunningPod>) -> SourcesConfig {
    let kubelet = &config.kubelet;
    let headers = kubelet.static_pod_url_header.iter();
    let headers = headers.flat_map(|(name, values)| values.iter().map(|value| (name.clone(), value.clone()))).collect();
    SourcesConfig {
        node: config.node_name.clone(),
        file: config
            .static_pod_path()
            .map(|path| FileConfig { path: path.to_owned(), check_every: config.file_check_frequency() }),
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
