//! Processes of the node die while volumes are mounted, or half mounted.

use anyhow::{Context as _, Result, ensure};
use bulkhead_testkit::csi::{Driver, Fault};
use bulkhead_testkit::node::DAEMONS;
use bulkhead_testkit::{LONG, eventually, mounts};
use bulkhead_tests::lab;
use bulkhead_tests::storage::{NODE, Scene};
use serde_json::{Value, json};

use crate::DRIVER;

const NAME: &str = "restarts.test";
const ENDS: [&str; 2] = ["NodeUnpublishVolume", "NodeUnstageVolume"];

/// A pod `user` with a volume of each kind, which writes to the one with a file system every now and then.
fn with_pod() -> Result<Option<(Scene, Driver)>> {
    let Some(lab) = lab()? else { return Ok(None) };
    let cluster = lab.cluster()?;
    let scene = Scene::start(lab, cluster)?;
    let driver = scene.driver(DRIVER, NAME, &json!({"attachRequired": true}))?.start()?;
    driver.wait_registered()?;
    scene.volume("disk", NAME)?;
    scene.block_volume("raw", NAME)?;
    scene.attach(NAME, &["disk", "raw"], &json!({}))?;
    let script = "trap 'exit 0' TERM; while sleep 0.2; do date >> /disk/alive || exit 1; done";
    scene.pod_with("user", script, &["disk"], &["raw"])?;
    scene.wait_ready("user")?;
    eventually("the pod has begun to write", LONG, || written(&scene))?;
    Ok(Some((scene, driver)))
}

/// How often the pod has written.
fn written(scene: &Scene) -> Result<usize> {
    let of_disk = |path: &std::path::PathBuf| path.ends_with("disk/mount");
    let point = mounts::below(scene.node.root_dir()).into_iter().find(of_disk).context("it is not mounted")?;
    Ok(std::fs::read_to_string(point.join("alive"))?.lines().count())
}

/// Waits until the pod goes on writing, and the node says again that it is ready.
fn goes_on(scene: &Scene) -> Result<()> {
    let before = written(scene)?;
    eventually("the pod goes on writing", LONG, || {
        let now = written(scene)?;
        ensure!(now > before + 2, "{before} lines, then {now}");
        Ok(())
    })
}

/// Mount points of the volumes.
fn points(scene: &Scene) -> Vec<String> {
    scene.traces().into_iter().filter(|trace| trace.starts_with("mount") || trace.starts_with("/dev/loop")).collect()
}

fn no_volume_was_taken_away(driver: &Driver) -> Result<()> {
    let calls = driver.calls()?;
    let ended: Vec<_> = calls.iter().filter(|call| ENDS.contains(&call.method.as_str())).collect();
    ensure!(ended.is_empty(), "{ended:#?}");
    Ok(())
}

/// What comes to a pod's end works, and leaves nothing.
fn ends_well(scene: Scene, driver: Driver) -> Result<()> {
    scene.delete("user")?;
    scene.wait_no_traces()?;
    for volume in ["disk", "raw"] {
        for method in ENDS {
            ensure!(driver.calls_of(method, volume)?.iter().any(|call| call.is_ok()), "{method} of {volume}");
        }
    }
    drop(driver);
    scene.finish_after_deaths()
}

#[test]
fn a_pod_with_volumes_notices_the_death_of_no_daemon() -> Result<()> {
    let Some((mut scene, driver)) = with_pod()? else { return Ok(()) };
    if !Scene::is_ours() {
        return Ok(());
    }
    let before = scene.node.fingerprint()?;
    for daemon in DAEMONS {
        scene.node.kill_daemon(daemon)?;
        scene.node.wait_healthy()?;
        goes_on(&scene).with_context(|| format!("after the death of {daemon}"))?;
        no_volume_was_taken_away(&driver).with_context(|| format!("after the death of {daemon}"))?;
        ensure!(points(&scene).len() >= 4, "after the death of {daemon}: {:#?}", scene.traces());
        let used = scene.volumes("volumesInUse")?;
        ensure!(used.len() == 2, "after the death of {daemon}: {used:?}");
        ensure!(scene.node.fingerprint()? == before, "after the death of {daemon}");
    }
    ends_well(scene, driver)
}

#[test]
fn volumes_are_found_again_when_all_died_at_once() -> Result<()> {
    let Some((mut scene, driver)) = with_pod()? else { return Ok(()) };
    let (before, mounted) = (scene.node.fingerprint()?, points(&scene));
    scene.node.kill_everything();
    goes_on(&scene).context("without a node")?;
    ensure!(points(&scene) == mounted);
    again(&mut scene)?;
    goes_on(&scene)?;
    // Ready means that the pod was looked at, volumes and all.
    scene.wait_ready("user")?;
    no_volume_was_taken_away(&driver)?;
    ensure!(points(&scene) == mounted, "{:#?}", points(&scene));
    ensure!(scene.node.fingerprint()? == before);
    // Before all is known again nothing leaves the list: the controller would detach it.
    never_shrinks(&scene)?;
    ends_well(scene, driver)
}

/// The number of volumes in use in the versions of the Node so far only rises.
fn never_shrinks(scene: &Scene) -> Result<()> {
    let versions = scene.cluster.history("nodes", "", NODE)?;
    let counts: Vec<usize> =
        versions.iter().map(|one| one["status"]["volumesInUse"].as_array().map_or(0, Vec::len)).collect();
    ensure!(counts.is_sorted(), "{counts:?}");
    Ok(())
}

fn again(scene: &mut Scene) -> Result<()> {
    scene.node.launch()?;
    if Scene::is_ours() {
        scene.node.wait_healthy()?;
    }
    Ok(())
}

#[test]
fn volumes_of_a_pod_that_was_deleted_meanwhile_are_taken_away() -> Result<()> {
    let Some((mut scene, driver)) = with_pod()? else { return Ok(()) };
    scene.node.kill_everything();
    // Without a grace period the server does not wait for the node.
    scene.cluster.delete("pods", "default", "user", Some(0))?;
    scene.cluster.wait_gone("pods", "default", "user")?;
    again(&mut scene)?;
    scene.wait_no_traces()?;
    for volume in ["disk", "raw"] {
        for method in ENDS {
            ensure!(driver.calls_of(method, volume)?.iter().any(|call| call.is_ok()), "{method} of {volume}");
        }
    }
    drop(driver);
    scene.finish_after_deaths()
}

#[test]
fn a_stage_that_hangs_over_a_restart_is_finished_by_the_next_process() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let cluster = lab.cluster()?;
    let mut scene = Scene::start(lab, cluster)?;
    let driver = scene.driver(DRIVER, NAME, &Value::Null)?.start()?;
    driver.wait_registered()?;
    scene.volume("disk", NAME)?;
    driver.faults(&[Fault::hangs("NodeStageVolume")])?;
    scene.pod("user", &["disk"])?;
    driver.wait_call("NodeStageVolume", "disk", |_| true)?;
    if Scene::is_ours() {
        scene.node.kill_daemon("kubelet-syncd")?;
        scene.node.wait_healthy()?;
    } else {
        scene.node.kill_everything();
        again(&mut scene)?;
    }
    // The next one does not know what came of the call, and asks again.
    eventually("the driver is asked again", LONG, || {
        let count = driver.calls_of("NodeStageVolume", "disk")?.len();
        ensure!(count > 1, "{count} calls");
        Ok(())
    })?;
    driver.heal()?;
    scene.wait_ready("user")?;
    let staged = scene.traces().iter().filter(|trace| trace.ends_with("globalmount")).count();
    ensure!(staged == 1, "{:#?}", scene.traces());

    // And one that nobody wants any more: it may be staged, so it is unstaged.
    scene.delete("user")?;
    scene.wait_no_traces()?;
    driver.faults(&[Fault::hangs("NodeStageVolume")])?;
    let calls = driver.calls_of("NodeStageVolume", "disk")?.len();
    let unstaged = driver.calls_of("NodeUnstageVolume", "disk")?.len();
    scene.pod("user", &["disk"])?;
    eventually("the driver is asked once more", LONG, || {
        ensure!(driver.calls_of("NodeStageVolume", "disk")?.len() > calls);
        Ok(())
    })?;
    scene.node.kill_everything();
    scene.cluster.delete("pods", "default", "user", Some(0))?;
    driver.heal()?;
    eventually("the driver has staged it after all", LONG, || {
        let all = driver.calls_of("NodeStageVolume", "disk")?;
        ensure!(all.iter().all(|call| call.answer.is_some()), "{all:#?}");
        Ok(())
    })?;
    again(&mut scene)?;
    scene.wait_no_traces()?;
    ensure!(driver.calls_of("NodeUnstageVolume", "disk")?.len() > unstaged, "{:#?}", driver.calls()?);
    drop(driver);
    scene.finish_after_deaths()
}
