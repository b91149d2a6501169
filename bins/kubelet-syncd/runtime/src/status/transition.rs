//! Updates that contradict what was said before: a container that has ended for good cannot run again. Such an update
//! comes from a mistake and is thrown away (upstream status manager, checkContainerStateTransition).

use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};
use kubelet_model::v1::Pod;

use super::containers::terminated_of;
use kubelet_model::pod::restart::{may_restart, may_restart_all};
use kubelet_model::pod::spec::{find_container, init_containers, is_sidecar, restart_policy};

/// What is wrong with replacing `old` by `new`, if anything.
pub fn illegal(pod: &Pod, old: &PodStatus, new: &PodStatus) -> Option<String> {
    if restart_policy(pod) == "Always" || may_restart_all(pod) {
        return None;
    }
    let regular = (&old.container_statuses, &new.container_statuses);
    let init = (&old.init_container_statuses, &new.init_container_statuses);
    [regular, init].into_iter().find_map(|(old, new)| {
        let ended = old.iter().flatten().filter(|status| ended_for_good(pod, status));
        let revived = |status: &&ContainerStatus| {
            let now = new.iter().flatten().find(|s| s.name == status.name);
            now.is_some_and(|s| terminated_of(s.state.as_ref()).is_none())
        };
        let status = ended.into_iter().find(revived)?;
        Some(format!("terminated container {} attempted illegal transition to non-terminated state", status.name))
    })
}

/// Some container has ended for good of which that has not been told.
pub(super) fn ends_for_good(pod: &Pod, old: &PodStatus, new: &PodStatus) -> bool {
    let told = |name: &str| {
        let all = old.init_container_statuses.iter().chain(&old.container_statuses).flatten();
        all.into_iter().any(|s| s.name == name && terminated_of(s.state.as_ref()).is_some())
    };
    let all = new.init_container_statuses.iter().chain(&new.container_statuses).flatten();
    all.into_iter().any(|status| ended_for_good(pod, status) && !told(&status.name))
}

fn ended_for_good(pod: &Pod, status: &ContainerStatus) -> bool {
    let Some(terminated) = terminated_of(status.state.as_ref()) else { return false };
    if init_containers(pod).iter().any(|c| c.name == status.name && is_sidecar(c)) {
        return false;
    }
    let Some((_, container)) = find_container(pod, &status.name) else { return false };
    !may_restart(&container, pod, terminated.exit_code)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(policy: &str, old: &str, new: &str) -> bool {
        let pod: Pod = serde_json::from_value(serde_json::json!(
            {"metadata": {}, "spec": {"restartPolicy": policy, "containers": [{"name": "a"}]}}))
        .unwrap();
        let status = |state: &str| -> PodStatus {
            let state: serde_json::Value = serde_json::from_str(state).unwrap();
            serde_json::from_value(serde_json::json!({"containerStatuses": [{"name": "a", "image": "", "imageID": "",
                "ready": false, "restartCount": 0, "state": state}]}))
            .unwrap()
        };
        illegal(&pod, &status(old), &status(new)).is_some()
    }

    #[test]
    fn the_dead_stay_dead() {
        let (running, ok, bad) =
            (r#"{"running": {}}"#, r#"{"terminated": {"exitCode": 0}}"#, r#"{"terminated": {"exitCode": 1}}"#);
        for (policy, old, new, illegal) in [
            ("Never", ok, running, true),
            ("Never", bad, running, true),
            ("OnFailure", ok, running, true),
            ("OnFailure", bad, running, false),
            ("Always", ok, running, false),
            ("Never", running, ok, false),
            ("Never", ok, bad, false),
        ] {
            assert_eq!(check(policy, old, new), illegal, "{policy} {old} -> {new}");
        }
    }
}
