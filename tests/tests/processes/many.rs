//! Sixty pods at once: all run, each with an address of its own, and all go.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Result, ensure};
use bulkhead_testkit::{Pod, eventually};
use bulkhead_tests::lab_alone;

const PODS: usize = 60;

#[test]
fn sixty_static_pods_at_once_all_run() -> Result<()> {
    let Some(lab) = lab_alone()? else { return Ok(()) };
    let node = lab.node("alpha").start()?;
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
    node.finish()
}
