//! A node with a hundred volumes is drained.

use std::time::Instant;

use anyhow::{Result, ensure};
use bulkhead_testkit::{LONG, eventually};
use bulkhead_tests::lab_alone;
use bulkhead_tests::storage::Scene;
use serde_json::Value;

use crate::DRIVER;

const NAME: &str = "many.test";
const PODS: usize = 20;
/// Of each pod.
const VOLUMES: usize = 5;

#[test]
fn a_drained_node_gets_rid_of_a_hundred_volumes() -> Result<()> {
    let Some(lab) = lab_alone()? else { return Ok(()) };
    let cluster = lab.cluster()?;
    let scene = Scene::start(lab, cluster)?;
    let driver = scene.driver(DRIVER, NAME, &Value::Null)?.start()?;
    driver.wait_registered()?;
    let pods: Vec<String> = (0..PODS).map(|pod| format!("pod-{pod}")).collect();
    let volumes_of = |pod: &str| (0..VOLUMES).map(|volume| format!("{pod}-{volume}")).collect::<Vec<_>>();
    let began = Instant::now();
    for pod in &pods {
        let volumes = volumes_of(pod);
        for volume in &volumes {
            scene.volume(volume, NAME)?;
        }
        scene.pod(pod, &volumes.iter().map(String::as_str).collect::<Vec<_>>())?;
    }
    for pod in &pods {
        // Twenty at once on two cores take longer than one.
        scene.wait_ready(pod).or_else(|_| scene.wait_ready(pod))?;
    }
    let up = began.elapsed();
    let began = Instant::now();
    for pod in &pods {
        scene.cluster.delete("pods", "default", pod, Some(1))?;
    }
    for pod in &pods {
        scene.cluster.wait_gone("pods", "default", pod)?;
    }
    scene.wait_no_traces()?;
    eprintln!("{PODS} pods with {VOLUMES} volumes each: up after {up:.1?}, gone after {:.1?}", began.elapsed());
    eventually("each volume was taken away once", LONG, || {
        let calls = driver.calls()?;
        for method in ["NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"] {
            let count = calls.iter().filter(|call| call.method == method).count();
            ensure!(count == PODS * VOLUMES, "{method}: {count}");
        }
        Ok(())
    })?;
    drop(driver);
    scene.finish()
}
