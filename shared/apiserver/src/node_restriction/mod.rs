//! What a node may write: the admission plugin NodeRestriction (`plugin/pkg/admission/noderestriction`), which looks
//! into the objects where authorization only saw names.

use std::collections::BTreeSet;

use serde_json::Value;

use super::authority::requested;
use super::pods::{self, references};
use super::resources::{Resource, named};
use super::status::ApiError;
use super::storage::Store;

/// What is about to be written.
#[derive(Debug, Clone, Copy)]
pub struct Write<'a> {
    pub operation: Operation,
    pub resource: &'static Resource,
    pub subresource: &'a str,
    pub namespace: &'a str,
    /// From the path; empty on creations.
    pub name: &'a str,
    pub new: Option<&'a Value>,
    pub old: Option<&'a Value>,
}

/// As admission knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Create,
    Update,
    Delete,
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
        }
    }
}

/// Lets a node's write pass, or refuses it.
///
/// # Errors
/// 403 (404 where an object that has to be looked at is not there).
pub fn admit(store: &Store, node: &str, write: Write<'_>) -> Result<(), ApiError> {
    let refuse = |why: String| Err(refusal(&write, &why));
    match (write.resource.plural, write.subresource) {
        ("pods", "") => pod(store, node, write),
        ("pods", "status") => pod_status(node, write),
        ("pods", "eviction") => match existing_pod(store, write)?["spec"]["nodeName"] == node {
            true => Ok(()),
            false => refuse(format!("node {node} can only evict pods with spec.nodeName set to itself")),
        },
        ("pods", other) => {
            refuse(format!("unexpected pod subresource {other:?}, only 'status' and 'eviction' are allowed"))
        }
        ("nodes", _) => own_node(node, write),
        ("persistentvolumeclaims", "status") => claim_status(node, write),
        ("persistentvolumeclaims", _) => refuse("may only update PVC status".into()),
        ("serviceaccounts", "token") => token(store, node, write),
        ("leases", _) => {
            if write.namespace != "kube-node-lease" {
                return refuse("can only access leases in the \"kube-node-lease\" system namespace".into());
            }
            own_name(node, write, "can only access node lease with the same name as the requesting node")
        }
        ("csinodes", _) => own_name(node, write, "can only access CSINode with the same name as the requesting node"),
        ("resourceslices", _) => {
            let (object, what) = match write.operation {
                Operation::Create => (write.new, "create"),
                Operation::Delete => (write.old, "delete"),
                Operation::Update => return Ok(()),
            };
            match object.is_some_and(|slice| slice["spec"]["nodeName"] == node) {
                true => Ok(()),
                false => refuse(format!("can only {what} ResourceSlice with the same NodeName as the requesting node")),
            }
        }
        ("certificatesigningrequests", "") if write.operation == Operation::Create => signing_request(node, write),
        _ => Ok(()),
    }
}

/// A node asks for certificates in its own name only.
fn signing_request(node: &str, write: Write<'_>) -> Result<(), ApiError> {
    let Some(new) = write.new else { return Ok(()) };
    let signer = new["spec"]["signerName"].as_str().unwrap_or_default();
    if !["kubernetes.io/kubelet-serving", "kubernetes.io/kube-apiserver-client-kubelet"].contains(&signer) {
        return Ok(());
    }
    let asked = requested(&new["spec"]).map_err(|error| refusal(&write, &format!("unable to parse csr: {error:#}")))?;
    if asked.common_name == format!("system:node:{node}") {
        return Ok(());
    }
    Err(refusal(&write, &format!("can only create a node CSR with CN=system:node:{node}")))
}

fn refusal(write: &Write<'_>, why: &str) -> ApiError {
    // Attributes carry no name on creation unless the object has one already.
    let own = write.new.and_then(|new| new["metadata"]["name"].as_str()).unwrap_or_default();
    let name = if write.name.is_empty() { own } else { write.name };
    ApiError::forbidden(write.resource, name, why)
}

fn existing_pod(store: &Store, write: Write<'_>) -> Result<Value, ApiError> {
    let pod = store.get(named("pods"), write.namespace, write.name);
    pod.map(|pod| pod.value.clone()).ok_or_else(|| ApiError::not_found(named("pods"), write.name))
}

fn pod(store: &Store, node: &str, write: Write<'_>) -> Result<(), ApiError> {
    let refuse = |why: String| Err(refusal(&write, &why));
    match (write.operation, write.new) {
        (Operation::Delete, _) => match existing_pod(store, write)?["spec"]["nodeName"] == node {
            true => Ok(()),
            false => refuse(format!("node {node:?} can only delete pods with spec.nodeName set to itself")),
        },
        (Operation::Create, Some(new)) => mirror_pod(store, node, write, new),
        _ => refuse(format!(
            "unexpected operation {:?}, node {node:?} can only create and delete mirror pods",
            write.operation.name()
        )),
    }
}

fn mirror_pod(store: &Store, node: &str, write: Write<'_>, new: &Value) -> Result<(), ApiError> {
    let refuse = |why: String| Err(refusal(&write, &why));
    if !pods::is_mirror(new) {
        return refuse(format!(
            "pod does not have {:?} annotation, node {node:?} can only create mirror pods",
            pods::MIRROR
        ));
    }
    if new["spec"]["nodeName"] != node {
        return refuse(format!("node {node:?} can only create pods with spec.nodeName set to itself"));
    }
    let owners = new["metadata"]["ownerReferences"].as_array().map(Vec::as_slice).unwrap_or_default();
    let owner = match owners {
        [] => return refuse(format!("node {node:?} can only create pods with an owner reference set to itself")),
        [owner] => owner,
        _ => return refuse(format!("node {node:?} can only create pods with a single owner reference set to itself")),
    };
    if owner["apiVersion"] != "v1" || owner["kind"] != "Node" || owner["name"] != node {
        return refuse(format!("node {node:?} can only create pods with an owner reference set to itself"));
    }
    if owner["controller"] != true {
        return refuse(format!("node {node:?} can only create pods with a controller owner reference set to itself"));
    }
    if owner["blockOwnerDeletion"] == true {
        return refuse(format!("node {node:?} must not set blockOwnerDeletion on an owner reference"));
    }
    let known = store.get(named("nodes"), "", node).ok_or_else(|| ApiError::not_found(named("nodes"), node))?;
    let text = |uid: &Value| uid.as_str().unwrap_or_default().to_owned();
    let (stated, actual) = (text(&owner["uid"]), text(&known.value["metadata"]["uid"]));
    if stated != actual {
        return refuse(format!("node {node} UID mismatch: expected {stated} got {actual}"));
    }
    match references::any(new) {
        Some(kind) => refuse(format!("node {node:?} can not create pods that reference {kind}")),
        None => Ok(()),
    }
}

fn pod_status(node: &str, write: Write<'_>) -> Result<(), ApiError> {
    let refuse = |why: String| Err(refusal(&write, &why));
    let (Operation::Update, Some(new), Some(old)) = (write.operation, write.new, write.old) else {
        return refuse(format!("unexpected operation {:?}", write.operation.name()));
    };
    if old["spec"]["nodeName"] != node {
        return refuse(format!("node {node:?} can only update pod status for pods with spec.nodeName set to itself"));
    }
    if labels(new) != labels(old) {
        return refuse(format!("node {node:?} cannot update labels through pod status"));
    }
    if new["status"]["resourceClaimStatuses"] != old["status"]["resourceClaimStatuses"] {
        return refuse(format!("node {node:?} cannot update resource claim statues"));
    }
    if new["status"]["extendedResourceClaimStatus"] != old["status"]["extendedResourceClaimStatus"] {
        return refuse(format!("node {node:?} cannot update extended resource claim status"));
    }
    Ok(())
}

fn claim_status(node: &str, write: Write<'_>) -> Result<(), ApiError> {
    let (Some(mut new), Some(mut old)) = (write.new.cloned(), write.old.cloned()) else { return Ok(()) };
    for claim in [&mut new, &mut old] {
        for (part, fields) in [
            ("metadata", &["resourceVersion", "managedFields"][..]),
            ("status", &["capacity", "conditions", "allocatedResourceStatuses", "allocatedResources"]),
        ] {
            if let Some(map) = claim.get_mut(part).and_then(Value::as_object_mut) {
                fields.iter().for_each(|field| drop(map.remove(*field)));
            }
        }
    }
    if new == old {
        return Ok(());
    }
    let why = format!("node {node:?} is not allowed to update fields other than status.quantity and status.conditions");
    Err(refusal(&write, &why))
}

fn own_name(node: &str, write: Write<'_>, why: &str) -> Result<(), ApiError> {
    let name = match (write.operation, write.new) {
        (Operation::Create, Some(new)) => new["metadata"]["name"].as_str().unwrap_or_default(),
        _ => write.name,
    };
    if name == node { Ok(()) } else { Err(refusal(&write, why)) }
}

fn labels(object: &Value) -> Vec<(String, String)> {
    let map = object["metadata"]["labels"].as_object();
    map.map(|map| map.iter().map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned())).collect())
        .unwrap_or_default()
}

fn own_node(node: &str, write: Write<'_>) -> Result<(), ApiError> {
    let refuse = |why: String| Err(refusal(&write, &why));
    let new_name = write.new.and_then(|new| new["metadata"]["name"].as_str()).unwrap_or_default();
    let requested = if write.name.is_empty() { new_name } else { write.name };
    if requested != node {
        return refuse(format!("node {node:?} is not allowed to modify node {requested:?}"));
    }
    match (write.operation, write.new, write.old) {
        (Operation::Create, Some(new), _) => {
            if new["spec"]["configSource"].is_object() {
                return refuse(format!("node {node:?} is not allowed to create pods with a non-nil configSource"));
            }
            let forbidden = forbidden_labels(&changed_labels(new, &Value::Null));
            if !forbidden.is_empty() {
                let list = forbidden.join(", ");
                return refuse(format!("node {node:?} is not allowed to set the following labels: {list}"));
            }
        }
        (Operation::Update, Some(new), Some(old)) => {
            if list(&new["spec"]["taints"]) != list(&old["spec"]["taints"]) {
                return refuse(format!("node {node:?} is not allowed to modify taints"));
            }
            if list(&new["metadata"]["ownerReferences"]) != list(&old["metadata"]["ownerReferences"]) {
                return refuse(format!("node {node:?} is not allowed to modify ownerReferences"));
            }
            let forbidden = forbidden_labels(&changed_labels(new, old));
            if !forbidden.is_empty() {
                return refuse(format!("is not allowed to modify labels: {}", forbidden.join(", ")));
            }
        }
        _ => {}
    }
    Ok(())
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn changed_labels(new: &Value, old: &Value) -> BTreeSet<String> {
    let (new, old): (BTreeSet<_>, BTreeSet<_>) = (labels(new).into_iter().collect(), labels(old).into_iter().collect());
    new.symmetric_difference(&old).map(|(key, _)| key.clone()).collect()
}

const KUBELET_LABELS: &[&str] = &[
    "kubernetes.io/hostname",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "beta.kubernetes.io/instance-type",
    "node.kubernetes.io/instance-type",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
];

fn forbidden_labels(changed: &BTreeSet<String>) -> Vec<String> {
    let within = |namespace: &str, of: &str| namespace == of || namespace.ends_with(&format!(".{of}"));
    let forbidden = |label: &&String| {
        let namespace = label.split_once('/').map_or("", |(namespace, _)| namespace);
        let restricted = within(namespace, "node-restriction.kubernetes.io");
        let kubernetes = within(namespace, "kubernetes.io") || within(namespace, "k8s.io");
        let kubelets = KUBELET_LABELS.contains(&label.as_str())
            || within(namespace, "kubelet.kubernetes.io")
            || within(namespace, "node.kubernetes.io");
        restricted || (kubernetes && !kubelets)
    };
    changed.iter().filter(forbidden).cloned().collect()
}

fn token(store: &Store, node: &str, write: Write<'_>) -> Result<(), ApiError> {
    let refuse = |why: String| Err(refusal(&write, &why));
    let Some(request) = write.new else { return Ok(()) };
    let bound = &request["spec"]["boundObjectRef"];
    let text = |field: &str| bound[field].as_str().unwrap_or_default();
    if text("apiVersion") != "v1" || text("kind") != "Pod" || text("name").is_empty() {
        return refuse("node requested token not bound to a pod".into());
    }
    if text("uid").is_empty() {
        return refuse("node requested token with a pod binding without a uid".into());
    }
    let pod = store
        .get(named("pods"), write.namespace, text("name"))
        .ok_or_else(|| ApiError::not_found(named("pods"), text("name")))?;
    if pod.value["metadata"]["uid"] != text("uid") {
        return refuse(format!(
            "the UID in the bound object reference ({}) does not match the UID in record. The object might have been \
             deleted and then recreated",
            text("uid")
        ));
    }
    if pod.value["spec"]["nodeName"] != node {
        return refuse("node requested token bound to a pod scheduled on a different node".into());
    }
    let audience = match list(&request["spec"]["audiences"]) {
        [] => "",
        [one] => one.as_str().unwrap_or_default(),
        _ => return refuse("node may only request 0 or 1 audiences".into()),
    };
    if references::wants_audience(&pod.value, audience) || driver_wants(store, &pod.value, audience) {
        return Ok(());
    }
    refuse(format!(
        "audience {audience:?} not found in pod spec volume, system:node:{node} is not authorized to request tokens for \
         this audience"
    ))
}

/// Whether a CSI driver of the pod asks for tokens of this audience.
fn driver_wants(store: &Store, pod: &Value, audience: &str) -> bool {
    let namespace = pod["metadata"]["namespace"].as_str().unwrap_or_default();
    let inline = list(&pod["spec"]["volumes"]).iter().filter_map(|volume| volume["csi"]["driver"].as_str());
    let mut drivers: Vec<String> = inline.map(str::to_owned).collect();
    for claim in references::claims(pod) {
        let Some(claim) = store.get(named("persistentvolumeclaims"), namespace, &claim) else { continue };
        let volume = claim.value["spec"]["volumeName"].as_str().unwrap_or_default();
        if let Some(volume) = store.get(named("persistentvolumes"), "", volume) {
            drivers.extend(volume.value["spec"]["csi"]["driver"].as_str().map(str::to_owned));
        }
    }
    drivers.iter().filter_map(|driver| store.get(named("csidrivers"), "", driver)).any(|driver| {
        list(&driver.value["spec"]["tokenRequests"]).iter().any(|request| request["audience"] == audience)
    })
}

#[cfg(test)]
mod tests;
