//! How a container is stopped: its grace period, and which containers have to end before it
//! (upstream `killContainer`, `kuberuntime_termination_order.go`).

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Probe;
use kubelet_model::v1::{Container, Pod};

use super::actions::KillReason;
use kubelet_model::pod::model::ContainerStatus;
use kubelet_model::pod::spec::{containers, init_containers, is_sidecar};

/// Every container gets at least this long between the stop signal and the kill, seconds.
pub const MINIMUM_GRACE: i64 = 2;
/// Grace of a pod of which only the runtime knows, seconds.
pub const ORPHAN_GRACE: i64 = 1;

/// Grace period of a container in seconds, before the floor. `over` replaces everything (eviction, shutdown).
pub fn grace(pod: &Pod, container: Option<&Container>, reason: KillReason, over: Option<i64>) -> i64 {
    if let Some(over) = over {
        return over;
    }
    if let Some(deletion) = pod.metadata.deletion_grace_period_seconds {
        return deletion;
    }
    let Some(of_pod) = pod.spec.as_ref().and_then(|s| s.termination_grace_period_seconds) else {
        return MINIMUM_GRACE;
    };
    let own = |probe: Option<&Probe>| probe.and_then(|p| p.termination_grace_period_seconds);
    let of_probe = match reason {
        KillReason::StartupProbe => own(container.and_then(|c| c.startup_probe.as_deref())),
        KillReason::LivenessProbe => own(container.and_then(|c| c.liveness_probe.as_deref())),
        KillReason::Unknown | KillReason::RestartAllContainers => None,
    };
    of_probe.unwrap_or(of_pod)
}

/// Grace period in seconds of a container whose pod is unknown, from what was noted on the container itself.
pub fn orphan_grace(status: &ContainerStatus, over: Option<i64>) -> i64 {
    over.or(status.pod_deletion_grace).or(status.pod_termination_grace).unwrap_or(MINIMUM_GRACE)
}

/// What is passed to StopContainer, seconds.
pub fn with_floor(grace: i64) -> i64 {
    grace.max(MINIMUM_GRACE)
}

/// For each running container the running ones that have to end before it: sidecars wait for all regular containers
/// and for the sidecars that come after them. What is not running has ended.
pub fn predecessors(pod: &Pod, running: &BTreeSet<String>) -> BTreeMap<String, BTreeSet<String>> {
    let regular = containers(pod).iter().map(|c| c.name.clone()).filter(|name| running.contains(name));
    let mut before: BTreeSet<String> = regular.collect();
    let mut result = BTreeMap::new();
    for sidecar in init_containers(pod).iter().filter(|c| is_sidecar(c)).rev() {
        if running.contains(&sidecar.name) {
            result.insert(sidecar.name.clone(), before.clone());
            before.insert(sidecar.name.clone());
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use kubelet_model::fixtures::{container_status, pod};
    use kubelet_model::pod::model::RunState;

    #[test]
    fn grace_periods() {
        let spec = serde_json::json!({"terminationGracePeriodSeconds": 30, "containers": [{"name": "c",
            "livenessProbe": {"terminationGracePeriodSeconds": 5}, "startupProbe": {}}]});
        let mut p = pod(spec);
        let of = |p: &Pod, reason, over| grace(p, Some(&containers(p)[0]), reason, over);
        assert_eq!(of(&p, KillReason::Unknown, None), 30);
        assert_eq!(of(&p, KillReason::LivenessProbe, None), 5);
        assert_eq!(of(&p, KillReason::StartupProbe, None), 30);
        assert_eq!(of(&p, KillReason::LivenessProbe, Some(0)), 0);
        p.metadata.deletion_grace_period_seconds = Some(7);
        assert_eq!(of(&p, KillReason::LivenessProbe, None), 7);
        p.metadata.deletion_grace_period_seconds = None;
        p.spec.as_mut().unwrap().termination_grace_period_seconds = None;
        assert_eq!(of(&p, KillReason::LivenessProbe, None), 2);
        assert_eq!((with_floor(0), with_floor(9)), (2, 9));
        let mut status = container_status("c", RunState::Running, 0);
        assert_eq!(orphan_grace(&status, None), 2);
        status.pod_termination_grace = Some(20);
        assert_eq!(orphan_grace(&status, None), 20);
        status.pod_deletion_grace = Some(3);
        assert_eq!((orphan_grace(&status, None), orphan_grace(&status, Some(1))), (3, 1));
    }

    #[test]
    fn sidecars_end_last_and_in_reverse() {
        let p = pod(serde_json::json!({"initContainers": [
            {"name": "s1", "restartPolicy": "Always"}, {"name": "i"}, {"name": "s2", "restartPolicy": "Always"}],
            "containers": [{"name": "a"}, {"name": "b"}]}));
        let set = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<BTreeSet<_>>();
        let order = predecessors(&p, &set(&["s1", "s2", "a"]));
        assert_eq!(order.get("a"), None);
        assert_eq!(order["s2"], set(&["a"]));
        assert_eq!(order["s1"], set(&["a", "s2"]));
        assert_eq!(predecessors(&p, &set(&["s1"]))["s1"], set(&[]));
    }
}
