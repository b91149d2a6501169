//! What a pod may only use where a feature gate is on: pod-level resources, and the features that a node declares
//! (upstream `pkg/kubelet/lifecycle/handlers.go`, `component-helpers/nodedeclaredfeatures`).

use bulkhead_config::{Feature, FeatureGates};
use kubelet_model::v1::Pod;

use super::Rejection;
use kubelet_model::pod::spec::{containers, host_network, init_containers, is_sidecar};
use kubelet_runtime::allocation::record::{Gates, same_level};

/// Gates that admission asks about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Features {
    pub pod_level_resources: bool,
    /// The node declares its features, and pods that need others are refused.
    pub declared: bool,
    pub restart_all_containers: bool,
    /// Gate UserNamespacesHostNetworkSupport, and a runtime that can do it.
    pub user_namespaces_host_network: bool,
    pub comparing_tolerations: bool,
    /// Claims of drivers may stand for extended resources.
    pub extended_by_claims: bool,
}

impl Features {
    pub fn of(gates: &FeatureGates) -> Self {
        Features {
            pod_level_resources: gates.enabled(Feature::PodLevelResources),
            declared: gates.enabled(Feature::NodeDeclaredFeatures),
            restart_all_containers: gates.enabled(Feature::RestartAllContainersOnContainerExits),
            // Alpha and off; the gate alone does not do without a runtime that says that it can.
            user_namespaces_host_network: false,
            comparing_tolerations: gates.enabled(Feature::TaintTolerationComparisonOperators),
            extended_by_claims: gates.enabled(Feature::DRAExtendedResource),
        }
    }
}

pub(super) fn check(pod: &Pod, features: &Features) -> Option<Rejection> {
    let spec = pod.spec.as_ref()?;
    if spec.resources.is_some() && !features.pod_level_resources {
        return Some(Rejection::new("PodLevelResourcesNotSupported", "PodLevelResources feature gate is disabled"));
    }
    if !features.declared {
        return None;
    }
    let restarts_all = containers(pod)
        .iter()
        .chain(init_containers(pod))
        .flat_map(|c| c.restart_policy_rules.iter().flatten())
        .any(|rule| rule.action == "RestartAllContainers");
    let own_users_on_host_network = host_network(pod) && spec.host_users == Some(false);
    let missing: Vec<&str> = [
        (restarts_all && !features.restart_all_containers, "RestartAllContainersOnContainerExits"),
        (own_users_on_host_network && !features.user_namespaces_host_network, "UserNamespacesHostNetworkSupport"),
    ]
    .into_iter()
    .filter_map(|(lacks, name)| lacks.then_some(name))
    .collect();
    let message = || format!("Pod requires node features that are not available: {}", missing.join(", "));
    (!missing.is_empty()).then(|| Rejection::new("PodFeatureUnsupported", message()))
}

/// Features that a change of a pod needs and that this node does not declare, in the order of their names: resizes, for
/// nothing else of a pod's features can change (upstream `InferForPodUpdate`).
pub fn missing_for_update(before: &Pod, after: &Pod, gates: Gates) -> Vec<&'static str> {
    let level = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.resources.clone());
    let resizes_pod = !same_level(level(before).as_ref(), level(after).as_ref());
    let resizes_init = init_containers(before).iter().zip(init_containers(after)).any(|(old, new)| {
        old.name == new.name && !is_sidecar(old) && !same_level(old.resources.as_ref(), new.resources.as_ref())
    });
    [
        (resizes_pod && !gates.pod_level, "InPlacePodLevelResourcesVerticalScaling"),
        (resizes_init && !gates.init_containers, "InPlacePodVerticalScalingInitContainers"),
    ]
    .into_iter()
    .filter_map(|(lacks, name)| lacks.then_some(name))
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(level: &str, init: &str, sidecar: &str) -> Pod {
        let requests = |cpu: &str| serde_json::json!({"requests": {"cpu": cpu}});
        serde_json::from_value(serde_json::json!({"spec": {
            "resources": requests(level),
            "initContainers": [
                {"name": "init", "resources": requests(init)},
                {"name": "side", "restartPolicy": "Always", "resources": requests(sidecar)},
            ],
            "containers": [],
        }}))
        .unwrap()
    }

    #[test]
    fn resizes_that_the_node_does_not_declare() {
        let before = pod("1", "1", "1");
        let (on, off) = (Gates::default(), Gates { init_containers: false, pod_level: false });
        let both = ["InPlacePodLevelResourcesVerticalScaling", "InPlacePodVerticalScalingInitContainers"];
        assert_eq!(missing_for_update(&before, &pod("2", "2", "2"), off), both);
        assert!(missing_for_update(&before, &pod("2", "2", "2"), on).is_empty());
        assert_eq!(missing_for_update(&before, &pod("1", "2", "1"), off), both[1..]);
        assert!(missing_for_update(&before, &pod("1000m", "1", "2"), off).is_empty(), "a sidecar, and the same amount");
    }
}
