//! Whether the node has room: number of pods, cpu, memory, ephemeral storage, huge pages, extended resources (upstream
//! scheduler plugin `noderesources`, as the kubelet calls it).

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use bulkhead_types::resource_name::is_huge_page;
use kubelet_model::v1::Pod;

use super::node_info::{NodeInfo, count};
use kubelet_container_manager::dra::claims;
use kubelet_model::pod::resources::{Amounts, pod_requests};

/// What a pod cannot have, in the resource's own counting unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortage {
    pub resource: String,
    pub requested: i64,
    pub used: i64,
    pub capacity: i64,
}

impl Shortage {
    /// What would have to be freed.
    pub fn missing(&self) -> i64 {
        self.requested.saturating_sub(self.capacity.saturating_sub(self.used))
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shortage { resource, requested, used, capacity } = self;
        write!(
            f,
            "Node didn't have enough resource: {resource}, requested: {requested}, used: {used}, capacity: {capacity}"
        )
    }
}

/// What the pod asks for of one resource; of `pods` it is one.
pub(super) fn request(pod: &Pod, resource: &str) -> i64 {
    if resource == "pods" {
        return 1;
    }
    pod_requests(pod, true).get(resource).map_or(0, |q| count(resource, *q))
}

/// The pod without what drivers' claims give its containers: that is no request of the node's own amounts (upstream
/// `removeMissingExtendedResources`).
pub(super) fn without_claims(pod: &Pod) -> Cow<'_, Pod> {
    if pod.status.as_ref().is_none_or(|status| status.extended_resource_claim_status.is_none()) {
        return Cow::Borrowed(pod);
    }
    let mut own = pod.clone();
    let spec = own.spec.iter_mut();
    for container in spec.flat_map(|spec| spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten())) {
        if let Some(requests) = container.resources.as_mut().and_then(|resources| resources.requests.as_mut()) {
            requests.retain(|resource, _| !claims::gives(pod, &container.name, resource));
        }
    }
    Cow::Owned(own)
}

/// Everything that is short, pods first, then cpu, memory, ephemeral storage, the rest by name.
pub(super) fn shortages(pod: &Pod, others: &[Arc<Pod>], node: &NodeInfo) -> Vec<Shortage> {
    let mut short = Vec::new();
    let number = i64::try_from(others.len()).unwrap_or(i64::MAX);
    if let Some(capacity) = node.capacity("pods").filter(|capacity| number >= *capacity) {
        short.push(Shortage { resource: "pods".to_owned(), requested: 1, used: number, capacity });
    }
    let mut wanted: Vec<(String, i64)> =
        pod_requests(pod, true).into_iter().map(|(name, q)| (name.clone(), count(&name, q))).collect();
    let rank = |name: &str| ["cpu", "memory", "ephemeral-storage"].iter().position(|n| *n == name).unwrap_or(3);
    wanted.sort_by(|(a, _), (b, _)| (rank(a), a).cmp(&(rank(b), b)));
    wanted.retain(|(_, amount)| *amount > 0);
    if wanted.is_empty() {
        return short;
    }
    let theirs: Vec<Amounts> = others.iter().map(|other| pod_requests(other, true)).collect();
    for (resource, requested) in wanted {
        let capacity = match node.capacity(&resource) {
            Some(capacity) => capacity,
            // Also what only the scheduler turns into a claim, for a pod that came here without it.
            None if is_huge_page(&resource) || resource.contains("kubernetes.io/") => 0,
            // A resource of the whole cluster, or an amount that is not known (yet): nothing to hold against the pod.
            None => continue,
        };
        let used = theirs.iter().filter_map(|list| list.get(&resource)).map(|q| count(&resource, *q));
        let used = used.fold(node.held(&resource), i64::saturating_add);
        if requested > capacity.saturating_sub(used) {
            short.push(Shortage { resource, requested, used, capacity });
        }
    }
    short
}
