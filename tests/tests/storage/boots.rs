//! A node comes up where nothing is as it was: after a boot, without its API server, without the process that writes to it.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use bulkhead_testkit::apiserver::Config;
use bulkhead_testkit::csi::{Driver, objects};
use bulkhead_testkit::wait::holds_for;
use bulkhead_testkit::{LONG, eventually, image, loops, mounts, processes};
use bulkhead_tests::lab;
use bulkhead_tests::storage::scene::unique_name;
use bulkhead_tests::storage::{NODE, Scene};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::DRIVER;

const NAME: &str = "boots.test";
const ENDS: [&str; 2] = ["NodeUnpublishVolume", "NodeUnstageVolume"];
/// For how long nothing happens that must not.
const WHILE: Duration = Duration::from_secs(4);
/// Leaves a file wherever it has a volume.
const SCRIPT: &str =
    "for one in $VOLUMES; do touch $one/$(hostname); done; trap 'exit 0' TERM; while sleep 0.2; do :; done";

fn with_driver(spec: &Value) -> Result<Option<(Scene, Driver)>> {
    let Some(lab) = lab()? else { return Ok(None) };
    if !Scene::is_ours() {
        return Ok(None);
    }
    let cluster = lab.stand_in(Config::default())?;
    let scene = Scene::start(lab, cluster)?;
    let driver = scene.driver(DRIVER, NAME, spec)?.start()?;
    driver.wait_registered()?;
    Ok(Some((scene, driver)))
}

/// A pod with a volume of each kind, named by it.
fn pod(scene: &Scene, name: &str) -> Result<Value> {
    let (disk, raw) = (format!("{name}-disk"), format!("{name}-raw"));
    scene.volume(&disk, NAME)?;
    scene.block_volume(&raw, NAME)?;
    let pod = scene.create(
        name,
        &json!({"volumes": [objects::of_claim(&disk), objects::of_claim(&raw), {"name": "inline", "csi": {"driver": NAME}}],
            "containers": [{"name": "main", "image": image::BUSYBOX, "command": ["sh", "-c", SCRIPT],
                "env": [{"name": "VOLUMES", "value": "/disk /inline"}],
                "volumeMounts": [{"name": disk, "mountPath": "/disk"}, {"name": "inline", "mountPath": "/inline"}],
                "volumeDevices": [{"name": raw, "devicePath": "/dev/raw"}]}]}),
    )?;
    scene.wait_ready(name)?;
    Ok(pod)
}

/// What a boot ends: containers, mounts, loop devices, the driver. Folders, `vol_data.json` and the driver's images stay.
fn boot(scene: &mut Scene, driver: &mut Driver, meanwhile: impl FnOnce(&Scene) -> Result<()>) -> Result<()> {
    scene.node.kill_everything();
    driver.kill();
    let cri = scene.node.cri()?;
    for sandbox in cri.sandboxes()? {
        cri.stop_sandbox(&sandbox.id)?;
    }
    let root = scene.node.root_dir().to_owned();
    loops::detach_below(&root);
    for point in mounts::below(&root).iter().rev().filter(|point| **point != root) {
        nix::mount::umount2(point, nix::mount::MntFlags::empty()).with_context(|| point.display().to_string())?;
    }
    loops::detach_below(driver.state());
    ensure!(mounts::below(&root).len() <= 1, "{:#?}", mounts::below(&root));
    std::fs::write(root.join("bulkhead/volnetd/boot-id"), "11111111-2222-3333-4444-555555555555\n")?;
    meanwhile(scene)?;
    driver.again()?;
    scene.node.launch()?;
    scene.node.wait_healthy()
}

fn count(driver: &Driver, method: &str, volume: &str) -> Result<usize> {
    Ok(driver.calls_of(method, volume)?.iter().filter(|call| call.is_ok()).count())
}

fn mount_of(scene: &Scene, pod: &Value, volume: &str) -> Result<PathBuf> {
    let uid = pod["metadata"]["uid"].as_str().context("no uid")?;
    Ok(scene.node.root_dir().join("pods").join(uid).join("volumes/kubernetes.io~csi").join(volume).join("mount"))
}

fn file_beside(mount: &Path) -> Result<String> {
    Ok(std::fs::read_to_string(mount.with_file_name("vol_data.json"))?)
}

#[test]
fn after_a_boot_every_driver_is_asked_anew_before_a_container_starts() -> Result<()> {
    let Some((mut scene, mut driver)) = with_driver(&Value::Null)? else { return Ok(()) };
    let (stays, goes) = (pod(&scene, "stays")?, pod(&scene, "goes")?);
    let (target, of_gone) = (mount_of(&scene, &stays, "stays-disk")?, mount_of(&scene, &goes, "goes-disk")?);
    let data = file_beside(&target)?;
    boot(&mut scene, &mut driver, |scene| {
        ensure!(target.is_dir() && file_beside(&target)? == data && file_beside(&of_gone).is_ok());
        scene.cluster.delete("pods", "default", "goes", Some(0))?;
        scene.cluster.wait_gone("pods", "default", "goes")
    })?;
    let began = Instant::now();
    for (method, volume) in [
        ("NodeStageVolume", "stays-disk"),
        ("NodePublishVolume", "stays-disk"),
        ("NodeStageVolume", "stays-raw"),
        ("NodePublishVolume", "stays-raw"),
    ] {
        eventually(&format!("{method} of {volume} again"), LONG, || {
            let count = count(&driver, method, volume)?;
            ensure!(count >= 2, "{count}");
            Ok(())
        })?;
    }
    eventually("the pod runs again, and has written into its volume", LONG, || {
        ensure!(mounts::below(&target) == [target.clone()], "{:?}", mounts::below(&target));
        ensure!(target.join("stays").exists(), "the container has not written there");
        Ok(())
    })?;
    scene.wait_ready("stays")?;
    eprintln!("the pod was ready {:.1?} after the node", began.elapsed());
    ensure!(file_beside(&target)? == data, "vol_data.json has changed");
    // Nothing was written to the disk below the mount point.
    let below = std::fs::metadata(target.with_file_name("vol_data.json"))?.dev();
    ensure!(std::fs::metadata(&target)?.dev() != below, "the volume is not mounted");
    eventually("what was the deleted pod's is taken back", LONG, || {
        ensure!(!of_gone.exists(), "{} is there", of_gone.display());
        for method in ENDS {
            for volume in ["goes-disk", "goes-raw"] {
                ensure!(count(&driver, method, volume)? >= 1, "{method} of {volume}");
            }
        }
        Ok(())
    })?;
    eprintln!("the deleted pod's volumes were gone {:.1?} after the node was there", began.elapsed());
    scene.delete("stays")?;
    scene.wait_no_traces()?;
    drop(driver);
    scene.finish_after_deaths()
}

#[test]
fn without_its_api_server_a_node_that_starts_leaves_every_volume_where_it_is() -> Result<()> {
    let Some((mut scene, driver)) = with_driver(&json!({"attachRequired": true}))? else { return Ok(()) };
    scene.volume("disk", NAME)?;
    scene.block_volume("raw", NAME)?;
    scene.attach(NAME, &["disk", "raw"], &json!({}))?;
    scene.pod_with("user", bulkhead_testkit::IDLE, &["disk"], &["raw"])?;
    scene.wait_ready("user")?;
    let of_user = |scene: &Scene| -> Result<Vec<_>> {
        Ok(scene.node.fingerprint()?.into_iter().filter(|one| one.pod == "user").collect())
    };
    let (before, traces) = (of_user(&scene)?, scene.traces());
    scene.node.kill_everything();
    scene.cluster.stop()?;
    scene.node.launch()?;
    eventually("all daemons run", LONG, || {
        let pids = scene.node.pids();
        ensure!(bulkhead_testkit::node::DAEMONS.iter().all(|daemon| pids.contains_key(*daemon)), "{pids:?}");
        Ok(())
    })?;
    let undisturbed = |scene: &Scene| {
        ensure!(scene.traces() == traces, "{traces:#?}\nbecame\n{:#?}", scene.traces());
        ensure!(of_user(scene)? == before);
        let calls = driver.calls()?;
        let ends: Vec<_> = calls.iter().filter(|call| ENDS.contains(&call.method.as_str())).collect();
        ensure!(ends.is_empty(), "{ends:#?}");
        Ok(())
    };
    holds_for("nobody touches the volumes", WHILE, || undisturbed(&scene))?;
    scene.cluster.resume()?;
    scene.node.wait_healthy()?;
    // A pod of which the node hears only now: it has heard of the other one by then.
    scene.create(
        "news",
        &json!({"containers": [{"name": "main", "image": image::BUSYBOX, "command": ["sleep", "1000"]}]}),
    )?;
    scene.wait_ready("news")?;
    scene.wait_ready("user")?;
    undisturbed(&scene)?;
    let versions = scene.cluster.history("nodes", "", NODE)?;
    let counts: Vec<usize> =
        versions.iter().map(|one| one["status"]["volumesInUse"].as_array().map_or(0, Vec::len)).collect();
    ensure!(counts.is_sorted() && counts.last() == Some(&2), "{counts:?}");
    for pod in ["user", "news"] {
        scene.delete(pod)?;
    }
    scene.wait_no_traces()?;
    drop(driver);
    scene.finish_after_deaths()
}

#[test]
fn while_nobody_writes_to_the_api_server_no_attached_volume_is_staged() -> Result<()> {
    let Some((scene, driver)) = with_driver(&json!({"attachRequired": true}))? else { return Ok(()) };
    let statusd = *scene.node.pids().get("kubelet-statusd").context("no kubelet-statusd")?;
    processes::signal(statusd, Signal::SIGSTOP);
    scene.volume("disk", NAME)?;
    scene.pod("waits", &["disk"])?;
    // Attached before anybody has told that it is in use: a controller that errs.
    scene.attach(NAME, &["disk"], &json!({}))?;
    holds_for("the volume is not staged", WHILE, || {
        ensure!(driver.calls_of("NodeStageVolume", "disk")?.is_empty());
        ensure!(scene.volumes("volumesInUse")?.is_empty(), "somebody has told");
        Ok(())
    })?;
    processes::signal(statusd, Signal::SIGCONT);
    driver.wait_call("NodeStageVolume", "disk", |call| call.is_ok())?;
    ensure!(scene.volumes("volumesInUse")? == [unique_name(NAME, "disk")]);
    scene.wait_ready("waits")?;
    scene.delete("waits")?;
    scene.wait_no_traces()?;
    drop(driver);
    scene.finish_after_deaths()
}
