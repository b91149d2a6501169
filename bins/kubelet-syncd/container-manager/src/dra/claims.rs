//! The claims that a pod names, and whether it may use them (upstream `k8s.io/dynamic-resource-allocation/resourceclaim`).

use std::collections::BTreeSet;

use bulkhead_types::resource_name::is_extended;
use k8s_openapi::api::core::v1::{PodExtendedResourceClaimStatus, PodResourceClaim};
use k8s_openapi::api::resource::v1::ResourceClaim;
use kubelet_model::v1::{Container, Pod};

use crate::checkpoint::dra::{ClaimState, DriverState, Member};

/// Why a pod cannot use a claim; upstream's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    #[error("pod \"{namespace}/{pod}\": ResourceClaim not created yet")]
    NotCreated { namespace: String, pod: String },
    #[error("pod \"{namespace}/{pod}\", spec.resourceClaim {claim:?}: none of the supported fields are set")]
    Unsupported { namespace: String, pod: String, claim: String },
    #[error("ResourceClaim {claim_namespace}/{claim} is not in the same namespace as Pod {namespace}/{pod}")]
    Elsewhere { claim_namespace: String, claim: String, namespace: String, pod: String },
    #[error("ResourceClaim {namespace}/{claim} was not created for Pod {namespace}/{pod} (Pod is not owner)")]
    NotOwned { namespace: String, claim: String, pod: String },
    #[error(
        "ResourceClaim {namespace}/{claim} was not created for Pod {namespace}/{pod} (neither Pod nor PodGroup {group} is the owner)"
    )]
    NotOwnedByGroup { namespace: String, claim: String, pod: String, group: String },
    #[error("pod {pod} ({pod_uid}) is not allowed to use ResourceClaim {claim} ({claim_uid})")]
    NotReserved { pod: String, pod_uid: String, claim: String, claim_uid: String },
    #[error("ResourceClaim {0}: not allocated")]
    NotAllocated(String),
}

/// A claim that a pod names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedClaim {
    /// Of the object, in the pod's namespace.
    pub object: String,
    /// It was made from a template for this very pod.
    pub of_template: bool,
}

fn text(of: Option<&String>) -> String {
    of.cloned().unwrap_or_default()
}

/// The claim behind one entry of the pod's spec. `None`: a template of which none had to be made.
///
/// # Errors
/// It is not there yet, or is of a kind that this kubelet does not know.
pub fn named(pod: &Pod, entry: &PodResourceClaim) -> Result<Option<NamedClaim>, ClaimError> {
    let (namespace, name) = (text(pod.metadata.namespace.as_ref()), text(pod.metadata.name.as_ref()));
    if let Some(object) = &entry.resource_claim_name {
        return Ok(Some(NamedClaim { object: object.clone(), of_template: false }));
    }
    if entry.resource_claim_template_name.is_none() {
        return Err(ClaimError::Unsupported { namespace, pod: name, claim: entry.name.clone() });
    }
    let statuses = pod.status.as_ref().and_then(|status| status.resource_claim_statuses.as_ref());
    match statuses.into_iter().flatten().find(|made| made.name == entry.name) {
        Some(made) => Ok(made.resource_claim_name.clone().map(|object| NamedClaim { object, of_template: true })),
        None => Err(ClaimError::NotCreated { namespace, pod: name }),
    }
}

fn entries(pod: &Pod) -> impl Iterator<Item = &PodResourceClaim> {
    pod.spec.iter().flat_map(|spec| spec.resource_claims.iter().flatten())
}

/// What the scheduler has made for the pod's extended resources.
fn extended(pod: &Pod) -> Option<&PodExtendedResourceClaimStatus> {
    pod.status.as_ref()?.extended_resource_claim_status.as_ref()
}

/// Whether the pod can have claims at all.
pub fn has_some(pod: &Pod) -> bool {
    entries(pod).next().is_some() || extended(pod).is_some()
}

/// All claims of the pod in the order of its spec, last the one for its extended resources, which counts with the gate
/// DRAExtendedResource.
///
/// # Errors
/// See [`named`].
pub fn of_pod(pod: &Pod, extended_resources: bool) -> Result<Vec<NamedClaim>, ClaimError> {
    let mut all = Vec::new();
    for entry in entries(pod) {
        all.extend(named(pod, entry)?);
    }
    let made = extended(pod).filter(|_| extended_resources);
    all.extend(made.map(|made| NamedClaim { object: made.resource_claim_name.clone(), of_template: false }));
    Ok(all)
}

/// Names of claims, and of each the request that a container is to have devices of; empty: of all.
pub type Requested = Vec<(String, String)>;

/// What a container is to have devices of.
///
/// # Errors
/// See [`named`].
pub fn of_container(pod: &Pod, container: &Container, extended_resources: bool) -> Result<Requested, ClaimError> {
    let resources = container.resources.as_ref();
    let mut wanted = Vec::new();
    for entry in entries(pod) {
        let claims = resources.and_then(|resources| resources.claims.as_ref()).into_iter().flatten();
        let mut requests = claims.filter(|claim| claim.name == entry.name).peekable();
        if requests.peek().is_none() {
            continue;
        }
        if let Some(claim) = named(pod, entry)? {
            wanted.extend(requests.map(|one| (claim.object.clone(), one.request.clone().unwrap_or_default())));
        }
    }
    if let Some(made) = extended(pod).filter(|_| extended_resources) {
        let requests = resources.and_then(|resources| resources.requests.as_ref());
        let asked: BTreeSet<&str> = requests
            .into_iter()
            .flatten()
            .filter(|(name, amount)| may_be_claimed(name) && !matches!(amount.0.as_str(), "0" | ""))
            .map(|(name, _)| name.as_str())
            .collect();
        let of_this = made.request_mappings.iter().filter(|mapping| mapping.container_name == container.name);
        let mapped = of_this.filter(|mapping| asked.contains(mapping.resource_name.as_str()));
        wanted.extend(mapped.map(|mapping| (made.resource_claim_name.clone(), mapping.request_name.clone())));
    }
    Ok(wanted)
}

/// A driver's claim gives the container this resource: nothing of the node's own amount is taken for it, and no device plugin is asked.
pub fn gives(pod: &Pod, container: &str, resource: &str) -> bool {
    let mappings = extended(pod).into_iter().flat_map(|made| &made.request_mappings);
    may_be_claimed(resource) && { mappings }.any(|of| of.container_name == container && of.resource_name == resource)
}

/// Whether devices of drivers may stand for it (upstream `schedutil.IsDRAExtendedResourceName`).
fn may_be_claimed(name: &str) -> bool {
    is_extended(name) || name.starts_with("deviceclass.resource.kubernetes.io/")
}

/// The API group of pod groups.
const SCHEDULING: &str = "scheduling.k8s.io";

/// The group that the pod is scheduled with.
fn group(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.scheduling_group.as_ref()?.pod_group_name.as_deref()
}

/// Whether the claim was made for the pod, or for the group named. A pod does not know its group's uid, so names are compared; the
/// version of the group's API may be any (upstream `IsForPod`, `isForPodGroupByPod`).
fn made_for(pod_uid: &str, group: Option<&str>, claim: &ResourceClaim) -> bool {
    let owners = claim.metadata.owner_references.iter().flatten();
    let Some(owner) = { owners }.find(|owner| owner.controller == Some(true)) else { return false };
    let of_scheduling = || owner.api_version.strip_prefix(SCHEDULING).is_some_and(|rest| rest.starts_with('/'));
    owner.uid == pod_uid
        || group.is_some_and(|group| owner.name == group && owner.kind == "PodGroup" && of_scheduling())
}

/// Whether the claim is reserved for the pod, or for the group named (upstream `IsReservedForPod`).
fn reserved_for(pod_uid: &str, group: Option<&str>, claim: &ResourceClaim) -> bool {
    let consumers = claim.status.iter().flat_map(|status| status.reserved_for.iter().flatten());
    { consumers }.any(|consumer| {
        let of_groups = consumer.api_group.as_deref() == Some(SCHEDULING) && consumer.resource == "podgroups";
        consumer.uid == pod_uid || (of_groups && group == Some(consumer.name.as_str()))
    })
}

/// Whether this claim is the pod's to use, and what is to be kept of it when it is. `groups`: claims of the pod's group are, too (gate
/// DRAWorkloadResourceClaims).
///
/// # Errors
/// See [`ClaimError`].
pub fn usable(pod: &Pod, named: &NamedClaim, claim: &ResourceClaim, groups: bool) -> Result<ClaimState, ClaimError> {
    let (pod_name, pod_uid) = (text(pod.metadata.name.as_ref()), text(pod.metadata.uid.as_ref()));
    let namespace = text(claim.metadata.namespace.as_ref());
    let (name, uid) = (text(claim.metadata.name.as_ref()), text(claim.metadata.uid.as_ref()));
    let group = group(pod).filter(|_| groups);
    if named.of_template {
        let pod_namespace = text(pod.metadata.namespace.as_ref());
        if namespace != pod_namespace {
            let (claim_namespace, namespace) = (namespace, pod_namespace);
            return Err(ClaimError::Elsewhere { claim_namespace, claim: name, namespace, pod: pod_name });
        }
        if !made_for(&pod_uid, group, claim) {
            return Err(match group.map(str::to_owned) {
                Some(group) => ClaimError::NotOwnedByGroup { namespace, claim: name, pod: pod_name, group },
                None => ClaimError::NotOwned { namespace, claim: name, pod: pod_name },
            });
        }
    }
    if !reserved_for(&pod_uid, group, claim) {
        return Err(ClaimError::NotReserved { pod: pod_name, pod_uid, claim: named.object.clone(), claim_uid: uid });
    }
    let status = claim.status.as_ref();
    let Some(allocation) = status.and_then(|status| status.allocation.as_ref()) else {
        return Err(ClaimError::NotAllocated(name));
    };
    let devices = allocation.devices.as_ref().and_then(|devices| devices.results.as_ref());
    let drivers = devices.into_iter().flatten().map(|result| (result.driver.clone(), DriverState::default()));
    Ok(ClaimState {
        claim_uid: uid,
        claim_name: name,
        namespace,
        pod_uids: Some([(pod_uid, Member {})].into()),
        driver_state: Some(drivers.collect()),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(spec: &Value, status: &Value) -> Pod {
        let metadata = json!({"name": "p", "namespace": "ns", "uid": "pod-uid"});
        serde_json::from_value(json!({"metadata": metadata, "spec": spec, "status": status})).unwrap()
    }

    fn objects(of: &Pod) -> Result<Vec<String>, ClaimError> {
        Ok(of_pod(of, true)?.into_iter().map(|claim| claim.object).collect())
    }

    #[test]
    fn each_way_to_a_claim() {
        let none = pod(&json!({"containers": []}), &json!({}));
        assert_eq!(objects(&none), Ok(vec![]));
        let spec = json!({"containers": [], "resourceClaims": [
            {"name": "own", "resourceClaimName": "shared"}, {"name": "gpu", "resourceClaimTemplateName": "t"}]});
        let waits = objects(&pod(&spec, &json!({}))).unwrap_err();
        assert_eq!(waits.to_string(), "pod \"ns/p\": ResourceClaim not created yet");
        let made = json!({"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "p-gpu-x"}],
            "extendedResourceClaimStatus": {"resourceClaimName": "p-extended", "requestMappings": []}});
        let made = pod(&spec, &made);
        assert_eq!(objects(&made).unwrap(), ["shared", "p-gpu-x", "p-extended"]);
        assert_eq!(of_pod(&made, false).unwrap().len(), 2, "without the gate");
        let unneeded = json!({"resourceClaimStatuses": [{"name": "gpu"}]});
        assert_eq!(objects(&pod(&spec, &unneeded)).unwrap(), ["shared"]);
        let group = json!({"containers": [], "resourceClaims": [{"name": "g"}]});
        let group = objects(&pod(&group, &json!({}))).unwrap_err();
        assert!(group.to_string().ends_with("none of the supported fields are set"), "{group}");
    }

    #[test]
    fn what_a_container_gets_devices_of() {
        let spec = json!({
            "containers": [
                {"name": "a", "resources": {"claims": [{"name": "gpu", "request": "r1"}, {"name": "gpu", "request": "r2"}, {"name": "own"}]}},
                {"name": "b", "resources": {"requests": {"example.com/gpu": "1", "cpu": "1", "example.com/none": "0"}}},
                {"name": "c"},
            ],
            "resourceClaims": [{"name": "own", "resourceClaimName": "shared"}, {"name": "gpu", "resourceClaimTemplateName": "t"}]});
        let mapping = |container: &str, resource: &str, request: &str| json!({"containerName": container, "resourceName": resource, "requestName": request});
        let status = json!({"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "made"}],
            "extendedResourceClaimStatus": {"resourceClaimName": "ext", "requestMappings": [
                mapping("b", "example.com/gpu", "r-0"), mapping("b", "example.com/gpu", "r-1"),
                mapping("b", "example.com/none", "r-2"), mapping("a", "example.com/gpu", "r-3")]}});
        let pod = pod(&spec, &status);
        let of = |at: usize, gate| {
            let container = &pod.spec.as_ref().unwrap().containers[at];
            let of = of_container(&pod, container, gate).unwrap();
            of.into_iter().map(|(claim, request)| format!("{claim}/{request}")).collect::<Vec<_>>()
        };
        assert_eq!(of(0, true), ["shared/", "made/r1", "made/r2"]);
        assert_eq!(of(1, true), ["ext/r-0", "ext/r-1"]);
        assert_eq!(of(1, false), Vec::<String>::new());
        assert_eq!(of(2, true), Vec::<String>::new());
        assert!(gives(&pod, "b", "example.com/gpu") && !gives(&pod, "c", "example.com/gpu"));
        assert!(!gives(&pod, "b", "cpu") && !gives(&pod, "b", "example.com/other"));
    }

    #[test]
    fn names_of_extended_resources() {
        for (name, is) in [
            ("example.com/gpu", true),
            ("deviceclass.resource.kubernetes.io/gpu", true),
            ("kubernetes.io/gpu", false),
            ("requests.example.com/gpu", false),
            ("Example.com/gpu", false),
            ("example.com/a/b", false),
            ("cpu", false),
            ("hugepages-2Mi", false),
        ] {
            assert_eq!(may_be_claimed(name), is, "{name}");
        }
    }

    #[test]
    fn who_may_use_a_claim() {
        let pod = pod(&json!({"containers": []}), &json!({}));
        let claim = |status: Value, owner: &str| -> ResourceClaim {
            let owner = json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": owner, "controller": true}]);
            let metadata = json!({"name": "c", "namespace": "ns", "uid": "claim-uid", "ownerReferences": owner});
            serde_json::from_value(json!({"metadata": metadata, "spec": {}, "status": status})).unwrap()
        };
        let reserved = json!([{"resource": "pods", "name": "p", "uid": "pod-uid"}]);
        let result = |driver: &str| json!({"request": "r", "driver": driver, "pool": "node", "device": "d"});
        let allocation = json!({"devices": {"results": [result("b.test"), result("a.test"), result("b.test")]}});
        let good = json!({"reservedFor": reserved, "allocation": allocation});
        let named = |of_template| NamedClaim { object: "c".into(), of_template };
        let state = usable(&pod, &named(true), &claim(good.clone(), "pod-uid"), false).unwrap();
        assert_eq!(state.driver_state.unwrap().into_keys().collect::<Vec<_>>(), ["a.test", "b.test"]);
        assert!(state.pod_uids.unwrap().contains_key("pod-uid"));
        assert!(usable(&pod, &named(false), &claim(good.clone(), "other"), false).is_ok(), "it is nobody's own");
        let why = |of_template, status: Value, owner: &str| {
            usable(&pod, &named(of_template), &claim(status, owner), false).unwrap_err().to_string()
        };
        assert_eq!(why(true, good, "other"), "ResourceClaim ns/c was not created for Pod ns/p (Pod is not owner)");
        let other = json!([{"resource": "pods", "name": "p", "uid": "another"}]);
        assert_eq!(
            why(false, json!({"reservedFor": other, "allocation": {}}), "pod-uid"),
            "pod p (pod-uid) is not allowed to use ResourceClaim c (claim-uid)"
        );
        assert_eq!(why(true, json!({"reservedFor": reserved}), "pod-uid"), "ResourceClaim c: not allocated");
    }

    /// Rows of upstream's `TestIsForPod`, `TestIsReservedForPod` and of the manager's tests with the gate.
    #[test]
    fn claims_of_a_pods_group() {
        let member = |group: Value| pod(&json!({"containers": [], "schedulingGroup": group}), &json!({}));
        let claim = |owner: Value, reserved: Value| -> ResourceClaim {
            let metadata = json!({"name": "c", "namespace": "ns", "uid": "claim-uid", "ownerReferences": [owner]});
            let status = json!({"reservedFor": [reserved], "allocation": {"devices": {}}});
            serde_json::from_value(json!({"metadata": metadata, "spec": {}, "status": status})).unwrap()
        };
        let owner = |api: &str, kind: &str, name: &str| json!({"apiVersion": api, "kind": kind, "name": name, "uid": "g", "controller": true});
        let owned = || owner("scheduling.k8s.io/v1alpha2", "PodGroup", "group");
        let reserved = |api: &str, resource: &str, name: &str| json!({"apiGroup": api, "resource": resource, "name": name, "uid": "g"});
        let kept = || reserved("scheduling.k8s.io", "podgroups", "group");
        let named = NamedClaim { object: "c".into(), of_template: true };
        let in_group = member(json!({"podGroupName": "group"}));
        let why = |pod: &Pod, owner: Value, reserved: Value, groups| {
            usable(pod, &named, &claim(owner, reserved), groups).err().map(|error| error.to_string())
        };
        assert_eq!(why(&in_group, owned(), kept(), true), None);
        let any_version = owner("scheduling.k8s.io/v9", "PodGroup", "group");
        assert_eq!(why(&in_group, any_version, kept(), true), None);
        let not_owned = "ResourceClaim ns/c was not created for Pod ns/p (Pod is not owner)";
        assert_eq!(why(&in_group, owned(), kept(), false).as_deref(), Some(not_owned), "without the gate");
        for outsider in [member(Value::Null), member(json!({}))] {
            assert_eq!(why(&outsider, owned(), kept(), true).as_deref(), Some(not_owned));
        }
        let neither = "ResourceClaim ns/c was not created for Pod ns/p (neither Pod nor PodGroup group is the owner)";
        for other in [
            owner("scheduling.k8s.io/v1alpha2", "PodGroup", "another"),
            owner("scheduling.k8s.io/v1alpha2", "Workload", "group"),
            owner("scheduling.k8s.io.example.com/v1", "PodGroup", "group"),
            owner("v1", "PodGroup", "group"),
        ] {
            assert_eq!(why(&in_group, other.clone(), kept(), true).as_deref(), Some(neither), "{other}");
        }
        let not_reserved = "pod p (pod-uid) is not allowed to use ResourceClaim c (claim-uid)";
        for other in [
            reserved("scheduling.k8s.io", "podgroups", "another"),
            reserved("scheduling.k8s.io", "workloads", "group"),
            reserved("", "podgroups", "group"),
        ] {
            assert_eq!(why(&in_group, owned(), other.clone(), true).as_deref(), Some(not_reserved), "{other}");
        }
        let mut elsewhere = claim(owned(), kept());
        elsewhere.metadata.namespace = Some("other".into());
        assert_eq!(
            usable(&in_group, &named, &elsewhere, true).unwrap_err().to_string(),
            "ResourceClaim other/c is not in the same namespace as Pod ns/p"
        );
    }
}
