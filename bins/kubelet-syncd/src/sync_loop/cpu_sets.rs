//! Keeps running containers on the CPUs that they are to have: others move off what a container has got for itself, and come back
//! when it is free again (upstream `cm/cpumanager`, reconcileState).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_cri::v1;
use futures_util::{StreamExt as _, stream};
use kubelet_container_manager::manager::{CpuUpdate, Running};

use super::node::NodeContext;

/// Of `cpuManagerReconcilePeriod`: below it nothing is gained, what changes is known at once.
const PERIOD_MIN: Duration = Duration::from_secs(1);
/// Calls to the runtime at a time.
const AT_ONCE: usize = 4;

/// Looks after each change, and after `cpuManagerReconcilePeriod` anyway. Runs for ever; ends where no CPUs are set.
pub async fn keep(node: Arc<NodeContext>) {
    if !node.container_manager.sets_cpus() {
        return;
    }
    let period = node.config.kubelet.cpu_manager_reconcile_period.to_std().max(PERIOD_MIN);
    let mut changes = node.container_manager.changes();
    loop {
        changes.borrow_and_update();
        reconcile(&node).await;
        if let Ok(Err(_)) = tokio::time::timeout(period, changes.changed()).await {
            return;
        }
    }
}

async fn reconcile(node: &NodeContext) {
    let mut running = Vec::new();
    let known = BTreeSet::from_iter(node.pods.known_pods());
    for uid in &known {
        let runtime = node.cache.get(uid);
        running.extend(runtime.running().map(|container| Running {
            uid: uid.to_string(),
            name: container.name.clone(),
            id: container.id.to_string(),
        }));
    }
    let plan = node.container_manager.plan(&known, &running);
    stream::iter(plan).for_each_concurrent(AT_ONCE, |update| change(node, update)).await;
}

async fn change(node: &NodeContext, update: CpuUpdate) {
    let linux = v1::LinuxContainerResources { cpuset_cpus: update.cpus.to_string(), ..Default::default() };
    let request = v1::UpdateContainerResourcesRequest {
        container_id: update.container.id.clone(),
        linux: Some(linux),
        ..Default::default()
    };
    let Running { uid, name, .. } = &update.container;
    match node.runtime.cri().update_container_resources(request).await {
        Ok(_) => {
            tracing::debug!(pod_uid = uid, container = name, cpus = %update.cpus, "moved to other CPUs");
            node.container_manager.updated(update);
        }
        // It has ended, or is asked again in the next look.
        Err(error) => tracing::warn!(
            pod_uid = uid, container = name, cpus = %update.cpus, error = &error as &dyn std::error::Error,
            "failed to update the container's CPUs"
        ),
    }
}
