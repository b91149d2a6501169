//! All versions that the API server ever had of a pod, and the rules that they keep.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use bulkhead_testkit::{Cluster, Node};
use serde_json::Value;

use super::events::events;
use super::pods::idle;
use super::status::wait_ready;
use super::{NAMESPACE, is_ready};
use crate::history::pod_only_advances;

/// A pod comes, is ready, goes.
///
/// # Errors
/// It did not, or it went backwards.
pub fn one_life(cluster: &Cluster, node: &Node, name: &str) -> Result<()> {
    cluster.create(&idle(node, name))?;
    wait_ready(cluster, name)?;
    cluster.delete("pods", NAMESPACE, name, None)?;
    cluster.wait_gone("pods", NAMESPACE, name)?;
    never_stirred(cluster, name)
}

/// Checks all versions that there were of a pod: nothing that was told is taken back.
///
/// # Errors
/// What went backwards.
pub fn never_back(cluster: &Cluster, name: &str) -> Result<()> {
    let history = cluster.history("pods", NAMESPACE, name)?;
    ensure!(!history.is_empty(), "the server never had a pod {name}");
    pod_only_advances(&history).with_context(|| format!("pod {name}"))
}

/// The same of a pod whose readiness may have come and gone while nobody could tell the server: then the time of a
/// condition is news without another status, as with upstream's status manager.
///
/// # Errors
/// What went backwards.
pub fn never_back_but_times(cluster: &Cluster, name: &str) -> Result<()> {
    let mut history = cluster.history("pods", NAMESPACE, name)?;
    ensure!(!history.is_empty(), "the server never had a pod {name}");
    let conditions = history.iter_mut().filter_map(|pod| pod["status"]["conditions"].as_array_mut()).flatten();
    for condition in conditions {
        condition["lastTransitionTime"] = Value::Null;
    }
    pod_only_advances(&history).with_context(|| format!("pod {name}"))
}

/// The same of a pod that nothing happened to: once it was ready it stayed so, with the same container, until its deletion.
///
/// # Errors
/// What went backwards, or changed.
pub fn never_stirred(cluster: &Cluster, name: &str) -> Result<()> {
    never_back(cluster, name)?;
    for pair in cluster.history("pods", NAMESPACE, name)?.windows(2) {
        let (old, new) = (&pair[0], &pair[1]);
        if old["metadata"]["uid"] == new["metadata"]["uid"] {
            let context = || {
                let events = events(cluster, new).unwrap_or_default().join("\n");
                format!("pod {name}:\n{}\nbecame\n{}\nits events:\n{events}", old["status"], new["status"])
            };
            not_stirred(old, new).with_context(context)?;
        }
    }
    Ok(())
}

fn not_stirred(old: &Value, new: &Value) -> Result<()> {
    if new["metadata"]["deletionTimestamp"].is_string() || !is_ready(old) {
        return Ok(());
    }
    ensure!(is_ready(new), "it is not ready any more");
    for field in ["podIP", "podIPs", "hostIP"] {
        ensure!(old["status"][field] == new["status"][field], "{field} changed");
    }
    for (name, before) in by_name(&old["status"]["containerStatuses"]) {
        let after = &by_name(&new["status"]["containerStatuses"])[name].clone();
        for field in ["containerID", "restartCount", "state"] {
            ensure!(before[field] == after[field], "{field} of {name} changed");
        }
    }
    Ok(())
}

fn by_name(statuses: &Value) -> BTreeMap<&str, &Value> {
    let all = statuses.as_array().into_iter().flatten();
    all.map(|one| (one["name"].as_str().unwrap_or_default(), one)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn with(status: Value) -> Value {
        json!({"metadata": {"uid": "u"}, "status": status})
    }

    #[test]
    fn a_pod_that_stirs_is_found() {
        let ready = with(json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}));
        let unready = with(json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}]}));
        assert!(not_stirred(&ready, &ready).is_ok() && not_stirred(&unready, &ready).is_ok());
        assert!(not_stirred(&ready, &unready).is_err());
    }
}
