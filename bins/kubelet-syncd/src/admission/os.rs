//! Pods for another operating system, and a groups policy that the runtime cannot keep (upstream
//! `pkg/kubelet/lifecycle/predicate.go`): nothing that making room could help.

use kubelet_model::v1::Pod;

use super::Rejection;
use super::node_info::{NodeInfo, OS, OS_LABEL};

pub(super) fn check(pod: &Pod, node: &NodeInfo) -> Option<Rejection> {
    if pod.metadata.labels.as_ref().and_then(|l| l.get(OS_LABEL)).is_some_and(|os| os != OS) {
        return Some(Rejection::new(
            "PodOSSelectorNodeLabelDoesNotMatch",
            "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label",
        ));
    }
    let spec = pod.spec.as_ref()?;
    if spec.os.as_ref().is_some_and(|os| os.name != OS) {
        return Some(Rejection::new("PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS"));
    }
    let policy = spec.security_context.as_ref().and_then(|c| c.supplemental_groups_policy.as_deref());
    if policy == Some("Strict") && node.supplemental_groups_policy == Some(false) {
        return Some(Rejection::new(
            "SupplementalGroupsPolicyNotSupported",
            "SupplementalGroupsPolicy=Strict is not supported in this node",
        ));
    }
    None
}
