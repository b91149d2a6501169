//! The drop-in command as a supervisor: what its end, its sudden death and its refusal mean for daemons and pods.

use std::os::unix::process::ExitStatusExt;

use anyhow::{Result, ensure};
use bulkhead_testkit::node::DAEMONS;
use bulkhead_testkit::{Pod, SHORT, eventually};
use bulkhead_tests::lab;
use serde_json::json;

#[test]
fn a_killed_launcher_and_a_new_start_end_with_exactly_four_daemons_and_untouched_pods() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let mut node = lab.node("alpha").start()?;
    node.write(&Pod::idle("one"))?;
    node.write(&Pod::idle("two"))?;
    node.wait_running("one", 1)?;
    node.wait_running("two", 1)?;
    let pods = node.fingerprint()?;

    // Once with time for the daemons to notice, once with none.
    for pause in [true, false] {
        node.kill_launcher();
        if pause {
            node.wait_no_processes()?;
            ensure!(node.fingerprint()? == pods, "the pods run on without any agent");
        }
        node.launch()?;
        node.wait_healthy()?;
        eventually("exactly one of each runs", SHORT, || {
            let mut names: Vec<String> = node.all_pids().into_iter().map(|(name, _)| name).collect();
            names.sort();
            let mut expected: Vec<&str> = DAEMONS.to_vec();
            expected.push("kubelet");
            expected.sort_unstable();
            ensure!(names == expected, "{names:?}");
            Ok(())
        })?;
        ensure!(node.fingerprint()? == pods, "no pod noticed");
    }
    node.finish()
}

#[test]
fn sigterm_ends_the_agent_and_leaves_the_containers_running() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let mut node = lab.node("alpha").start()?;
    node.write(&Pod::idle("one"))?;
    node.wait_running("one", 1)?;
    let pods = node.fingerprint()?;
    let status = node.stop()?;
    ensure!(status.success(), "{status}");
    ensure!(node.fingerprint()? == pods);
    node.launch()?;
    node.wait_healthy()?;
    ensure!(node.fingerprint()? == pods);
    node.finish()
}

#[test]
fn sigterm_in_the_middle_of_starts_leaves_nothing_half_made() -> Result<()> {
    const PODS: usize = 20;
    let Some(lab) = lab()? else { return Ok(()) };
    let mut node = lab.node("alpha").start()?;
    for index in 0..PODS {
        node.write(&Pod::idle(&format!("pod-{index}")))?;
    }
    for stops in 1..=2 {
        let before = node.cri()?.containers()?.len();
        eventually("another container is being made", SHORT, || {
            let now = node.cri()?.containers()?.len();
            ensure!(now > before, "{now} containers");
            Ok(())
        })?;
        let status = node.stop()?;
        ensure!(status.success(), "{status}");
        let containers = node.cri()?.containers()?;
        ensure!(containers.iter().all(|one| one.running), "after stop {stops}: {containers:#?}");
        ensure!(containers.len() < PODS, "all pods had started before stop {stops}: it met none of the starts");
        node.launch()?;
    }
    for index in 0..PODS {
        let running = node.wait_running(&format!("pod-{index}"), 1)?;
        ensure!(running.main().attempt == 0, "{:?}", running.main());
    }
    let log = std::fs::read_to_string(node.log())?;
    ensure!(!log.contains("failed to link container log"), "kubelet-volnetd went before kubelet-syncd had finished");
    let (sandboxes, containers) = (node.cri()?.sandboxes()?, node.cri()?.containers()?);
    ensure!(sandboxes.len() == PODS && containers.len() == PODS, "{sandboxes:#?} {containers:#?}");
    node.finish()
}

#[test]
fn each_daemon_comes_back_by_itself() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let node = lab.node("alpha").start()?;
    node.write(&Pod::idle("one"))?;
    node.wait_running("one", 1)?;
    let pods = node.fingerprint()?;
    for daemon in DAEMONS {
        let (before, epoch) = (node.pids()[daemon], node.agent()?.hello(daemon)?.epoch);
        node.kill_daemon(daemon)?;
        // Nobody may be listening at this moment, and yet nobody is refused: the launcher keeps the port.
        node.is_healthy()
            .or_else(|error| if format!("{error:#}").contains("refused") { Err(error) } else { Ok(()) })?;
        eventually(&format!("{daemon} is back"), SHORT, || {
            let now = node.pids().get(daemon).copied();
            ensure!(now.is_some_and(|pid| pid != before), "{now:?}");
            let hello = node.agent()?.hello(daemon)?;
            ensure!(hello.ready && hello.epoch != epoch, "{hello:?}");
            node.is_healthy()
        })?;
        ensure!(node.fingerprint()? == pods, "no pod noticed the end of {daemon}");
    }
    node.write(&Pod::idle("two"))?;
    node.wait_running("two", 1)?;
    node.finish()
}

#[test]
fn wrong_configuration_is_refused_with_its_path_and_nothing_is_started() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    for (field, value, says) in [
        ("maxPods", json!(-1), "maxPods"),
        ("topologyManagerPolicy", json!("sometimes"), "topologyManagerPolicy"),
        ("syncFrequency", json!("soon"), "syncFrequency"),
        ("imageGCHighThresholdPercent", json!(101), "imageGCHighThresholdPercent"),
        ("kind", json!("KubeProxyConfiguration"), "KubeProxyConfiguration"),
    ] {
        let builder = lab.node("alpha").config(field, value);
        let (status, output) = builder.run_to_end()?;
        ensure!(status.code() == Some(1), "{field}: exit code {:?}, signal {:?}", status.code(), status.signal());
        ensure!(output.contains(says), "{field} is not named in: {output}");
    }
    let (status, output) = lab.node("alpha").argument("--no-such-flag").run_to_end()?;
    ensure!(status.code() == Some(1) && output.contains("unknown flag: --no-such-flag"), "{output}");
    let (status, output) = lab.node("alpha").argument("word").run_to_end()?;
    ensure!(status.code() == Some(1) && output.contains("unknown command word"), "{output}");
    ensure!(lab.cri()?.sandboxes()?.is_empty());
    Ok(())
}

#[test]
fn an_unknown_field_is_a_warning_as_upstream_has_it() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let node = lab.node("alpha").config("noSuchField", json!(1)).start()?;
    let log = std::fs::read_to_string(node.log())?;
    ensure!(log.contains("noSuchField"), "{log}");
    node.finish()
}

#[test]
fn a_runtime_that_restarts_is_found_again() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let node = lab.node("alpha").start()?;
    node.write(&Pod::idle("one"))?;
    node.wait_running("one", 1)?;
    let pods = node.fingerprint()?;
    lab.containerd().kill();
    lab.containerd().spawn()?;
    node.write(&Pod::idle("two"))?;
    node.wait_running("two", 1)?;
    let after = node.fingerprint()?;
    ensure!(pods.iter().all(|pod| after.contains(pod)), "{pods:?} became {after:?}");
    node.finish()
}
