//! Which containers have ended between two statuses of a pod, to be counted (upstream status manager,
//! checkAndRecordTerminations).

use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};

use super::containers::terminated_of;

/// A container's end, in the words of `kubelet_terminated_containers_total`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    /// "container", "init_container" or "ephemeral_container".
    pub container_type: &'static str,
    pub exit_code: i32,
    /// May be empty.
    pub reason: String,
}

/// What is ended in `new` and was not in `old`. An instance that follows another without a status between them that shows
/// it alive is not told apart from it.
pub fn since(old: Option<&PodStatus>, new: &PodStatus) -> Vec<End> {
    type List = fn(&PodStatus) -> Option<&Vec<ContainerStatus>>;
    let lists: [(&'static str, List); 3] = [
        ("init_container", |status| status.init_container_statuses.as_ref()),
        ("container", |status| status.container_statuses.as_ref()),
        ("ephemeral_container", |status| status.ephemeral_container_statuses.as_ref()),
    ];
    let mut ends = Vec::new();
    for (container_type, list) in lists {
        let before: &[ContainerStatus] = old.and_then(list).map_or(&[], Vec::as_slice);
        for after in list(new).into_iter().flatten() {
            let Some(end) = terminated_of(after.state.as_ref()) else { continue };
            let known = before.iter().find(|one| one.name == after.name);
            if known.is_none_or(|one| terminated_of(one.state.as_ref()).is_none()) {
                let reason = end.reason.clone().unwrap_or_default();
                ends.push(End { container_type, exit_code: end.exit_code, reason });
            }
        }
    }
    ends
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn status(list: &str, states: &[(&str, Value)]) -> PodStatus {
        let of = |(name, state): &(&str, Value)| json!({"name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state});
        serde_json::from_value(json!({list: states.iter().map(of).collect::<Vec<_>>()})).unwrap()
    }

    #[test]
    fn each_end_once_by_its_kind() {
        let (running, ended) = (json!({"running": {}}), json!({"terminated": {"exitCode": 3, "reason": "Error"}}));
        for (list, container_type) in [
            ("initContainerStatuses", "init_container"),
            ("containerStatuses", "container"),
            ("ephemeralContainerStatuses", "ephemeral_container"),
        ] {
            let alive = status(list, &[("a", running.clone()), ("b", running.clone())]);
            let one = status(list, &[("a", ended.clone()), ("b", running.clone())]);
            let end = End { container_type, exit_code: 3, reason: "Error".into() };
            assert_eq!(since(Some(&alive), &one), std::slice::from_ref(&end));
            assert_eq!(since(Some(&one), &one), []);
            assert_eq!(since(Some(&one), &alive), [], "it runs again");
            assert_eq!(since(None, &one), [end], "it had ended when it was first looked at");
        }
    }
}
