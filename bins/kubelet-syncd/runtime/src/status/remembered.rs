//! What the first status of a pod after a restart of the process goes on from: nothing of its own is left.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PodStatus;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kubelet_model::pod::model::RuntimePod;
use kubelet_model::pod::spec::{host_network, is_static};
use kubelet_model::v1::Pod;

/// The API server's copy tells what was said before, and the oldest sandbox since when the pod has been here. None: the runtime has
/// nothing of the pod, so that it begins.
///
/// `mirror`: the status that the API server has of a static pod. It remembers the times: phase and containers are looked up anew, for
/// a static pod runs again after its end. Where there is no mirror, as without an API server, a static pod's start time begins anew
/// (upstream `pkg/kubelet/status/status_manager.go` updateStatusInternal, whose old status is that of the mirror pod or of the
/// manifest). It remembers the host's addresses as well, which may not be known again yet; those of a network of the pod's own the
/// runtime knows.
pub fn remembered(pod: &Pod, runtime: &RuntimePod, mirror: Option<PodStatus>) -> Option<PodStatus> {
    let oldest = runtime.sandboxes.iter().map(|s| s.created_at).min()?;
    let status = pod.status.clone().unwrap_or_default();
    if is_static(pod) {
        let mirror = mirror.unwrap_or_default();
        let (pod_ip, pod_ips) =
            if host_network(pod) { (mirror.pod_ip, mirror.pod_ips) } else { (status.pod_ip, status.pod_ips) };
        return Some(PodStatus {
            start_time: mirror.start_time.or(status.start_time),
            conditions: mirror.conditions.or(status.conditions),
            host_ip: mirror.host_ip,
            host_ips: mirror.host_ips,
            pod_ip,
            pod_ips,
            ..status
        });
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

    #[test]
    fn addresses_of_the_host_that_a_mirror_tells() {
        let here =
            RuntimePod { sandboxes: vec![sandbox_status("s", 0, SandboxState::NotReady)], ..RuntimePod::default() };
        let addresses = |status: &PodStatus| {
            let host = status.host_ips.iter().flatten().map(|host| host.ip.clone()).collect::<Vec<_>>().join(" ");
            let pod = status.pod_ips.iter().flatten().map(|pod| pod.ip.clone()).collect::<Vec<_>>().join(" ");
            assert_eq!(status.host_ip.as_deref().unwrap_or_default(), host);
            assert_eq!(status.pod_ip.as_deref().unwrap_or_default(), pod);
            (host, pod)
        };
        for (host_network, has_mirror, expected) in [
            (true, true, ("10.0.0.1", "10.0.0.1")),
            // The runtime has given it another address, or does so when its sandbox is replaced.
            (false, true, ("10.0.0.1", "")),
            (true, false, ("", "")),
        ] {
            let pod = pod(serde_json::json!({"hostNetwork": host_network, "containers": [{"name": "c"}]}));
            let told = serde_json::json!({"hostIP": "10.0.0.1", "hostIPs": [{"ip": "10.0.0.1"}],
                "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}]});
            let mirror = has_mirror.then(|| serde_json::from_value(told).unwrap());
            let (host, pod) = addresses(&remembered(&pod, &here, mirror).unwrap());
            assert_eq!((host.as_str(), pod.as_str()), expected, "{host_network} {has_mirror}");
        }
    }
}
