//! Two nodes on one runtime, told apart by their folders and cgroups alone: each ends and tidies up what is its own.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use bulkhead_testkit::cri::StraySandbox;
use bulkhead_testkit::wait::{LONG, eventually};
use bulkhead_testkit::{Lab, NodeBuilder, Pod, cgroups};
use bulkhead_tests::lab;
use serde_json::json;

#[test]
fn two_nodes_on_one_runtime_leave_each_other_s_pods_alone() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let mut alpha = node(&lab, "alpha", 0)?.start()?;
    let beta = node(&lab, "beta", 1000)?.start()?;
    let cri = lab.cri()?;
    for node in [&alpha, &beta] {
        node.write(&Pod::idle("web"))?;
        node.wait_running("web", 1)?;
    }

    // Orphaned sandboxes: somebody else's, half somebody else's, and one that alpha could have made.
    let gamma = format!("{}/gamma/kubepods", lab.cgroup());
    let elsewhere = lab.folder().join("gamma-logs");
    let kubepods = format!("{}/kubepods", alpha.cgroup_root());
    let stray = |pod: &str, uid: &str, logs: &Path, cgroup: &str| {
        cri.run_sandbox(&StraySandbox { pod, uid, pod_logs: logs, pods_cgroup: cgroup })
    };
    let theirs = stray("theirs-gamma", "11111111-0000-4000-8000-000000000001", &elsewhere, &gamma)?;
    let half = stray("half-alpha", "11111111-0000-4000-8000-000000000002", &alpha.pod_logs(), &gamma)?;
    let ended = stray("ended-gamma", "11111111-0000-4000-8000-000000000003", &elsewhere, &gamma)?;
    cri.stop_sandbox(&ended)?;
    let ours = stray("ours-alpha", "11111111-0000-4000-8000-000000000004", &alpha.pod_logs(), &kubepods)?;
    let exists = |id: &str| -> Result<bool> { Ok(cri.sandboxes()?.iter().any(|one| one.id == id)) };
    let gone = |id: &str| {
        eventually("alpha's own stray sandbox is gone", LONG, || {
            ensure!(!exists(id)?, "it is there");
            Ok(())
        })
    };
    gone(&ours)?;

    // The last instance of a container that has died tells why: its own node keeps it, the other lets it be.
    let before = beta.wait_running("web", 1)?.main().clone();
    cri.stop_container(&before.id)?;
    let restarted = eventually("beta has restarted its container", LONG, || {
        let running = beta.wait_running("web", 1)?;
        ensure!(running.main().id != before.id);
        Ok(running.main().identity())
    })?;

    // A new start of alpha looks at everything again.
    let untouched = beta.fingerprint()?;
    alpha.kill_everything();
    let ours = stray("ours-alpha", "11111111-0000-4000-8000-000000000005", &alpha.pod_logs(), &kubepods)?;
    let tidied = stray("tidied-alpha", "11111111-0000-4000-8000-000000000006", &alpha.pod_logs(), &kubepods)?;
    cri.stop_sandbox(&tidied)?;
    alpha.launch()?;
    alpha.wait_healthy()?;
    gone(&ours)?;
    // Once the garbage collection of the whole node has passed, too.
    gone(&tidied)?;
    ensure!(beta.fingerprint()? == untouched, "running containers of both nodes");
    let dead = cri.containers()?.into_iter().find(|one| one.id == before.id).context("the dead instance is gone")?;
    ensure!(dead.exited);
    ensure!(beta.wait_running("web", 1)?.main().identity() == restarted);
    let ready = |id: &str| -> Result<bool> { Ok(cri.sandboxes()?.iter().any(|one| one.id == id && one.ready)) };
    ensure!(ready(&theirs)?, "a sandbox of somebody else was stopped");
    ensure!(ready(&half)?, "a sandbox in somebody else's cgroup was stopped");
    ensure!(exists(&ended)?, "a stopped sandbox of somebody else was removed");
    let log = std::fs::read_to_string(alpha.log())?;
    ensure!(log.contains("ignoring pod that another kubelet runs"), "it is said why nothing was done");

    // The end of one node is nothing to the other.
    alpha.remove("web")?;
    alpha.wait_gone("web")?;
    ensure!(beta.wait_running("web", 1)?.main().identity() == restarted);
    beta.remove("web")?;
    beta.wait_gone("web")?;
    for id in [&theirs, &half, &ended] {
        cri.stop_sandbox(id)?;
        cri.remove_sandbox(id)?;
    }
    alpha.finish()?;
    beta.finish()
}

/// A node with folders, cgroup root and ports of its own, on the lab's only runtime.
fn node(lab: &Lab, name: &str, ports: u16) -> Result<NodeBuilder> {
    let root = format!("{}/{name}", lab.cgroup());
    cgroups::create(&root)?;
    Ok(lab
        .node(name)
        .config("cgroupRoot", json!(root))
        .config("healthzPort", json!(10248 + ports))
        .config("port", json!(10250 + ports)))
}
