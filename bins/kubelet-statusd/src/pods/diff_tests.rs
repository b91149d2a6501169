//! The patches that upstream was seen to send, and the law: a patch applied to the old gives the new.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::*;
use crate::pods::normal::normal;

fn map(value: Value) -> Status {
    match value {
        Value::Object(map) => map,
        other => panic!("no object: {other}"),
    }
}

fn patch(old: Value, new: Value) -> Value {
    Value::Object(diff(&map(old), &map(new)))
}

/// The server's side: a strategic merge of a status.
fn apply(old: &Status, patch: &Status) -> Status {
    let mut result = old.clone();
    for (key, change) in patch.iter().filter(|(key, _)| !key.starts_with(ORDER)) {
        match (change, merge_key(key)) {
            (Value::Null, _) => {
                result.remove(key);
            }
            (Value::Array(changes), Some(merge)) => {
                let before = result.get(key).and_then(Value::as_array).cloned().unwrap_or_default();
                let merged = apply_list(merge, before, changes);
                result.insert(key.clone(), Value::Array(merged));
            }
            (Value::Object(change), _) => {
                let before = result.get(key).and_then(Value::as_object).cloned().unwrap_or_default();
                result.insert(key.clone(), Value::Object(apply_map(before, change)));
            }
            (other, _) => {
                result.insert(key.clone(), other.clone());
            }
        }
    }
    for (key, order) in patch.iter().filter_map(|(key, order)| Some((key.strip_prefix(ORDER)?, order))) {
        let merge = merge_key(key).unwrap();
        let order = order.as_array().unwrap();
        if let Some(Value::Array(items)) = result.get_mut(key) {
            items.sort_by_key(|item| order.iter().position(|o| o[merge] == item[merge]).unwrap_or(usize::MAX));
        }
    }
    result
}

fn apply_map(mut before: Map<String, Value>, change: &Map<String, Value>) -> Map<String, Value> {
    for (key, value) in change {
        match value {
            Value::Null => {
                before.remove(key);
            }
            Value::Object(inner) => {
                let old = before.get(key).and_then(Value::as_object).cloned().unwrap_or_default();
                before.insert(key.clone(), Value::Object(apply_map(old, inner)));
            }
            other => {
                before.insert(key.clone(), other.clone());
            }
        }
    }
    before
}

fn apply_list(merge: &str, mut items: Vec<Value>, changes: &[Value]) -> Vec<Value> {
    if changes.first().is_some_and(|c| c["$patch"] == "replace") {
        return changes[1..].to_vec();
    }
    for change in changes {
        let at = items.iter().position(|item| item[merge] == change[merge]);
        match (at, change["$patch"] == "delete") {
            (Some(at), true) => {
                items.remove(at);
            }
            (None, true) => {}
            (Some(at), false) => {
                let before = items[at].as_object().cloned().unwrap_or_default();
                items[at] = Value::Object(apply_map(before, change.as_object().unwrap()));
            }
            (None, false) => items.push(change.clone()),
        }
    }
    items
}

#[test]
fn only_the_changed_fields_of_changed_conditions() {
    let ready = |status: &str, extra: Value| {
        let mut c = map(json!({"type": "Ready", "status": status, "lastTransitionTime": "2026-01-01T00:00:00Z"}));
        c.extend(map(extra));
        Value::Object(c)
    };
    let scheduled = json!({"type": "PodScheduled", "status": "True", "observedGeneration": 1});
    let unready =
        ready("False", json!({"reason": "ContainersNotReady", "message": "containers with unready status: [a]"}));
    let old = json!({"conditions": [unready, scheduled]});
    let new = json!({"conditions": [ready("True", json!({})), scheduled]});
    assert_eq!(
        patch(old, new),
        json!({
            "$setElementOrder/conditions": [{"type": "Ready"}, {"type": "PodScheduled"}],
            "conditions": [{"type": "Ready", "status": "True", "reason": null, "message": null}],
        })
    );
}

#[test]
fn what_is_new_comes_whole_and_what_is_gone_as_null() {
    let old = json!({"phase": "Pending", "resources": {"limits": {"memory": "1Gi"}}, "reason": "X"});
    let new = json!({"phase": "Running", "resources": {}, "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}],
        "conditions": [{"type": "Ready", "status": "True"}]});
    assert_eq!(
        patch(old, new),
        json!({"phase": "Running", "resources": {"limits": null}, "reason": null, "podIP": "10.0.0.1",
            "podIPs": [{"ip": "10.0.0.1"}], "conditions": [{"type": "Ready", "status": "True", "lastProbeTime": null}]})
    );
}

#[test]
fn an_address_that_changes_takes_the_old_one_away() {
    let old = json!({"podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]});
    let new = json!({"podIPs": [{"ip": "10.0.0.2"}, {"ip": "fd00::1"}]});
    assert_eq!(
        patch(old, new),
        json!({"$setElementOrder/podIPs": [{"ip": "10.0.0.2"}, {"ip": "fd00::1"}],
            "podIPs": [{"ip": "10.0.0.2"}, {"$patch": "delete", "ip": "10.0.0.1"}]})
    );
}

#[test]
fn container_statuses_are_one_value() {
    let old = json!({"containerStatuses": [{"name": "a", "ready": false}, {"name": "b", "ready": true}]});
    let new = json!({"containerStatuses": [{"name": "a", "ready": true}, {"name": "b", "ready": true}]});
    assert_eq!(patch(old, new.clone()), new);
}

#[test]
fn a_changed_order_alone_is_recognised() {
    let (a, b) = (json!({"type": "A", "status": "True"}), json!({"type": "B", "status": "True"}));
    let turned = diff(&map(json!({"conditions": [a, b]})), &map(json!({"conditions": [b, a]})));
    assert!(is_order_only(&turned) && !turned.is_empty());
    assert!(!is_order_only(&map(json!({"phase": "Running"}))));
}

#[test]
fn a_list_with_a_key_twice_is_replaced() {
    let twice = json!([{"type": "A", "status": "True"}, {"type": "A", "status": "False"}]);
    let old = map(json!({"conditions": twice}));
    let new = map(json!({"conditions": [{"type": "A", "status": "True"}]}));
    let change = diff(&old, &new);
    assert_eq!(change["conditions"][0], json!({"$patch": "replace"}));
    assert_eq!(apply(&old, &change), new);
}

fn text() -> impl Strategy<Value = Value> {
    prop_oneof![Just("a"), Just("b"), Just("True"), Just("False")].prop_map(|s| json!(s))
}

fn keyed(merge: &'static str) -> impl Strategy<Value = Value> {
    let item = (prop::sample::select(vec!["A", "B", "C", "D"]), prop::option::of(text()), prop::option::of(0..3_i64));
    prop::collection::vec(item, 0..4).prop_shuffle().prop_map(move |items| {
        let mut seen = Vec::new();
        let mut list = Vec::new();
        for (key, status, generation) in items {
            if seen.contains(&key) {
                continue;
            }
            seen.push(key);
            let mut one = json!({merge: key});
            if let Some(status) = status {
                one["status"] = status;
            }
            if let Some(generation) = generation {
                one["observedGeneration"] = json!(generation);
            }
            list.push(one);
        }
        Value::Array(list)
    })
}

fn tree() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![text(), (0..4_i64).prop_map(|n| json!(n)), any::<bool>().prop_map(|b| json!(b))];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            prop::collection::btree_map("[ab]", inner.clone(), 0..3).prop_map(|m| json!(m)),
            prop::collection::vec(inner, 0..3).prop_map(Value::Array),
        ]
    })
}

fn status() -> impl Strategy<Value = Status> {
    let some = |name: &'static str, value: BoxedStrategy<Value>| prop::option::of(value).prop_map(move |v| (name, v));
    (
        some("conditions", keyed("type").boxed()),
        some("podIPs", keyed("ip").boxed()),
        some("phase", text().boxed()),
        some("resources", tree().boxed()),
        some("containerStatuses", prop::collection::vec(tree(), 0..3).prop_map(Value::Array).boxed()),
        some("resourceClaimStatuses", keyed("name").boxed()),
    )
        .prop_map(|(a, b, c, d, e, f)| {
            let fields = [a, b, c, d, e, f].into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
            normal(fields.collect())
        })
}

proptest! {
    #[test]
    fn a_patch_leads_from_old_to_new(old in status(), new in status()) {
        let applied = normal(apply(&old, &diff(&old, &new)));
        prop_assert_eq!(applied, new);
    }

    #[test]
    fn nothing_is_sent_when_nothing_changed(status in status()) {
        prop_assert!(diff(&status, &status).is_empty());
        prop_assert_eq!(normal(status.clone()), status);
    }
}
