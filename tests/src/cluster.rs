//! Pods of a cluster in few words, and what must hold of everything that the API server was ever told about one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_testkit::apiserver::request_log::Record;
use bulkhead_testkit::{Cluster, IDLE, Node};
use serde_json::{Value, json};

use crate::history::{self, pod_only_advances};
pub use crate::shown::wait_ready;

pub const NAMESPACE: &str = "default";

/// A pod bound to `node` with one container `main` that runs `script`; fields of `spec` are added.
pub fn pod(node: &Node, name: &str, script: &str, spec: &Value) -> Value {
    let container = json!({"name": "main", "image": node.image(), "command": ["sh", "-c", script]});
    let mut all = json!({"nodeName": node.name(), "terminationGracePeriodSeconds": 1, "containers": [container]});
    for (key, value) in spec.as_object().into_iter().flatten() {
        all[key] = value.clone();
    }
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": NAMESPACE}, "spec": all})
}

/// A pod that only waits.
pub fn idle(node: &Node, name: &str) -> Value {
    pod(node, name, IDLE, &json!({}))
}

/// A pod that ends with `code` as soon as it is told to, once for each sign.
///
/// # Errors
/// The folder for signs cannot be made.
pub fn ends_on_sign(node: &Node, name: &str, code: u8, policy: &str) -> Result<Value> {
    let signs = signs(node);
    std::fs::create_dir_all(&signs).with_context(|| format!("creating {}", signs.display()))?;
    let script = format!("while ! rm /signs/{name} 2>/dev/null; do sleep 0.1; done; exit {code}");
    let mut all = pod(node, name, &script, &json!({"restartPolicy": policy}));
    all["spec"]["volumes"] = json!([{"name": "signs", "hostPath": {"path": signs}}]);
    all["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "signs", "mountPath": "/signs"}]);
    Ok(all)
}

/// Tells such a pod to end.
///
/// # Errors
/// The sign cannot be written.
pub fn give_sign(node: &Node, name: &str) -> Result<()> {
    std::fs::write(signs(node).join(name), "").context("giving the sign")
}

fn signs(node: &Node) -> PathBuf {
    node.lab().folder().join("signs")
}

/// A condition's status, empty where there is no such condition.
pub fn condition<'a>(object: &'a Value, kind: &str) -> &'a str {
    history::condition(object, kind).ok().and_then(|one| one["status"].as_str()).unwrap_or_default()
}

/// Whether the API server was told that the pod is ready.
pub fn is_ready(pod: &Value) -> bool {
    pod["status"]["phase"] == "Running" && condition(pod, "Ready") == "True"
}

/// Who asked: the process behind a request.
pub fn process_of(record: &Record) -> &str {
    record.agent.rsplit(' ').next().unwrap_or_default()
}

/// Whether a request begins with everything that there is: a list, or a watch that starts with one.
pub fn is_list(record: &Record) -> bool {
    record.verb == "list" || (record.verb == "watch" && record.uri.contains("sendInitialEvents=true"))
}

/// The most requests of those that came within any `window`.
pub fn busiest<'a>(records: impl IntoIterator<Item = &'a Record>, window: Duration) -> usize {
    let times: Vec<_> = records.into_iter().map(|record| record.time.as_millisecond()).collect();
    let window = i64::try_from(window.as_millis()).unwrap_or(i64::MAX);
    (0..times.len())
        .map(|first| times[first..].iter().take_while(|time| **time - times[first] < window).count())
        .max()
        .unwrap_or(0)
}

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

/// No process asks faster than it may, and nobody lists again and again. `qps`, `burst`: of each process.
///
/// # Errors
/// What was too much.
pub fn is_no_storm(records: &[Record], qps: usize, burst: usize) -> Result<()> {
    let heartbeat = |one: &&Record| matches!(one.resource, "leases" | "nodes" | "csinodes");
    for process in ["kubelet-syncd", "kubelet-statusd"] {
        let of_process = records.iter().filter(|one| process_of(one) == process && !heartbeat(one));
        let (events, main): (Vec<&Record>, Vec<&Record>) = of_process.partition(|one| one.resource == "events");
        let most = busiest(main, Duration::from_secs(1));
        ensure!(most <= burst + qps, "{process} sent {most} requests within a second");
        let most = busiest(events, Duration::from_secs(1));
        ensure!(most <= 150, "{process} sent {most} events within a second");
    }
    // A start asks for each of these once or twice, and a test may start a node twice within a second: what makes a storm is
    // the same request over and over.
    let heartbeats: Vec<&Record> = records.iter().filter(heartbeat).collect();
    let kinds: BTreeSet<(&str, &str)> = heartbeats.iter().map(|one| (one.verb, one.resource)).collect();
    for (verb, resource) in kinds {
        let same = heartbeats.iter().copied().filter(|one| (one.verb, one.resource) == (verb, resource));
        let most = busiest(same, Duration::from_secs(1));
        ensure!(most <= 6, "{verb} of {resource} {most} times within a second");
    }
    let lists: Vec<String> = records.iter().filter(|one| is_list(one)).map(|one| one.uri.clone()).collect();
    let distinct: BTreeSet<&String> = lists.iter().collect();
    ensure!(lists.len() <= distinct.len() * 2, "lists again and again: {lists:#?}");
    Ok(())
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
            let told = || format!("pod {name}:\n{}\nbecame\n{}", old["status"], new["status"]);
            not_stirred(old, new).with_context(told)?;
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

/// Reasons of the events about an object.
///
/// # Errors
/// The server's refusal.
pub fn reasons(cluster: &Cluster, uid: &str) -> Result<Vec<String>> {
    let of_it = |event: &Value| event["involvedObject"]["uid"] == uid;
    let reason = |event: Value| event["reason"].as_str().unwrap_or_default().to_owned();
    Ok(cluster.list("events", None)?.into_iter().filter(of_it).map(reason).collect())
}

#[cfg(test)]
mod tests {
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
