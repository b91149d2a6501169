//! Readiness alone, put into a status that is otherwise told as it was (upstream `pkg/kubelet/status/status_manager.go`
//! SetContainerReadiness).

use std::collections::BTreeMap;

use bulkhead_types::ContainerId;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::PodStatus;
use kubelet_model::v1::Pod;

use super::conditions;
use super::containers::seconds;
use kubelet_probes::prober::results::ProbeResult;

/// The status with the containers' readiness as probes found it. None: nothing differs.
pub fn with_readiness(
    pod: &Pod,
    last: &PodStatus,
    results: &BTreeMap<ContainerId, ProbeResult>,
    now: Timestamp,
) -> Option<PodStatus> {
    let mut status = last.clone();
    let mut differs = false;
    let lists = [&mut status.init_container_statuses, &mut status.container_statuses];
    for container in lists.into_iter().flatten().flatten() {
        let id = container.container_id.as_deref().and_then(|id| ContainerId::parse(id.rsplit("://").next()?).ok());
        let Some(result) = id.and_then(|id| results.get(&id)) else { continue };
        let is_ready = *result == ProbeResult::Success;
        differs |= std::mem::replace(&mut container.ready, is_ready) != is_ready;
    }
    if differs {
        conditions::renew_readiness(pod, last, &mut status, seconds(now));
    }
    differs.then_some(status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_that_ends_stops_being_ready() {
        let pod: Pod = serde_json::from_value(serde_json::json!({"metadata": {},
            "spec": {"containers": [{"name": "a"}, {"name": "b"}]}}))
        .unwrap();
        let container = |name: &str, ready: bool| {
            serde_json::json!({"name": name, "image": "", "imageID": "", "restartCount": 0, "ready": ready, "started": true,
                "containerID": format!("containerd://{name}-id"), "state": {"running": {}}})
        };
        let condition = |kind: &str, status: &str| serde_json::json!({"type": kind, "status": status, "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let last: PodStatus = serde_json::from_value(serde_json::json!({"phase": "Running",
            "conditions": [condition("Initialized", "True"), condition("Ready", "True"), condition("ContainersReady", "True")],
            "containerStatuses": [container("a", true), container("b", true)]})).unwrap();
        let results = |result| BTreeMap::from([(ContainerId::parse("b-id").unwrap(), result)]);
        let now: Timestamp = "2026-02-02T02:02:02.5Z".parse().unwrap();
        assert_eq!(with_readiness(&pod, &last, &results(ProbeResult::Success), now), None);
        assert_eq!(with_readiness(&pod, &last, &BTreeMap::new(), now), None);
        let status = with_readiness(&pod, &last, &results(ProbeResult::Failure), now).unwrap();
        let shown = serde_json::to_value(&status).unwrap();
        assert_eq!(shown["containerStatuses"][0]["ready"], true);
        assert_eq!(shown["containerStatuses"][1]["ready"], false);
        assert_eq!(shown["conditions"][0]["lastTransitionTime"], "2026-01-01T00:00:00Z");
        for at in [1, 2] {
            assert_eq!(shown["conditions"][at]["status"], "False");
            assert_eq!(shown["conditions"][at]["reason"], "ContainersNotReady");
            assert_eq!(shown["conditions"][at]["message"], "containers with unready status: [b]");
            assert_eq!(shown["conditions"][at]["lastTransitionTime"], "2026-02-02T02:02:02Z");
        }
    }
}
