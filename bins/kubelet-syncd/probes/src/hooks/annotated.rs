//! The preStop hook that a container's annotations name: all that is known of one whose pod is gone from every source.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ContainerPort, LifecycleHandler};

use kubelet_model::pod::labels::{CONTAINER_PORTS, PRE_STOP_HANDLER};

/// The hook, and the ports that it may name. What cannot be read is as good as absent: the container has to end in any
/// case.
pub fn pre_stop(annotations: &BTreeMap<String, String>) -> Option<(LifecycleHandler, Vec<ContainerPort>)> {
    let handler = serde_json::from_str(annotations.get(PRE_STOP_HANDLER)?).ok()?;
    let ports = annotations.get(CONTAINER_PORTS).and_then(|json| serde_json::from_str(json).ok());
    Some((handler, ports.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kubelet_model::pod::labels::container_annotations;

    #[test]
    fn what_was_noted_is_read_back() {
        let pod = kubelet_model::fixtures::pod(serde_json::json!({"containers": [{"name": "a",
            "ports": [{"name": "web", "containerPort": 8080}],
            "lifecycle": {"preStop": {"httpGet": {"path": "/a?b<c", "port": "web", "httpHeaders": [{"name": "X", "value": "&"}]}}}}]}));
        let container = &pod.spec.as_ref().unwrap().containers[0];
        let (handler, ports) = pre_stop(&container_annotations(container, &pod, 0)).unwrap();
        assert_eq!(Some(&handler), container.lifecycle.as_ref().unwrap().pre_stop.as_ref());
        assert_eq!((ports[0].name.as_deref(), ports[0].container_port), (Some("web"), 8080));
    }

    #[test]
    fn nonsense_is_no_hook() {
        let of = |hook: &str, ports: &str| {
            let pairs = [(PRE_STOP_HANDLER, hook), (CONTAINER_PORTS, ports)];
            pre_stop(&pairs.map(|(k, v)| (k.to_owned(), v.to_owned())).into())
        };
        assert_eq!(pre_stop(&BTreeMap::new()), None);
        assert_eq!(of("{", ""), None);
        let (handler, ports) = of(r#"{"sleep":{"seconds":2}}"#, "[{").unwrap();
        assert_eq!((handler.sleep.map(|s| s.seconds), ports.len()), (Some(2), 0));
    }
}
