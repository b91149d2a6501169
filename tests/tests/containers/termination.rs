//! How containers and pods end, as the API server shows it: what a container says at its end, why and with which code it
//! ended, why one could not be started, and pods that are ended by their deadline or while they still begin.

use std::net::TcpListener;

use anyhow::{Context, Result, ensure};
use bulkhead_testkit::{LONG, Pod, eventually};
use bulkhead_tests::history::{condition, pod_only_advances};
use bulkhead_tests::joined::{Member, create, events, main_of, wait_event, wait_phase, wait_ready};
use bulkhead_tests::lab;
use serde_json::{Value, json};

/// Runs once.
fn once(name: &str, script: &str) -> Pod {
    Pod::busybox(name, script).restart_policy("Never")
}

#[test]
fn termination_messages_are_shown() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let Member { cluster, node } = Member::start(&lab, &[], |node| node.config("clusterDNS", json!(["10.96.0.10"])))?;
    let fallback = |pod: Pod| pod.container_field("terminationMessagePolicy", json!("FallbackToLogsOnError"));
    let long = "i=0; while [ $i -lt 500 ]; do echo 0123456789; i=$((i+1)); done";
    let pods = [
        // Any user may write, anywhere.
        once("custom", "echo -n DONE > /dev/termination-custom-log")
            .container_field("terminationMessagePath", json!("/dev/termination-custom-log"))
            .container_field("securityContext", json!({"runAsUser": 1000})),
        once("relative", "echo -n DONE > /dev/said").container_field("terminationMessagePath", json!("dev/said")),
        fallback(once("output", "echo -n DONE; exit 1")),
        fallback(once("silent", "echo -n DONE")),
        fallback(once("both", "echo -n DONE > /dev/termination-log; echo no; exit 1")),
        once("plain", "echo DONE; exit 1"),
        // The last 4096 bytes of a file, the last 80 lines or 2048 bytes of output.
        once("long", &format!("({long}) > /dev/termination-log")),
        fallback(once("lines", "i=0; while [ $i -lt 200 ]; do echo $i; i=$((i+1)); done; exit 1")),
        fallback(once("bytes", &format!("{long}; exit 1"))),
        // Of one line, which the runtime divides: a part is 16 KiB, and little is left for the last.
        fallback(once("line", "head -c 16384 /dev/zero | tr '\\0' x; echo -n end; exit 1")),
        // Four share what a pod may say.
        once("shared", &format!("({long}) > /dev/termination-log")),
    ];
    let mut shared = pods.last().context("no pod")?.clone();
    for name in ["b", "c", "d"] {
        shared = shared.and_container(name, "echo -n DONE > /dev/termination-log");
    }
    for pod in pods.into_iter().filter(|pod| pod.name() != "shared").chain([shared]) {
        create(&cluster, pod)?;
    }
    let lines: String = (120..200).map(|n| format!("{n}\n")).collect();
    let all = "0123456789\n".repeat(500);
    let line = format!("{}end", "x".repeat(2045));
    for (name, phase, message) in [
        ("custom", "Succeeded", Some("DONE")),
        ("relative", "Succeeded", Some("DONE")),
        ("output", "Failed", Some("DONE")),
        ("silent", "Succeeded", None),
        ("both", "Failed", Some("DONE")),
        ("plain", "Failed", None),
        ("long", "Succeeded", Some(&all[all.len() - 4096..])),
        ("lines", "Failed", Some(lines.as_str())),
        ("bytes", "Failed", Some(&"0123456789\n".repeat(80))),
        ("line", "Failed", Some(&line)),
        ("shared", "Succeeded", Some(&all[all.len() - 4096..][..3072])),
    ] {
        let pod = wait_phase(&cluster, name, phase)?;
        let list = pod["status"]["containerStatuses"].as_array().context("no statuses")?;
        let main = list.iter().find(|one| one["name"] == "main").context("no main")?;
        let ended = &main["state"]["terminated"];
        ensure!(ended["message"].as_str() == message, "{name}: {ended:#}");
        let word = if phase == "Succeeded" { "Completed" } else { "Error" };
        ensure!(ended["reason"] == word, "{name}: {ended:#}");
    }
    node.finish()
}

#[test]
fn why_containers_end_or_do_not_start() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let Member { cluster, node } = Member::start(&lab, &[], |node| node.config("clusterDNS", json!(["10.96.0.10"])))?;
    let missing = |name: &str| Pod::busybox(name, "").container_field("command", json!(["/nowhere"]));
    let limits = json!({"limits": {"memory": "24Mi"}});
    let hog = "exec tail -f /dev/zero";
    create(&cluster, Pod::busybox("hog", hog).container_field("resources", limits).restart_policy("OnFailure"))?;
    create(&cluster, missing("never").restart_policy("Never"))?;
    let again = create(&cluster, missing("again"))?;
    // Twice, because commands are expanded first.
    create(&cluster, once("signalled", "kill -KILL $$$$; sleep 10").spec("shareProcessNamespace", json!(true)))?;
    let folder = Pod::idle("folder").container_field("workingDir", json!("/bin/busybox"));
    create(&cluster, folder.restart_policy("Never"))?;

    let ended = |name: &str| -> Result<Value> {
        Ok(main_of(&wait_phase(&cluster, name, "Failed")?)["state"]["terminated"].clone())
    };
    // The runtime may hear of the process's end before it hears why, and then the end is told without it: so it runs again.
    let of_memory = |ended: &&Value| ended["reason"] == "OOMKilled";
    let ends = |pod: &Value| ["state", "lastState"].map(|state| main_of(pod)[state]["terminated"].clone());
    let hog =
        cluster.wait_for("pods", "default", "hog", "OOMKilled", |pod| ends(pod).iter().any(|one| of_memory(&one)))?;
    let hog = ends(&hog);
    ensure!(hog.iter().find(of_memory).is_some_and(|one| one["exitCode"] == 137), "{hog:#?}");
    let signalled = ended("signalled")?;
    ensure!(signalled["reason"] == "Error" && signalled["exitCode"] == 137, "{signalled:#}");
    let never = ended("never")?;
    ensure!(never["reason"] == "StartError" && never["exitCode"] == 128, "{never:#}");
    ensure!(never["startedAt"] == "1970-01-01T00:00:00Z", "{never:#}");
    let says =
        |text: &Value| text.as_str().is_some_and(|text| text.contains("\"/nowhere\": stat /nowhere: no such file"));
    ensure!(says(&never["message"]), "{never:#}");
    let waits = cluster.wait_for("pods", "default", "again", "RunContainerError", |pod| {
        main_of(pod)["state"]["waiting"]["reason"] == "RunContainerError"
    })?;
    let (waiting, last) = (&main_of(&waits)["state"]["waiting"], &main_of(&waits)["lastState"]["terminated"]);
    ensure!(says(&waiting["message"]) && last["reason"] == "StartError", "{:#}", waits["status"]);
    wait_event(&cluster, &again, "Warning Failed spec.containers{main} Error: ")?;
    wait_event(&cluster, &again, "Warning BackOff spec.containers{main} Back-off restarting failed container main")?;
    let folder = ended("folder")?;
    ensure!(folder["exitCode"] == 128 && folder["reason"] == "StartError", "{folder:#}");
    node.finish()
}

#[test]
fn pods_end_by_their_deadline_and_while_they_begin() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let Member { cluster, node } = Member::start(&lab, &[], |node| node.config("clusterDNS", json!(["10.96.0.10"])))?;
    // A registry that takes connections and never says anything.
    let mute = TcpListener::bind((lab.netns().gateway(), 0))?;
    let image = format!("{}/mute:1", mute.local_addr()?);
    let late = Pod::busybox("late", "trap 'exit 4' TERM; while true; do sleep 3600 & wait $!; done");
    let late = create(&cluster, late.spec("activeDeadlineSeconds", json!(3600)))?;
    let pulls = create(&cluster, Pod::idle("pulls").container_field("image", json!(image)))?;
    wait_ready(&cluster, "late")?;
    wait_event(&cluster, &pulls, "Normal Pulling spec.containers{main}")?;

    // Lowered to what has passed already.
    cluster.patch("pods", "default", "late", &json!({"spec": {"activeDeadlineSeconds": 1}}))?;
    let ended = wait_phase(&cluster, "late", "Failed")?;
    let status = &ended["status"];
    ensure!(status["reason"] == "DeadlineExceeded", "{status:#}");
    ensure!(status["message"] == "Pod was active on the node longer than the specified deadline", "{status:#}");
    ensure!(main_of(&ended)["state"]["terminated"]["exitCode"] == 4, "{status:#}");
    let ready = condition(&ended, "Ready")?;
    ensure!(ready["status"] == "False" && ready["reason"] == "PodFailed", "{status:#}");
    ensure!(condition(&ended, "PodReadyToStartContainers")?["status"] == "False", "{status:#}");
    ensure!(condition(&ended, "DisruptionTarget").is_err(), "{status:#}");
    wait_event(
        &cluster,
        &late,
        "Normal DeadlineExceeded  Pod was active on the node longer than the specified deadline (1)",
    )?;
    let history = cluster.history("pods", "default", "late")?;
    pod_only_advances(&history)?;

    // Nobody waits for an image of a pod that is to go.
    cluster.delete("pods", "default", "pulls", None)?;
    cluster.wait_gone("pods", "default", "pulls")?;
    let told = events(&cluster, &pulls)?;
    ensure!(told.iter().all(|line| !line.starts_with("Warning")), "{told:#?}");
    eventually("the runtime has nothing of the pod", LONG, || {
        let left = node.cri()?.sandboxes()?.iter().filter(|one| one.uid == pulls["metadata"]["uid"]).count();
        ensure!(left == 0, "{left} sandboxes");
        Ok(())
    })?;
    node.finish()
}
