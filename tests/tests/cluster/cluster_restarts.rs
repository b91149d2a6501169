//! Each process of the node, and the runtime, ends and comes back while pods of a cluster live: no status goes backwards,
//! nothing is told twice.

use anyhow::{Context, Result, ensure};
use bulkhead_testkit::apiserver::Config;
use bulkhead_testkit::{Cluster, LONG, Node, Pod, eventually};
use bulkhead_tests::history::{pod_only_advances, readiness, values_of};
use bulkhead_tests::joined::{Member, NODE, create, events, main_of, wait_event, wait_phase, wait_ready};
use bulkhead_tests::lab;
use serde_json::{Value, json};

/// Ends on request, so that the test says when a restart happens.
const ON_REQUEST: &str = "trap 'exit 0' TERM; while ! test -e /c/end; do sleep 0.1; done; rm /c/end; exit 4";

fn on_request(name: &str) -> Pod {
    Pod::busybox(name, ON_REQUEST).empty_dir("c", "", None, "/c")
}

/// Lets the container end by itself.
fn end(node: &Node, pod: &str) -> Result<()> {
    eventually("it is told to end", LONG, || {
        let cri = node.cri()?;
        let all = cri.containers()?;
        let main = all.iter().find(|one| one.pod == pod && one.running).context("it does not run")?;
        ensure!(cri.exec(&main.id, &["touch", "/c/end"])?.0 == 0, "touch failed");
        Ok(())
    })
}

fn wait_restarts(cluster: &Cluster, pod: &str, count: i64) -> Result<Value> {
    cluster.wait_for("pods", "default", pod, &format!("{count} restarts"), |pod| {
        main_of(pod)["restartCount"] == count && main_of(pod)["state"]["running"].is_object()
    })
}

/// Waits until syncd knows all pods again and statusd has said what it has to say: a new pod has its whole life.
fn settle(cluster: &Cluster, node: &mut Node, round: usize) -> Result<()> {
    node.wait_healthy()?;
    let probe = format!("probe-{round}");
    let pod = create(cluster, Pod::busybox(&probe, "exit 0").restart_policy("Never"))?;
    wait_phase(cluster, &probe, "Succeeded")?;
    wait_event(cluster, &pod, "Normal Started")?;
    pod_only_advances(&cluster.history("pods", "default", &probe)?)?;
    cluster.delete("pods", "default", &probe, None)?;
    cluster.wait_gone("pods", "default", &probe)
}

#[test]
fn reported_statuses_never_go_back() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let Member { cluster, mut node } =
        Member::start(&lab, &[], |node| node.config("clusterDNS", json!(["10.96.0.10"])))?;
    node.write(&Pod::idle("mirrored"))?;
    let mirrored = node.pod_name("mirrored");
    create(&cluster, Pod::idle("calm"))?;
    create(&cluster, on_request("busy"))?;
    create(&cluster, Pod::busybox("done", "exit 0").restart_policy("Never"))?;
    create(&cluster, Pod::busybox("broken", "echo why > /dev/termination-log; exit 5").restart_policy("Never"))?;
    let calm = wait_ready(&cluster, "calm")?;
    wait_ready(&cluster, "busy")?;
    wait_ready(&cluster, &mirrored)?;
    let done = wait_phase(&cluster, "done", "Succeeded")?;
    let broken = wait_phase(&cluster, "broken", "Failed")?;
    ensure!(main_of(&broken)["state"]["terminated"]["message"] == "why\n", "{broken:#}");
    wait_event(&cluster, &calm, "Normal Started")?;

    let daemons =
        ["kubelet-statusd", "kubelet-syncd", "kubelet-volnetd", "kubelet-evictiond", "containerd", "launcher"];
    let mut restarts = 0;
    for (round, what) in daemons.into_iter().enumerate() {
        // Something ends just before, and something else just after: one of them is in nobody's memory.
        let leaving = format!("leaving-{round}");
        create(&cluster, Pod::idle(&leaving))?;
        let before = wait_ready(&cluster, &leaving)?;
        cluster.delete("pods", "default", &leaving, None)?;
        match what {
            "containerd" => lab.containerd().restart()?,
            "launcher" => {
                node.stop()?;
                node.launch()?;
            }
            daemon => node.kill_daemon(daemon)?,
        }
        if round < 2 {
            end(&node, "busy")?;
            restarts += 1;
        }
        settle(&cluster, &mut node, round).with_context(|| what.to_owned())?;
        cluster.wait_gone("pods", "default", &leaving).with_context(|| what.to_owned())?;
        let history = cluster.history("pods", "default", &leaving)?;
        pod_only_advances(&history).with_context(|| what.to_owned())?;
        let last = history.last().context("no version")?;
        let ended = &main_of(last)["state"]["terminated"];
        ensure!(ended["exitCode"].is_i64() && ended["reason"] != "ContainerStatusUnknown", "{what}: {last:#}");
        ensure!(last["metadata"]["uid"] == before["metadata"]["uid"], "{what}: {last:#}");
        wait_restarts(&cluster, "busy", restarts).with_context(|| what.to_owned())?;
        for (name, old) in [("calm", &calm), ("done", &done), ("broken", &broken)] {
            let now = cluster.get("pods", "default", name)?;
            ensure!(now["status"] == old["status"], "{what}: {:#}\nbecame\n{:#}", old["status"], now["status"]);
        }
    }

    for pod in ["calm", "busy", "done", "broken", &mirrored] {
        let history = cluster.history("pods", "default", pod)?;
        pod_only_advances(&history)?;
        if pod == "calm" || pod == mirrored {
            ensure!(readiness(&history) == ["True"], "{pod} flapped");
        }
    }
    ensure!(values_of(&cluster.history("nodes", "", NODE)?, "Ready").len() <= 2, "the node's Ready flapped");
    // Nothing was told twice.
    let told = events(&cluster, &calm)?;
    ensure!(told.len() == 3 && told.iter().all(|line| line.ends_with(" (1)")), "{told:#?}");
    let told = events(&cluster, &broken)?;
    ensure!(told.len() == 3 && told.iter().all(|line| line.ends_with(" (1)")), "{told:#?}");
    let busy = cluster.get("pods", "default", "busy")?;
    let told = events(&cluster, &busy)?;
    let started: i64 = told
        .iter()
        .filter(|line| line.starts_with("Normal Started"))
        .filter_map(|line| line.rsplit('(').next()?.trim_end_matches(')').parse::<i64>().ok())
        .sum();
    ensure!(started == restarts + 1, "{told:#?}");
    node.finish()
}

#[test]
fn statuses_and_events_of_an_outage_outlive_restarts_and_are_sent_once() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let cluster = lab.stand_in(Config::default())?;
    let mut node = lab.node(NODE).joins(&cluster)?.config("clusterDNS", json!(["10.96.0.10"])).start()?;
    create(&cluster, on_request("told"))?;
    let pod = wait_ready(&cluster, "told")?;
    wait_event(&cluster, &pod, "Normal Started")?;
    cluster.stop()?;
    end(&node, "told")?;
    // It runs again, and whoever is to tell of it has written that down.
    let notes = node.root_dir().join("bulkhead/statusd/events.json");
    eventually("the start waits on the disk", LONG, || {
        let text = std::fs::read_to_string(&notes)?;
        let kept: Value = serde_json::from_str(&text)?;
        let waiting = kept["waiting"].as_array().context("nothing waits")?;
        ensure!(waiting.iter().any(|event| event["reason"] == "Started"), "{text}");
        Ok(())
    })?;
    for daemon in ["kubelet-syncd", "kubelet-statusd"] {
        node.kill_daemon(daemon)?;
    }
    node.wait_healthy()?;
    cluster.resume()?;
    wait_restarts(&cluster, "told", 1)?;
    let starts = |lines: &[String]| -> i64 {
        let counts = lines.iter().filter(|line| line.starts_with("Normal Started")).filter_map(|line| {
            let count = line.rsplit('(').next()?.trim_end_matches(')');
            count.parse::<i64>().ok()
        });
        counts.sum()
    };
    eventually("both starts are told", LONG, || {
        let told = events(&cluster, &pod)?;
        ensure!(starts(&told) >= 2, "{told:#?}");
        Ok(())
    })?;
    // What happens next comes after whatever was still to be told.
    settle(&cluster, &mut node, 0)?;
    let told = events(&cluster, &pod)?;
    ensure!(starts(&told) == 2, "{told:#?}");
    node.finish()
}
