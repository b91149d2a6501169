//! Whether the pod's own choice of nodes takes in this one: `nodeSelector`, required node affinity, `nodeName` (upstream
//! `component-helpers/scheduling/corev1/nodeaffinity`).

use kubelet_model::node_selector;
use kubelet_model::v1::Pod;

use super::Obstacle;
use super::node_info::NodeInfo;

/// The predicate's name.
pub const NAME: &str = "NodeAffinity";

pub(super) fn check(pod: &Pod, node: &NodeInfo) -> Option<Obstacle> {
    let spec = pod.spec.as_ref()?;
    let by_selector =
        spec.node_selector.iter().flatten().all(|(key, value)| node.labels.get(key).is_some_and(|own| own == value));
    let required = spec
        .affinity
        .as_ref()
        .and_then(|a| a.node_affinity.as_ref()?.required_during_scheduling_ignored_during_execution.as_ref());
    let matches = |term| node_selector::matches(term, &node.labels, Some(&node.name));
    let by_affinity = required.is_none_or(|required| required.node_selector_terms.iter().any(matches));
    let message = "node(s) didn't match Pod's node affinity/selector";
    (!by_selector || !by_affinity).then_some(Obstacle::Predicate { name: NAME, message })
}

pub(super) fn check_name(pod: &Pod, node: &NodeInfo) -> Option<Obstacle> {
    let wanted = pod.spec.as_ref()?.node_name.as_deref().filter(|name| !name.is_empty())?;
    let message = "node(s) didn't match the requested node name";
    (wanted != node.name).then_some(Obstacle::Predicate { name: "NodeName", message })
}
