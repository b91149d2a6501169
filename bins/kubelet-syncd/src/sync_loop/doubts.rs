//! What of a pod that was prepared before may be gone, by the runtime's picture of it. Who looks after everything in every sync, as
//! upstream does (`pkg/kubelet/kubelet.go` SyncPod: `pcm.Exists`; `RequiresRemount` of volume plugins), needs no such question.

use kubelet_model::pod::model::{ContainerStatus, RunState, RuntimePod};
use kubelet_model::pod::restart::{failed_init_exit_code, may_restart};
use kubelet_model::pod::spec::{containers, init_containers, is_sidecar};
use kubelet_model::v1::{Container, Pod};
use kubelet_runtime::runtime::actions::sandbox_decision;

/// What is looked at once more before the pod's containers are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Doubt {
    Nothing,
    /// A container runs again: it is to find the files of its volumes.
    Files,
    /// A sandbox is made: the pod's cgroup may have ended with the one before, and a runtime makes one without limits.
    Everything,
}

/// `held_back`: the container of that name is not started yet, for its back-off.
pub(super) fn doubt(pod: &Pod, runtime: &RuntimePod, held_back: impl Fn(&str) -> bool) -> Doubt {
    if sandbox_decision(pod, runtime).create {
        return Doubt::Everything;
    }
    let ended = |container: &Container| {
        let newest = runtime.newest(&container.name).filter(|status| status.state == RunState::Exited);
        newest.filter(|_| !held_back(&container.name))
    };
    let init = |container: &Container, status: &ContainerStatus| {
        let failed = failed_init_exit_code(status.exit_code, &status.reason);
        is_sidecar(container) || failed.is_some_and(|code| may_restart(container, pod, code))
    };
    let mut init_containers = init_containers(pod).iter();
    let mut containers = containers(pod).iter();
    let runs_again = init_containers.any(|c| ended(c).is_some_and(|status| init(c, status)))
        || containers.any(|c| ended(c).is_some_and(|status| may_restart(c, pod, status.exit_code)));
    if runs_again { Doubt::Files } else { Doubt::Nothing }
}

#[cfg(test)]
mod tests {
    use kubelet_model::fixtures::{container_status, pod, sandbox_status};
    use kubelet_model::pod::model::SandboxState;
    use serde_json::json;

    use super::*;

    fn runtime(sandbox: SandboxState, containers: &[(&str, RunState, i32)]) -> RuntimePod {
        RuntimePod {
            sandboxes: vec![sandbox_status("s0", 0, sandbox)],
            containers: containers.iter().map(|(name, state, code)| container_status(name, *state, *code)).collect(),
            ..RuntimePod::default()
        }
    }

    fn of(policy: &str, containers: &[(&str, RunState, i32)]) -> Doubt {
        let pod = pod(json!({
            "restartPolicy": policy,
            "initContainers": [{"name": "init"}, {"name": "sidecar", "restartPolicy": "Always"}],
            "containers": [{"name": "main"}],
        }));
        doubt(&pod, &runtime(SandboxState::Ready, containers), |_| false)
    }

    #[test]
    fn a_pod_whose_sandbox_has_gone_may_have_lost_its_cgroup() {
        let pod = pod(json!({"containers": [{"name": "main"}]}));
        let of = |runtime: &RuntimePod| doubt(&pod, runtime, |_| false);
        assert_eq!(of(&RuntimePod::default()), Doubt::Everything);
        assert_eq!(of(&runtime(SandboxState::NotReady, &[("main", RunState::Exited, 137)])), Doubt::Everything);
        assert_eq!(of(&runtime(SandboxState::Ready, &[("main", RunState::Running, 0)])), Doubt::Nothing);
    }

    #[test]
    fn files_are_looked_at_when_a_container_runs_again_and_not_before() {
        use RunState::{Created, Exited, Running};
        let (main, init, sidecar) = ("main", "init", "sidecar");
        for (policy, containers, expected) in [
            ("Always", vec![], Doubt::Nothing),
            ("Always", vec![(init, Running, 0)], Doubt::Nothing),
            // The next one starts for the first time.
            ("Always", vec![(init, Exited, 0)], Doubt::Nothing),
            ("Always", vec![(init, Exited, 1)], Doubt::Files),
            ("Never", vec![(init, Exited, 1)], Doubt::Nothing),
            ("Always", vec![(main, Created, 0), (init, Exited, 0)], Doubt::Nothing),
            ("Always", vec![(main, Exited, 0), (init, Exited, 0)], Doubt::Files),
            ("OnFailure", vec![(main, Exited, 0), (init, Exited, 0)], Doubt::Nothing),
            ("OnFailure", vec![(main, Exited, 1), (init, Exited, 0)], Doubt::Files),
            ("Never", vec![(main, Running, 0), (sidecar, Exited, 0), (init, Exited, 0)], Doubt::Files),
            // Its newest instance runs.
            ("Always", vec![(main, Running, 0), (main, Exited, 1)], Doubt::Nothing),
        ] {
            assert_eq!(of(policy, &containers), expected, "{policy} {containers:?}");
        }
    }

    #[test]
    fn back_off_is_waited_out_first() {
        let pod = pod(json!({"containers": [{"name": "main"}]}));
        let ended = runtime(SandboxState::Ready, &[("main", RunState::Exited, 1)]);
        assert_eq!(doubt(&pod, &ended, |name| name == "main"), Doubt::Nothing);
        assert_eq!(doubt(&pod, &ended, |_| false), Doubt::Files);
    }
}
