//! The client: one HTTP/2 connection, made anew by the connector whenever it broke, and a deadline for each call.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bulkhead_types::FAR;
use hyper_util::rt::TokioIo;
use prost::Message;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status};
use tracing::field::Empty;
use tracing::{Instrument as _, Span};

use crate::containerd::service::events_client::EventsClient;
use crate::containerd::tasks::tasks_client::TasksClient;
use crate::error::CriError;
use crate::first_output::FirstOutput;
use crate::in_flight::InFlight;
use crate::v1;
use crate::v1::image_service_client::ImageServiceClient;
use crate::v1::runtime_service_client::RuntimeServiceClient;

/// The largest answer taken. A list of some thousand containers stays below it; gRPC's own default of 4 MiB does not
/// (upstream `cri-client/pkg/utils.go`).
pub const MESSAGE_BYTES_MAX: usize = 16 << 20;

/// The largest list taken of all parts of a stream together. Upstream takes any.
pub const STREAMED_BYTES_MAX: usize = 64 << 20;

/// Flow-control windows. hyper's defaults hold up to 2 MiB a stream in memory for a throughput that a Unix socket has
/// anyway; the connection's window is larger so that one slow stream cannot stop the others.
const STREAM_WINDOW_BYTES: u32 = 128 << 10;
const CONNECTION_WINDOW_BYTES: u32 = 512 << 10;
/// Error texts travel in the trailers, and runtimes put whole command outputs there.
const HEADERS_BYTES_MAX: u32 = 128 << 10;
/// A connect that takes longer has failed: the broker's own calls have shorter deadlines.
const CONNECT_DEADLINE: Duration = Duration::from_secs(10);
/// A connection with calls on it on which nothing has come for so long is asked whether anybody reads. Servers made with grpc-go hang up
/// on who asks more often than every 5 min (`keepalive.EnforcementPolicy`).
const SILENCE: Duration = Duration::from_secs(6 * 60);
/// Without an answer for so long the connection goes, and with it the calls that were given up: they stay as long as nobody reads them.
const SILENCE_PATIENCE: Duration = Duration::from_secs(60);

/// What a [`Connector`] answers with.
pub type ConnectFuture = Pin<Box<dyn Future<Output = io::Result<UnixStream>> + Send>>;

/// Where connections to a runtime come from: the descriptor broker in production, the socket itself in tests. Called
/// once for each new connection, never while another connection of the same client is alive.
pub trait Connector: Send + Sync + 'static {
    fn connect(&self) -> ConnectFuture;
}

impl<F> Connector for F
where
    F: Fn() -> ConnectFuture + Send + Sync + 'static,
{
    fn connect(&self) -> ConnectFuture {
        self()
    }
}

/// Connects to a socket by its path.
#[derive(Debug, Clone)]
pub struct DirectConnector(pub std::path::PathBuf);

impl Connector for DirectConnector {
    fn connect(&self) -> ConnectFuture {
        let path = self.0.clone();
        Box::pin(async move { UnixStream::connect(path).await })
    }
}

/// A connector as the service that tonic wants.
#[derive(Clone)]
struct ConnectorService(Arc<dyn Connector>);

impl tower::Service<http::Uri> for ConnectorService {
    type Response = TokioIo<UnixStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TokioIo<UnixStream>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Uri) -> Self::Future {
        let connect = self.0.connect();
        Box::pin(async move { connect.await.map(TokioIo::new) })
    }
}

/// Deadlines of the calls.
#[derive(Debug, Clone, Copy)]
pub struct CriDeadlines {
    /// `runtimeRequestTimeout`: every call that names no other.
    pub request: Duration,
}

impl Default for CriDeadlines {
    fn default() -> Self {
        CriDeadlines { request: Duration::from_secs(120) }
    }
}

/// Hears of every call that ended, for metrics. Streams and calls that were given up by their caller are not told.
pub trait CallObserver: Send + Sync + 'static {
    /// `operation` is upstream's name of the call in its metrics (upstream `kuberuntime/instrumented_services.go`).
    fn call_ended(&self, operation: &'static str, took: Duration, error: Option<&CriError>);
}

/// A runtime and its image service. Cheap to clone; clones share the connection. Must be made inside a tokio runtime.
/// Nothing is connected before the first call, and a broken connection is replaced by the next call.
#[derive(Clone)]
pub struct CriClient {
    runtime: RuntimeServiceClient<Channel>,
    /// The same connection, for commands of whose output only the first part is wanted.
    commands: RuntimeServiceClient<FirstOutput>,
    images: ImageServiceClient<Channel>,
    pub(crate) events: EventsClient<Channel>,
    pub(crate) tasks: TasksClient<Channel>,
    pub(crate) deadlines: CriDeadlines,
    in_flight: InFlight,
    runtime_streams: Streams,
    image_streams: Streams,
    observer: Option<Arc<dyn CallObserver>>,
}

/// Whether lists of one service are asked for in parts. Clones share it.
#[derive(Debug, Clone, Default)]
struct Streams(Arc<AtomicBool>);

impl Streams {
    fn on() -> Self {
        Streams(Arc::new(AtomicBool::new(true)))
    }

    fn are_on(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn give_up(&self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

impl std::fmt::Debug for CriClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CriClient").field("deadlines", &self.deadlines).finish_non_exhaustive()
    }
}

impl CriClient {
    /// Runtime and image service behind one endpoint.
    pub fn new(connector: Arc<dyn Connector>, deadlines: CriDeadlines) -> Self {
        let channel = channel(connector);
        Self::over(channel.clone(), channel, deadlines)
    }

    /// An image service of its own (`imageServiceEndpoint` differs from `containerRuntimeEndpoint`).
    pub fn with_image_service(
        runtime: Arc<dyn Connector>,
        images: Arc<dyn Connector>,
        deadlines: CriDeadlines,
    ) -> Self {
        Self::over(channel(runtime), channel(images), deadlines)
    }

    fn over(runtime: Channel, images: Channel, deadlines: CriDeadlines) -> Self {
        CriClient {
            events: EventsClient::new(runtime.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX),
            tasks: TasksClient::new(runtime.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX),
            commands: RuntimeServiceClient::new(FirstOutput(runtime.clone())),
            runtime: RuntimeServiceClient::new(runtime).max_decoding_message_size(MESSAGE_BYTES_MAX),
            images: ImageServiceClient::new(images).max_decoding_message_size(MESSAGE_BYTES_MAX),
            deadlines,
            in_flight: InFlight::new(),
            runtime_streams: Streams::default(),
            image_streams: Streams::default(),
            observer: None,
        }
    }

    /// The same client, whose lists come in parts (feature gate CRIListStreaming) from each of the two services, until
    /// that says that it does not know such a call: from then on they come in one message for the client's lifetime, as
    /// upstream.
    #[must_use]
    pub fn with_streamed_lists(mut self) -> Self {
        (self.runtime_streams, self.image_streams) = (Streams::on(), Streams::on());
        self
    }

    /// The same client, with its calls told to an observer.
    #[must_use]
    pub fn observed_by(mut self, observer: Arc<dyn CallObserver>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// Before this process stops: sandboxes and containers that are being made or removed are finished, nothing further is
    /// begun (such a call is never answered). False when a call still ran after `patience`.
    pub async fn finish(&self, patience: Duration) -> bool {
        self.in_flight.finish(patience).await
    }

    pub(crate) fn runtime_client(&self) -> RuntimeServiceClient<Channel> {
        self.runtime.clone()
    }
}

fn channel(connector: Arc<dyn Connector>) -> Channel {
    // The host part becomes `:authority`. grpc-go refuses an empty one and a path; every Go client sends this.
    Endpoint::from_static("http://localhost")
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .http2_max_header_list_size(HEADERS_BYTES_MAX)
        .http2_keep_alive_interval(SILENCE)
        .keep_alive_timeout(SILENCE_PATIENCE)
        .connect_timeout(CONNECT_DEADLINE)
        .buffer_size(256)
        .connect_with_connector_lazy(ConnectorService(connector))
}

/// Runs one call under its deadline, which the server is told too, and which is [`FAR`] at most: a pod says what its grace period is.
/// None: until the caller drops it.
async fn bounded<Q, R>(
    method: &'static str,
    deadline: Option<Duration>,
    message: Q,
    call: impl AsyncFnOnce(Request<Q>) -> Result<Response<R>, Status>,
) -> Result<R, CriError> {
    let mut request = Request::new(message);
    if let Some(value) = bulkhead_trace::current().and_then(|current| current.to_string().parse().ok()) {
        request.metadata_mut().insert(bulkhead_trace::HEADER, value);
    }
    let outcome = match deadline {
        Some(deadline) => {
            let deadline = deadline.min(FAR);
            request.set_timeout(deadline);
            match tokio::time::timeout(deadline, call(request)).await {
                Ok(outcome) => outcome,
                Err(_) => return Err(CriError::deadline(method)),
            }
        }
        None => call(request).await,
    };
    outcome.map(Response::into_inner).map_err(|status| CriError::from_status(method, &status))
}

/// The name of a method in the protocol.
fn rpc_name(method: &str) -> String {
    let mut name = String::new();
    let mut starts_word = true;
    for c in method.chars() {
        match c {
            '_' => starts_word = true,
            c if starts_word => {
                name.push(c.to_ascii_uppercase());
                starts_word = false;
            }
            c => name.push(c),
        }
    }
    name
}

/// The span of a call that is part of somebody's trace; what is asked without one (relists) begins none. `service` and
/// `method` make the name that gRPC's own instrumentation gives.
fn call_span(service: &str, method: &str) -> Span {
    if bulkhead_trace::current().is_none() {
        return Span::none();
    }
    let name = format!("runtime.v1.{service}/{}", rpc_name(method));
    tracing::info_span!(
        target: bulkhead_trace::TARGET,
        "call",
        { bulkhead_trace::NAME_FIELD } = name,
        { bulkhead_trace::KIND_FIELD } = "client",
        rpc.system = "grpc",
        error = Empty,
    )
}

/// Makes the call in its span.
async fn traced<R>(
    service: &str,
    method: &str,
    call: impl Future<Output = Result<R, CriError>>,
) -> Result<R, CriError> {
    let span = call_span(service, method);
    let result = call.instrument(span.clone()).await;
    if let Err(error) = &result {
        span.record("error", tracing::field::display(error));
    }
    result
}

impl CriClient {
    fn tell<R>(&self, method: &'static str, started: Instant, result: &Result<R, CriError>) {
        if let Some(observer) = &self.observer {
            observer.call_ended(operation(method), started.elapsed(), result.as_ref().err());
        }
    }
}

macro_rules! calls {
    ($client:ident of $service:literal: $($(#[$doc:meta])* $name:ident($request:ident) -> $response:ident, $deadline:expr;)*) => {
        impl CriClient {$(
            $(#[$doc])*
            pub async fn $name(&self, request: v1::$request) -> Result<v1::$response, CriError> {
                let deadline: fn(Duration, &v1::$request) -> Option<Duration> = $deadline;
                let deadline = deadline(self.deadlines.request, &request);
                let _in_flight = self.in_flight.begin(stringify!($name)).await;
                let mut client = self.$client.clone();
                let started = Instant::now();
                let call = bounded(stringify!($name), deadline, request, async |request| client.$name(request).await);
                let result = traced($service, stringify!($name), call).await;
                self.tell(stringify!($name), started, &result);
                result
            }
        )*}
    };
}

/// Lists, each with the call that gives it in parts and the field of the parts. A list has one deadline, whichever way
/// it comes (upstream `cri-client/pkg/remote_runtime.go` and `remote_image.go`).
macro_rules! lists {
    ($client:ident of $service:literal, $streams:ident:
     $($name:ident($request:ident) -> $response:ident.$items:ident,
       $stream:ident($parts_request:ident).$parts:ident;)*) => {
        impl CriClient {$(
            pub async fn $name(&self, request: v1::$request) -> Result<v1::$response, CriError> {
                let (started, deadline) = (Instant::now(), self.deadlines.request);
                let list = async {
                    let mut client = self.$client.clone();
                    if self.$streams.are_on() {
                        let mut list = v1::$response::default();
                        let asked = v1::$parts_request { filter: request.filter.clone() };
                        let call = bounded(stringify!($stream), Some(deadline), asked, async |asked| {
                            let (mut parts, mut bytes) = (client.$stream(asked).await?.into_inner(), 0);
                            while let Some(part) = parts.message().await? {
                                bytes += part.encoded_len();
                                if bytes > STREAMED_BYTES_MAX {
                                    return Err(too_large());
                                }
                                list.$items.extend(part.$parts);
                            }
                            Ok(Response::new(()))
                        });
                        match traced($service, stringify!($stream), call).await {
                            Ok(()) => return Ok(list),
                            Err(error) if error.is_unimplemented() => {
                                let (stream, name) = (rpc_name(stringify!($stream)), rpc_name(stringify!($name)));
                                tracing::info!("{stream} not implemented, falling back to {name}");
                                self.$streams.give_up();
                            }
                            Err(error) => {
                                // That the runtime is away is told by those who follow it.
                                if !error.is_unavailable() {
                                    let (stream, received) = (rpc_name(stringify!($stream)), list.$items.len());
                                    tracing::error!(%error, itemsReceived = received, "{stream} recv failed");
                                }
                                return Err(error);
                            }
                        }
                    }
                    let left = Some(deadline.saturating_sub(started.elapsed()));
                    let call = bounded(stringify!($name), left, request, async |request| client.$name(request).await);
                    traced($service, stringify!($name), call).await
                };
                let result = list.await;
                self.tell(stringify!($name), started, &result);
                result
            }
        )*}
    };
}

fn too_large() -> Status {
    Status::resource_exhausted(format!("streamed list larger than max ({STREAMED_BYTES_MAX} bytes)"))
}

/// Upstream's names in metrics, where they are not the method's.
fn operation(method: &'static str) -> &'static str {
    match method {
        "run_pod_sandbox" => "run_podsandbox",
        "stop_pod_sandbox" => "stop_podsandbox",
        "remove_pod_sandbox" => "remove_podsandbox",
        "pod_sandbox_status" => "podsandbox_status",
        "list_pod_sandbox" => "list_podsandbox",
        "pod_sandbox_stats" => "podsandbox_stats",
        "list_pod_sandbox_stats" => "list_podsandbox_stats",
        "update_pod_sandbox_resources" => "update_podsandbox_resources",
        "update_container_resources" => "update_container",
        same => same,
    }
}

/// Seconds that the API gives as a signed number; a negative one counts as none.
fn seconds(value: i64) -> Duration {
    Duration::from_secs(u64::try_from(value).unwrap_or(0))
}

calls! { runtime of "RuntimeService":
    version(VersionRequest) -> VersionResponse, |d, _| Some(d);
    status(StatusRequest) -> StatusResponse, |d, _| Some(d);
    runtime_config(RuntimeConfigRequest) -> RuntimeConfigResponse, |d, _| Some(d);
    update_runtime_config(UpdateRuntimeConfigRequest) -> UpdateRuntimeConfigResponse, |d, _| Some(d);
    /// Twice the usual deadline, as upstream: the network is set up in it.
    run_pod_sandbox(RunPodSandboxRequest) -> RunPodSandboxResponse, |d, _| Some(d * 2);
    stop_pod_sandbox(StopPodSandboxRequest) -> StopPodSandboxResponse, |d, _| Some(d);
    remove_pod_sandbox(RemovePodSandboxRequest) -> RemovePodSandboxResponse, |d, _| Some(d);
    pod_sandbox_status(PodSandboxStatusRequest) -> PodSandboxStatusResponse, |d, _| Some(d);
    update_pod_sandbox_resources(UpdatePodSandboxResourcesRequest) -> UpdatePodSandboxResourcesResponse, |d, _| Some(d);
    create_container(CreateContainerRequest) -> CreateContainerResponse, |d, _| Some(d);
    start_container(StartContainerRequest) -> StartContainerResponse, |d, _| Some(d);
    /// The grace period and the usual deadline on top.
    stop_container(StopContainerRequest) -> StopContainerResponse, |d, r| Some(d.saturating_add(seconds(r.timeout)));
    remove_container(RemoveContainerRequest) -> RemoveContainerResponse, |d, _| Some(d);
    container_status(ContainerStatusRequest) -> ContainerStatusResponse, |d, _| Some(d);
    update_container_resources(UpdateContainerResourcesRequest) -> UpdateContainerResourcesResponse, |d, _| Some(d);
    reopen_container_log(ReopenContainerLogRequest) -> ReopenContainerLogResponse, |d, _| Some(d);
    /// The request's own time where it is longer than the usual deadline, as upstream.
    checkpoint_container(CheckpointContainerRequest) -> CheckpointContainerResponse,
        |d, r| Some(d.max(seconds(r.timeout)));
    exec(ExecRequest) -> ExecResponse, |d, _| Some(d);
    attach(AttachRequest) -> AttachResponse, |d, _| Some(d);
    port_forward(PortForwardRequest) -> PortForwardResponse, |d, _| Some(d);
    container_stats(ContainerStatsRequest) -> ContainerStatsResponse, |d, _| Some(d);
    pod_sandbox_stats(PodSandboxStatsRequest) -> PodSandboxStatsResponse, |d, _| Some(d);
}

lists! { runtime of "RuntimeService", runtime_streams:
    list_pod_sandbox(ListPodSandboxRequest) -> ListPodSandboxResponse.items,
        stream_pod_sandboxes(StreamPodSandboxesRequest).pod_sandboxes;
    list_containers(ListContainersRequest) -> ListContainersResponse.containers,
        stream_containers(StreamContainersRequest).containers;
    list_container_stats(ListContainerStatsRequest) -> ListContainerStatsResponse.stats,
        stream_container_stats(StreamContainerStatsRequest).container_stats;
    list_pod_sandbox_stats(ListPodSandboxStatsRequest) -> ListPodSandboxStatsResponse.stats,
        stream_pod_sandbox_stats(StreamPodSandboxStatsRequest).pod_sandbox_stats;
}

impl CriClient {
    /// Of each output the first [`crate::OUTPUT_BYTES_MAX`] bytes; no more of it is held at any time, however much there is.
    /// The command's own time and the usual deadline on top; a command without a limit has none here either.
    ///
    /// # Errors
    /// The command was not run to its end. What it exits with is no error here; to the [`CallObserver`] all but 0 is one.
    pub async fn exec_sync(&self, request: v1::ExecSyncRequest) -> Result<v1::ExecSyncResponse, CriError> {
        let mut client = self.commands.clone();
        self.command(request, async |request| client.exec_sync(request).await).await
    }

    /// As [`CriClient::exec_sync`], with the whole output: up to [`MESSAGE_BYTES_MAX`] in memory, twice while it is decoded.
    ///
    /// # Errors
    /// As there; or the output was larger.
    pub async fn exec_sync_whole(&self, request: v1::ExecSyncRequest) -> Result<v1::ExecSyncResponse, CriError> {
        let mut client = self.runtime.clone();
        self.command(request, async |request| client.exec_sync(request).await).await
    }

    async fn command(
        &self,
        request: v1::ExecSyncRequest,
        call: impl AsyncFnOnce(Request<v1::ExecSyncRequest>) -> Result<Response<v1::ExecSyncResponse>, Status>,
    ) -> Result<v1::ExecSyncResponse, CriError> {
        let usual = self.deadlines.request;
        let deadline = (request.timeout != 0).then(|| usual.saturating_add(seconds(request.timeout)));
        let started = Instant::now();
        let result = traced("RuntimeService", "exec_sync", bounded("exec_sync", deadline, request, call)).await;
        if let Some(observer) = &self.observer {
            let failed = match &result {
                Ok(done) => exited(done.exit_code),
                Err(error) => Some(error.clone()),
            };
            observer.call_ended("exec_sync", started.elapsed(), failed.as_ref());
        }
        result
    }
}

/// A command that exits with anything but 0 is an error of the call in metrics (upstream `cri-client/pkg/remote_runtime.go`,
/// `execSyncV1`, whose `CodeExitError` the instrumented service counts).
fn exited(code: i32) -> Option<CriError> {
    let message = || format!("command exited with {code}");
    (code != 0).then(|| CriError { code: tonic::Code::Unknown, method: "exec_sync", message: message() })
}

calls! { images of "ImageService":
    image_status(ImageStatusRequest) -> ImageStatusResponse, |d, _| Some(d);
    /// No deadline: a large image over a slow line is not an error. Dropping the future cancels the pull.
    pull_image(PullImageRequest) -> PullImageResponse, |_, _| None;
    remove_image(RemoveImageRequest) -> RemoveImageResponse, |d, _| Some(d);
    image_fs_info(ImageFsInfoRequest) -> ImageFsInfoResponse, |d, _| Some(d);
}

lists! { images of "ImageService", image_streams:
    list_images(ListImagesRequest) -> ListImagesResponse.images, stream_images(StreamImagesRequest).images;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pod's terminationGracePeriodSeconds, a probe's, and the timeout of POST /checkpoint are whatever somebody wrote there.
    #[tokio::test]
    async fn a_deadline_of_any_length_can_be_told() {
        let usual = Duration::from_secs(120);
        let cases = [
            (usual.saturating_add(seconds(30)), "150000m"),
            (usual.saturating_add(seconds(-1)), "120000m"),
            // Minutes: 100 years.
            (usual.saturating_add(seconds(i64::MAX)), "52560000M"),
            (usual.max(seconds(i64::MAX)), "52560000M"),
            (Duration::MAX, "52560000M"),
        ];
        for (deadline, told) in cases {
            let call =
                bounded("stop_container", Some(deadline), v1::StopContainerRequest::default(), async |request| {
                    let timeout = request.metadata().get("grpc-timeout").and_then(|value| value.to_str().ok());
                    assert_eq!(timeout, Some(told), "{deadline:?}");
                    Ok(Response::new(v1::StopContainerResponse {}))
                });
            call.await.unwrap();
        }
    }
}
