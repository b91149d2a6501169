//! What has to be resized in a pod. Pure.

use bulkhead_types::ContainerId;
use k8s_openapi::api::core::v1::ResourceRequirements;
use kubelet_model::v1::{Container, Pod};

use crate::allocation::record::effective;
use crate::allocation::{Gates, PodResources};
use crate::runtime::actions::{ContainerKill, KillReason, PodActions};
use kubelet_model::pod::model::{RunState, RuntimePod};
use kubelet_model::pod::resources::amounts;
use kubelet_model::pod::spec::{containers, init_containers};

/// Resources of cgroups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Memory,
    Cpu,
}

impl Kind {
    /// As the API names it.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Memory => "memory",
            Kind::Cpu => "cpu",
        }
    }
}

/// CPU in thousandths, memory in bytes; 0 is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Size {
    pub cpu_request: i64,
    pub cpu_limit: i64,
    pub memory_request: i64,
    pub memory_limit: i64,
}

impl Size {
    /// Of resources as they are, or of [`effective`] ones.
    pub fn of(resources: &ResourceRequirements) -> Self {
        let (want, cap) = (amounts(resources.requests.as_ref()), amounts(resources.limits.as_ref()));
        let milli = |list: &kubelet_model::pod::resources::Amounts| list.get("cpu").map_or(0, |q| q.milli_value());
        let bytes = |list: &kubelet_model::pod::resources::Amounts| list.get("memory").map_or(0, |q| q.value());
        Size {
            cpu_request: milli(&want),
            cpu_limit: milli(&cap),
            memory_request: bytes(&want),
            memory_limit: bytes(&cap),
        }
    }

    /// This size with one resource of another.
    #[must_use]
    pub fn with(self, kind: Kind, other: Size) -> Self {
        match kind {
            Kind::Memory => Size { memory_request: other.memory_request, memory_limit: other.memory_limit, ..self },
            Kind::Cpu => Size { cpu_request: other.cpu_request, cpu_limit: other.cpu_limit, ..self },
        }
    }

    /// Limit and request of one resource.
    pub const fn of_kind(self, kind: Kind) -> (i64, i64) {
        match kind {
            Kind::Memory => (self.memory_limit, self.memory_request),
            Kind::Cpu => (self.cpu_limit, self.cpu_request),
        }
    }
}

/// A running container that gets another size without a restart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerUpdate {
    pub id: ContainerId,
    pub name: String,
    pub from: Size,
    pub to: Size,
}

impl ContainerUpdate {
    /// More than before: by its limit, and where that stays by its request. None: nothing changes in this resource.
    pub fn grows(&self, kind: Kind) -> Option<bool> {
        let ((old_limit, old_request), (limit, request)) = (self.from.of_kind(kind), self.to.of_kind(kind));
        match (limit == old_limit, request == old_request) {
            (false, _) => Some(limit > old_limit),
            (true, false) => Some(request > old_request),
            (true, true) => None,
        }
    }
}

/// What a sync has to resize.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Resize {
    pub updates: Vec<ContainerUpdate>,
    /// A container is restarted because of its resize policy: the pod's cgroup changes all the same.
    pub restarts: bool,
    /// The resources of the pod as a whole differ.
    pub pod_level: bool,
}

impl Resize {
    pub fn is_empty(&self) -> bool {
        *self == Resize::default()
    }

    /// A container is updated in this resource.
    pub fn touches(&self, kind: Kind) -> bool {
        self.updates.iter().any(|update| update.grows(kind).is_some())
    }
}

/// Adds to the actions of a sync what the containers that it leaves alone need to get what they were granted.
/// `actuated`: what is known of what they have. Of a container of which nothing is known nothing is changed.
pub fn plan(pod: &Pod, runtime: &RuntimePod, actuated: Option<&PodResources>, gates: Gates, actions: &mut PodActions) {
    let Some(actuated) = actuated else { return };
    if actions.kill_pod || actions.create_sandbox || !actions.containers_to_reset.is_empty() {
        return;
    }
    let level = pod.spec.as_ref().and_then(|s| s.resources.as_ref()).filter(|_| gates.pod_level);
    let mut resize = Resize::default();
    for container in gates.resizable(pod) {
        let Some(newest) = runtime.newest(&container.name).filter(|c| c.state == RunState::Running) else { continue };
        if actions.containers_to_kill.iter().any(|kill| kill.id == newest.id) {
            continue;
        }
        let Some(real) = actuated.containers.get(&container.name) else { continue };
        let granted = effective(&container.resources.clone().unwrap_or_default(), level);
        let update = ContainerUpdate {
            id: newest.id.clone(),
            name: container.name.clone(),
            from: Size::of(real),
            to: Size::of(&granted),
        };
        if update.from == update.to {
            continue;
        }
        if restarts(container, &update) && restart(pod, container, &update, actions) {
            resize.restarts = true;
        } else {
            resize.updates.push(update);
        }
    }
    let none = ResourceRequirements::default();
    resize.pod_level = gates.pod_level
        && (level.is_some() || actuated.pod.is_some())
        && Size::of(level.unwrap_or(&none)) != Size::of(actuated.pod.as_ref().unwrap_or(&none));
    actions.init_containers_to_start.sort_unstable();
    actions.containers_to_start.sort_unstable();
    actions.resize = resize;
}

/// The resize policy of a resource that changes wants a restart.
fn restarts(container: &Container, update: &ContainerUpdate) -> bool {
    let wants = |kind: Kind| {
        let policies = container.resize_policy.iter().flatten();
        let policy = policies.into_iter().find(|p| p.resource_name == kind.name());
        policy.is_some_and(|p| p.restart_policy == "RestartContainer")
    };
    [Kind::Memory, Kind::Cpu].into_iter().any(|kind| update.grows(kind).is_some() && wants(kind))
}

/// Kills the container and starts it in the same sync, whatever its restart policy. False: it is in none of the lists.
fn restart(pod: &Pod, container: &Container, update: &ContainerUpdate, actions: &mut PodActions) -> bool {
    let at = |list: &[Container]| list.iter().position(|c| c.name == container.name);
    match (at(containers(pod)), at(init_containers(pod))) {
        (Some(index), _) => actions.containers_to_start.push(index),
        (None, Some(index)) => actions.init_containers_to_start.push(index),
        (None, None) => return false,
    }
    actions.containers_to_kill.push(ContainerKill {
        id: update.id.clone(),
        name: container.name.clone(),
        message: format!("Container {} resize requires restart", container.name),
        reason: KillReason::Unknown,
    });
    true
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
