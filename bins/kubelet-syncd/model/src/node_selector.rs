//! Whether a node is one of those that a term of a node selector names, of a pod's affinity or of a PersistentVolume's (upstream
//! `component-helpers/scheduling/corev1/nodeaffinity`).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm};

use crate::validation::names;

/// Upstream's only field of a node.
const NAME: &str = "metadata.name";

/// An empty term matches nothing; a term that cannot be understood neither.
/// `node_name`: without it a term's fields have to be understood, and are compared with nothing (upstream nodeSelectorTerm.match).
pub fn matches(term: &NodeSelectorTerm, labels: &BTreeMap<String, String>, node_name: Option<&str>) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or(&[]);
    let fields = term.match_fields.as_deref().unwrap_or(&[]);
    if expressions.is_empty() && fields.is_empty() {
        return false;
    }
    expressions.iter().all(|r| label_holds(r, labels)) && fields.iter().all(|r| field_holds(r, node_name))
}

/// Upstream's label parser (`labels.NewRequirement`) refuses a requirement whose number of values does not fit its operator, and a
/// key or value that no label can have.
fn label_holds(requirement: &NodeSelectorRequirement, labels: &BTreeMap<String, String>) -> bool {
    let NodeSelectorRequirement { key, operator, values } = requirement;
    let values = values.as_deref().unwrap_or(&[]);
    if !names::qualified_name(key).is_empty() || values.iter().any(|value| !names::label_value(value).is_empty()) {
        return false;
    }
    let own = labels.get(key);
    match (operator.as_str(), values) {
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

/// A field is compared with one value, and one that a node does not have is empty.
fn field_holds(requirement: &NodeSelectorRequirement, node_name: Option<&str>) -> bool {
    let is = |value: &str| node_name.map(|name| value == if requirement.key == NAME { name } else { "" });
    match (requirement.operator.as_str(), requirement.values.as_deref().unwrap_or(&[])) {
        ("In", [value]) => is(value) != Some(false),
        ("NotIn", [value]) => is(value) != Some(true),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn fits(term: Value) -> bool {
        fits_of(term, Some("node-a"))
    }

    fn fits_of(term: Value, node_name: Option<&str>) -> bool {
        let labels = [("zone", "a"), ("cores", "8"), ("example.com/empty", "")];
        let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        matches(&serde_json::from_value(term).unwrap(), &labels, node_name)
    }

    #[test]
    fn labels_by_operator() {
        for (key, operator, values, expected) in [
            ("zone", "In", json!(["x", "a"]), true),
            ("zone", "In", json!(["b"]), false),
            ("zone", "In", json!([]), false),
            ("rack", "In", json!(["a"]), false),
            ("zone", "NotIn", json!(["a"]), false),
            ("zone", "NotIn", json!([]), false),
            ("rack", "NotIn", json!(["a"]), true),
            ("zone", "Exists", json!([]), true),
            ("zone", "Exists", json!(["a"]), false),
            ("rack", "Exists", json!([]), false),
            ("rack", "DoesNotExist", json!([]), true),
            ("rack", "DoesNotExist", json!(["a"]), false),
            ("zone", "DoesNotExist", json!([]), false),
            ("cores", "Gt", json!(["7"]), true),
            ("cores", "Gt", json!(["8"]), false),
            ("cores", "Gt", json!(["7", "1"]), false),
            ("cores", "Gt", json!(["few"]), false),
            ("cores", "Lt", json!(["9"]), true),
            ("cores", "Lt", json!(["8"]), false),
            ("zone", "Lt", json!(["9"]), false),
            ("rack", "Lt", json!(["9"]), false),
            ("zone", "Like", json!(["a"]), false),
            ("example.com/empty", "In", json!([""]), true),
            // No label can have such a key or value: the term cannot be understood, whatever the node has.
            ("no key", "DoesNotExist", json!([]), false),
            ("", "NotIn", json!(["a"]), false),
            ("zone", "NotIn", json!(["no value"]), false),
            ("zone", "In", json!(["a", "-b"]), false),
            ("cores", "Gt", json!(["-1"]), false),
        ] {
            let term = json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]});
            assert_eq!(fits(term), expected, "{key} {operator} {values}");
        }
    }

    #[test]
    fn fields_by_operator() {
        for (key, operator, values, expected) in [
            ("metadata.name", "In", json!(["node-a"]), true),
            ("metadata.name", "In", json!(["node-b"]), false),
            ("metadata.name", "In", json!(["node-a", "node-b"]), false),
            ("metadata.name", "NotIn", json!(["node-a"]), false),
            ("metadata.name", "NotIn", json!(["node-b"]), true),
            ("metadata.name", "NotIn", json!([]), false),
            ("metadata.name", "Exists", json!([]), false),
            ("metadata.name", "Gt", json!(["1"]), false),
            ("metadata.uid", "In", json!(["node-a"]), false),
            ("metadata.uid", "In", json!([""]), true),
            ("metadata.uid", "NotIn", json!(["node-a"]), true),
            ("metadata.uid", "NotIn", json!([""]), false),
        ] {
            let term = json!({"matchFields": [{"key": key, "operator": operator, "values": values}]});
            assert_eq!(fits(term), expected, "{key} {operator} {values}");
        }
    }

    #[test]
    fn without_a_name_fields_have_to_be_understood_alone() {
        for (operator, values, expected) in [
            ("In", json!(["node-b"]), true),
            ("NotIn", json!(["node-b"]), true),
            ("In", json!(["node-a", "node-b"]), false),
            ("Exists", json!([]), false),
        ] {
            let term = json!({"matchFields": [{"key": "metadata.name", "operator": operator, "values": values}]});
            assert_eq!(fits_of(term, None), expected, "{operator} {values}");
        }
    }

    #[test]
    fn all_of_a_term_and_never_an_empty_one() {
        let zone = |value| json!([{"key": "zone", "operator": "In", "values": [value]}]);
        let name = |value| json!([{"key": "metadata.name", "operator": "In", "values": [value]}]);
        for (term, expected) in [
            (json!({}), false),
            (json!({"matchExpressions": [], "matchFields": []}), false),
            (json!({"matchExpressions": zone("a"), "matchFields": name("node-a")}), true),
            (json!({"matchExpressions": zone("a"), "matchFields": name("node-b")}), false),
            (json!({"matchExpressions": zone("b"), "matchFields": name("node-a")}), false),
        ] {
            assert_eq!(fits(term.clone()), expected, "{term}");
        }
    }
}
