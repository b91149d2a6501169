//! Claims of devices, and pods that have them, made in the order in which the control plane makes them: allocated, reserved, placed.

use anyhow::{Context as _, Result};
use bulkhead_testkit::{Cluster, IDLE, Node};
use serde_json::{Value, json};

use super::NAMESPACE;

/// The group and version of claims and slices.
pub const GROUP: &str = "resource.k8s.io/v1";

/// Creates a claim with these requests and allocates each from each of the drivers, the device having the request's name.
///
/// # Errors
/// The server's refusal.
pub fn allocated(cluster: &Cluster, node: &str, name: &str, requests: &[&str], drivers: &[&str]) -> Result<()> {
    let request = |name: &&str| {
        let exactly = json!({"deviceClassName": "test", "allocationMode": "ExactCount", "count": 1});
        json!({"name": name, "exactly": exactly})
    };
    let spec = json!({"devices": {"requests": requests.iter().map(request).collect::<Vec<_>>()}});
    let metadata = json!({"name": name, "namespace": NAMESPACE});
    let claim = json!({"apiVersion": GROUP, "kind": "ResourceClaim", "metadata": metadata, "spec": spec});
    cluster.create(&claim)?;
    let results: Vec<Value> = drivers
        .iter()
        .flat_map(|driver| {
            requests
                .iter()
                .map(move |request| json!({"request": request, "driver": driver, "pool": node, "device": request}))
        })
        .collect();
    let status = json!({"status": {"allocation": {"devices": {"results": results}}}});
    cluster.patch_status("resourceclaims", NAMESPACE, name, &status).map(|_| ())
}

/// Creates a pod whose containers idle, reserves its claims for it and places it on the node. `extended`: the claim for its extended
/// resources, with what it is for.
///
/// # Errors
/// The server's refusal.
pub fn schedule(
    cluster: &Cluster,
    node: &Node,
    name: &str,
    claims: &[&str],
    extended: Option<(&str, Value)>,
    spec: &Value,
) -> Result<()> {
    let mut spec = spec.clone();
    spec["terminationGracePeriodSeconds"] = json!(1);
    // Nobody else is to place it.
    spec["schedulerName"] = json!("by-hand");
    let named = |claim: &&str| json!({"name": claim, "resourceClaimName": claim});
    spec["resourceClaims"] = claims.iter().map(named).collect();
    for list in ["initContainers", "containers"] {
        for container in spec[list].as_array_mut().into_iter().flatten() {
            container["image"] = json!(node.image());
            container["command"] = json!(["sh", "-c", IDLE]);
        }
    }
    let pod =
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec});
    let pod = cluster.create(&pod)?;
    let uid = pod["metadata"]["uid"].as_str().context("a pod without uid")?;
    for claim in claims.iter().copied().chain(extended.iter().map(|(claim, _)| *claim)) {
        reserve(cluster, claim, name, uid)?;
    }
    if let Some((claim, mappings)) = extended {
        let made = json!({"extendedResourceClaimStatus": {"resourceClaimName": claim, "requestMappings": mappings}});
        cluster.patch_status("pods", NAMESPACE, name, &json!({"status": made}))?;
    }
    place(cluster, name, node.name())
}

fn reserve(cluster: &Cluster, claim: &str, pod: &str, uid: &str) -> Result<()> {
    let known = cluster.get("resourceclaims", NAMESPACE, claim)?;
    let mut reserved = known["status"]["reservedFor"].as_array().cloned().unwrap_or_default();
    reserved.push(json!({"resource": "pods", "name": pod, "uid": uid}));
    let patch = json!({"status": {"reservedFor": reserved}});
    cluster.patch_status("resourceclaims", NAMESPACE, claim, &patch).map(|_| ())
}

fn place(cluster: &Cluster, pod: &str, node: &str) -> Result<()> {
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod, "namespace": NAMESPACE},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node}});
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{pod}/binding");
    cluster.client().send_json("POST", &path, &binding)?.success().map(|_| ())
}
