//! What a pod's story does when one of the others falls silent in the middle of it: it waits, says for whom, and goes on.

use anyhow::{Context, Result, ensure};
use bulkhead_testkit::cluster::client::Credential;
use bulkhead_testkit::cri::{Container, Fingerprint};
use bulkhead_testkit::https::Https;
use bulkhead_testkit::{LONG, Pod, Release, SHORT, eventually, processes};
use bulkhead_tests::joined::{Member, create, is_true, wait_ready};
use bulkhead_tests::{channels, lab};
use nix::sys::signal::Signal;
use serde_json::json;

#[test]
fn a_restarted_runtime_finds_its_pods_untouched_and_starts_what_came_meanwhile() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let node = lab.node("alpha").start()?;
    node.write(&Pod::idle("before"))?;
    node.wait_running("before", 1)?;
    let before = node.fingerprint()?;

    lab.containerd().stop()?;
    node.write(&Pod::idle("meanwhile"))?;
    node.wait_pod("meanwhile", "it waits for the runtime", |pod| pod.why.contains("runtime"))?;
    lab.containerd().spawn()?;
    node.wait_running("meanwhile", 1)?;
    let after: Vec<_> = node.fingerprint()?.into_iter().filter(|one| one.pod.starts_with("before")).collect();
    ensure!(after == before, "{before:#?} became {after:#?}");

    // Its events are followed again: an exit is seen before the next audit, which comes once a minute.
    lab.containerd().kill();
    lab.containerd().spawn()?;
    let running = node.wait_running("before", 1)?;
    processes::signal(node.cri()?.pid(&running.main().id)?, Signal::SIGKILL);
    eventually("another instance runs", SHORT, || {
        let containers = node.cri()?.containers()?;
        let started = |one: &Container| one.running && one.sandbox == running.sandbox.id && one.id != running.main().id;
        ensure!(containers.iter().any(started), "{containers:#?}");
        Ok(())
    })?;
    node.remove("before")?;
    node.wait_gone("before")?;
    node.finish()
}

#[test]
fn a_stuck_volnetd_holds_up_new_pods_and_nothing_else() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let signs = lab.folder().join("signs");
    std::fs::create_dir_all(&signs)?;
    std::fs::write(signs.join("well"), "")?;
    let member = Member::start(&lab, &[], |node| {
        node.config("authentication", json!({"anonymous": {"enabled": true}, "webhook": {"enabled": false}}))
            .config("authorization", json!({"mode": "AlwaysAllow"}))
    })?;
    let (cluster, node) = (&member.cluster, &member.node);
    let probe = json!({"exec": {"command": ["test", "-e", "/signs/well"]}, "periodSeconds": 1, "timeoutSeconds": 10});
    let steady = Pod::busybox("steady", "while sleep 0.2; do date; done")
        .host_path("signs", &signs.display().to_string(), "Directory", "/signs")
        .container_field("readinessProbe", probe);
    create(cluster, steady)?;
    create(cluster, Pod::idle("restarts"))?;
    let shown = wait_ready(cluster, "steady")?;
    wait_ready(cluster, "restarts")?;
    let before = node.fingerprint()?;
    let of = |pod: &str, all: &[Fingerprint]| all.iter().find(|one| one.pod == pod).cloned();

    // The launcher too, or its watchdog would end kubelet-volnetd.
    let pids = node.pids();
    let stuck = [pids["kubelet"], pids["kubelet-volnetd"]];
    stuck.iter().for_each(|pid| processes::signal(*pid, Signal::SIGSTOP));
    create(cluster, Pod::idle("new"))?;
    let agent = node.agent()?;
    let known = |name: &str| agent.pods()?.into_iter().find(|pod| pod.name == name).context("it is not known");
    eventually("the new pod waits, and says for whom", LONG, || {
        let new = known("new")?;
        let begun = new.containers.iter().any(|one| !one.id.is_empty());
        ensure!(new.why.contains("kubelet-volnetd") && !begun, "{} {:?}", new.why, new.containers);
        Ok(())
    })?;

    // A container that ends is noticed.
    let ends = of("restarts", &before).context("it does not run")?;
    node.cri()?.stop_container(&ends.id)?;
    eventually("its end is noticed", LONG, || {
        let all = known("restarts")?.containers;
        ensure!(all.first().is_some_and(|one| one.state != "running" || one.restart_count > 0), "{all:?}");
        Ok(())
    })?;

    // Probes, what is told of them, logs and commands of the other one go on.
    std::fs::remove_file(signs.join("well"))?;
    cluster.wait_for("pods", "default", "steady", "it is not ready", |pod| !is_true(pod, "Ready"))?;
    std::fs::write(signs.join("well"), "")?;
    wait_ready(cluster, "steady")?;
    let lines = || anyhow::Ok(member.log(&shown, "main")?.lines().count());
    let written = lines()?;
    eventually("its log goes on", LONG, || {
        ensure!(lines()? > written + 2);
        Ok(())
    })?;
    let https = Https::new((lab.netns().address(), 10250).into(), &Credential::Nothing);
    let command = "/exec/default/steady/main?output=1&command=echo&command=there";
    ensure!(channels::open(&https, command)?.messages.to_end()?.stdout() == "there\n");
    let now = node.fingerprint()?;
    ensure!(of("steady", &now) == of("steady", &before), "{before:#?} became {now:#?}");
    ensure!(of("new", &now).is_none(), "it waits for nobody: {now:#?}");
    let new = cluster.get("pods", "default", "new")?;
    ensure!(new["status"]["phase"] == "Pending", "{new:#}");

    stuck.iter().rev().for_each(|pid| processes::signal(*pid, Signal::SIGCONT));
    wait_ready(cluster, "new")?;
    eventually("a new instance runs", LONG, || {
        let now = node.fingerprint()?;
        ensure!(of("steady", &now) == of("steady", &before), "{before:#?} became {now:#?}");
        ensure!(of("restarts", &now).is_some_and(|one| one.id != ends.id), "{now:#?}");
        Ok(())
    })?;
    member.node.finish()
}

#[test]
fn a_pod_that_is_deleted_while_its_end_is_tidied_up_leaves_nothing() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let member = Member::start(&lab, &[], |node| node)?;
    let (cluster, node) = (&member.cluster, &member.node);
    let pod = Pod::busybox("ends", "until [ -e /sign/now ]; do sleep 0.1; done").restart_policy("Never");
    let made = create(cluster, pod.empty_dir("sign", "", None, "/sign"))?;
    let uid = made["metadata"]["uid"].as_str().context("no uid")?;
    wait_ready(cluster, "ends")?;
    let folder = node.root_dir().join("pods").join(uid);

    // The launcher too, or its watchdog would end the wait for kubelet-volnetd: the pod's termination message is asked for several
    // times, 10 s each.
    let pids = node.pids();
    let stuck = [pids["kubelet"], pids["kubelet-volnetd"]];
    stuck.iter().for_each(|pid| processes::signal(*pid, Signal::SIGSTOP));
    std::fs::write(folder.join("volumes/kubernetes.io~empty-dir/sign/now"), "")?;
    // Its volumes alone are being removed: it has ended by itself and its folder is to stay as long as the pod is there.
    let agent = node.agent()?;
    let knows = |name: &str, why: &str| {
        eventually(&format!("{name} is known: {why:?}"), LONG, || {
            let all = agent.pods()?;
            let pod = all.iter().find(|pod| pod.name == name).context("it is not known")?;
            ensure!(pod.why.starts_with(why), "{}", pod.why);
            Ok(())
        })
    };
    knows("ends", "has ended: volumes are removed")?;
    cluster.delete("pods", "default", "ends", None)?;
    // Who has heard of this one has heard of the deletion.
    create(cluster, Pod::idle("later"))?;
    knows("later", "")?;
    ensure!(folder.exists(), "the folder is gone already");
    stuck.iter().rev().for_each(|pid| processes::signal(*pid, Signal::SIGCONT));

    cluster.wait_gone("pods", "default", "ends")?;
    eventually("its folder is gone", LONG, || {
        ensure!(!folder.exists(), "{} is there", folder.display());
        Ok(())
    })?;
    wait_ready(cluster, "later")?;
    member.node.finish()
}

#[test]
fn a_task_that_the_runtime_has_lost_does_not_keep_its_pod() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let node = lab.node("alpha").start()?;
    let pod = Pod::busybox("lost", "[ -e /host/again ] && exec sleep 1000; touch /host/again")
        .restart_policy("Never")
        .empty_dir("host", "", None, "/host")
        // Keeps the sandbox.
        .and_container("beside", "exec sleep 1000");
    node.write(&pod)?;
    let container = eventually("the container has ended", LONG, || {
        let all = node.cri()?.containers()?;
        all.into_iter().find(|one| one.exited).context("none has ended")
    })?;
    // What a StartContainer whose caller died leaves behind: a task that the CRI knows nothing of.
    lab.containerd().ctr(&["tasks", "start", "--detach", &container.id])?;
    let tasks = lab.containerd().ctr(&["tasks", "ls"])?;
    ensure!(tasks.lines().any(|line| line.starts_with(&container.id) && line.contains("RUNNING")), "{tasks}");
    let known = node.cri()?.containers()?;
    ensure!(known.iter().any(|one| one.id == container.id && one.exited), "the CRI calls it dead: {known:#?}");

    node.remove("lost")?;
    node.wait_gone("lost")?;
    let tasks = lab.containerd().ctr(&["tasks", "ls"])?;
    ensure!(!tasks.contains(&container.id), "{tasks}");
    match lab.containerd().programs().release() {
        // Its shim is told to end when the sandbox's task goes, and not again when the lost one has gone after it.
        Release::V2_1 => node.finish_after_deaths(),
        Release::Installed | Release::V1_7 => node.finish(),
    }
}
