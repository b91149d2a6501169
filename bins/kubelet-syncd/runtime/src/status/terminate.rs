//! The last status of a pod: every container has an end, and so has the pod (upstream status manager's TerminatePod).

use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};
use kubelet_model::v1::Pod;

use super::containers::{lost, terminated_of};
use super::phase::Phase;
use kubelet_model::pod::spec::{init_containers, is_sidecar, is_static};

/// Completes a status: nothing of the pod runs any more, its volumes are gone.
pub fn terminate(pod: &Pod, status: &PodStatus) -> PodStatus {
    let mut status = status.clone();
    if has_initialized(pod, &status) {
        for container in status.container_statuses.iter_mut().flatten() {
            close(container);
        }
    }
    // Init containers up to the last one that shows a sign of having started; at least the first.
    let init = status.init_container_statuses.get_or_insert_default();
    let started = |c: &ContainerStatus| {
        let waiting = c.state.as_ref().is_some_and(|s| s.waiting.is_some());
        !waiting || terminated_of(c.last_state.as_ref()).is_some()
    };
    let upto = init.iter().rposition(started).unwrap_or(0);
    init.iter_mut().take(upto + 1).for_each(close);
    if init.is_empty() {
        status.init_container_statuses = None;
    }
    let phase = status.phase.as_deref().and_then(Phase::parse);
    if !is_static(pod) && !phase.is_some_and(Phase::is_terminal) {
        status.phase = Some(Phase::Failed.as_str().to_owned());
    }
    status
}

fn close(container: &mut ContainerStatus) {
    if terminated_of(container.state.as_ref()).is_none() {
        container.state = Some(lost());
        container.ready = false;
        container.started = Some(false);
    }
}

/// Something shows that a regular container could have been started.
fn has_initialized(pod: &Pod, status: &PodStatus) -> bool {
    let Some(last) = init_containers(pod).last() else { return true };
    let moved = |c: &ContainerStatus| {
        terminated_of(c.last_state.as_ref()).is_some() || c.state.as_ref().is_none_or(|s| s.waiting.is_none())
    };
    if status.container_statuses.iter().flatten().any(moved) {
        return true;
    }
    let Some(last_status) = status.init_container_statuses.iter().flatten().find(|s| s.name == last.name) else {
        return false;
    };
    if is_sidecar(last) {
        return last_status.started == Some(true) && last_status.state.as_ref().is_some_and(|s| s.running.is_some());
    }
    let succeeded = |state| terminated_of(state).is_some_and(|t| t.exit_code == 0);
    succeeded(last_status.state.as_ref()) || succeeded(last_status.last_state.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(spec: serde_json::Value, status: serde_json::Value) -> PodStatus {
        let pod: Pod = serde_json::from_value(serde_json::json!({"metadata": {}, "spec": spec})).unwrap();
        terminate(&pod, &serde_json::from_value(status).unwrap())
    }

    fn exits(list: &Option<Vec<ContainerStatus>>) -> Vec<Option<i32>> {
        list.iter().flatten().map(|c| terminated_of(c.state.as_ref()).map(|t| t.exit_code)).collect()
    }

    #[test]
    fn everything_ends() {
        let waiting = |name: &str| {
            serde_json::json!({"name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"waiting": {"reason": "ContainerCreating"}}})
        };
        let ended = |name: &str, code: i32| {
            serde_json::json!({"name": name, "image": "", "imageID": "", "ready": false,
            "restartCount": 0, "state": {"terminated": {"exitCode": code}}})
        };
        let plain = run(
            serde_json::json!({"containers": [{"name": "a"}, {"name": "b"}]}),
            serde_json::json!({"phase": "Pending", "containerStatuses": [waiting("a"), ended("b", 0)]}),
        );
        assert_eq!(
            (plain.phase.as_deref(), exits(&plain.container_statuses)),
            (Some("Failed"), vec![Some(137), Some(0)])
        );
        assert_eq!(plain.init_container_statuses, None);

        let spec = || serde_json::json!({"initContainers": [{"name": "i"}, {"name": "j"}, {"name": "k"}], "containers": [{"name": "a"}]});
        let early = run(
            spec(),
            serde_json::json!({"phase": "Pending", "containerStatuses": [waiting("a")],
            "initContainerStatuses": [waiting("i"), waiting("j"), waiting("k")]}),
        );
        assert_eq!(exits(&early.container_statuses), [None], "it never could have run");
        assert_eq!(exits(&early.init_container_statuses), [Some(137), None, None]);
        let middle = run(
            spec(),
            serde_json::json!({"phase": "Succeeded", "containerStatuses": [waiting("a")],
            "initContainerStatuses": [waiting("i"), ended("j", 1), waiting("k")]}),
        );
        assert_eq!(exits(&middle.init_container_statuses), [Some(137), Some(1), None]);
        assert_eq!(middle.phase.as_deref(), Some("Succeeded"));
    }
}
