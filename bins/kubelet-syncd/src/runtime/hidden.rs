//! Container instances that nobody is shown yet, because their postStart hook still runs.
//!
//! The runtime calls such a container running. Users and controllers are told so only when its hook has succeeded: until
//! then it is not ready and gets no traffic (upstream tells nothing of a pod while it starts a container of it).

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bulkhead_types::ContainerId;

use super::model::RuntimePod;

/// Shared by those who start containers and those who show them.
#[derive(Debug, Clone, Default)]
pub struct Hidden(Arc<Mutex<HashSet<ContainerId>>>);

/// While it lives the instance is not shown.
#[derive(Debug)]
pub struct Hide {
    all: Hidden,
    id: ContainerId,
}

impl Hidden {
    fn ids(&self) -> MutexGuard<'_, HashSet<ContainerId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn hide(&self, id: &ContainerId) -> Hide {
        self.ids().insert(id.clone());
        Hide { all: self.clone(), id: id.clone() }
    }

    /// The pod without the instances that are not shown.
    pub fn shown<'a>(&self, pod: &'a RuntimePod) -> Cow<'a, RuntimePod> {
        let ids = self.ids();
        if ids.is_empty() || !pod.containers.iter().any(|c| ids.contains(&c.id)) {
            return Cow::Borrowed(pod);
        }
        let mut pod = pod.clone();
        pod.containers.retain(|c| !ids.contains(&c.id));
        Cow::Owned(pod)
    }
}

impl Drop for Hide {
    fn drop(&mut self) {
        self.all.ids().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::fixtures::container_status;
    use crate::runtime::model::RunState;

    #[test]
    fn hidden_while_the_guard_lives() {
        let hidden = Hidden::default();
        let containers = ["a", "b"].map(|name| container_status(name, RunState::Running, 0)).to_vec();
        let pod = RuntimePod { containers, ..RuntimePod::default() };
        let names = |hidden: &Hidden| hidden.shown(&pod).containers.iter().map(|c| c.name.clone()).collect::<Vec<_>>();
        let hide = hidden.hide(&pod.containers[0].id);
        assert_eq!(names(&hidden), ["b"]);
        drop(hide);
        assert_eq!(names(&hidden), ["a", "b"]);
        assert!(matches!(hidden.shown(&pod), Cow::Borrowed(_)));
    }
}
