//! Both versions of the API on one socket.

use std::sync::Arc;

use tokio::net::UnixListener;
use tonic::{Request, Response, Status};

use crate::connections;
use crate::holds::{self, Providers, Which};
use crate::metrics::{EndpointMetrics, V1, V1ALPHA1};
use crate::rate::Limiter;
use crate::{v1, v1alpha1};

/// Requests are names; nothing that is asked is larger.
const MAX_REQUEST_BYTES: usize = 64 << 10;

/// Answers both versions. Cheap to clone.
#[derive(Clone)]
pub struct Lister {
    providers: Arc<dyn Providers>,
    limiter: Arc<Limiter>,
    metrics: EndpointMetrics,
    /// What `List` of v1 lists.
    listed: Which,
}

impl std::fmt::Debug for Lister {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lister").field("listed", &self.listed).finish_non_exhaustive()
    }
}

impl Lister {
    /// `active_pods`: the gate `KubeletPodResourcesListUseActivePods`.
    pub fn new(providers: Arc<dyn Providers>, metrics: EndpointMetrics, active_pods: bool) -> Self {
        let listed = if active_pods { Which::Active } else { Which::All };
        Lister { providers, limiter: Arc::default(), metrics, listed }
    }
}

/// Serves until `stop` resolves.
///
/// # Errors
/// The HTTP/2 server itself cannot run; a failing connection ends alone.
pub async fn serve(
    listener: UnixListener,
    lister: Lister,
    stop: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error> {
    use v1::pod_resources_lister_server::PodResourcesListerServer as V1Server;
    use v1alpha1::pod_resources_lister_server::PodResourcesListerServer as V1alpha1Server;
    connections::server()
        .add_service(V1alpha1Server::new(lister.clone()).max_decoding_message_size(MAX_REQUEST_BYTES))
        .add_service(V1Server::new(lister).max_decoding_message_size(MAX_REQUEST_BYTES))
        .serve_with_incoming_shutdown(connections::clients(listener), stop)
        .await
}

#[tonic::async_trait]
impl v1::pod_resources_lister_server::PodResourcesLister for Lister {
    async fn list(
        &self,
        _: Request<v1::ListPodResourcesRequest>,
    ) -> Result<Response<v1::ListPodResourcesResponse>, Status> {
        self.limiter.allow()?;
        self.metrics.total.with_label_values(&[V1]).inc();
        self.metrics.list.with_label_values(&[V1]).inc();
        let pod_resources = self.providers.pods(self.listed).into_iter().map(pod).collect();
        Ok(Response::new(v1::ListPodResourcesResponse { pod_resources }))
    }

    async fn get_allocatable_resources(
        &self,
        _: Request<v1::AllocatableResourcesRequest>,
    ) -> Result<Response<v1::AllocatableResourcesResponse>, Status> {
        self.limiter.allow()?;
        self.metrics.total.with_label_values(&[V1]).inc();
        self.metrics.get_allocatable.with_label_values(&[V1]).inc();
        let all = self.providers.allocatable();
        Ok(Response::new(v1::AllocatableResourcesResponse {
            devices: devices(all.devices),
            cpu_ids: all.cpus.into_iter().map(i64::from).collect(),
            memory: all.memory.into_iter().map(memory).collect(),
        }))
    }

    async fn get(
        &self,
        request: Request<v1::GetPodResourcesRequest>,
    ) -> Result<Response<v1::GetPodResourcesResponse>, Status> {
        self.limiter.allow()?;
        self.metrics.total.with_label_values(&[V1]).inc();
        self.metrics.get.with_label_values(&[V1]).inc();
        let v1::GetPodResourcesRequest { pod_name, pod_namespace } = request.into_inner();
        let Some(found) = self.providers.pod(&pod_namespace, &pod_name) else {
            self.metrics.errors_get.with_label_values(&[V1]).inc();
            // A plain error of Go is of the code Unknown.
            return Err(Status::unknown(format!("pod {pod_name} in namespace {pod_namespace} not found")));
        };
        Ok(Response::new(v1::GetPodResourcesResponse { pod_resources: Some(pod(found)) }))
    }
}

/// The first version knows devices alone, lists every pod, and no sidecar.
#[tonic::async_trait]
impl v1alpha1::pod_resources_lister_server::PodResourcesLister for Lister {
    async fn list(
        &self,
        _: Request<v1alpha1::ListPodResourcesRequest>,
    ) -> Result<Response<v1alpha1::ListPodResourcesResponse>, Status> {
        self.limiter.allow()?;
        self.metrics.total.with_label_values(&[V1ALPHA1]).inc();
        let device = |device: v1::ContainerDevices| v1alpha1::ContainerDevices {
            resource_name: device.resource_name,
            device_ids: device.device_ids,
        };
        let container = |container: holds::Container| v1alpha1::ContainerResources {
            name: container.name,
            devices: devices(container.holds.devices).into_iter().map(device).collect(),
        };
        let pod = |pod: holds::Pod| v1alpha1::PodResources {
            name: pod.name,
            namespace: pod.namespace,
            containers: pod.containers.into_iter().filter(|one| !one.sidecar).map(container).collect(),
        };
        let pod_resources = self.providers.pods(Which::All).into_iter().map(pod).collect();
        Ok(Response::new(v1alpha1::ListPodResourcesResponse { pod_resources }))
    }
}

fn pod(pod: holds::Pod) -> v1::PodResources {
    let container = |container: holds::Container| v1::ContainerResources {
        name: container.name,
        devices: devices(container.holds.devices),
        cpu_ids: container.holds.cpus.into_iter().map(i64::from).collect(),
        memory: container.holds.memory.into_iter().map(memory).collect(),
        dynamic_resources: container.holds.claims.into_iter().map(claim).collect(),
    };
    v1::PodResources {
        name: pod.name,
        namespace: pod.namespace,
        containers: pod.containers.into_iter().map(container).collect(),
    }
}

fn topology(nodes: impl IntoIterator<Item = i64>) -> v1::TopologyInfo {
    v1::TopologyInfo { nodes: nodes.into_iter().map(|id| v1::NumaNode { id }).collect() }
}

/// Each device is told by itself, once for each NUMA node that it is near to (upstream
/// containerDevicesFromResourceDeviceInstances).
fn devices(all: Vec<holds::Device>) -> Vec<v1::ContainerDevices> {
    let entries = |device: holds::Device| {
        let near: Vec<Option<i64>> =
            device.nodes.map_or_else(|| vec![None], |nodes| nodes.into_iter().map(Some).collect());
        near.into_iter().map(move |node| v1::ContainerDevices {
            resource_name: device.resource.clone(),
            device_ids: vec![device.id.clone()],
            topology: node.map(|node| topology([node])),
        })
    };
    all.into_iter().flat_map(entries).collect()
}

fn memory(memory: holds::Memory) -> v1::ContainerMemory {
    v1::ContainerMemory {
        memory_type: memory.kind,
        size: memory.bytes,
        topology: Some(topology(memory.nodes.into_iter().map(i64::from))),
    }
}

fn claim(claim: holds::Claim) -> v1::DynamicResource {
    let device = |device: holds::ClaimDevice| v1::ClaimResource {
        cdi_devices: device.cdi.into_iter().map(|name| v1::CdiDevice { name }).collect(),
        driver_name: device.driver,
        pool_name: device.pool,
        device_name: device.device,
        share_id: device.share_id,
    };
    v1::DynamicResource {
        claim_name: claim.name,
        claim_namespace: claim.namespace,
        claim_resources: claim.devices.into_iter().map(device).collect(),
    }
}

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;
