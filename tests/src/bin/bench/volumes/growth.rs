//! How soon a claim that has grown is expanded while its pod runs: from the controller's last word to the driver's call.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use bulkhead_testkit::Cluster;
use bulkhead_testkit::apiserver::Grant;
use bulkhead_testkit::csi::Driver;
use serde_json::json;

const CLAIMS: &str = "persistentvolumeclaims";
const SIZE: &str = "2Gi";

/// Lets nodes watch claims, as `deploy/rbac/watch-claims.yaml` does. To be called before the first claim is used.
///
/// # Errors
/// The cluster is not the stand-in.
pub fn grant(cluster: &Cluster) -> Result<()> {
    cluster.server()?.grant(Grant::new("system:nodes", &["list", "watch"], &[CLAIMS]));
    Ok(())
}

/// Grows the claims of these names one after the other, which running pods have.
///
/// # Errors
/// One was not expanded.
pub fn measure(cluster: &Cluster, driver: &Driver, names: &[String]) -> Result<Vec<Duration>> {
    let size = json!({"storage": SIZE});
    let mut times = Vec::new();
    for name in names {
        // The volume first, as resizers do it.
        cluster.patch("persistentvolumes", "", name, &json!({"spec": {"capacity": size}}))?;
        cluster.patch(CLAIMS, super::NAMESPACE, name, &json!({"spec": {"resources": {"requests": size}}}))?;
        let turn = json!({"status": {"allocatedResources": size,
            "allocatedResourceStatuses": {"storage": "NodeResizePending"}}});
        let began = SystemTime::now().duration_since(UNIX_EPOCH)?;
        cluster.patch_status(CLAIMS, super::NAMESPACE, name, &turn)?;
        let has_grown = |claim: &serde_json::Value| claim["status"]["capacity"]["storage"] == SIZE;
        cluster.wait_for(CLAIMS, super::NAMESPACE, name, "it has grown", has_grown)?;
        let calls = driver.calls()?;
        let call = calls.iter().find(|call| call.method == "NodeExpandVolume" && call.volume() == *name);
        let call = call.with_context(|| format!("the driver was not asked to expand {name}"))?;
        times.push(Duration::from_secs_f64((call.began - began.as_secs_f64()).max(0.0)));
    }
    Ok(times)
}
