//! `kubelet.syncd.v1.Resources`: what the machine has of CPUs, memory and devices, and which container has what of it for itself.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use bulkhead_config::NodeConfig;
use bulkhead_ipc::syncd as api;
use bulkhead_ipc::syncd::resource_entry::Entry;
use bulkhead_ipc::syncd::resources_server::Resources;
use kubelet_container_manager::settings::SYSTEM;
use kubelet_container_manager::topology::{Machine, sysfs};
use kubelet_model::pod::spec;
use kubelet_model::v1::Pod;
use kubelet_pod_resources::holds::{Claim, Device, Holds, Memory};
use tonic::{Request, Response, Status};

use super::api::Answer;
use super::node_view::NodeView;
use crate::container_manager::ContainerManager;

/// See the module. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ResourcesApi {
    pub config: Arc<NodeConfig>,
    pub view: Arc<NodeView>,
}

#[tonic::async_trait]
impl Resources for ResourcesApi {
    type ListStream = Answer<api::ResourceEntry>;

    async fn list(&self, _: Request<api::ListResourcesRequest>) -> Result<Response<Self::ListStream>, Status> {
        let manager = self.view.container_manager().ok_or_else(|| Status::unavailable("kubelet-syncd is starting"))?;
        let pods = self.view.sources().map(|sources| sources.pods()).unwrap_or_default();
        // Some hundred small files of the kernel's.
        let machine =
            tokio::task::spawn_blocking(machine).await.map_err(|error| Status::internal(error.to_string()))?;
        let entries = entries(&self.config, &machine, &manager, &pods);
        let entries = entries.into_iter().map(|entry| Ok(api::ResourceEntry { entry: Some(entry) }));
        Ok(Response::new(Box::pin(futures_util::stream::iter(entries))))
    }
}

/// As it is now; one that does not tell of itself is shown without nodes.
fn machine() -> Machine {
    let tree = sysfs::read(Path::new(SYSTEM)).map_err(|error| error.to_string());
    let machine = tree.and_then(|tree| sysfs::machine(&tree).map_err(|error| error.to_string()));
    machine.inspect_err(|error| tracing::warn!("failed to detect the machine's topology: {error}")).unwrap_or_default()
}

fn entries(config: &NodeConfig, machine: &Machine, manager: &ContainerManager, pods: &[Arc<Pod>]) -> Vec<Entry> {
    let (kubelet, all) = (&config.kubelet, manager.allocatable());
    let policies = api::ResourcePolicies {
        cpu_manager: kubelet.cpu_manager_policy.clone(),
        memory_manager: kubelet.memory_manager_policy.clone(),
        topology_manager: kubelet.topology_manager_policy.clone(),
        topology_scope: kubelet.topology_manager_scope.clone(),
        allocatable_cpus: all.cpus,
        allocatable_memory: all.memory.into_iter().map(memory).collect(),
    };
    let nodes = machine.nodes.iter().map(|node| api::NumaNode {
        id: node.id,
        cores: node.cores.iter().map(|core| api::CpuCore { socket: core.socket, cpus: core.threads.clone() }).collect(),
        memory_bytes: node.memory,
    });
    let devices = all.devices.into_iter().map(|one| Entry::Device(device(one)));
    let holders = holders(manager, pods).into_iter().map(Entry::Holder);
    [Entry::Policies(policies)].into_iter().chain(nodes.map(Entry::Node)).chain(devices).chain(holders).collect()
}

/// Containers that have something: of the pods that are wanted, then of others.
fn holders(manager: &ContainerManager, pods: &[Arc<Pod>]) -> Vec<api::ResourceHolder> {
    let mut others: BTreeSet<(String, String)> = manager.holders();
    let mut found = Vec::new();
    for pod in pods {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        for container in spec::init_containers(pod).iter().chain(spec::containers(pod)) {
            others.remove(&(uid.clone(), container.name.clone()));
            let holds = manager.holds(pod, container);
            if holds != Holds::default() {
                let namespace = pod.metadata.namespace.clone().unwrap_or_default();
                let name = pod.metadata.name.clone().unwrap_or_default();
                found.push(holder(namespace, name, uid.clone(), &container.name, holds));
            }
        }
    }
    let others = others.into_iter().map(|(uid, container)| {
        let holds = manager.cpus_and_memory(&uid, &container);
        holder(String::new(), String::new(), uid, &container, holds)
    });
    found.into_iter().chain(others).collect()
}

fn holder(namespace: String, pod: String, pod_uid: String, container: &str, holds: Holds) -> api::ResourceHolder {
    api::ResourceHolder {
        namespace,
        pod,
        pod_uid,
        container: container.to_owned(),
        cpus: holds.cpus,
        memory: holds.memory.into_iter().map(memory).collect(),
        devices: holds.devices.into_iter().map(device).collect(),
        claims: holds.claims.into_iter().map(claim).collect(),
    }
}

fn memory(memory: Memory) -> api::MemoryBlock {
    api::MemoryBlock { kind: memory.kind, bytes: memory.bytes, nodes: memory.nodes }
}

fn device(device: Device) -> api::NodeDevice {
    api::NodeDevice { resource: device.resource, id: device.id, nodes: device.nodes.unwrap_or_default() }
}

fn claim(claim: Claim) -> api::HeldClaim {
    let devices = claim.devices.into_iter().map(|device| api::HeldClaimDevice {
        driver: device.driver,
        pool: device.pool,
        device: device.device,
        share_id: device.share_id.unwrap_or_default(),
        cdi_devices: device.cdi,
    });
    api::HeldClaim { namespace: claim.namespace, name: claim.name, devices: devices.collect() }
}
