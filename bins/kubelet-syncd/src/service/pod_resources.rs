//! What the pod resources API tells, out of what the sources want, what the hub shows and what the container manager has given.

use std::sync::Arc;

use bulkhead_ipc::syncd::{PodState, WorkerState};
use kubelet_model::pod::spec;
use kubelet_model::v1::{Container, Pod};
use kubelet_pod_resources::Providers;
use kubelet_pod_resources::holds::{self, Allocatable, Which};

use super::node_view::NodeView;
use crate::container_manager::ContainerManager;
use crate::desired;
use crate::hub::PodHub;

/// See the module.
#[derive(Debug)]
pub struct NodeHolds {
    pub view: Arc<NodeView>,
    pub hub: Arc<PodHub>,
}

/// Whether upstream counts the pod among its active ones (`isPodInactive`): not known to be over, and of a phase that is no end, or
/// about to be ended. `state`: what is known of it beyond its source's word.
fn is_active(pod: &Pod, state: Option<&PodState>) -> bool {
    let worker = state.map_or(WorkerState::Unspecified, PodState::worker);
    let is_end = |phase: &str| ["Succeeded", "Failed"].contains(&phase);
    let said = pod.status.as_ref().and_then(|status| status.phase.as_deref()).is_some_and(is_end);
    match worker {
        WorkerState::Terminated | WorkerState::Finished => false,
        WorkerState::Terminating => true,
        _ => !said && !state.is_some_and(|state| is_end(&state.phase)),
    }
}

/// Sidecars, then containers.
fn listed(pod: &Pod) -> impl Iterator<Item = (&Container, bool)> {
    let sidecars = spec::init_containers(pod).iter().filter(|container| spec::is_sidecar(container));
    sidecars.map(|container| (container, true)).chain(spec::containers(pod).iter().map(|container| (container, false)))
}

fn told(pod: &Pod, manager: Option<&ContainerManager>) -> holds::Pod {
    let container = |(container, sidecar): (&Container, bool)| holds::Container {
        name: container.name.clone(),
        sidecar,
        holds: manager.map(|manager| manager.holds(pod, container)).unwrap_or_default(),
    };
    holds::Pod {
        namespace: pod.metadata.namespace.clone().unwrap_or_default(),
        name: pod.metadata.name.clone().unwrap_or_default(),
        containers: listed(pod).map(container).collect(),
    }
}

impl NodeHolds {
    fn wanted(&self) -> Vec<Arc<Pod>> {
        self.view.sources().map(|sources| sources.pods()).unwrap_or_default()
    }

    fn counts(&self, pod: &Pod) -> bool {
        let state = desired::uid_of(pod).and_then(|uid| self.hub.get(&uid));
        is_active(pod, state.as_deref())
    }
}

impl Providers for NodeHolds {
    fn pods(&self, which: Which) -> Vec<holds::Pod> {
        let manager = self.view.container_manager();
        let pods = self.wanted();
        let pods = pods.iter().filter(|pod| which == Which::All || self.counts(pod));
        pods.map(|pod| told(pod, manager.as_deref())).collect()
    }

    fn pod(&self, namespace: &str, name: &str) -> Option<holds::Pod> {
        let is_it = |pod: &&Arc<Pod>| {
            let metadata = &pod.metadata;
            metadata.namespace.as_deref() == Some(namespace) && metadata.name.as_deref() == Some(name)
        };
        let pods = self.wanted();
        let pod = pods.iter().find(is_it).filter(|pod| self.counts(pod))?;
        Some(told(pod, self.view.container_manager().as_deref()))
    }

    fn allocatable(&self) -> Allocatable {
        self.view.container_manager().map(|manager| manager.allocatable()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn active_as_upstream_counts() {
        let pod = |phase: &str| -> Pod {
            serde_json::from_value(json!({"spec": {"containers": []}, "status": {"phase": phase}})).unwrap()
        };
        let state = |worker: WorkerState, phase: &str| PodState {
            worker: worker.into(),
            phase: phase.into(),
            ..PodState::default()
        };
        use WorkerState::{Finished, Sync, Terminated, Terminating, Waiting};
        for (pod, state, expected) in [
            (pod("Pending"), None, true),
            (pod("Failed"), None, false),
            (pod("Running"), Some(state(Sync, "Running")), true),
            (pod("Pending"), Some(state(Waiting, "Pending")), true),
            // Refused at admission: the API server has not heard of it yet.
            (pod("Pending"), Some(state(Waiting, "Failed")), false),
            (pod("Running"), Some(state(Terminating, "Running")), true),
            // It is being ended, though its phase says that it is over.
            (pod("Succeeded"), Some(state(Terminating, "Succeeded")), true),
            (pod("Running"), Some(state(Terminated, "Running")), false),
            (pod("Running"), Some(state(Finished, "Running")), false),
        ] {
            assert_eq!(is_active(&pod, state.as_ref()), expected, "{state:?}");
        }
    }

    #[test]
    fn sidecars_come_first_and_init_containers_not_at_all() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"namespace": "ns", "name": "p", "uid": "u"},
            "spec": {
                "initContainers": [{"name": "init"}, {"name": "proxy", "restartPolicy": "Always"}],
                "containers": [{"name": "a"}, {"name": "b"}],
            },
        }))
        .unwrap();
        let told = told(&pod, Some(&ContainerManager::default()));
        let names: Vec<(&str, bool)> = told.containers.iter().map(|one| (one.name.as_str(), one.sidecar)).collect();
        assert_eq!(names, [("proxy", true), ("a", false), ("b", false)]);
        assert!(told.containers.iter().all(|one| one.holds == holds::Holds::default()));
    }
}
