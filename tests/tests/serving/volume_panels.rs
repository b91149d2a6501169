//! Claims' volumes as the Kubernetes monitoring mixin asks for them: its dashboard of persistent volumes, and its alerts of those that
//! fill up.

use anyhow::{Context as _, Result, ensure};
use bulkhead_testkit::csi::objects;
use bulkhead_testkit::{IDLE, LONG, eventually};
use bulkhead_tests::lab;
use bulkhead_tests::storage::Scene;
use serde_json::{Value, json};

use super::prometheus::{Prometheus, scraper};

const DRIVER: &str = env!("CARGO_BIN_EXE_csi_driver");
const NAME: &str = "panels.test";
/// Which series: those of one claim.
const OF_ROOMY: &str =
    r#"{job="kubelet", metrics_path="/metrics", namespace="default", persistentvolumeclaim="roomy"}"#;

/// Panels of the dashboard for one claim, and what each has to show.
fn panels() -> Vec<(&'static str, String, std::ops::RangeInclusive<f64>)> {
    let of = |name: &str| format!("kubelet_volume_stats_{name}{OF_ROOMY}");
    let one = |name: &str| format!("sum without (instance, node) (topk(1, {}))", of(name));
    let (capacity, available) = (of("capacity_bytes"), of("available_bytes"));
    let (inodes, used) = (of("inodes"), of("inodes_used"));
    let mib = f64::from(1 << 20);
    vec![
        ("used space", format!("{} - {}", one("capacity_bytes"), one("available_bytes")), mib..=1.5 * mib),
        ("free space", one("available_bytes"), 14.0 * mib..=15.0 * mib),
        (
            "usage of space in percent",
            format!("max without (instance, node) (topk(1, ({capacity} - {available}) / {capacity} * 100))"),
            6.0..=10.0,
        ),
        ("used inodes", one("inodes_used"), 2.0..=2.0),
        ("free inodes", format!("{} - {}", one("inodes"), one("inodes_used")), 98.0..=98.0),
        (
            "usage of inodes in percent",
            format!("max without (instance, node) (topk(1, {used} / {inodes} * 100))"),
            2.0..=2.0,
        ),
        ("where it leads", format!("predict_linear({available}[6h], 4 * 24 * 3600)"), 1.0..=f64::MAX),
    ]
}

/// Claims of which an alert tells.
fn told(prometheus: &Prometheus, alert: &str) -> Result<Vec<Value>> {
    let all = prometheus.query(&format!(r#"ALERTS{{alertname="{alert}", alertstate="firing"}}"#))?;
    Ok(all.iter().map(|one| json!([one["metric"]["namespace"], one["metric"]["persistentvolumeclaim"]])).collect())
}

#[test]
fn the_mixins_panels_and_alerts_of_volumes_have_answers() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    bulkhead_testkit::machine::ensure_monitoring(&|line| eprintln!("{line}"))?;
    let cluster = lab.cluster()?;
    let scene = Scene::start_with(lab, cluster, |node| node.config("volumeStatsAggPeriod", json!("1s")))?;
    let token = scraper(&scene.cluster)?;
    let driver = scene.driver(DRIVER, NAME, &Value::Null)?.start()?;
    driver.wait_registered()?;
    for (name, inodes, files) in [("roomy", "100", "0"), ("full", "100", "0"), ("crowded", "100", "98")] {
        let attributes = json!({"csi": {"volumeAttributes": {"inodes": inodes, "files": files}}});
        objects::create_bound(&scene.cluster, name, NAME, &attributes)?;
    }
    scene.pod_with("writes", &format!("dd if=/dev/zero of=/roomy/f bs=1M count=1; {IDLE}"), &["roomy"], &[])?;
    scene.pod_with("fills", &format!("dd if=/dev/zero of=/full/f bs=1M; {IDLE}"), &["full"], &[])?;
    scene.pod_with("crowds", IDLE, &["crowded"], &[])?;
    for pod in ["writes", "fills", "crowds"] {
        scene.wait_ready(pod)?;
    }
    let prometheus = Prometheus::start(&scene.lab, &token)?;
    eventually("every endpoint is scraped", LONG, || prometheus.targets_are_up())?;
    eventually("every panel shows what is there", LONG, || {
        for (panel, expression, expected) in panels() {
            let found = prometheus.query(&expression)?;
            ensure!(found.len() == 1, "{panel}: {found:?}");
            let value = found[0]["value"][1].as_str().and_then(|text| text.parse::<f64>().ok()).context("no number")?;
            ensure!(expected.contains(&value), "{panel}: {value}, and not {expected:?}");
        }
        Ok(())
    })?;
    eventually("each alert tells of the one claim that it is about", LONG, || {
        let space = told(&prometheus, "KubePersistentVolumeFillingUp")?;
        ensure!(space == [json!(["default", "full"])], "{space:?}");
        let inodes = told(&prometheus, "KubePersistentVolumeInodesFillingUp")?;
        ensure!(inodes == [json!(["default", "crowded"])], "{inodes:?}");
        Ok(())
    })?;
    // A volume that is gone is told of no more.
    scene.delete("fills")?;
    eventually("the alert ends with the pod", LONG, || {
        let space = told(&prometheus, "KubePersistentVolumeFillingUp")?;
        ensure!(space.is_empty(), "{space:?}");
        Ok(())
    })?;
    prometheus.took_everything()?;
    for pod in ["writes", "crowds"] {
        scene.delete(pod)?;
    }
    scene.wait_no_traces()?;
    drop((prometheus, driver));
    scene.finish()
}
