//! What the API server shows of a node and its pods, and waiting for it.

use anyhow::Result;
use bulkhead_testkit::Cluster;
use serde_json::Value;

use super::{NAMESPACE, NODE};
use crate::history;

/// The status of a condition, empty where there is no such condition.
pub fn condition<'a>(object: &'a Value, kind: &str) -> &'a str {
    history::condition(object, kind).ok().and_then(|one| one["status"].as_str()).unwrap_or_default()
}

/// Whether a condition is true.
pub fn is_true(object: &Value, kind: &str) -> bool {
    condition(object, kind) == "True"
}

/// Whether the API server shows the pod as running and ready.
pub fn is_ready(pod: &Value) -> bool {
    pod["status"]["phase"] == "Running" && is_true(pod, "Ready")
}

/// The first container's status.
pub fn main_of(pod: &Value) -> &Value {
    &pod["status"]["containerStatuses"][0]
}

/// Reason and message of a container that waits.
pub fn waiting(pod: &Value, container: &str) -> Option<(String, String)> {
    let lists = ["containerStatuses", "initContainerStatuses"];
    let mut all = lists.iter().filter_map(|list| pod["status"][list].as_array()).flatten();
    let waiting = &all.find(|one| one["name"] == container)?["state"]["waiting"];
    let text = |field: &str| waiting[field].as_str().unwrap_or_default().to_owned();
    waiting.is_object().then(|| (text("reason"), text("message")))
}

/// Waits until a pod in namespace `default` has a phase.
///
/// # Errors
/// It had not in time.
pub fn wait_phase(cluster: &Cluster, pod: &str, phase: &str) -> Result<Value> {
    cluster.wait_for("pods", NAMESPACE, pod, phase, |pod| pod["status"]["phase"] == phase)
}

/// Waits until a pod in namespace `default` is ready.
///
/// # Errors
/// It was not in time.
pub fn wait_ready(cluster: &Cluster, pod: &str) -> Result<Value> {
    cluster.wait_for("pods", NAMESPACE, pod, "it is ready", |pod| is_true(pod, "Ready"))
}

/// Waits until the node's Ready condition has a status.
///
/// # Errors
/// It had not in time.
pub fn wait_node(cluster: &Cluster, status: &str) -> Result<Value> {
    cluster.wait_for("nodes", "", NODE, &format!("Ready is {status}"), |node| condition(node, "Ready") == status)
}
