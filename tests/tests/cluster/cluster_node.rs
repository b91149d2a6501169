//! The node itself as a cluster shows it: how it joins, what it says of itself and when, what it leaves to others.

use anyhow::{Context, Result, ensure};
use bulkhead_testkit::apiserver::request_log::Record;
use bulkhead_testkit::processes::signal;
use bulkhead_testkit::{Cluster, LONG, Pod, eventually};
use bulkhead_tests::history::{condition, pod_only_advances, readiness, values_of};
use bulkhead_tests::joined::{Member, NODE, create, events, main_of, wait_event, wait_node, wait_ready};
use bulkhead_tests::lab;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

/// Writes after request `mark`, without renewals of the lease.
fn writes_after(cluster: &Cluster, mark: u64) -> Result<Vec<String>> {
    let is_write = |record: &Record| {
        matches!(record.verb, "create" | "update" | "patch" | "delete") && record.agent.starts_with("kubelet")
    };
    let all = cluster.log()?.after(mark);
    Ok(all.iter().filter(|one| is_write(one) && one.resource != "leases").map(Record::what).collect())
}

/// Waits until the lease was renewed `times` more.
fn wait_renewals(cluster: &Cluster, times: usize) -> Result<()> {
    let mut seen = Vec::new();
    cluster
        .wait_for("leases", "kube-node-lease", NODE, "it is renewed", |lease| {
            let time = lease["spec"]["renewTime"].clone();
            if !seen.contains(&time) {
                seen.push(time);
            }
            seen.len() > times
        })
        .map(drop)
}

/// Conditions without their heartbeats.
fn conditions(node: &Value) -> Vec<Value> {
    let mut all = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
    for one in &mut all {
        one["lastHeartbeatTime"].take();
    }
    all
}

#[test]
fn a_node_joins_rests_and_comes_back() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let cluster = lab.cluster()?;
    let mut node = lab
        .node(NODE)
        .joins(&cluster)?
        .argument("--register-with-taints=dedicated=x:PreferNoSchedule")
        .argument("--node-labels=example.com/rack=r1,topology.kubernetes.io/zone=z1")
        .config("systemReserved", json!({"memory": "100Mi"}))
        .start()?;
    let seen = wait_node(&cluster, "True")?;
    let (metadata, status) = (&seen["metadata"], &seen["status"]);
    for (label, value) in [
        ("kubernetes.io/hostname", NODE),
        ("kubernetes.io/os", "linux"),
        ("beta.kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", "amd64"),
        ("beta.kubernetes.io/arch", "amd64"),
        ("example.com/rack", "r1"),
        ("topology.kubernetes.io/zone", "z1"),
    ] {
        ensure!(metadata["labels"][label] == value, "{label}: {:#}", metadata["labels"]);
    }
    ensure!(
        metadata["annotations"]["volumes.kubernetes.io/controller-managed-attach-detach"] == "true",
        "{metadata:#}"
    );
    let dedicated = json!({"key": "dedicated", "value": "x", "effect": "PreferNoSchedule"});
    ensure!(seen["spec"]["taints"].as_array().is_some_and(|all| all.contains(&dedicated)), "{:#}", seen["spec"]);
    let address = lab.netns().address().to_string();
    let addresses = json!([{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": NODE}]);
    ensure!(status["addresses"] == addresses, "{:#}", status["addresses"]);
    for (kind, value, reason, message) in [
        ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
        ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
    ] {
        let one = condition(&seen, kind)?;
        ensure!(one["status"] == value && one["reason"] == reason && one["message"] == message, "{one:#}");
    }
    for resource in ["cpu", "memory", "pods", "ephemeral-storage"] {
        let (all, rest) = (&status["capacity"][resource], &status["allocatable"][resource]);
        ensure!(all.is_string() && rest.is_string(), "{resource}: {status:#}");
        ensure!((all == rest) == (resource == "cpu" || resource == "pods"), "{resource}: {all} and {rest}");
    }
    let info = &status["nodeInfo"];
    for field in ["machineID", "systemUUID", "bootID", "kernelVersion", "osImage"] {
        ensure!(info[field].as_str().is_some_and(|text| !text.is_empty()), "{field}: {info:#}");
    }
    ensure!(info["containerRuntimeVersion"].as_str().is_some_and(|text| text.starts_with("containerd://")), "{info:#}");
    ensure!(info["kubeletVersion"].as_str().is_some_and(|text| text.starts_with("v1.36")), "{info:#}");
    ensure!(info["operatingSystem"] == "linux" && info["architecture"] == "amd64", "{info:#}");
    ensure!(status["daemonEndpoints"]["kubeletEndpoint"]["Port"] == 10250, "{status:#}");
    ensure!(status["images"].as_array().is_some_and(|images| !images.is_empty()), "{status:#}");

    let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": metadata["uid"]}]);
    let lease = cluster.wait_for("leases", "kube-node-lease", NODE, "it is there", |_| true)?;
    ensure!(lease["spec"]["holderIdentity"] == NODE && lease["spec"]["leaseDurationSeconds"] == 40, "{lease:#}");
    ensure!(lease["metadata"]["ownerReferences"] == owner, "{lease:#}");
    let csi = cluster.get("csinodes", "", NODE)?;
    ensure!(
        csi["metadata"]["ownerReferences"] == owner && csi["spec"]["drivers"].as_array().is_none_or(Vec::is_empty),
        "{csi:#}"
    );

    let wide = cluster.kubectl(&["get", "nodes", "-o", "wide"])?;
    let line = wide.lines().find(|line| line.starts_with(NODE)).context("the node is not listed")?;
    ensure!(line.contains(" Ready ") && line.contains(&address) && line.contains("containerd://"), "{wide}");
    let described = cluster.kubectl(&["describe", "node", NODE])?;
    ensure!(described.contains("KubeletReady") && described.contains("dedicated=x:PreferNoSchedule"), "{described}");
    for reason in ["Starting", "NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID", "NodeReady"]
    {
        let message = match reason {
            "Starting" => "Starting kubelet.".to_owned(),
            reason => format!("Node {NODE} status is now: {reason}"),
        };
        wait_event(&cluster, &seen, &format!("Normal {reason}  {message} (1)"))?;
    }

    // At rest: leases, and nothing else.
    create(&cluster, Pod::idle("calm"))?;
    let calm = wait_ready(&cluster, "calm")?;
    wait_event(&cluster, &calm, "Normal Started")?;
    wait_renewals(&cluster, 1)?;
    let (mark, before) = (cluster.log()?.mark(), cluster.get("nodes", "", NODE)?);
    wait_renewals(&cluster, 1)?;
    let writes = writes_after(&cluster, mark)?;
    ensure!(writes.is_empty(), "written at rest: {writes:?}");

    // A restart: who looks sees one heartbeat and one event.
    node.stop()?;
    let mark = cluster.log()?.mark();
    node.launch()?;
    node.wait_healthy()?;
    cluster.wait_for("nodes", "", NODE, "it reports", |now| {
        now["metadata"]["resourceVersion"] != before["metadata"]["resourceVersion"]
    })?;
    eventually("the start is told of again", LONG, || {
        let count = events(&cluster, &seen)?.iter().filter(|line| line.contains(" Starting ")).count();
        ensure!(count == 2, "{count} times");
        Ok(())
    })?;
    wait_renewals(&cluster, 1)?;
    let after = cluster.get("nodes", "", NODE)?;
    ensure!(conditions(&before) == conditions(&after), "{:#?}\nbecame\n{:#?}", conditions(&before), conditions(&after));
    for field in ["addresses", "capacity", "allocatable", "nodeInfo", "daemonEndpoints", "images"] {
        ensure!(before["status"][field] == after["status"][field], "{field} changed: {:#}", after["status"][field]);
    }
    ensure!(
        before["metadata"]["labels"] == after["metadata"]["labels"] && before["spec"] == after["spec"],
        "{after:#}"
    );
    ensure!(cluster.get("pods", "default", "calm")?["status"] == calm["status"], "calm's status was written");
    let writes = writes_after(&cluster, mark)?;
    let of = |what: &str| writes.iter().filter(|one| *one == what).count();
    ensure!(of("patch nodes/status") <= 2 && of("patch pods/status") == 0, "{writes:?}");
    // A token is asked for again because none is written to the disk.
    let expected =
        ["create events", "patch events", "patch nodes/status", "create nodes", "create serviceaccounts/token"];
    ensure!(writes.iter().all(|one| expected.contains(&one.as_str())), "{writes:?}");
    node.finish()
}

#[test]
fn an_existing_node_object_is_reconciled_not_overwritten() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let cluster = lab.cluster()?;
    let theirs = cluster.create(&json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {
            "name": NODE,
            "labels": {"kubernetes.io/hostname": "other", "node-role.kubernetes.io/worker": "", "example.com/rack": "r2"},
            "annotations": {"example.com/note": "kept"},
        },
        "spec": {"unschedulable": true, "providerID": "x://1", "taints": [{"key": "theirs", "value": "1", "effect": "NoSchedule"}]},
    }))?;
    cluster.patch_status("nodes", "", NODE, &json!({"status": {
        "capacity": {"cpu": "1", "example.com/gpu": "3"},
        "allocatable": {"cpu": "1", "example.com/gpu": "3"},
        "conditions": [
            {"type": "NetworkUnavailable", "status": "False", "reason": "RouteCreated", "message": "theirs",
             "lastTransitionTime": "2026-01-01T00:00:00Z", "lastHeartbeatTime": "2026-01-01T00:00:00Z"},
            {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": "Kubelet stopped posting node status.",
             "lastTransitionTime": "2026-01-01T00:00:00Z", "lastHeartbeatTime": "2026-01-01T00:00:00Z"},
        ],
        "addresses": [{"type": "InternalIP", "address": "192.0.2.9"}, {"type": "Hostname", "address": "other"}],
    }}))?;
    let mut node = lab
        .node(NODE)
        .joins(&cluster)?
        .argument("--register-with-taints=mine=1:NoSchedule")
        .argument("--node-labels=example.com/rack=r1")
        .start()?;
    let kept = |seen: &Value| -> Result<()> {
        let (metadata, spec) = (&seen["metadata"], &seen["spec"]);
        ensure!(metadata["uid"] == theirs["metadata"]["uid"], "another node");
        ensure!(metadata["labels"]["node-role.kubernetes.io/worker"] == "", "{metadata:#}");
        // Labels of the command line are for a new Node.
        ensure!(metadata["labels"]["example.com/rack"] == "r2", "{metadata:#}");
        ensure!(metadata["annotations"]["example.com/note"] == "kept", "{metadata:#}");
        ensure!(spec["unschedulable"] == true && spec["providerID"] == "x://1", "{spec:#}");
        let taints = spec["taints"].to_string();
        ensure!(taints.contains("theirs") && !taints.contains("mine"), "{taints}");
        ensure!(condition(seen, "NetworkUnavailable")?["message"] == "theirs", "{seen:#}");
        Ok(())
    };
    let seen = wait_node(&cluster, "True")?;
    kept(&seen)?;
    ensure!(seen["metadata"]["labels"]["kubernetes.io/hostname"] == NODE, "{seen:#}");
    ensure!(condition(&seen, "Ready")?["lastTransitionTime"] != "2026-01-01T00:00:00Z", "{seen:#}");
    let address = lab.netns().address().to_string();
    let addresses = json!([{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": NODE}]);
    ensure!(seen["status"]["addresses"] == addresses, "{:#}", seen["status"]["addresses"]);
    let (capacity, allocatable) = (&seen["status"]["capacity"], &seen["status"]["allocatable"]);
    ensure!(
        capacity["example.com/gpu"] == "3" && allocatable["example.com/gpu"] == "3",
        "whoever has put it there says what it is: {capacity:#} {allocatable:#}"
    );
    ensure!(capacity["memory"].is_string(), "{capacity:#}");

    // People and controllers write while the node runs.
    cluster.kubectl(&["uncordon", NODE])?;
    wait_event(&cluster, &seen, "Normal NodeSchedulable")?;
    cluster.kubectl(&["cordon", NODE])?;
    cluster.kubectl(&["label", "node", NODE, "later=yes", "kubernetes.io/os=plan9", "--overwrite"])?;
    let now = cluster.wait_for("nodes", "", NODE, "its system's label is put right", |node| {
        node["metadata"]["labels"]["kubernetes.io/os"] == "linux" && node["metadata"]["labels"]["later"] == "yes"
    })?;
    kept(&now)?;
    node.stop()?;
    node.launch()?;
    node.wait_healthy()?;
    cluster.wait_for("nodes", "", NODE, "it reports", |node| {
        node["metadata"]["resourceVersion"] != now["metadata"]["resourceVersion"]
    })?;
    let last = cluster.get("nodes", "", NODE)?;
    kept(&last)?;
    ensure!(last["metadata"]["labels"]["later"] == "yes", "{last:#}");
    node.finish()
}

/// What an outage must not do to a pod that runs on.
fn is_undisturbed(cluster: &Cluster, pod: &Value) -> Result<()> {
    let name = pod["metadata"]["name"].as_str().context("no name")?;
    let history = cluster.history("pods", "default", name)?;
    pod_only_advances(&history)?;
    ensure!(readiness(&history) == ["True"], "Ready of {name} flapped");
    let now = cluster.get("pods", "default", name)?;
    ensure!(main_of(&now) == main_of(pod), "{now:#}");
    Ok(())
}

#[test]
fn ready_follows_the_runtime_and_syncd() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let Member { cluster, node } = Member::start(&lab, &[], |node| node)?;
    wait_node(&cluster, "True")?;
    create(&cluster, Pod::idle("calm"))?;
    let calm = wait_ready(&cluster, "calm")?;

    // The sync daemon stands still for longer than a restart takes. The launcher too, or its watchdog would end that after 15 to 30 s,
    // mostly before silence counts: 20 s after the last answer.
    let pids = node.pids();
    let syncd = *pids.get("kubelet-syncd").context("no syncd")?;
    let stopped = [syncd, *pids.get("kubelet").context("no launcher")?];
    stopped.iter().for_each(|pid| signal(*pid, Signal::SIGSTOP));
    let ill = wait_node(&cluster, "False");
    signal(syncd, Signal::SIGCONT);
    let ill = ill?;
    let ready = condition(&ill, "Ready")?;
    let message = "kubelet-syncd is not healthy: it does not answer";
    ensure!(ready["reason"] == "KubeletNotReady" && ready["message"] == message, "{ready:#}");
    let well = wait_node(&cluster, "True");
    // It hears of the beats that it has missed: nobody is killed.
    signal(stopped[1], Signal::SIGCONT);
    well?;
    is_undisturbed(&cluster, &calm)?;
    ensure!(node.pids() == pids, "{:?} became {:?}", pids, node.pids());

    lab.containerd().stop()?;
    let ill = wait_node(&cluster, "False")?;
    let ready = condition(&ill, "Ready")?;
    ensure!(ready["reason"] == "KubeletNotReady", "{ready:#}");
    ensure!(ready["message"].as_str().is_some_and(|text| text.contains("container runtime is down")), "{ready:#}");
    ensure!(condition(&ill, "MemoryPressure")?["status"] == "False", "{ill:#}");
    wait_event(&cluster, &ill, &format!("Normal NodeNotReady  Node {NODE} status is now: NodeNotReady"))?;
    let taints = cluster.wait_for("nodes", "", NODE, "it is tainted", |node| {
        node["spec"]["taints"].to_string().contains("node.kubernetes.io/not-ready")
    })?;
    ensure!(taints["metadata"]["uid"] == ill["metadata"]["uid"], "another node");
    lab.containerd().spawn()?;
    let well = wait_node(&cluster, "True")?;
    ensure!(condition(&well, "Ready")?["message"] == "kubelet is posting ready status", "{well:#}");
    is_undisturbed(&cluster, &calm)?;
    // And it works.
    create(&cluster, Pod::idle("next"))?;
    wait_ready(&cluster, "next")?;
    let history = cluster.history("nodes", "", NODE)?;
    let values = values_of(&history, "Ready");
    let expected = ["True", "False", "True", "False", "True"];
    ensure!(values.ends_with(&expected.map(str::to_owned)) && values.len() <= 6, "{values:?}");
    node.finish()
}

#[test]
fn a_node_without_volnetd_is_not_ready() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let Member { cluster, node } = Member::start(&lab, &[], |node| node)?;
    wait_node(&cluster, "True")?;
    create(&cluster, Pod::idle("calm"))?;
    let calm = wait_ready(&cluster, "calm")?;

    // While the launcher stands still there is no successor.
    let pids = node.pids();
    let (launcher, volnetd) = (*pids.get("kubelet").context("no launcher")?, pids.get("kubelet-volnetd"));
    signal(launcher, Signal::SIGSTOP);
    signal(*volnetd.context("no volnetd")?, Signal::SIGKILL);
    let ill = wait_node(&cluster, "False");
    signal(launcher, Signal::SIGCONT);
    let ill = ill?;
    let ready = condition(&ill, "Ready")?;
    let message = "kubelet-volnetd is not healthy: it does not answer";
    ensure!(ready["reason"] == "KubeletNotReady" && ready["message"] == message, "{ready:#}");
    wait_node(&cluster, "True")?;
    is_undisturbed(&cluster, &calm)?;
    create(&cluster, Pod::idle("next"))?;
    wait_ready(&cluster, "next")?;
    node.finish()
}
