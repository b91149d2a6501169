//! What operations on volumes need to know of the pod that wants them. None of it ever changes, so the pod itself, which does, is not
//! kept for them.

use kubelet_model::pod::spec::PodIdentity;
use kubelet_model::v1::Pod;

/// See the module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodFacts {
    /// Whom events are about; `None`: the pod has no usable name.
    pub identity: Option<PodIdentity>,
    pub service_account: String,
    /// securityContext.fsGroup.
    pub fs_group: Option<i64>,
    /// securityContext.fsGroupChangePolicy is OnRootMismatch.
    pub on_root_mismatch: bool,
}

impl PodFacts {
    pub fn of(pod: &Pod) -> Self {
        let spec = pod.spec.as_ref();
        let security = spec.and_then(|spec| spec.security_context.as_ref());
        let policy = security.and_then(|security| security.fs_group_change_policy.as_deref());
        PodFacts {
            identity: PodIdentity::of(pod).ok(),
            service_account: spec.and_then(|spec| spec.service_account_name.clone()).unwrap_or_default(),
            fs_group: security.and_then(|security| security.fs_group),
            on_root_mismatch: policy == Some("OnRootMismatch"),
        }
    }
}
