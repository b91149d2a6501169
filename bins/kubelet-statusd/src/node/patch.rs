//! The smallest strategic merge patch that turns the Node that the API server has into the one that we mean. Pure.
//!
//! Only labels, annotations and status are compared: spec is not ours after registration. The rules are those of
//! upstream's `component-helpers/node/util/status.go` and of the Node type's merge keys: conditions merge by type,
//! addresses are replaced as a whole (their declared merge key is not unique, so a merge would damage the list), every
//! other list is atomic, maps lose a key by `null`.

use k8s_openapi::api::core::v1::Node;
use serde_json::{Map, Value, json};

use crate::strategic;

/// The patch, or none when there is nothing to say.
///
/// # Errors
/// A Node that cannot be written as JSON.
pub fn node_patch(old: &Node, new: &Node) -> Result<Option<Value>, serde_json::Error> {
    Ok(two_way(&serde_json::to_value(old)?, &serde_json::to_value(new)?))
}

/// The same on JSON: both are whole Node objects.
pub fn two_way(old: &Value, new: &Value) -> Option<Value> {
    let empty = Map::new();
    let mut patch = Map::new();
    let mut metadata = Map::new();
    for key in ["labels", "annotations"] {
        let (old, new) = (part(old, "metadata", key), part(new, "metadata", key));
        insert(&mut metadata, key, strategic::map(old.unwrap_or(&empty), new.unwrap_or(&empty)));
    }
    insert(&mut patch, "metadata", metadata);
    let status_of = |node| Value::get(node, "status").and_then(Value::as_object).unwrap_or(&empty);
    insert(&mut patch, "status", status(status_of(old), status_of(new)));
    (!patch.is_empty()).then_some(Value::Object(patch))
}

fn insert(into: &mut Map<String, Value>, key: &str, value: Map<String, Value>) {
    if !value.is_empty() {
        into.insert(key.to_owned(), Value::Object(value));
    }
}

fn part<'a>(node: &'a Value, outer: &str, inner: &str) -> Option<&'a Map<String, Value>> {
    node.get(outer)?.get(inner)?.as_object()
}

fn status(old: &Map<String, Value>, new: &Map<String, Value>) -> Map<String, Value> {
    let mut patch = strategic::map(old, new);
    if let (Some(before), Some(after)) = (list(old, "conditions"), list(new, "conditions"))
        && before != after
    {
        patch.remove("conditions");
        strategic::list("conditions", "type", before, after, Value::clone, &mut patch);
    }
    if let Some(before) = list(old, "addresses")
        && !before.is_empty()
    {
        let after = list(new, "addresses").unwrap_or_default();
        if before != after {
            let mut replaced = after.to_vec();
            replaced.push(json!({"$patch": "replace"}));
            patch.insert("addresses".to_owned(), Value::Array(replaced));
        }
    }
    patch
}

fn list<'a>(status: &'a Map<String, Value>, key: &str) -> Option<&'a [Value]> {
    status.get(key)?.as_array().map(Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What the API server does with such a patch, for the forms that are made here.
    fn apply(node: &mut Value, patch: &Value) {
        for (key, value) in patch.as_object().unwrap() {
            match (key.as_str(), value) {
                ("conditions", Value::Array(changes)) => {
                    let list = entry(node, key);
                    for change in changes {
                        let kind = change["type"].clone();
                        let at = list.iter().position(|condition| condition["type"] == kind);
                        match (at, change.get("$patch")) {
                            (Some(at), Some(_)) => drop(list.remove(at)),
                            (Some(at), None) => apply(&mut list[at], change),
                            (None, _) => list.push(change.clone()),
                        }
                    }
                }
                ("$setElementOrder/conditions", _) => {}
                ("addresses", Value::Array(items)) => {
                    let replaces = items.iter().any(|item| item.get("$patch").is_some());
                    let list = entry(node, key);
                    if replaces {
                        list.clear();
                    }
                    list.extend(items.iter().filter(|item| item.get("$patch").is_none()).cloned());
                }
                (_, Value::Null) => drop(node.as_object_mut().unwrap().remove(key)),
                (_, Value::Object(_)) => {
                    let below = node.as_object_mut().unwrap().entry(key.clone()).or_insert_with(|| json!({}));
                    apply(below, value);
                }
                _ => drop(node.as_object_mut().unwrap().insert(key.clone(), value.clone())),
            }
        }
        if let Some(Value::Array(order)) = patch.get("$setElementOrder/conditions") {
            let rank = |one: &Value| order.iter().position(|item| item["type"] == one["type"]);
            entry(node, "conditions").sort_by_key(rank);
        }
    }

    fn entry<'a>(node: &'a mut Value, key: &str) -> &'a mut Vec<Value> {
        node.as_object_mut().unwrap().entry(key.to_owned()).or_insert_with(|| json!([])).as_array_mut().unwrap()
    }

    fn text() -> impl Strategy<Value = String> {
        "[a-d]{1,2}"
    }

    fn map() -> impl Strategy<Value = Value> {
        prop::collection::btree_map(text(), text(), 0..4).prop_map(|map| json!(map))
    }

    fn conditions() -> impl Strategy<Value = Value> {
        let one = (text(), text(), proptest::option::of(text()));
        prop::collection::btree_map("[A-D]", one, 0..4).prop_shuffle_list()
    }

    trait Shuffled {
        fn prop_shuffle_list(self) -> BoxedStrategy<Value>;
    }

    impl<S> Shuffled for S
    where
        S: Strategy<Value = std::collections::BTreeMap<String, (String, String, Option<String>)>> + 'static,
    {
        fn prop_shuffle_list(self) -> BoxedStrategy<Value> {
            self.prop_map(|map| map.into_iter().collect::<Vec<_>>())
                .prop_shuffle()
                .prop_map(|list| {
                    let item = |(kind, (status, at, reason)): (String, (String, String, Option<String>))| {
                        let mut item = json!({"type": kind, "status": status, "lastHeartbeatTime": at});
                        if let Some(reason) = reason {
                            item["reason"] = json!(reason);
                        }
                        item
                    };
                    Value::Array(list.into_iter().map(item).collect())
                })
                .boxed()
        }
    }

    fn node() -> impl Strategy<Value = Value> {
        let addresses = prop::collection::vec((text(), text()), 0..3).prop_map(|list| {
            let item = |(kind, address): (String, String)| json!({"type": kind, "address": address});
            Value::Array(list.into_iter().map(item).collect())
        });
        let names = || prop::collection::vec(text(), 0..3).prop_map(|names| json!(names));
        let status = (
            proptest::option::of(conditions()),
            proptest::option::of(addresses),
            proptest::option::of(names()),
            proptest::option::of(map()),
            proptest::option::of(map()),
        );
        let metadata = (proptest::option::of(map()), proptest::option::of(map()));
        (metadata, status).prop_map(|((labels, annotations), (conditions, addresses, images, capacity, info))| {
            let mut node = json!({"metadata": {}, "spec": {}, "status": {}});
            let mut set = |outer: &str, key: &str, value: Option<Value>| {
                // Empty lists and maps are never written: they are absent.
                if let Some(value) = value
                    && value != json!([])
                    && value != json!({})
                {
                    node[outer][key] = value;
                }
            };
            set("metadata", "labels", labels);
            set("metadata", "annotations", annotations);
            set("status", "conditions", conditions);
            set("status", "addresses", addresses);
            set("status", "images", images);
            set("status", "capacity", capacity);
            set("status", "nodeInfo", info);
            node
        })
    }

    /// Empty and absent are the same to the API server.
    fn pruned(mut node: Value) -> Value {
        for outer in ["metadata", "status"] {
            if let Some(map) = node.get_mut(outer).and_then(Value::as_object_mut) {
                map.retain(|_, value| *value != json!([]) && *value != json!({}));
            }
        }
        node
    }

    proptest! {
        #[test]
        fn applying_it_to_the_old_gives_the_new(old in node(), new in node()) {
            let mut patched = old.clone();
            match two_way(&old, &new) {
                Some(patch) => apply(&mut patched, &patch),
                None => prop_assert_eq!(&old, &new),
            }
            prop_assert_eq!(pruned(patched), pruned(new));
        }
    }

    #[test]
    fn equal_nodes_need_none_and_spec_is_never_patched() {
        let old = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"taints": []}, "status": {"images": [1]}});
        let mut new = old.clone();
        assert_eq!(two_way(&old, &new), None);
        new["spec"]["providerID"] = json!("x");
        new["metadata"]["name"] = json!("y");
        assert_eq!(two_way(&old, &new), None);
    }

    #[test]
    fn the_forms_are_those_of_upstream() {
        let old = json!({"status": {
            "conditions": [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": "False", "reason": "KubeletNotReady"}],
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
            "capacity": {"cpu": "2", "hugepages-1Gi": "0"},
        }});
        let new = json!({"status": {
            "conditions": [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": "True", "reason": "KubeletReady"}],
            "addresses": [{"type": "InternalIP", "address": "10.0.0.2"}, {"type": "Hostname", "address": "n"}],
            "capacity": {"cpu": "4"},
        }});
        assert_eq!(
            two_way(&old, &new).unwrap(),
            json!({"status": {
                "$setElementOrder/conditions": [{"type": "MemoryPressure"}, {"type": "Ready"}],
                "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
                "addresses": [
                    {"type": "InternalIP", "address": "10.0.0.2"},
                    {"type": "Hostname", "address": "n"},
                    {"$patch": "replace"},
                ],
                "capacity": {"cpu": "4", "hugepages-1Gi": null},
            }})
        );
    }
}
