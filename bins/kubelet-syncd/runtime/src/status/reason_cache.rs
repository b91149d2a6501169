//! Why the last attempts to start a pod's containers failed, until one succeeds (upstream `pkg/kubelet/reason_cache.go`).

use std::collections::HashMap;

use crate::runtime::result::{Action, SyncResult};

/// Reason and message of a container that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartFailure {
    pub reason: String,
    pub message: String,
}

/// Of one pod; it has as many entries as the pod has containers. (Upstream's is one for the node, with 1000 entries.)
#[derive(Debug, Default)]
pub struct ReasonCache {
    failures: HashMap<String, StartFailure>,
}

impl ReasonCache {
    /// Takes in what came of a sync: failed starts are noted, successful ones clear their entry. A start that failed
    /// only because another process did not answer says nothing about the container.
    pub fn update(&mut self, result: &SyncResult) {
        for action in result.actions.iter().filter(|a| a.action == Action::StartContainer) {
            match &action.error {
                Some(error) if error.transient => {}
                Some(error) => {
                    let failure = StartFailure { reason: error.reason.clone(), message: error.message.clone() };
                    self.failures.insert(action.target.clone(), failure);
                }
                None => {
                    self.failures.remove(&action.target);
                }
            }
        }
    }

    /// The failures by container name.
    pub fn failures(&self) -> &HashMap<String, StartFailure> {
        &self.failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::result::{ActionError, ActionResult};

    fn started(name: &str, error: Option<ActionError>) -> SyncResult {
        let action = ActionResult { action: Action::StartContainer, target: name.to_owned(), error };
        SyncResult { actions: vec![action], ..SyncResult::default() }
    }

    #[test]
    fn failures_stay_until_a_success() {
        let mut cache = ReasonCache::default();
        let failed = || Some(ActionError::new("ErrImagePull", "no"));
        cache.update(&started("a", failed()));
        assert_eq!(cache.failures()["a"].reason, "ErrImagePull");
        cache.update(&started("a", Some(ActionError { transient: true, ..ActionError::new("X", "y") })));
        assert_eq!(cache.failures()["a"].reason, "ErrImagePull");
        cache.update(&started("b", failed()));
        cache.update(&started("a", None));
        assert_eq!(cache.failures().keys().collect::<Vec<_>>(), ["b"]);
    }
}
