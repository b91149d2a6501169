//! When containers run again and when not: rules of their own, the restart of all containers in place, changed images,
//! containers for debugging, and a pause that outlives whoever keeps it.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use bulkhead_testkit::image::LOCAL_BUSYBOX;
use bulkhead_testkit::{IDLE, Lab};
use bulkhead_tests::history::condition;
use bulkhead_tests::joined::{Member, waiting};
use bulkhead_tests::lab;
use serde_json::{Value, json};

/// `syncFrequency`, after which a pod is looked at for no reason.
const SYNC_PERIOD: Duration = Duration::from_secs(60);

/// Ends with the code the first time, then runs on.
fn once(code: i32) -> String {
    format!("if test -e /v/$N; then {IDLE}; fi; touch /v/$N; exit {code}")
}

fn container(name: &str, script: &str) -> Value {
    json!({"name": name, "command": ["sh", "-c", format!("N={name}; {script}")],
        "volumeMounts": [{"name": "v", "mountPath": "/v"}]})
}

/// A container with a rule of its own about one exit code.
fn ruled(name: &str, script: &str, action: &str, code: i32) -> Value {
    let mut container = container(name, script);
    container["restartPolicy"] = json!("Never");
    container["restartPolicyRules"] = json!([{"action": action, "exitCodes": {"operator": "In", "values": [code]}}]);
    container
}

fn spec(policy: &str, init: &[Value], regular: &[Value]) -> Value {
    json!({"restartPolicy": policy, "initContainers": init, "containers": regular,
        "volumes": [{"name": "v", "emptyDir": {}}]})
}

fn statuses(pod: &Value) -> impl Iterator<Item = &Value> {
    let lists = ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"];
    lists.into_iter().filter_map(|list| pod["status"][list].as_array()).flatten()
}

fn status<'a>(pod: &'a Value, name: &str) -> &'a Value {
    statuses(pod).find(|one| one["name"] == name).unwrap_or(&Value::Null)
}

fn runs_after(pod: &Value, name: &str, restarts: i64) -> bool {
    status(pod, name)["restartCount"] == restarts && status(pod, name)["state"]["running"].is_object()
}

fn start(lab: &Lab, period: &str) -> Result<Member> {
    Member::start(lab, &[], |node| node.config("crashLoopBackOff", json!({"maxContainerRestartPeriod": period})))
}

#[test]
fn rules_restart_one_or_all() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let mut member = start(&lab, "1s")?;
    let ruled_pod = spec("Never", &[], &[ruled("again", &once(42), "Restart", 42), container("plain", "exit 3")]);
    member.create("ruled", &ruled_pod)?;
    let other = spec("Always", &[], &[ruled("other", "exit 41", "Restart", 42), container("main", IDLE)]);
    member.create("other", &other)?;
    let all = spec(
        "Never",
        &[container("prepare", "echo x >> /v/prepared"), json!({"name": "side", "restartPolicy": "Always"})],
        &[
            ruled(
                "source",
                &format!("if test $(wc -l < /v/prepared) -ge 2; then {IDLE}; fi; sleep 0.5; exit 88"),
                "RestartAllContainers",
                88,
            ),
            container("beside", IDLE),
        ],
    );
    member.create("all", &all)?;
    // Nothing else of it runs whose end would be a reason to look at the pod.
    let begun = Instant::now();
    member.create("alone", &spec("Never", &[], &[ruled("alone", &once(88), "RestartAllContainers", 88)]))?;

    let pod = member.wait("alone", "it has restarted", |pod| runs_after(pod, "alone", 1))?;
    ensure!(pod["status"]["phase"] == "Running", "{pod:#}");
    let took = begun.elapsed();
    ensure!(took < SYNC_PERIOD, "it was left to the periodic look, {took:?} after its creation");

    // One container, by its own rule; the other by the pod's policy.
    let pod = member.wait("ruled", "it runs again", |pod| runs_after(pod, "again", 1))?;
    ensure!(status(&pod, "again")["lastState"]["terminated"]["exitCode"] == 42, "{pod:#}");
    ensure!(
        status(&pod, "plain")["state"]["terminated"]["exitCode"] == 3 && pod["status"]["phase"] == "Running",
        "{pod:#}"
    );
    let pod = member.wait("other", "it has ended", |pod| status(pod, "other")["state"]["terminated"].is_object())?;
    ensure!(status(&pod, "other")["restartCount"] == 0 && pod["status"]["phase"] == "Running", "{pod:#}");

    // All of them, in the sandbox that they have, from the first init container on.
    let pod = member.wait("all", "all have restarted", |pod| {
        ["side", "source", "beside"].iter().all(|name| runs_after(pod, name, 1))
    })?;
    ensure!(status(&pod, "prepare")["restartCount"] == 1 && status(&pod, "prepare")["ready"] == true, "{pod:#}");
    ensure!(pod["status"]["phase"] == "Running", "{pod:#}");
    for name in ["side", "source", "beside"] {
        let last = &status(&pod, name)["lastState"]["terminated"];
        ensure!(last["reason"] == "RestartingAllContainers" && last["exitCode"] == 137, "{name} {pod:#}");
    }
    let pod = member.wait("all", "it says that it is over", |pod| {
        condition(pod, "AllContainersRestarting").is_ok_and(|one| one["status"] == "False")
    })?;
    ensure!(condition(&pod, "Initialized")?["status"] == "True", "{pod:#}");
    let told = member.cluster.statuses("pods", "default", "all")?;
    let began = told.iter().any(|status| {
        let restarting = status["conditions"]
            .as_array()
            .and_then(|all| all.iter().find(|one| one["type"] == "AllContainersRestarting"));
        restarting.is_some_and(|one| {
            one["status"] == "True"
                && one["reason"] == "RestartAllContainersStarted"
                && one["message"] == "container exited with restart policy rule"
        })
    });
    ensure!(began, "{told:#?}");
    ensure!(told.iter().all(|status| status["phase"] != "Failed" && status["phase"] != "Succeeded"), "{told:#?}");
    let sandboxes = member.node.cri()?.sandboxes()?;
    let own: Vec<_> = sandboxes.iter().filter(|one| one.pod == "all").collect();
    ensure!(own.len() == 1 && own[0].attempt == 0 && own[0].ready, "{own:?}");
    let logs = std::fs::read_dir(member.node.log_folder_of(&pod).join("beside"))?.count();
    ensure!(logs == 2, "{logs} logs of a container that ran twice");

    // A restart of the process that decides changes nothing of it.
    member.decide_anew("all")?;
    let after = member.cluster.get("pods", "default", "all")?;
    ensure!(["side", "source", "beside"].iter().all(|name| runs_after(&after, name, 1)), "{after:#}");
    for pod in ["ruled", "other", "all", "alone"] {
        member.cluster.delete("pods", "default", pod, None)?;
    }
    member.node.finish()
}

/// Adds a container for debugging, as `kubectl debug` does.
fn debug(member: &Member, pod: &str, containers: &Value) -> Result<()> {
    let path = format!("/api/v1/namespaces/default/pods/{pod}/ephemeralcontainers");
    let patch = json!({"spec": {"ephemeralContainers": containers}});
    member.cluster.client().patch(&path, "strategic-merge-patch", &patch)?.success().map(drop)
}

fn debugger(member: &Member, name: &str, script: &str, target: Option<&str>) -> Value {
    json!({"name": name, "image": member.node.image(), "command": ["sh", "-c", script], "targetContainerName": target,
        "terminationMessagePolicy": "File", "imagePullPolicy": "IfNotPresent"})
}

#[test]
fn debugging_containers_and_changed_images() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let mut member = start(&lab, "1s")?;
    let marked = "exec sleep 86399";
    member.create("web", &spec("Always", &[], &[container("main", marked)]))?;
    member.create("early", &spec("Always", &[container("first", IDLE)], &[container("main", IDLE)]))?;
    member.create("image", &spec("Never", &[], &[container("main", IDLE), container("still", IDLE)]))?;
    member.wait_ready("web")?;

    // In the pod as it is, and in its target's processes.
    let looks = debugger(&member, "looks", "grep -q 86399 /proc/1/cmdline && exit 0; exit 5", Some("main"));
    debug(&member, "web", &json!([looks]))?;
    let pod = member.wait("web", "it has looked", |pod| status(pod, "looks")["state"]["terminated"].is_object())?;
    ensure!(status(&pod, "looks")["state"]["terminated"]["exitCode"] == 0, "{pod:#}");
    // Another one; what is there stays as it is, and what has ended is not started again, by nobody.
    debug(&member, "web", &json!([looks, debugger(&member, "stays", IDLE, None)]))?;
    member.wait("web", "another one runs", |pod| runs_after(pod, "stays", 0))?;
    member.decide_anew("web")?;
    let pod = member.cluster.get("pods", "default", "web")?;
    ensure!(runs_after(&pod, "stays", 0) && runs_after(&pod, "main", 0), "{pod:#}");
    ensure!(status(&pod, "looks")["restartCount"] == 0 && condition(&pod, "Ready")?["status"] == "True", "{pod:#}");
    let looked = member.node.cri()?.containers()?.iter().filter(|one| one.pod == "web" && one.name == "looks").count();
    ensure!(looked == 1, "{looked} instances of a container that is never restarted");

    // While the pod still initializes.
    member.wait("early", "it initializes", |pod| runs_after(pod, "first", 0))?;
    let early = debugger(&member, "early", IDLE, None);
    debug(&member, "early", &json!([early]))?;
    member.wait("early", "it runs", |pod| runs_after(pod, "early", 0))?;
    // A target that has not been started is said to be missing.
    debug(&member, "early", &json!([early, debugger(&member, "lost", IDLE, Some("main"))]))?;
    let pod = member.wait("early", "it waits", |pod| {
        status(pod, "lost")["state"]["waiting"]["reason"] == "CreateContainerConfigError"
    })?;
    let message = &status(&pod, "lost")["state"]["waiting"]["message"];
    ensure!(message == "unable to find target container main" && runs_after(&pod, "early", 0), "{pod:#}");
    ensure!(pod["status"]["phase"] == "Pending" && waiting(&pod, "main").is_some(), "{pod:#}");

    // Another image restarts a container whatever its policy, and no other one.
    member.wait_ready("image")?;
    let change = json!([{"op": "replace", "path": "/spec/containers/0/image", "value": LOCAL_BUSYBOX}]);
    let path = "/api/v1/namespaces/default/pods/image";
    member.cluster.client().patch(path, "json-patch", &change)?.success()?;
    let pod = member.wait("image", "it runs with the other image", |pod| {
        runs_after(pod, "main", 1) && status(pod, "main")["image"] == LOCAL_BUSYBOX
    })?;
    ensure!(runs_after(&pod, "still", 0) && pod["status"]["phase"] == "Running", "{pod:#}");
    member.wait_event("image", "Killing", |text| text == "Container main definition changed, will be restarted")?;
    for pod in ["web", "early", "image"] {
        member.cluster.delete("pods", "default", pod, None)?;
    }
    member.node.finish()
}

/// Of the day.
fn seconds(time: &Value) -> Result<i64> {
    let of_day = time.as_str().and_then(|time| time.split_once('T')).context("no time")?.1;
    let parts: Vec<i64> = of_day.trim_end_matches('Z').split(':').map(str::parse).collect::<Result<_, _>>()?;
    Ok(parts.iter().fold(0, |sum, part| sum * 60 + part))
}

/// Waits until the container has run again so often; gives for how many seconds it was held back before that.
fn pause_before(member: &Member, restarts: i64) -> Result<i64> {
    let pod = member.wait("loop", &format!("{restarts} restarts"), |pod| {
        let main = status(pod, "main");
        main["restartCount"] == restarts
            && main["lastState"]["terminated"].is_object()
            && !main["state"]["waiting"].is_object()
    })?;
    let main = status(&pod, "main");
    let state = if main["state"]["running"].is_object() { "running" } else { "terminated" };
    let from = seconds(&main["lastState"]["terminated"]["finishedAt"])?;
    Ok((seconds(&main["state"][state]["startedAt"])? - from).rem_euclid(24 * 3600))
}

fn wait_held_back(member: &Member, restarts: i64) -> Result<()> {
    let mut text = String::new();
    member.wait("loop", "it is held back", |pod| {
        let found = waiting(pod, "main").filter(|(reason, _)| reason == "CrashLoopBackOff");
        text = found.map(|(_, message)| message).unwrap_or_default();
        !text.is_empty() && status(pod, "main")["restartCount"] == restarts
    })?;
    ensure!(text.starts_with("back-off 5s restarting failed container=main pod=loop_default("), "{text}");
    Ok(())
}

#[test]
fn back_off_outlives_a_restart_of_kubelet_syncd() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let mut member = start(&lab, "5s")?;
    member.create("loop", &spec("Always", &[], &[container("main", "sleep 2; exit 1")]))?;
    wait_held_back(&member, 1)?;
    member.node.kill_daemon("kubelet-syncd")?;
    member.node.wait_healthy()?;
    let pause = pause_before(&member, 2)?;
    // Times have whole seconds.
    ensure!(pause >= 4, "held back for {pause} s");
    wait_held_back(&member, 2)?;
    member.node.stop()?;
    member.node.launch()?;
    member.node.wait_healthy()?;
    let pause = pause_before(&member, 3)?;
    ensure!(pause >= 4, "held back for {pause} s");
    member.wait_event("loop", "BackOff", |text| {
        text.starts_with("Back-off restarting failed container main in pod loop_default(")
    })?;
    member.cluster.delete("pods", "default", "loop", None)?;
    member.node.finish()
}
