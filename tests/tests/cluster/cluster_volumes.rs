//! What pods get from the API server: variables, files, tokens, and changes of them while they run.

use anyhow::{Result, ensure};
use bulkhead_testkit::{IDLE, LONG, Node, eventually};
use bulkhead_tests::joined::{Member, NODE};
use bulkhead_tests::lab;
use serde_json::{Value, json};

/// The node's name is part of the pods' names, as it is of those of static pods: so one way of asking does for both.
fn pod(name: &str, node: &Node, script: &str, volumes: &Value, mut container: Value) -> Value {
    container["name"] = json!("main");
    container["image"] = json!(node.image());
    container["command"] = json!(["sh", "-c", script]);
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": format!("{name}-{NODE}"), "namespace": "default", "labels": {"app": name}},
        "spec": {"nodeName": NODE, "terminationGracePeriodSeconds": 1, "containers": [container], "volumes": volumes,
                 "securityContext": {"fsGroup": 3003}},
    })
}

fn object(kind: &str, name: &str, data: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": "default"}, "data": data})
}

#[test]
fn files_and_variables_come_from_the_cluster_and_files_follow_changes() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let cluster = lab.cluster()?;
    cluster.create(&object("ConfigMap", "cm", &json!({"k": "first"})))?;
    cluster.create(&object("Secret", "sec", &json!({"password": "cA=="})))?;
    let node = lab.node(NODE).joins(&cluster)?.start()?;
    let script = format!(
        "echo file $(cat /all/dir/k) variable $K prefixed $P_password; stat -Lc 'secret %a %g' /all/password; \
         test -s /all/token && echo token; cat /all/labels; echo; {IDLE}"
    );
    let volumes = json!([{"name": "v", "projected": {"sources": [
        {"configMap": {"name": "cm", "items": [{"key": "k", "path": "dir/k"}]}},
        {"secret": {"name": "sec"}},
        {"serviceAccountToken": {"path": "token", "audience": "vault"}},
        {"downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
    ]}}]);
    let container = json!({
        "env": [{"name": "K", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "k"}}}],
        "envFrom": [{"prefix": "P_", "secretRef": {"name": "sec"}}],
        "volumeMounts": [{"name": "v", "mountPath": "/all"}, {"name": "v", "mountPath": "/part", "subPath": "dir/k"}],
    });
    cluster.create(&pod("all", &node, &script, &volumes, container))?;
    let log = std::fs::read_to_string(node.wait_for_log("all", "main", "app=\"all\"")?)?;
    ensure!(log.contains("file first variable first prefixed p"), "{log}");
    ensure!(log.contains("secret 644 3003") && log.contains("token"), "{log}");

    let running = node.wait_running("all", 1)?;
    let cat = |file: &str| node.cri()?.exec(&running.main().id, &["cat", file]);
    cluster.patch("configmaps", "default", "cm", &json!({"data": {"k": "second"}}))?;
    eventually("the file shows the change", LONG, || {
        let (_, text) = cat("/all/dir/k")?;
        ensure!(text.contains("second"), "{text}");
        Ok(())
    })?;
    ensure!(cat("/part")?.1.contains("first"), "a part of a volume stays as it was");
    cluster.patch("pods", "default", &node.pod_name("all"), &json!({"metadata": {"labels": {"new": "label"}}}))?;
    eventually("the labels follow", LONG, || {
        let (_, text) = cat("/all/labels")?;
        ensure!(text.contains("new=\"label\""), "{text}");
        Ok(())
    })?;
    let after = node.wait_running("all", 1)?;
    ensure!(after.main().id == running.main().id, "no container was restarted");
    node.finish()
}

#[test]
fn a_pod_waits_for_what_it_names_and_starts_when_that_appears() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let Member { cluster, node } = Member::start(&lab, &[], |node| node)?;
    let volumes = json!([{"name": "v", "configMap": {"name": "late"}}]);
    let container = json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]});
    let script = format!("echo $(cat /v/k); {IDLE}");
    cluster.create(&pod("volume", &node, &script, &volumes, container))?;
    let container = json!({"env": [{"name": "K", "valueFrom": {"secretKeyRef": {"name": "late", "key": "k"}}}]});
    cluster.create(&pod("variable", &node, &format!("echo got $K; {IDLE}"), &json!([]), container))?;

    node.wait_pod("volume", "its volume is missed", |pod| {
        pod.volumes.iter().any(|v| !v.ready && v.error.ends_with("configmap \"late\" not found"))
    })?;
    node.wait_pod("variable", "its variable is missed", |pod| {
        let missing = |reason: &str, message: &str| {
            reason == "CreateContainerConfigError" && message == "secret \"late\" not found"
        };
        pod.containers.iter().any(|c| missing(&c.reason, &c.message))
    })?;
    let volume = node.pod_name("volume");
    ensure!(node.cri()?.sandboxes()?.iter().all(|s| s.pod != volume), "no sandbox before the volumes");

    cluster.create(&object("ConfigMap", "late", &json!({"k": "at last"})))?;
    cluster.create(&object("Secret", "late", &json!({"k": "eA=="})))?;
    node.wait_for_log("volume", "main", "at last")?;
    node.wait_for_log("variable", "main", "got x")?;
    node.finish()
}
