//! What containers have for themselves: CPUs and memory of NUMA nodes, devices of plugins, claims of drivers (upstream `pkg/kubelet/cm`).
//! Whoever starts containers asks here ([`kubelet_runtime::runtime::run_options`]). No manager is at work yet: nobody gets anything,
//! and a pod with claims waits (decision 75).

use bulkhead_types::ContainerId;
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::{Container, Pod};
use kubelet_runtime::runtime::result::ActionError;
use kubelet_runtime::runtime::run_options::{self, NoContainerManager, RunContainerOptions};

/// The managers behind one door.
#[derive(Debug, Default)]
pub struct ContainerManager {
    none: NoContainerManager,
}

impl run_options::ContainerManager for ContainerManager {
    fn prepare_dynamic_resources<'a>(&'a self, pod: &'a Pod) -> BoxFuture<'a, Result<(), String>> {
        self.none.prepare_dynamic_resources(pod)
    }

    fn run_options<'a>(
        &'a self,
        pod: &'a Pod,
        container: &'a Container,
    ) -> BoxFuture<'a, Result<RunContainerOptions, ActionError>> {
        self.none.run_options(pod, container)
    }

    fn created(&self, pod: &Pod, container: &Container, id: &ContainerId, options: &RunContainerOptions) {
        self.none.created(pod, container, id, options);
    }
}
