//! A pod's phase from its containers' statuses (upstream `pkg/kubelet/kubelet_pods.go` getPhase).

use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus};
use kubelet_model::v1::{Container, Pod};

use super::containers::{RESTARTING, terminated_of};
use kubelet_model::pod::restart::{failed_init_exit_code, may_restart};
use kubelet_model::pod::spec::{containers, init_containers, is_sidecar, is_static};

/// `status.phase`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    Pending,
    Running,
    Succeeded,
    Failed,
}

impl Phase {
    pub const fn as_str(self) -> &'static str {
        match self {
            Phase::Pending => "Pending",
            Phase::Running => "Running",
            Phase::Succeeded => "Succeeded",
            Phase::Failed => "Failed",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        [Phase::Pending, Phase::Running, Phase::Succeeded, Phase::Failed].into_iter().find(|p| p.as_str() == text)
    }

    /// No way leads out of it.
    pub const fn is_terminal(self) -> bool {
        matches!(self, Phase::Succeeded | Phase::Failed)
    }
}

/// What a container status amounts to.
enum Kind<'a> {
    Missing,
    Running {
        started: bool,
    },
    /// Ended, or waiting after having ended.
    Stopped {
        exit_code: i32,
        reason: &'a str,
        waits: bool,
    },
    Waiting,
    Unclear,
}

fn kind<'a>(statuses: &'a [ContainerStatus], container: &Container) -> Kind<'a> {
    let Some(status) = statuses.iter().find(|s| s.name == container.name) else { return Kind::Missing };
    let state = status.state.as_ref();
    let stopped = |t: &'a ContainerStateTerminated, waits| {
        let reason = t.reason.as_deref().unwrap_or_default();
        Kind::Stopped { exit_code: t.exit_code, reason, waits }
    };
    if state.is_some_and(|s| s.running.is_some()) {
        Kind::Running { started: status.started == Some(true) }
    } else if let Some(t) = terminated_of(state) {
        stopped(t, false)
    } else if state.is_some_and(|s| s.waiting.is_some()) {
        terminated_of(status.last_state.as_ref()).map_or(Kind::Waiting, |t| stopped(t, true))
    } else {
        Kind::Unclear
    }
}

/// Computes the phase. `terminal`: the pod's containers were all stopped because it ends. `initialized`: some regular
/// container exists in the current sandbox.
pub fn phase(pod: &Pod, statuses: &[ContainerStatus], terminal: bool, initialized: bool) -> Phase {
    let mut init_pending = 0;
    for container in init_containers(pod).iter().filter(|c| !is_sidecar(c)) {
        match kind(statuses, container) {
            Kind::Stopped { exit_code, reason, .. } => {
                let failed = failed_init_exit_code(exit_code, reason).filter(|_| reason != RESTARTING);
                if failed.is_some_and(|code| !may_restart(container, pod, code)) {
                    return Phase::Failed;
                }
            }
            Kind::Missing | Kind::Running { .. } | Kind::Waiting | Kind::Unclear => init_pending += 1,
        }
    }
    let (mut unknown, mut running, mut waiting, mut stopped, mut final_stops, mut succeeded) = (0, 0, 0, 0, 0, 0);
    let (mut sidecars_pending, mut sidecars_waiting) = (0, 0);
    for container in init_containers(pod).iter().filter(|c| is_sidecar(c)) {
        match kind(statuses, container) {
            Kind::Missing => unknown += 1,
            Kind::Running { started } => {
                running += 1;
                sidecars_pending += usize::from(!started);
            }
            Kind::Stopped { .. } => {}
            Kind::Waiting => {
                sidecars_pending += 1;
                sidecars_waiting += 1;
            }
            Kind::Unclear => {
                sidecars_pending += 1;
                unknown += 1;
            }
        }
    }
    for container in containers(pod) {
        match kind(statuses, container) {
            Kind::Missing | Kind::Unclear => unknown += 1,
            Kind::Running { .. } => running += 1,
            Kind::Waiting => waiting += 1,
            Kind::Stopped { exit_code, reason, waits } => {
                stopped += 1;
                final_stops += usize::from(reason != RESTARTING && !may_restart(container, pod, exit_code));
                succeeded += usize::from(exit_code == 0 && !waits);
            }
        }
    }
    // Nothing is left that a sidecar could serve: that one of them has not been seen to run (its record was lost) does not
    // put off the pod's end.
    let served = final_stops < containers(pod).len();
    let sidecars_hold_up = served && (sidecars_pending > 0 && !initialized || sidecars_waiting > 0);
    if init_pending > 0 || sidecars_hold_up || waiting > 0 {
        return Phase::Pending;
    }
    if unknown > 0 {
        return Phase::Pending;
    }
    if running > 0 {
        return Phase::Running;
    }
    if stopped == 0 {
        return Phase::Pending;
    }
    let ended = if stopped == succeeded { Phase::Succeeded } else { Phase::Failed };
    if terminal && !is_static(pod) {
        ended
    } else if stopped != final_stops {
        Phase::Running
    } else {
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kubelet_model::fixtures::pod;

    const RUNNING: &str = r#"{"running": {}}"#;
    const WAITING: &str = r#"{"waiting": {}}"#;
    const OK: &str = r#"{"terminated": {"exitCode": 0}}"#;
    const BAD: &str = r#"{"terminated": {"exitCode": 1}}"#;
    const OOM: &str = r#"{"terminated": {"exitCode": 0, "reason": "OOMKilled"}}"#;
    const IN_PLACE: &str = r#"{"terminated": {"exitCode": 137, "reason": "RestartingAllContainers"}}"#;

    fn status(name: &str, state: &str, last: &str) -> ContainerStatus {
        let parse = |text: &str| serde_json::from_str(text).unwrap();
        ContainerStatus {
            name: name.to_owned(),
            state: Some(parse(state)),
            last_state: (!last.is_empty()).then(|| parse(last)),
            started: Some(state == RUNNING),
            ..ContainerStatus::default()
        }
    }

    fn run(spec: serde_json::Value, list: &[(&str, &str, &str)], terminal: bool) -> Phase {
        let mut p = pod(spec);
        p.metadata.annotations = None;
        let statuses: Vec<_> = list.iter().map(|(n, s, l)| status(n, s, l)).collect();
        phase(&p, &statuses, terminal, false)
    }

    #[test]
    fn regular_containers() {
        use Phase::*;
        let two =
            |policy: &str| serde_json::json!({"restartPolicy": policy, "containers": [{"name": "a"}, {"name": "b"}]});
        for (policy, a, b, expected) in [
            ("Always", (WAITING, ""), (RUNNING, ""), Pending),
            ("Always", (RUNNING, ""), (RUNNING, ""), Running),
            ("Always", (WAITING, BAD), (RUNNING, ""), Running),
            ("Always", (WAITING, BAD), (WAITING, BAD), Running),
            ("Always", (OK, ""), (OK, ""), Running),
            ("OnFailure", (OK, ""), (OK, ""), Succeeded),
            ("OnFailure", (OK, ""), (BAD, ""), Running),
            ("OnFailure", (OK, ""), (RUNNING, ""), Running),
            ("Never", (OK, ""), (BAD, ""), Failed),
            ("Never", (OK, ""), (OK, ""), Succeeded),
            ("Never", (BAD, ""), (RUNNING, ""), Running),
        ] {
            let found = run(two(policy), &[("a", a.0, a.1), ("b", b.0, b.1)], false);
            assert_eq!(found, expected, "{policy} {a:?} {b:?}");
        }
        assert_eq!(run(two("Always"), &[("a", RUNNING, "")], false), Pending, "one is unknown");
        assert_eq!(run(two("Always"), &[("a", OK, ""), ("b", BAD, "")], true), Failed);
        assert_eq!(run(two("Always"), &[("a", OK, ""), ("b", OK, "")], true), Succeeded);
    }

    #[test]
    fn static_pods_do_not_end() {
        let p = pod(serde_json::json!({"restartPolicy": "Always", "containers": [{"name": "a"}]}));
        assert_eq!(phase(&p, &[status("a", OK, "")], true, true), Phase::Running);
    }

    #[test]
    fn init_containers_and_sidecars() {
        use Phase::*;
        let init = |policy: &str| serde_json::json!({"restartPolicy": policy, "initContainers": [{"name": "i"}], "containers": [{"name": "a"}]});
        let side = serde_json::json!({"restartPolicy": "Never", "initContainers": [{"name": "s", "restartPolicy": "Always"}],
            "containers": [{"name": "a"}]});
        for (spec, list, expected) in [
            (init("Always"), vec![("i", RUNNING, ""), ("a", WAITING, "")], Pending),
            (init("Never"), vec![("i", BAD, ""), ("a", WAITING, "")], Failed),
            (init("Never"), vec![("i", OOM, ""), ("a", WAITING, "")], Failed),
            (init("Never"), vec![("i", WAITING, IN_PLACE), ("a", WAITING, IN_PLACE)], Running),
            (init("OnFailure"), vec![("i", OOM, ""), ("a", WAITING, "")], Pending),
            (init("Always"), vec![("i", BAD, ""), ("a", WAITING, "")], Pending),
            (init("Always"), vec![("i", WAITING, BAD), ("a", WAITING, "")], Pending),
            (init("Always"), vec![("i", OK, ""), ("a", RUNNING, "")], Running),
            (side.clone(), vec![("s", RUNNING, ""), ("a", RUNNING, "")], Running),
            (side.clone(), vec![("s", WAITING, ""), ("a", WAITING, "")], Pending),
            (side.clone(), vec![("s", RUNNING, ""), ("a", OK, "")], Running),
            (side.clone(), vec![("s", BAD, ""), ("a", OK, "")], Succeeded),
            (side, vec![("s", WAITING, ""), ("a", OK, "")], Succeeded),
        ] {
            assert_eq!(run(spec.clone(), &list, false), expected, "{spec} {list:?}");
        }
    }
}
