//! What a status says of resources: what a running container has, by the runtime's word or by what it was given last, and
//! what the pod has as a whole (upstream `pkg/kubelet/kubelet_pods.go` convertContainerStatusResources).

use std::collections::BTreeMap;

use bulkhead_types::Quantity;
use k8s_openapi::api::core::v1::{ContainerStatus, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use kubelet_model::v1::Container;

use kubelet_model::pod::model::{ContainerStatus as Instance, RunState};
use kubelet_model::pod::resources::amounts;

/// A limit up to this gives the same quota as this one, in thousandths of a core: what was asked for is shown.
const MIN_CPU_LIMIT: i64 = 10;
/// The same for requests: fewer shares than these do not exist.
const MIN_CPU_REQUEST: i64 = 2;

/// `status.containerStatuses[].resources`.
///
/// `container`: as granted. `id`: the instance as the API names it. `old`: what was told last. `actuated`: what the
/// container was given last, with the pod's limits where it has none.
pub(super) fn of_container(
    container: &Container,
    instance: &Instance,
    id: &str,
    old: Option<&ContainerStatus>,
    actuated: Option<&ResourceRequirements>,
) -> ResourceRequirements {
    let mut shown = container.resources.clone().unwrap_or_default();
    if instance.state != RunState::Running {
        // It will be made with these.
        return shown;
    }
    // What was told of the same instance stays where nothing better is known.
    let told =
        old.filter(|o| o.state.as_ref().is_some_and(|s| s.running.is_some()) && o.container_id.as_deref() == Some(id));
    let told = told.and_then(|o| o.resources.as_ref());
    let given = |list: fn(&ResourceRequirements) -> Option<&BTreeMap<String, ApiQuantity>>, name: &str| {
        amounts(actuated.and_then(list)).get(name).copied().filter(|q| !q.is_zero())
    };
    let has = &instance.resources;
    let says_nothing = has.cpu_request.is_none() && has.cpu_limit.is_none() && has.memory_limit.is_none();
    let or_given = |told: Option<Quantity>, given: Option<Quantity>| told.or(given.filter(|_| says_nothing));
    let cpu_limit = or_given(has.cpu_limit.map(Quantity::from_milli), given(|r| r.limits.as_ref(), "cpu"));
    let memory_limit = or_given(has.memory_limit.map(Quantity::from_bytes), given(|r| r.limits.as_ref(), "memory"));
    let cpu_request = or_given(has.cpu_request.map(Quantity::from_milli), given(|r| r.requests.as_ref(), "cpu"));
    let memory_request = given(|r| r.requests.as_ref(), "memory");
    if let Some(limits) = shown.limits.as_mut() {
        let told = told.and_then(|t| t.limits.as_ref());
        put(limits, told, "cpu", cpu_limit, MIN_CPU_LIMIT);
        put(limits, told, "memory", memory_limit, 0);
    }
    if let Some(requests) = shown.requests.as_mut() {
        let told = told.and_then(|t| t.requests.as_ref());
        put(requests, told, "cpu", cpu_request, MIN_CPU_REQUEST);
        put(requests, told, "memory", memory_request, 0);
    }
    shown
}

/// Puts what is real in the place of what is granted. `min`: thousandths up to which all amounts are one.
fn put(
    list: &mut BTreeMap<String, ApiQuantity>,
    told: Option<&BTreeMap<String, ApiQuantity>>,
    name: &str,
    real: Option<Quantity>,
    min: i64,
) {
    let granted = amounts(Some(list)).get(name).copied().unwrap_or_default();
    match real {
        // The amount as its author wrote it.
        Some(real) if real == granted => {}
        Some(real) if real.milli_value() <= min && granted.milli_value() <= min => {}
        Some(real) => {
            list.insert(name.to_owned(), ApiQuantity(real.to_string()));
        }
        None => {
            if let Some(told) = told.and_then(|told| told.get(name)) {
                list.insert(name.to_owned(), told.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kubelet_model::fixtures::container_status;
    use kubelet_model::pod::model::RuntimeResources;
    use serde_json::json;

    fn resources(value: serde_json::Value) -> ResourceRequirements {
        serde_json::from_value(value).unwrap()
    }

    fn container(granted: serde_json::Value) -> Container {
        serde_json::from_value(json!({"name": "c", "resources": granted})).unwrap()
    }

    fn running(resources: RuntimeResources) -> Instance {
        Instance { resources, ..container_status("c", RunState::Running, 0) }
    }

    #[test]
    fn resources_of_the_runtime_come_first_then_actuated_then_reported_ones() {
        let granted =
            container(json!({"limits": {"cpu": "2", "memory": "2Gi"}, "requests": {"cpu": "1", "memory": "1Gi"}}));
        let old =
            resources(json!({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m", "memory": "512Mi"}}));
        let says = RuntimeResources { cpu_request: Some(500), cpu_limit: Some(1000), memory_limit: Some(1 << 30) };
        assert_eq!(of_container(&granted, &running(says), "x", None, Some(&old)), old);
        assert_eq!(of_container(&granted, &running(RuntimeResources::default()), "x", None, Some(&old)), old);
        let told = |id: &str| ContainerStatus {
            container_id: Some(id.to_owned()),
            state: Some(serde_json::from_value(json!({"running": {}})).unwrap()),
            resources: Some(old.clone()),
            ..Default::default()
        };
        let none = running(RuntimeResources::default());
        assert_eq!(of_container(&granted, &none, "x", Some(&told("x")), None), old);
        let as_granted = granted.resources.clone().unwrap();
        assert_eq!(of_container(&granted, &none, "x", Some(&told("y")), None), as_granted);
        let exited = container_status("c", RunState::Exited, 0);
        assert_eq!(of_container(&granted, &exited, "x", Some(&told("x")), Some(&old)), as_granted);
    }

    #[test]
    fn amounts_below_the_kernels_least_are_shown_as_asked_for() {
        let granted = container(json!({"limits": {"cpu": "5m"}, "requests": {"cpu": "1m"}}));
        let says = RuntimeResources { cpu_request: Some(2), cpu_limit: Some(10), memory_limit: None };
        assert_eq!(of_container(&granted, &running(says), "x", None, None), granted.resources.clone().unwrap());
        let says = RuntimeResources { cpu_request: Some(3), cpu_limit: Some(11), memory_limit: None };
        let shown = of_container(&granted, &running(says), "x", None, None);
        assert_eq!(shown, resources(json!({"limits": {"cpu": "11m"}, "requests": {"cpu": "3m"}})));
    }

    #[test]
    fn an_equal_amount_stays_as_it_was_written_and_nothing_is_made_up() {
        let granted = container(json!({"limits": {"memory": "100M"}}));
        let says = RuntimeResources { cpu_request: Some(2), cpu_limit: Some(500), memory_limit: Some(100_000_000) };
        let shown = of_container(&granted, &running(says), "x", None, None);
        assert_eq!(shown, resources(json!({"limits": {"memory": "100M", "cpu": "500m"}})));
        let bare = container(json!({}));
        assert_eq!(of_container(&bare, &running(says), "x", None, None), ResourceRequirements::default());
    }
}
