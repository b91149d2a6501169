//! A scheduler that knows readiness, taints, node selectors and the number of pods, and nothing of resources: it takes
//! the fitting node with the fewest pods, the first in order of names among equals.

use serde_json::{Value, json};

use super::super::Shared;
use super::super::dispatch::bound;
use super::super::resources::named;

/// Binds every pod that waits for a node and finds one.
pub(super) fn bind_all(shared: &Shared) {
    let (pods, nodes) = (named("pods"), named("nodes"));
    let mut store = shared.store();
    let waiting: Vec<Value> =
        store.list(pods, None).filter(|pod| waits(&pod.value)).map(|pod| pod.value.clone()).collect();
    if waiting.is_empty() {
        return;
    }
    let candidates: Vec<Value> = store.list(nodes, None).map(|node| node.value.clone()).collect();
    let mut loads: Vec<usize> = candidates
        .iter()
        .map(|node| {
            store.list(pods, None).filter(|pod| pod.value["spec"]["nodeName"] == node["metadata"]["name"]).count()
        })
        .collect();
    for pod in waiting {
        let fitting =
            (0..candidates.len()).filter(|index| fits(&pod, &candidates[*index])).min_by_key(|index| loads[*index]);
        let Some(index) = fitting else { continue };
        let binding = json!({"metadata": {}, "target": {"name": candidates[index]["metadata"]["name"]}});
        if let Ok(bound) = bound(&pod, &binding) {
            store.put(pods, bound);
            loads[index] += 1;
        }
    }
}

fn waits(pod: &Value) -> bool {
    pod["spec"]["nodeName"].as_str().unwrap_or_default().is_empty()
        && pod["spec"]["schedulerName"] == "default-scheduler"
        && !pod["metadata"]["deletionTimestamp"].is_string()
        && pod["spec"]["schedulingGates"].as_array().is_none_or(Vec::is_empty)
}

/// Whether the pod may go to the node.
fn fits(pod: &Value, node: &Value) -> bool {
    let conditions = node["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let ready = conditions.iter().any(|one| one["type"] == "Ready" && one["status"] == "True");
    let selected = pod["spec"]["nodeSelector"]
        .as_object()
        .is_none_or(|selector| selector.iter().all(|(key, value)| node["metadata"]["labels"].get(key) == Some(value)));
    let taints = node["spec"]["taints"].as_array().map(Vec::as_slice).unwrap_or_default();
    let tolerated =
        taints.iter().filter(|taint| taint["effect"] != "PreferNoSchedule").all(|taint| tolerates(pod, taint));
    ready && selected && tolerated && node["spec"]["unschedulable"] != true
}

fn tolerates(pod: &Value, taint: &Value) -> bool {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let tolerations = pod["spec"]["tolerations"].as_array().map(Vec::as_slice).unwrap_or_default();
    tolerations.iter().any(|one| {
        let (key, effect) = (text(&one["key"]), text(&one["effect"]));
        let exists = one["operator"] == "Exists";
        (effect.is_empty() || effect == text(&taint["effect"]))
            && (key == text(&taint["key"]) || (key.is_empty() && exists))
            && (exists || text(&one["value"]) == text(&taint["value"]))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_a_pod_fits() {
        let node = |labels: Value, taints: Value| {
            json!({"metadata": {"labels": labels}, "spec": {"taints": taints},
                "status": {"conditions": [{"type": "Ready", "status": "True"}]}})
        };
        let plain = json!({"spec": {}});
        assert!(fits(&plain, &node(json!({}), json!([]))));
        assert!(!fits(&plain, &json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}})));
        let taint = json!([{"key": "k", "value": "v", "effect": "NoSchedule"}]);
        assert!(!fits(&plain, &node(json!({}), taint.clone())));
        let tolerant = json!({"spec": {"tolerations": [{"key": "k", "value": "v"}]}});
        assert!(fits(&tolerant, &node(json!({}), taint.clone())));
        let careless = json!({"spec": {"tolerations": [{"operator": "Exists"}]}});
        assert!(fits(&careless, &node(json!({}), taint)));
        let picky = json!({"spec": {"nodeSelector": {"disk": "ssd"}}});
        assert!(!fits(&picky, &node(json!({}), json!([]))));
        assert!(fits(&picky, &node(json!({"disk": "ssd"}), json!([]))));
    }
}
