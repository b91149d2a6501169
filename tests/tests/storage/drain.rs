//! A node with a hundred volumes is drained, of a driver that is quick, and of one that is slow beside one that hangs.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bulkhead_testkit::csi::Fault;
use bulkhead_testkit::{LONG, eventually};
use bulkhead_tests::lab_alone;
use bulkhead_tests::storage::Scene;
use serde_json::Value;

use crate::DRIVER;

const NAME: &str = "many.test";
const GOOD: &str = "good.test";
const HUNG: &str = "hung.test";
/// For each call of the slow driver.
const SLOW: Duration = Duration::from_secs(1);
/// Within it a pod of the driver that is well has its whole life while the others are drained.
const UNNOTICED: Duration = Duration::from_secs(20);
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

#[test]
fn a_slow_driver_and_one_that_hangs_are_drained_and_no_other_notices() -> Result<()> {
    let Some(lab) = lab_alone()? else { return Ok(()) };
    let cluster = lab.cluster()?;
    let scene = Scene::start(lab, cluster)?;
    let mut drivers = Vec::new();
    for name in [NAME, HUNG, GOOD] {
        let driver = scene.driver(DRIVER, name, &Value::Null)?.start()?;
        driver.wait_registered()?;
        drivers.push(driver);
    }
    let [slow, hung, good] = drivers.as_slice() else { anyhow::bail!("three drivers") };
    let methods = ["NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"];
    slow.faults(&methods.map(|method| Fault::answers_late(method, SLOW)))?;
    let begin = |pod: &str, driver: &str, volumes: usize| {
        let names: Vec<String> = (0..volumes).map(|volume| format!("{pod}-{volume}")).collect();
        names.iter().try_for_each(|volume| scene.volume(volume, driver))?;
        scene.pod(pod, &names.iter().map(String::as_str).collect::<Vec<_>>()).map(drop)
    };
    let pods: Vec<String> = (0..PODS).map(|pod| format!("slow-{pod}")).collect();
    let stuck = ["hung-0", "hung-1"];
    for pod in &pods {
        begin(pod, NAME, VOLUMES)?;
    }
    for pod in stuck {
        begin(pod, HUNG, VOLUMES)?;
    }
    for pod in pods.iter().map(String::as_str).chain(stuck) {
        scene.wait_ready(pod).or_else(|_| scene.wait_ready(pod))?;
    }
    hung.faults(&[Fault::hangs("NodeUnpublishVolume")])?;
    let began = Instant::now();
    for pod in pods.iter().map(String::as_str).chain(stuck) {
        scene.cluster.delete("pods", "default", pod, Some(1))?;
    }
    hung.wait_call("NodeUnpublishVolume", "hung-0-0", |_| true)?;
    // Meanwhile another driver's pods come and go, one after the other.
    for number in 0..3 {
        let (pod, began) = (format!("good-{number}"), Instant::now());
        begin(&pod, GOOD, 1)?;
        scene.wait_ready(&pod)?;
        scene.delete(&pod)?;
        good.wait_call("NodeUnstageVolume", &format!("{pod}-0"), |call| call.is_ok())?;
        let took = began.elapsed();
        eprintln!("the life of {pod} took {took:.1?}");
        ensure!(!Scene::is_ours() || took < UNNOTICED, "{pod} took {took:?}");
    }
    for pod in &pods {
        scene.cluster.wait_gone("pods", "default", pod)?;
    }
    eprintln!("{PODS} pods with {VOLUMES} volumes of a slow driver: gone after {:.1?}", began.elapsed());
    for pod in stuck {
        let shown = scene.cluster.get("pods", "default", pod)?;
        ensure!(shown["metadata"]["deletionTimestamp"].is_string(), "{shown:#}");
    }
    hung.heal()?;
    for pod in stuck {
        scene.cluster.wait_gone("pods", "default", pod)?;
    }
    scene.wait_no_traces()?;
    eventually("each volume was taken away once", LONG, || {
        let calls = slow.calls()?;
        for method in methods {
            let count = calls.iter().filter(|call| call.method == method).count();
            ensure!(count == PODS * VOLUMES, "{method}: {count}");
        }
        Ok(())
    })?;
    drop(drivers);
    scene.finish()
}
