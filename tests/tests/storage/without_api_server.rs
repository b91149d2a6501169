//! A node without an API server: a driver comes, is told why it is not taken, as upstream's kubelet tells it, and harms nothing.

use anyhow::{Result, ensure};
use bulkhead_testkit::csi::DriverBuilder;
use bulkhead_testkit::{LONG, Pod, eventually};
use bulkhead_tests::lab;

use crate::DRIVER;

/// What upstream's kubelet says.
const WHY: &str = "RegisterPlugin error -- plugin registration failed with err: error updating Node object with CSI driver node info: \
                   error updating node: timed out waiting for the condition; caused by: error getting kube client";

#[test]
fn a_driver_is_told_why_it_is_not_registered_without_an_api_server() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let node = lab.node("alone").start()?;
    let driver = DriverBuilder::new(DRIVER, &node, "alone.test").start()?;
    eventually("the driver is told why, and more than once", LONG, || {
        let calls = driver.calls()?;
        let told: Vec<_> = calls.iter().filter(|call| call.method == "NotifyRegistrationStatus").collect();
        ensure!(told.len() >= 2, "{calls:#?}");
        for call in told {
            ensure!(call.request["plugin_registered"].is_null(), "{}", call.request);
            ensure!(call.request["error"] == WHY, "{}", call.request);
        }
        Ok(())
    })?;
    let plugins = node.ctl(&["plugins"])?;
    ensure!(plugins.contains("alone.test") && plugins.contains("failed"), "{plugins}");
    // Pods come and go meanwhile.
    node.write(&Pod::idle("beside"))?;
    eventually("a pod runs beside it", LONG, || {
        let pods = node.agent()?.pods()?;
        ensure!(pods.iter().any(|pod| pod.name.starts_with("beside") && pod.phase == "Running"), "{pods:?}");
        Ok(())
    })?;
    drop(driver);
    node.finish()
}
