//! `kubelet.sock` in device-plugins: where plugins register (upstream `plugin/v1beta1/server.go`). The socket is bound by
//! kubelet-volnetd; only root can connect.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use bulkhead_device_plugin::v1beta1::registration_server::{Registration, RegistrationServer};
use bulkhead_device_plugin::v1beta1::{Empty, RegisterRequest};
use kubelet_pod_resources::connections;
use tokio::net::UnixListener;
use tonic::{Request, Response, Status};

use super::DevicePlugins;

/// A registration is some names.
const REQUEST_BYTES_MAX: usize = 16 << 10;

struct Registrar(Arc<DevicePlugins>);

#[tonic::async_trait]
impl Registration for Registrar {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        let RegisterRequest { version, endpoint, resource_name, options: _ } = request.into_inner();
        self.0.registration(&version, &endpoint, &resource_name).await.map_err(Status::unknown)?;
        Ok(Response::new(Empty {}))
    }
}

/// Takes registrations for as long as the socket can be served.
///
/// # Errors
/// It cannot.
pub(super) async fn serve(
    listener: OwnedFd,
    devices: Arc<DevicePlugins>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let listener = std::os::unix::net::UnixListener::from(listener);
    listener.set_nonblocking(true)?;
    let listener = UnixListener::from_std(listener)?;
    let service = RegistrationServer::new(Registrar(devices)).max_decoding_message_size(REQUEST_BYTES_MAX);
    connections::server()
        .concurrency_limit_per_connection(8)
        .add_service(service)
        .serve_with_incoming(connections::clients(listener))
        .await?;
    Ok(())
}
