//! Whose log is shown: which instance of a container, or why there is none yet (upstream `pkg/kubelet/kubelet_pods.go`
//! validateContainerLogStatus).

use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, PodStatus};

/// Why there is no instance to show. The texts are upstream's, which people and tests look for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoInstance {
    #[error("container {container:?} in pod {pod:?} is not available")]
    NoStatus { container: String, pod: String },
    #[error("previous terminated container {container:?} in pod {pod:?} not found")]
    NoPrevious { container: String, pod: String },
    #[error("container {container:?} in pod {pod:?} is terminated")]
    Terminated { container: String, pod: String },
    #[error("container {container:?} in pod {pod:?} is waiting to start: {why}")]
    Waiting { container: String, pod: String, why: String },
    #[error("container {container:?} in pod {pod:?} is waiting to start - no logs yet")]
    NoState { container: String, pod: String },
}

/// The id (`<runtime>://<id>`) of the instance whose log is wanted. The one that runs comes before the one that ended;
/// `previous` asks for the one before.
///
/// # Errors
/// There is none.
pub fn choose<'a>(status: &'a PodStatus, pod: &str, container: &str, previous: bool) -> Result<&'a str, NoInstance> {
    let names = || (container.to_owned(), pod.to_owned());
    let Some(status) = status_of(status, container) else {
        let (container, pod) = names();
        return Err(NoInstance::NoStatus { container, pod });
    };
    let last = status.last_state.as_ref().and_then(|state| state.terminated.as_ref());
    let state = status.state.as_ref();
    let is_running = state.is_some_and(|state| state.running.is_some());
    let ended = state.and_then(|state| state.terminated.as_ref());
    let waiting = state.and_then(|state| state.waiting.as_ref());
    if previous {
        return last.and_then(id_of).ok_or_else(|| {
            let (container, pod) = names();
            NoInstance::NoPrevious { container, pod }
        });
    }
    if is_running {
        return Ok(status.container_id.as_deref().unwrap_or_default());
    }
    let terminated = || {
        let (container, pod) = names();
        NoInstance::Terminated { container, pod }
    };
    if let Some(ended) = ended {
        // One that could not be started has no id: the one before has something to say.
        return id_of(ended).or_else(|| last.and_then(id_of)).ok_or_else(terminated);
    }
    if let Some(last) = last {
        return id_of(last).ok_or_else(terminated);
    }
    let (container, pod) = names();
    let Some(waiting) = waiting else { return Err(NoInstance::NoState { container, pod }) };
    let why = match waiting.reason.as_deref().unwrap_or_default() {
        "ErrImagePull" => "image can't be pulled",
        "ImagePullBackOff" => "trying and failing to pull image",
        reason => reason,
    };
    Err(NoInstance::Waiting { container, pod, why: why.to_owned() })
}

fn status_of<'a>(status: &'a PodStatus, container: &str) -> Option<&'a ContainerStatus> {
    let lists = [&status.container_statuses, &status.init_container_statuses, &status.ephemeral_container_statuses];
    lists.into_iter().flatten().flatten().find(|status| status.name == container)
}

fn id_of(ended: &ContainerStateTerminated) -> Option<&str> {
    ended.container_id.as_deref().filter(|id| !id.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn chosen(list: &str, state: &Value, last: &Value, previous: bool) -> Result<String, String> {
        let status = json!({list: [
            {"name": "other", "state": {"running": {}}, "containerID": "containerd://other", "image": "", "imageID": "",
             "ready": true, "restartCount": 0},
            {"name": "c", "state": state, "lastState": last, "containerID": "containerd://now", "image": "",
             "imageID": "", "ready": false, "restartCount": 1}]});
        let status: PodStatus = serde_json::from_value(status).unwrap();
        choose(&status, "p", "c", previous).map(str::to_owned).map_err(|error| error.to_string())
    }

    #[test]
    fn table() {
        let none = json!({});
        let running = json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}});
        let ended = |id: &str| json!({"terminated": {"exitCode": 0, "containerID": id}});
        let waiting = |reason: &str| json!({"waiting": {"reason": reason}});
        let not_found = r#"previous terminated container "c" in pod "p" not found"#;
        let terminated = r#"container "c" in pod "p" is terminated"#;
        for (state, last, previous, expected) in [
            (&running, &none, false, Ok("containerd://now")),
            (&running, &ended("containerd://a"), false, Ok("containerd://now")),
            (&running, &ended("containerd://a"), true, Ok("containerd://a")),
            (&running, &none, true, Err(not_found)),
            (&running, &ended(""), true, Err(not_found)),
            (&ended("containerd://b"), &ended("containerd://a"), false, Ok("containerd://b")),
            (&ended(""), &ended("containerd://a"), false, Ok("containerd://a")),
            (&ended(""), &none, false, Err(terminated)),
            (&ended(""), &ended(""), false, Err(terminated)),
            (&waiting("CrashLoopBackOff"), &ended("containerd://a"), false, Ok("containerd://a")),
            (&waiting("CrashLoopBackOff"), &ended("containerd://a"), true, Ok("containerd://a")),
            (&waiting("CrashLoopBackOff"), &ended(""), false, Err(terminated)),
            (
                &waiting("ContainerCreating"),
                &none,
                false,
                Err(r#"container "c" in pod "p" is waiting to start: ContainerCreating"#),
            ),
            (
                &waiting("PodInitializing"),
                &none,
                false,
                Err(r#"container "c" in pod "p" is waiting to start: PodInitializing"#),
            ),
            (
                &waiting("ErrImagePull"),
                &none,
                false,
                Err(r#"container "c" in pod "p" is waiting to start: image can't be pulled"#),
            ),
            (
                &waiting("ImagePullBackOff"),
                &none,
                false,
                Err(r#"container "c" in pod "p" is waiting to start: trying and failing to pull image"#),
            ),
            (&waiting("ErrImagePull"), &none, true, Err(not_found)),
            (&none, &none, false, Err(r#"container "c" in pod "p" is waiting to start - no logs yet"#)),
        ] {
            for list in ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"] {
                let expected = expected.map(str::to_owned).map_err(str::to_owned);
                assert_eq!(chosen(list, state, last, previous), expected, "{list} {state} {last} {previous}");
            }
        }
        let error = choose(&PodStatus::default(), "p", "c", false).unwrap_err();
        assert_eq!(error.to_string(), r#"container "c" in pod "p" is not available"#);
    }
}
