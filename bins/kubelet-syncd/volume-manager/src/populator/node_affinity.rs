//! Whether a PersistentVolume may be used on this node (upstream `component-helpers/storage/volume`, CheckNodeAffinity).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, VolumeNodeAffinity};
use kubelet_model::node_selector;

/// Whether the node's labels are among those that the volume names. As upstream's kubelet, which leaves a node's name to the scheduler.
///
/// # Errors
/// They are not.
pub fn check(affinity: Option<&VolumeNodeAffinity>, node: &Node) -> Result<(), &'static str> {
    let Some(required) = affinity.and_then(|affinity| affinity.required.as_ref()) else { return Ok(()) };
    let empty = BTreeMap::new();
    let labels = node.metadata.labels.as_ref().unwrap_or(&empty);
    if required.node_selector_terms.iter().any(|term| node_selector::matches(term, labels, None)) {
        return Ok(());
    }
    Err("no matching NodeSelectorTerms")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn nodes_of_a_volume() {
        let node: Node = serde_json::from_value(json!({"metadata": {"name": "n", "labels": {"zone": "a"}}})).unwrap();
        let fits = |terms: serde_json::Value| {
            let affinity: VolumeNodeAffinity =
                serde_json::from_value(json!({"required": {"nodeSelectorTerms": terms}})).unwrap();
            check(Some(&affinity), &node)
        };
        assert_eq!(check(None, &node), Ok(()));
        let one = |key: &str, operator: &str, values: &[&str]| json!([{"matchExpressions": [{"key": key, "operator": operator, "values": values}]}]);
        assert_eq!(fits(one("zone", "In", &["a", "b"])), Ok(()));
        assert_eq!(fits(one("zone", "In", &["b"])), Err("no matching NodeSelectorTerms"));
        let field = |operator: &str| json!([{"matchFields": [{"key": "metadata.name", "operator": operator, "values": ["n"]}]}]);
        assert_eq!(fits(field("In")), Ok(()));
        assert_eq!(fits(field("NotIn")), Ok(()));
        assert_eq!(fits(field("Exists")), Err("no matching NodeSelectorTerms"));
        assert_eq!(fits(json!([])), Err("no matching NodeSelectorTerms"));
        assert_eq!(fits(json!([{}])), Err("no matching NodeSelectorTerms"));
        let second = json!([one("zone", "In", &["b"])[0], one("zone", "In", &["a"])[0]]);
        assert_eq!(fits(second), Ok(()));
    }
}
