//! What the first status of a pod after a restart of the process goes on from: nothing of its own is left.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PodStatus;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kubelet_model::pod::model::RuntimePod;
use kubelet_model::pod::spec::is_static;
use kubelet_model::v1::Pod;

/// The API server's copy tells what was said before, and the oldest sandbox since when the pod has been here. None: the runtime has
/// nothing of the pod, so that it begins.
///
/// `mirror`: the status that the API server has of a static pod. It remembers the times: phase and containers are looked up anew, for
/// a static pod runs again after its end. Where there is no mirror, as without an API server, a static pod's start time begins anew
/// (upstream `pkg/kubelet/status/status_manager.go` updateStatusInternal, whose old status is that of the mirror pod or of the
/// manifest).
pub fn remembered(pod: &Pod, runtime: &RuntimePod, mirror: Option<PodStatus>) -> Option<PodStatus> {
    let oldest = runtime.sandboxes.iter().map(|s| s.created_at).min()?;
    let status = pod.status.clone().unwrap_or_default();
    if is_static(pod) {
        let mirror = mirror.unwrap_or_default();
        let (start_time, conditions) =
            (mirror.start_time.or(status.start_time), mirror.conditions.or(status.conditions));
        return Some(PodStatus { start_time, conditions, ..status });
    }
    let since = || Timestamp::from_second(Timestamp::try_from(oldest).ok()?.as_second()).ok().map(Time);
    Some(PodStatus { start_time: status.start_time.or_else(since), ..status })
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;
    use kubelet_model::fixtures::{pod, sandbox_status};
    use kubelet_model::pod::model::SandboxState;

    fn status(start: Option<i64>) -> PodStatus {
        let start_time = start.map(|second| Time(Timestamp::from_second(second).unwrap()));
        PodStatus { phase: Some("Running".to_owned()), start_time, ..PodStatus::default() }
    }

    #[test]
    fn since_when_a_pod_has_been_here() {
        let sandbox = |second: u64| {
            let created_at = SystemTime::UNIX_EPOCH + Duration::from_millis(second * 1000 + 700);
            kubelet_model::pod::model::SandboxStatus { created_at, ..sandbox_status("s", 0, SandboxState::Ready) }
        };
        let here = RuntimePod { sandboxes: vec![sandbox(9), sandbox(7)], ..RuntimePod::default() };
        let start = |is_static: bool, told: Option<i64>, mirror: Option<i64>| {
            let mut pod = pod(serde_json::json!({"containers": [{"name": "c"}]}));
            if !is_static {
                pod.metadata.annotations = None;
            }
            pod.status = told.map(|second| status(Some(second)));
            let remembered = remembered(&pod, &here, mirror.map(|second| status(Some(second)))).unwrap();
            assert_eq!(remembered.phase, pod.status.and_then(|status| status.phase), "a mirror tells none");
            remembered.start_time.map(|time| time.0.as_second())
        };
        for (is_static, told, mirror, expected) in [
            (false, Some(5), None, Some(5)),
            (false, None, None, Some(7)),
            (true, None, Some(6), Some(6)),
            (true, None, None, None),
        ] {
            assert_eq!(start(is_static, told, mirror), expected, "{is_static} {told:?} {mirror:?}");
        }
        let pod = pod(serde_json::json!({"containers": [{"name": "c"}]}));
        assert_eq!(remembered(&pod, &RuntimePod::default(), Some(status(Some(6)))), None, "it begins");
    }
}
