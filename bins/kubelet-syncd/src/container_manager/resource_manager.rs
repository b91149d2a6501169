//! What a manager of something else than CPUs and memory is to the sync loop and to whoever starts containers: devices of plugins,
//! claims of drivers (upstream `cm/devicemanager`, `cm/dra`).

use std::collections::BTreeMap;
use std::sync::Arc;

use bulkhead_types::{ContainerId, PodUid};
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::ResourceStatus;
use kubelet_container_manager::devices::Capacity;
use kubelet_container_manager::topology::{HintProvider, Refusal};
use kubelet_model::v1::{Container, Pod};
use kubelet_pod_resources::holds::{Allocatable, Holds};
use kubelet_runtime::runtime::result::ActionError;
use kubelet_runtime::runtime::run_options::RunContainerOptions;
use tokio::sync::watch;

/// A pod goes this way: it waits until it can be decided on, is given what it asks for or is refused ([`HintProvider`]), waits for
/// what is left to do, and runs. Refused by somebody else after it was given something, it gives that back. What it has when it is
/// gone is stale. All of it may come again for a pod that has been through it: after a restart of this process, after a wait.
///
/// Every answer is made of what is known: none of these waits, but for the futures that they give back.
pub trait ResourceManager: std::fmt::Debug + Send + Sync {
    /// What this pod waits for before it is decided on, such as a plugin that is coming back. It stays pending, others pass; it is
    /// asked again when the future is over. The future is bounded by who gives it.
    fn until_decidable(&self, _pod: &Arc<Pod>) -> Option<BoxFuture<'static, ()>> {
        None
    }

    /// Its part in the admission of one pod, which is over when this is dropped. None: it has none.
    fn hint_provider(&self) -> Option<Box<dyn HintProvider + '_>> {
        None
    }

    /// What is left to do for a pod that has been given what it asks for, such as a plugin's Allocate. It stays pending, others
    /// pass; the error refuses the pod. The future is bounded by who gives it.
    fn complete(&self, _pod: &Arc<Pod>) -> Option<BoxFuture<'static, Result<(), Refusal>>> {
        None
    }

    /// The pod was refused after it had been given something, and never ran.
    fn take_back(&self, _uid: &PodUid) {}

    /// Nothing of the pod is left: what is remembered of it goes. It may never have been admitted.
    fn forget(&self, _uid: &PodUid) {}

    /// Every source of pods has delivered. What containers have of which `is_active` (pod uid, container name) says no is taken back.
    fn remove_stale(&self, _is_active: &dyn Fn(&str, &str) -> bool) {}

    /// Before the pod's sandbox is made; see [`kubelet_runtime::runtime::run_options::ContainerManager`].
    fn prepare_dynamic_resources<'a>(&'a self, _pod: &'a Pod) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(async { Ok(()) })
    }

    /// What a container that is about to be made has of it.
    fn run_options<'a>(
        &'a self,
        _pod: &'a Pod,
        _container: &'a Container,
    ) -> BoxFuture<'a, Result<RunContainerOptions, ActionError>> {
        Box::pin(async { Ok(RunContainerOptions::default()) })
    }

    /// What a container has of it goes into `holds`, as the pod resources API tells it.
    fn holds(&self, _pod: &Pod, _container: &Container, _holds: &mut Holds) {}

    /// What containers can have of it at all.
    fn allocatable(&self, _all: &mut Allocatable) {}

    /// What the node has of resources that this pod asks for, as far as this manager knows better than the Node's status.
    fn allocatable_for(&self, _pod: &Pod) -> BTreeMap<String, u64> {
        BTreeMap::new()
    }

    /// What the Node's status says of this manager's resources.
    fn shown(&self) -> Option<watch::Receiver<Capacity>> {
        None
    }

    /// `status.containerStatuses[].allocatedResourcesStatus`.
    fn health(&self, _uid: &str, _container: &str) -> Vec<ResourceStatus> {
        Vec::new()
    }

    /// The runtime has made the container.
    fn created(&self, _pod: &Pod, _container: &Container, _id: &ContainerId) {}
}
