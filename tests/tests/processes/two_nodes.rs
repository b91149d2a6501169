//! Two nodes on one machine, with nothing but upstream's flags to tell them apart.

use anyhow::{Result, ensure};
use bulkhead_testkit::{Lab, Pod};
use bulkhead_tests::lab;
use serde_json::json;

#[test]
fn two_nodes_leave_each_other_s_pods_alone() -> Result<()> {
    let Some(first_lab) = lab()? else { return Ok(()) };
    let second_lab = Lab::start_beside()?;
    let mut alpha = first_lab.node("alpha").start()?;
    let beta = second_lab.node("beta").start()?;
    ensure!(alpha.run_dir() != beta.run_dir());
    for node in [&alpha, &beta] {
        node.write(&Pod::idle("same").empty_dir("memory", "Memory", Some("1Mi"), "/memory"))?;
    }
    let on_alpha = alpha.wait_running("same", 1)?;
    let on_beta = beta.wait_running("same", 1)?;
    ensure!(on_alpha.sandbox.uid != on_beta.sandbox.uid, "the node's name is part of a static pod's uid");
    ensure!(alpha.cri()?.sandboxes()?.len() == 1 && beta.cri()?.sandboxes()?.len() == 1);

    let uids = |node: &bulkhead_testkit::Node| -> Result<Vec<u32>> {
        let agent = node.agent()?;
        ["kubelet-syncd", "kubelet-evictiond", "kubelet-statusd"]
            .map(|one| Ok(agent.privileges(one)?.uid))
            .into_iter()
            .collect()
    };
    let (users_of_alpha, users_of_beta) = (uids(&alpha)?, uids(&beta)?);
    ensure!(users_of_alpha.iter().all(|uid| !users_of_beta.contains(uid)), "{users_of_alpha:?} {users_of_beta:?}");

    let before = beta.fingerprint()?;
    alpha.remove("same")?;
    alpha.wait_gone("same")?;
    ensure!(beta.fingerprint()? == before);
    alpha.kill_everything();
    ensure!(beta.fingerprint()? == before);
    beta.is_healthy()?;
    alpha.finish()?;
    beta.finish()
}

#[test]
fn a_second_node_on_the_same_cgroup_root_refuses_and_names_the_first() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let alpha = lab.node("alpha").start()?;
    alpha.write(&Pod::idle("one"))?;
    alpha.wait_running("one", 1)?;
    let before = alpha.fingerprint()?;

    let second = lab.node("second").config("healthzPort", json!(11248)).config("port", json!(11250));
    let (status, output) = second.run_to_end()?;
    ensure!(!status.success(), "{status}");
    ensure!(output.contains(&lab.cgroup()), "the cgroup root is named: {output}");
    ensure!(output.contains(&alpha.root_dir().display().to_string()), "the first node is named: {output}");
    ensure!(alpha.fingerprint()? == before);
    alpha.is_healthy()?;
    alpha.finish()
}

#[test]
fn a_node_may_live_below_tmp() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    // A world-writable folder with the sticky bit: nobody but root can exchange what root has put there.
    let folder = std::path::PathBuf::from(format!("/tmp/bulkhead-{}", std::process::id()));
    let node = lab.node("alpha").in_folder(&folder).start()?;
    node.write(&Pod::busybox("web", "echo hello from below tmp; sleep 1000"))?;
    node.wait_for_log("web", "main", "hello from below tmp")?;
    node.finish()?;
    drop(lab);
    ensure!(!folder.exists());
    Ok(())
}
