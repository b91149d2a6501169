//! A gRPC server on a Unix socket: the peer is identified once at accept and checked at every call, requests are
//! bounded in size and time, health and reflection are always there.

use std::future::Future;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use tokio::net::UnixListener;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::service::Routes;

pub use tonic_health::ServingStatus;
pub use tonic_health::server::HealthReporter;

use crate::accept;
use crate::calls::PeerCheckLayer;
use crate::limits::{DEFAULT_DEADLINE, Gate, Limits};
use crate::peers::Policy;
use crate::reflection::{self, Reflection, V1, V1Alpha};

/// HTTP/2 flow-control windows. Messages are at most 256 KiB, so small windows cost nothing and save memory.
const WINDOW_BYTES: u32 = 64 * 1024;

/// Collects a process's services. Each one is given its size limit by the caller:
/// `XServer::new(x).max_decoding_message_size(MAX_MESSAGE_BYTES)`.
#[derive(Debug)]
pub struct Services {
    routes: Routes,
    health: tonic_health::server::HealthReporter,
    gate: Arc<Gate>,
    vsock: Option<OwnedFd>,
    longest: Duration,
}

impl Services {
    /// Starts with health and reflection; reflection advertises every package, as tests want it.
    #[expect(clippy::new_without_default, reason = "tests alone want it")]
    pub fn new() -> Self {
        Self::advertising(&reflection::every_package())
    }

    /// Starts with health and reflection; reflection advertises what this process serves and nothing else.
    pub fn of(process: bulkhead_types::Process) -> Self {
        Self::advertising(&reflection::served_by(process))
    }

    fn advertising(names: &[&'static str]) -> Self {
        let (health, health_service) = tonic_health::server::health_reporter();
        let mut routes = Routes::builder();
        routes.add_service(health_service);
        routes.add_service(Reflection::<V1>::new(names));
        routes.add_service(Reflection::<V1Alpha>::new(names));
        Services {
            routes: routes.routes(),
            health,
            gate: Gate::new(Limits::default()),
            vsock: None,
            longest: DEFAULT_DEADLINE,
        }
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

    /// Counts peers at this gate instead of one of the server's own.
    #[must_use]
    pub fn behind(self, gate: Arc<Gate>) -> Self {
        Services { gate, ..self }
    }

    /// Answers on a listening vsock as well, to [`crate::peers::Role::Vsock`].
    #[must_use]
    pub fn also_on(self, vsock: OwnedFd) -> Self {
        Services { vsock: Some(vsock), ..self }
    }

    /// The longest that a call may take which names a deadline.
    #[must_use]
    pub fn longest(self, longest: Duration) -> Self {
        Services { longest, ..self }
    }

    /// Serves health answers per service name; the whole process is the empty name.
    pub fn health(&self) -> tonic_health::server::HealthReporter {
        self.health.clone()
    }
}

/// Why a process cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("failed to serve gRPC")]
    Http(#[from] tonic::transport::Error),
    #[error("failed to listen on vsock")]
    Vsock(#[source] std::io::Error),
}

/// Serves until `shutdown` resolves, then lets calls in flight end.
///
/// # Errors
/// Only when a socket or the HTTP/2 server itself cannot be served; a failing connection ends alone.
pub async fn serve(
    listener: UnixListener,
    policy: Policy,
    services: Services,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let gate = services.gate;
    let limits = gate.limits;
    let incoming = accept::connections(listener, policy.users.clone(), gate.clone());
    let beside = match services.vsock {
        Some(vsock) => accept::from_vsock(vsock, gate.clone()).map_err(ServeError::Vsock)?.left_stream(),
        None => futures_util::stream::empty().right_stream(),
    };
    let incoming = futures_util::stream::select(incoming, beside);
    tonic::transport::Server::builder()
        .timeout(services.longest)
        .max_concurrent_streams(limits.streams)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .http2_max_header_list_size(limits.header_bytes)
        .http2_keepalive_interval(Some(limits.keepalive))
        .http2_keepalive_timeout(Some(limits.keepalive_patience))
        .layer(PeerCheckLayer::new(policy, gate))
        .add_routes(services.routes)
        .serve_with_incoming_shutdown(incoming, shutdown)
        .await?;
    Ok(())
}
