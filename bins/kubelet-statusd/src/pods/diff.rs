//! What to send so that one PodStatus becomes another: a two-way strategic merge patch.
//!
//! Four lists of a PodStatus are merged by a key, all others are replaced as a whole
//! (`patchStrategy` and `patchMergeKey` in upstream `staging/src/k8s.io/api/core/v1/types.go`).

use serde_json::{Map, Value};

use super::normal::Status;
use crate::strategic::{self, ORDER};

/// The list's merge key, when it has one.
pub fn merge_key(list: &str) -> Option<&'static str> {
    match list {
        "conditions" => Some("type"),
        "hostIPs" | "podIPs" => Some("ip"),
        "resourceClaimStatuses" => Some("name"),
        _ => None,
    }
}

/// The patch from `old` to `new`, both in normal form; empty when they are equal.
pub fn diff(old: &Status, new: &Status) -> Status {
    let mut patch = Map::new();
    for (key, value) in new {
        match (old.get(key), value, merge_key(key)) {
            (Some(before), now, _) if before == now => {}
            (Some(Value::Array(before)), Value::Array(now), Some(merge)) => {
                strategic::list(key, merge, before, now, |item| added(key, item), &mut patch);
            }
            (Some(Value::Object(before)), Value::Object(now), _) => {
                patch.insert(key.clone(), Value::Object(strategic::map(before, now)));
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

#[cfg(test)]
#[path = "diff_tests.rs"]
mod tests;
