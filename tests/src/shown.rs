//! What a cluster shows of one node, of the pods bound to it, and of the events about both.

use anyhow::{Context, Result, ensure};
use bulkhead_testkit::{Cluster, LONG, Pod, SHORT, eventually};
use serde_json::{Value, json};

use crate::history::condition;

/// The node of most tests.
pub const NODE: &str = "alpha";

/// Creates a pod that is bound to [`NODE`] already.
///
/// # Errors
/// The server's refusal.
pub fn create(cluster: &Cluster, pod: Pod) -> Result<Value> {
    cluster.create(pod.spec("nodeName", json!(NODE)).value())
}

/// Waits until a pod in namespace `default` has a phase.
///
/// # Errors
/// It had not in time.
pub fn wait_phase(cluster: &Cluster, pod: &str, phase: &str) -> Result<Value> {
    cluster.wait_for("pods", "default", pod, phase, |pod| pod["status"]["phase"] == phase)
}

/// Waits until a pod in namespace `default` is ready.
///
/// # Errors
/// It was not in time.
pub fn wait_ready(cluster: &Cluster, pod: &str) -> Result<Value> {
    cluster.wait_for("pods", "default", pod, "it is ready", |pod| is_true(pod, "Ready"))
}

/// Whether a condition is true.
pub fn is_true(object: &Value, kind: &str) -> bool {
    condition(object, kind).is_ok_and(|one| one["status"] == "True")
}

/// Waits until the node's Ready condition has a status.
///
/// # Errors
/// It had not in time.
pub fn wait_node(cluster: &Cluster, status: &str) -> Result<Value> {
    cluster.wait_for("nodes", "", NODE, &format!("Ready is {status}"), |node| {
        condition(node, "Ready").is_ok_and(|one| one["status"] == status)
    })
}

/// The first container's status.
pub fn main_of(pod: &Value) -> &Value {
    &pod["status"]["containerStatuses"][0]
}

/// The node's events about an object (not a scheduler's or a controller's), sorted: `Type Reason fieldPath message (count)`.
///
/// # Errors
/// The server's refusal.
pub fn events(cluster: &Cluster, object: &Value) -> Result<Vec<String>> {
    let (uid, name) = (&object["metadata"]["uid"], &object["metadata"]["name"]);
    let about = |event: &Value| {
        let involved = &event["involvedObject"];
        // Events of a node name no uid.
        (involved["uid"] == *uid || (involved["kind"] == "Node" && involved["name"] == *name))
            && event["source"]["component"] == "kubelet"
    };
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let line = |event: &Value| {
        let words =
            [&event["type"], &event["reason"], &event["involvedObject"]["fieldPath"], &event["message"]].map(text);
        format!("{} ({})", words.join(" "), event["count"])
    };
    let mut lines: Vec<String> = cluster.list("events", None)?.iter().filter(|event| about(event)).map(line).collect();
    lines.sort();
    Ok(lines)
}

/// Waits until the events about an object are these, in any order: they come after what they are about.
///
/// # Errors
/// Those that were there in the end.
pub fn wait_events(cluster: &Cluster, object: &Value, expected: &[&str]) -> Result<()> {
    let mut expected = expected.to_vec();
    expected.sort_unstable();
    eventually("the events", SHORT, || {
        let seen = events(cluster, object)?;
        ensure!(seen == expected, "{seen:#?}");
        Ok(())
    })
}

/// Waits for one event about an object, by the beginning of its line.
///
/// # Errors
/// Those that were there in the end.
pub fn wait_event(cluster: &Cluster, object: &Value, line: &str) -> Result<String> {
    eventually("the event", LONG, || {
        let all = events(cluster, object)?;
        all.iter().find(|one| one.starts_with(line)).cloned().with_context(|| format!("no {line:?} in {all:#?}"))
    })
}
