//! Which pod a client means, and which of its containers or sandboxes (upstream `pkg/kubelet/kubelet_pods.go`
//! findContainer, GetPortForward). Pure.

use std::sync::Arc;

use bulkhead_types::{ContainerId, PodUid, SandboxId};
use kubelet_model::v1::Pod;

use kubelet_model::pod::model::RuntimePod;
use kubelet_model::pod::spec::{containers, ephemeral_containers, init_containers};

/// A pod that has the name.
#[derive(Debug, Clone)]
pub struct Candidate {
    pub uid: PodUid,
    pub pod: Arc<Pod>,
    /// Of a static pod: the uid under which the API server has it.
    pub mirror: Option<String>,
    /// As last seen.
    pub runtime: Arc<RuntimePod>,
}

/// What the name and uid of a request stand for.
#[derive(Debug)]
pub enum Named {
    Nothing,
    /// There is such a pod, with another uid.
    OtherUid,
    Pod(Candidate),
}

/// Decides. An empty `uid`: whichever has the name; of several the one that runs.
pub fn choose(candidates: Vec<Candidate>, uid: &str) -> Named {
    if candidates.is_empty() {
        return Named::Nothing;
    }
    let meant = |c: &Candidate| uid.is_empty() || c.uid.as_str() == uid || c.mirror.as_deref() == Some(uid);
    let meant = candidates.into_iter().filter(meant);
    meant.max_by_key(|c| c.runtime.running().next().is_some()).map_or(Named::OtherUid, Named::Pod)
}

/// The running instance of a container of whatever kind.
pub fn running(runtime: &RuntimePod, container: &str) -> Option<ContainerId> {
    runtime.running().find(|c| c.name == container).map(|c| c.id.clone())
}

/// The sandbox whose ports are meant: the newest of a pod of which anything runs.
pub fn sandbox(runtime: &RuntimePod) -> Option<SandboxId> {
    let alive = runtime.has_ready_sandbox() || runtime.running().next().is_some();
    runtime.sandboxes.first().filter(|_| alive).map(|s| s.id.clone())
}

/// Whether the spec gives the container a terminal; `None`: it has no such container.
pub fn has_terminal(pod: &Pod, container: &str) -> Option<bool> {
    let plain = containers(pod).iter().chain(init_containers(pod)).map(|c| (&c.name, c.tty));
    let debugging = ephemeral_containers(pod).iter().map(|c| (&c.name, c.tty));
    plain.chain(debugging).find(|(name, _)| *name == container).map(|(_, tty)| tty.unwrap_or(false))
}

#[cfg(test)]
mod tests {
    use super::*;

    use kubelet_model::fixtures;
    use kubelet_model::pod::model::{RunState, SandboxState};

    fn pod() -> Arc<Pod> {
        Arc::new(fixtures::pod(serde_json::json!({
            "containers": [{"name": "plain"}, {"name": "terminal", "tty": true}],
            "initContainers": [{"name": "first", "tty": true}],
            "ephemeralContainers": [{"name": "debugger", "tty": true}],
        })))
    }

    fn candidate(uid: &str, mirror: Option<&str>, running: bool) -> Candidate {
        let mut runtime = RuntimePod::default();
        if running {
            runtime.containers.push(fixtures::container_status("plain", RunState::Running, 0));
        }
        Candidate {
            uid: PodUid::parse(uid).unwrap(),
            pod: pod(),
            mirror: mirror.map(str::to_owned),
            runtime: Arc::new(runtime),
        }
    }

    #[test]
    fn the_pod_of_a_name_and_uid() {
        let all =
            || vec![candidate("old", None, false), candidate("new", Some("mirror"), true), candidate("x", None, false)];
        let text = |named: Named| match named {
            Named::Nothing => "nothing".to_owned(),
            Named::OtherUid => "other".to_owned(),
            Named::Pod(found) => found.uid.to_string(),
        };
        for (uid, expected) in [("", "new"), ("old", "old"), ("new", "new"), ("mirror", "new"), ("gone", "other")] {
            assert_eq!(text(choose(all(), uid)), expected, "{uid}");
        }
        assert_eq!(text(choose(Vec::new(), "")), "nothing");
        assert_eq!(text(choose(Vec::new(), "x")), "nothing");
    }

    #[test]
    fn only_what_runs_has_streams() {
        let mut runtime = RuntimePod::default();
        assert_eq!((running(&runtime, "c"), sandbox(&runtime)), (None, None));
        let instance = |state| fixtures::container_status("c", state, 0);
        runtime.containers = vec![instance(RunState::Created), instance(RunState::Exited), instance(RunState::Unknown)];
        runtime.sandboxes = vec![fixtures::sandbox_status("s", 0, SandboxState::NotReady)];
        assert_eq!((running(&runtime, "c"), sandbox(&runtime)), (None, None));
        runtime.sandboxes = vec![fixtures::sandbox_status("s", 0, SandboxState::Ready)];
        assert_eq!(sandbox(&runtime).map(|s| s.to_string()), Some("s".into()));
        runtime.containers.push(instance(RunState::Running));
        assert!(running(&runtime, "c").is_some() && running(&runtime, "d").is_none());
    }

    #[test]
    fn a_terminal_is_the_specs_business() {
        let pod = pod();
        let seen = ["plain", "terminal", "first", "debugger", "none"].map(|name| has_terminal(&pod, name));
        assert_eq!(seen, [Some(false), Some(true), Some(true), Some(true), None]);
    }
}
