//! Resizes that this node can never do, whatever room there is (upstream `pkg/kubelet/allocation/handlers.go`). Pure.

use kubelet_model::v1::{Container, Pod};

use super::record::{Gates, same_level};
use bulkhead_types::{QosClass, Quantity};
use kubelet_model::node_facts::{NodeFacts, SwapBehavior};
use kubelet_model::pod::resources::{amounts, qos_class};
use kubelet_model::pod::spec::{containers, init_containers, is_critical};

/// Managers that bind Guaranteed pods to what they have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StaticManagers {
    pub cpu: bool,
    pub memory: bool,
}

/// Why, as the condition says it, and as the metric's label does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Infeasible {
    pub message: String,
    pub detail: &'static str,
}

fn request(container: &Container, name: &str) -> Quantity {
    let list = container.resources.as_ref().and_then(|r| r.requests.as_ref());
    amounts(list).get(name).copied().unwrap_or_default()
}

fn limit(container: &Container, name: &str) -> Quantity {
    let list = container.resources.as_ref().and_then(|r| r.limits.as_ref());
    amounts(list).get(name).copied().unwrap_or_default()
}

/// The container may swap.
fn swaps(pod: &Pod, container: &Container, facts: &NodeFacts) -> bool {
    let (request, limit) = (request(container, "memory"), limit(container, "memory"));
    facts.swap_behavior == SwapBehavior::LimitedSwap
        && facts.host.swap_controller
        && facts.host.cgroup_v2
        && !is_critical(pod)
        && qos_class(pod) == QosClass::Burstable
        && !(request.is_zero() && limit.is_zero())
        && request != limit
}

fn restarts_for_memory(container: &Container) -> bool {
    let policies = container.resize_policy.iter().flatten();
    policies.into_iter().find(|p| p.resource_name == "memory").is_some_and(|p| p.restart_policy == "RestartContainer")
}

/// `wanted`: the pod as asked for; `allocated`: the same with what it has.
pub fn infeasible(
    wanted: &Pod,
    allocated: &Pod,
    gates: Gates,
    facts: &NodeFacts,
    managers: StaticManagers,
) -> Option<Infeasible> {
    let no = |message: &str, detail| Some(Infeasible { message: message.to_owned(), detail });
    let had = |name: &str| containers(allocated).iter().chain(init_containers(allocated)).find(|c| c.name == name);
    let pairs = || {
        let wanted = containers(wanted).iter().chain(init_containers(wanted));
        wanted.filter_map(|new| Some((new, had(&new.name)?)))
    };
    let swapping = |(new, old): (&Container, &Container)| {
        request(new, "memory") != request(old, "memory")
            && !restarts_for_memory(old)
            && (swaps(wanted, new, facts) || swaps(allocated, old, facts))
    };
    if pairs().any(swapping) {
        return no("In-place resize of containers with swap is not supported.", "swap_limitation");
    }
    let level = |pod: &Pod| pod.spec.as_ref().and_then(|s| s.resources.clone());
    if !gates.pod_level && !same_level(level(wanted).as_ref(), level(allocated).as_ref()) {
        return no("InPlacePodLevelResourcesVerticalScaling is disabled", "plr_feature_gate_off");
    }
    if qos_class(wanted) == QosClass::Guaranteed {
        let differs = |name: &str| {
            let mut resizable = gates.resizable(wanted);
            resizable.any(|new| had(&new.name).is_some_and(|old| request(new, name) != request(old, name)))
        };
        if managers.cpu && differs("cpu") {
            let message = "Resize is infeasible for Guaranteed Pods alongside CPU Manager policy \"static\"";
            return no(message, "guaranteed_pod_cpu_manager_static_policy");
        }
        if managers.memory && differs("memory") {
            let message = "Resize is infeasible for Guaranteed Pods alongside Memory Manager policy \"Static\"";
            return no(message, "guaranteed_pod_memory_manager_static_policy");
        }
    }
    None
}
