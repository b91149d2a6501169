//! `kubelet.sock` in device-plugins: where plugins register (upstream `plugin/v1beta1/server.go`). The socket is bound by
//! kubelet-volnetd; only root can connect.

use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bulkhead_device_plugin::v1beta1::registration_server::{Registration, RegistrationServer};
use bulkhead_device_plugin::v1beta1::{Empty, RegisterRequest};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::transport::Server;
use tonic::transport::server::Connected;
use tonic::{Request, Response, Status};

use super::Devices;

/// Plugins that are connected at a time; the next wait in the backlog.
const CONNECTIONS: usize = 64;
/// A registration is some names.
const REQUEST_BYTES_MAX: usize = 16 << 10;

struct Registrar(Arc<Devices>);

#[tonic::async_trait]
impl Registration for Registrar {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        let RegisterRequest { version, endpoint, resource_name, options: _ } = request.into_inner();
        self.0.registration(&version, &endpoint, &resource_name).await.map_err(Status::unknown)?;
        Ok(Response::new(Empty {}))
    }
}

/// A connection, and its place among those that there may be.
struct Counted {
    stream: UnixStream,
    _place: OwnedSemaphorePermit,
}

impl Connected for Counted {
    type ConnectInfo = ();

    fn connect_info(&self) -> Self::ConnectInfo {}
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buf)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Takes registrations for as long as the socket can be served.
///
/// # Errors
/// It cannot.
pub(super) async fn serve(
    listener: OwnedFd,
    devices: Arc<Devices>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let listener = std::os::unix::net::UnixListener::from(listener);
    listener.set_nonblocking(true)?;
    let listener = UnixListener::from_std(listener)?;
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let incoming = futures_util::stream::unfold((listener, places), |(listener, places)| async move {
        let place = places.clone().acquire_owned().await.ok()?;
        let accepted = listener.accept().await.map(|(stream, _)| Counted { stream, _place: place });
        if accepted.is_err() {
            // Out of descriptors: it is not asked again at once.
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
        Some((accepted, (listener, places)))
    });
    let service = RegistrationServer::new(Registrar(devices)).max_decoding_message_size(REQUEST_BYTES_MAX);
    Server::builder().concurrency_limit_per_connection(8).add_service(service).serve_with_incoming(incoming).await?;
    Ok(())
}
