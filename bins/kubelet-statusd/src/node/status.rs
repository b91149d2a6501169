//! The node's next status out of the last one and what is known now. Pure.
//!
//! Fields and rules are those of upstream's setters (`pkg/kubelet/nodestatus/setters.go`). What is unknown stays as the
//! API server has it: a process that restarts takes nothing away.

use std::collections::BTreeMap;
use std::time::Duration;

use bulkhead_ipc::syncd::NodeState;
use bulkhead_types::resource_name::is_extended;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    ContainerImage, DaemonEndpoint, Node, NodeDaemonEndpoints, NodeFeatures, NodeRuntimeHandler,
    NodeRuntimeHandlerFeatures, NodeStatus, NodeSwapStatus, NodeSystemInfo,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

use super::addresses::{Decision, PROVIDED_NODE_IP};
use super::conditions::{self, Pressure};
use super::facts::Facts;
use super::object::{self, set_or_remove};
use super::ready::{self, SilentPeers, Syncd};

/// What does not change while the process runs, but for the name of the operating system ([`Facts::read_again`]).
#[derive(Debug, Clone)]
pub struct Fixed {
    pub facts: Facts,
    pub kubelet_version: String,
    /// Of the HTTPS server.
    pub port: i32,
    pub declared_features: Option<Vec<String>>,
    /// Capacity has to name ephemeral storage.
    pub local_storage_isolation: bool,
    pub sync_frequency: Duration,
}

/// What is known now.
#[derive(Debug, Clone)]
pub struct Now<'a> {
    pub time: Timestamp,
    /// What kubelet-syncd said last, however long ago; none: nothing yet.
    pub known: Option<&'a NodeState>,
    /// It has been silent for longer than a restart takes, or never spoken in that time.
    pub silent: bool,
    /// Which of the others have been.
    pub silent_peers: SilentPeers,
    /// None: they cannot be said now and stay.
    pub addresses: Option<&'a Decision>,
    /// `None`: kubelet-evictiond has not said yet.
    pub pressure: Option<Pressure>,
    /// Why the CSINode object does not stand yet.
    pub storage: Option<&'a str>,
    pub shutting_down: bool,
}

/// The next Node, and the reasons of the events that its conditions are worth.
pub fn next(old: &Node, fixed: &Fixed, now: &Now<'_>) -> (Node, Vec<&'static str>) {
    let mut node = old.clone();
    object::force_labels(&mut node, fixed.facts.architecture);
    let mut status = node.status.take().unwrap_or_default();
    if let Some(decision) = now.addresses {
        set_or_remove(&mut node.metadata.annotations, PROVIDED_NODE_IP, decision.provided.as_deref());
        if let Some(addresses) = &decision.addresses {
            status.addresses = Some(addresses.clone());
        }
    }
    if let Some(state) = now.known {
        resources(&mut status, state);
        runtime(&mut status, state);
    }
    info(status.node_info.get_or_insert_default(), fixed, now.known);
    status.daemon_endpoints = Some(NodeDaemonEndpoints { kubelet_endpoint: Some(DaemonEndpoint { port: fixed.port }) });
    status.declared_features.clone_from(&fixed.declared_features);

    let missing = missing_capacity(&status, fixed.local_storage_isolation);
    let syncd = match now.known {
        Some(state) if !now.silent => Syncd::Says(state),
        _ => Syncd::Silent,
    };
    let ready = ready::ready(&ready::Inputs {
        syncd,
        silent_peers: now.silent_peers,
        storage: now.storage,
        shutting_down: now.shutting_down,
        missing_capacity: &missing,
        soft_warning: fixed.facts.no_cpu_quota.then_some("CPU hardcapping unsupported"),
        sync_frequency: fixed.sync_frequency,
    });
    let conditions = status.conditions.get_or_insert_default();
    let pressure = now.pressure.unwrap_or_else(|| conditions::as_they_are(conditions));
    let events = conditions::update(conditions, &pressure, &ready, now.time);
    node.status = Some(status);
    (node, events)
}

/// Capacity and allocatable: ours replaced, what others have put there kept. A size of huge pages that the machine does not have goes
/// with the registration alone ([`object::reconciled`]), as upstream's.
fn resources(status: &mut NodeStatus, state: &NodeState) {
    if state.capacity.is_empty() {
        return;
    }
    let capacity = status.capacity.get_or_insert_default();
    let allocatable = status.allocatable.get_or_insert_default();
    for (name, amount) in &state.capacity {
        object::set_amount(capacity, name, &ApiQuantity(amount.clone()));
    }
    allocatable.retain(|name, _| capacity.contains_key(name) || !is_extended(name));
    let others: BTreeMap<&String, &ApiQuantity> =
        capacity.iter().filter(|(name, _)| !state.capacity.contains_key(*name)).collect();
    for (name, amount) in others {
        object::set_amount(allocatable, name, amount);
    }
    for (name, amount) in &state.allocatable {
        object::set_amount(allocatable, name, &ApiQuantity(amount.clone()));
    }
}

fn runtime(status: &mut NodeStatus, state: &NodeState) {
    let image = |image: &bulkhead_ipc::syncd::NodeImage| ContainerImage {
        // The API server shows an empty list as null: the same to it, and so to us.
        names: (!image.names.is_empty()).then(|| image.names.clone()),
        size_bytes: Some(image.size_bytes),
    };
    let images: Vec<ContainerImage> = state.images.iter().map(image).collect();
    status.images = (!images.is_empty()).then_some(images);
    let handler = |handler: &bulkhead_ipc::syncd::RuntimeHandler| NodeRuntimeHandler {
        name: Some(handler.name.clone()),
        features: Some(NodeRuntimeHandlerFeatures {
            recursive_read_only_mounts: Some(handler.recursive_read_only_mounts),
            user_namespaces: Some(handler.user_namespaces),
        }),
    };
    let mut handlers: Vec<NodeRuntimeHandler> = state.runtime_handlers.iter().map(handler).collect();
    handlers.sort_by(|a, b| a.name.cmp(&b.name));
    status.runtime_handlers = (!handlers.is_empty()).then_some(handlers);
    // What the runtime says of it, a no as well; nothing when it says nothing.
    status.features =
        state.supplemental_groups_policy.map(|has| NodeFeatures { supplemental_groups_policy: Some(has) });
    if state.volumes_synced {
        status.volumes_in_use = (!state.volumes_in_use.is_empty()).then(|| state.volumes_in_use.clone());
    }
}

fn info(info: &mut NodeSystemInfo, fixed: &Fixed, state: Option<&NodeState>) {
    let facts = &fixed.facts;
    info.machine_id.clone_from(&facts.machine_id);
    info.system_uuid.clone_from(&facts.system_uuid);
    info.boot_id.clone_from(&facts.boot_id);
    info.kernel_version.clone_from(&facts.kernel_version);
    info.os_image.clone_from(&facts.os_image);
    info.architecture = facts.architecture.to_owned();
    info.operating_system = "linux".to_owned();
    info.kubelet_version.clone_from(&fixed.kubelet_version);
    // Deprecated: nobody knew it.
    info.kube_proxy_version = String::new();
    if let Some(state) = state
        && !state.runtime_name.is_empty()
    {
        let version = if state.runtime_version.is_empty() { "Unknown" } else { &state.runtime_version };
        info.container_runtime_version = format!("{}://{version}", state.runtime_name);
        let bytes = i64::try_from(state.swap_capacity_bytes).unwrap_or(i64::MAX);
        info.swap = (bytes > 0).then_some(NodeSwapStatus { capacity: Some(bytes) });
    }
}

fn missing_capacity(status: &NodeStatus, local_storage_isolation: bool) -> Vec<&'static str> {
    ["cpu", "memory", "pods", "ephemeral-storage"]
        .into_iter()
        .filter(|name| local_storage_isolation || *name != "ephemeral-storage")
        .filter(|name| !status.capacity.as_ref().is_some_and(|capacity| capacity.contains_key(*name)))
        .collect()
}

/// What has changed between two Nodes that a write is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Heartbeats at most.
    Nothing,
    /// Images alone: worth a write, not a hurry.
    Images,
    Other,
}

/// Compares as upstream's nodeStatusHasChanged; annotations alone count for nothing.
pub fn change(old: &Node, new: &Node) -> Change {
    let part = |node: &Node| {
        let mut status = node.status.clone().unwrap_or_default();
        let conditions = status.conditions.take().unwrap_or_default();
        let images = status.images.take().unwrap_or_default();
        // Absent and empty are the same.
        status.addresses = status.addresses.filter(|list| !list.is_empty());
        (conditions, images, status)
    };
    let ((old_conditions, old_images, old_rest), (new_conditions, new_images, new_rest)) = (part(old), part(new));
    if old_rest != new_rest
        || !conditions::same(&old_conditions, &new_conditions)
        || object::forced_labels_differ(old, new)
    {
        Change::Other
    } else if old_images != new_images {
        Change::Images
    } else {
        Change::Nothing
    }
}

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;
