//! Server, link and broker over real sockets: who is let in, what is too large, and what a restart looks like.

use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_ipc::broker::{self, BrokerClient, BrokerRequest};
use bulkhead_ipc::client::{Link, PeerState};
use bulkhead_ipc::common::process_server::{Process as ProcessApi, ProcessServer};
use bulkhead_ipc::common::traces_client::TracesClient;
use bulkhead_ipc::common::traces_server::{Traces, TracesServer};
use bulkhead_ipc::common::{
    HelloReply, HelloRequest, MetricsReply, MetricsRequest, PrivilegesReply, PrivilegesRequest, Span, SpanBatch,
    TakeSpansRequest, process_client,
};
use bulkhead_ipc::limits::{Gate, Limits};
use bulkhead_ipc::peers::{MethodRule, PeerUsers, Policy, Role};
use bulkhead_ipc::server::{self, Services};
use bulkhead_ipc::volnetd::{Kmsg, Manifest, OpenRequest, StateKind, open_request::Kind};
use bulkhead_ipc::{MAX_MESSAGE_BYTES, context::CallContext};
use bulkhead_types::Process;
use tonic::{Code, Request, Response, Status};

type Result<T = (), E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

struct Answering(u64);

#[tonic::async_trait]
impl ProcessApi for Answering {
    async fn hello(&self, _: Request<HelloRequest>) -> std::result::Result<Response<HelloReply>, Status> {
        let reply = HelloReply { process: "kubelet-syncd".into(), epoch: self.0, ready: true, ..Default::default() };
        Ok(Response::new(reply))
    }
    async fn privileges(
        &self,
        _: Request<PrivilegesRequest>,
    ) -> std::result::Result<Response<PrivilegesReply>, Status> {
        Err(Status::unimplemented(""))
    }
    async fn metrics(&self, request: Request<MetricsRequest>) -> std::result::Result<Response<MetricsReply>, Status> {
        Ok(Response::new(MetricsReply { text: CallContext::of(&request).request_id.into() }))
    }
}

/// The users of a node on which this test is `me`.
fn users(syncd: u32) -> Arc<PeerUsers> {
    Arc::new(PeerUsers {
        syncd,
        evictiond: 1_000_001,
        statusd: 1_000_002,
        pods_cgroup: "/no-such/kubepods".into(),
        no_pods: None,
    })
}

fn me() -> u32 {
    bulkhead_sys::process::PrivilegeReport::read().map(|r| r.uid).unwrap_or(0)
}

/// A server in a thread and runtime of its own: dropping this closes its connections as a killed process's are.
struct Server(Option<(tokio::sync::oneshot::Sender<()>, std::thread::JoinHandle<()>)>);

impl Drop for Server {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.0.take() {
            drop(stop);
            let _ = thread.join();
        }
    }
}

fn serve(path: &std::path::Path, epoch: u64, users: Arc<PeerUsers>) -> Result<Server> {
    let _ = std::fs::remove_file(path);
    let listener = std::os::unix::net::UnixListener::bind(path)?;
    listener.set_nonblocking(true)?;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let services = Services::of(Process::Syncd)
                .add(ProcessServer::new(Answering(epoch)).max_decoding_message_size(MAX_MESSAGE_BYTES));
            const NONE: &[MethodRule] = &[];
            let listener = tokio::net::UnixListener::from_std(listener).expect("a listener");
            tokio::select! {
                _ = server::serve(listener, Policy { users, rules: NONE }, services, std::future::pending()) => {}
                _ = stopped => {}
            }
        });
    });
    Ok(Server(Some((stop, thread))))
}

#[tokio::test]
async fn a_link_sees_the_other_side_go_and_come_back_as_another() -> Result {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("s.sock");
    let link = Link::open("test", Process::Syncd, &path);
    assert_eq!(link.state(), PeerState::Unknown);
    let first = serve(&path, 7, users(me()))?;
    assert_eq!(link.ready().await.get(), 7);

    let mut state = link.watch();
    drop(first);
    state.wait_for(|s| *s == PeerState::Unknown).await?;
    let _second = serve(&path, 8, users(me()))?;
    assert_eq!(link.ready().await.get(), 8);

    let context = CallContext::new();
    let reply = process_client::ProcessClient::new(link.channel())
        .metrics(context.request(MetricsRequest::default(), Duration::from_secs(5)))
        .await?;
    assert_eq!(reply.into_inner().text, context.request_id.as_ref(), "the request id crosses the socket");
    Ok(())
}

/// Spans without end.
struct Endless;

#[tonic::async_trait]
impl Traces for Endless {
    type TakeStream = futures_util::stream::BoxStream<'static, std::result::Result<SpanBatch, Status>>;

    async fn take(&self, _: Request<TakeSpansRequest>) -> std::result::Result<Response<Self::TakeStream>, Status> {
        let spans = vec![Span { name: "s".repeat(10_000), ..Default::default() }];
        let batches = futures_util::stream::repeat_with(move || Ok(SpanBatch { spans: spans.clone(), dropped: 0 }));
        Ok(Response::new(Box::pin(batches)))
    }
}

#[tokio::test]
async fn streams_that_nobody_reads_hold_up_no_other_call() -> Result {
    const HANGS: Duration = Duration::from_secs(20);
    const RULES: &[MethodRule] =
        &[MethodRule { method: "/kubelet.common.v1.Traces/Take", peers: &[Role::Operator, Role::Syncd] }];
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("s.sock");
    let listener = tokio::net::UnixListener::bind(&path)?;
    let services = Services::of(Process::Syncd).add(ProcessServer::new(Answering(7))).add(TracesServer::new(Endless));
    let policy = Policy { users: users(me()), rules: RULES };
    let _server = tokio::spawn(server::serve(listener, policy, services, std::future::pending()));
    let link = Link::open("test", Process::Syncd, &path);
    link.ready().await;
    let mut unread = Vec::new();
    for _ in 0..3 {
        let mut stream = TracesClient::new(link.channel()).take(TakeSpansRequest {}).await?.into_inner();
        assert!(stream.message().await?.is_some());
        unread.push(stream);
    }
    for channel in [link.channel(), link.separate_channel()] {
        let mut client = process_client::ProcessClient::new(channel);
        // While they are made the windows of the streams become full.
        for _ in 0..20 {
            let call = client.metrics(CallContext::new().request(MetricsRequest::default(), HANGS));
            tokio::time::timeout(HANGS, call).await??;
        }
    }
    Ok(())
}

/// What is said to it waits until it runs again, and nothing is added. In the end the connection goes, with all that waits there.
#[tokio::test(start_paused = true)]
async fn a_silent_peer_is_asked_once_and_given_up() -> Result {
    use tokio::io::AsyncReadExt as _;
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("s.sock");
    let listener = tokio::net::UnixListener::bind(&path)?;
    let began = tokio::time::Instant::now();
    let link = Link::open("test", Process::Syncd, &path);
    let mut client = process_client::ProcessClient::new(link.channel());
    let call = tokio::spawn(async move { client.metrics(MetricsRequest::default()).await });
    let (mut connection, _) = listener.accept().await?;
    let (mut said, mut at) = (Vec::new(), Vec::new());
    while connection.read_buf(&mut said).await? > 0 {
        at.push(began.elapsed().as_secs());
    }
    assert_eq!(began.elapsed().as_secs(), 60, "the link hangs up");
    at.dedup();
    assert_eq!(at, [0, 40], "the link asks whether anybody reads");
    assert_eq!(call.await?.map(|_| ()).map_err(|status| status.code()), Err(Code::Unavailable));
    assert_eq!(link.state(), PeerState::Unknown);
    // And comes again.
    listener.accept().await?;
    Ok(())
}

#[tokio::test]
async fn reflection_names_what_this_process_serves() -> Result {
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
    use tonic_reflection::pb::v1::{ServerReflectionRequest, ServerReflectionResponse};
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("s.sock");
    let _server = serve(&path, 7, users(me()))?;
    let ask = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut client = ServerReflectionClient::new(bulkhead_ipc::client::channel(&path));
    let mut answers = client.server_reflection_info(tokio_stream::iter([ask])).await?.into_inner();
    let Some(ServerReflectionResponse { message_response: Some(MessageResponse::ListServicesResponse(list)), .. }) =
        answers.message().await?
    else {
        return Err("no list of services".into());
    };
    let mut names: Vec<String> = list.service.into_iter().map(|service| service.name).collect();
    names.sort();
    assert_eq!(
        names,
        [
            "grpc.health.v1.Health",
            "grpc.reflection.v1.ServerReflection",
            "kubelet.common.v1.Logging",
            "kubelet.common.v1.Process",
            "kubelet.common.v1.Traces",
            "kubelet.syncd.v1.Events",
            "kubelet.syncd.v1.Eviction",
            "kubelet.syncd.v1.Images",
            "kubelet.syncd.v1.Logs",
            "kubelet.syncd.v1.Node",
            "kubelet.syncd.v1.Ooms",
            "kubelet.syncd.v1.Pods",
            "kubelet.syncd.v1.Resources",
            "kubelet.syncd.v1.RuntimeStats",
            "kubelet.syncd.v1.Stats",
            "kubelet.syncd.v1.Storage",
            "kubelet.syncd.v1.Streams",
            "kubelet.syncd.v1.Views",
        ]
    );
    Ok(())
}

#[tokio::test]
async fn strangers_and_oversized_messages_are_refused() -> Result {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("s.sock");
    // Nobody is uid 0 here and nobody is me: this process has no role (as root it is the operator).
    let _server = serve(&path, 7, users(1_000_000))?;
    let mut client = process_client::ProcessClient::new(bulkhead_ipc::client::channel(&path));
    let hello = client.hello(HelloRequest::default()).await;
    if me() == 0 {
        assert_eq!(hello?.into_inner().epoch, 7);
        let large = HelloRequest { process: "x".repeat(MAX_MESSAGE_BYTES + 1), version: String::new() };
        let refused = client.hello(large).await.map(|_| ()).map_err(|s| s.code());
        assert_eq!(refused, Err(Code::OutOfRange), "a message over the cap");
    } else {
        assert_eq!(hello.map(|_| ()).map_err(|s| s.code()), Err(Code::PermissionDenied));
    }
    Ok(())
}

#[tokio::test]
async fn the_broker_passes_descriptors_and_reasons() -> Result {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("b.sock");
    let file = dir.path().join("f");
    std::fs::write(&file, "content")?;
    let client = BrokerClient::new(&path);
    let away = client.open(Kind::Kmsg(Kmsg {})).await.map(|_| ()).map_err(|e| e.code());
    assert_eq!(away, Err(Code::Unavailable), "no socket means unknown, not refused");

    let listener = bulkhead_sys::scm::listen(&path, 0o600)?;
    let handler = move |_caller, request| {
        let file = file.clone();
        async move {
            match request {
                BrokerRequest::Open(Kind::Manifest(Manifest { name, .. })) if name == "f" => {
                    Ok(Some(std::fs::File::open(file)?.into()))
                }
                BrokerRequest::PutState(StateKind::CpuManager, fd) => {
                    let text = bulkhead_sys::memfd::read_sealed(fd.as_fd(), 100)
                        .map_err(|e| Status::invalid_argument(e.to_string()))?;
                    std::fs::write(file, text)?;
                    Ok(None)
                }
                _ => Err(Status::not_found("no such manifest")),
            }
        }
    };
    tokio::spawn(broker::serve(listener, users(me()), Gate::new(Limits::default()), handler, std::future::pending()));

    let fd = client.open(Kind::Manifest(Manifest { index: 0, name: "f".into() })).await?;
    assert_eq!(std::io::read_to_string(std::fs::File::from(fd))?, "content");
    let refused = client.open(Kind::Kmsg(Kmsg {})).await;
    assert!(
        matches!(&refused, Err(e) if e.code() == Code::NotFound && e.to_string().contains("no such manifest")),
        "{refused:?}"
    );
    client.put_state(StateKind::CpuManager, bulkhead_sys::memfd::sealed("state", b"new")?).await?;
    let fd = client.open(Kind::Manifest(Manifest { index: 0, name: "f".into() })).await?;
    assert_eq!(std::io::read_to_string(std::fs::File::from(fd))?, "new");
    Ok(())
}

/// As a caller that has given up on one state file and writes the next.
#[tokio::test]
async fn what_nobody_waits_for_any_more_is_dropped() -> Result {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("b.sock");
    let listener = bulkhead_sys::scm::listen(&path, 0o600)?;
    let (begun, mut told) = tokio::sync::mpsc::unbounded_channel();
    let handler = move |_caller, _request| {
        let begun = begun.clone();
        async move {
            // Goes when the handler does.
            let (alive, ended) = tokio::sync::oneshot::channel::<()>();
            let _ = begun.send(ended);
            std::future::pending::<()>().await;
            drop(alive);
            Ok(None)
        }
    };
    tokio::spawn(broker::serve(listener, users(me()), Gate::new(Limits::default()), handler, std::future::pending()));
    let client = BrokerClient::new(&path);
    let asked = client.put_state(StateKind::CpuManager, bulkhead_sys::memfd::sealed("state", b"old")?);
    let ended = tokio::select! {
        done = asked => panic!("{done:?}"),
        ended = told.recv() => ended.ok_or("nothing has begun")?,
    };
    assert!(tokio::time::timeout(Duration::from_secs(9), ended).await?.is_err(), "the handler was dropped");
    Ok(())
}

#[tokio::test]
async fn a_large_or_broken_datagram_is_answered_not_obeyed() -> Result {
    use prost::Message as _;
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("b.sock");
    let listener = bulkhead_sys::scm::listen(&path, 0o600)?;
    let handler = |_, _| async { Ok(None) };
    tokio::spawn(broker::serve(listener, users(me()), Gate::new(Limits::default()), handler, std::future::pending()));
    let cases = [
        (vec![0xff; 100], Code::InvalidArgument),
        (OpenRequest { id: 3, kind: None, ..Default::default() }.encode_to_vec(), Code::InvalidArgument),
        (vec![0; broker::MAX_DATAGRAM_BYTES + 1], Code::ResourceExhausted),
    ];
    for (bytes, expected) in cases {
        let socket = bulkhead_sys::async_fd::register(bulkhead_sys::scm::connect(&path)?)?;
        socket.async_io(tokio::io::Interest::WRITABLE, |fd| bulkhead_sys::scm::send(fd, &bytes, &[])).await?;
        let mut buffer = vec![0; 4096];
        let got = socket.async_io(tokio::io::Interest::READABLE, |fd| bulkhead_sys::scm::recv(fd, &mut buffer)).await?;
        let reply = bulkhead_ipc::volnetd::OpenReply::decode(&buffer[..got.len])?;
        assert_eq!(Code::from_i32(reply.code as i32), expected, "{}", reply.message);
    }
    Ok(())
}
