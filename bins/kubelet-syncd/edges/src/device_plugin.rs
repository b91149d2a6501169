//! A device plugin as a client: one connection, kept as long as the plugin lives (upstream `devicemanager/endpoint.go` and
//! `plugin/v1beta1/client.go`).

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_device_plugin::v1beta1::device_plugin_client::DevicePluginClient;
use bulkhead_device_plugin::v1beta1::{
    AllocateRequest, ContainerAllocateRequest, ContainerAllocateResponse, ContainerPreferredAllocationRequest,
    DevicePluginOptions, Empty, ListAndWatchResponse, PreStartContainerRequest, PreferredAllocationRequest,
};
use bulkhead_types::{FAR, later};
use tonic::transport::Channel;
use tonic::{Request, Response, Status, Streaming};

use crate::csi::connection::{ANSWER_BYTES_MAX, DIAL_TIMEOUT, as_grpc_go, channel, not_reached};
use crate::csi::{Dial, PluginAddress};

/// Upstream's bounds: a plugin registers before it listens, at times; and PreStartContainer may reset a device.
pub const DIAL: Duration = Duration::from_secs(10);
const PRE_START: Duration = Duration::from_secs(30);
/// Upstream has none for these.
const OPTIONS: Duration = Duration::from_secs(10);
const PREFERRED: Duration = Duration::from_secs(30);
const ALLOCATE: Duration = Duration::from_secs(120);
/// Between two tries to connect.
const AGAIN: Duration = Duration::from_millis(100);

/// A connected plugin. Clones share the connection.
#[derive(Debug, Clone)]
pub struct DevicePlugin {
    client: DevicePluginClient<Channel>,
    /// No call takes longer, whatever its own bound.
    most: Duration,
}

/// There is no connection to a plugin.
#[derive(Debug)]
pub struct Unreached {
    /// UNAVAILABLE, in gRPC's words.
    pub status: Status,
    /// What the try to connect came to: `NotFound` and `ConnectionRefused` say that nobody listens there.
    pub kind: io::ErrorKind,
}

/// A connection that is kept, for many calls.
async fn reach(dial: &Arc<dyn Dial>, address: &PluginAddress) -> Result<Channel, Unreached> {
    let dialed = tokio::time::timeout(DIAL_TIMEOUT, dial.dial(address)).await;
    let dialed = dialed.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    let stream = dialed.map_err(|error| Unreached { status: not_reached(address, &error), kind: error.kind() })?;
    channel(stream).await.map_err(|status| Unreached { status, kind: io::ErrorKind::ConnectionReset })
}

fn request<Q>(message: Q, deadline: Duration) -> Request<Q> {
    let mut request = Request::new(message);
    request.set_timeout(deadline.min(FAR));
    request
}

async fn bounded<R>(deadline: Duration, call: impl Future<Output = Result<Response<R>, Status>>) -> Result<R, Status> {
    match tokio::time::timeout(deadline, call).await {
        Ok(answer) => answer.map(Response::into_inner).map_err(as_grpc_go),
        Err(_) => Err(Status::deadline_exceeded("context deadline exceeded")),
    }
}

impl DevicePlugin {
    /// Connects. `patience`: a plugin that does not listen yet is waited for so long. `most`: no call takes longer, whatever its own
    /// bound.
    ///
    /// # Errors
    /// It does not listen, or not where it may.
    pub async fn connect(
        dial: &Arc<dyn Dial>,
        address: &PluginAddress,
        patience: Duration,
        most: Duration,
    ) -> Result<Self, Unreached> {
        let until = later(tokio::time::Instant::now(), patience);
        loop {
            match reach(dial, address).await {
                Ok(channel) => {
                    let client = DevicePluginClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX);
                    return Ok(DevicePlugin { client, most });
                }
                Err(_) if tokio::time::Instant::now() + AGAIN < until => tokio::time::sleep(AGAIN).await,
                Err(unreached) => return Err(unreached),
            }
        }
    }

    /// Which of the optional calls it has.
    ///
    /// # Errors
    /// Its own, or it did not answer in time.
    pub async fn options(&self) -> Result<DevicePluginOptions, Status> {
        let (mut client, bound) = (self.client.clone(), OPTIONS.min(self.most));
        bounded(bound, client.get_device_plugin_options(request(Empty {}, bound))).await
    }

    /// Its devices from now on; the stream's end is the plugin's.
    ///
    /// # Errors
    /// Its own.
    pub async fn list_and_watch(&self) -> Result<Streaming<ListAndWatchResponse>, Status> {
        self.client.clone().list_and_watch(Empty {}).await.map(Response::into_inner).map_err(as_grpc_go)
    }

    /// What it tells next of its devices; None: it has ended.
    ///
    /// # Errors
    /// Its own, or the connection broke off.
    pub async fn next_list(
        stream: &mut Streaming<ListAndWatchResponse>,
    ) -> Result<Option<ListAndWatchResponse>, Status> {
        stream.message().await.map_err(as_grpc_go)
    }

    /// Which devices it would like to give.
    ///
    /// # Errors
    /// Its own, or it did not answer in time.
    pub async fn preferred(
        &self,
        available: Vec<String>,
        must_include: Vec<String>,
        size: usize,
    ) -> Result<Vec<String>, Status> {
        let wanted = ContainerPreferredAllocationRequest {
            available_device_i_ds: available,
            must_include_device_i_ds: must_include,
            allocation_size: i32::try_from(size).unwrap_or(i32::MAX),
        };
        let message = PreferredAllocationRequest { container_requests: vec![wanted] };
        let (mut client, bound) = (self.client.clone(), PREFERRED.min(self.most));
        let answer = bounded(bound, client.get_preferred_allocation(request(message, bound))).await?;
        Ok(answer.container_responses.into_iter().next().map(|first| first.device_i_ds).unwrap_or_default())
    }

    /// Gives devices to a container; None: the answer is for no container.
    ///
    /// # Errors
    /// Its own, or it did not answer in time.
    pub async fn allocate(&self, devices: Vec<String>) -> Result<Option<ContainerAllocateResponse>, Status> {
        let message = AllocateRequest { container_requests: vec![ContainerAllocateRequest { devices_ids: devices }] };
        let (mut client, bound) = (self.client.clone(), ALLOCATE.min(self.most));
        let answer = bounded(bound, client.allocate(request(message, bound))).await?;
        Ok(answer.container_responses.into_iter().next())
    }

    /// A container with these devices is about to start.
    ///
    /// # Errors
    /// Its own, or it did not answer in time.
    pub async fn pre_start(&self, devices: Vec<String>) -> Result<(), Status> {
        let message = PreStartContainerRequest { devices_ids: devices };
        let (mut client, bound) = (self.client.clone(), PRE_START.min(self.most));
        bounded(bound, client.pre_start_container(request(message, bound))).await.map(drop)
    }
}
