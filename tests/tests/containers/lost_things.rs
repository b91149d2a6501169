//! What somebody takes from a running pod by hand, and when the pod has it again: its cgroup, and the tmpfs of a volume.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use bulkhead_testkit::{IDLE, LONG, Pod, cgroups, eventually, processes};
use bulkhead_tests::joined::{Member, NODE};
use bulkhead_tests::lab;
use nix::mount::{MntFlags, umount2};
use nix::sys::signal::Signal;
use serde_json::json;

use super::resize::limits;

/// The folders of the cgroup above a process's own, in all hierarchies.
fn pod_cgroups(pid: i32) -> Result<Vec<PathBuf>> {
    let own = std::fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    let paths: BTreeSet<&Path> =
        own.lines().filter_map(|line| Path::new(line.splitn(3, ':').nth(2)?).parent()).collect();
    let below = |mount: PathBuf| paths.iter().map(move |path| mount.join(path.strip_prefix("/").unwrap_or(path)));
    let folders = cgroups::hierarchies().into_iter().flat_map(below);
    Ok(folders.filter(|folder| folder.to_string_lossy().contains("/pod") && folder.exists()).collect())
}

#[test]
fn a_pod_that_lost_its_cgroup_has_its_limits_again() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let node = lab.node("alpha").start()?;
    node.write(
        &Pod::idle("limited").container_field("resources", json!({"limits": {"cpu": "200m", "memory": "64Mi"}})),
    )?;
    let running = node.wait_running("limited", 1)?;
    let cri = node.cri()?;
    let pid = cri.pid(&running.main().id)?;
    let (before, folders) = (limits(pid, 1)?, pod_cgroups(pid)?);
    ensure!(!folders.is_empty(), "the pod has no cgroup");

    // So that nothing is made again in between.
    let syncd = *node.pids().get("kubelet-syncd").context("no kubelet-syncd")?;
    processes::signal(syncd, Signal::SIGSTOP);
    let lost = cri.stop_sandbox(&running.sandbox.id).and_then(|()| {
        eventually("the pod's cgroup can be removed", LONG, || {
            for folder in folders.iter().filter(|folder| folder.exists()) {
                std::fs::remove_dir(folder).with_context(|| folder.display().to_string())?;
            }
            Ok(())
        })
    });
    processes::signal(syncd, Signal::SIGCONT);
    lost?;

    let again = eventually("the pod runs again", LONG, || {
        let again = node.wait_running("limited", 1)?;
        ensure!(again.sandbox.id != running.sandbox.id, "its sandbox is the one that was stopped");
        Ok(again)
    })?;
    let after = limits(cri.pid(&again.main().id)?, 1)?;
    ensure!(after == before, "{after:?} after {before:?}");
    node.finish()
}

#[test]
fn a_volume_that_was_unmounted_is_mounted_again() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let Member { cluster, node } = Member::start(&lab, &[], |node| node)?;
    let secret = |data: &str| {
        json!({"apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "sec", "namespace": "default"}, "data": {"k": data}})
    };
    cluster.create(&secret("b2xk"))?;
    cluster.create(&json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("lost-{NODE}"), "namespace": "default"},
        "spec": {"nodeName": NODE, "terminationGracePeriodSeconds": 1,
            "volumes": [{"name": "v", "secret": {"secretName": "sec"}}],
            "containers": [{"name": "main", "image": node.image(), "volumeMounts": [{"name": "v", "mountPath": "/v"}],
                "command": ["sh", "-c", format!("echo has $(cat /v/k); {IDLE}")]}]},
    }))?;
    node.wait_for_log("lost", "main", "has old")?;
    let running = node.wait_running("lost", 1)?;
    let volume = node.root_dir().join("pods").join(&running.sandbox.uid).join("volumes/kubernetes.io~secret/v");
    let unmount = || umount2(&volume, MntFlags::empty()).with_context(|| volume.display().to_string());

    unmount()?;
    ensure!(!volume.join("k").exists(), "it is still mounted");
    node.cri()?.stop_container(&running.main().id)?;
    eventually("the next container has the files", LONG, || {
        let logs = node.logs("lost", "main");
        ensure!(logs.len() > 1 && logs.iter().all(|(_, text)| text.contains("has old")), "{logs:?}");
        Ok(())
    })?;

    unmount()?;
    cluster.patch("secrets", "default", "sec", &json!({"data": {"k": "bmV3"}}))?;
    eventually("the new files are there", LONG, || {
        let text = std::fs::read_to_string(volume.join("k"))?;
        ensure!(text == "new", "{text}");
        Ok(())
    })?;
    unmount()?;
    ensure!(!volume.join("k").exists(), "the files were written below");
    node.finish()
}
