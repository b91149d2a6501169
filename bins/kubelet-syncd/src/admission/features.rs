//! What a pod may only use where a feature gate is on: pod-level resources, and the features that a node declares
//! (upstream `pkg/kubelet/lifecycle/handlers.go`, `component-helpers/nodedeclaredfeatures`).

use bulkhead_config::FeatureGates;
use k8s_openapi::api::core::v1::Pod;

use super::Rejection;
use crate::runtime::podspec::{containers, host_network, init_containers};

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
}

impl Features {
    pub fn of(gates: &FeatureGates) -> Self {
        Features {
            pod_level_resources: gates.enabled("PodLevelResources"),
            declared: gates.enabled("NodeDeclaredFeatures"),
            restart_all_containers: gates.enabled("RestartAllContainersOnContainerExits"),
            // Alpha and off; the gate alone does not do without a runtime that says that it can.
            user_namespaces_host_network: false,
            comparing_tolerations: gates.enabled("TaintTolerationComparisonOperators"),
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
