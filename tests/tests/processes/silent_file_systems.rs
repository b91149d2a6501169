//! A file system that never answers, below a pod's folder and where a pod's hostPath points: its pod waits and says for what,
//! everything else goes on, and so does every process after its death. (Each verb of kubelet-volnetd:
//! `bins/kubelet-volnetd/tests/silent.rs`.)

use anyhow::{Context as _, Result, ensure};
use bulkhead_testkit::node::DAEMONS;
use bulkhead_testkit::silent_fs::SilentFs;
use bulkhead_testkit::skip::{Lack, skip_this_test};
use bulkhead_testkit::{LONG, Node, Pod, eventually, processes};
use bulkhead_tests::journald::helper_of;
use bulkhead_tests::lab;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

/// Whether it is known what a pod keeps on the node's disk.
fn is_measured(node: &Node, pod: &str) -> Result<()> {
    let stats: Value = serde_json::from_str(&node.ctl(&["stats", "-o", "json"])?)?;
    let name = node.pod_name(pod);
    let pod = stats["pods"].as_array().and_then(|pods| pods.iter().find(|one| one["name"] == name.as_str()));
    ensure!(pod.is_some_and(|pod| pod["ephemeralStorageBytes"].is_u64()), "nothing is known of {name}: {stats}");
    Ok(())
}

#[test]
fn it_holds_up_its_own_pods_and_no_process() -> Result<()> {
    if !SilentFs::is_possible() {
        return skip_this_test(Lack::Fuse);
    }
    let Some(lab) = lab()? else { return Ok(()) };
    let mut node = lab.node("alpha").config("volumeStatsAggPeriod", json!("1s")).start()?;
    for name in ["victim", "bystander"] {
        node.write(&Pod::idle(name).empty_dir("data", "", None, "/data"))?;
    }
    let victim = node.wait_running("victim", 1)?;
    node.wait_running("bystander", 1)?;
    let before = node.fingerprint()?;
    eventually("usage of disks is known", LONG, || is_measured(&node, "victim"))?;

    // As a container with mount propagation may do it.
    let volume = node.root_dir().join(format!("pods/{}/volumes/kubernetes.io~empty-dir/data", victim.sandbox.uid));
    let below = SilentFs::mount_silent(&volume)?;
    let host = lab.folder().join("silent");
    std::fs::create_dir(&host)?;
    let pointed_at = SilentFs::mount_silent(&host)?;
    node.write(&Pod::idle("waits").host_path("there", &host.display().to_string(), "Directory", "/there"))?;
    eventually("both are met", LONG, || {
        node.ctl(&["stats"])?;
        ensure!(below.unanswered() > 0 && pointed_at.unanswered() > 0);
        Ok(())
    })?;
    // They are named, by whoever meets them.
    for (daemon, what) in [
        ("kubelet-volnetd", format!("CheckHostPath of {}", host.display())),
        ("kubelet-evictiond", format!("the volumes of pod default/{}", node.pod_name("victim"))),
    ] {
        eventually(&format!("{daemon} names it"), LONG, || {
            let said = node.agent()?.hello(daemon)?.degraded.join("; ");
            ensure!(said.contains(&what), "{what} is not in {said:?}");
            Ok(())
        })?;
    }
    eventually("the pod says for what it waits", LONG, || {
        let said = node.ctl(&["pod", &node.pod_name("waits")])?;
        ensure!(said.contains("CheckHostPath"), "{said}");
        Ok(())
    })?;
    // Others start meanwhile.
    node.write(&Pod::idle("meanwhile").empty_dir("data", "", None, "/data"))?;
    node.wait_running("meanwhile", 1)?;

    // Each process dies, with what hangs on its behalf.
    for daemon in DAEMONS {
        node.kill_daemon(daemon)?;
        node.wait_healthy().with_context(|| format!("after the death of {daemon}"))?;
    }
    let launcher = node.pids()["kubelet"];
    processes::signal(helper_of(launcher, "kubelet-walker")?, Signal::SIGKILL);
    eventually("usage of a new pod is known", LONG, || is_measured(&node, "meanwhile"))?;
    node.write(&Pod::idle("afterwards").empty_dir("data", "", None, "/data"))?;
    node.wait_running("afterwards", 1)?;
    node.remove("meanwhile")?;
    node.wait_gone("meanwhile")?;
    let after: Vec<_> =
        node.fingerprint()?.into_iter().filter(|one| before.iter().any(|was| was.pod == one.pod)).collect();
    ensure!(after == before, "{before:#?} became {after:#?}");

    drop((below, pointed_at));
    node.wait_running("waits", 1)?;
    node.finish()
}
