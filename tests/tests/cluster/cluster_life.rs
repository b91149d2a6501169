//! Pods of a cluster from their creation to their end, as `kubectl` and controllers see them.

use anyhow::{Context, Result, ensure};
use bulkhead_ipc::syncd::{PodState, WorkerState};
use bulkhead_testkit::apiserver::{Config, resources};
use bulkhead_testkit::{Cluster, LONG, Lab, Node, Pod, eventually, leaks};
use bulkhead_tests::history::{condition, pod_only_advances, readiness};
use bulkhead_tests::joined::{NODE, create, events, is_true, main_of, wait_event, wait_events, wait_phase, wait_ready};
use bulkhead_tests::lab;
use serde_json::{Value, json};

/// A node that has joined; with a DNS server, whose lack would be told of every pod.
fn joined(lab: &Lab, cluster: &Cluster) -> Result<Node> {
    lab.node(NODE).joins(cluster)?.config("clusterDNS", json!(["10.96.0.10"])).start()
}

/// All versions of a pod, which never go backwards.
fn history(cluster: &Cluster, pod: &str) -> Result<Vec<Value>> {
    let history = cluster.history("pods", "default", pod)?;
    pod_only_advances(&history)?;
    Ok(history)
}

fn with_uid<'a>(history: &'a [Value], pod: &Value) -> Vec<&'a Value> {
    history.iter().filter(|one| one["metadata"]["uid"] == pod["metadata"]["uid"]).collect()
}

/// What the runtime has of a pod.
fn sandboxes_of(node: &Node, pod: &Value) -> Result<usize> {
    Ok(node.cri()?.sandboxes()?.iter().filter(|one| Some(one.uid.as_str()) == pod["metadata"]["uid"].as_str()).count())
}

fn wait_no_sandbox(node: &Node, pod: &Value) -> Result<()> {
    eventually("the runtime has nothing of the pod", LONG, || {
        let left = sandboxes_of(node, pod)?;
        ensure!(left == 0, "{left} sandboxes");
        Ok(())
    })
}

#[test]
fn a_pod_is_scheduled_runs_and_goes_gracefully() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let cluster = lab.cluster_with_controllers()?;
    let node = joined(&lab, &cluster)?;
    // A pod that finds no place at first is told so, and what a scheduler said of that is taken back.
    cluster.wait_for("nodes", "", NODE, "pods may go there", |node| node["spec"]["taints"].is_null())?;
    let address = lab.netns().address().to_string();
    // No node: the scheduler's to choose.
    let script = "trap 'echo bye > /dev/termination-log; exit 3' TERM; while true; do sleep 3600 & wait $!; done";
    let pod = Pod::busybox("web", script).spec("terminationGracePeriodSeconds", json!(30));
    let created = cluster.create(pod.container_field("resources", json!({"requests": {"cpu": "10m"}})).value())?;
    let pod = wait_ready(&cluster, "web")?;
    let status = &pod["status"];
    ensure!(
        pod["spec"]["nodeName"] == NODE && status["phase"] == "Running" && status["qosClass"] == "Burstable",
        "{pod:#}"
    );
    ensure!(status["hostIP"] == address.as_str() && status["hostIPs"] == json!([{"ip": address}]), "{status:#}");
    let ip = status["podIP"].as_str().context("no podIP")?;
    ensure!(status["podIPs"] == json!([{"ip": ip}]) && ip != address, "{status:#}");
    ensure!(
        status["startTime"].is_string() && status["observedGeneration"] == pod["metadata"]["generation"],
        "{status:#}"
    );
    for kind in ["PodScheduled", "PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready"] {
        let one = condition(&pod, kind)?;
        ensure!(one["status"] == "True" && one["reason"].is_null() && one["observedGeneration"] == 1, "{one:#}");
    }
    let main = main_of(&pod);
    ensure!(main["ready"] == true && main["started"] == true && main["restartCount"] == 0, "{main:#}");
    ensure!(main["containerID"].as_str().is_some_and(|id| id.starts_with("containerd://")), "{main:#}");
    let image = node.image();
    let pulled = format!(
        "Normal Pulled spec.containers{{main}} Container image \"{image}\" already present on machine and can be accessed by the pod (1)"
    );
    let lines = [
        pulled.as_str(),
        "Normal Created spec.containers{main} Container created (1)",
        "Normal Started spec.containers{main} Container started (1)",
    ];
    wait_events(&cluster, &pod, &lines)?;
    let wide = cluster.kubectl(&["get", "pods", "-o", "wide"])?;
    let line = wide.lines().find(|line| line.starts_with("web ")).context("web is not listed")?;
    ensure!(line.contains("1/1") && line.contains("Running") && line.contains(ip) && line.contains(NODE), "{line}");
    let described = cluster.kubectl(&["describe", "pod", "web"])?;
    ensure!(described.contains("kubelet, alpha") || described.contains("  kubelet  "), "{described}");
    ensure!(described.contains("Container started") && described.contains(&address), "{described}");
    let table = cluster.kubectl(&["get", "events"])?;
    ensure!(table.lines().any(|line| line.contains("Started") && line.contains("pod/web")), "{table}");

    cluster.kubectl(&["delete", "pod", "web", "--wait=false"])?;
    cluster.wait_gone("pods", "default", "web")?;
    let versions = history(&cluster, "web")?;
    ensure!(versions[0]["metadata"]["uid"] == created["metadata"]["uid"], "another pod");
    ensure!(readiness(&versions) == ["True", "False"], "{:?}", readiness(&versions));
    let last = versions.last().context("no version")?;
    let ended = &main_of(last)["state"]["terminated"];
    ensure!(last["metadata"]["deletionGracePeriodSeconds"].is_i64() && last["status"]["phase"] == "Failed", "{last:#}");
    ensure!(ended["exitCode"] == 3 && ended["reason"] == "Error" && ended["message"] == "bye\n", "{ended:#}");
    ensure!(last["status"]["observedGeneration"] == last["metadata"]["generation"], "{last:#}");
    let stopping = "Normal Killing spec.containers{main} Stopping container main (1)";
    wait_events(&cluster, &pod, &[lines[0], lines[1], lines[2], stopping])?;
    leaks::wait_no_pods(&node, LONG)?;
    node.finish()
}

#[test]
fn deletions_that_are_forced_hurried_or_early() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let cluster = lab.cluster()?;
    let node = joined(&lab, &cluster)?;
    let stubborn = |name: &str| {
        Pod::busybox(name, "trap '' TERM; while true; do sleep 3600; done")
            .spec("terminationGracePeriodSeconds", json!(3600))
    };
    for pod in ["forced", "hurried", "renewed"] {
        create(&cluster, stubborn(pod))?;
    }
    create(&cluster, Pod::idle("bystander"))?;
    // It waits for a configMap that never comes.
    let volume = json!({"configMap": {"name": "nowhere"}}).as_object().cloned().context("no object")?;
    let early = create(&cluster, Pod::idle("early").volume("v", volume, "/v"))?;
    let unborn = create(&cluster, Pod::idle("unborn"))?;
    cluster.delete("pods", "default", "unborn", None)?;
    let pods: Vec<Value> = ["forced", "hurried", "renewed", "bystander"]
        .iter()
        .map(|pod| wait_ready(&cluster, pod))
        .collect::<Result<_>>()?;
    cluster.wait_gone("pods", "default", "unborn")?;
    history(&cluster, "unborn")?;
    wait_no_sandbox(&node, &unborn)?;

    // Forced: the object goes at once, the node clears up.
    cluster.kubectl(&["delete", "pod", "forced", "--force", "--grace-period=0"])?;
    cluster.wait_gone("pods", "default", "forced")?;
    // Hurried: the hour shrinks to a second while the pod ends.
    cluster.delete("pods", "default", "hurried", None)?;
    wait_event(&cluster, &pods[1], "Normal Killing")?;
    cluster.delete("pods", "default", "hurried", Some(1))?;
    // Renewed: another pod takes the name while the old one still ends.
    cluster.delete("pods", "default", "renewed", None)?;
    wait_event(&cluster, &pods[2], "Normal Killing")?;
    cluster.delete("pods", "default", "renewed", Some(0))?;
    cluster.wait_gone("pods", "default", "renewed")?;
    create(&cluster, Pod::idle("renewed"))?;
    let renewed = wait_ready(&cluster, "renewed")?;
    ensure!(
        renewed["metadata"]["uid"] != pods[2]["metadata"]["uid"] && main_of(&renewed)["restartCount"] == 0,
        "{renewed:#}"
    );
    cluster.wait_gone("pods", "default", "hurried")?;
    let versions = history(&cluster, "hurried")?;
    let last = versions.last().context("no version")?;
    ensure!(main_of(last)["state"]["terminated"]["exitCode"] == 137, "{last:#}");
    for pod in &pods[..3] {
        wait_no_sandbox(&node, pod)?;
    }
    // Early: nothing ever ran, and it goes.
    cluster.delete("pods", "default", "early", None)?;
    cluster.wait_gone("pods", "default", "early")?;
    ensure!(sandboxes_of(&node, &early)? == 0, "a sandbox for a pod that never started");
    history(&cluster, "early")?;

    let versions = history(&cluster, "renewed")?;
    ensure!(with_uid(&versions, &renewed).iter().all(|one| one["status"]["phase"] != "Failed"), "the old one's end");
    let bystander = cluster.get("pods", "default", "bystander")?;
    ensure!(main_of(&bystander) == main_of(&pods[3]), "{bystander:#}");
    ensure!(readiness(&history(&cluster, "bystander")?) == ["True"], "the bystander was disturbed");
    node.finish()
}

#[test]
fn pods_that_end_stay_until_they_are_deleted() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let cluster = lab.cluster()?;
    let node = joined(&lab, &cluster)?;
    create(&cluster, Pod::busybox("done", "exit 0").restart_policy("Never"))?;
    create(&cluster, Pod::busybox("broken", "exit 7").restart_policy("Never"))?;
    let twice = "test -e /c/once && exit 0; touch /c/once; exit 1";
    create(&cluster, Pod::busybox("retried", twice).restart_policy("OnFailure").empty_dir("c", "", None, "/c"))?;
    create(&cluster, Pod::idle("late").spec("activeDeadlineSeconds", json!(3)))?;
    let foreign = cluster.create(Pod::idle("foreign").spec("nodeName", json!("beta")).value())?;

    for (pod, phase, reason, code) in [
        ("done", "Succeeded", "PodCompleted", 0),
        ("broken", "Failed", "PodFailed", 7),
        ("retried", "Succeeded", "PodCompleted", 0),
    ] {
        let pod = wait_phase(&cluster, pod, phase)?;
        let ended = &main_of(&pod)["state"]["terminated"];
        let word = if code == 0 { "Completed" } else { "Error" };
        ensure!(ended["exitCode"] == code && ended["reason"] == word, "{pod:#}");
        ensure!(condition(&pod, "Ready")?["reason"] == reason && !is_true(&pod, "Ready"), "{pod:#}");
        ensure!(pod["status"]["reason"].is_null() && pod["status"]["podIP"].is_string(), "{pod:#}");
    }
    let retried = cluster.get("pods", "default", "retried")?;
    ensure!(main_of(&retried)["restartCount"] == 1, "{retried:#}");
    ensure!(main_of(&retried)["lastState"]["terminated"]["exitCode"] == 1, "{retried:#}");

    let late = wait_phase(&cluster, "late", "Failed")?;
    ensure!(late["status"]["reason"] == "DeadlineExceeded", "{late:#}");
    ensure!(late["status"]["message"] == "Pod was active on the node longer than the specified deadline", "{late:#}");
    ensure!(main_of(&late)["state"]["terminated"].is_object(), "terminal before its containers: {late:#}");
    let deadline = "Normal DeadlineExceeded  Pod was active on the node longer than the specified deadline (1)";
    wait_event(&cluster, &late, deadline)?;

    let listed = cluster.kubectl(&["get", "pods"])?;
    for (pod, word) in [("done", "Completed"), ("broken", "Error"), ("late", "Completed"), ("foreign", "Pending")] {
        let line = listed.lines().find(|line| line.starts_with(pod)).unwrap_or_default();
        ensure!(line.contains(word), "{listed}");
    }
    // Another node's pod: neither run nor spoken of.
    ensure!(
        cluster.get("pods", "default", "foreign")?["status"] == foreign["status"],
        "somebody wrote foreign's status"
    );
    ensure!(sandboxes_of(&node, &foreign)? == 0 && events(&cluster, &foreign)?.is_empty(), "foreign runs here");
    cluster.delete("pods", "default", "foreign", Some(0))?;
    for pod in ["done", "broken", "retried", "late"] {
        history(&cluster, pod)?;
        cluster.delete("pods", "default", pod, None)?;
        cluster.wait_gone("pods", "default", pod)?;
    }
    leaks::wait_no_pods(&node, LONG)?;
    node.finish()
}

#[test]
fn what_was_deleted_and_made_while_the_node_was_down() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let cluster = lab.cluster()?;
    let mut node = joined(&lab, &cluster)?;
    for pod in ["stays", "ends", "forced", "replaced"] {
        create(&cluster, Pod::idle(pod))?;
    }
    create(&cluster, Pod::busybox("done", "exit 0").restart_policy("Never"))?;
    create(
        &cluster,
        Pod::busybox("fell", &format!("test -e /c/once && exit 0; touch /c/once; {}", bulkhead_testkit::IDLE))
            .restart_policy("Never")
            .empty_dir("c", "", None, "/c"),
    )?;
    let before: Vec<Value> = ["stays", "ends", "forced", "replaced", "fell"]
        .iter()
        .map(|pod| wait_ready(&cluster, pod))
        .collect::<Result<_>>()?;
    wait_phase(&cluster, "done", "Succeeded")?;
    node.stop()?;

    cluster.delete("pods", "default", "ends", None)?;
    cluster.delete("pods", "default", "forced", Some(0))?;
    cluster.delete("pods", "default", "replaced", Some(0))?;
    create(&cluster, Pod::idle("replaced"))?;
    create(&cluster, Pod::idle("new"))?;
    cluster.patch("pods", "default", "stays", &json!({"metadata": {"labels": {"while": "down"}}}))?;
    let fell =
        main_of(&before[4])["containerID"].as_str().and_then(|id| id.rsplit('/').next()).context("no id")?.to_owned();
    node.cri()?.stop_container(&fell)?;
    node.launch()?;
    node.wait_healthy()?;

    cluster.wait_gone("pods", "default", "ends")?;
    let last = history(&cluster, "ends")?.pop().context("no version")?;
    ensure!(
        main_of(&last)["state"]["terminated"]["exitCode"] == 0 && last["status"]["phase"] == "Succeeded",
        "{last:#}"
    );
    wait_ready(&cluster, "new")?;
    let replaced = cluster.wait_for("pods", "default", "replaced", "the new one runs", |pod| is_true(pod, "Ready"))?;
    ensure!(replaced["metadata"]["uid"] != before[3]["metadata"]["uid"], "{replaced:#}");
    wait_no_sandbox(&node, &before[2])?;
    wait_no_sandbox(&node, &before[3])?;
    // What ended while nobody looked has ended, and is not begun again.
    let fell = wait_phase(&cluster, "fell", "Failed")?;
    let main = main_of(&fell);
    ensure!(main["restartCount"] == 0 && main["state"]["terminated"]["exitCode"] == 137, "{fell:#}");

    let stays = cluster.get("pods", "default", "stays")?;
    ensure!(stays["status"] == before[0]["status"], "{:#}\nbecame\n{:#}", before[0]["status"], stays["status"]);
    ensure!(readiness(&history(&cluster, "stays")?) == ["True"], "Ready flapped");
    let done = cluster.get("pods", "default", "done")?;
    ensure!(done["status"]["phase"] == "Succeeded" && main_of(&done)["restartCount"] == 0, "{done:#}");
    for pod in ["replaced", "new", "done", "fell"] {
        history(&cluster, pod)?;
    }
    eventually("it is told of once", LONG, || {
        let started = events(&cluster, &stays)?;
        ensure!(started.len() == 3 && started.iter().all(|line| line.ends_with("(1)")), "{started:#?}");
        Ok(())
    })?;
    node.finish()
}

#[test]
fn a_pod_that_has_ended_and_is_there_again_is_shown_as_it_ended() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let cluster = lab.stand_in(Config::default())?;
    let node = joined(&lab, &cluster)?;
    create(&cluster, Pod::busybox("done", "exit 0").restart_policy("Never"))?;
    let done = wait_phase(&cluster, "done", "Succeeded")?;
    let agent = node.agent()?;
    let shown = |what: &str, wanted: &dyn Fn(&PodState) -> bool| {
        eventually(what, LONG, || {
            let all = agent.pods()?;
            let state =
                all.iter().find(|state| done["metadata"]["uid"] == state.uid.as_str()).context("it is not shown")?;
            ensure!(wanted(state), "{}: {}", state.phase, state.why);
            Ok(state.clone())
        })
    };
    let ended = |state: &PodState| state.worker() == WorkerState::Finished;
    let before = shown("its work is done", &ended)?;
    // As when the server's store is put back: the same object is gone, and there again.
    let pods = resources::named("pods");
    cluster.server()?.with_store(|store| {
        if let Some(object) = store.remove(pods, "default", "done") {
            store.put(pods, object.value.clone());
        }
    });
    let again =
        shown("it is another life's state", &|state| ended(state) && state.status_version > before.status_version)?;
    ensure!(again.phase == "Succeeded" && again.api.is_some(), "{again:?}");
    let now = cluster.get("pods", "default", "done")?;
    ensure!(now["status"] == done["status"], "{:#}\nbecame\n{:#}", done["status"], now["status"]);
    ensure!(
        events(&cluster, &done)?.iter().filter(|line| line.starts_with("Normal Started")).count() == 1,
        "it ran again"
    );
    cluster.delete("pods", "default", "done", None)?;
    cluster.wait_gone("pods", "default", "done")?;
    node.finish()
}
