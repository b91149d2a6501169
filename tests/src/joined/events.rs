//! The events about an object.

use anyhow::{Context as _, Result, ensure};
use bulkhead_testkit::{Cluster, LONG, SHORT, eventually};
use serde_json::Value;

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

/// Reasons of the events about an object.
///
/// # Errors
/// The server's refusal.
pub fn reasons(cluster: &Cluster, uid: &str) -> Result<Vec<String>> {
    let of_it = |event: &Value| event["involvedObject"]["uid"] == uid;
    let reason = |event: Value| event["reason"].as_str().unwrap_or_default().to_owned();
    Ok(cluster.list("events", None)?.into_iter().filter(of_it).map(reason).collect())
}
