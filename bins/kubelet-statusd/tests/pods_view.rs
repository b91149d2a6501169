//! `/pods` over a fake kubelet-syncd: pods of any size, many of them, one that breaks off, and a process that does not answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bulkhead_config::NodeConfig;
use bulkhead_daemon::progress::Progress;
use bulkhead_ipc::broker::BrokerClient;
use bulkhead_ipc::client::Link;
use bulkhead_ipc::common::process_server::{Process as ProcessApi, ProcessServer};
use bulkhead_ipc::common::{
    HelloReply, HelloRequest, MetricsReply, MetricsRequest, PrivilegesReply, PrivilegesRequest,
};
use bulkhead_ipc::helper::Asker;
use bulkhead_ipc::peers::{MethodRule, PeerUsers, Policy, Role};
use bulkhead_ipc::server::{self, Services};
use bulkhead_ipc::syncd::node_server::{Node, NodeServer};
use bulkhead_ipc::syncd::views_server::{Views, ViewsServer};
use bulkhead_ipc::syncd::{
    GetNodeRequest, NodeState, ObjectPiece, ObjectsRequest, RunningPod, RunningRequest, WatchNodeRequest,
};
use bulkhead_types::Process;
use futures_util::StreamExt as _;
use kubelet_statusd::{HealthChecks, Limits, Parts, Peers, Router, Surface, serve_http};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tonic::{Request, Response, Status};

/// What it is to send: one pod of each size (bytes of filler), then how it ends.
#[derive(Clone)]
struct Fake {
    sizes: Vec<usize>,
    end: Option<Status>,
    sent: Arc<AtomicUsize>,
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
        Err(Status::unimplemented("not asked"))
    }
}

type Stream<T> = std::pin::Pin<Box<dyn futures_util::Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl Views for Fake {
    type ObjectsStream = Stream<ObjectPiece>;

    async fn objects(&self, _: Request<ObjectsRequest>) -> Result<Response<Self::ObjectsStream>, Status> {
        let sent = self.sent.clone();
        let pods = futures_util::stream::iter(self.sizes.clone().into_iter().enumerate()).flat_map(move |(i, size)| {
            sent.fetch_add(1, Ordering::Relaxed);
            let text = format!(
                "{{\"metadata\":{{\"name\":\"p{i}\",\"annotations\":{{\"f\":\"{}\"}}}},\"spec\":{{\"containers\":[]}}}}",
                "x".repeat(size)
            );
            let chunks: Vec<Vec<u8>> = text.into_bytes().chunks(192 << 10).map(<[u8]>::to_vec).collect();
            let count = chunks.len();
            let pieces = chunks.into_iter().enumerate().map(move |(place, pod_json)| {
                Ok(ObjectPiece { pod_json, last: place + 1 == count, ..Default::default() })
            });
            futures_util::stream::iter(pieces)
        });
        Ok(Response::new(Box::pin(pods.chain(futures_util::stream::iter(self.end.clone().map(Err))))))
    }

    type RunningStream = Stream<RunningPod>;

    async fn running(&self, _: Request<RunningRequest>) -> Result<Response<Self::RunningStream>, Status> {
        Err(Status::unavailable("the runtime is not known yet"))
    }
}

#[tonic::async_trait]
impl Node for Fake {
    async fn get(&self, _: Request<GetNodeRequest>) -> Result<Response<NodeState>, Status> {
        Ok(Response::new(NodeState::default()))
    }

    type WatchStream = Stream<NodeState>;

    async fn watch(&self, _: Request<WatchNodeRequest>) -> Result<Response<Self::WatchStream>, Status> {
        Err(Status::unimplemented("not asked"))
    }
}

const RULES: &[MethodRule] = &[
    MethodRule { method: "/kubelet.syncd.v1.Views/Objects", peers: &[Role::Operator, Role::Statusd] },
    MethodRule { method: "/kubelet.syncd.v1.Node/Get", peers: &[Role::Operator, Role::Statusd] },
];

/// The read-only port over such a kubelet-syncd.
async fn served(dir: &std::path::Path, fake: Fake) -> std::net::SocketAddr {
    let listener = tokio::net::UnixListener::bind(dir.join("syncd")).unwrap();
    let services = Services::new().add(ProcessServer::new(fake.clone())).add(NodeServer::new(fake.clone()));
    let services = services.add(ViewsServer::new(fake));
    let users =
        PeerUsers { syncd: 60801, evictiond: 60802, statusd: 60803, pods_cgroup: "/none".into(), no_pods: None };
    let policy = Policy { users: Arc::new(users), rules: RULES };
    tokio::spawn(server::serve(listener, policy, services, std::future::pending()));
    let link = |process, name: &str| Link::open("kubelet-statusd", process, &dir.join(name));
    let syncd = link(Process::Syncd, "syncd");
    tokio::time::timeout(Duration::from_secs(10), syncd.ready()).await.unwrap();
    let peers = Arc::new(Peers::new(syncd, link(Process::Volnetd, "none"), link(Process::Evictiond, "none")));
    let config = Arc::new(NodeConfig::for_tests(dir));
    let parts = Parts {
        health: Arc::new(HealthChecks::new(peers.clone(), config.sync_frequency(), None)),
        config,
        peers,
        broker: BrokerClient::new(&dir.join("broker")),
        journal: Asker::default(),
        registry: prometheus::Registry::new(),
        gate: None,
        progress: Progress::default(),
    };
    let router = Arc::new(Router::new(parts).unwrap());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(serve_http(listener, Surface::ReadOnly, router, Limits::default()));
    address
}

async fn ask(address: std::net::SocketAddr) -> TcpStream {
    ask_for("/pods", address).await
}

async fn ask_for(target: &str, address: std::net::SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {target} HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

/// Head, and the chunks put together; the flag says whether the last one came.
async fn answer(mut stream: TcpStream) -> (String, Vec<u8>, bool) {
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes).await;
    // A connection that is broken off early may not even have brought the head.
    let Some(cut) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
        return (String::new(), Vec::new(), false);
    };
    let head = String::from_utf8_lossy(&bytes[..cut]).to_ascii_lowercase();
    let mut rest = &bytes[cut + 4..];
    if !head.contains("transfer-encoding: chunked") {
        return (head, rest.to_vec(), true);
    }
    let mut body = Vec::new();
    loop {
        let Some(line) = rest.windows(2).position(|two| two == b"\r\n") else { return (head, body, false) };
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..line]).unwrap(), 16).unwrap();
        if size == 0 {
            return (head, body, true);
        }
        let Some(chunk) = rest.get(line + 2..line + 2 + size) else { return (head, body, false) };
        body.extend_from_slice(chunk);
        rest = rest.get(line + 4 + size..).unwrap_or_default();
    }
}

fn fake(sizes: Vec<usize>, end: Option<Status>) -> Fake {
    Fake { sizes, end, sent: Arc::default() }
}

#[tokio::test]
async fn pods_of_any_size_in_one_list() {
    let dir = tempfile::tempdir().unwrap();
    let address = served(dir.path(), fake(vec![10, 1_500_000, 0, 192 << 10], None)).await;
    let (head, body, whole) = answer(ask(address).await).await;
    assert!(head.starts_with("http/1.1 200") && head.contains("content-type: application/json") && whole, "{head}");
    let list: Value = serde_json::from_slice(&body).unwrap();
    let sizes: Vec<usize> = list["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|pod| pod["metadata"]["annotations"]["f"].as_str().unwrap().len())
        .collect();
    assert_eq!(sizes, [10, 1_500_000, 0, 192 << 10]);
    assert_eq!(list["items"][2]["status"], serde_json::json!({}));
}

/// How many pods were made when no more are: what is under way fits into the sockets between the three of us.
async fn settled(sent: &AtomicUsize) -> usize {
    let mut last = 0;
    loop {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let now = sent.load(Ordering::Relaxed);
        if now == last && now > 0 {
            return now;
        }
        last = now;
    }
}

#[tokio::test]
async fn clients_that_do_not_read_hold_back_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let many = fake(vec![100_000; 200], None);
    let sent = many.sent.clone();
    let address = served(dir.path(), many).await;
    let mut held = Vec::new();
    // As many as there may be.
    for _ in 0..8 {
        let mut stream = ask(address).await;
        stream.read_exact(&mut [0_u8; 1000]).await.unwrap();
        held.push(stream);
    }
    settled(&sent).await;
    let (head, body, _) = answer(ask_for("/healthz/syncloop", address).await).await;
    assert!(head.starts_with("http/1.1 200"), "{head} {}", String::from_utf8_lossy(&body));
    let (head, ..) = answer(ask(address).await).await;
    assert!(head.starts_with("http/1.1 429"), "{head}");
    drop(held.pop());
    let mut head = [0_u8; 12];
    ask(address).await.read_exact(&mut head).await.unwrap();
    assert_eq!(head, *b"HTTP/1.1 200", "one that is gone makes room");
}

#[tokio::test]
async fn a_client_that_does_not_read_holds_back_the_list() {
    let dir = tempfile::tempdir().unwrap();
    let many = fake(vec![100_000; 200], None);
    let sent = many.sent.clone();
    let address = served(dir.path(), many).await;
    let mut stream = ask(address).await;
    let mut first = [0_u8; 1000];
    stream.read_exact(&mut first).await.unwrap();
    let last = settled(&sent).await;
    assert!(last < 100, "{last} of 200 pods were made for a client that reads nothing");
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).await.unwrap();
    assert!(rest.len() > 200 * 100_000 && rest.ends_with(b"]}\n\r\n0\r\n\r\n"));
}

#[tokio::test]
async fn what_breaks_off_is_no_list_and_what_cannot_begin_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let address = served(dir.path(), fake(vec![10, 10], Some(Status::internal("it has died")))).await;
    let (head, body, whole) = answer(ask(address).await).await;
    assert!(!whole && serde_json::from_slice::<Value>(&body).is_err(), "{head}");

    let dir = tempfile::tempdir().unwrap();
    let address =
        served(dir.path(), fake(vec![], Some(Status::unavailable("the sources of pods have not begun yet")))).await;
    let (head, body, _) = answer(ask(address).await).await;
    assert!(head.starts_with("http/1.1 500"), "{head}");
    assert_eq!(body, b"the sources of pods have not begun yet\n");

    let dir = tempfile::tempdir().unwrap();
    let address = served(dir.path(), fake(vec![], None)).await;
    let (_, body, _) = answer(ask(address).await).await;
    assert_eq!(body, b"{\"kind\":\"PodList\",\"apiVersion\":\"v1\",\"metadata\":{},\"items\":null}\n");
}
