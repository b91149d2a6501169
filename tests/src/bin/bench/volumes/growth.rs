//! How soon a claim that has grown is expanded while its pod runs: from the controller's last word to the driver's call.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use bulkhead_testkit::apiserver::Grant;
use bulkhead_testkit::csi::Driver;
use bulkhead_testkit::{Cluster, Node};
use serde_json::json;

const CLAIMS: &str = "persistentvolumeclaims";
const SIZE: &str = "2Gi";

/// Grows claims of these names one after the other, which running pods have, on a node that may watch claims, as
/// `deploy/rbac/watch-claims.yaml` lets it. kubelet-syncd begins anew for that, for it asks seldom what it may.
///
/// # Errors
/// The cluster is not the stand-in, a pod did not start, or a claim was not expanded.
pub fn measure(cluster: &Cluster, node: &Node, driver: &Driver, names: &[String]) -> Result<Vec<Duration>> {
    cluster.server()?.grant(Grant::new("system:nodes", &["list", "watch"], &[CLAIMS]));
    node.kill_daemon("kubelet-syncd")?;
    names.iter().try_for_each(|name| super::claim(cluster, name))?;
    super::start(cluster, names, super::full)?;
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
    super::delete(cluster, names)?;
    Ok(times)
}
