//! The laboratory itself, without any node: containerd in its namespace runs a pod, the witness sees it, and nothing
//! is left behind. When this fails, every other failure of this folder means nothing.

use anyhow::{Result, ensure};
use bulkhead_testkit::floor::Floor;
use bulkhead_testkit::{SHORT, eventually};
use bulkhead_tests::lab;

#[test]
fn a_pod_straight_over_cri_runs_has_an_address_and_goes() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let floor = Floor::new(lab.clone())?;
    let (pod, _) = floor.start("one")?;

    let cri = lab.cri()?;
    let containers = cri.containers()?;
    ensure!(containers.len() == 1 && containers[0].running, "{containers:?}");
    let address = cri.address(&pod.sandbox)?;
    ensure!(lab.containerd().addresses().len() == 1);
    let (code, output) = cri.exec(&pod.container, &["ip", "-4", "addr", "show", "eth0"])?;
    ensure!(code == 0 && output.contains(&address.to_string()), "{output}");
    ensure!(cri.pid(&pod.container)? > 1);

    lab.containerd().restart()?;
    let after = eventually("the runtime has read its state", SHORT, || lab.cri()?.containers())?;
    ensure!(after == containers, "a restart of containerd keeps the pod: {after:?}");

    // The old connection broke with the restart.
    Floor::new(lab.clone())?.delete(&pod)?;
    ensure!(lab.containerd().addresses().is_empty(), "{:?}", lab.containerd().addresses());
    ensure!(lab.containerd().network_namespaces().is_empty());
    ensure!(lab.containerd().shims().is_empty());
    Ok(())
}

#[test]
fn many_pods_straight_over_cri() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let floor = Floor::new(lab)?;
    let started = floor.start_many("pod", 6, 3)?;
    ensure!(started.len() == 6);
    let known = floor.exit_to_known(&started[0].0)?;
    ensure!(known.as_millis() < 2000, "{known:?}");
    let pods: Vec<_> = started.into_iter().map(|(pod, _)| pod).collect();
    floor.delete_many(&pods, 3)?;
    Ok(())
}
