//! The pods' cgroup tree as a whole: its top in every life of kubelet-volnetd, and the values of the QoS levels after the set of
//! pods has changed (upstream `pkg/kubelet/cm/qos_container_manager_linux.go`).

use std::sync::Arc;
use std::time::Duration;

use bulkhead_ipc::context::CallContext;
use bulkhead_ipc::volnetd as api;
use bulkhead_types::Epoch;
use k8s_openapi::api::core::v1::Pod;
use kubelet_edges::volnetd::VolnetdError;
use kubelet_model::pod::resources::burstable_cpu_shares;
use tokio::sync::watch;

use super::node::NodeContext;
use crate::cgroups::kubepods_resources;

const RETRY: Duration = Duration::from_millis(200);
const RETRY_MAX: Duration = Duration::from_secs(60);

/// Puts the top of the pods' cgroup tree in place in every life of volnetd, and says so: no pod is started before.
pub async fn keep_node_cgroups(node: Arc<NodeContext>, ready: watch::Sender<Option<Epoch>>) {
    let mut peer = node.volnetd.link().watch();
    loop {
        let epoch = peer.borrow_and_update().ready_epoch();
        match epoch {
            Some(epoch) => {
                if ensure_node(&node).await {
                    ready.send_replace(Some(epoch));
                } else {
                    // volnetd went away meanwhile: its next life is waited for below.
                    ready.send_replace(None);
                }
            }
            // Verbs in flight fail by themselves; new work waits.
            None => {
                ready.send_replace(None);
            }
        }
        if peer.changed().await.is_err() {
            return;
        }
    }
}

async fn ensure_node(node: &NodeContext) -> bool {
    let resources = kubepods_resources(&node.capacity, &node.reserved, node.enforce_pods);
    let mut retry = RETRY;
    loop {
        let request = api::EnsureNodeRequest { kubepods: Some(resources.clone()), driver: node.cgroup_driver.clone() };
        match node.volnetd.ensure_node(&CallContext::new(), request).await {
            Ok(reply) => {
                tracing::info!(driver = reply.driver, version = reply.version, "pods' cgroup tree is in place");
                return true;
            }
            Err(VolnetdError::Away { .. }) => return false,
            Err(error) => {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "pods' cgroup tree could not be made, pods wait"
                );
            }
        }
        tokio::time::sleep(retry).await;
        retry = (retry * 2).min(RETRY_MAX);
        if node.volnetd.link().state().ready_epoch().is_none() {
            return false;
        }
    }
}

/// Shares of the burstable level, and what memory the levels keep, after the set of pods has changed.
pub async fn set_qos(node: &NodeContext, pods: &[Arc<Pod>]) {
    let pods = || pods.iter().map(|p| &**p);
    let levels = node.facts().memory_qos.map(|qos| qos.of_levels(pods()));
    if let Some(levels) = levels {
        node.metrics.memory_min.set(levels.guaranteed() as f64);
        node.metrics.memory_low.set(levels.burstable_low as f64);
    }
    let request = api::SetQosRequest {
        burstable_cpu_shares: burstable_cpu_shares(pods()),
        kubepods_memory_min_bytes: levels.map(|levels| levels.kubepods_min),
        burstable_memory_low_bytes: levels.map(|levels| levels.burstable_low),
    };
    // One after the other: kubelet-volnetd works on calls side by side, and older values must not be those that stay.
    let mut written = node.qos_written.lock().await;
    if *written == Some(request) || node.cgroups_ready().await.is_none() {
        return;
    }
    match node.volnetd.set_qos(&CallContext::new(), request).await {
        Ok(_) => *written = Some(request),
        Err(error) => {
            *written = None;
            tracing::warn!(error = &error as &dyn std::error::Error, "values of the QoS levels are not up to date");
        }
    }
}
