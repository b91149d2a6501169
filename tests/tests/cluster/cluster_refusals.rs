//! Pods that a node of a cluster refuses: reason, message and event of each, and what a restart makes of those it took.

use anyhow::{Context, Result, ensure};
use bulkhead_testkit::apiserver::Config;
use bulkhead_testkit::{LONG, Pod, Release, eventually};
use bulkhead_tests::history::pod_only_advances;
use bulkhead_tests::joined::{
    Member, NODE, create, main_of, wait_event, wait_events, wait_node, wait_phase, wait_ready,
};
use bulkhead_tests::lab;
use serde_json::{Value, json};

const REJECTED: &str = "Pod was rejected: ";

/// Upstream's critical_pod_test.go: its containers exit with 0, so that it has Succeeded, and the condition says who ended it.
#[test]
fn who_makes_room_and_exits_with_0_has_succeeded() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let member = Member::start(&lab, &[], |node| node.config("maxPods", json!(1)))?;
    create(&member.cluster, Pod::idle("low"))?;
    wait_ready(&member.cluster, "low")?;
    member.node.write(&Pod::idle("critical").spec("priority", json!(2_000_001_000)))?;
    let low = wait_phase(&member.cluster, "low", "Succeeded")?;
    let status = &low["status"];
    ensure!(status["reason"].is_null() && status["message"].is_null(), "{status:#}");
    let conditions = status["conditions"].as_array().context("no conditions")?;
    let target = conditions.iter().find(|one| one["type"] == "DisruptionTarget").context("no DisruptionTarget")?;
    ensure!(target["status"] == "True" && target["reason"] == "TerminationByKubelet", "{target}");
    member.wait_event("low", "Preempting", |message| message == "Preempted in order to admit critical pod")?;
    member.node.wait_pod("critical", "it runs", |pod| pod.phase == "Running")?;
    member.node.finish()
}

#[test]
fn each_refusal_has_its_reason_message_and_event() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let Member { cluster, node } = Member::start(&lab, &[], |node| node.config("clusterDNS", json!(["10.96.0.10"])))?;
    wait_node(&cluster, "True")?;
    cluster.kubectl(&["taint", "node", NODE, "gone=bad:NoExecute", "later=bad:NoSchedule"])?;
    eventually("syncd has seen the taint", LONG, || {
        let seen = String::from_utf8_lossy(&node.agent()?.node()?.api_node_json).contains("gone");
        ensure!(seen, "not yet");
        Ok(())
    })?;
    let tolerant = json!([{"key": "gone", "operator": "Exists"}]);
    let idle = |name: &str| Pod::idle(name).spec("tolerations", tolerant.clone());
    let ports = json!([{"containerPort": 80, "hostPort": 28090}]);
    create(&cluster, idle("first").container_field("ports", ports.clone()))?;
    wait_ready(&cluster, "first")?;
    let requests = |resource: &str, amount: &str| json!({"requests": {resource: amount}});
    let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "NotIn", "values": [NODE]}]}]}}});
    let selector = "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector";
    let labelled = |name: &str| {
        let mut pod = idle(name).value().clone();
        pod["metadata"]["labels"] = json!({"kubernetes.io/os": "windows"});
        Pod::from_value(pod)
    };
    let sysctl = |name: &str| json!({"sysctls": [{"name": name, "value": "65536"}]});
    let cases = [
        (
            idle("cpu").container_field("resources", requests("cpu", "1000")),
            "OutOfcpu",
            "Node didn't have enough resource: cpu, requested: 1000000, used: 0, capacity: ",
        ),
        (
            idle("memory").container_field("resources", requests("memory", "64Ti")),
            "OutOfmemory",
            "Node didn't have enough resource: memory, requested: 70368744177664, used: 0, capacity: ",
        ),
        (
            idle("disk").container_field("resources", requests("ephemeral-storage", "900Ti")),
            "OutOfephemeral-storage",
            "Node didn't have enough resource: ephemeral-storage, requested: ",
        ),
        (idle("affinity").spec("affinity", affinity), "NodeAffinity", selector),
        (idle("selector").spec("nodeSelector", json!({"no.such/label": "x"})), "NodeAffinity", selector),
        (
            idle("ports").container_field("ports", ports),
            "NodePorts",
            "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports",
        ),
        (
            idle("sysctl").spec("securityContext", sysctl("kernel.msgmax")),
            "SysctlForbidden",
            "forbidden sysctl: \"kernel.msgmax\" not allowlisted",
        ),
        (idle("windows").spec("os", json!({"name": "windows"})), "PodOSNotSupported", ""),
        (labelled("labelled"), "PodOSSelectorNodeLabelDoesNotMatch", ""),
        (
            Pod::idle("tainted"),
            "TaintToleration",
            "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate",
        ),
        (
            idle("groups").spec("securityContext", json!({"supplementalGroupsPolicy": "Strict"})),
            "SupplementalGroupsPolicyNotSupported",
            "SupplementalGroupsPolicy=Strict is not supported in this node",
        ),
    ];
    for (pod, reason, message) in cases {
        let name = pod.name().to_owned();
        if name == "groups" && lab.containerd().programs().release() == Release::V2_1 {
            // That one can: tests/runtimes.rs.
            continue;
        }
        create(&cluster, pod).with_context(|| name.clone())?;
        let refused = wait_phase(&cluster, &name, "Failed")?;
        let status = &refused["status"];
        ensure!(status["reason"] == reason, "{name}: {status:#}");
        let full = status["message"].as_str().unwrap_or_default().to_owned();
        ensure!(full.starts_with(&format!("{REJECTED}{message}")), "{name}: {full}");
        ensure!(status["qosClass"].is_string() && status["containerStatuses"].is_null(), "{name}: {status:#}");
        let short = full.trim_start_matches(REJECTED);
        wait_events(&cluster, &refused, &[&format!("Warning {reason}  {short} (1)")])?;
        pod_only_advances(&cluster.history("pods", "default", &name)?)?;
    }
    let listed = cluster.kubectl(&["get", "pods"])?;
    ensure!(listed.lines().any(|line| line.starts_with("cpu ") && line.contains("OutOfcpu")), "{listed}");
    let sandboxes = node.cri()?.sandboxes()?;
    ensure!(sandboxes.len() == 1 && sandboxes[0].pod == "first", "{sandboxes:?}");
    // NoSchedule is the scheduler's business.
    create(&cluster, idle("scheduled"))?;
    wait_ready(&cluster, "scheduled")?;
    node.finish()
}

/// Claims that nobody has made: the pod is held and says why, whichever way they were asked for, and what the
/// scheduler wrote stays.
#[test]
fn a_pod_with_devices_waits_and_says_for_what() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let cluster = lab.stand_in(Config::default())?;
    let node = lab.node(NODE).joins(&cluster)?.config("syncFrequency", json!("2s")).start()?;
    wait_node(&cluster, "True")?;
    let claims = json!([{"name": "gpu", "resourceClaimTemplateName": "one"}]);
    let pod = create(&cluster, Pod::idle("devices").spec("resourceClaims", claims))?;
    let failed =
        "Warning FailedPrepareDynamicResources  Failed to prepare dynamic resources: prepare dynamic resources: ";
    wait_event(&cluster, &pod, &format!("{failed}pod \"default/devices\": ResourceClaim not created yet"))?;
    // The claim needs no object of its own; the scheduler made one for extended resources.
    let extended = json!({"resourceClaimName": "devices-extended", "requestMappings": [
        {"containerName": "main", "resourceName": "example.com/gpu", "requestName": "r0"}]});
    let status =
        json!({"status": {"resourceClaimStatuses": [{"name": "gpu"}], "extendedResourceClaimStatus": extended}});
    cluster.patch_status("pods", "default", "devices", &status)?;
    wait_event(&cluster, &pod, &format!("{failed}fetch ResourceClaim devices-extended: "))?;
    let now = cluster.get("pods", "default", "devices")?;
    ensure!(now["status"]["phase"] == "Pending" && main_of(&now)["state"]["running"].is_null(), "{now:#}");
    ensure!(now["status"]["extendedResourceClaimStatus"] == extended, "{now:#}");
    ensure!(now["status"]["resourceClaimStatuses"] == status["status"]["resourceClaimStatuses"], "{now:#}");
    ensure!(node.cri()?.sandboxes()?.is_empty(), "{:?}", node.cri()?.sandboxes()?);
    cluster.delete("pods", "default", "devices", None)?;
    cluster.wait_gone("pods", "default", "devices")?;
    node.finish()
}

#[test]
fn a_restart_looks_at_pods_anew() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let Member { cluster, mut node } = Member::start(&lab, &[], |node| node.config("maxPods", json!(3)))?;
    let first = wait_node(&cluster, "True")?;
    ensure!(first["status"]["capacity"]["pods"] == "3", "{:#}", first["status"]);
    cluster.kubectl(&["label", "node", NODE, "disk=ssd"])?;
    eventually("syncd has seen the label", LONG, || {
        let seen = String::from_utf8_lossy(&node.agent()?.node()?.api_node_json).contains("ssd");
        ensure!(seen, "not yet");
        Ok(())
    })?;
    create(&cluster, Pod::idle("choosy").spec("nodeSelector", json!({"disk": "ssd"})))?;
    create(&cluster, Pod::idle("calm"))?;
    create(&cluster, Pod::busybox("done", "exit 0").restart_policy("Never"))?;
    let calm = wait_ready(&cluster, "calm")?;
    let choosy = wait_ready(&cluster, "choosy")?;
    wait_phase(&cluster, "done", "Succeeded")?;
    // A pod that is over takes no place.
    create(&cluster, Pod::idle("third"))?;
    let third = wait_ready(&cluster, "third")?;
    create(&cluster, Pod::idle("fourth"))?;
    let fourth = wait_phase(&cluster, "fourth", "Failed")?;
    let message = "Pod was rejected: Node didn't have enough resource: pods, requested: 1, used: 3, capacity: 3";
    ensure!(fourth["status"]["reason"] == "OutOfpods" && fourth["status"]["message"] == message, "{fourth:#}");

    // Syncd alone: everything is taken again, and what was refused stays refused.
    node.kill_daemon("kubelet-syncd")?;
    node.wait_healthy()?;
    for pod in [&calm, &choosy, &third] {
        let name = pod["metadata"]["name"].as_str().context("no name")?;
        eventually("syncd knows it again", LONG, || {
            let known = node.agent()?.pods()?.iter().any(|one| one.name == name && one.phase == "Running");
            ensure!(known, "{name} is not known");
            Ok(())
        })?;
        ensure!(cluster.get("pods", "default", name)?["status"] == pod["status"], "{name} was written");
    }
    // Its containers are told as unknown after a restart, as upstream does; what it was refused for stays.
    let still = cluster.get("pods", "default", "fourth")?;
    for field in ["phase", "reason", "message", "startTime", "qosClass"] {
        ensure!(still["status"][field] == fourth["status"][field], "{field}: {still:#}");
    }

    // The label goes while the node is down: the running pod no longer fits, fails, and is ended.
    node.stop()?;
    cluster.kubectl(&["label", "node", NODE, "disk-"])?;
    node.launch()?;
    node.wait_healthy()?;
    let refused = wait_phase(&cluster, "choosy", "Failed")?;
    ensure!(refused["status"]["reason"] == "NodeAffinity", "{refused:#}");
    ensure!(refused["status"]["startTime"] == choosy["status"]["startTime"], "{refused:#}");
    eventually("its containers end", LONG, || {
        let left: Vec<Value> = node
            .cri()?
            .containers()?
            .iter()
            .filter(|one| one.pod == "choosy" && one.running)
            .map(|one| json!(one.id))
            .collect();
        ensure!(left.is_empty(), "{left:?}");
        Ok(())
    })?;
    let same = cluster.get("pods", "default", "calm")?;
    ensure!(main_of(&same) == main_of(&calm), "{same:#}");
    for pod in ["choosy", "calm", "third", "fourth", "done"] {
        pod_only_advances(&cluster.history("pods", "default", pod)?)?;
    }
    node.finish()
}
