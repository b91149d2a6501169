//! Whether the pod's own choice of nodes takes in this one: `nodeSelector`, required node affinity, `nodeName` (upstream
//! `component-helpers/scheduling/corev1/nodeaffinity`).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm};
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
    let by_affinity = required.is_none_or(|r| r.node_selector_terms.iter().any(|term| matches(term, node)));
    let message = "node(s) didn't match Pod's node affinity/selector";
    (!by_selector || !by_affinity).then_some(Obstacle::Predicate { name: NAME, message })
}

pub(super) fn check_name(pod: &Pod, node: &NodeInfo) -> Option<Obstacle> {
    let wanted = pod.spec.as_ref()?.node_name.as_deref().filter(|name| !name.is_empty())?;
    let message = "node(s) didn't match the requested node name";
    (wanted != node.name).then_some(Obstacle::Predicate { name: "NodeName", message })
}

/// An empty term matches nothing; a term that cannot be understood neither.
fn matches(term: &NodeSelectorTerm, node: &NodeInfo) -> bool {
    let labels = term.match_expressions.as_deref().unwrap_or(&[]);
    let fields = term.match_fields.as_deref().unwrap_or(&[]);
    if labels.is_empty() && fields.is_empty() {
        return false;
    }
    labels.iter().all(|r| holds(r, &node.labels)) && fields.iter().all(|r| field_holds(r, &node.name))
}

fn holds(requirement: &NodeSelectorRequirement, labels: &BTreeMap<String, String>) -> bool {
    let values = requirement.values.as_deref().unwrap_or(&[]);
    let own = labels.get(&requirement.key);
    // Upstream's label parser refuses a requirement whose number of values does not fit its operator.
    match (requirement.operator.as_str(), values) {
        ("In", [_, ..]) => own.is_some_and(|own| values.contains(own)),
        ("NotIn", [_, ..]) => own.is_none_or(|own| !values.contains(own)),
        ("Exists", []) => own.is_some(),
        ("DoesNotExist", []) => own.is_none(),
        (operator @ ("Gt" | "Lt"), [bound]) => {
            let numbers = own.and_then(|own| Some((own.parse::<i64>().ok()?, bound.parse::<i64>().ok()?)));
            numbers.is_some_and(|(own, bound)| if operator == "Gt" { own > bound } else { own < bound })
        }
        _ => false,
    }
}

/// The only field is the node's name, with one value.
fn field_holds(requirement: &NodeSelectorRequirement, name: &str) -> bool {
    let is_name = requirement.key == "metadata.name";
    match (requirement.operator.as_str(), requirement.values.as_deref().unwrap_or(&[])) {
        ("In", [value]) => is_name && value == name,
        ("NotIn", [value]) => !is_name || value != name,
        _ => false,
    }
}
