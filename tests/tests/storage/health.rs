//! With gate CSIVolumeHealth: what a driver says of a volume's condition is in an event, in the statistics and in the metrics.

use anyhow::{Context as _, Result, ensure};
use bulkhead_testkit::wait::holds_for;
use bulkhead_testkit::{LONG, eventually};
use bulkhead_tests::lab;
use bulkhead_tests::storage::{NODE, Scene};
use serde_json::{Value, json};

use crate::DRIVER;

const NAME: &str = "healthy.test";
const CAPABILITIES: [&str; 3] = ["STAGE_UNSTAGE_VOLUME", "GET_VOLUME_STATS", "VOLUME_CONDITION"];

fn scene(gate: bool) -> Result<Option<Scene>> {
    let Some(lab) = lab()? else { return Ok(None) };
    let cluster = lab.cluster()?;
    let gates = json!({"CSIVolumeHealth": gate});
    let configure = |node: bulkhead_testkit::NodeBuilder| {
        node.config("featureGates", gates).config("volumeStatsAggPeriod", json!("2s"))
    };
    Scene::start_with(lab, cluster, configure).map(Some)
}

fn get(scene: &Scene, path: &str) -> Result<String> {
    scene.cluster.kubectl(&["get", "--raw", &format!("/api/v1/nodes/{NODE}/proxy/{path}")])
}

/// The statistics of a volume of the pod of the same name.
fn measured(scene: &Scene, name: &str) -> Result<Value> {
    let summary: Value = serde_json::from_str(&get(scene, "stats/summary")?)?;
    let of = |all: &Value, key: &str| {
        all.as_array().and_then(|all| all.iter().find(|one| one.pointer(key) == Some(&json!(name)))).cloned()
    };
    let volume = of(&summary["pods"], "/podRef/name").and_then(|pod| of(&pod["volume"], "/name"));
    volume.with_context(|| format!("{name} is not measured"))
}

#[test]
fn a_volume_that_its_driver_calls_abnormal_is_shown_as_that() -> Result<()> {
    let Some(scene) = scene(true)? else { return Ok(()) };
    if scene.cluster.is_stand_in() {
        return scene.finish();
    }
    let driver = scene.driver(DRIVER, NAME, &Value::Null)?.capabilities(&CAPABILITIES).start()?;
    driver.wait_registered()?;
    driver.abnormal(&[("ill", "the disk has bad blocks")])?;
    for name in ["ill", "well"] {
        scene.volume(name, NAME)?;
        scene.pod(name, &[name])?;
    }
    for name in ["ill", "well"] {
        scene.wait_ready(name)?;
    }
    let shows = |name: &str, abnormal: bool| {
        eventually(&format!("{name} is abnormal: {abnormal}"), LONG, || {
            let volume = measured(&scene, name)?;
            ensure!(volume["volumeHealthStats"] == json!({"abnormal": abnormal}), "{volume}");
            let number = u8::from(abnormal);
            let series = format!(
                "kubelet_volume_stats_health_status_abnormal{{namespace=\"default\",persistentvolumeclaim=\"{name}\"}} {number}"
            );
            ensure!(get(&scene, "metrics")?.contains(&series), "no {series}");
            Ok(())
        })
    };
    shows("ill", true)?;
    shows("well", false)?;
    scene.wait_event("ill", "VolumeConditionAbnormal Volume ill: the disk has bad blocks")?;
    let events = scene.events("well")?;
    ensure!(!events.iter().any(|event| event.starts_with("VolumeConditionAbnormal")), "{events:#?}");
    driver.abnormal(&[])?;
    shows("ill", false)?;
    for name in ["ill", "well"] {
        scene.delete(name)?;
    }
    scene.wait_no_traces()?;
    drop(driver);
    scene.finish()
}

/// Whoever watches volumes by events reads no statistics.
#[test]
fn an_abnormal_volume_is_an_event_where_nobody_reads_statistics() -> Result<()> {
    let Some(scene) = scene(true)? else { return Ok(()) };
    if scene.cluster.is_stand_in() {
        return scene.finish();
    }
    let driver = scene.driver(DRIVER, NAME, &Value::Null)?.capabilities(&CAPABILITIES).start()?;
    driver.wait_registered()?;
    driver.abnormal(&[("ill", "the disk has bad blocks")])?;
    scene.volume("ill", NAME)?;
    scene.pod("ill", &["ill"])?;
    scene.wait_ready("ill")?;
    scene.wait_event("ill", "VolumeConditionAbnormal Volume ill: the disk has bad blocks")?;
    scene.delete("ill")?;
    scene.wait_no_traces()?;
    drop(driver);
    scene.finish()
}

#[test]
fn without_the_gate_nothing_is_said() -> Result<()> {
    let Some(scene) = scene(false)? else { return Ok(()) };
    if scene.cluster.is_stand_in() {
        return scene.finish();
    }
    let driver = scene.driver(DRIVER, NAME, &Value::Null)?.capabilities(&CAPABILITIES).start()?;
    driver.wait_registered()?;
    driver.abnormal(&[("ill", "the disk has bad blocks")])?;
    scene.volume("ill", NAME)?;
    scene.pod("ill", &["ill"])?;
    scene.wait_ready("ill")?;
    eventually("it is measured", LONG, || measured(&scene, "ill").map(drop))?;
    holds_for("nothing is said of its condition", std::time::Duration::from_secs(5), || {
        let volume = measured(&scene, "ill")?;
        ensure!(volume["volumeHealthStats"].is_null(), "{volume}");
        let events = scene.events("ill")?;
        ensure!(!events.iter().any(|event| event.starts_with("VolumeConditionAbnormal")), "{events:#?}");
        Ok(())
    })?;
    scene.delete("ill")?;
    scene.wait_no_traces()?;
    drop(driver);
    scene.finish()
}
