//! What a pod's story does when one of the others falls silent in the middle of it: it waits, says for whom, and goes on.

use anyhow::{Context, Result, ensure};
use bulkhead_testkit::{LONG, Pod, Release, eventually, processes};
use bulkhead_tests::joined::{Member, create, wait_ready};
use bulkhead_tests::lab;
use nix::sys::signal::Signal;

#[test]
fn a_restarted_runtime_finds_its_pods_untouched_and_starts_what_came_meanwhile() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let node = lab.node("alpha").start()?;
    node.write(&Pod::idle("before"))?;
    node.wait_running("before", 1)?;
    let before = node.fingerprint()?;

    lab.containerd().stop()?;
    node.write(&Pod::idle("meanwhile"))?;
    std::thread::sleep(std::time::Duration::from_secs(2));
    lab.containerd().spawn()?;
    node.wait_running("meanwhile", 1)?;
    let after: Vec<_> = node.fingerprint()?.into_iter().filter(|one| one.pod.starts_with("before")).collect();
    ensure!(after == before, "{before:#?} became {after:#?}");

    // Its events are followed again: an exit is seen at once.
    lab.containerd().kill();
    lab.containerd().spawn()?;
    node.remove("before")?;
    node.wait_gone("before")?;
    node.finish()
}

#[test]
fn a_stuck_volnetd_holds_up_new_pods_and_nothing_else() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let node = lab.node("alpha").start()?;
    node.write(&Pod::idle("before"))?;
    node.wait_running("before", 1)?;
    let before = node.fingerprint()?;

    let volnetd = node.pids()["kubelet-volnetd"];
    processes::signal(volnetd, Signal::SIGSTOP);
    // Not by a manifest: reading one needs the broker. A container that ends does not.
    let container = node.cri()?.containers()?.remove(0);
    node.cri()?.stop_container(&container.id)?;
    let waiting = node.wait_pod("before", "its container has ended", |pod| {
        pod.containers.first().is_some_and(|c| c.state != "running" || c.restart_count > 0)
    });
    std::thread::sleep(std::time::Duration::from_secs(1));
    let state = node.wait_pod("before", "known", |_| true);
    processes::signal(volnetd, Signal::SIGCONT);
    ensure!(waiting?.worker == state?.worker, "the worker goes on");
    let running = node.wait_running("before", 1)?;
    ensure!(running.main().id != before[0].id, "a new instance runs");
    node.finish()
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
