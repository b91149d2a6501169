//! ResourceClaims of a pod (dynamic resource allocation). No driver can be asked by this version, so a pod that has been
//! given devices is held back: its containers would run without them, and nobody would know. Pure.
//!
//! Upstream prepares the same claims before the sandbox is made (`pkg/kubelet/cm/dra/manager.go`).

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Pod, PodStatus};

/// Which claim cannot be prepared, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PrepareError {
    /// Upstream's words.
    #[error("ResourceClaim not created yet for pod claim {0:?}")]
    NotCreated(String),
    #[error("claim {0}: dynamic resource allocation is not in this version of the node yet")]
    NotYet(String),
}

/// The names of the ResourceClaims that the pod's devices come from, in the pod's order; last the one that the scheduler
/// made for its extended resources.
///
/// # Errors
/// A claim that is to be made from a template is not there yet.
pub fn claims(pod: &Pod) -> Result<Vec<String>, PrepareError> {
    let status = pod.status.as_ref();
    let mut names = Vec::new();
    for claim in pod.spec.iter().flat_map(|spec| spec.resource_claims.iter().flatten()) {
        match &claim.resource_claim_name {
            Some(name) => names.push(name.clone()),
            None => {
                let made = status.and_then(|s| s.resource_claim_statuses.as_ref());
                let made = made.into_iter().flatten().find(|made| made.name == claim.name);
                let made = made.ok_or_else(|| PrepareError::NotCreated(claim.name.clone()))?;
                // One that says so needed none.
                names.extend(made.resource_claim_name.clone());
            }
        }
    }
    names.extend(extended(status).map(|claim| claim.resource_claim_name.clone()));
    Ok(names)
}

/// What stands in the way of the pod's sandbox.
///
/// # Errors
/// The first claim, as no claim can be prepared.
pub fn prepare(pod: &Pod) -> Result<(), PrepareError> {
    match claims(pod)?.into_iter().next() {
        Some(claim) => Err(PrepareError::NotYet(claim)),
        None => Ok(()),
    }
}

/// The containers that have devices for extended resources from the scheduler's claim. A pod that was taken over from
/// upstream has its sandbox already, and such a container of it must not be started again without them.
pub fn with_extended_resources(pod: &Pod) -> BTreeSet<&str> {
    let mappings = extended(pod.status.as_ref()).into_iter().flat_map(|claim| &claim.request_mappings);
    mappings.map(|mapping| mapping.container_name.as_str()).collect()
}

fn extended(status: Option<&PodStatus>) -> Option<&k8s_openapi::api::core::v1::PodExtendedResourceClaimStatus> {
    status.and_then(|status| status.extended_resource_claim_status.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(spec: serde_json::Value, status: serde_json::Value) -> Pod {
        serde_json::from_value(serde_json::json!({"spec": spec, "status": status})).unwrap()
    }

    #[test]
    fn each_way_to_a_claim() {
        let none = pod(serde_json::json!({"containers": []}), serde_json::json!({}));
        assert_eq!((prepare(&none), claims(&none)), (Ok(()), Ok(vec![])));
        let of_template = serde_json::json!({"containers": [], "resourceClaims": [
            {"name": "own", "resourceClaimName": "shared"}, {"name": "gpu", "resourceClaimTemplateName": "t"}]});
        let waits = pod(of_template.clone(), serde_json::json!({}));
        assert_eq!(prepare(&waits), Err(PrepareError::NotCreated("gpu".into())));
        let made = serde_json::json!({"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "p-gpu-x"}],
            "extendedResourceClaimStatus": {"resourceClaimName": "p-extended", "requestMappings": [
                {"containerName": "c", "resourceName": "example.com/gpu", "requestName": "container-0-request-0"}]}});
        let made = pod(of_template, made);
        assert_eq!(claims(&made).unwrap(), ["shared", "p-gpu-x", "p-extended"]);
        assert_eq!(prepare(&made), Err(PrepareError::NotYet("shared".into())));
        assert_eq!(with_extended_resources(&made), BTreeSet::from(["c"]));
        let unneeded = pod(
            serde_json::json!({"containers": [], "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}]}),
            serde_json::json!({"resourceClaimStatuses": [{"name": "gpu"}]}),
        );
        assert_eq!(prepare(&unneeded), Ok(()));
    }
}
