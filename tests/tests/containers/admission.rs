//! Pods that may not run on a node: they say why, nothing of them is started, and what they wanted stays free for others.

use anyhow::{Result, ensure};
use bulkhead_testkit::Pod;
use bulkhead_tests::lab;
use serde_json::json;

fn nothing_runs(node: &bulkhead_testkit::Node) -> Result<()> {
    let sandboxes = node.cri()?.sandboxes()?;
    ensure!(sandboxes.is_empty(), "{sandboxes:?}");
    Ok(())
}

#[test]
fn a_refused_pod_says_why_and_the_mended_one_runs() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let node = lab.node("alpha").start()?;
    let huge = json!({"requests": {"cpu": "1000"}});
    node.write(&Pod::idle("big").container_field("resources", huge))?;
    let sysctls = json!({"sysctls": [{"name": "kernel.msgmax", "value": "65536"}]});
    node.write(&Pod::idle("tuned").spec("securityContext", sysctls))?;
    node.write(&Pod::idle("choosy").spec("nodeSelector", json!({"no.such/label": "x"})))?;
    for (pod, reason, message) in [
        // Static pods are critical: they fail for want of pods to push off.
        ("big", "UnexpectedAdmissionError", "no set of running pods found to reclaim resources: [(res: cpu, q: "),
        ("tuned", "SysctlForbidden", "Pod was rejected: forbidden sysctl: \"kernel.msgmax\" not allowlisted"),
        (
            "choosy",
            "NodeAffinity",
            "Pod was rejected: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector",
        ),
    ] {
        let state = node.wait_pod(pod, "it is refused", |pod| pod.phase == "Failed")?;
        ensure!(state.reason == reason && state.message.contains(message), "{}: {}", state.reason, state.message);
        ensure!(!state.containers_may_run && state.is_static, "{state:?}");
        let event = state.recent_events.iter().find(|event| event.reason == reason);
        ensure!(event.is_some_and(|event| event.r#type == "Warning"), "{:?}", state.recent_events);
    }
    nothing_runs(&node)?;

    node.write(&Pod::idle("big"))?;
    let state = node.wait_pod("big", "it runs", |pod| pod.phase == "Running")?;
    ensure!(!state.may_delete && state.containers_may_run && state.reason.is_empty(), "{state:?}");
    for pod in ["big", "tuned", "choosy"] {
        node.remove(pod)?;
        node.wait_gone(pod)?;
    }
    node.finish()
}

#[test]
fn two_pods_cannot_have_the_same_port_of_the_host() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let node = lab.node("alpha").start()?;
    let ports = json!([{"containerPort": 80, "hostPort": 28080}]);
    node.write(&Pod::idle("first").container_field("ports", ports.clone()))?;
    node.wait_pod("first", "it runs", |pod| pod.phase == "Running")?;
    node.write(&Pod::idle("second").container_field("ports", ports))?;
    let state = node.wait_pod("second", "it is refused", |pod| pod.phase == "Failed")?;
    ensure!(state.reason == "NodePorts", "{state:?}");
    // The one that was there first does not mind.
    let first = node.wait_pod("first", "it still runs", |pod| pod.phase == "Running")?;
    ensure!(first.containers.iter().all(|one| one.restart_count == 0), "{first:?}");
    node.finish()
}

#[test]
fn a_more_important_pod_takes_the_last_place() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let node = lab.node("alpha").config("maxPods", json!(1)).start()?;
    node.write(&Pod::idle("low").spec("priority", json!(1)))?;
    node.wait_pod("low", "it runs", |pod| pod.phase == "Running")?;
    node.write(&Pod::idle("equal").spec("priority", json!(1)))?;
    let equal = node.wait_pod("equal", "it is refused", |pod| pod.phase == "Failed")?;
    ensure!(equal.reason == "UnexpectedAdmissionError", "{equal:?}");

    node.write(&Pod::idle("high").spec("priority", json!(2)))?;
    let low = node.wait_pod("low", "it has made room", |pod| pod.phase == "Failed" && !pod.containers_may_run)?;
    ensure!(low.reason == "Preempting" && low.message == "Preempted in order to admit critical pod", "{low:?}");
    ensure!(low.recent_events.iter().any(|event| event.reason == "Preempting"), "{:?}", low.recent_events);
    let disruption = low.conditions.iter().find(|one| one.r#type == "DisruptionTarget");
    ensure!(disruption.is_some_and(|one| one.status && one.reason == "TerminationByKubelet"), "{:?}", low.conditions);
    node.wait_pod("high", "it runs", |pod| pod.phase == "Running")?;
    node.finish()
}

/// The folder is told of a removal and a new file at once: no moment passes in which the pod is not wanted.
#[test]
fn a_refused_pod_is_judged_again_when_its_manifest_is_written_anew() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let node = lab.node("alpha").config("maxPods", json!(1)).start()?;
    let [first, second] = ["first", "second"].map(|name| Pod::idle(name).spec("priority", json!(1)));
    node.write(&first)?;
    node.wait_pod("first", "it runs", |pod| pod.phase == "Running")?;
    // One that runs does not mind that its manifest was moved away, as editors do.
    let before = node.fingerprint()?;
    std::fs::rename(node.manifests().join("first.yaml"), node.manifests().join(".first.yaml"))?;
    node.write(&first)?;
    node.write(&second)?;
    node.wait_pod("second", "it is refused", |pod| pod.phase == "Failed")?;
    ensure!(node.fingerprint()? == before, "{before:?}");
    node.remove("first")?;
    node.wait_gone("first")?;
    node.remove("second")?;
    node.write(&second)?;
    node.wait_pod("second", "there is room", |pod| pod.phase == "Running")?;
    node.finish()
}

#[test]
fn a_pod_past_its_deadline_is_ended() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let node = lab.node("alpha").start()?;
    let pod =
        Pod::idle("brief").spec("activeDeadlineSeconds", json!(4)).spec("terminationGracePeriodSeconds", json!(1));
    node.write(&pod)?;
    node.wait_pod("brief", "it runs", |pod| pod.phase == "Running")?;
    let state = node.wait_pod("brief", "its time is over", |pod| pod.may_delete)?;
    ensure!(state.phase == "Failed" && state.reason == "DeadlineExceeded", "{state:?}");
    ensure!(state.message == "Pod was active on the node longer than the specified deadline", "{state:?}");
    let running = node.cri()?.containers()?.into_iter().filter(|one| one.running).count();
    ensure!(running == 0, "{running} containers still run");
    node.finish()
}
