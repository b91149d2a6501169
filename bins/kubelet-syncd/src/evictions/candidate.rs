//! What the eviction manager is told of a pod: amounts, limits and names, and nothing else of its spec. Pure.

use bulkhead_ipc::syncd::{Candidate, CandidateContainer, CandidateEmptyDir};
use bulkhead_types::Quantity;
use kubelet_model::pod::resources::{amounts, pod_limits, pod_overhead, pod_requests};
use kubelet_model::pod::spec::{PodIdentity, containers, init_containers, is_critical};
use kubelet_model::v1::{Container, Pod, Volume};

const EPHEMERAL: &str = "ephemeral-storage";

/// `None`: the pod has no name.
pub fn of(pod: &Pod) -> Option<Candidate> {
    let identity = PodIdentity::of(pod).ok()?;
    let spec = pod.spec.as_ref();
    let limit = pod_limits(pod, true).get(EPHEMERAL).copied();
    let pod_level = spec.and_then(|spec| spec.resources.as_ref());
    let own_memory = amounts(pod_level.and_then(|resources| resources.requests.as_ref())).get("memory").copied();
    let volumes = spec.and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
    let regular = containers(pod).iter().map(|one| container(one, false));
    Some(Candidate {
        uid: identity.uid.to_string(),
        namespace: identity.namespace.to_string(),
        name: identity.name.to_string(),
        priority: spec.and_then(|spec| spec.priority).unwrap_or(0),
        critical: is_critical(pod),
        grace_period_seconds: spec.and_then(|spec| spec.termination_grace_period_seconds),
        memory_request: request(pod, "memory"),
        ephemeral_storage_request: request(pod, EPHEMERAL),
        ephemeral_storage_limit: limit.map(Quantity::value),
        ephemeral_storage_limit_text: limit.map(|limit| limit.to_string()).unwrap_or_default(),
        pod_memory_request_text: own_memory.map(|request| request.to_string()),
        containers: regular.chain(init_containers(pod).iter().map(|one| container(one, true))).collect(),
        empty_dirs: volumes.iter().filter_map(empty_dir).collect(),
        local_volumes: volumes.iter().filter(|volume| is_local(volume)).map(|volume| volume.name.clone()).collect(),
    })
}

/// Whether its local storage has a limit, as a whole or a volume's.
pub fn is_limited(pod: &Pod) -> bool {
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
    volumes.iter().any(|volume| empty_dir(volume).is_some()) || pod_limits(pod, true).contains_key(EPHEMERAL)
}

/// Overhead counts only where something is asked for (upstream `pkg/api/v1/resource` GetResourceRequestQuantity).
fn request(pod: &Pod, resource: &str) -> i64 {
    let own = pod_requests(pod, false).get(resource).map_or(0, |amount| amount.value());
    let overhead = pod_overhead(pod).get(resource).map_or(0, |amount| amount.value());
    if own == 0 { 0 } else { own.saturating_add(overhead) }
}

fn container(container: &Container, init: bool) -> CandidateContainer {
    let resources = container.resources.as_ref();
    let requests = amounts(resources.and_then(|resources| resources.requests.as_ref()));
    let limits = amounts(resources.and_then(|resources| resources.limits.as_ref()));
    let of = |name: &str| requests.get(name).copied().unwrap_or(Quantity::ZERO);
    let limit = limits.get(EPHEMERAL).copied().unwrap_or(Quantity::ZERO);
    CandidateContainer {
        name: container.name.clone(),
        init,
        memory_request: of("memory").value(),
        memory_request_text: of("memory").to_string(),
        ephemeral_storage_request: of(EPHEMERAL).value(),
        ephemeral_storage_request_text: of(EPHEMERAL).to_string(),
        ephemeral_storage_limit: limit.value(),
        ephemeral_storage_limit_text: limit.to_string(),
    }
}

fn empty_dir(volume: &Volume) -> Option<CandidateEmptyDir> {
    let limit = Quantity::parse(&volume.empty_dir.as_ref()?.size_limit.as_ref()?.0).ok()?;
    (!limit.is_zero() && !limit.is_negative()).then(|| CandidateEmptyDir {
        name: volume.name.clone(),
        size_limit: limit.value(),
        size_limit_text: limit.to_string(),
    })
}

/// Upstream `localVolumeNames` and `IsLocalEphemeralVolume`: secrets, tokens and the like lie in memory.
fn is_local(volume: &Volume) -> bool {
    let on_disk = |empty: &k8s_openapi::api::core::v1::EmptyDirVolumeSource| {
        empty.medium.as_deref().unwrap_or_default().is_empty()
    };
    volume.host_path.is_some()
        || volume.config_map.is_some()
        || volume.git_repo.is_some()
        || volume.empty_dir.as_deref().is_some_and(on_disk)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn amounts_and_names() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "team", "uid": "u1"},
            "spec": {
                "priority": 7,
                "terminationGracePeriodSeconds": 5,
                "overhead": {"memory": "1Mi", "ephemeral-storage": "1Mi"},
                "containers": [
                    {"name": "a", "resources": {"requests": {"memory": "64Mi"}, "limits": {"ephemeral-storage": "1500Mi"}}},
                    {"name": "b", "resources": {"limits": {"ephemeral-storage": "1Gi"}}}
                ],
                "initContainers": [{"name": "i", "resources": {"requests": {"memory": "100Mi"}}}],
                "volumes": [
                    {"name": "scratch", "emptyDir": {"sizeLimit": "1Gi"}},
                    {"name": "zero", "emptyDir": {"sizeLimit": "0"}},
                    {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "5M"}},
                    {"name": "config", "configMap": {"name": "c"}},
                    {"name": "keys", "secret": {"secretName": "s"}},
                    {"name": "host", "hostPath": {"path": "/var/lib/x"}}
                ]
            }
        }))
        .unwrap();
        let candidate = of(&pod).unwrap();
        assert_eq!((candidate.priority, candidate.critical, candidate.grace_period_seconds), (7, false, Some(5)));
        assert_eq!(candidate.memory_request, 101 << 20, "the init container's is the largest, with overhead");
        assert_eq!(candidate.ephemeral_storage_request, 0, "nothing asked for, no overhead");
        assert_eq!(candidate.ephemeral_storage_limit, Some((1500 + 1024 + 1) << 20));
        assert_eq!(candidate.ephemeral_storage_limit_text, "2525Mi");
        assert_eq!(candidate.pod_memory_request_text, None);
        let names: Vec<_> = candidate.containers.iter().map(|one| (one.name.as_str(), one.init)).collect();
        assert_eq!(names, [("a", false), ("b", false), ("i", true)]);
        assert_eq!(candidate.containers[0].memory_request_text, "64Mi");
        assert_eq!(candidate.containers[1].memory_request_text, "0");
        let limited: Vec<_> =
            candidate.empty_dirs.iter().map(|dir| (dir.name.as_str(), dir.size_limit_text.as_str())).collect();
        assert_eq!(limited, [("scratch", "1Gi"), ("shm", "5M")]);
        assert_eq!(candidate.local_volumes, ["scratch", "zero", "config", "host"]);
    }

    #[test]
    fn limits_of_local_storage() {
        let is_limited = |container: serde_json::Value, volume: serde_json::Value| {
            let spec = json!({"containers": [container], "volumes": [volume]});
            is_limited(
                &serde_json::from_value(json!({"metadata": {"name": "web", "uid": "u1"}, "spec": spec})).unwrap(),
            )
        };
        let free = json!({"name": "a", "resources": {"limits": {"memory": "1Gi"}}});
        let limited = json!({"name": "a", "resources": {"limits": {"ephemeral-storage": "1Gi"}}});
        let (empty, sized) =
            (json!({"name": "v", "emptyDir": {}}), json!({"name": "v", "emptyDir": {"sizeLimit": "1Gi"}}));
        assert!(!is_limited(free.clone(), empty.clone()));
        assert!(is_limited(free, sized) && is_limited(limited, empty));
    }

    #[test]
    fn pod_level_resources_count_in_place_of_the_containers() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "web", "uid": "u1"},
            "spec": {
                "resources": {"requests": {"memory": "2Gi"}},
                "containers": [{"name": "a", "resources": {"requests": {"memory": "64Mi"}}}]
            }
        }))
        .unwrap();
        let candidate = of(&pod).unwrap();
        assert_eq!((candidate.memory_request, candidate.pod_memory_request_text.as_deref()), (2 << 30, Some("2Gi")));
        assert_eq!(of(&Pod::default()), None);
    }
}
