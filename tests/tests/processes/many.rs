//! Sixty pods at once: all run, each with an address of its own, and all go, the first long before the last.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_testkit::{Pod, eventually};
use bulkhead_tests::golden::proxy::{Call, Proxy};
use bulkhead_tests::lab_alone;
use serde_json::json;

const PODS: usize = 60;

#[test]
fn sixty_static_pods_at_once_all_run() -> Result<()> {
    let Some(lab) = lab_alone()? else { return Ok(()) };
    let proxy = Proxy::start(&lab.folder().join("proxy.sock"), &lab.containerd().socket())?;
    let node = lab.node("alpha").config("containerRuntimeEndpoint", json!(proxy.endpoint())).start()?;
    for index in 0..PODS {
        node.write(&Pod::idle(&format!("pod-{index}")))?;
    }
    let agent = node.agent()?;
    eventually("all pods run", Duration::from_secs(240), || {
        let pods = agent.pods()?;
        let running = pods.iter().filter(|pod| pod.phase == "Running").count();
        ensure!(running == PODS, "{running} of {} run", pods.len());
        Ok(())
    })?;
    let containers = node.cri()?.containers()?;
    ensure!(containers.len() == PODS && containers.iter().all(|one| one.running && one.attempt == 0), "{containers:?}");
    let addresses: BTreeSet<String> = agent.pods()?.into_iter().flat_map(|pod| pod.ips).collect();
    ensure!(addresses.len() == PODS, "{addresses:?}");
    ensure!(lab.containerd().addresses().len() == PODS);
    node.finish()?;
    let calls = proxy.calls();
    let first = calls.iter().position(|call| call.method == "RemovePodSandbox").context("no sandbox was removed")?;
    let told = |calls: &[_]| calls.iter().filter(|call: &&Call| call.method == "StopContainer").count();
    let (before, all) = (told(&calls[..first]), told(&calls));
    // Decision 89: a few at a time are taken down.
    ensure!(all >= PODS && before <= PODS / 2, "{before} of {all} were told to stop before the first was gone");
    Ok(())
}
