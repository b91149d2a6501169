//! The pods that the sources want, as the main loop has taken them in.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bulkhead_types::PodUid;
use kubelet_model::v1::Pod;

use crate::pod_workers::PodFacts;
use kubelet_model::pod::source::SourceKind;
use kubelet_model::pod::spec;

/// One wanted pod.
#[derive(Debug, Clone)]
pub struct Desired {
    /// As everybody here sees it: with the resources that were granted to it.
    pub pod: Arc<Pod>,
    /// As its source has it. The same object where it asks for what it has.
    pub asked: Arc<Pod>,
    pub source: SourceKind,
}

/// All wanted pods by uid.
#[derive(Debug, Default)]
pub struct DesiredPods {
    pods: HashMap<PodUid, Desired>,
}

/// `<name>_<namespace>`.
pub fn full_name(pod: &Pod) -> String {
    let text = |t: &Option<String>| t.clone().unwrap_or_default();
    format!("{}_{}", text(&pod.metadata.name), text(&pod.metadata.namespace))
}

/// `<namespace>/<name>`, as upstream's log names a pod (klog's KObj).
pub fn object_ref(pod: &Pod) -> String {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    match pod.metadata.namespace.as_deref() {
        None | Some("") => name.to_owned(),
        Some(namespace) => format!("{namespace}/{name}"),
    }
}

/// What the pod workers need to know of it.
pub fn facts(pod: &Pod) -> PodFacts {
    let seconds = |value: Option<i64>| value.and_then(|s| u64::try_from(s).ok());
    PodFacts {
        full_name: full_name(pod),
        is_static: spec::is_static(pod),
        terminal_phase: pod.status.as_ref().is_some_and(spec::is_phase_terminal),
        deleted: spec::is_deleted(pod),
        deletion_grace: seconds(pod.metadata.deletion_grace_period_seconds),
        spec_grace: seconds(pod.spec.as_ref().and_then(|s| s.termination_grace_period_seconds)),
    }
}

/// Two versions of a pod of which only the status changed between them.
pub fn differ_in_status_only(one: &Pod, other: &Pod) -> bool {
    one.metadata == other.metadata && one.spec == other.spec
}

/// The conditions that the pod's readiness waits for (`readinessGates`) are not the same in both.
pub fn gates_differ(before: &Pod, now: &Pod) -> bool {
    let status_of = |pod: &Pod, kind: &str| -> Option<String> {
        let conditions = pod.status.as_ref()?.conditions.as_ref()?;
        Some(conditions.iter().find(|c| c.type_ == kind)?.status.clone())
    };
    let gates = now.spec.as_ref().and_then(|s| s.readiness_gates.as_deref()).unwrap_or(&[]);
    gates.iter().any(|gate| status_of(before, &gate.condition_type) != status_of(now, &gate.condition_type))
}

/// The pod's uid, when it is one; sources let nothing else through.
pub fn uid_of(pod: &Pod) -> Option<PodUid> {
    PodUid::parse(pod.metadata.uid.as_deref()?).ok()
}

impl DesiredPods {
    pub fn insert(&mut self, uid: PodUid, desired: Desired) {
        self.pods.insert(uid, desired);
    }

    pub fn remove(&mut self, uid: &PodUid) -> Option<Desired> {
        self.pods.remove(uid)
    }

    /// The pod has what it asks for.
    pub fn grant(&mut self, uid: &PodUid) {
        if let Some(desired) = self.pods.get_mut(uid) {
            desired.pod = desired.asked.clone();
        }
    }

    pub fn get(&self, uid: &PodUid) -> Option<&Desired> {
        self.pods.get(uid)
    }

    /// The pod as everybody here sees it.
    pub fn pod(&self, uid: &PodUid) -> Option<Arc<Pod>> {
        self.pods.get(uid).map(|desired| desired.pod.clone())
    }

    pub fn uids(&self) -> HashSet<PodUid> {
        self.pods.keys().cloned().collect()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&PodUid, &Desired)> {
        self.pods.iter()
    }

    pub fn len(&self) -> usize {
        self.pods.len()
    }

    pub fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }
}

/// Oldest first, so that pods that were there before a restart come before new ones.
pub fn oldest_first(pods: &mut [Arc<Pod>]) {
    let created = |pod: &Pod| pod.metadata.creation_timestamp.as_ref().map(|t| t.0);
    pods.sort_by_key(|pod| created(pod));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_named_as_in_upstreams_log() {
        let pod = |metadata| serde_json::from_value(serde_json::json!({ "metadata": metadata })).unwrap();
        assert_eq!(object_ref(&pod(serde_json::json!({"namespace": "kube-system", "name": "a"}))), "kube-system/a");
        assert_eq!(object_ref(&pod(serde_json::json!({"name": "a"}))), "a", "klog has no slash without a namespace");
    }

    #[test]
    fn only_conditions_that_readiness_waits_for_matter() {
        let pod = |conditions: serde_json::Value| -> Pod {
            serde_json::from_value(serde_json::json!({
                "metadata": {},
                "spec": {"containers": [], "readinessGates": [{"conditionType": "x.io/ok"}]},
                "status": {"conditions": conditions},
            }))
            .unwrap()
        };
        let one = |kind: &str, status: &str| pod(serde_json::json!([{"type": kind, "status": status}]));
        assert!(gates_differ(&pod(serde_json::json!([])), &one("x.io/ok", "False")));
        assert!(gates_differ(&one("x.io/ok", "False"), &one("x.io/ok", "True")));
        assert!(!gates_differ(&one("x.io/ok", "True"), &one("x.io/ok", "True")));
        assert!(!gates_differ(&one("Ready", "False"), &one("Ready", "True")));
        assert!(!gates_differ(&Pod::default(), &Pod::default()));
    }
}
