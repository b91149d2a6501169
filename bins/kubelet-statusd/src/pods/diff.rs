//! What to send so that one PodStatus becomes another: a two-way strategic merge patch.
//!
//! Four lists of a PodStatus are merged by a key, all others are replaced as a whole
//! (`patchStrategy` and `patchMergeKey` in upstream `staging/src/k8s.io/api/core/v1/types.go`).

use serde_json::{Map, Value, json};

use super::normal::Status;

/// The list's merge key, when it has one.
pub fn merge_key(list: &str) -> Option<&'static str> {
    match list {
        "conditions" => Some("type"),
        "hostIPs" | "podIPs" => Some("ip"),
        "resourceClaimStatuses" => Some("name"),
        _ => None,
    }
}

/// Prefix of the key that carries the order of a merged list.
pub const ORDER: &str = "$setElementOrder/";

/// The patch from `old` to `new`, both in normal form; empty when they are equal.
pub fn diff(old: &Status, new: &Status) -> Status {
    let mut patch = Map::new();
    for (key, value) in new {
        match (old.get(key), value, merge_key(key)) {
            (Some(before), now, _) if before == now => {}
            (Some(Value::Array(before)), Value::Array(now), Some(merge)) => {
                diff_list(key, merge, before, now, &mut patch);
            }
            (Some(Value::Object(before)), Value::Object(now), _) => {
                patch.insert(key.clone(), Value::Object(diff_map(before, now)));
            }
            (None, Value::Array(now), Some(_)) => {
                patch.insert(key.clone(), now.iter().map(|item| added(key, item)).collect());
            }
            (_, now, _) => {
                patch.insert(key.clone(), now.clone());
            }
        }
    }
    for key in old.keys().filter(|key| !new.contains_key(*key)) {
        patch.insert(key.clone(), Value::Null);
    }
    patch
}

/// Whether a patch would change nothing but the order of lists.
pub fn is_order_only(patch: &Status) -> bool {
    patch.keys().all(|key| key.starts_with(ORDER))
}

fn diff_map(old: &Map<String, Value>, new: &Map<String, Value>) -> Map<String, Value> {
    let mut patch = Map::new();
    for (key, value) in new {
        match (old.get(key), value) {
            (Some(before), now) if before == now => {}
            (Some(Value::Object(before)), Value::Object(now)) => {
                patch.insert(key.clone(), Value::Object(diff_map(before, now)));
            }
            (_, now) => {
                patch.insert(key.clone(), now.clone());
            }
        }
    }
    for key in old.keys().filter(|key| !new.contains_key(*key)) {
        patch.insert(key.clone(), Value::Null);
    }
    patch
}

fn diff_list(list: &str, merge: &str, old: &[Value], new: &[Value], patch: &mut Status) {
    let (Some(old_keys), Some(new_keys)) = (keys(merge, old), keys(merge, new)) else {
        // An item without its key, or two with the same: the server can only be told the whole.
        let whole = std::iter::once(json!({"$patch": "replace"})).chain(new.iter().cloned());
        patch.insert(list.to_owned(), whole.collect());
        return;
    };
    let mut changes = Vec::new();
    for (key, item) in new_keys.iter().zip(new) {
        match old_keys.iter().position(|k| k == key).and_then(|at| old.get(at)) {
            Some(before) if before == item => {}
            Some(Value::Object(before)) => {
                let Value::Object(now) = item else { continue };
                let mut change = diff_map(before, now);
                change.insert(merge.to_owned(), (*key).clone());
                changes.push(Value::Object(change));
            }
            _ => changes.push(added(list, item)),
        }
    }
    for key in old_keys.iter().filter(|key| !new_keys.contains(key)) {
        changes.push(json!({"$patch": "delete", merge: key}));
    }
    let order: Vec<Value> = new_keys.iter().map(|key| json!({merge: key})).collect();
    if !order.is_empty() {
        patch.insert(format!("{ORDER}{list}"), Value::Array(order));
    }
    if !changes.is_empty() {
        patch.insert(list.to_owned(), Value::Array(changes));
    }
}

/// An item that the list did not have. Go writes a condition's zero time as null, and so do readers expect it.
fn added(list: &str, item: &Value) -> Value {
    let mut item = item.clone();
    if list == "conditions"
        && let Value::Object(condition) = &mut item
    {
        condition.entry("lastProbeTime").or_insert(Value::Null);
    }
    item
}

/// The keys of a list's items; `None` when one has none or two have the same.
fn keys<'a>(merge: &str, items: &'a [Value]) -> Option<Vec<&'a Value>> {
    let keys: Option<Vec<&Value>> = items.iter().map(|item| item.get(merge).filter(|key| key.is_string())).collect();
    let keys = keys?;
    let unique = keys.iter().enumerate().all(|(i, key)| !keys.iter().take(i).any(|other| other == key));
    unique.then_some(keys)
}

#[cfg(test)]
#[path = "diff_tests.rs"]
mod tests;
