//! Whether a pod of which nothing is known but its spec and what the runtime has of it is over: its admission was decided on when it
//! began, and nothing of it starts again.

use std::collections::{BTreeMap, HashMap};

use jiff::Timestamp;
use kubelet_model::node_facts::NodeFacts;
use kubelet_model::pod::model::RuntimePod;
use kubelet_model::v1::Pod;
use kubelet_probes::prober::results::ProbeResults;

use super::next::is_over;
use super::pod_status::{StatusInput, generate};

/// How a pod that is about to be judged by admission goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Course {
    /// It has not begun, or goes on.
    Open,
    /// It is over by its restart policy, as an init container has failed, and a sidecar still runs.
    Ending,
    /// It is over, and has nothing of the node.
    Ended,
}

/// Decides by the phase that the runtime's containers amount to.
pub fn course(pod: &Pod, runtime: &RuntimePod, facts: &NodeFacts) -> Course {
    if runtime.containers.is_empty() {
        return Course::Open;
    }
    let status = generate(&StatusInput {
        pod,
        runtime,
        old: None,
        start_failures: &HashMap::new(),
        messages: &BTreeMap::new(),
        probes: &ProbeResults::default(),
        facts,
        handler: None,
        actuated: None,
        resize: &[],
        terminal: false,
        termination: None,
        // No phase depends on it.
        now: Timestamp::UNIX_EPOCH,
    });
    match (is_over(&status), runtime.running().next()) {
        (false, _) => Course::Open,
        (true, Some(_)) => Course::Ending,
        (true, None) => Course::Ended,
    }
}

#[cfg(test)]
mod tests {
    use kubelet_model::fixtures::{container_status, pod, sandbox_status};
    use kubelet_model::node_facts::HostFacts;
    use kubelet_model::pod::model::{RunState, SandboxState};

    use super::*;

    #[test]
    fn by_the_restart_policy_and_what_the_runtime_has() {
        use Course::{Ended, Ending, Open};
        use RunState::{Created, Exited, Running};
        let facts = NodeFacts::new(HostFacts::default());
        for (policy, has, expected) in [
            ("Never", vec![], Open),
            ("Never", vec![("i", Exited, 0)], Open),
            ("Never", vec![("i", Exited, 1)], Ended),
            ("Never", vec![("i", Exited, 1), ("s", Running, 0)], Ending),
            ("Never", vec![("i", Exited, 0), ("a", Exited, 0)], Open),
            ("Never", vec![("i", Exited, 0), ("a", Exited, 0), ("b", Created, 0)], Open),
            ("Never", vec![("i", Exited, 0), ("a", Exited, 0), ("b", Running, 0)], Open),
            ("Never", vec![("i", Exited, 0), ("a", Exited, 0), ("b", Exited, 0)], Ended),
            ("Never", vec![("i", Exited, 0), ("a", Exited, 0), ("b", Exited, 137)], Ended),
            // Its sidecar is still to be stopped: no phase says yet that it is over.
            ("Never", vec![("i", Exited, 0), ("s", Running, 0), ("a", Exited, 0), ("b", Exited, 0)], Open),
            ("OnFailure", vec![("i", Exited, 0), ("a", Exited, 0), ("b", Exited, 0)], Ended),
            ("OnFailure", vec![("i", Exited, 0), ("a", Exited, 0), ("b", Exited, 1)], Open),
            ("Always", vec![("i", Exited, 0), ("a", Exited, 0), ("b", Exited, 0)], Open),
        ] {
            let spec = serde_json::json!({
                "restartPolicy": policy,
                "initContainers": [{"name": "s", "restartPolicy": "Always"}, {"name": "i"}],
                "containers": [{"name": "a"}, {"name": "b"}],
            });
            let runtime = RuntimePod {
                sandboxes: vec![sandbox_status("s0", 0, SandboxState::Ready)],
                containers: has.iter().map(|(name, state, code)| container_status(name, *state, *code)).collect(),
                ..RuntimePod::default()
            };
            assert_eq!(course(&pod(spec), &runtime, &facts), expected, "{policy} {has:?}");
        }
    }
}
