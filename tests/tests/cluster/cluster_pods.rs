//! A pod's whole life on a cluster: what the API server is told and when, how it ends, and what outlives a restart.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use bulkhead_testkit::{Cluster, IDLE, Lab, Node, cgroups};
use bulkhead_tests::joined::{Member, NODE};
use bulkhead_tests::lab;
use serde_json::{Value, json};

/// Does not mind being asked to end.
const STUBBORN: &str = "trap '' TERM; while true; do sleep 1; done";

/// The node's name is part of the pods' names, as it is of those of static pods: so one way of asking does for both.
fn pod(name: &str, node: &Node, script: &str, spec: &Value) -> Value {
    let container = json!({"name": "main", "image": node.image(), "command": ["sh", "-c", script]});
    let mut all = json!({"nodeName": NODE, "terminationGracePeriodSeconds": 2, "containers": [container]});
    for (key, value) in spec.as_object().into_iter().flatten() {
        all[key] = value.clone();
    }
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("{name}-{NODE}"), "namespace": "default"}, "spec": all})
}

fn world(lab: &Lab) -> Result<(Cluster, Node)> {
    let Member { cluster, node } = Member::start(lab, &[], |node| node)?;
    Ok((cluster, node))
}

fn wait(cluster: &Cluster, node: &Node, name: &str, what: &str, wanted: impl FnMut(&Value) -> bool) -> Result<Value> {
    cluster.wait_for("pods", "default", &node.pod_name(name), what, wanted)
}

fn runs(pod: &Value) -> bool {
    pod["status"]["phase"] == "Running"
}

fn condition<'a>(pod: &'a Value, kind: &str) -> &'a Value {
    let all = pod["status"]["conditions"].as_array();
    all.and_then(|all| all.iter().find(|one| one["type"] == kind)).unwrap_or(&Value::Null)
}

#[test]
fn a_deleted_pod_is_shown_terminated_before_its_object_goes() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let (cluster, node) = world(&lab)?;
    cluster.create(&pod("web", &node, STUBBORN, &json!({})))?;
    let running = wait(&cluster, &node, "web", "it runs", runs)?;
    ensure!(condition(&running, "Ready")["status"] == "True", "{running:#}");
    let name = node.pod_name("web");
    cluster.delete("pods", "default", &name, None)?;
    cluster.wait_gone("pods", "default", &name)?;
    ensure!(node.cri()?.containers()?.iter().all(|one| !one.running), "told as gone while it runs");

    let statuses = cluster.statuses("pods", "default", &name)?;
    let told: Vec<String> = statuses
        .iter()
        .map(|status| {
            let state = status["containerStatuses"][0]["state"].as_object();
            let state = state.and_then(|state| state.keys().next().cloned()).unwrap_or_default();
            format!("{} {} {state}", status["observedGeneration"], status["phase"].as_str().unwrap_or_default())
        })
        .collect();
    // What a watcher of upstream saw of the same pod; a step that lasts a moment may be left out.
    let upstream = [
        "null Pending ",
        "1 Pending waiting",
        "1 Pending waiting",
        "1 Running running",
        "2 Running running",
        "2 Failed terminated",
    ];
    let mut left = upstream.iter();
    for status in &told {
        ensure!(left.any(|expected| expected == status), "{status} is out of order in {told:#?}");
    }
    ensure!(told.last().map(String::as_str) == Some("2 Failed terminated"), "{told:#?}");
    let last = statuses.last().context("statuses")?;
    ensure!(last["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 137, "{last:#}");
    ensure!(last["startTime"] == running["status"]["startTime"], "{last:#}");
    ensure!(last["podIPs"] == running["status"]["podIPs"], "{last:#}");
    node.wait_gone("web")?;
    node.finish()
}

#[test]
fn rejected_pods_have_upstreams_reasons_and_messages() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let (cluster, node) = world(&lab)?;
    let mut big = pod("big", &node, IDLE, &json!({}));
    big["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "1000"}});
    let sysctls = json!({"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "65536"}]}});
    let choosy = json!({"nodeSelector": {"no.such/label": "x"}});
    for (name, object, reason, message) in [
        (
            "big",
            big,
            "OutOfcpu",
            "Pod was rejected: Node didn't have enough resource: cpu, requested: 1000000, used: 0, capacity: ",
        ),
        (
            "tuned",
            pod("tuned", &node, IDLE, &sysctls),
            "SysctlForbidden",
            "Pod was rejected: forbidden sysctl: \"kernel.msgmax\" not allowlisted",
        ),
        (
            "choosy",
            pod("choosy", &node, IDLE, &choosy),
            "NodeAffinity",
            "Pod was rejected: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector",
        ),
    ] {
        cluster.create(&object)?;
        let refused = wait(&cluster, &node, name, "it is refused", |pod| pod["status"]["phase"] == "Failed")?;
        let status = refused["status"].as_object().context("status")?;
        ensure!(status["reason"] == reason, "{refused:#}");
        ensure!(status["message"].as_str().is_some_and(|text| text.starts_with(message)), "{refused:#}");
        ensure!(status["startTime"].is_string() && status["observedGeneration"] == 1, "{refused:#}");
        ensure!(!status.contains_key("containerStatuses"), "{refused:#}");
        // As an earlier life of kubelet-syncd leaves it that admitted the pod. The server deletes a pod that has failed by itself.
        let uid = refused["metadata"]["uid"].as_str().context("uid")?;
        cgroups::create(&format!("{}/kubepods/besteffort/pod{uid}", node.cgroup_root()))?;
        let name = node.pod_name(name);
        cluster.delete("pods", "default", &name, None)?;
        cluster.wait_gone("pods", "default", &name)?;
        bulkhead_testkit::eventually("nothing is left of it", bulkhead_testkit::LONG, || {
            let below = cgroups::below(node.cgroup_root());
            let left = below.iter().find(|path| path.contains(uid));
            ensure!(left.is_none(), "{left:?}");
            Ok(())
        })?;
    }
    ensure!(node.cri()?.sandboxes()?.is_empty(), "something was made for a pod that was refused");
    node.finish()
}

#[test]
fn a_name_can_be_used_again_while_the_old_pod_still_ends() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let (cluster, node) = world(&lab)?;
    let spec = json!({"terminationGracePeriodSeconds": 5});
    let first = cluster.create(&pod("web", &node, STUBBORN, &spec))?;
    wait(&cluster, &node, "web", "it runs", runs)?;
    let name = node.pod_name("web");
    cluster.delete("pods", "default", &name, Some(0))?;
    cluster.wait_gone("pods", "default", &name)?;
    let second = cluster.create(&pod("web", &node, IDLE, &json!({})))?;
    let uid = second["metadata"]["uid"].as_str().context("uid")?.to_owned();
    ensure!(first["metadata"]["uid"] != uid.as_str());
    let running = wait(&cluster, &node, "web", "the new one runs", runs)?;
    ensure!(running["metadata"]["uid"] == uid.as_str(), "{running:#}");
    bulkhead_testkit::eventually("only the new pod is left", bulkhead_testkit::LONG, || {
        let others: Vec<_> = node.cri()?.sandboxes()?.into_iter().filter(|one| one.uid != uid).collect();
        ensure!(others.is_empty(), "{others:?}");
        Ok(())
    })?;
    let still = wait(&cluster, &node, "web", "it runs on", runs)?;
    ensure!(still["status"]["containerStatuses"][0]["restartCount"] == 0, "{still:#}");
    node.finish()
}

#[test]
fn terminal_pods_and_pods_of_other_nodes_are_not_run() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let Member { cluster, mut node } = Member::start(&lab, &[], |node| node)?;
    node.stop()?;
    cluster.create(&pod("over", &node, IDLE, &json!({})))?;
    cluster.patch_status(
        "pods",
        "default",
        &node.pod_name("over"),
        &json!({"status": {"phase": "Failed", "reason": "Elsewhere"}}),
    )?;
    cluster.create(&pod("other", &node, IDLE, &json!({"nodeName": "beta"})))?;
    // It fits only when the one that is over does not count.
    let ports = json!([{"containerPort": 80, "hostPort": 28081}]);
    let mut web = pod("web", &node, IDLE, &json!({}));
    web["spec"]["containers"][0]["ports"] = ports;
    cluster.create(&web)?;
    node.launch()?;
    node.wait_healthy()?;
    wait(&cluster, &node, "web", "it runs", runs)?;
    let sandboxes = node.cri()?.sandboxes()?;
    ensure!(sandboxes.len() == 1 && sandboxes[0].pod == node.pod_name("web"), "{sandboxes:?}");
    let over = cluster.get("pods", "default", &node.pod_name("over"))?;
    ensure!(over["status"]["phase"] == "Failed" && over["status"]["reason"] == "Elsewhere", "{over:#}");
    for name in ["over", "web"] {
        let name = node.pod_name(name);
        cluster.delete("pods", "default", &name, None)?;
        cluster.wait_gone("pods", "default", &name)?;
    }
    node.finish()
}

#[test]
fn readiness_follows_somebody_elses_condition() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let (cluster, node) = world(&lab)?;
    cluster.create(&pod("gated", &node, IDLE, &json!({"readinessGates": [{"conditionType": "x.io/ok"}]})))?;
    let waits = wait(&cluster, &node, "gated", "it runs", runs)?;
    let ready = condition(&waits, "Ready");
    ensure!(ready["status"] == "False" && ready["reason"] == "ReadinessGatesNotReady", "{waits:#}");
    ensure!(condition(&waits, "ContainersReady")["status"] == "True", "{waits:#}");
    let mut conditions = waits["status"]["conditions"].clone();
    let theirs = json!({"type": "x.io/ok", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    conditions.as_array_mut().context("conditions")?.push(theirs);
    cluster.patch_status("pods", "default", &node.pod_name("gated"), &json!({"status": {"conditions": conditions}}))?;
    let ready = wait(&cluster, &node, "gated", "it is ready", |pod| condition(pod, "Ready")["status"] == "True")?;
    ensure!(condition(&ready, "x.io/ok")["status"] == "True", "{ready:#}");
    node.finish()
}

#[test]
fn a_restart_goes_on_where_it_was() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let (cluster, mut node) = world(&lab)?;
    cluster.create(&pod("web", &node, STUBBORN, &json!({})))?;
    cluster.create(&pod("done", &node, "exit 3", &json!({"restartPolicy": "Never"})))?;
    let before = wait(&cluster, &node, "web", "it runs", runs)?;
    let done = wait(&cluster, &node, "done", "it has failed", |pod| pod["status"]["phase"] == "Failed")?;
    let main = node.wait_running("web", 1)?.main().id.clone();

    node.kill_daemon("kubelet-syncd")?;
    node.kill_daemon("kubelet-statusd")?;
    node.wait_healthy()?;
    node.wait_pod("web", "it is known again", |pod| pod.phase == "Running")?;
    node.wait_pod("done", "it is known again", |pod| pod.phase == "Failed" && pod.may_delete)?;
    let after = cluster.get("pods", "default", &node.pod_name("web"))?;
    ensure!(after["status"] == before["status"], "{:#} is not {:#}", after["status"], before["status"]);
    ensure!(node.wait_running("web", 1)?.main().id == main, "the container was restarted");
    let still = cluster.get("pods", "default", &node.pod_name("done"))?;
    ensure!(still["status"] == done["status"], "{:#} is not {:#}", still["status"], done["status"]);

    // It was asked to end while nobody was there.
    node.stop()?;
    let name = node.pod_name("web");
    cluster.delete("pods", "default", &name, Some(2))?;
    node.launch()?;
    node.wait_healthy()?;
    cluster.wait_gone("pods", "default", &name)?;
    let folder = node.root_dir().join("pods").join(before["metadata"]["uid"].as_str().context("uid")?);
    bulkhead_testkit::eventually("its folder is gone", bulkhead_testkit::LONG, || {
        ensure!(!Path::new(&folder).exists(), "{} is there", folder.display());
        Ok(())
    })?;
    node.finish()
}
