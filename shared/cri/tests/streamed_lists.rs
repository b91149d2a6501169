//! Lists that come in parts (feature gate CRIListStreaming), against a stand-in for a runtime on a real socket.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_cri::v1::image_service_server::{ImageService, ImageServiceServer};
use bulkhead_cri::v1::runtime_service_server::{RuntimeService, RuntimeServiceServer};
use bulkhead_cri::{Code, CriClient, CriDeadlines, CriError, DirectConnector, STREAMED_BYTES_MAX, v1};
use futures_util::{StreamExt as _, stream};
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status};

/// How the stand-in streams containers.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Containers {
    Whole,
    Unknown,
    Fails,
    FailsAtOnce,
    Hangs,
    Endless,
}

/// Knows the streamed lists, but for those of statistics of sandboxes.
#[derive(Clone)]
struct Runtime {
    containers: Containers,
    calls: Arc<parking_lot::Mutex<Vec<&'static str>>>,
}

impl Runtime {
    fn called(&self, name: &'static str) {
        self.calls.lock().push(name);
    }
}

fn parts<T: Send + 'static>(parts: Vec<T>) -> Response<BoxStream<T>> {
    Response::new(Box::pin(stream::iter(parts.into_iter().map(Ok))))
}

fn container(id: &str) -> v1::Container {
    v1::Container { id: id.into(), ..Default::default() }
}

#[tonic::async_trait]
impl RuntimeService for Runtime {
    async fn stream_pod_sandboxes(
        &self,
        _: Request<v1::StreamPodSandboxesRequest>,
    ) -> Result<Response<BoxStream<v1::StreamPodSandboxesResponse>>, Status> {
        self.called("StreamPodSandboxes");
        let part = |id: &str| v1::StreamPodSandboxesResponse {
            pod_sandboxes: vec![v1::PodSandbox { id: id.into(), ..Default::default() }],
        };
        Ok(parts(vec![part("a"), v1::StreamPodSandboxesResponse::default(), part("b")]))
    }

    async fn stream_containers(
        &self,
        request: Request<v1::StreamContainersRequest>,
    ) -> Result<Response<BoxStream<v1::StreamContainersResponse>>, Status> {
        self.called("StreamContainers");
        assert!(request.metadata().get("grpc-timeout").is_some(), "the server is told the deadline");
        let asked = request.into_inner().filter.unwrap_or_default().id;
        let part = v1::StreamContainersResponse { containers: vec![container(&asked), container("b")] };
        let first = stream::iter([Ok(part)]);
        match self.containers {
            Containers::Whole => Ok(Response::new(Box::pin(first))),
            Containers::Unknown => Err(Status::unimplemented("unknown method StreamContainers")),
            Containers::FailsAtOnce => Err(Status::internal("broken")),
            Containers::Fails => {
                Ok(Response::new(Box::pin(first.chain(stream::iter([Err(Status::internal("broken"))])))))
            }
            Containers::Hangs => Ok(Response::new(Box::pin(first.chain(stream::pending())))),
            Containers::Endless => {
                let large = v1::Container { image_ref: "x".repeat(8 << 20), ..Default::default() };
                let part = v1::StreamContainersResponse { containers: vec![large] };
                Ok(Response::new(Box::pin(stream::repeat_with(move || Ok(part.clone())))))
            }
        }
    }

    async fn stream_container_stats(
        &self,
        _: Request<v1::StreamContainerStatsRequest>,
    ) -> Result<Response<BoxStream<v1::StreamContainerStatsResponse>>, Status> {
        self.called("StreamContainerStats");
        Ok(parts(vec![v1::StreamContainerStatsResponse { container_stats: vec![v1::ContainerStats::default()] }; 3]))
    }

    async fn list_containers(
        &self,
        _: Request<v1::ListContainersRequest>,
    ) -> Result<Response<v1::ListContainersResponse>, Status> {
        self.called("ListContainers");
        Ok(Response::new(v1::ListContainersResponse { containers: vec![container("listed")] }))
    }

    async fn list_pod_sandbox_stats(
        &self,
        _: Request<v1::ListPodSandboxStatsRequest>,
    ) -> Result<Response<v1::ListPodSandboxStatsResponse>, Status> {
        self.called("ListPodSandboxStats");
        Ok(Response::new(v1::ListPodSandboxStatsResponse { stats: vec![v1::PodSandboxStats::default()] }))
    }
}

#[tonic::async_trait]
impl ImageService for Runtime {
    async fn stream_images(
        &self,
        _: Request<v1::StreamImagesRequest>,
    ) -> Result<Response<BoxStream<v1::StreamImagesResponse>>, Status> {
        self.called("StreamImages");
        Ok(parts(vec![v1::StreamImagesResponse { images: vec![v1::Image::default(); 2] }; 2]))
    }
}

/// A runtime, and a client of it without the gate.
fn start(folder: &Path, containers: Containers, deadline: Duration) -> (Runtime, CriClient) {
    let path = folder.join("cri.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let runtime = Runtime { containers, calls: Arc::default() };
    let server = tonic::transport::Server::builder()
        .add_service(RuntimeServiceServer::new(runtime.clone()).max_encoding_message_size(usize::MAX))
        .add_service(ImageServiceServer::new(runtime.clone()));
    tokio::spawn(server.serve_with_incoming(UnixListenerStream::new(listener)));
    (runtime, CriClient::new(Arc::new(DirectConnector(path)), CriDeadlines { request: deadline }))
}

async fn containers(client: &CriClient) -> Result<Vec<String>, CriError> {
    let filter = v1::ContainerFilter { id: "asked".into(), ..Default::default() };
    let list = client.list_containers(v1::ListContainersRequest { filter: Some(filter) }).await?;
    Ok(list.containers.into_iter().map(|container| container.id).collect())
}

#[tokio::test]
async fn parts_make_one_list() {
    let folder = tempfile::tempdir().unwrap();
    let (runtime, client) = start(folder.path(), Containers::Whole, Duration::from_secs(5));
    assert_eq!(containers(&client).await.unwrap(), ["listed"], "without the gate");
    let client = client.with_streamed_lists();
    assert_eq!(containers(&client).await.unwrap(), ["asked", "b"], "the filter is passed on");
    let sandboxes = client.list_pod_sandbox(v1::ListPodSandboxRequest::default()).await.unwrap().items;
    assert_eq!(sandboxes.iter().map(|sandbox| sandbox.id.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    let stats = client.list_container_stats(v1::ListContainerStatsRequest::default()).await.unwrap().stats;
    let images = client.list_images(v1::ListImagesRequest::default()).await.unwrap().images;
    assert_eq!((stats.len(), images.len()), (3, 4));
    let expected = ["ListContainers", "StreamContainers", "StreamPodSandboxes", "StreamContainerStats", "StreamImages"];
    assert_eq!(*runtime.calls.lock(), expected);
}

#[tokio::test]
async fn a_service_that_does_not_know_a_stream_is_asked_for_none_again() {
    let folder = tempfile::tempdir().unwrap();
    let (runtime, client) = start(folder.path(), Containers::Unknown, Duration::from_secs(5));
    let client = client.with_streamed_lists();
    let clone = client.clone();
    assert_eq!(containers(&client).await.unwrap(), ["listed"]);
    assert_eq!(containers(&clone).await.unwrap(), ["listed"]);
    // The other lists of that service come in one message too; those of the image service are its own.
    client.list_pod_sandbox_stats(v1::ListPodSandboxStatsRequest::default()).await.unwrap();
    client.list_images(v1::ListImagesRequest::default()).await.unwrap();
    let expected = ["StreamContainers", "ListContainers", "ListContainers", "ListPodSandboxStats", "StreamImages"];
    assert_eq!(*runtime.calls.lock(), expected);
}

#[tokio::test]
async fn any_other_error_is_the_lists() {
    for (containers_are, deadline, code) in [
        (Containers::Fails, Duration::from_secs(5), Code::Internal),
        (Containers::FailsAtOnce, Duration::from_secs(5), Code::Internal),
        (Containers::Hangs, Duration::from_millis(100), Code::DeadlineExceeded),
        (Containers::Endless, Duration::from_secs(60), Code::ResourceExhausted),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let (runtime, client) = start(folder.path(), containers_are, deadline);
        let client = client.with_streamed_lists();
        let error = containers(&client).await.unwrap_err();
        assert_eq!((error.code, error.method), (code, "stream_containers"), "{containers_are:?}: {error}");
        if containers_are == Containers::Endless {
            assert!(error.message.contains(&STREAMED_BYTES_MAX.to_string()), "{error}");
        }
        // Nothing is listed the other way, now or later.
        containers(&client).await.unwrap_err();
        assert_eq!(*runtime.calls.lock(), ["StreamContainers"; 2], "{containers_are:?}");
    }
}
