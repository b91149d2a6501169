//! Container garbage collection: of the whole node, of a pod that has ended, of a container that has died. Which of them go is
//! decided by [`kubelet_runtime::runtime::gc`].

use std::collections::HashSet;

use bulkhead_types::{ContainerId, PodUid};
use kubelet_model::pod::model::RuntimePod;
use tokio::time::Instant;

use crate::ownership::{self, Owner};
use crate::sync_loop::node::NodeContext;

/// Dead containers and empty sandboxes of the whole node; all of the pods in `removable`, and nothing of those in `spared`.
pub async fn collect_node(node: &NodeContext, removable: &HashSet<PodUid>, spared: &HashSet<PodUid>) {
    let mut pods = Vec::new();
    for (_, pod) in node.cache.snapshot().into_iter().filter(|(uid, _)| !spared.contains(uid)) {
        // Another instance's pods are not ours to tidy up.
        if ownership::has_dead_parts(&pod) && node.ownership.of(&pod).await == Owner::Ours {
            pods.push(pod.as_ref().clone());
        }
    }
    node.runtime.collect_garbage(&pods, removable).await;
}

/// A pod has ended and is forgotten: its containers and its sandboxes go, which is tried once more where it did not work. Only
/// what is in `old` goes.
pub async fn collect_ended(node: &NodeContext, uid: &PodUid, old: &RuntimePod) {
    let removable = HashSet::from([uid.clone()]);
    // The look after the pod's last call showed that nothing runs, and nothing of it is made any more.
    let is_known = node.cache.is_certain(uid) && old.running().next().is_none();
    let mut pod = old.clone();
    for round in 0..2 {
        if round > 0 || !is_known {
            let Ok(seen) = node.cache.get_newer_than(uid, Instant::now()).await else { return };
            pod = seen.as_ref().clone();
            pod.containers.retain(|one| old.containers.iter().any(|other| other.id == one.id));
            pod.sandboxes.retain(|one| old.sandboxes.iter().any(|other| other.id == one.id));
        }
        if pod.containers.is_empty() && pod.sandboxes.is_empty() {
            return;
        }
        let has_ended = pod.running().next().is_none() && !pod.has_ready_sandbox();
        // What the runtime tells of is our own doing: a look at what is half removed says nothing, the one after it asks nothing.
        let _busy = node.pleg.busy(uid);
        if node.runtime.collect_garbage(std::slice::from_ref(&pod), &removable).await && has_ended {
            break;
        }
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
