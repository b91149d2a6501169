//! The pods' cgroup tree as a whole: its top in every life of kubelet-volnetd, and the values of the QoS levels after the set of
//! pods has changed (upstream `pkg/kubelet/cm/qos_container_manager_linux.go`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_ipc::context::CallContext;
use bulkhead_ipc::volnetd as api;
use bulkhead_types::{BackOff, Epoch, Quantity};
use k8s_openapi::api::core::v1::Pod;
use kubelet_edges::volnetd::VolnetdError;
use kubelet_model::pod::resources::burstable_cpu_shares;
use tokio::sync::watch;

use super::node::NodeContext;
use crate::cgroups::{Capacity, kubepods_resources};

/// What the top of the tree is made of, and how far it is.
#[derive(Debug)]
pub struct NodeCgroups {
    pub capacity: Capacity,
    /// `kubeReserved` and `systemReserved` together.
    pub reserved: BTreeMap<String, Quantity>,
    /// `enforceNodeAllocatable` has `pods`.
    pub enforce_pods: bool,
    /// The runtime's cgroup driver, as it says; empty: the configured one.
    pub driver: String,
    /// volnetd's life in which the top of the tree is in place.
    pub ready: watch::Receiver<Option<Epoch>>,
    /// The values of the QoS levels that were written last; absent: they are not known. Held while they are written.
    pub qos_written: tokio::sync::Mutex<Option<api::SetQosRequest>>,
}

impl NodeCgroups {
    /// volnetd's life in which the tree is in place now.
    pub fn epoch(&self) -> Option<Epoch> {
        *self.ready.borrow()
    }

    /// Waits until volnetd can take verbs for pods; gives its epoch. `None`: the process ends.
    pub async fn wait_ready(&self) -> Option<Epoch> {
        let mut ready = self.ready.clone();
        ready.wait_for(Option::is_some).await.ok().and_then(|epoch| *epoch)
    }

    /// The limit on all pods together is wanted, and volnetd has set it.
    pub fn limits_pods(&self) -> bool {
        self.enforce_pods && self.epoch().is_some()
    }
}

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
    let resources = kubepods_resources(&node.cgroups.capacity, &node.cgroups.reserved, node.cgroups.enforce_pods);
    let mut retry = BackOff::new(RETRY, RETRY_MAX);
    loop {
        let request = api::EnsureNodeRequest { kubepods: Some(resources.clone()), driver: node.cgroups.driver.clone() };
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
        tokio::time::sleep(retry.pause()).await;
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
    let mut written = node.cgroups.qos_written.lock().await;
    if *written == Some(request) || node.cgroups.wait_ready().await.is_none() {
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
