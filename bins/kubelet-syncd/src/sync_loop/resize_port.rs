//! A resize's hands: the runtime over CRI, the pod's cgroup by volnetd's verb, and the book that notes what was done.

use std::sync::Arc;

use bulkhead_cri::{CriClient, CriError, v1};
use bulkhead_ipc::context::CallContext;
use bulkhead_ipc::volnetd as api;
use bulkhead_types::{ContainerId, PodUid, SandboxId};
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::ResourceRequirements;
use kubelet_model::v1::{Container, Pod};
use tokio::time::Instant;

use super::node::NodeContext;
use super::prepare::{wire_qos, wire_resources};
use kubelet_model::node_facts::NodeFacts;
use kubelet_model::pod::resources::{CgroupResources, qos_class};
use kubelet_runtime::allocation::{Gates, PodResources};
use kubelet_runtime::runtime::ports::HostFilesError;
use kubelet_runtime::runtime::resize::Resize;
use kubelet_runtime::runtime::resize::act::{Act, Ports, Resizer};
use kubelet_runtime::runtime::resize::steps::PodLimits;
use kubelet_runtime::runtime::result::ActionError;
use kubelet_runtime::runtime::run_options::ContainerManager as _;

/// The hands for one pod, with the resources that were granted.
pub(super) struct PodResizer<'a> {
    pub node: &'a NodeContext,
    pub cri: &'a CriClient,
    pub uid: &'a PodUid,
    pub pod: &'a Arc<Pod>,
    pub facts: &'a NodeFacts,
}

impl Resizer for PodResizer<'_> {
    fn actuated(&self) -> Option<PodResources> {
        self.node.allocations.actuated(self.uid)
    }

    fn gates(&self) -> Gates {
        self.node.allocations.gates()
    }

    fn making(&self, container: &Container) -> std::io::Result<()> {
        let is_resizable = self.gates().resizable(self.pod).any(|c| c.name == container.name);
        if is_resizable { self.container_has(&container.name, &own(container)) } else { Ok(()) }
    }

    fn resize<'a>(&'a self, resize: &'a Resize, sandbox: &'a SandboxId) -> BoxFuture<'a, Result<(), ActionError>> {
        Box::pin(async move {
            let began = Instant::now();
            let without_quota = &self.node.container_manager.without_quota(self.pod);
            let act = Act { ports: self, pod: self.pod, facts: self.facts, sandbox, resize, without_quota };
            let done = act.run().await;
            let label = if done.is_ok() { "true" } else { "false" };
            self.node
                .metrics
                .resizes
                .duration
                .with_label_values(&[label])
                .observe(began.elapsed().as_secs_f64() * 1000.0);
            // What was changed is to be seen in the next look at the pod, also when the rest did not work.
            self.node.pleg.refresh(self.uid, resize.updates.iter().map(|update| &update.id));
            done.map_err(|error| ActionError {
                transient: error.is_transient(),
                ..ActionError::new("ResizePodInPlaceError", error.to_string())
            })
        })
    }
}

fn own(container: &Container) -> ResourceRequirements {
    container.resources.clone().unwrap_or_default()
}

impl Ports for PodResizer<'_> {
    async fn update_container(&self, id: &ContainerId, resources: v1::LinuxContainerResources) -> Result<(), CriError> {
        let request = v1::UpdateContainerResourcesRequest {
            container_id: id.to_string(),
            linux: Some(resources),
            ..Default::default()
        };
        self.cri.update_container_resources(request).await.map(|_| ())
    }

    async fn update_sandbox(
        &self,
        sandbox: &SandboxId,
        overhead: v1::LinuxContainerResources,
        resources: v1::LinuxContainerResources,
    ) -> Result<(), CriError> {
        let request = v1::UpdatePodSandboxResourcesRequest {
            pod_sandbox_id: sandbox.to_string(),
            overhead: Some(overhead),
            resources: Some(resources),
        };
        self.cri.update_pod_sandbox_resources(request).await.map(|_| ())
    }

    async fn memory_usage(&self, id: &ContainerId) -> Result<Option<u64>, CriError> {
        let reply = self.cri.container_stats(v1::ContainerStatsRequest { container_id: id.to_string() }).await?;
        let memory = reply.stats.and_then(|stats| stats.memory);
        // Older runtimes tell the working set alone.
        let used = memory.and_then(|m| m.usage_bytes.filter(|u| u.value > 0).or(m.working_set_bytes));
        Ok(used.map(|used| used.value))
    }

    async fn pod_cgroup(&self, change: CgroupResources) -> Result<Option<(PodLimits, Option<u64>)>, HostFilesError> {
        let request = api::EnsurePodRequest {
            pod_uid: self.uid.to_string(),
            qos: wire_qos(qos_class(self.pod)).into(),
            resources: Some(wire_resources(change)),
            without_limits: false,
        };
        let reply = self.node.volnetd.ensure_pod(&CallContext::for_pod(self.uid), request).await;
        let reply =
            reply.map_err(|error| HostFilesError { transient: error.is_transient(), message: error.to_string() })?;
        Ok(reply.current.map(|current| {
            let limits = PodLimits {
                cpu_shares: current.cpu_shares.unwrap_or_default(),
                cpu_quota_us: current.cpu_quota_us.unwrap_or(-1),
                cpu_period_us: current.cpu_period_us.unwrap_or_default(),
                memory_limit_bytes: current.memory_limit_bytes.unwrap_or(-1),
            };
            (limits, reply.memory_usage_bytes)
        }))
    }

    fn container_has(&self, name: &str, resources: &ResourceRequirements) -> std::io::Result<()> {
        self.node.allocations.set_actuated(self.uid, name, resources, self.pod)
    }

    fn pod_has(&self) -> std::io::Result<()> {
        self.node.allocations.set_actuated_level(self.uid, self.pod)
    }
}
