//! Whether a PersistentVolume may be used on this node (upstream `component-helpers/storage/volume`, CheckNodeAffinity).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, NodeSelectorRequirement, NodeSelectorTerm, VolumeNodeAffinity};

/// Whether the node's labels are among those that the volume names.
///
/// # Errors
/// They are not.
pub fn check(affinity: Option<&VolumeNodeAffinity>, node: &Node) -> Result<(), &'static str> {
    let Some(required) = affinity.and_then(|affinity| affinity.required.as_ref()) else { return Ok(()) };
    let empty = BTreeMap::new();
    let labels = node.metadata.labels.as_ref().unwrap_or(&empty);
    let name = node.metadata.name.as_deref().unwrap_or_default();
    if required.node_selector_terms.iter().any(|term| matches(term, labels, name)) {
        return Ok(());
    }
    Err("no matching NodeSelectorTerms")
}

/// An empty term matches nothing; a term that cannot be understood neither.
fn matches(term: &NodeSelectorTerm, labels: &BTreeMap<String, String>, name: &str) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or(&[]);
    let fields = term.match_fields.as_deref().unwrap_or(&[]);
    if expressions.is_empty() && fields.is_empty() {
        return false;
    }
    expressions.iter().all(|r| holds(r, labels.get(&r.key)))
        && fields.iter().all(|r| r.key == "metadata.name" && holds(r, Some(&name.to_owned())))
}

fn holds(requirement: &NodeSelectorRequirement, own: Option<&String>) -> bool {
    let values = requirement.values.as_deref().unwrap_or(&[]);
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn nodes_of_a_volume() {
        let node: Node =
            serde_json::from_value(json!({"metadata": {"name": "n", "labels": {"zone": "a", "size": "3"}}})).unwrap();
        let fits = |terms: serde_json::Value| {
            let affinity: VolumeNodeAffinity =
                serde_json::from_value(json!({"required": {"nodeSelectorTerms": terms}})).unwrap();
            check(Some(&affinity), &node)
        };
        assert_eq!(check(None, &node), Ok(()));
        let one = |key: &str, operator: &str, values: &[&str]| json!([{"matchExpressions": [{"key": key, "operator": operator, "values": values}]}]);
        assert_eq!(fits(one("zone", "In", &["a", "b"])), Ok(()));
        assert_eq!(fits(one("zone", "In", &["b"])), Err("no matching NodeSelectorTerms"));
        assert_eq!(fits(one("zone", "Exists", &[])), Ok(()));
        assert_eq!(fits(one("size", "Gt", &["2"])), Ok(()));
        assert_eq!(fits(one("size", "Lt", &["2"])), Err("no matching NodeSelectorTerms"));
        assert_eq!(fits(one("other", "DoesNotExist", &[])), Ok(()));
        assert_eq!(fits(json!([])), Err("no matching NodeSelectorTerms"));
        assert_eq!(fits(json!([{}])), Err("no matching NodeSelectorTerms"));
    }
}
