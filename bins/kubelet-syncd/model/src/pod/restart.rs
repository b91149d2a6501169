//! Whether an exited container runs again: the pod's policy, the container's own policy and its rules on exit codes
//! (upstream `pkg/api/v1/pod/util.go` ContainerShouldRestart, `pkg/kubelet/container/helpers.go`).

use std::collections::BTreeSet;

use crate::v1::{Container, Pod};
use k8s_openapi::api::core::v1::{ContainerRestartRule, ContainerState, PodStatus};

use super::model::{ContainerStatus, RunState, RuntimePod};
use super::spec::{containers, init_containers, is_deleted, restart_policy};

const RESTART_ALL: &str = "RestartAllContainers";

/// First rule that speaks about this exit code.
pub fn matching_rule(container: &Container, exit_code: i32) -> Option<&ContainerRestartRule> {
    container.restart_policy_rules.iter().flatten().find(|rule| {
        let Some(codes) = &rule.exit_codes else { return false };
        let listed = codes.values.iter().flatten().any(|code| *code == exit_code);
        match codes.operator.as_str() {
            "In" => listed,
            "NotIn" => !listed,
            _ => false,
        }
    })
}

fn policy_allows(policy: &str, exit_code: i32) -> bool {
    match policy {
        "Never" => false,
        "OnFailure" => exit_code != 0,
        _ => true,
    }
}

/// The container may run again after this exit. Deletion of the pod is not looked at here.
pub fn may_restart(container: &Container, pod: &Pod, exit_code: i32) -> bool {
    match container.restart_policy.as_deref() {
        Some(own) => {
            let rule = matching_rule(container, exit_code).map(|rule| rule.action.as_str());
            if matches!(rule, Some("Restart" | RESTART_ALL)) {
                return true;
            }
            match own {
                "Always" | "OnFailure" | "Never" => policy_allows(own, exit_code),
                _ => policy_allows(restart_policy(pod), exit_code),
            }
        }
        None => policy_allows(restart_policy(pod), exit_code),
    }
}

/// The container is not running and has to be started (upstream ShouldContainerBeRestarted). `newest` is its newest
/// instance.
pub fn should_start(container: &Container, pod: &Pod, newest: Option<&ContainerStatus>) -> bool {
    if is_deleted(pod) {
        return false;
    }
    match newest.map(|s| (s.state, s.exit_code)) {
        None | Some((RunState::Created | RunState::Unknown, _)) => true,
        Some((RunState::Running, _)) => false,
        Some((RunState::Exited, exit_code)) => may_restart(container, pod, exit_code),
    }
}

/// A running container that has to be killed may be started again: there is no exit code yet, so no rule counts.
pub fn restarts_after_kill(container: &Container, pod: &Pod) -> bool {
    container.restart_policy.as_deref().unwrap_or(restart_policy(pod)) != "Never"
}

/// Some container carries a rule that restarts the whole pod.
pub fn may_restart_all(pod: &Pod) -> bool {
    containers(pod)
        .iter()
        .chain(init_containers(pod))
        .any(|c| c.restart_policy_rules.iter().flatten().any(|rule| rule.action == RESTART_ALL))
}

/// This exit asks for a restart of all containers.
pub fn triggers_restart_all(container: &Container, exit_code: i32) -> bool {
    matching_rule(container, exit_code).is_some_and(|rule| rule.action == RESTART_ALL)
}

/// All containers are to be restarted in place: it has begun already, or some container exited with such a rule
/// (upstream ShouldAllContainersRestart).
pub fn restart_all_wanted(pod: &Pod, runtime: &RuntimePod, last: Option<&PodStatus>) -> bool {
    let conditions = last.and_then(|s| s.conditions.as_ref()).into_iter().flatten();
    if conditions.into_iter().any(|c| c.type_ == "AllContainersRestarting" && c.status == "True") {
        return true;
    }
    containers(pod).iter().chain(init_containers(pod)).any(|container| {
        runtime
            .newest(&container.name)
            .is_some_and(|s| s.state == RunState::Exited && triggers_restart_all(container, s.exit_code))
    })
}

/// What the status told last adds to the runtime's records, which may have been lost since.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct History {
    /// See [`restart_all_wanted`].
    pub restart_all: bool,
    /// Regular containers that were told to have ended for good and of which the runtime has nothing any more.
    /// (Upstream runs such a container again.)
    pub ended: BTreeSet<String>,
}

impl History {
    /// `told`: the status told last.
    pub fn of(pod: &Pod, runtime: &RuntimePod, told: Option<&PodStatus>) -> Self {
        let statuses = told.and_then(|t| t.container_statuses.as_deref()).unwrap_or(&[]);
        let ended = |container: &&Container| {
            let status = statuses.iter().find(|s| s.name == container.name);
            let end_in = |state: Option<&ContainerState>| state.and_then(|s| s.terminated.clone());
            let end = status.and_then(|s| {
                end_in(s.state.as_ref()).or_else(|| {
                    // It ran, and its end was not seen.
                    end_in(s.last_state.as_ref()).filter(|end| end.reason.as_deref() == Some("ContainerStatusUnknown"))
                })
            });
            runtime.newest(&container.name).is_none()
                && end.is_some_and(|end| !may_restart(container, pod, end.exit_code))
        };
        History {
            restart_all: restart_all_wanted(pod, runtime, told),
            ended: containers(pod).iter().filter(ended).map(|c| c.name.clone()).collect(),
        }
    }
}

/// Exit code by which a failed init container is judged. One that the kernel killed a process of has failed, also if it
/// made out to have succeeded: then as if it had been killed itself.
pub fn failed_init_exit_code(exit_code: i32, reason: &str) -> Option<i32> {
    match (exit_code, reason) {
        (0, "OOMKilled") => Some(137),
        (0, _) => None,
        (code, _) => Some(code),
    }
}

/// No instance of any container is left in the runtime.
pub fn restart_all_cleaned_up(pod: &Pod, runtime: &RuntimePod) -> bool {
    containers(pod).iter().chain(init_containers(pod)).all(|c| runtime.newest(&c.name).is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(pod_policy: &str, container: serde_json::Value, exit_code: i32) -> bool {
        let pod: Pod = serde_json::from_value(serde_json::json!(
            {"metadata": {}, "spec": {"restartPolicy": pod_policy, "containers": [container]}}))
        .unwrap();
        may_restart(&containers(&pod)[0], &pod, exit_code)
    }

    #[test]
    fn policies_and_rules() {
        let plain = || serde_json::json!({"name": "c"});
        for (policy, on_zero, on_one) in [("Always", true, true), ("OnFailure", false, true), ("Never", false, false)] {
            assert_eq!((run(policy, plain(), 0), run(policy, plain(), 1)), (on_zero, on_one), "{policy}");
            let own = || serde_json::json!({"name": "c", "restartPolicy": policy});
            assert_eq!((run("Never", own(), 0), run("Never", own(), 1)), (on_zero, on_one), "{policy}");
            assert_eq!((run("Always", own(), 0), run("Always", own(), 1)), (on_zero, on_one), "{policy}");
        }
        let ruled = |operator: &str, action: &str| {
            serde_json::json!({"name": "c", "restartPolicy": "Never", "restartPolicyRules": [
                {"action": action, "exitCodes": {"operator": operator, "values": [42, 43]}}]})
        };
        assert!(run("Never", ruled("In", "Restart"), 42));
        assert!(!run("Never", ruled("In", "Restart"), 1));
        assert!(run("Never", ruled("NotIn", "Restart"), 1));
        assert!(run("Never", ruled("In", "RestartAllContainers"), 43));
        // Rules without a policy of the container's own are not consulted.
        let mut bare = ruled("In", "Restart");
        bare.as_object_mut().unwrap().remove("restartPolicy");
        assert!(!run("Never", bare, 42));
    }
}
