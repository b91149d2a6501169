//! What is done for the node as a whole, beside the pods' own work: the top of the cgroup tree, the leftovers of pods
//! that are gone, dead containers. Each is a task that may fail alone and is asked for again.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_ipc::context::CallContext;
use bulkhead_ipc::volnetd as api;
use bulkhead_types::{ContainerId, Epoch, PodUid};
use k8s_openapi::api::core::v1::Pod;
use tokio::sync::watch;
use tokio::time::Instant;

use super::node::NodeContext;
use super::ports::Files;
use crate::cgroups::kubepods_resources;
use crate::ownership::{self, Owner};
use crate::pod::model::{RunState, RuntimePod};
use crate::pod::resources::burstable_cpu_shares;
use crate::runtime::ports::HostFiles;
use crate::runtime::stop::identity_of;
use crate::volnetd::VolnetdError;

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
    let _turn = node.qos_turn.lock().await;
    if !node.qos_changed(request) {
        return;
    }
    if node.cgroups_ready().await.is_none() {
        return;
    }
    if let Err(error) = node.volnetd.set_qos(&CallContext::new(), request).await {
        tracing::warn!(error = &error as &dyn std::error::Error, "values of the QoS levels are not up to date");
        node.qos_unknown();
    }
}

/// Removes from disk and cgroups what belongs to pods that are not in `keep`. False when something is left.
pub async fn prune(node: &NodeContext, keep: &HashSet<PodUid>) -> bool {
    let known: Vec<String> = keep.iter().map(ToString::to_string).collect();
    let mut all = true;
    match node.volnetd.prune(known.clone()).await {
        Ok(steps) => {
            for step in steps.iter().filter(|step| step.action == "kept") {
                all = false;
                tracing::debug!(pod_uid = step.pod_uid, what = step.what, error = step.error, "leftover stays for now");
            }
            for step in steps.iter().filter(|step| step.action != "kept") {
                tracing::info!(
                    pod_uid = step.pod_uid,
                    what = step.what,
                    error = step.error,
                    "leftover: {}",
                    step.action
                );
            }
        }
        Err(error) => {
            all = false;
            tracing::warn!(error = &error as &dyn std::error::Error, "leftovers of pods could not be removed");
        }
    }
    prune_logs(node, known).await.is_ok() && all
}

/// Log folders of pods that are not in `known`.
///
/// # Errors
/// Some may be left; with a text where something is wrong, and not only somebody away.
pub async fn prune_logs(node: &NodeContext, known: Vec<String>) -> Result<(), Option<String>> {
    let guard = match node.volnetd.guard("prune_logs") {
        Ok(guard) => guard,
        Err(error) => {
            tracing::debug!("logs stay for now: {error}");
            return Err(None);
        }
    };
    let request = api::PruneLogsRequest { known_pod_uids: known, guard: Some(guard) };
    match node.volnetd.prune_logs(&CallContext::new(), request).await {
        Ok(reply) if reply.removed.is_empty() => Ok(()),
        Ok(reply) => {
            tracing::info!(removed = reply.removed.len(), "removed log directories of pods that are gone");
            Ok(())
        }
        Err(error) => {
            tracing::warn!(error = &error as &dyn std::error::Error, "log folders could not be removed");
            Err((!error.is_transient()).then(|| error.to_string()))
        }
    }
}

/// Links in `/var/log/containers` that a start could not make because somebody went away in the middle of it. Whoever
/// collects logs there would never see those containers. A link that is there already is left as it is.
pub async fn link_logs(node: &NodeContext) {
    let files = Files(node.volnetd.clone());
    for (_, pod) in node.cache.snapshot() {
        let began: Vec<_> = pod.containers.iter().filter(|one| one.state != RunState::Created).collect();
        let Some(identity) = identity_of(&pod).filter(|_| !began.is_empty()) else { continue };
        if node.ownership.of(&pod).await != Owner::Ours {
            continue;
        }
        for container in began {
            let link = files.link_container_log(&identity, &container.name, container.restart_count, &container.id);
            match link.await {
                Ok(()) => {}
                // volnetd's next life asks for all of them again.
                Err(error) if error.transient => return,
                Err(error) => {
                    tracing::warn!(pod = %identity, container = container.name, %error, "cannot link the container's log");
                }
            }
        }
    }
}

/// Dead containers and empty sandboxes of the whole node; all of the pods in `removable`.
pub async fn collect_node(node: &NodeContext, removable: &HashSet<PodUid>) {
    let mut pods = Vec::new();
    for (_, pod) in node.cache.snapshot() {
        // Another instance's pods are not ours to tidy up.
        if ownership::has_dead_parts(&pod) && node.ownership.of(&pod).await == Owner::Ours {
            pods.push(pod.as_ref().clone());
        }
    }
    node.runtime.collect_garbage(&pods, removable).await;
}

/// A pod has ended and is forgotten: its containers first, then, when the runtime shows them gone, its sandboxes. Only
/// what is in `old` goes.
pub async fn collect_ended(node: &NodeContext, uid: &PodUid, old: &RuntimePod) {
    let removable = HashSet::from([uid.clone()]);
    for _ in 0..2 {
        let now = Instant::now();
        let Ok(pod) = node.cache.get_newer_than(uid, now).await else { return };
        let mut pod = pod.as_ref().clone();
        pod.containers.retain(|one| old.containers.iter().any(|other| other.id == one.id));
        pod.sandboxes.retain(|one| old.sandboxes.iter().any(|other| other.id == one.id));
        if pod.containers.is_empty() && pod.sandboxes.is_empty() {
            return;
        }
        node.runtime.collect_garbage(&[pod], &removable).await;
    }
    node.pleg.request(uid);
}

/// A container has died: surplus dead instances of it go.
pub async fn collect_died(node: &NodeContext, uid: &PodUid, died: &str, everything: bool) {
    let Ok(died) = ContainerId::parse(died) else { return };
    let pod = node.cache.get(uid);
    if !pod.containers.is_empty() && node.ownership.of(&pod).await == Owner::Ours {
        node.runtime.remove_surplus(&pod, &died, everything).await;
    }
}
