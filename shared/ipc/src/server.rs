//! A gRPC server on a Unix socket: the peer is identified once at accept and checked at every call, requests are
//! bounded in size and time, health and reflection are always there.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::StreamExt as _;
use prost::Message as _;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::service::Routes;
use tonic::transport::server::Connected;
use tracing::Instrument as _;

pub use tonic_health::ServingStatus;
pub use tonic_health::server::HealthReporter;

use crate::context::{POD_UID, REQUEST_ID};
use crate::peers::{Peer, Policy};

/// Deadline of a call that names none: the longest that any verb may take.
const DEFAULT_DEADLINE: Duration = Duration::from_secs(120);
/// Calls in flight on one connection. A peer needs one stream a watch and a few verbs; more wait.
const CALLS_PER_CONNECTION: usize = 256;
/// HTTP/2 flow-control windows. Messages are at most 256 KiB, so small windows cost nothing and save memory.
const WINDOW_BYTES: u32 = 64 * 1024;

/// An accepted connection and who is behind it.
#[derive(Debug)]
pub struct PeerStream {
    stream: UnixStream,
    peer: Arc<Peer>,
}

impl Connected for PeerStream {
    type ConnectInfo = Arc<Peer>;
    fn connect_info(&self) -> Arc<Peer> {
        self.peer.clone()
    }
}

impl AsyncRead for PeerStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for PeerStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, data)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Collects a process's services. Each one is given its size limit by the caller:
/// `XServer::new(x).max_decoding_message_size(MAX_MESSAGE_BYTES)`.
#[derive(Debug)]
pub struct Services {
    routes: Routes,
    health: tonic_health::server::HealthReporter,
}

impl Services {
    /// Starts with health and reflection; reflection advertises every package, as tests want it.
    ///
    /// # Errors
    /// Only if the built-in descriptor set cannot be decoded, which a build would have shown.
    pub fn new() -> Result<Self, tonic_reflection::server::Error> {
        Self::advertising(&[])
    }

    /// Starts with health and reflection; reflection advertises what this process serves and nothing else.
    ///
    /// # Errors
    /// As for [`Services::new`].
    pub fn of(process: bulkhead_types::Process) -> Result<Self, tonic_reflection::server::Error> {
        let own = format!("kubelet.{}.v1", process.short());
        let files = prost_types::FileDescriptorSet::decode(crate::DESCRIPTORS)?.file;
        let served = files.iter().filter(|file| [own.as_str(), "kubelet.common.v1"].contains(&file.package()));
        let mut names: Vec<String> = served
            .flat_map(|file| file.service.iter().map(|service| format!("{}.{}", file.package(), service.name())))
            .collect();
        names.extend(["grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection"].map(str::to_owned));
        Self::advertising(&names)
    }

    fn advertising(names: &[String]) -> Result<Self, tonic_reflection::server::Error> {
        let (health, health_service) = tonic_health::server::health_reporter();
        let reflection = || {
            let builder = tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(crate::DESCRIPTORS)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET);
            names.iter().fold(builder, |builder, name| builder.with_service_name(name))
        };
        let mut routes = Routes::builder();
        routes.add_service(health_service);
        routes.add_service(reflection().build_v1()?);
        // What older tools still ask for.
        routes.add_service(reflection().build_v1alpha()?);
        Ok(Services { routes: routes.routes(), health })
    }

    #[must_use]
    #[expect(clippy::should_implement_trait, reason = "a builder's word; nothing is summed")]
    pub fn add<S>(mut self, service: S) -> Self
    where
        S: tower_service::Service<
                http::Request<Body>,
                Response = http::Response<Body>,
                Error = std::convert::Infallible,
            > + NamedService
            + Clone
            + Send
            + Sync
            + 'static,
        S::Future: Send + 'static,
    {
        self.routes = self.routes.add_service(service);
        self
    }

    /// Serves health answers per service name; the whole process is the empty name.
    pub fn health(&self) -> tonic_health::server::HealthReporter {
        self.health.clone()
    }
}

/// Serves until `shutdown` resolves, then lets calls in flight end.
///
/// # Errors
/// Only when the HTTP/2 server itself cannot run; a failing connection ends alone.
pub async fn serve(
    listener: UnixListener,
    policy: Policy,
    services: Services,
    shutdown: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error> {
    let users = policy.users.clone();
    let incoming = futures_util::stream::unfold(listener, |listener| async move {
        let accepted = listener.accept().await.map(|(stream, _)| stream);
        Some((accepted, listener))
    })
    .filter_map(move |accepted| {
        let users = users.clone();
        async move {
            match accepted {
                Ok(stream) => match bulkhead_sys::peer::identify(&stream) {
                    Ok(identity) => {
                        let peer = Arc::new(users.classify(&identity));
                        if let Err(why) = &peer.role {
                            tracing::warn!(
                                uid = peer.uid,
                                pid = peer.pid,
                                why,
                                "peer has no role here, its calls are refused"
                            );
                        }
                        Some(Ok::<_, std::io::Error>(PeerStream { stream, peer }))
                    }
                    Err(error) => {
                        // The peer may have gone already: nobody is left to answer.
                        tracing::debug!(%error, "could not identify a peer, connection closed");
                        None
                    }
                },
                Err(error) => {
                    tracing::warn!(%error, "accept failed");
                    // Out of descriptors or memory: try again a little later instead of spinning.
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    None
                }
            }
        }
    });
    tonic::transport::Server::builder()
        .timeout(DEFAULT_DEADLINE)
        .concurrency_limit_per_connection(CALLS_PER_CONNECTION)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .http2_max_header_list_size(16 * 1024)
        .layer(PeerCheckLayer { policy: Arc::new(policy) })
        .add_routes(services.routes)
        .serve_with_incoming_shutdown(incoming, shutdown)
        .await
}

/// The span of a call that belongs to somebody's trace; calls outside of any begin none.
fn served_span(parent: &str, method: &str) -> tracing::Span {
    if parent.is_empty() {
        return tracing::Span::none();
    }
    let name = method.trim_start_matches('/');
    tracing::info_span!(
        target: bulkhead_trace::TARGET,
        "call",
        { bulkhead_trace::NAME_FIELD } = name,
        { bulkhead_trace::KIND_FIELD } = "server",
        { bulkhead_trace::PARENT_FIELD } = parent,
        rpc.system = "grpc",
    )
}

/// Checks each call against the policy and opens its tracing span.
#[derive(Debug, Clone)]
struct PeerCheckLayer {
    policy: Arc<Policy>,
}

impl<S> tower::Layer<S> for PeerCheckLayer {
    type Service = PeerCheck<S>;
    fn layer(&self, inner: S) -> PeerCheck<S> {
        PeerCheck { inner, policy: self.policy.clone() }
    }
}

#[derive(Debug, Clone)]
struct PeerCheck<S> {
    inner: S,
    policy: Arc<Policy>,
}

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl<S> tower_service::Service<http::Request<Body>> for PeerCheck<S>
where
    S: tower_service::Service<http::Request<Body>, Response = http::Response<Body>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = S::Error;
    type Future = BoxFuture<Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        let method = request.uri().path().to_owned();
        let checked = match request.extensions().get::<Arc<Peer>>() {
            Some(peer) => self.policy.check(peer, &method).map(|role| (role, peer.uid)),
            None => Err(tonic::Status::internal("connection carries no peer identity")),
        };
        match checked {
            Ok((role, uid)) => {
                let header =
                    |name| request.headers().get(name).and_then(|v: &http::HeaderValue| v.to_str().ok()).unwrap_or("");
                let span = tracing::debug_span!(
                    "call",
                    method,
                    peer = role.as_str(),
                    uid,
                    request_id = header(REQUEST_ID),
                    pod_uid = header(POD_UID)
                );
                let traced = served_span(header(bulkhead_trace::HEADER), &method);
                request.extensions_mut().insert(role);
                Box::pin(self.inner.call(request).instrument(span).instrument(traced))
            }
            Err(status) => {
                tracing::warn!(method, code = ?status.code(), "call refused: {}", status.message());
                Box::pin(async move { Ok(status.into_http()) })
            }
        }
    }
}
