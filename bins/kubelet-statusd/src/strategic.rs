//! Two-way strategic merge patches: what to send so that one object becomes another
//! (upstream `staging/src/k8s.io/apimachinery/pkg/util/strategicpatch`). Which lists are merged by which key is the
//! caller's to know. Pure.

use serde_json::{Map, Value, json};

/// Prefix of the key that carries the order of a merged list.
pub const ORDER: &str = "$setElementOrder/";

/// Changed and new keys with their values, removed ones with null; empty when the maps are equal. Every list in it is
/// replaced as a whole.
pub fn map(old: &Map<String, Value>, new: &Map<String, Value>) -> Map<String, Value> {
    let mut patch = Map::new();
    for (key, value) in new {
        match (old.get(key), value) {
            (Some(before), now) if before == now => {}
            (Some(Value::Object(before)), Value::Object(now)) => {
                patch.insert(key.clone(), Value::Object(map(before, now)));
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

/// Puts into `patch` what makes one list of that name, whose items are merged by the key `merge`, out of another. `added`:
/// how an item is told that the old list does not have.
pub fn list(
    name: &str,
    merge: &str,
    old: &[Value],
    new: &[Value],
    added: impl Fn(&Value) -> Value,
    patch: &mut Map<String, Value>,
) {
    let (Some(old_keys), Some(new_keys)) = (keys(merge, old), keys(merge, new)) else {
        // An item without its key, or two with the same: the server can only be told the whole.
        let whole = std::iter::once(json!({"$patch": "replace"})).chain(new.iter().cloned());
        patch.insert(name.to_owned(), whole.collect());
        return;
    };
    let mut changes = Vec::new();
    for (key, item) in new_keys.iter().zip(new) {
        match old_keys.iter().position(|k| k == key).and_then(|at| old.get(at)) {
            Some(before) if before == item => {}
            Some(Value::Object(before)) => {
                let Value::Object(now) = item else { continue };
                let mut change = map(before, now);
                change.insert(merge.to_owned(), (*key).clone());
                changes.push(Value::Object(change));
            }
            _ => changes.push(added(item)),
        }
    }
    for key in old_keys.iter().filter(|key| !new_keys.contains(key)) {
        changes.push(json!({"$patch": "delete", merge: key}));
    }
    let order: Vec<Value> = new_keys.iter().map(|key| json!({merge: key})).collect();
    if !order.is_empty() {
        patch.insert(format!("{ORDER}{name}"), Value::Array(order));
    }
    if !changes.is_empty() {
        patch.insert(name.to_owned(), Value::Array(changes));
    }
}

/// The keys of a list's items; `None` when one has none or two have the same.
fn keys<'a>(merge: &str, items: &'a [Value]) -> Option<Vec<&'a Value>> {
    let keys: Option<Vec<&Value>> = items.iter().map(|item| item.get(merge).filter(|key| key.is_string())).collect();
    let keys = keys?;
    let unique = keys.iter().enumerate().all(|(i, key)| !keys.iter().take(i).any(|other| other == key));
    unique.then_some(keys)
}
