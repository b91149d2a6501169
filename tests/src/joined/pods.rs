//! Objects for a cluster in few words: pods that are bound to a node, configMaps, secrets.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use bulkhead_testkit::{Cluster, IDLE, Node, Pod};
use serde_json::{Value, json};

use super::{NAMESPACE, NODE};

/// Creates a pod that is bound to [`NODE`] already.
///
/// # Errors
/// The server's refusal.
pub fn create(cluster: &Cluster, pod: Pod) -> Result<Value> {
    cluster.create(pod.spec("nodeName", json!(NODE)).value())
}

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

/// A configMap.
pub fn config_map(name: &str, data: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": NAMESPACE}, "data": data})
}

/// A secret of a type, its values in plain text.
pub fn secret(name: &str, kind: &str, data: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "type": kind, "stringData": data,
        "metadata": {"name": name, "namespace": NAMESPACE}})
}
