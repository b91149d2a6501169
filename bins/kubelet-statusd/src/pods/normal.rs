//! One form for a PodStatus, whoever wrote it: Go's encoder, our own, or a person.
//!
//! A difference that the API server would not store must not look like one, or it is written again and again: nulls and
//! empty lists say nothing, times have whole seconds, amounts one spelling, some objects are always there
//! (upstream `pkg/kubelet/status/status_manager.go` normalizeStatus, and the types' `omitempty`).

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use bulkhead_types::Quantity;
use serde_json::{Map, Value};

use crate::api_writer::seconds;

/// A PodStatus as JSON.
pub type Status = Map<String, Value>;

/// All the messages of a pod's ended containers together, in bytes
/// (upstream `pkg/kubelet/container/runtime.go` MaxPodTerminationMessageLogLength).
const MESSAGES_BYTES: usize = 12 * 1024;

/// The three lists of container statuses.
pub const CONTAINER_LISTS: [&str; 3] = ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"];

/// Strings that mean the same when empty and when absent.
const OPTIONAL_TEXTS: [&str; 9] =
    ["reason", "message", "phase", "podIP", "hostIP", "nominatedNodeName", "qosClass", "resize", "containerID"];

/// Maps of amounts (v1.ResourceList), which the server stores in their canonical form and not at all when they are empty.
const AMOUNTS: [&str; 3] = ["limits", "requests", "allocatedResources"];

/// Reads a status and brings it into the common form. `None`: it is no JSON object.
pub fn parse(json: &[u8]) -> Option<Status> {
    match serde_json::from_slice(json).ok()? {
        Value::Object(status) => Some(normal(status)),
        _ => None,
    }
}

/// Tells one status, in the common form, from another.
pub fn fingerprint(status: &Status) -> u64 {
    let mut hasher = DefaultHasher::new();
    serde_json::to_string(status).unwrap_or_default().hash(&mut hasher);
    hasher.finish()
}

/// The common form.
pub fn normal(mut status: Status) -> Status {
    prune(&mut status);
    if status.get("observedGeneration").is_some_and(|g| g == 0) {
        status.remove("observedGeneration");
    }
    if let Some(time) = status.get_mut("startTime") {
        whole_seconds(time);
    }
    for condition in objects(&mut status, "conditions") {
        if condition.get("observedGeneration").is_some_and(|g| g == 0) {
            condition.remove("observedGeneration");
        }
        for key in ["lastProbeTime", "lastTransitionTime"] {
            if let Some(time) = condition.get_mut(key) {
                whole_seconds(time);
            }
        }
    }
    let containers: usize = CONTAINER_LISTS.iter().map(|list| objects(&mut status, list).count()).sum();
    let bytes_each = MESSAGES_BYTES / containers.max(1);
    for list in CONTAINER_LISTS {
        for container in objects(&mut status, list) {
            for state in ["state", "lastState"] {
                let state = container.entry(state).or_insert_with(|| Value::Object(Map::new()));
                if let Value::Object(state) = state {
                    container_state(state, bytes_each);
                }
            }
        }
    }
    status
}

fn container_state(state: &mut Map<String, Value>, message_bytes: usize) {
    for kind in ["running", "terminated"] {
        let Some(Value::Object(of_kind)) = state.get_mut(kind) else { continue };
        for key in ["startedAt", "finishedAt"] {
            if let Some(time) = of_kind.get_mut(key) {
                whole_seconds(time);
            }
        }
        if kind == "terminated"
            && let Some(Value::String(message)) = of_kind.get_mut("message")
        {
            message.truncate(floor_boundary(message, message_bytes));
        }
    }
}

/// The last place at or before `at` where a string may be cut.
fn floor_boundary(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|&i| text.is_char_boundary(i)).unwrap_or(0)
}

/// The objects in a list of the status.
pub fn objects<'a>(status: &'a mut Status, list: &str) -> impl Iterator<Item = &'a mut Map<String, Value>> {
    let items = match status.get_mut(list) {
        Some(Value::Array(items)) => items.as_mut_slice(),
        _ => &mut [],
    };
    items.iter_mut().filter_map(Value::as_object_mut)
}

/// Drops what says nothing, at every depth; an empty object stays, it may mean something (`state`, `resources`).
fn prune(map: &mut Map<String, Value>) {
    map.retain(|key, value| match value {
        Value::Null => false,
        Value::Array(items) => !items.is_empty(),
        Value::String(text) => !text.is_empty() || !OPTIONAL_TEXTS.contains(&key.as_str()),
        Value::Object(amounts) => !amounts.is_empty() || !AMOUNTS.contains(&key.as_str()),
        // Of a mount, and of an end by no signal.
        Value::Bool(false) => key != "readOnly",
        Value::Number(number) => key != "signal" || number.as_i64() != Some(0),
        _ => true,
    });
    for (key, value) in map.iter_mut() {
        prune_value(value);
        if AMOUNTS.contains(&key.as_str())
            && let Value::Object(amounts) = value
        {
            amounts.values_mut().for_each(canonical);
        }
    }
}

fn prune_value(value: &mut Value) {
    match value {
        Value::Object(map) => prune(map),
        Value::Array(items) => items.iter_mut().for_each(prune_value),
        _ => {}
    }
}

/// The server's spelling of an amount; what is none stays.
fn canonical(amount: &mut Value) {
    if let Value::String(text) = amount
        && let Ok(quantity) = Quantity::parse(text)
    {
        *text = quantity.to_string();
    }
}

/// Cuts a time to the second; what is no time stays.
fn whole_seconds(value: &mut Value) {
    let Value::String(text) = value else { return };
    if text.len() == "2006-01-02T15:04:05Z".len() && text.ends_with('Z') {
        return;
    }
    if let Ok(time) = text.parse() {
        *text = seconds(time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn of(value: Value) -> Value {
        Value::Object(parse(value.to_string().as_bytes()).unwrap())
    }

    #[test]
    fn what_the_server_would_not_keep_is_gone() {
        let from_us = json!({"phase": "Running", "reason": "", "podIPs": [], "observedGeneration": 0,
            "startTime": "2026-01-02T03:04:05.678901Z",
            "conditions": [{"type": "Ready", "status": "True", "lastProbeTime": null, "lastTransitionTime": "2026-01-02T05:04:05.9+02:00"}],
            "containerStatuses": [{"name": "a", "imageID": "", "resources": {}, "state": {"running": {"startedAt": "2026-01-02T03:04:05.1Z"}}}]});
        let from_go = json!({"phase": "Running", "startTime": "2026-01-02T03:04:05Z",
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-02T03:04:05Z"}],
            "containerStatuses": [{"name": "a", "imageID": "", "resources": {}, "lastState": {}, "state": {"running": {"startedAt": "2026-01-02T03:04:05Z"}}}]});
        assert_eq!(of(from_us), from_go);
        assert_eq!(of(from_go.clone()), from_go);
    }

    #[test]
    fn what_a_container_was_given_is_spelled_as_the_server_does() {
        let ours = json!({"containerStatuses": [{"name": "a", "started": false, "ready": false, "restartCount": 0,
            "resources": {"limits": {"cpu": "0.5", "memory": "1024Mi"}, "requests": {}}, "allocatedResources": {"cpu": "1000m"},
            "user": {"linux": {"uid": 0, "gid": 0, "supplementalGroups": []}}, "stopSignal": "SIGTERM",
            "volumeMounts": [{"name": "v", "mountPath": "/v", "readOnly": false}, {"name": "w", "mountPath": "/w", "readOnly": true}],
            "state": {"terminated": {"exitCode": 0, "signal": 0}}, "lastState": {}}],
            "allocatedResources": {}, "resources": {"limits": {"cpu": "0.1"}}});
        let stored = json!({"containerStatuses": [{"name": "a", "started": false, "ready": false, "restartCount": 0,
            "resources": {"limits": {"cpu": "500m", "memory": "1Gi"}}, "allocatedResources": {"cpu": "1"},
            "user": {"linux": {"uid": 0, "gid": 0}}, "stopSignal": "SIGTERM",
            "volumeMounts": [{"name": "v", "mountPath": "/v"}, {"name": "w", "mountPath": "/w", "readOnly": true}],
            "state": {"terminated": {"exitCode": 0}}, "lastState": {}}],
            "resources": {"limits": {"cpu": "100m"}}});
        assert_eq!(of(ours), stored);
        assert_eq!(of(stored.clone()), stored);
    }

    #[test]
    fn messages_share_the_space_and_are_cut_between_characters() {
        let long = "ä".repeat(10_000);
        let ended = json!({"name": "a", "state": {"terminated": {"message": long}}, "lastState": {}});
        let status = of(json!({"containerStatuses": [ended, ended], "initContainerStatuses": [ended]}));
        for list in ["containerStatuses", "initContainerStatuses"] {
            let message = status[list][0]["state"]["terminated"]["message"].as_str().unwrap();
            assert_eq!(message.len(), 4096);
        }
    }

    #[test]
    fn nonsense_does_not_panic() {
        assert!(parse(b"[]").is_none() && parse(b"{").is_none());
        let odd =
            json!({"conditions": [1, {"lastTransitionTime": 5}], "containerStatuses": {"a": 1}, "startTime": "noon"});
        assert_eq!(of(odd.clone()), odd);
    }
}
