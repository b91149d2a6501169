//! The HTTP servers over real sockets, with processes that are fakes behind the real gRPC server: what a kubeadm, a
//! scraper and a hostile client see.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bulkhead_apiclient::Reachability;
use bulkhead_config::NodeConfig;
use bulkhead_daemon::progress::Progress;
use bulkhead_ipc::broker::BrokerClient;
use bulkhead_ipc::client::Link;
use bulkhead_ipc::common::process_server::{Process as ProcessApi, ProcessServer};
use bulkhead_ipc::common::{
    HelloReply, HelloRequest, MetricsReply, MetricsRequest, PrivilegesReply, PrivilegesRequest,
};
use bulkhead_ipc::evictiond::stats_server::{Stats, StatsServer};
use bulkhead_ipc::evictiond::{
    CgroupMemory, CgroupPage, CgroupStats, CgroupsPart, CgroupsRequest, CpuStats, Machine, NodeStats, PodStats,
    SummaryPart, SummaryRequest, cgroups_part, summary_part::Part,
};
use bulkhead_ipc::helper::Asker;
use bulkhead_ipc::peers::{MethodRule, PeerUsers, Policy, Role};
use bulkhead_ipc::server::{self, Services, ServingStatus};
use bulkhead_ipc::statusd::GetStatusRequest;
use bulkhead_ipc::statusd::status_server::Status as _;
use bulkhead_ipc::syncd::node_server::{Node, NodeServer};
use bulkhead_ipc::syncd::{GetNodeRequest, NodeState, SourceState};
use bulkhead_types::Process;
use kubelet_statusd::scrape::exposition::{self, Family};
use kubelet_statusd::{HealthChecks, Limits, Listeners, Parts, Peers, Router, StatusService, Surface, serve_http};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

/// What a fake answers; changed while it runs.
#[derive(Default)]
struct Script {
    metrics: Mutex<String>,
    node_asked: AtomicUsize,
    sync_loop_age: Mutex<f64>,
    device_registration_error: Mutex<String>,
    silent: AtomicBool,
    /// What a watcher of the node is told; none: it is refused.
    node_states: Mutex<Option<mpsc::Receiver<Result<NodeState, Status>>>>,
}

#[derive(Clone)]
struct Fake(Arc<Script>);

impl Fake {
    async fn silence(&self) {
        if self.0.silent.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
    }
}

#[tonic::async_trait]
impl ProcessApi for Fake {
    async fn hello(&self, _: Request<HelloRequest>) -> Result<Response<HelloReply>, Status> {
        Ok(Response::new(HelloReply { epoch: 7, ready: true, ..Default::default() }))
    }
    async fn privileges(&self, _: Request<PrivilegesRequest>) -> Result<Response<PrivilegesReply>, Status> {
        Err(Status::unimplemented("not asked"))
    }
    async fn metrics(&self, _: Request<MetricsRequest>) -> Result<Response<MetricsReply>, Status> {
        self.silence().await;
        Ok(Response::new(MetricsReply { text: self.0.metrics.lock().clone() }))
    }
}

#[tonic::async_trait]
impl Node for Fake {
    async fn get(&self, _: Request<GetNodeRequest>) -> Result<Response<NodeState>, Status> {
        self.0.node_asked.fetch_add(1, Ordering::Relaxed);
        self.silence().await;
        let sync_loop_age_seconds = *self.0.sync_loop_age.lock();
        Ok(Response::new(NodeState {
            sync_loop_age_seconds,
            pleg: "cri-events".into(),
            device_registration_error: self.0.device_registration_error.lock().clone(),
            ..Default::default()
        }))
    }

    type WatchStream = ReceiverStream<Result<NodeState, Status>>;

    async fn watch(
        &self,
        _: Request<bulkhead_ipc::syncd::WatchNodeRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let states = self.0.node_states.lock().take();
        states
            .map(|states| Response::new(ReceiverStream::new(states)))
            .ok_or_else(|| Status::unimplemented("not needed"))
    }
}

#[tonic::async_trait]
impl Stats for Fake {
    type SummaryStream = tokio_stream::Iter<std::vec::IntoIter<Result<SummaryPart, Status>>>;
    async fn summary(&self, _: Request<SummaryRequest>) -> Result<Response<Self::SummaryStream>, Status> {
        let cpu = Some(CpuStats {
            time: "2026-01-01T00:00:00Z".into(),
            usage_nano_cores: Some(1),
            usage_core_nano_seconds: Some(2_500_000_000),
            psi: None,
        });
        let node = NodeStats { node_name: "n".into(), cpu: cpu.clone(), pods_known: true, ..Default::default() };
        let pod = PodStats { namespace: "d".into(), name: "p".into(), uid: "u".into(), cpu, ..Default::default() };
        let parts = [Part::Node(node), Part::Pod(pod)].map(|part| Ok(SummaryPart { part: Some(part) }));
        Ok(Response::new(tokio_stream::iter(parts.to_vec())))
    }
    type CgroupsStream = tokio_stream::Iter<std::vec::IntoIter<Result<CgroupsPart, Status>>>;
    async fn cgroups(&self, _: Request<CgroupsRequest>) -> Result<Response<Self::CgroupsStream>, Status> {
        let machine = Machine { cores: 3, pods_known: true, ..Default::default() };
        let memory = Some(CgroupMemory { usage: 7, ..Default::default() });
        let page = CgroupPage { cgroups: vec![CgroupStats { id: "/".into(), memory, ..Default::default() }] };
        let parts = [cgroups_part::Part::Machine(machine), cgroups_part::Part::Page(page)];
        Ok(Response::new(tokio_stream::iter(parts.map(|part| Ok(CgroupsPart { part: Some(part) })).to_vec())))
    }
}

const RULES: &[MethodRule] = &[
    MethodRule { method: "/kubelet.syncd.v1.Node/Get", peers: &[Role::Operator] },
    MethodRule { method: "/kubelet.syncd.v1.Node/Watch", peers: &[Role::Operator] },
    MethodRule { method: "/kubelet.evictiond.v1.Stats/Summary", peers: &[Role::Operator] },
    MethodRule { method: "/kubelet.evictiond.v1.Stats/Cgroups", peers: &[Role::Operator] },
];

/// A running fake; `stop` ends it as a killed process ends.
struct Running {
    script: Arc<Script>,
    stop: CancellationToken,
}

async fn fake(process: Process, dir: &Path) -> Running {
    let script = Arc::new(Script::default());
    let stop = CancellationToken::new();
    let listener = tokio::net::UnixListener::bind(dir.join(process.name())).unwrap();
    let users =
        PeerUsers { syncd: 60801, evictiond: 60802, statusd: 60803, pods_cgroup: "/none".into(), no_pods: None };
    let services = Services::new();
    services.health().set_service_status("", ServingStatus::Serving).await;
    let mut services = services.add(ProcessServer::new(Fake(script.clone())));
    services = match process {
        Process::Syncd => services.add(NodeServer::new(Fake(script.clone()))),
        Process::Evictiond => services.add(StatsServer::new(Fake(script.clone()))),
        Process::Volnetd | Process::Statusd => services,
    };
    let stopped = stop.clone();
    tokio::spawn(async move {
        let policy = Policy { users: Arc::new(users), rules: RULES };
        tokio::select! {
            ended = server::serve(listener, policy, services, std::future::pending()) => ended.unwrap(),
            () = stopped.cancelled() => {}
        }
    });
    Running { script, stop }
}

struct Lab {
    _dir: tempfile::TempDir,
    syncd: Running,
    volnetd: Running,
    evictiond: Running,
    router: Arc<Router>,
    health: Arc<HealthChecks>,
    healthz: std::net::SocketAddr,
    read_only: std::net::SocketAddr,
}

async fn lab() -> Lab {
    lab_of(None).await
}

/// `api_server`: whether it answers; `None` on a standalone node.
async fn lab_of(api_server: Option<watch::Receiver<Reachability>>) -> Lab {
    let dir = tempfile::tempdir().unwrap();
    let syncd = fake(Process::Syncd, dir.path()).await;
    let volnetd = fake(Process::Volnetd, dir.path()).await;
    let evictiond = fake(Process::Evictiond, dir.path()).await;
    let link = |process: Process| Link::open("kubelet-statusd", process, &dir.path().join(process.name()));
    let links = [link(Process::Syncd), link(Process::Volnetd), link(Process::Evictiond)];
    for link in &links {
        tokio::time::timeout(Duration::from_secs(10), link.ready()).await.expect("fake peer answers Hello");
    }
    let registry = prometheus::Registry::new();
    let [syncd_link, volnetd_link, evictiond_link] = links;
    let peers = Arc::new(Peers::new(syncd_link, volnetd_link, evictiond_link));
    let config = Arc::new(NodeConfig::for_tests(dir.path()));
    let health = Arc::new(HealthChecks::new(peers.clone(), config.sync_frequency(), api_server));
    let broker = BrokerClient::new(&dir.path().join("broker"));
    let (journal, progress) = (Asker::default(), Progress::default());
    let parts = Parts { config, peers, health: health.clone(), broker, journal, registry, gate: None, progress };
    let router = Arc::new(Router::new(parts).unwrap());
    let limits =
        Limits { idle_time: Duration::from_secs(20), head_time: Duration::from_millis(300), ..Limits::default() };
    let mut addresses = Vec::new();
    for surface in [Surface::Healthz, Surface::ReadOnly] {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        addresses.push(listener.local_addr().unwrap());
        tokio::spawn(serve_http(listener, surface, router.clone(), limits));
    }
    Lab { _dir: dir, syncd, volnetd, evictiond, router, health, healthz: addresses[0], read_only: addresses[1] }
}

/// Sends text, reads to the end. `None`: the server closed without an answer.
async fn raw(address: std::net::SocketAddr, request: &str) -> Option<(u16, String, String)> {
    let work = async {
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer).await;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        let status = head.split(' ').nth(1)?.parse().ok()?;
        Some((status, head.to_ascii_lowercase(), body.to_owned()))
    };
    tokio::time::timeout(Duration::from_secs(30), work).await.expect("an answer or the connection's end")
}

async fn ask(address: std::net::SocketAddr, method: &str, target: &str) -> (u16, String, String) {
    raw(address, &format!("{method} {target} HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n")).await.unwrap()
}

async fn get(address: std::net::SocketAddr, target: &str) -> (u16, String) {
    let (status, _, body) = ask(address, "GET", target).await;
    (status, body)
}

fn value(families: &[Family], name: &str, label: Option<&str>) -> Option<f64> {
    families.iter().flat_map(|family| &family.samples).find_map(|sample| {
        let labelled = label.is_none_or(|wanted| sample.labels.iter().any(|(_, value)| value == wanted));
        (sample.name == name && labelled).then_some(sample.value)
    })
}

#[tokio::test]
async fn healthz_is_ok_and_404_and_head_are_gos() {
    let lab = lab().await;
    assert_eq!(get(lab.healthz, "/healthz").await, (200, "ok".into()));
    assert_eq!(get(lab.read_only, "/healthz").await, (200, "ok".into()));
    assert_eq!(get(lab.healthz, "/healthz/ping").await, (200, "ok".into()));
    assert_eq!(get(lab.healthz, "/healthz/nothing").await, (404, "404 page not found\n".into()));
    assert_eq!(get(lab.healthz, "/").await, (404, "404 page not found\n".into()));
    assert_eq!(get(lab.read_only, "/exec/d/p/c").await, (405, "Debug endpoints are disabled.\n".into()));
    let (status, head, body) = ask(lab.healthz, "HEAD", "/healthz").await;
    assert_eq!((status, body.as_str()), (200, ""));
    assert!(head.contains("content-type: text/plain; charset=utf-8") && head.contains("nosniff"), "{head}");
    let (status, head, _) = ask(lab.read_only, "POST", "/metrics").await;
    assert!(status == 405 && head.contains("allow: get, head"), "{status} {head}");
    let verbose = get(lab.healthz, "/healthz?verbose").await.1;
    assert!(verbose.starts_with("[+]ping ok\n") && verbose.ends_with("healthz check passed\n"), "{verbose}");
}

#[tokio::test]
async fn syncd_is_not_asked_for_each_question_about_health() {
    let lab = lab().await;
    let all = futures_util::future::join_all((0..40).map(|_| get(lab.healthz, "/healthz"))).await;
    assert!(all.iter().all(|answer| *answer == (200, "ok".into())), "{all:?}");
    let asked = lab.syncd.script.node_asked.load(Ordering::Relaxed);
    assert!((1..20).contains(&asked), "{asked}");
}

#[tokio::test]
async fn a_wedged_syncd_does_not_look_healthy() {
    let lab = lab().await;
    *lab.syncd.script.sync_loop_age.lock() = 1e6;
    let (status, body) = get(lab.healthz, "/healthz").await;
    assert_eq!(status, 500);
    assert!(
        body.contains("[-]syncloop failed: reason withheld\n") && body.ends_with("healthz check failed\n"),
        "{body}"
    );
    let expected = "internal server error: sync Loop took longer than expected\n";
    assert_eq!(get(lab.healthz, "/healthz/syncloop").await, (500, expected.into()));
    assert_eq!(get(lab.healthz, "/healthz/ping").await.0, 200);
    assert_eq!(get(lab.healthz, "/healthz?exclude=syncloop").await, (200, "ok".into()));

    // What was said a moment ago would stand.
    let lab = self::lab().await;
    lab.syncd.script.silent.store(true, Ordering::Relaxed);
    assert_eq!(get(lab.healthz, "/healthz/syncloop").await.1, "internal server error: kubelet-syncd does not answer\n");
    let checks = lab.health.all(Surface::Healthz).await;
    assert!(checks.iter().any(|(name, outcome)| *name == "syncloop" && outcome.is_err()));
}

#[tokio::test]
async fn device_plugins_that_cannot_register_are_told() {
    let lab = lab().await;
    let (status, verbose) = get(lab.read_only, "/healthz?verbose").await;
    assert_eq!(
        (status, verbose.as_str()),
        (200, "[+]ping ok\n[+]log ok\n[+]syncloop ok\n[+]device-plugin ok\nhealthz check passed\n")
    );
    assert_eq!(get(lab.read_only, "/healthz/device-plugin").await, (200, "ok".into()));
    // What was said a moment ago would stand.
    let lab = self::lab().await;
    *lab.syncd.script.device_registration_error.lock() = "no socket".into();
    let expected = "internal server error: device registration error: device plugin registration gRPC server failed and no \
                    device plugins can register: no socket\n";
    assert_eq!(get(lab.read_only, "/healthz/device-plugin").await, (500, expected.into()));
    let (status, body) = get(lab.read_only, "/healthz").await;
    assert!(status == 500 && body.contains("[-]device-plugin failed: reason withheld\n"), "{status} {body}");
    // The health port has no such check.
    assert_eq!(get(lab.healthz, "/healthz").await.0, 200);
    assert_eq!(get(lab.healthz, "/healthz/device-plugin").await.0, 404);
}

#[tokio::test]
async fn a_restarting_process_is_not_an_illness() {
    let lab = lab().await;
    assert_eq!(get(lab.healthz, "/healthz").await.0, 200);
    lab.volnetd.stop.cancel();
    assert_eq!(get(lab.healthz, "/healthz").await, (200, "ok".into()));
}

#[tokio::test]
async fn metrics_are_one_valid_text_whatever_the_processes_say() {
    let lab = lab().await;
    let good = "# HELP kubelet_x_total h\n# TYPE kubelet_x_total counter\nkubelet_x_total 2\n\
                # TYPE process_cpu_seconds_total counter\nprocess_cpu_seconds_total 5\n";
    *lab.syncd.script.metrics.lock() = good.into();
    *lab.volnetd.script.metrics.lock() = good.into();
    *lab.evictiond.script.metrics.lock() = "kubelet_x_total{ 1\n".into();
    let (status, head, body) = ask(lab.read_only, "GET", "/metrics").await;
    assert_eq!(status, 200);
    assert!(head.contains("content-type: text/plain; version=0.0.4"), "{head}");
    let families = exposition::parse(&body).unwrap();
    assert_eq!(value(&families, "kubelet_x_total", None), Some(4.0));
    assert!(value(&families, "process_cpu_seconds_total", None).unwrap() >= 10.0);
    assert_eq!(value(&families, "bulkhead_process_cpu_seconds_total", Some("kubelet-volnetd")), Some(5.0));
    assert_eq!(value(&families, "bulkhead_process_up", Some("kubelet-evictiond")), Some(0.0), "its text is broken");
    assert_eq!(value(&families, "kubelet_http_requests_total", Some("metrics")), Some(1.0));

    // One is gone, one does not answer: their series are missing, within the deadline.
    lab.volnetd.stop.cancel();
    lab.syncd.script.silent.store(true, Ordering::Relaxed);
    *lab.evictiond.script.metrics.lock() = "# TYPE kubelet_y gauge\nkubelet_y 1\n".into();
    let started = std::time::Instant::now();
    let families = exposition::parse(&get(lab.read_only, "/metrics").await.1).unwrap();
    assert!(started.elapsed() < Duration::from_secs(5));
    assert_eq!(value(&families, "kubelet_x_total", None), None);
    assert_eq!(value(&families, "kubelet_y", None), Some(1.0));
    for (process, up) in [("kubelet-syncd", 0.0), ("kubelet-volnetd", 0.0), ("kubelet-evictiond", 1.0)] {
        assert_eq!(value(&families, "bulkhead_process_up", Some(process)), Some(up), "{process}");
    }
}

/// A scraper that comes with the start of all processes gets what kubelet-syncd counts, once that knows its runtime.
#[tokio::test]
async fn a_scrape_at_the_start_waits_for_syncd() {
    let lab = lab().await;
    let (told, states) = mpsc::channel(1);
    *lab.syncd.script.node_states.lock() = Some(states);
    let address = lab.read_only;
    let scrape = tokio::spawn(async move { get(address, "/metrics").await });
    // There is room for the next one when it has taken that the sources have not begun.
    let sources = vec![SourceState::default()];
    for state in [NodeState::default(), NodeState::default(), NodeState { sources, ..NodeState::default() }] {
        *lab.syncd.script.metrics.lock() = format!("# TYPE kubelet_x gauge\nkubelet_x {}\n", state.sources.len());
        told.send(Ok(state)).await.unwrap();
    }
    let families = exposition::parse(&scrape.await.unwrap().1).unwrap();
    assert_eq!(value(&families, "kubelet_x", None), Some(1.0));
    // The stream stands, and nobody listens to it any more.
    told.closed().await;
    assert_eq!(get(address, "/metrics").await.0, 200);
}

/// A process that has not answered yet is waited for too; one that never does, for a while.
#[tokio::test]
async fn processes_that_have_not_begun_are_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let link = |process: Process| Link::open("kubelet-statusd", process, &dir.path().join(process.name()));
    let peers = Arc::new(Peers::new(link(Process::Syncd), link(Process::Volnetd), link(Process::Evictiond)));
    let (waiting, others) = (peers.clone(), [Process::Syncd, Process::Volnetd, Process::Evictiond]);
    let begun = tokio::spawn(async move {
        waiting.begun().await;
        futures_util::future::join_all(others.map(|process| waiting.metrics(process))).await
    });
    for process in others {
        tokio::task::yield_now().await;
        fake(process, dir.path()).await;
    }
    assert_eq!(begun.await.unwrap(), [const { Some(String::new()) }; 3]);

    tokio::time::pause();
    let peers = Peers::new(
        link(Process::Syncd),
        Link::open("kubelet-statusd", Process::Volnetd, &dir.path().join("none")),
        link(Process::Evictiond),
    );
    peers.begun().await;
    let now = tokio::time::Instant::now();
    peers.begun().await;
    assert_eq!(tokio::time::Instant::now(), now, "once");
}

#[tokio::test]
async fn statistics_are_handed_on() {
    let lab = lab().await;
    let text = get(lab.read_only, "/metrics/resource").await.1;
    let families = exposition::parse(&text).unwrap();
    assert_eq!(value(&families, "pod_cpu_usage_seconds_total", Some("p")), Some(2.5));
    assert_eq!(value(&families, "resource_scrape_error", None), Some(0.0));
    let (status, body) = get(lab.read_only, "/stats/summary").await;
    let summary: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &summary["pods"][0]["podRef"]["uid"]), (200, &serde_json::json!("u")));
    let (status, body) = get(lab.read_only, "/stats/summary?a=%zz").await;
    assert_eq!((status, body.trim_end()), (500, "Internal Error: parse form failed: invalid URL escape \"%zz\""));
    let post =
        "POST /stats/summary HTTP/1.1\r\nHost: n\r\nContent-Type: /\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let (status, _, body) = raw(lab.read_only, post).await.unwrap();
    assert_eq!((status, body.trim_end()), (500, "Internal Error: parse form failed: mime: no media type"));
    assert_eq!(get(lab.healthz, "/stats/summary").await.0, 404);
    let families = exposition::parse(&get(lab.read_only, "/metrics/cadvisor").await.1).unwrap();
    assert_eq!(value(&families, "container_memory_usage_bytes", Some("/")), Some(7.0));
    assert_eq!(value(&families, "container_scrape_error", None), Some(0.0));
    assert_eq!(get(lab.healthz, "/metrics/cadvisor").await.0, 404);
    lab.evictiond.stop.cancel();
    let families = exposition::parse(&get(lab.read_only, "/metrics/cadvisor").await.1).unwrap();
    assert_eq!(value(&families, "container_scrape_error", None), Some(1.0));
    assert!(families.iter().all(|family| family.name != "container_memory_usage_bytes"));
    let families = exposition::parse(&get(lab.read_only, "/metrics/resource").await.1).unwrap();
    assert_eq!(value(&families, "resource_scrape_error", None), Some(1.0));
    assert_eq!(get(lab.read_only, "/stats/summary").await.0, 500);
}

#[tokio::test]
async fn hostile_clients_are_bounded() {
    let lab = lab().await;
    let (status, _, _) =
        raw(lab.healthz, &format!("GET /healthz HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(100_000))).await.unwrap();
    assert_eq!(status, 431);
    let (status, _, _) = raw(lab.healthz, "nonsense\r\n\r\n").await.unwrap();
    assert_eq!(status, 400);
    // A head that never ends is cut off after its time.
    let cut = raw(lab.healthz, "GET /healthz HTTP/1.1\r\nX: ").await;
    assert!(cut.is_none_or(|(status, _, _)| status == 408));
    // A body is not waited for.
    let (status, _, _) =
        raw(lab.healthz, "POST /healthz HTTP/1.1\r\nHost: n\r\nContent-Length: 1000000\r\nConnection: close\r\n\r\n")
            .await
            .unwrap();
    assert_eq!(status, 200);
    assert_eq!(get(lab.healthz, "/healthz").await.0, 200);
}

/// Asks again and again in one go, and reads nothing, until nothing more is taken from it.
async fn never_reading(address: std::net::SocketAddr) -> tokio::net::TcpStream {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut stream = socket.connect(address).await.unwrap();
    let requests = b"GET /healthz/ping HTTP/1.1\r\nHost: n\r\n\r\n".repeat(100);
    while let Ok(Ok(())) = tokio::time::timeout(Duration::from_millis(500), stream.write_all(&requests)).await {}
    stream
}

#[tokio::test]
async fn clients_that_do_not_read_keep_no_other_out() {
    let lab = lab().await;
    let serve = async |limits: Limits| {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        // Inherited by what it accepts: little is in the kernel's buffers.
        rustix::net::sockopt::set_socket_send_buffer_size(&listener, 4096).unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve_http(listener, Surface::Healthz, lab.router.clone(), limits));
        address
    };
    let crowded = serve(Limits { connections: 8, ..Limits::default() }).await;
    let mut held = futures_util::future::join_all((0..8).map(|_| never_reading(crowded))).await;
    for _ in 0..10 {
        assert_eq!(get(crowded, "/healthz").await, (200, "ok".into()));
        held.push(never_reading(crowded).await);
    }
    drop(held);
    // Without any pressure they are left after a while.
    let short = serve(Limits { stall_time: Duration::from_millis(600), ..Limits::default() }).await;
    let mut left = never_reading(short).await;
    let closed = async { while left.write_all(b"GET /healthz/ping HTTP/1.1\r\nHost: n\r\n\r\n").await.is_ok() {} };
    tokio::time::timeout(Duration::from_secs(30), closed).await.expect("it is closed");
}

#[tokio::test]
async fn an_api_server_that_is_away_is_shown_and_fails_no_check() {
    let since = tokio::time::Instant::now();
    let (reached, reachability) = watch::channel(Reachability::Reachable { since });
    let lab = lab_of(Some(reachability)).await;
    let service =
        StatusService { node_name: "n".to_owned(), health: lab.health.clone(), listeners: Listeners::default() };
    let api_server = async || {
        let reply = service.get(Request::new(GetStatusRequest {})).await.unwrap().into_inner();
        assert!(reply.checks.iter().all(|check| check.ok || check.informative), "{:?}", reply.checks);
        reply.checks.into_iter().find(|check| check.name == "apiserver").unwrap()
    };
    assert!(api_server().await.ok);
    reached.send_replace(Reachability::Unreachable { since, reason: "connection refused".into() });
    let check = api_server().await;
    assert!(!check.ok && check.informative && check.message.ends_with("connection refused"), "{check:?}");
    let request = "GET /healthz?verbose HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let (status, _, body) = raw(lab.healthz, request).await.unwrap();
    assert_eq!(status, 200, "{body}");
    assert!(!body.contains("apiserver"), "{body}");
    assert!(lab_of(None).await.health.api_server().is_none(), "a standalone node has none");
}
