//! Plugins come, go, come again, and misbehave while they do.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use bulkhead_testkit::csi::{DriverBuilder, Fault};
use bulkhead_testkit::wait::holds_for;
use bulkhead_testkit::{LONG, eventually};
use bulkhead_tests::lab;
use bulkhead_tests::storage::{NODE, Scene};
use serde_json::{Value, json};

use crate::DRIVER;

/// For how long nothing happens that must not.
const WHILE: Duration = Duration::from_secs(3);

fn scene() -> Result<Option<Scene>> {
    let Some(lab) = lab()? else { return Ok(None) };
    let cluster = lab.cluster()?;
    Scene::start(lab, cluster).map(Some)
}

fn drivers(scene: &Scene) -> Result<Vec<Value>> {
    let node = scene.cluster.get("csinodes", "", NODE)?;
    Ok(node["spec"]["drivers"].as_array().cloned().unwrap_or_default())
}

fn wait_driver(scene: &Scene, name: &str, there: bool) -> Result<()> {
    eventually(&format!("{name} in the CSINode: {there}"), LONG, || {
        let all = drivers(scene)?;
        ensure!(all.iter().any(|one| one["name"] == name) == there, "{all:?}");
        Ok(())
    })
}

#[test]
fn drivers_of_both_versions_come_and_go() -> Result<()> {
    let Some(scene) = scene()? else { return Ok(()) };
    let full = DriverBuilder::new(DRIVER, &scene.node, "full.test")
        .argument("--topology", "topology.test/zone=b")
        .argument("--topology", "topology.test/room=7")
        .argument("--max-volumes", "17");
    let mut full = full.start()?;
    let old = DriverBuilder::new(DRIVER, &scene.node, "old.test").argument("--registration", "v1beta1").start()?;
    full.wait_registered()?;
    if Scene::is_ours() {
        old.wait_registered()?;
        ensure!(drivers(&scene)?.len() == 2, "{:?}", drivers(&scene)?);
    }
    let entry = drivers(&scene)?.into_iter().find(|one| one["name"] == "full.test");
    let expected = json!({"name": "full.test", "nodeID": NODE, "allocatable": {"count": 17},
        "topologyKeys": ["topology.test/room", "topology.test/zone"]});
    ensure!(entry == Some(expected), "{entry:?}");
    let node = scene.cluster.get("nodes", "", NODE)?;
    let labels = &node["metadata"]["labels"];
    ensure!(labels["topology.test/zone"] == "b" && labels["topology.test/room"] == "7", "{labels}");
    // Only then was it told.
    let annotation = node["metadata"]["annotations"]["csi.volume.kubernetes.io/nodeid"].as_str().unwrap_or_default();
    let ids: Value = serde_json::from_str(annotation)?;
    ensure!(ids["full.test"] == NODE, "{ids}");

    full.stop();
    wait_driver(&scene, "full.test", false)?;
    let node = scene.cluster.get("nodes", "", NODE)?;
    ensure!(!node["metadata"]["annotations"].to_string().contains("full.test"), "{}", node["metadata"]);
    ensure!(node["metadata"]["labels"]["topology.test/zone"] == "b", "labels stay: {}", node["metadata"]);
    let before = full.calls()?.len();
    full.again()?;
    wait_driver(&scene, "full.test", true)?;
    eventually("it is told again", LONG, || {
        let calls = full.calls()?;
        let told = |one: &&bulkhead_testkit::csi::Call| one.method == "NotifyRegistrationStatus";
        let new = calls.iter().skip(before).filter(told).any(|one| one.request["plugin_registered"] == true);
        ensure!(new, "{:#?}", &calls[before..]);
        Ok(())
    })?;
    drop((full, old));
    scene.finish()
}

#[test]
fn one_plugin_that_misbehaves_holds_back_no_other() -> Result<()> {
    let Some(scene) = scene()? else { return Ok(()) };
    let start = |name: &str, faults: &[Fault]| {
        let state = scene.lab.folder().join("csi").join(name);
        std::fs::create_dir_all(&state)?;
        let driver = DriverBuilder::new(DRIVER, &scene.node, name).argument("--registration", "none").start()?;
        driver.faults(faults)?;
        Ok::<_, anyhow::Error>(driver)
    };
    // Faults are there before anybody is told of the driver.
    let hung = {
        drop(start("hung.test", &[Fault::hangs("GetInfo")])?);
        DriverBuilder::new(DRIVER, &scene.node, "hung.test").start()?
    };
    let mute = {
        drop(start("mute.test", &[Fault::hangs("NodeGetInfo")])?);
        DriverBuilder::new(DRIVER, &scene.node, "mute.test").start()?
    };
    let failing = {
        drop(start("failing.test", &[Fault::fails("NodeGetInfo", "INTERNAL", "not yet")])?);
        DriverBuilder::new(DRIVER, &scene.node, "failing.test").start()?
    };
    // A socket at which nobody answers, and one that leads elsewhere.
    let registry = scene.node.root_dir().join("plugins_registry");
    let deaf = std::os::unix::net::UnixListener::bind(registry.join("deaf.test-reg.sock"))?;
    std::os::unix::fs::symlink(Path::new("/run"), registry.join("link-reg.sock"))?;

    let good = DriverBuilder::new(DRIVER, &scene.node, "good.test").start()?;
    good.wait_registered()?;
    wait_driver(&scene, "good.test", true)?;
    ensure!(drivers(&scene)?.len() == 1, "{:?}", drivers(&scene)?);
    // What failed is told why, and tried again.
    eventually("the plugin is told why it was not taken", LONG, || {
        let calls = failing.calls()?;
        let told = calls.iter().find(|one| one.method == "NotifyRegistrationStatus");
        ensure!(
            told.is_some_and(|one| one.request["error"].as_str().is_some_and(|text| text.contains("not yet"))),
            "{calls:#?}"
        );
        Ok(())
    })?;
    for driver in [&hung, &mute, &failing] {
        driver.heal()?;
        driver.wait_registered()?;
    }
    ensure!(drivers(&scene)?.len() == 4, "{:?}", drivers(&scene)?);
    drop((deaf, hung, mute, failing, good));
    let _ = std::fs::remove_file(registry.join("deaf.test-reg.sock"));
    let _ = std::fs::remove_file(registry.join("link-reg.sock"));
    scene.finish()
}

#[test]
fn an_endpoint_elsewhere_is_not_connected_to() -> Result<()> {
    let Some(scene) = scene()? else { return Ok(()) };
    if !Scene::is_ours() {
        // Upstream's kubelet connects to whatever it is told.
        return Ok(());
    }
    let outside = scene.lab.folder().join("outside.sock");
    let listener = std::os::unix::net::UnixListener::bind(&outside)?;
    listener.set_nonblocking(true)?;
    let liar = DriverBuilder::new(DRIVER, &scene.node, "liar.test");
    let liar = liar.argument("--endpoint", &outside.display().to_string()).start()?;
    eventually("it is told that it was not taken", LONG, || {
        let calls = liar.calls()?;
        let refused = |one: &bulkhead_testkit::csi::Call| {
            one.method == "NotifyRegistrationStatus" && one.request["plugin_registered"].is_null()
        };
        ensure!(calls.iter().any(refused), "{calls:#?}");
        Ok(())
    })?;
    holds_for("nobody connects, and nothing is written", WHILE, || {
        ensure!(listener.accept().is_err(), "somebody has connected");
        ensure!(drivers(&scene)?.is_empty(), "{:?}", drivers(&scene)?);
        Ok(())
    })?;
    drop(liar);
    scene.finish()
}
