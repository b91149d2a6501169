//! The client against a stand-in for a runtime on a real socket: reconnecting, deadlines, events.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bulkhead_cri::v1::runtime_service_server::{RuntimeService, RuntimeServiceServer};
use bulkhead_cri::{Connector, CriClient, CriDeadlines, DirectConnector, RuntimeEventKind, v1};
use futures_util::StreamExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::{Request, Response, Status};

struct Runtime {
    name: &'static str,
    events: parking_lot::Mutex<Option<mpsc::Receiver<Result<v1::ContainerEventResponse, Status>>>>,
}

#[tonic::async_trait]
impl RuntimeService for Runtime {
    async fn version(&self, request: Request<v1::VersionRequest>) -> Result<Response<v1::VersionResponse>, Status> {
        assert!(request.metadata().get("grpc-timeout").is_some(), "the server is told the deadline");
        Ok(Response::new(v1::VersionResponse { runtime_name: self.name.into(), ..Default::default() }))
    }

    async fn start_container(
        &self,
        _: Request<v1::StartContainerRequest>,
    ) -> Result<Response<v1::StartContainerResponse>, Status> {
        std::future::pending().await
    }

    async fn container_status(
        &self,
        _: Request<v1::ContainerStatusRequest>,
    ) -> Result<Response<v1::ContainerStatusResponse>, Status> {
        Err(Status::not_found("an error occurred when try to find container \"x\": not found"))
    }

    async fn list_containers(
        &self,
        _: Request<v1::ListContainersRequest>,
    ) -> Result<Response<v1::ListContainersResponse>, Status> {
        let container = v1::Container { image_ref: "x".repeat(1 << 20), ..Default::default() };
        Ok(Response::new(v1::ListContainersResponse { containers: vec![container; 6] }))
    }

    async fn exec_sync(&self, request: Request<v1::ExecSyncRequest>) -> Result<Response<v1::ExecSyncResponse>, Status> {
        match &request.get_ref().cmd[..] {
            [one] if one == "fail" => Err(Status::deadline_exceeded("the command's time is up")),
            [one] if one == "true" => Ok(Response::new(v1::ExecSyncResponse::default())),
            [one] if one == "false" => {
                Ok(Response::new(v1::ExecSyncResponse { exit_code: 1, ..v1::ExecSyncResponse::default() }))
            }
            _ => {
                let (stdout, stderr) = (vec![b'o'; 20 << 20], vec![b'e'; 3]);
                Ok(Response::new(v1::ExecSyncResponse { stdout, stderr, exit_code: 3 }))
            }
        }
    }

    async fn get_container_events(
        &self,
        _: Request<v1::GetEventsRequest>,
    ) -> Result<Response<tonic::codegen::BoxStream<v1::ContainerEventResponse>>, Status> {
        match self.events.lock().take() {
            Some(receiver) => Ok(Response::new(Box::pin(ReceiverStream::new(receiver)))),
            None => Err(Status::unimplemented("no events here")),
        }
    }
}

/// Serves until the returned task is aborted; then every connection is closed, as when a runtime is killed.
fn serve(
    path: &Path,
    name: &'static str,
    events: Option<mpsc::Receiver<Result<v1::ContainerEventResponse, Status>>>,
) -> tokio::task::JoinHandle<()> {
    let _ = std::fs::remove_file(path);
    let listener = UnixListener::bind(path).unwrap();
    tokio::spawn(async move {
        let runtime = Runtime { name, events: parking_lot::Mutex::new(events) };
        tonic::transport::Server::builder()
            .add_service(RuntimeServiceServer::new(runtime))
            .serve_with_incoming(UnixListenerStream::new(listener))
            .await
            .unwrap();
    })
}

/// As [`serve`], on a thread with its own runtime, so that ending it closes its sockets at once.
struct Killable {
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Killable {
    fn start(path: &Path, name: &'static str) -> Self {
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let (ready, is_ready) = std::sync::mpsc::channel();
        let path = path.to_owned();
        let thread = std::thread::spawn(move || {
            tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
                let _server = serve(&path, name, None);
                ready.send(()).unwrap();
                let _ = stopped.await;
            });
        });
        is_ready.recv().unwrap();
        Killable { stop: Some(stop), thread: Some(thread) }
    }

    fn kill(mut self) {
        drop(self.stop.take());
        self.thread.take().unwrap().join().unwrap();
    }
}

fn client(path: &Path, deadline: Duration) -> (CriClient, Arc<AtomicUsize>) {
    let connects = Arc::new(AtomicUsize::new(0));
    let (count, path) = (connects.clone(), path.to_owned());
    let connector = move || -> bulkhead_cri::ConnectFuture {
        count.fetch_add(1, Ordering::SeqCst);
        let path = path.clone();
        Box::pin(async move { UnixStream::connect(path).await })
    };
    (CriClient::new(Arc::new(connector), CriDeadlines { request: deadline }), connects)
}

async fn name_of(client: &CriClient) -> Result<String, bulkhead_cri::CriError> {
    client.version(v1::VersionRequest::default()).await.map(|v| v.runtime_name)
}

#[tokio::test]
async fn a_restarted_runtime_is_found_again_by_a_fresh_connection() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cri.sock");
    let (client, connects) = client(&path, Duration::from_secs(5));

    let down = name_of(&client).await.unwrap_err();
    assert!(down.is_unavailable(), "{down:?}");

    let first = Killable::start(&path, "first");
    assert_eq!(name_of(&client).await.unwrap(), "first");
    assert_eq!(name_of(&client.clone()).await.unwrap(), "first");
    assert_eq!(connects.load(Ordering::SeqCst), 2, "one failed, one that both calls share");

    // A call in flight when the runtime dies ends at once, as unavailable.
    let waiting = client.clone();
    let call = tokio::spawn(async move { waiting.start_container(v1::StartContainerRequest::default()).await });
    tokio::task::yield_now().await;
    name_of(&client).await.unwrap();
    first.kill();
    let broken = call.await.unwrap().unwrap_err();
    assert!(broken.is_unavailable(), "{broken:?}");

    let down = name_of(&client).await.unwrap_err();
    assert!(down.is_unavailable() && down.is_unknown_outcome(), "{down:?}");

    let second = Killable::start(&path, "second");
    assert_eq!(name_of(&client).await.unwrap(), "second");
    second.kill();
}

/// A runtime that is stopped: what was asked of it goes with the connection, and is not kept until it reads again.
#[tokio::test(start_paused = true)]
async fn a_runtime_that_reads_nothing_is_given_up_after_seven_minutes() {
    use tokio::io::AsyncReadExt as _;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cri.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let began = tokio::time::Instant::now();
    let (client, connects) = client(&path, Duration::from_secs(3600));
    let call = tokio::spawn(async move { name_of(&client).await });
    let (mut connection, _) = listener.accept().await.unwrap();
    let mut said = Vec::new();
    connection.read_to_end(&mut said).await.unwrap();
    assert_eq!(began.elapsed().as_secs(), 7 * 60);
    let broken = call.await.unwrap().unwrap_err();
    assert!(broken.is_unavailable() && broken.is_unknown_outcome(), "{broken:?}");
    assert_eq!(connects.load(Ordering::SeqCst), 1, "nobody asks again");
}

#[tokio::test]
async fn deadlines_answers_and_sizes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cri.sock");
    let _server = serve(&path, "slow", None);
    let (client, _) = client(&path, Duration::from_millis(100));

    let late = client.start_container(v1::StartContainerRequest::default()).await.unwrap_err();
    assert!(late.is_deadline_exceeded(), "{late:?}");
    assert_eq!(late.to_string(), "rpc error: code = DeadlineExceeded desc = context deadline exceeded");
    assert_eq!(name_of(&client).await.unwrap(), "slow", "the connection is still good");

    let gone = client.container_status(v1::ContainerStatusRequest::default()).await.unwrap_err();
    assert!(gone.is_not_found(), "{gone:?}");
    let unknown = client.exec(v1::ExecRequest::default()).await.unwrap_err();
    assert!(unknown.is_unimplemented(), "{unknown:?}");
}

#[derive(Default)]
struct Heard(parking_lot::Mutex<Vec<(&'static str, bool)>>);

impl bulkhead_cri::CallObserver for Heard {
    fn call_ended(&self, operation: &'static str, _: Duration, error: Option<&bulkhead_cri::CriError>) {
        self.0.lock().push((operation, error.is_some()));
    }
}

#[tokio::test]
async fn calls_are_traced_under_upstreams_names() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cri.sock");
    let _server = serve(&path, "heard", None);
    let heard = Arc::new(Heard::default());
    let client = client(&path, Duration::from_secs(5)).0.observed_by(heard.clone());
    name_of(&client).await.unwrap();
    client.run_pod_sandbox(v1::RunPodSandboxRequest::default()).await.unwrap_err();
    client.clone().update_container_resources(v1::UpdateContainerResourcesRequest::default()).await.unwrap_err();
    let calls = heard.0.lock().clone();
    assert_eq!(calls, [("version", false), ("run_podsandbox", true), ("update_container", true)]);
}

/// A probe or a hook that fails is an error of `exec_sync` in metrics, as upstream counts it, and an answer for who asked.
#[tokio::test]
async fn a_command_that_exits_with_a_code_is_told_as_failed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cri.sock");
    let _server = serve(&path, "heard", None);
    let heard = Arc::new(Heard::default());
    let client = client(&path, Duration::from_secs(5)).0.observed_by(heard.clone());
    for (command, code) in [("true", 0), ("false", 1)] {
        let request = v1::ExecSyncRequest { cmd: vec![command.to_owned()], ..Default::default() };
        assert_eq!(client.exec_sync(request.clone()).await.unwrap().exit_code, code);
        assert_eq!(client.exec_sync_whole(request).await.unwrap().exit_code, code);
    }
    client.exec_sync(v1::ExecSyncRequest { cmd: vec!["fail".to_owned()], ..Default::default() }).await.unwrap_err();
    let calls: Vec<bool> = heard.0.lock().iter().map(|(_, failed)| *failed).collect();
    assert_eq!(calls, [false, false, true, true, true]);
}

#[tokio::test]
async fn an_answer_above_four_mebibytes_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cri.sock");
    let _server = serve(&path, "large", None);
    let client = CriClient::new(Arc::new(DirectConnector(path)) as Arc<dyn Connector>, CriDeadlines::default());
    let list = client.list_containers(v1::ListContainersRequest::default()).await.unwrap();
    assert_eq!(list.containers.len(), 6);
}

#[tokio::test]
async fn events_come_in_order_and_the_end_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cri.sock");
    let (sender, receiver) = mpsc::channel(4);
    let _server = serve(&path, "events", Some(receiver));
    let (client, _) = client(&path, Duration::from_secs(5));
    let mut events = client.container_events();
    for (id, kind) in
        [("a", v1::ContainerEventType::ContainerStartedEvent), ("b", v1::ContainerEventType::ContainerDeletedEvent)]
    {
        let event = v1::ContainerEventResponse {
            container_id: id.into(),
            container_event_type: kind as i32,
            ..Default::default()
        };
        sender.send(Ok(event)).await.unwrap();
    }
    let first = events.next().await.unwrap().unwrap();
    assert_eq!((first.id.as_str(), first.kind), ("a", RuntimeEventKind::Started));
    let second = events.next().await.unwrap().unwrap();
    assert_eq!((second.id.as_str(), second.kind), ("b", RuntimeEventKind::Deleted));
    drop(sender);
    assert!(events.next().await.unwrap().unwrap_err().is_unavailable());

    let refused = client.container_events().next().await.unwrap().unwrap_err();
    assert!(refused.is_unimplemented(), "{refused:?}");
    for mut events in [client.containerd_events("k8s.io"), client.containerd_ends("k8s.io")] {
        let refused = events.next().await.unwrap().unwrap_err();
        assert!(refused.is_unimplemented(), "{refused:?}");
    }
}

/// More than a message may have: of a command's output the first part is taken, and the rest is nobody's memory.
#[tokio::test(flavor = "current_thread")]
async fn of_a_command_s_output_the_first_part_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runtime.sock");
    let server = serve(&path, "a", None);
    let client = CriClient::new(Arc::new(DirectConnector(path)), CriDeadlines::default());
    let request = |command: &str| v1::ExecSyncRequest { cmd: vec![command.to_owned()], ..Default::default() };
    let reply = client.exec_sync(request("write")).await.unwrap();
    assert_eq!((reply.exit_code, reply.stderr.as_slice()), (3, &b"eee"[..]));
    assert_eq!((reply.stdout.len(), reply.stdout.capacity() < 1 << 20), (bulkhead_cri::OUTPUT_BYTES_MAX, true));
    let error = client.exec_sync(request("fail")).await.unwrap_err();
    assert!(error.is_deadline_exceeded(), "what the runtime says of a failure comes through: {error}");
    let whole = client.exec_sync_whole(request("write")).await.unwrap_err();
    assert!(whole.to_string().contains("too large"), "{whole}");
    server.abort();
}
