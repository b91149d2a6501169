//! Container instances that nobody is shown yet, because their postStart hook still runs.
//!
//! The runtime calls such a container running. Users and controllers are told so only when its hook has succeeded: until
//! then it is not ready and gets no traffic (upstream tells nothing of a pod while it starts a container of it).
//! Meanwhile the instance before it is shown, even if it has been removed: an instance that dies makes the one before it
//! surplus, and a hook that fails ends its instance before anybody is shown it.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use bulkhead_types::ContainerId;
use parking_lot::Mutex;

use kubelet_model::pod::model::{ContainerStatus, RuntimePod};

/// Shared by those who start containers and those who show them.
#[derive(Debug, Clone, Default)]
pub struct PostStartGate(Arc<Mutex<HashMap<ContainerId, Option<ContainerStatus>>>>);

/// While it lives the instance is not shown.
#[derive(Debug)]
pub struct Closed {
    all: PostStartGate,
    id: ContainerId,
}

impl PostStartGate {
    /// `before`: the newest instance of the same container that there was.
    pub fn close(&self, id: &ContainerId, before: Option<&ContainerStatus>) -> Closed {
        self.0.lock().insert(id.clone(), before.cloned());
        Closed { all: self.clone(), id: id.clone() }
    }

    /// The pod without the instances that are not shown, and with those that they follow.
    pub fn shown<'a>(&self, pod: &'a RuntimePod) -> Cow<'a, RuntimePod> {
        let ids = self.0.lock();
        if ids.is_empty() || !pod.containers.iter().any(|c| ids.contains_key(&c.id)) {
            return Cow::Borrowed(pod);
        }
        let mut shown = pod.clone();
        shown.containers.retain(|c| !ids.contains_key(&c.id));
        for before in pod.containers.iter().filter_map(|c| ids.get(&c.id)?.as_ref()) {
            if !shown.containers.iter().any(|c| c.name == before.name) {
                shown.containers.push(before.clone());
            }
        }
        Cow::Owned(shown)
    }
}

impl Drop for Closed {
    fn drop(&mut self) {
        self.all.0.lock().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kubelet_model::fixtures::container_status;
    use kubelet_model::pod::model::RunState;

    #[test]
    fn closed_while_the_guard_lives() {
        let gate = PostStartGate::default();
        let containers = ["a", "b"].map(|name| container_status(name, RunState::Running, 0)).to_vec();
        let pod = RuntimePod { containers, ..RuntimePod::default() };
        let names =
            |gate: &PostStartGate| gate.shown(&pod).containers.iter().map(|c| c.name.clone()).collect::<Vec<_>>();
        let closed = gate.close(&pod.containers[0].id, None);
        assert_eq!(names(&gate), ["b"]);
        drop(closed);
        assert_eq!(names(&gate), ["a", "b"]);
        assert!(matches!(gate.shown(&pod), Cow::Borrowed(_)));
    }

    #[test]
    fn the_instance_before_is_shown_even_when_it_has_been_removed() {
        let gate = PostStartGate::default();
        let instance = |id: &str, state| {
            let mut instance = container_status("a", state, 1);
            instance.id = ContainerId::parse(id).unwrap();
            instance
        };
        let (before, new) = (instance("before", RunState::Exited), instance("new", RunState::Exited));
        let _closed = gate.close(&new.id, Some(&before));
        for containers in [vec![new.clone(), before.clone()], vec![new]] {
            let pod = RuntimePod { containers, ..RuntimePod::default() };
            assert_eq!(gate.shown(&pod).containers, std::slice::from_ref(&before));
        }
    }
}
