//! Strategic merge: a merge patch that knows which lists merge by key
//! (apimachinery `pkg/util/strategicpatch`; only the applying side, never the merging of two patches).

use serde_json::{Map, Value};

use super::strategy::{List, Schema};

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_FROM: &str = "$deleteFromPrimitiveList/";
const ORDER: &str = "$setElementOrder/";

/// Why a patch cannot be applied.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum StrategicError {
    #[error("map: {0} does not contain declared merge key: {1}")]
    NoMergeKey(String, &'static str),
    #[error("unknown patch type: {0} in map: {1}")]
    BadDirective(String, String),
    #[error("invalid patch format of {0}: a list is expected")]
    NoList(String),
    #[error("list element types are not identical: {0}")]
    MixedList(String),
    #[error("The order in patch list:\n{0}\n doesn't match {ORDER}{1} list:\n{2}\n")]
    Order(String, String, String),
}

/// `object` with the patch applied.
///
/// # Errors
/// The patch is malformed; nothing is changed then.
pub fn merged(schema: &Schema, object: &Value, patch: &Value) -> Result<Value, StrategicError> {
    let (Value::Object(object), Value::Object(patch)) = (object, patch) else { return Ok(patch.clone()) };
    Ok(Value::Object(merge_map(schema, object, patch)?))
}

fn merge_map(
    schema: &Schema,
    original: &Map<String, Value>,
    patch: &Map<String, Value>,
) -> Result<Map<String, Value>, StrategicError> {
    if let Some(directive) = patch.get(DIRECTIVE) {
        return match directive.as_str() {
            Some("replace") => Ok(without_directive(patch)),
            Some("delete") => Ok(Map::new()),
            // A marker that says what is so anyway.
            Some("merge") => merge_map(schema, original, &without_directive(patch)),
            _ => Err(StrategicError::BadDirective(directive.to_string(), Value::Object(patch.clone()).to_string())),
        };
    }
    let mut result = original.clone();
    retain_keys(&mut result, patch)?;
    for (key, order) in patch {
        let Some(field) = key.strip_prefix(ORDER) else { continue };
        ordered(schema, &mut result, patch, field, order)?;
    }
    for (key, value) in patch {
        let ordered_already = patch.contains_key(&format!("{ORDER}{key}"));
        if key == RETAIN_KEYS || key.starts_with(ORDER) || ordered_already {
            continue;
        }
        if let Some(field) = key.strip_prefix(DELETE_FROM) {
            delete_from_primitives(&mut result, field, value)?;
        } else if value.is_null() {
            result.remove(key);
        } else {
            let (list, below) = schema.field(key);
            match (result.get(key), value) {
                (Some(Value::Object(before)), Value::Object(patch)) => {
                    let merged = merge_map(below, before, patch)?;
                    result.insert(key.clone(), Value::Object(merged));
                }
                (Some(Value::Array(before)), Value::Array(patch)) => {
                    let merged = merge_list(list, below, before, patch)?;
                    result.insert(key.clone(), Value::Array(merged));
                }
                _ => match without_directives(value) {
                    Some(value) => {
                        result.insert(key.clone(), value);
                    }
                    None => {
                        result.remove(key);
                    }
                },
            }
        }
    }
    Ok(result)
}

fn without_directive(patch: &Map<String, Value>) -> Map<String, Value> {
    let mut map = patch.clone();
    map.remove(DIRECTIVE);
    map
}

/// A part of the patch that takes the place of nothing: directives and nulls in it have no meaning left.
/// `None`: the part itself only said "delete".
fn without_directives(value: &Value) -> Option<Value> {
    match value {
        Value::Object(map) => {
            if map.get(DIRECTIVE).and_then(Value::as_str) == Some("delete") {
                return None;
            }
            let kept = map
                .iter()
                .filter(|(key, value)| !value.is_null() && !is_directive(key))
                .filter_map(|(key, value)| Some((key.clone(), without_directives(value)?)));
            Some(Value::Object(kept.collect()))
        }
        Value::Array(list) => {
            let only_marker =
                |value: &&Value| !value.as_object().is_some_and(|map| map.len() == 1 && map.contains_key(DIRECTIVE));
            Some(Value::Array(list.iter().filter(only_marker).filter_map(without_directives).collect()))
        }
        other => Some(other.clone()),
    }
}

fn is_directive(key: &str) -> bool {
    key == DIRECTIVE || key == RETAIN_KEYS || key.starts_with(ORDER) || key.starts_with(DELETE_FROM)
}

/// `$retainKeys`: what is not named goes.
fn retain_keys(result: &mut Map<String, Value>, patch: &Map<String, Value>) -> Result<(), StrategicError> {
    let Some(keys) = patch.get(RETAIN_KEYS) else { return Ok(()) };
    let keys = keys.as_array().ok_or_else(|| StrategicError::NoList(RETAIN_KEYS.to_owned()))?;
    result.retain(|key, _| keys.iter().any(|one| one.as_str() == Some(key)));
    Ok(())
}

fn delete_from_primitives(result: &mut Map<String, Value>, field: &str, gone: &Value) -> Result<(), StrategicError> {
    let gone = gone.as_array().ok_or_else(|| StrategicError::NoList(format!("{DELETE_FROM}{field}")))?;
    if let Some(Value::Array(list)) = result.get_mut(field) {
        list.retain(|one| !gone.contains(one));
    }
    Ok(())
}

/// `$setElementOrder/<field>`: merges the list and puts it into the order of the directive; elements that only the
/// server has keep their place among each other.
fn ordered(
    schema: &Schema,
    result: &mut Map<String, Value>,
    patch: &Map<String, Value>,
    field: &str,
    order: &Value,
) -> Result<(), StrategicError> {
    let order = order.as_array().ok_or_else(|| StrategicError::NoList(format!("{ORDER}{field}")))?;
    let (list, below) = schema.field(field);
    let original = result.get(field).and_then(Value::as_array).cloned();
    let patched = patch.get(field).and_then(Value::as_array);
    if let Some(patched) = patched {
        expect_order(list, field, patched, order)?;
    }
    let merged = match (&original, patched) {
        (Some(original), None) => original.clone(),
        (None, Some(patched)) => match without_directives(&Value::Array(patched.clone())) {
            Some(Value::Array(list)) => list,
            _ => Vec::new(),
        },
        (Some(original), Some(patched)) => merge_list(list, below, original, patched)?,
        (None, None) => return Ok(()),
    };
    let sorted = in_order(list, merged, order, original.as_deref().unwrap_or_default());
    result.insert(field.to_owned(), Value::Array(sorted));
    Ok(())
}

/// Elements of the patch must stand in the order that the directive tells.
fn expect_order(list: List, field: &str, patched: &[Value], order: &[Value]) -> Result<(), StrategicError> {
    let mut at = 0;
    for one in patched.iter().filter(|one| one.get(DIRECTIVE).is_none()) {
        match order[at..].iter().position(|other| same(list, one, other)) {
            Some(found) => at += found + 1,
            None => {
                let text = |list: &[Value]| Value::Array(list.to_vec()).to_string();
                return Err(StrategicError::Order(text(patched), field.to_owned(), text(order)));
            }
        }
    }
    Ok(())
}

fn merge_list(list: List, below: &Schema, original: &[Value], patch: &[Value]) -> Result<Vec<Value>, StrategicError> {
    let maps = original.iter().chain(patch).filter(|one| one.is_object()).count();
    match list {
        List::Atomic => Ok(patch.to_vec()),
        List::Set => {
            if maps != 0 {
                return Err(StrategicError::MixedList(Value::Array(patch.to_vec()).to_string()));
            }
            let mut merged = original.to_vec();
            merged.extend(patch.iter().filter(|one| !original.contains(one)).cloned());
            Ok(in_order(list, deduplicated(merged), patch, original))
        }
        List::Keyed(key) => {
            if maps != original.len() + patch.len() {
                return Err(StrategicError::MixedList(Value::Array(patch.to_vec()).to_string()));
            }
            merge_keyed(key, below, original, patch)
        }
    }
}

fn deduplicated(list: Vec<Value>) -> Vec<Value> {
    list.into_iter().fold(Vec::new(), |mut kept, one| {
        if !kept.contains(&one) {
            kept.push(one);
        }
        kept
    })
}

fn merge_keyed(
    key: &'static str,
    below: &Schema,
    original: &[Value],
    patch: &[Value],
) -> Result<Vec<Value>, StrategicError> {
    let list = List::Keyed(key);
    let mut before = original.to_vec();
    let mut plain: Vec<&Value> = Vec::new();
    let mut replace = false;
    for one in patch {
        match one.get(DIRECTIVE).map(|directive| (directive, directive.as_str())) {
            None => plain.push(one),
            Some((_, Some("replace"))) => replace = true,
            Some((_, Some("delete"))) => {
                let value = one.get(key).ok_or_else(|| StrategicError::NoMergeKey(one.to_string(), key))?;
                before.retain(|other| other.get(key) != Some(value));
            }
            Some((directive, _)) => return Err(StrategicError::BadDirective(directive.to_string(), one.to_string())),
        }
    }
    if replace {
        return Ok(plain.into_iter().cloned().collect());
    }
    let mut merged = before.clone();
    for one in &plain {
        let value = one.get(key).ok_or_else(|| StrategicError::NoMergeKey(one.to_string(), key))?;
        match merged.iter_mut().find(|other| other.get(key) == Some(value)) {
            Some(other) => *other = self::merged(below, other, one)?,
            None => merged.extend(without_directives(one)),
        }
    }
    let order: Vec<Value> = plain.into_iter().cloned().collect();
    Ok(in_order(list, merged, &order, &before))
}

fn same(list: List, one: &Value, other: &Value) -> bool {
    match list {
        List::Keyed(key) => one.get(key).is_some() && one.get(key) == other.get(key),
        _ => one == other,
    }
}

/// `merged` with the elements of `patch_order` in that order and the others in that of `server_order`, interleaved as
/// near to the server's order as the two allow.
fn in_order(list: List, merged: Vec<Value>, patch_order: &[Value], server_order: &[Value]) -> Vec<Value> {
    let place = |order: &[Value], one: &Value| order.iter().position(|other| same(list, one, other));
    let (mut patched, mut server): (Vec<Value>, Vec<Value>) =
        merged.into_iter().partition(|one| place(patch_order, one).is_some());
    patched.sort_by_key(|one| place(patch_order, one));
    server.sort_by_key(|one| place(server_order, one));
    let mut all = Vec::with_capacity(patched.len() + server.len());
    let (mut left, mut right) = (server.into_iter().peekable(), patched.into_iter().peekable());
    while let (Some(one), Some(other)) = (left.peek(), right.peek()) {
        let server_first = matches!(
            (place(server_order, one), place(server_order, other)),
            (Some(one), Some(other)) if one < other
        );
        all.extend(if server_first { left.next() } else { right.next() });
    }
    all.extend(left);
    all.extend(right);
    all
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::super::strategy::of;
    use super::*;
    use crate::resources::named;

    fn pod(object: Value, patch: Value) -> Result<Value, StrategicError> {
        merged(of(named("pods")), &object, &patch)
    }

    fn node(object: Value, patch: Value) -> Value {
        merged(of(named("nodes")), &object, &patch).unwrap()
    }

    #[test]
    fn conditions_merge_by_type_and_take_the_order_of_the_directive() {
        let object = json!({"status": {"conditions": [
            {"type": "Own", "status": "True"},
            {"type": "Ready", "status": "False", "reason": "R", "message": "m"},
            {"type": "PodScheduled", "status": "True"},
        ]}});
        let patch = json!({"status": {
            "$setElementOrder/conditions": [{"type": "PodScheduled"}, {"type": "Ready"}],
            "conditions": [{"type": "Ready", "status": "True", "reason": null, "message": null}],
        }});
        assert_eq!(
            pod(object, patch).unwrap()["status"]["conditions"],
            json!([
                {"type": "Own", "status": "True"},
                {"type": "PodScheduled", "status": "True"},
                {"type": "Ready", "status": "True"},
            ])
        );
    }

    #[test]
    fn the_first_status_of_a_recorded_pod() {
        let patch = json!({"metadata": {"uid": "u"}, "status": {
            "$setElementOrder/conditions": [{"type": "Initialized"}, {"type": "PodScheduled"}],
            "conditions": [
                {"lastProbeTime": null, "status": "True", "type": "Initialized"},
                {"observedGeneration": 1, "type": "PodScheduled"},
            ],
            "podIPs": [{"ip": "10.0.0.1"}],
            "containerStatuses": [{"name": "one", "state": {"waiting": {}}}],
        }});
        let object = json!({"metadata": {"uid": "u"}, "status": {
            "conditions": [{"type": "PodScheduled", "status": "True"}],
            "containerStatuses": [{"name": "one", "ready": true}, {"name": "two"}],
        }});
        let status = pod(object, patch).unwrap()["status"].clone();
        assert_eq!(
            status["conditions"],
            json!([
                {"status": "True", "type": "Initialized"},
                {"observedGeneration": 1, "status": "True", "type": "PodScheduled"},
            ])
        );
        assert_eq!(status["containerStatuses"], json!([{"name": "one", "state": {"waiting": {}}}]), "a whole list");
        assert!(status.get("$setElementOrder/conditions").is_none());
    }

    #[test]
    fn addresses_with_a_replace_marker() {
        let object = json!({"status": {"addresses": [{"type": "InternalIP", "address": "1"}, {"type": "Hostname", "address": "a"}]}});
        let patch = json!({"status": {"addresses": [
            {"type": "InternalIP", "address": "2"}, {"type": "InternalIP", "address": "3"}, {"$patch": "replace"},
        ]}});
        assert_eq!(
            node(object, patch)["status"]["addresses"],
            json!([{"type": "InternalIP", "address": "2"}, {"type": "InternalIP", "address": "3"}])
        );
    }

    #[test]
    fn atomic_lists_replace_and_directives_delete() {
        let object = json!({
            "metadata": {"labels": {"a": "1", "b": "2"}, "finalizers": ["x", "y"]},
            "spec": {"taints": [{"key": "a"}], "podCIDRs": ["c"]},
            "status": {"conditions": [{"type": "Ready", "status": "True"}], "images": [{"names": ["a"]}]},
        });
        let patch = json!({
            "metadata": {"labels": {"a": null, "c": "3"}, "$deleteFromPrimitiveList/finalizers": ["x"]},
            "spec": {"taints": [{"key": "b"}], "podCIDRs": ["d"]},
            "status": {"conditions": [{"$patch": "delete", "type": "Ready"}], "images": [{"names": ["b"]}]},
        });
        let result = node(object, patch);
        assert_eq!(result["metadata"], json!({"labels": {"b": "2", "c": "3"}, "finalizers": ["y"]}));
        assert_eq!(
            result["spec"],
            json!({"taints": [{"key": "b"}], "podCIDRs": ["d", "c"]}),
            "new elements come first"
        );
        assert_eq!(result["status"], json!({"conditions": [], "images": [{"names": ["b"]}]}));
    }

    #[test]
    fn retain_keys_and_replace_on_maps() {
        let object = json!({"spec": {"volumes": [{"name": "v", "emptyDir": {}}], "securityContext": {"a": 1, "b": 2}}});
        let patch = json!({"spec": {
            "volumes": [{"$retainKeys": ["name", "hostPath"], "name": "v", "hostPath": {"path": "/x"}}],
            "securityContext": {"$patch": "replace", "c": 3},
        }});
        let result = pod(object, patch).unwrap();
        assert_eq!(result["spec"]["volumes"], json!([{"name": "v", "hostPath": {"path": "/x"}}]));
        assert_eq!(result["spec"]["securityContext"], json!({"c": 3}));
    }

    #[test]
    fn malformed_patches_are_refused() {
        let object = json!({"status": {"conditions": [{"type": "Ready"}]}});
        let refused = |patch: Value| pod(object.clone(), json!({"status": patch})).unwrap_err();
        assert!(matches!(refused(json!({"conditions": [{"status": "True"}]})), StrategicError::NoMergeKey(..)));
        assert!(matches!(refused(json!({"conditions": ["x"]})), StrategicError::MixedList(_)));
        assert!(matches!(refused(json!({"$patch": "x"})), StrategicError::BadDirective(..)));
        assert!(matches!(
            refused(json!({
                "$setElementOrder/conditions": [{"type": "A"}, {"type": "B"}],
                "conditions": [{"type": "B"}, {"type": "A"}],
            })),
            StrategicError::Order(..)
        ));
    }

    fn conditions() -> impl Strategy<Value = Vec<Value>> {
        proptest::collection::btree_map("[a-e]", "[x-z]", 0..5)
            .prop_map(|map| map.into_iter().map(|(kind, status)| json!({"type": kind, "status": status})).collect())
    }

    proptest! {
        /// Patching with an object's own content changes nothing; so does patching twice.
        #[test]
        fn idempotent(before in conditions(), patch in conditions()) {
            let object = json!({"status": {"conditions": before}});
            let patch = json!({"status": {"conditions": patch}});
            let once = pod(object.clone(), patch.clone()).unwrap();
            prop_assert_eq!(pod(once.clone(), patch).unwrap(), once);
            prop_assert_eq!(pod(object.clone(), object.clone()).unwrap(), object);
        }

        /// With an order directive, the named elements stand in that order; none is lost, none is there twice.
        #[test]
        fn order_is_kept(before in conditions(), order in Just(["e", "d", "c", "b", "a"]).prop_shuffle()) {
            let directive: Vec<Value> = order.iter().map(|kind| json!({"type": kind})).collect();
            let object = json!({"status": {"conditions": before}});
            let result = pod(object, json!({"status": {"$setElementOrder/conditions": directive}})).unwrap();
            let after = result["status"]["conditions"].as_array().unwrap();
            prop_assert_eq!(after.len(), before.len());
            let places: Vec<_> = after.iter().map(|one| order.iter().position(|kind| one["type"] == *kind)).collect();
            prop_assert!(places.is_sorted());
        }

        #[test]
        fn elements_of_both_sides_survive(before in conditions(), patch in conditions()) {
            let result = pod(json!({"status": {"conditions": before}}), json!({"status": {"conditions": patch}})).unwrap();
            let after = result["status"]["conditions"].as_array().unwrap();
            for one in &patch {
                prop_assert!(after.contains(one));
            }
            for one in &before {
                prop_assert!(after.iter().any(|other| other["type"] == one["type"]));
            }
        }
    }
}
