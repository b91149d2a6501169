//! Puts the parts together, in the order in which one needs the other.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bulkhead_config::NodeConfig;
use bulkhead_cri::{ConnectFuture, Connector, CriClient, CriDeadlines, v1};
use bulkhead_daemon::{Daemon, RunError};
use bulkhead_ipc::MAX_MESSAGE_BYTES;
use bulkhead_ipc::broker::BrokerClient;
use bulkhead_ipc::syncd as api;
use bulkhead_ipc::syncd::events_server::EventsServer;
use bulkhead_ipc::syncd::node_server::NodeServer;
use bulkhead_ipc::syncd::pods_server::PodsServer;
use bulkhead_ipc::volnetd::RuntimeSocket;
use bulkhead_ipc::volnetd::open_request::Kind;
use bulkhead_types::{PodUid, Process, Quantity};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::api::objects::NoObjects;
use crate::cgroups::{Capacity, Reserved, allocatable_cpu, allocatable_memory, reserved};
use crate::cri_metrics::CriMetrics;
use crate::engine::events::Reporter;
use crate::engine::last_words::LastWords;
use crate::engine::node::{NodeContext, NodeParts};
use crate::engine::runtime_health::{self, RuntimeHealth};
use crate::engine::{Engine, EngineParts, RuntimeSide, image_fs, upkeep};
use crate::images::ImageMetrics;
use crate::manifests::BrokerManifests;
use crate::metrics::Metrics;
use crate::ownership::{Owner, Ownership, Territory};
use crate::pleg::{EventSource, Pleg, PlegOptions, PodCache};
use crate::private_state::PrivateState;
use crate::runtime::events::{EventSink as _, EventType, PodEvent};
use crate::runtime::labels;
use crate::runtime::node_facts::{HostFacts, NodeFacts, SharedFacts, SwapBehavior};
use crate::runtime::podspec::PodIdentity;
use crate::service::{EventRing, PodHub, api::SyncdApi, rules};
use crate::sources::uids::UidStore as _;
use crate::sources::{DroppedPod, FileConfig, HttpConfig, RunningPod, Sources, SourcesConfig};
use crate::start_limit::{HOLD, StartLimiter, slots};
use crate::volnetd::{Authority, Volnetd};

/// Pause between questions to a runtime that does not answer yet.
const RUNTIME_RETRY: Duration = Duration::from_millis(100);
/// So often it is asked whose a running pod is, before that counts as unclear.
const OWNER_TRIES: usize = 20;
/// So often the runtime is asked for its cgroup driver.
const DRIVER_TRIES: usize = 3;

/// Filters of this process, applied before any thread exists.
///
/// # Errors
/// The kernel takes no filter.
pub fn confine(_: &NodeConfig) -> std::io::Result<Vec<String>> {
    use bulkhead_sys::seccomp::{Deny, Family, restrict};
    const DENIED: &[Deny] = &[
        Deny::OpenByHandle,
        Deny::Exec,
        Deny::IoUring,
        Deny::Trace,
        Deny::Keys,
        Deny::BpfPerf,
        Deny::Machine,
        Deny::Mount,
        Deny::Namespaces,
        Deny::Userfault,
        Deny::RawIo,
    ];
    restrict(DENIED, Some(&[Family::Unix, Family::Inet, Family::Inet6])).map_err(std::io::Error::other)?;
    Ok(Vec::new())
}

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
    let view: Arc<Mutex<View>> = Arc::default();

    // Callers are answered from the first moment on: that little is known yet is an answer.
    let node_view = view.clone();
    let node_name = config.node_name.to_string();
    let service = SyncdApi {
        epoch: daemon.epoch,
        pods: hub.clone(),
        events: ring,
        node: Arc::new(Mutex::new(move || {
            let mut state = node_view.lock().map(|view| view.state()).unwrap_or_default();
            state.node_name.clone_from(&node_name);
            state
        })),
        stop: daemon.stop.clone(),
    };
    let services = daemon
        .services()?
        .add(PodsServer::new(service.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES))
        .add(EventsServer::new(service.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES))
        .add(NodeServer::new(service).max_decoding_message_size(MAX_MESSAGE_BYTES));
    let serving = daemon.serve(services, rules::RULES);
    let working = work(&daemon, config, started, reporter, view);
    tokio::pin!(serving, working);
    tokio::select! {
        served = &mut serving => served,
        worked = &mut working => {
            worked?;
            serving.await
        }
    }
}

async fn work(
    daemon: &Arc<Daemon>,
    config: Arc<NodeConfig>,
    started: Instant,
    reporter: Arc<Reporter>,
    view: Arc<Mutex<View>>,
) -> Result<(), RunError> {
    let state = tokio::select! {
        state = daemon.state_dir() => PrivateState::new(state?),
        () = daemon.stop.cancelled() => return Ok(()),
    };
    let link = daemon.link(Process::Volnetd);
    let authority = Arc::new(Authority::new(daemon.epoch));
    let volnetd = Volnetd::new(link.clone(), authority.clone());
    let cri = runtime_client(&daemon.broker, &config).observed_by(Arc::new(CriMetrics::register(&daemon.registry)?));

    let (health_sender, health) = watch::channel(RuntimeHealth::default());
    tokio::spawn(runtime_health::follow(cri.clone(), health_sender));
    let (image_fs_sender, image_fs) = watch::channel(String::new());
    tokio::spawn(image_fs::follow(cri.clone(), health.clone(), image_fs_sender));
    let (pleg, pleg_task) = Pleg::new(cri.clone(), PlegOptions::default(), &daemon.registry)?;
    tokio::spawn(pleg_task.run());
    let pleg_events = pleg.subscribe();
    let metrics = Metrics::register(&daemon.registry, config.node_name.as_str())?;
    daemon.set_ready().await;
    if let Ok(mut view) = view.lock() {
        let (pleg, health) = (pleg.clone(), health.clone());
        view.parts = Some(ViewParts { pleg, health, image_fs, authority, node: None, sources: None });
    }

    let ownership =
        Arc::new(Ownership::new(Territory::of(&config), cri.clone(), volnetd.clone(), recorded_pods(&state)));

    // Nothing is decided before the runtime has said what it has.
    let known = async {
        let version = runtime_version(&cri).await;
        let driver = cgroup_driver(&cri).await;
        pleg.first_relist().await;
        let mut health = health.clone();
        // Which features the runtime has is part of the requests to it.
        let _ = health.wait_for(|health| health.known).await;
        let running = running_static_pods(&cri).await;
        (version, driver, not_foreign(running, &ownership, &pleg.cache(), started).await)
    };
    let (version, cgroup_driver, running) = tokio::select! {
        known = known => known,
        () = daemon.stop.cancelled() => return Ok(()),
    };
    if let Ok(mut view) = view.lock() {
        view.runtime = version.clone();
    }

    let capacity = Capacity::read();
    let reserved = reserved(&config.kubelet.kube_reserved, &config.kubelet.system_reserved);
    let allocatable = allocatable_memory(&capacity, &reserved, &config.kubelet.eviction_hard);
    let facts = SharedFacts::new(node_facts(&config, &capacity, &reserved, allocatable, &version, &health.borrow()));
    let limiter = StartLimiter::new(slots(capacity.cpus), HOLD);
    let runtime = RuntimeSide::new(
        cri.clone(),
        volnetd.clone(),
        &config,
        state.clone(),
        limiter,
        reporter.clone(),
        ImageMetrics::register(&daemon.registry)?,
    );
    let (cgroups_sender, cgroups) = watch::channel(None);
    let node = Arc::new(NodeContext::new(NodeParts {
        config: config.clone(),
        facts,
        capacity,
        reserved,
        allocatable_memory: allocatable,
        volnetd,
        objects: Arc::new(NoObjects::new(config.node_name.as_str(), BTreeMap::new())),
        pleg: pleg.clone(),
        health,
        reporter: reporter.clone(),
        metrics,
        runtime,
        last_words: LastWords::new(daemon.broker.clone()),
        ownership,
        cgroup_driver,
        started,
        cgroups,
    }));
    tokio::spawn(upkeep::keep_node_cgroups(node.clone(), cgroups_sender));

    let (sources, updates) = Sources::start(
        sources_config(&config, running),
        BrokerManifests::new(daemon.broker.clone(), link),
        Box::new(state),
        dropped_sink(reporter),
    );
    let sources = Arc::new(sources);
    if let Ok(mut view) = view.lock()
        && let Some(parts) = &mut view.parts
    {
        parts.node = Some(node.clone());
        parts.sources = Some(sources.clone());
    }
    let engine = Engine::new(EngineParts { node, sources, updates, pleg_events, stop: daemon.stop.clone() });
    engine.run().await;
    if daemon.stop.is_cancelled() {
        Ok(())
    } else {
        Err("the main loop has ended: a pod source or PLEG is gone".into())
    }
}

/// The runtime, by connections that the broker opens: its socket is root's.
fn runtime_client(broker: &BrokerClient, config: &NodeConfig) -> CriClient {
    let connector = |image_service: bool| -> Arc<dyn Connector> {
        let broker = broker.clone();
        Arc::new(move || -> ConnectFuture {
            let broker = broker.clone();
            Box::pin(async move {
                let socket = broker.open(Kind::RuntimeSocket(RuntimeSocket { image_service })).await;
                let stream = std::os::unix::net::UnixStream::from(socket.map_err(std::io::Error::other)?);
                stream.set_nonblocking(true)?;
                UnixStream::from_std(stream)
            })
        })
    };
    let deadlines = CriDeadlines { request: config.runtime_request_timeout() };
    if config.image_socket == config.runtime_socket {
        CriClient::new(connector(false), deadlines)
    } else {
        CriClient::with_image_service(connector(false), connector(true), deadlines)
    }
}

/// Who the runtime is; asked until it answers.
async fn runtime_version(cri: &CriClient) -> v1::VersionResponse {
    let mut told = false;
    loop {
        match cri.version(v1::VersionRequest { version: String::new() }).await {
            Ok(version) => {
                tracing::info!(
                    name = version.runtime_name,
                    version = version.runtime_version,
                    api = version.runtime_api_version,
                    "container runtime answers"
                );
                return version;
            }
            Err(error) => {
                if !told {
                    tracing::warn!(%error, "container runtime does not answer yet, waiting for it");
                    told = true;
                }
            }
        }
        tokio::time::sleep(RUNTIME_RETRY).await;
    }
}

/// The cgroup driver that the runtime is set up for. Empty where it does not tell (containerd before 2.0): then the
/// configured one counts (upstream `cmd/kubelet/app/server.go`, getCgroupDriverFromCRI).
async fn cgroup_driver(cri: &CriClient) -> String {
    for _ in 0..DRIVER_TRIES {
        match cri.runtime_config(v1::RuntimeConfigRequest {}).await {
            Ok(reply) => return driver_name(&reply).to_owned(),
            Err(error) if error.is_unimplemented() => break,
            Err(error) => tracing::debug!(%error, "the runtime's cgroup driver could not be asked"),
        }
        tokio::time::sleep(RUNTIME_RETRY).await;
    }
    tracing::debug!("the runtime does not tell its cgroup driver, the configured one is used");
    String::new()
}

fn driver_name(reply: &v1::RuntimeConfigResponse) -> &'static str {
    // Systemd is the number 0: an absent block must not be taken for it.
    match reply.linux.as_ref().map(|linux| v1::CgroupDriver::try_from(linux.cgroup_driver)) {
        Some(Ok(v1::CgroupDriver::Systemd)) => "systemd",
        Some(Ok(v1::CgroupDriver::Cgroupfs)) => "cgroupfs",
        Some(Err(_)) | None => "",
    }
}

/// Static pods that run now, for the adoption of their uids. Asked once, until answered.
async fn running_static_pods(cri: &CriClient) -> Vec<RunningPod> {
    loop {
        let lists = tokio::join!(
            cri.list_pod_sandbox(v1::ListPodSandboxRequest::default()),
            cri.list_containers(v1::ListContainersRequest::default())
        );
        match lists {
            (Ok(sandboxes), Ok(containers)) => return adoptable(&sandboxes.items, &containers.containers),
            (Err(error), _) | (_, Err(error)) => tracing::debug!(%error, "running pods could not be listed yet"),
        }
        tokio::time::sleep(RUNTIME_RETRY).await;
    }
}

/// Static pods of this instance's earlier lives, by its own record.
fn recorded_pods(state: &PrivateState) -> HashSet<PodUid> {
    // An unreadable record is reported by the sources, which rely on it, too.
    let book = state.load().unwrap_or_default();
    book.choices.values().filter_map(|choice| PodUid::parse(&choice.uid).ok()).collect()
}

/// Without the pods of another instance. One of which nothing is known may be taken over: it has our node's name and
/// runs what our manifest says, or it is no candidate.
async fn not_foreign(
    running: Vec<RunningPod>,
    ownership: &Ownership,
    cache: &PodCache,
    started: Instant,
) -> Vec<RunningPod> {
    let mut rest = Vec::new();
    for pod in running {
        let Ok(uid) = PodUid::parse(&pod.uid) else { continue };
        let mut owner = Owner::Unclear;
        for _ in 0..OWNER_TRIES {
            if let Ok(seen) = cache.get_newer_than(&uid, started).await {
                owner = ownership.of(&seen).await;
                if ownership.decided(&seen).is_some() {
                    break;
                }
            }
            tokio::time::sleep(RUNTIME_RETRY).await;
        }
        if owner != Owner::Foreign {
            rest.push(pod);
        }
    }
    rest
}

/// Ready sandboxes of file and HTTP pods with the newest instance of each of their containers.
fn adoptable(sandboxes: &[v1::PodSandbox], containers: &[v1::Container]) -> Vec<RunningPod> {
    let ready = |s: &&v1::PodSandbox| s.state == i32::from(v1::PodSandboxState::SandboxReady);
    let pod = |sandbox: &v1::PodSandbox| {
        let metadata = sandbox.metadata.clone()?;
        let source = sandbox.annotations.get("kubernetes.io/config.source")?.clone();
        let mut newest: HashMap<&str, &v1::Container> = HashMap::new();
        for container in containers.iter().filter(|c| c.pod_sandbox_id == sandbox.id) {
            let Some(name) = container.labels.get(labels::CONTAINER_NAME) else { continue };
            let slot = newest.entry(name).or_insert(container);
            if slot.created_at < container.created_at {
                *slot = container;
            }
        }
        let mut containers: Vec<(String, u32)> = newest
            .into_iter()
            .filter_map(|(name, container)| {
                let hash = container.annotations.get(labels::CONTAINER_HASH)?;
                Some((name.to_owned(), u32::from_str_radix(hash, 16).ok()?))
            })
            .collect();
        containers.sort();
        Some(RunningPod { uid: metadata.uid, namespace: metadata.namespace, name: metadata.name, source, containers })
    };
    sandboxes.iter().filter(ready).filter_map(pod).collect()
}

fn node_facts(
    config: &NodeConfig,
    capacity: &Capacity,
    reserved: &Reserved,
    allocatable_memory: u64,
    version: &v1::VersionResponse,
    health: &RuntimeHealth,
) -> NodeFacts {
    let kubelet = &config.kubelet;
    let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    let swap_behavior = match kubelet.memory_swap.swap_behavior.as_str() {
        "LimitedSwap" => SwapBehavior::LimitedSwap,
        _ => SwapBehavior::NoSwap,
    };
    let cpu = allocatable_cpu(capacity, reserved);
    let quota_period = kubelet.cpu_cfs_quota_period();
    NodeFacts {
        runtime_name: version.runtime_name.clone(),
        pod_logs_dir: config.paths.pod_logs_dir.clone(),
        seccomp_root: config.paths.seccomp_root(),
        seccomp_default: config.seccomp_default(),
        cpu_cfs_quota: kubelet.cpu_cfs_quota(),
        cpu_cfs_quota_period_us: quota_period.as_nanos() / 1000,
        pod_pids_limit: config.pod_pids_limit().map(signed),
        swap_behavior,
        single_process_oom_kill: kubelet.single_process_oom_kill,
        resolv_conf: config.resolv_conf().map(PathBuf::from).unwrap_or_default(),
        cluster_dns: config.cluster_dns.iter().map(ToString::to_string).collect(),
        cluster_domain: kubelet.cluster_domain.clone(),
        allocatable: BTreeMap::from([
            ("cpu".to_owned(), cpu),
            ("memory".to_owned(), Quantity::from_i64(signed(allocatable_memory))),
        ]),
        host_ips: host_ips(&config.node_ips),
        recursive_read_only_mounts: health.recursive_read_only_mounts,
        user_namespaces: health.user_namespaces,
        ..NodeFacts::new(HostFacts::read(std::path::Path::new("/")))
    }
}

/// Addresses of the node, primary first: those of `--node-ip`, else the ones that traffic by the default route leaves
/// with (upstream takes the first global address of that route's interface).
fn host_ips(configured: &[IpAddr]) -> Vec<IpAddr> {
    let given: Vec<IpAddr> = configured.iter().copied().filter(|ip| !ip.is_unspecified()).collect();
    if !given.is_empty() {
        return given;
    }
    // Connecting a datagram socket sends nothing; it only looks the route up. The targets are documentation addresses.
    let leaves_with = |own: &str, target: &str| {
        let socket = std::net::UdpSocket::bind((own, 0)).ok()?;
        socket.connect((target, 9)).ok()?;
        Some(socket.local_addr().ok()?.ip()).filter(|ip| !ip.is_unspecified() && !ip.is_loopback())
    };
    let v4 = leaves_with("0.0.0.0", "192.0.2.1");
    let v6 = leaves_with("::", "2001:db8::1");
    let v6_first = configured.first().is_some_and(IpAddr::is_ipv6);
    let order = if v6_first { [v6, v4] } else { [v4, v6] };
    // One family unless the operator named one of each.
    let count = configured.len().max(1);
    order.into_iter().flatten().take(count).collect()
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
        api: false,
        running,
    }
}

fn dropped_sink(reporter: Arc<Reporter>) -> crate::sources::DroppedSink {
    Arc::new(move |dropped: DroppedPod| match PodIdentity::of(&dropped.pod) {
        Ok(pod) => reporter.emit(PodEvent::pod(&pod, EventType::Warning, dropped.reason, dropped.message)),
        Err(error) => tracing::warn!(error = &error as &dyn std::error::Error, "pod dropped: {}", dropped.message),
    })
}

/// What `Node.Get` is answered from.
#[derive(Debug, Default)]
struct View {
    runtime: v1::VersionResponse,
    parts: Option<ViewParts>,
}

#[derive(Debug)]
struct ViewParts {
    pleg: Pleg,
    health: watch::Receiver<RuntimeHealth>,
    image_fs: watch::Receiver<String>,
    authority: Arc<Authority>,
    node: Option<Arc<NodeContext>>,
    sources: Option<Arc<Sources>>,
}

impl View {
    fn state(&self) -> api::NodeState {
        let Some(parts) = &self.parts else {
            let problems = vec!["waits for kubelet-volnetd and for its own state folder".to_owned()];
            return api::NodeState { problems, ..api::NodeState::default() };
        };
        let (health, stats) = (parts.health.borrow().clone(), parts.pleg.stats());
        let source = |state: crate::sources::SourceState| api::SourceState {
            name: state.name.to_owned(),
            seen: state.seen,
            pods: u32::try_from(state.pods).unwrap_or(u32::MAX),
            errors: state.errors,
        };
        let sources: Vec<api::SourceState> =
            parts.sources.as_ref().map(|s| s.states().into_iter().map(source).collect()).unwrap_or_default();
        let mut problems = Vec::new();
        if !health.ready {
            problems.push(format!("container runtime is not ready: {}", health.reason));
        } else if !health.network_ready {
            problems.push(format!("container runtime network not ready: {}", health.network_reason));
        }
        if let Err(error) = parts.pleg.health() {
            problems.push(format!("PLEG is not healthy: {error}"));
        }
        if parts.node.as_ref().is_some_and(|node| node.cgroups.borrow().is_none()) {
            problems.push("waits for kubelet-volnetd".to_owned());
        }
        api::NodeState {
            node_name: String::new(),
            runtime_name: self.runtime.runtime_name.clone(),
            runtime_version: self.runtime.runtime_version.clone(),
            runtime_api_version: self.runtime.runtime_api_version.clone(),
            runtime_ready: health.ready,
            runtime_reason: health.reason,
            network_ready: health.network_ready,
            network_reason: health.network_reason,
            pleg: match stats.source {
                Some(EventSource::Cri) => "cri-events",
                Some(EventSource::Containerd) => "containerd-events",
                None => "relist",
            }
            .to_owned(),
            relist_age_seconds: parts.pleg.list_age().map_or(0.0, |age| age.as_secs_f64()),
            events_received: stats.runtime_events,
            events_missed: stats.events_missed,
            sources_ready: parts.authority.sources_ready(),
            sources,
            generation: parts.authority.generation(),
            sync_loop_age_seconds: parts.node.as_ref().map_or(0.0, |node| node.loop_age().as_secs_f64()),
            problems,
            image_fs_mountpoint: parts.image_fs.borrow().clone(),
            ..api::NodeState::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bulkhead_types::PodUid;

    #[test]
    fn cgroup_drivers() {
        let of = |driver| {
            let linux = Some(v1::LinuxRuntimeConfiguration { cgroup_driver: driver });
            driver_name(&v1::RuntimeConfigResponse { linux })
        };
        assert_eq!([of(0), of(1), of(7)], ["systemd", "cgroupfs", ""]);
        assert_eq!(driver_name(&v1::RuntimeConfigResponse { linux: None }), "");
    }

    #[test]
    fn the_newest_instance_tells_the_hash() {
        let sandbox = |state: v1::PodSandboxState| v1::PodSandbox {
            id: "s".into(),
            metadata: Some(v1::PodSandboxMetadata {
                name: "p-node".into(),
                uid: "u".into(),
                namespace: "default".into(),
                attempt: 0,
            }),
            state: state.into(),
            annotations: [("kubernetes.io/config.source".to_owned(), "file".to_owned())].into(),
            ..Default::default()
        };
        let container = |created_at, hash: &str| v1::Container {
            pod_sandbox_id: "s".into(),
            created_at,
            labels: [(labels::CONTAINER_NAME.to_owned(), "a".to_owned())].into(),
            annotations: [(labels::CONTAINER_HASH.to_owned(), hash.to_owned())].into(),
            ..Default::default()
        };
        let containers = [container(1, "ab"), container(2, "cd")];
        let found = adoptable(&[sandbox(v1::PodSandboxState::SandboxReady)], &containers);
        assert_eq!(found[0].containers, [("a".to_owned(), 0xcd)]);
        assert!(PodUid::parse(&found[0].uid).is_ok());
        assert!(adoptable(&[sandbox(v1::PodSandboxState::SandboxNotready)], &containers).is_empty());
    }
}
