//! What the gRPC server and the broker do with peers that do not behave, with limits short enough to meet.

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bulkhead_ipc::MAX_MESSAGE_BYTES;
use bulkhead_ipc::broker::{self, BrokerClient, BrokerRequest};
use bulkhead_ipc::client::channel;
use bulkhead_ipc::common::process_server::{Process as ProcessApi, ProcessServer};
use bulkhead_ipc::common::{
    HelloReply, HelloRequest, MetricsReply, MetricsRequest, PrivilegesReply, PrivilegesRequest,
    process_client::ProcessClient,
};
use bulkhead_ipc::limits::{Gate, Limits};
use bulkhead_ipc::peers::{MethodRule, PeerUsers, Policy, Role};
use bulkhead_ipc::refusals::Reason;
use bulkhead_ipc::server::{self, Services};
use bulkhead_ipc::volnetd::{Kmsg, OpenReply, OpenRequest, open_request::Kind};
use bulkhead_types::Process;
use prost::Message as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tonic::{Code, Request, Response, Status};

type Result<T = (), E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

/// A client's preface and an empty SETTINGS.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// Long enough for anything that ends by itself.
const LONG: Duration = Duration::from_secs(30);

/// Answers Hello at once and Metrics never.
struct Slow;

#[tonic::async_trait]
impl ProcessApi for Slow {
    async fn hello(&self, _: Request<HelloRequest>) -> std::result::Result<Response<HelloReply>, Status> {
        Ok(Response::new(HelloReply { epoch: 7, ready: true, ..Default::default() }))
    }
    async fn privileges(
        &self,
        _: Request<PrivilegesRequest>,
    ) -> std::result::Result<Response<PrivilegesReply>, Status> {
        Err(Status::unimplemented(""))
    }
    async fn metrics(&self, _: Request<MetricsRequest>) -> std::result::Result<Response<MetricsReply>, Status> {
        std::future::pending().await
    }
}

struct World {
    _dir: tempfile::TempDir,
    path: PathBuf,
    gate: Arc<Gate>,
}

/// A server on which this test is syncd, or a stranger.
fn serve(limits: Limits, known: bool) -> Result<World> {
    serve_with(limits, known, |services| services)
}

fn serve_with(limits: Limits, known: bool, change: impl FnOnce(Services) -> Services) -> Result<World> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("s.sock");
    let gate = Gate::new(limits);
    let listener = tokio::net::UnixListener::bind(&path)?;
    let services = Services::of(Process::Syncd)
        .behind(gate.clone())
        .add(ProcessServer::new(Slow).max_decoding_message_size(MAX_MESSAGE_BYTES));
    const NONE: &[MethodRule] = &[];
    let policy = Policy { users: users(known)?, rules: NONE };
    tokio::spawn(server::serve(listener, policy, change(services), std::future::pending()));
    Ok(World { _dir: dir, path, gate })
}

fn users(known: bool) -> Result<Arc<PeerUsers>> {
    let me = bulkhead_sys::process::PrivilegeReport::read()?.uid;
    // A pod is a stranger whatever its uid, root's included.
    let cgroup = std::fs::read_to_string("/proc/self/cgroup")?;
    let mine = cgroup.lines().filter_map(|line| line.splitn(3, ':').nth(2)).find(|path| path.len() > 1);
    let pods_cgroup = if known { "/no-such/kubepods" } else { mine.unwrap_or("/") };
    Ok(Arc::new(PeerUsers {
        syncd: me,
        evictiond: 1_000_001,
        statusd: 1_000_002,
        pods_cgroup: pods_cgroup.into(),
        no_pods: None,
    }))
}

async fn hello(path: &Path) -> std::result::Result<HelloReply, Status> {
    let mut request = Request::new(HelloRequest::default());
    request.set_timeout(LONG);
    ProcessClient::new(channel(path)).hello(request).await.map(Response::into_inner)
}

/// Reads until the other end closes.
async fn rest(stream: &mut UnixStream) -> Result<Vec<u8>> {
    let mut all = Vec::new();
    match tokio::time::timeout(LONG, stream.read_to_end(&mut all)).await? {
        Err(error) if error.kind() != std::io::ErrorKind::ConnectionReset => Err(error.into()),
        _ => Ok(all),
    }
}

#[tokio::test]
async fn a_stranger_is_refused_before_its_request_is_read() -> Result {
    let world = serve(Limits::default(), false)?;
    if users(false)?.pods_cgroup.as_ref() == "/" {
        return Ok(()); // This machine shows no cgroup of ours that could be a pod's.
    }
    // Not a byte was sent, and the answer is there: two frames, the second a GOAWAY that says why.
    let mut silent = UnixStream::connect(&world.path).await?;
    let mut words = [0; 26];
    silent.read_exact(&mut words).await?;
    assert_eq!((words[3], words[12], words[25]), (4, 7, 0xc), "{words:?}");
    for round in 0..20 {
        let refused = hello(&world.path).await.expect_err("a stranger is let in");
        assert_eq!(refused.code(), Code::PermissionDenied, "{round}: {refused}");
        assert!(format!("{refused:?}").contains("runs in a pod"), "{refused:?}");
    }
    assert_eq!(world.gate.refusals.count(Reason::Stranger), 21);
    Ok(())
}

#[tokio::test]
async fn a_call_ends_by_its_server_whatever_deadline_it_names() -> Result {
    let world = serve_with(Limits::default(), true, |services| services.longest(Duration::from_millis(100)))?;
    let mut request = Request::new(MetricsRequest::default());
    request.set_timeout(LONG);
    let asked = tokio::time::timeout(LONG, ProcessClient::new(channel(&world.path)).metrics(request)).await?;
    let ended = asked.expect_err("nobody answers");
    assert!(bulkhead_ipc::client::is_unknown(&ended), "{ended:?}");
    Ok(())
}

#[tokio::test]
async fn who_says_nothing_is_shown_out_and_who_says_it_slowly_too() -> Result {
    let world = serve(Limits { handshake: Duration::from_millis(200), ..Limits::default() }, true)?;
    let mut silent = UnixStream::connect(&world.path).await?;
    let mut slow = UnixStream::connect(&world.path).await?;
    let (_, written) = tokio::join!(rest(&mut silent), async {
        for byte in PREFACE {
            if slow.write_all(&[*byte]).await.is_err() {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        true
    });
    assert!(!written, "33 bytes in 1.6 s were waited for");
    assert_eq!(world.gate.refusals.count(Reason::Handshake), 2);
    // One that has said what it must may be as quiet as it likes.
    let link = ProcessClient::new(channel(&world.path));
    link.clone().hello(HelloRequest::default()).await?;
    tokio::time::sleep(Duration::from_millis(400)).await;
    link.clone().hello(HelloRequest::default()).await?;
    assert_eq!(world.gate.connections(Role::Syncd), 1);
    Ok(())
}

#[tokio::test]
async fn who_does_not_answer_a_ping_is_gone() -> Result {
    let keepalive = Duration::from_millis(100);
    let world = serve(Limits { keepalive, keepalive_patience: keepalive, ..Limits::default() }, true)?;
    let mut dumb = UnixStream::connect(&world.path).await?;
    dumb.write_all(PREFACE).await?;
    rest(&mut dumb).await?;
    assert_eq!(world.gate.connections(Role::Syncd), 0);
    Ok(())
}

#[tokio::test]
async fn connections_beyond_the_share_are_refused_and_given_back() -> Result {
    let world = serve(Limits { connections: 2, ..Limits::default() }, true)?;
    let first = ProcessClient::new(channel(&world.path));
    first.clone().hello(HelloRequest::default()).await?;
    let idle = UnixStream::connect(&world.path).await?;
    for _ in 0..10 {
        let refused = hello(&world.path).await.expect_err("a third connection");
        assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
        assert!(format!("{refused:?}").contains("has 2 connections already"), "{refused:?}");
    }
    first.clone().hello(HelloRequest::default()).await?;
    drop(idle);
    let back = async {
        while hello(&world.path).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LONG, back).await?;
    Ok(())
}

#[tokio::test]
async fn calls_beyond_the_share_are_refused_over_all_connections() -> Result {
    let world = serve(Limits { calls: 3, ..Limits::default() }, true)?;
    let mut waiting = Vec::new();
    for _ in 0..3 {
        let mut client = ProcessClient::new(channel(&world.path));
        waiting.push(tokio::spawn(async move { client.metrics(MetricsRequest::default()).await }));
    }
    let full = async {
        loop {
            match hello(&world.path).await {
                Err(refused) => return refused,
                Ok(_) => tokio::task::yield_now().await,
            }
        }
    };
    let refused = tokio::time::timeout(LONG, full).await?;
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    waiting.into_iter().for_each(|call| call.abort());
    let free = async { while hello(&world.path).await.is_err() {} };
    tokio::time::timeout(LONG, free).await?;
    Ok(())
}

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The headers of a call of Hello: literal fields without indexing, names and values without Huffman (RFC 7541, 6.2.2).
fn headers() -> Vec<u8> {
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/kubelet.common.v1.Process/Hello"),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).unwrap_or(0));
            block.extend(text.bytes());
        }
    }
    block
}

#[tokio::test]
async fn requests_that_never_end_hold_little_and_their_share() -> Result {
    let world = serve(Limits { request_bytes: 300 * 1024, ..Limits::default() }, true)?;
    let mut streams = Vec::new();
    // Two connections with a window's worth of a message that is announced larger: the second meets the limit when both
    // have sent what fits, and a third peer is served all along.
    for _ in 0..8 {
        let mut stream = UnixStream::connect(&world.path).await?;
        stream.write_all(PREFACE).await?;
        stream.write_all(&frame(1, 4, 1, &headers())).await?;
        let announced = u32::try_from(MAX_MESSAGE_BYTES)?.to_be_bytes();
        stream.write_all(&frame(0, 0, 1, &[&[0], &announced[..]].concat())).await?;
        for _ in 0..3 {
            stream.write_all(&frame(0, 0, 1, &vec![7; 16 * 1024])).await?;
        }
        streams.push(stream);
    }
    let met = async {
        while world.gate.refusals.count(Reason::Bytes) == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LONG, met).await?;
    drop(streams);
    let back = async {
        while hello(&world.path).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LONG, back).await?;
    Ok(())
}

fn serve_broker(limits: Limits, known: bool) -> Result<World> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("b.sock");
    let gate = Gate::new(limits);
    let listener = bulkhead_sys::scm::listen(&path, 0o600)?;
    let handler = |_, request: BrokerRequest| async move {
        match request {
            BrokerRequest::Open(Kind::Kmsg(_)) => Ok(Some(OwnedFd::from(std::fs::File::open("/dev/null")?))),
            _ => std::future::pending().await,
        }
    };
    tokio::spawn(broker::serve(listener, users(known)?, gate.clone(), handler, std::future::pending()));
    Ok(World { _dir: dir, path, gate })
}

async fn kmsg(path: &Path) -> Result<OwnedFd, Code> {
    BrokerClient::new(path).open(Kind::Kmsg(Kmsg {})).await.map_err(|error| error.code())
}

#[tokio::test]
async fn the_broker_refuses_a_stranger_unread() -> Result {
    let world = serve_broker(Limits::default(), false)?;
    if users(false)?.pods_cgroup.as_ref() != "/" {
        assert_eq!(kmsg(&world.path).await.err(), Some(Code::PermissionDenied));
        assert_eq!(world.gate.refusals.count(Reason::Stranger), 1);
    }
    Ok(())
}

#[tokio::test]
async fn a_connection_to_the_broker_that_asks_nothing_costs_the_others_nothing() -> Result {
    let limits =
        Limits { broker_active: 2, broker_waiting: 4, broker_request: Duration::from_millis(200), ..Limits::default() };
    let world = serve_broker(limits, true)?;
    let silent: Vec<OwnedFd> =
        (0..6).map(|_| bulkhead_sys::scm::connect(&world.path)).collect::<std::io::Result<_>>()?;
    // Its own share is used up: told to come back, and it does.
    let mut refused = 0;
    let answered = async {
        loop {
            match kmsg(&world.path).await {
                Ok(_) => return,
                Err(code) => assert_eq!(code, Code::Unavailable),
            }
            refused += 1;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LONG, answered).await?;
    assert!(refused > 0, "six silent connections were no hindrance to a seventh of the same peer");
    assert!(world.gate.refusals.count(Reason::Handshake) > 0);
    drop(silent);
    Ok(())
}

#[tokio::test]
async fn unasked_descriptors_are_closed() -> Result {
    let world = serve_broker(Limits::default(), true)?;
    let (watched, other) = std::os::unix::net::UnixStream::pair()?;
    for fds in [4, 1, 3] {
        let socket = bulkhead_sys::async_fd::register(bulkhead_sys::scm::connect(&world.path)?)?;
        let request = OpenRequest { id: 5, kind: Some(Kind::Kmsg(Kmsg {})), ..Default::default() }.encode_to_vec();
        bulkhead_sys::scm::send(&socket, &request, &vec![other.as_fd(); fds])?;
        // A second and a third one that will never be read, with more of them.
        for _ in 0..2 {
            let _ = bulkhead_sys::scm::send(&socket, b"more", &[other.as_fd(); 4]);
        }
        let mut buffer = vec![0; 4096];
        let got = socket.async_io(tokio::io::Interest::READABLE, |fd| bulkhead_sys::scm::recv(fd, &mut buffer)).await?;
        let reply = OpenReply::decode(&buffer[..got.len])?;
        assert_eq!((reply.id, reply.code, got.fds.len()), (5, 0, 1), "{}", reply.message);
        // The conversation is over: nothing more is taken.
        let over = async {
            while bulkhead_sys::scm::send(&socket, b"x", &[other.as_fd()]).is_ok() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(LONG, over).await?;
    }
    // The last copy outside of this test is closed when its peer sees the end.
    drop(other);
    watched.set_nonblocking(true)?;
    let mut watched = UnixStream::from_std(watched)?;
    assert_eq!(tokio::time::timeout(LONG, watched.read(&mut [0])).await??, 0);
    Ok(())
}
