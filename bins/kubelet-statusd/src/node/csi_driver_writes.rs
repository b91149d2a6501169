//! One try to write the drivers of the CSINode, and what they need on the Node: a refusal that concerns one driver leaves all others
//! alone.

use std::collections::BTreeMap;

use bulkhead_ipc::syncd::CsiDrivers;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::CSINode;

use super::csi_drivers::{self, Plan};
use super::csinode;
use super::metrics::Metrics;
use super::server::{RequestError, Server};

/// The two objects as they stand.
struct Objects {
    node: Node,
    csi_node: CSINode,
}

impl Objects {
    async fn read(server: &Server) -> Result<Self, RequestError> {
        Ok(Objects { node: server.get_node().await?, csi_node: server.get_csi_node().await? })
    }
}

/// Writes what is wanted; `Ok`: who was refused, and why. `rejected` has whom the API server itself has refused before, and gets
/// whom it refuses now.
pub async fn write_once(
    server: &Server,
    metrics: &Metrics,
    wanted: &CsiDrivers,
    rejected: &mut BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, RequestError> {
    let node = server.get_node().await?;
    let uid = node.metadata.uid.clone().unwrap_or_default();
    while !csinode::once(server, metrics, &uid).await? {}
    let objects = Objects { node, csi_node: server.get_csi_node().await? };
    match write(server, metrics, &objects, wanted, rejected).await {
        Err(error) if error.is_invalid() => {
            find_rejected(server, metrics, wanted, rejected).await?;
            write(server, metrics, &Objects::read(server).await?, wanted, rejected).await
        }
        outcome => outcome,
    }
}

/// Whose fault it is that all together are refused shows when each is tried alone with those that stand.
async fn find_rejected(
    server: &Server,
    metrics: &Metrics,
    wanted: &CsiDrivers,
    rejected: &mut BTreeMap<String, String>,
) -> Result<(), RequestError> {
    for driver in &wanted.drivers {
        if rejected.contains_key(&driver.name) {
            continue;
        }
        let alone = CsiDrivers { drivers: vec![driver.clone()], complete: false, gone: Vec::new() };
        match write(server, metrics, &Objects::read(server).await?, &alone, rejected).await {
            Ok(_) => {}
            Err(error) if error.is_invalid() => {
                rejected.insert(driver.name.clone(), error.to_string());
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

async fn write(
    server: &Server,
    metrics: &Metrics,
    objects: &Objects,
    wanted: &CsiDrivers,
    rejected: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, RequestError> {
    let plan = csi_drivers::plan(wanted, rejected, &objects.node, &objects.csi_node);
    write_plan(server, metrics, &plan, &objects.csi_node).await.map(|()| plan.refused)
}

/// The Node first, as upstream, so that no volume is placed here by a label that is not there yet.
async fn write_plan(server: &Server, metrics: &Metrics, plan: &Plan, csi_node: &CSINode) -> Result<(), RequestError> {
    if let Some(patch) = plan.node_patch() {
        let written = server.patch_node_status(&patch).await;
        metrics.node_write(written.is_ok());
        written?;
    }
    let mut newest = csi_node.clone();
    for drivers in [&plan.without, &plan.drivers].into_iter().flatten() {
        let written = server.patch_csi_node(&csi_drivers::csi_node_patch(&newest, drivers)).await;
        metrics.csi_node_write(written.is_ok());
        newest = written?;
    }
    Ok(())
}
