//! What the cluster does to its nodes: the taints that follow their conditions, their pods' addresses, and the
//! annotation by which they choose how long to cache.

use serde_json::{Value, json};

use super::super::Shared;
use super::super::resources::named;
use super::super::strategies::same_taint;

/// Brings every node's spec in line with its status.
pub(super) fn settle(shared: &Shared) {
    let nodes = named("nodes");
    let mut store = shared.store();
    let all: Vec<Value> = store.list(nodes, None).map(|node| node.value.clone()).collect();
    for node in &all {
        let mut wanted = node.clone();
        if shared.config.taint_new_nodes {
            taints(&mut wanted);
        }
        if wanted["metadata"]["annotations"]["node.alpha.kubernetes.io/ttl"].is_null() {
            wanted["metadata"]["annotations"]["node.alpha.kubernetes.io/ttl"] = json!("0");
        }
        if shared.config.pod_cidrs && wanted["spec"]["podCIDR"].is_null() {
            let taken = |range: &str| all.iter().any(|other| other["spec"]["podCIDR"] == range);
            if let Some(range) = (0..256).map(|n| format!("10.244.{n}.0/24")).find(|range| !taken(range)) {
                wanted["spec"]["podCIDR"] = json!(range);
                wanted["spec"]["podCIDRs"] = json!([range]);
            }
        }
        if wanted != *node {
            store.put(nodes, wanted);
        }
    }
}

/// Conditions and the taints of effect NoSchedule that say the same (`TaintNodesByCondition`).
fn taints(node: &mut Value) {
    let status = |kind: &str| {
        let conditions = node["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
        conditions
            .iter()
            .find(|one| one["type"] == kind)
            .and_then(|one| one["status"].as_str())
            .unwrap_or("")
            .to_owned()
    };
    let ready = status("Ready");
    let mut rules = vec![
        ("node.kubernetes.io/not-ready", ready == "False" || ready.is_empty()),
        ("node.kubernetes.io/unreachable", ready == "Unknown"),
        ("node.kubernetes.io/unschedulable", node["spec"]["unschedulable"] == true),
    ];
    for (key, kind) in [
        ("node.kubernetes.io/memory-pressure", "MemoryPressure"),
        ("node.kubernetes.io/disk-pressure", "DiskPressure"),
        ("node.kubernetes.io/pid-pressure", "PIDPressure"),
        ("node.kubernetes.io/network-unavailable", "NetworkUnavailable"),
    ] {
        rules.push((key, status(kind) == "True"));
    }
    let mut taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
    for (key, wanted) in rules {
        let taint = json!({"key": key, "effect": "NoSchedule"});
        let there = taints.iter().any(|one| same_taint(one, &taint));
        if wanted && !there {
            taints.push(taint);
        } else if !wanted && there {
            taints.retain(|one| !same_taint(one, &taint));
        }
    }
    match taints.is_empty() {
        true => drop(node["spec"].as_object_mut().and_then(|spec| spec.remove("taints"))),
        false => node["spec"]["taints"] = json!(taints),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taints_follow_conditions_and_leave_others_alone() {
        let mut node = json!({
            "spec": {"taints": [{"key": "own", "effect": "NoSchedule"}, {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]},
            "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "DiskPressure", "status": "True"}]},
        });
        taints(&mut node);
        assert_eq!(
            node["spec"]["taints"],
            json!([{"key": "own", "effect": "NoSchedule"}, {"key": "node.kubernetes.io/disk-pressure", "effect": "NoSchedule"}])
        );
        let mut plain = json!({"spec": {}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        taints(&mut plain);
        assert_eq!(plain["spec"], json!({}));
    }
}
