//! A cluster's own controllers and scheduler: do they find on our nodes what they work with, and do the nodes what comes of it?

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_testkit::cluster::client::Credential;
use bulkhead_testkit::cluster::{Storage, controllers_are_there};
use bulkhead_testkit::cri::Fingerprint;
use bulkhead_testkit::https::Https;
use bulkhead_testkit::skip::{Lack, skip_this_test};
use bulkhead_testkit::{Cluster, IDLE, LONG, Lab, Node, eventually, image};
use bulkhead_tests::history::{condition, readiness};
use bulkhead_tests::joined::{NODE, events, is_true, wait_node, wait_ready};
use bulkhead_tests::lab;
use serde_json::{Value, json};

use crate::eviction::{MIB, reserved_beside};

const OTHER: &str = "beta";
const REQUESTS: &str = "certificatesigningrequests";

/// A real control plane with its controllers; nothing (said) where there are no programs.
fn cluster(lab: &Lab, flags: &[&str]) -> Result<Option<Cluster>> {
    if !controllers_are_there() {
        skip_this_test(Lack::ControlPlane)?;
        return Ok(None);
    }
    let cluster = lab.cluster_on(Storage::default())?;
    cluster.start_controllers_with(flags)?;
    Ok(Some(cluster))
}

/// What users give to `kubectl create`.
fn create(cluster: &Cluster, objects: &[Value]) -> Result<()> {
    let file = cluster.folder().join("objects.json");
    std::fs::write(&file, json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string())?;
    // Not every build of the API server describes what it takes in the form that kubectl asks for.
    cluster.kubectl(&["create", "--validate=false", "-f", &file.display().to_string()]).map(drop)
}

/// An object of a controller, whose pods have the label `app` and idle unless `spec` says otherwise.
fn workload(kind: &str, name: &str, own: &Value, pod: &Value) -> Value {
    let mut spec = json!({"terminationGracePeriodSeconds": 1});
    merge(&mut spec, pod);
    if spec["containers"].is_null() {
        spec["containers"] = json!([{"name": "main", "image": image::BUSYBOX, "command": ["sh", "-c", IDLE]}]);
    }
    let labels = json!({"app": name});
    let mut all = json!({"template": {"metadata": {"labels": labels}, "spec": spec}});
    if kind != "Job" {
        all["selector"] = json!({"matchLabels": labels});
    }
    merge(&mut all, own);
    let version = if kind == "Job" { "batch/v1" } else { "apps/v1" };
    json!({"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": all})
}

fn merge(into: &mut Value, other: &Value) {
    for (key, value) in other.as_object().into_iter().flatten() {
        into[key] = value.clone();
    }
}

/// The pods of a workload.
fn pods(cluster: &Cluster, app: &str) -> Result<Vec<Value>> {
    let mut pods = cluster.list("pods", Some("default"))?;
    pods.retain(|pod| pod["metadata"]["labels"]["app"] == app);
    Ok(pods)
}

/// Waits until a workload has exactly `count` pods, all of them ready and on one node.
fn wait_pods(cluster: &Cluster, app: &str, count: usize, node: &str) -> Result<Vec<Value>> {
    eventually(&format!("{count} pods of {app} are ready on {node}"), LONG, || {
        let pods = pods(cluster, app)?;
        let fits = |pod: &Value| is_true(pod, "Ready") && pod["spec"]["nodeName"] == node;
        ensure!(pods.len() == count && pods.iter().all(fits), "{pods:#?}");
        Ok(pods)
    })
}

/// Effects by which the controllers keep pods away from a node, as `key:effect`.
fn taints(node: &Value) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let all = node["spec"]["taints"].as_array().into_iter().flatten();
    all.map(|one| format!("{}:{}", text(&one["key"]), text(&one["effect"]))).collect()
}

fn wait_taints(cluster: &Cluster, name: &str, expected: &[&str]) -> Result<Value> {
    cluster.wait_for("nodes", "", name, &format!("its taints are {expected:?}"), |node| {
        let mut seen = taints(node);
        seen.sort();
        seen == expected
    })
}

fn wait_ready_node(cluster: &Cluster, name: &str) -> Result<()> {
    cluster.wait_for("nodes", "", name, "it is ready", |node| is_true(node, "Ready"))?;
    wait_taints(cluster, name, &[]).map(drop)
}

/// The running containers of the pods of a workload.
fn running(node: &Node, app: &str) -> Result<Vec<Fingerprint>> {
    let mut all = node.fingerprint()?;
    all.retain(|one| one.pod.starts_with(app));
    Ok(all)
}

#[test]
fn workloads_are_scheduled_scaled_finished_and_drained() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let Some(cluster) = cluster(&lab, &[])? else { return Ok(()) };
    let alpha = lab.node(NODE).joins(&cluster)?.start()?;
    wait_ready_node(&cluster, NODE)?;
    // The API server gives it to every new Node; a controller takes it away once the Node says that it is ready.
    let first = cluster.history("nodes", "", NODE)?.first().map(taints).context("no version of the Node")?;
    ensure!(first == ["node.kubernetes.io/not-ready:NoSchedule"], "{first:?}");

    let counts = json!({"restartPolicy": "Never", "containers": [{"name": "main", "image": image::BUSYBOX,
        "command": ["sh", "-c", "echo counted $JOB_COMPLETION_INDEX"]}]});
    let indexed = json!({"completions": 3, "parallelism": 2, "completionMode": "Indexed"});
    create(
        &cluster,
        &[
            workload("Deployment", "web", &json!({"replicas": 2}), &json!({})),
            workload("DaemonSet", "agent", &json!({}), &json!({})),
            workload("Job", "count", &indexed, &counts),
            json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web"},
                "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}}),
        ],
    )?;
    let timeout = format!("--timeout={}s", LONG.as_secs());
    cluster.kubectl(&["rollout", "status", "deployment/web", &timeout])?;
    cluster.kubectl(&["rollout", "status", "daemonset/agent", &timeout])?;
    let two = wait_pods(&cluster, "web", 2, NODE)?;
    let scheduled = cluster.list("events", Some("default"))?.into_iter().any(|event| {
        event["reason"] == "Scheduled"
            && (event["source"]["component"] == "default-scheduler"
                || event["reportingComponent"] == "default-scheduler")
            && event["involvedObject"]["uid"] == two[0]["metadata"]["uid"]
    });
    ensure!(scheduled, "somebody else bound it: {:#?}", cluster.list("events", Some("default"))?);

    cluster.kubectl(&["wait", "--for=condition=complete", "job/count", &timeout])?;
    let done = pods(&cluster, "count")?;
    ensure!(done.len() == 3 && done.iter().all(|pod| pod["status"]["phase"] == "Succeeded"), "{done:#?}");
    let mut said: Vec<String> =
        cluster.kubectl(&["logs", "--selector=app=count"])?.lines().map(str::to_owned).collect();
    said.sort();
    ensure!(said == ["counted 0", "counted 1", "counted 2"], "{said:?}");
    // The finalizer by which the Job counts is gone, and so are the pods with their Job.
    cluster.kubectl(&["delete", "job", "count", &timeout])?;
    for pod in &done {
        cluster.wait_gone("pods", "default", pod["metadata"]["name"].as_str().unwrap_or_default())?;
    }

    cluster.kubectl(&["scale", "deployment/web", "--replicas=4"])?;
    let four = wait_pods(&cluster, "web", 4, NODE)?;
    ensure!(two.iter().all(|one| four.iter().any(|pod| pod["metadata"]["uid"] == one["metadata"]["uid"])), "{four:#?}");
    cluster.kubectl(&["scale", "deployment/web", "--replicas=2"])?;
    wait_pods(&cluster, "web", 2, NODE)?;

    // Drained, with another node to go to: one pod after the other, because of the budget. Pods of daemons stay.
    let beside = Lab::start_beside()?;
    let beta = beside.node(OTHER).joins(&cluster)?.start()?;
    wait_ready_node(&cluster, OTHER)?;
    let agent = running(&alpha, "agent")?;
    cluster.kubectl(&["drain", NODE, "--ignore-daemonsets", &timeout])?;
    let moved = wait_pods(&cluster, "web", 2, OTHER)?;
    ensure!(running(&beta, "web")?.len() == 2 && running(&alpha, "web")?.is_empty(), "{moved:#?}");
    ensure!(agent.len() == 1 && running(&alpha, "agent")? == agent, "{agent:#?}");
    wait_taints(&cluster, NODE, &["node.kubernetes.io/unschedulable:NoSchedule"])?;
    cluster.kubectl(&["uncordon", NODE])?;
    wait_taints(&cluster, NODE, &[])?;
    eventually("both nodes have a pod of the daemon set", LONG, || {
        let ready: Vec<_> = pods(&cluster, "agent")?.iter().filter(|pod| is_true(pod, "Ready")).cloned().collect();
        ensure!(ready.len() == 2, "{ready:#?}");
        Ok(())
    })?;
    // Their owners go first, or there would be others in their place.
    cluster.kubectl(&["delete", "deployment/web", "daemonset/agent", &timeout])?;
    eventually("their pods go with them", LONG, || {
        let left = cluster.list("pods", Some("default"))?;
        ensure!(left.is_empty(), "{left:#?}");
        Ok(())
    })?;
    beta.finish()?;
    alpha.finish()
}

#[test]
fn a_node_that_is_ill_or_silent_is_tainted_and_its_pods_move() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let flags = ["--node-monitor-period=1s", "--node-monitor-grace-period=12s"];
    let Some(cluster) = cluster(&lab, &flags)? else { return Ok(()) };
    // Two: where all nodes of a cluster are ill, the controllers think that they are themselves, and move nothing.
    let beside = Lab::start_beside()?;
    let lease = json!(4);
    let mut alpha = lab.node(NODE).joins(&cluster)?.config("nodeLeaseDurationSeconds", lease.clone()).start()?;
    let beta = beside.node(OTHER).joins(&cluster)?.config("nodeLeaseDurationSeconds", lease).start()?;
    wait_ready_node(&cluster, NODE)?;
    wait_ready_node(&cluster, OTHER)?;
    let stays = json!({"nodeName": NODE, "terminationGracePeriodSeconds": 1, "tolerations": [{"operator": "Exists"}],
        "containers": [{"name": "main", "image": image::BUSYBOX, "command": ["sh", "-c", IDLE]}]});
    create(&cluster, &[json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "stays"}, "spec": stays})])?;
    wait_ready(&cluster, "stays")?;
    let untouched = running(&alpha, "stays")?;
    ensure!(untouched.len() == 1, "{untouched:#?}");

    // Ill: it says so itself.
    let not_ready = ["node.kubernetes.io/not-ready:NoExecute", "node.kubernetes.io/not-ready:NoSchedule"];
    lab.containerd().stop()?;
    wait_taints(&cluster, NODE, &not_ready)?;
    lab.containerd().spawn()?;
    wait_ready_node(&cluster, NODE)?;

    // Silent. A pod that waits for a node no longer than seconds is made again elsewhere.
    cluster.kubectl(&["cordon", OTHER])?;
    let toleration = json!({"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute",
        "tolerationSeconds": 2});
    create(
        &cluster,
        &[workload("Deployment", "moves", &json!({"replicas": 1}), &json!({"tolerations": [toleration]}))],
    )?;
    let before = wait_pods(&cluster, "moves", 1, NODE)?.remove(0);
    cluster.kubectl(&["uncordon", OTHER])?;
    wait_taints(&cluster, OTHER, &[])?;
    let left = alpha.fingerprint()?;
    alpha.stop()?;
    let unreachable = ["node.kubernetes.io/unreachable:NoExecute", "node.kubernetes.io/unreachable:NoSchedule"];
    let silent = wait_taints(&cluster, NODE, &unreachable)?;
    let ready = condition(&silent, "Ready")?;
    ensure!(ready["status"] == "Unknown" && ready["reason"] == "NodeStatusUnknown", "{ready:#}");
    let uid = &before["metadata"]["uid"];
    eventually("another pod is ready elsewhere", LONG, || {
        let pods = pods(&cluster, "moves")?;
        let next = pods.iter().find(|pod| pod["metadata"]["uid"] != *uid).context("no other pod")?;
        ensure!(is_true(next, "Ready") && next["spec"]["nodeName"] == OTHER, "{next:#}");
        let old = pods.iter().find(|pod| pod["metadata"]["uid"] == *uid).context("the old pod is gone too early")?;
        ensure!(old["metadata"]["deletionTimestamp"].is_string(), "{old:#}");
        Ok(())
    })?;
    cluster.wait_for("pods", "default", "stays", "nobody knows whether it is ready", |pod| !is_true(pod, "Ready"))?;
    ensure!(alpha.fingerprint()? == left, "somebody touched what runs on a silent node");

    // It comes back: what was deleted meanwhile ends, what was not is as it was and said to be ready again.
    alpha.launch()?;
    alpha.wait_healthy()?;
    wait_ready_node(&cluster, NODE)?;
    cluster.wait_gone("pods", "default", before["metadata"]["name"].as_str().context("no name")?)?;
    wait_ready(&cluster, "stays")?;
    ensure!(running(&alpha, "stays")? == untouched && running(&alpha, "moves")?.is_empty(), "{untouched:#?}");
    let seen = readiness(&cluster.history("pods", "default", "stays")?);
    ensure!(seen == ["True", "False", "True", "False", "True"] || seen == ["True", "False", "True"], "{seen:?}");
    ensure!(pods(&cluster, "moves")?.iter().all(|pod| pod["spec"]["nodeName"] == OTHER), "it moved back");
    cluster.kubectl(&["delete", "deployment/moves", "--wait=false"])?;
    eventually("its pods go with it", LONG, || {
        let left = pods(&cluster, "moves")?;
        ensure!(left.is_empty(), "{left:#?}");
        Ok(())
    })?;
    beta.finish()?;
    alpha.finish()
}

/// Waits for a request to this signer.
fn request_to(cluster: &Cluster, signer: &str) -> Result<Value> {
    eventually(&format!("{signer} is asked"), LONG, || {
        let all = cluster.list(REQUESTS, None)?;
        all.iter().find(|one| one["spec"]["signerName"] == signer).cloned().with_context(|| format!("{all:#?}"))
    })
}

#[test]
fn a_node_gets_both_its_certificates() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let Some(cluster) = cluster(&lab, &[])? else { return Ok(()) };
    let node = lab
        .node(NODE)
        .bootstraps_into(&cluster)?
        .config("rotateCertificates", json!(true))
        .config("serverTLSBootstrap", json!(true))
        .start()?;
    // To the API a controller lets it in by itself.
    wait_node(&cluster, "True")?;
    let client = request_to(&cluster, "kubernetes.io/kube-apiserver-client-kubelet")?;
    let approved = condition(&client, "Approved")?;
    ensure!(approved["reason"] == "AutoApproved" && client["status"]["certificate"].is_string(), "{client:#}");

    // Whether it serves under these names is for somebody to decide; until then nobody is answered.
    let request = request_to(&cluster, "kubernetes.io/kubelet-serving")?;
    ensure!(request["status"]["conditions"].is_null() && request["status"]["certificate"].is_null(), "{request:#}");
    let name = request["metadata"]["name"].as_str().context("no name")?;
    let admin = cluster.client_certificate("kubernetes-admin", "system:masters", Duration::from_secs(3600))?;
    let address = SocketAddr::new(lab.netns().address().into(), 10250);
    let https = Https::new(address, &Credential::Certificate(admin)).trusting(&cluster.ca(), None);
    ensure!(https.get("/healthz").is_err(), "it was served without a certificate");
    cluster.kubectl(&["certificate", "approve", name])?;
    cluster.wait_for(REQUESTS, "", name, "it is signed", |one| one["status"]["certificate"].is_string())?;
    eventually("the server shows what was signed", LONG, || {
        let answer = https.get("/healthz")?;
        ensure!(answer.status == 200, "{answer:?}");
        Ok(())
    })?;
    // By the API server, too.
    create(&cluster, &[workload("Deployment", "web", &json!({"replicas": 1}), &json!({}))])?;
    let pod = wait_pods(&cluster, "web", 1, NODE)?.remove(0);
    let user = cluster.kubectl(&["exec", "deployment/web", "--", "id", "-u"])?;
    ensure!(user.trim() == "0", "{user}");
    ensure!(!events(&cluster, &pod)?.is_empty(), "no event");
    cluster.kubectl(&["delete", "deployment/web", "--wait=false"])?;
    cluster.wait_gone("pods", "default", pod["metadata"]["name"].as_str().context("no name")?)?;
    node.finish()
}

/// A node short of memory evicts who takes it; its condition becomes a taint, and what the ReplicaSet makes instead runs elsewhere.
#[test]
fn who_is_evicted_is_made_again_on_another_node() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let Some(cluster) = cluster(&lab, &[])? else { return Ok(()) };
    let beside = Lab::start_beside()?;
    let reserved = reserved_beside(700 * MIB)?;
    let alpha = lab
        .node(NODE)
        .joins(&cluster)?
        .config("systemReserved", json!({"memory": reserved}))
        .config("evictionHard", json!({"memory.available": "100Mi"}))
        // Long enough for the next pod to be placed by it.
        .config("evictionPressureTransitionPeriod", json!("15s"))
        .start()?;
    let beta = beside.node(OTHER).joins(&cluster)?.start()?;
    wait_ready_node(&cluster, NODE)?;
    wait_ready_node(&cluster, OTHER)?;
    // Takes memory on the one node and idles on the other; it asks for nothing, so nothing makes it tolerate the taint.
    let script = format!(
        "trap 'exit 3' TERM; [ $NODE = {OTHER} ] || dd if=/dev/zero of=/mem/a bs=1M count=620; while true; do sleep 0.1; done"
    );
    let spec = json!({
        "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference":
            {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [NODE]}]}}]}},
        "volumes": [{"name": "mem", "emptyDir": {"medium": "Memory"}}],
        "containers": [{"name": "main", "image": image::BUSYBOX, "command": ["sh", "-c", script],
            "env": [{"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
            "volumeMounts": [{"name": "mem", "mountPath": "/mem"}]}],
    });
    create(&cluster, &[workload("Deployment", "hungry", &json!({"replicas": 1}), &spec)])?;
    wait_taints(&cluster, NODE, &["node.kubernetes.io/memory-pressure:NoSchedule"])?;
    eventually("another pod is ready elsewhere", LONG, || {
        let pods = pods(&cluster, "hungry")?;
        let ended = |pod: &&Value| pod["status"]["phase"] == "Failed";
        ensure!(pods.iter().filter(ended).all(|pod| pod["status"]["reason"] == "Evicted"), "{pods:#?}");
        let victim = pods.iter().find(|pod| pod["status"]["phase"] == "Failed").context("nobody was evicted")?;
        ensure!(victim["spec"]["nodeName"] == NODE, "{victim:#}");
        let next = pods.iter().find(|pod| is_true(pod, "Ready")).context("no other pod is ready")?;
        ensure!(next["spec"]["nodeName"] == OTHER, "{next:#}");
        Ok(())
    })?;
    wait_taints(&cluster, NODE, &[])?;
    cluster.kubectl(&["delete", "deployment/hungry", "--wait=false"])?;
    eventually("its pods go with it, those that were evicted too", LONG, || {
        let left = pods(&cluster, "hungry")?;
        ensure!(left.is_empty(), "{left:#?}");
        Ok(())
    })?;
    beta.finish()?;
    alpha.finish()
}
