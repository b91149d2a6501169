//! Why the last attempt to start a container failed, until one succeeds (upstream `pkg/kubelet/reason_cache.go`).

use std::collections::{HashMap, VecDeque};

use bulkhead_types::PodUid;

use crate::runtime::result::{Action, SyncResult};

const ENTRIES_MAX: usize = 1000;

/// Reason and message of a container that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartFailure {
    pub reason: String,
    pub message: String,
}

/// Bounded; the entry that was longest not written goes first.
#[derive(Debug, Default)]
pub struct ReasonCache {
    entries: HashMap<(PodUid, String), StartFailure>,
    order: VecDeque<(PodUid, String)>,
}

impl ReasonCache {
    /// Takes in what came of a sync: failed starts are noted, successful ones clear their entry. A start that failed
    /// only because another process did not answer says nothing about the container.
    pub fn update(&mut self, pod: &PodUid, result: &SyncResult) {
        for action in result.actions.iter().filter(|a| a.action == Action::StartContainer) {
            let key = (pod.clone(), action.target.clone());
            match &action.error {
                Some(error) if error.transient => {}
                Some(error) => {
                    self.remove(&key);
                    let failure = StartFailure { reason: error.reason.clone(), message: error.message.clone() };
                    self.order.push_back(key.clone());
                    self.entries.insert(key, failure);
                }
                None => self.remove(&key),
            }
        }
        while self.order.len() > ENTRIES_MAX {
            if let Some(oldest) = self.order.pop_front() {
                self.entries.remove(&oldest);
            }
        }
    }

    fn remove(&mut self, key: &(PodUid, String)) {
        if self.entries.remove(key).is_some() {
            self.order.retain(|k| k != key);
        }
    }

    /// Forgets a pod.
    pub fn forget(&mut self, pod: &PodUid) {
        self.entries.retain(|(uid, _), _| uid != pod);
        self.order.retain(|(uid, _)| uid != pod);
    }

    /// Failures of one pod by container name.
    pub fn of(&self, pod: &PodUid) -> HashMap<String, StartFailure> {
        let own = self.entries.iter().filter(|((uid, _), _)| uid == pod);
        own.map(|((_, name), failure)| (name.clone(), failure.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::uid;
    use crate::runtime::result::{ActionError, ActionResult};

    fn started(name: &str, error: Option<ActionError>) -> SyncResult {
        let action = ActionResult { action: Action::StartContainer, target: name.to_owned(), error };
        SyncResult { actions: vec![action], ..SyncResult::default() }
    }

    #[test]
    fn failures_stay_until_a_success() {
        let mut cache = ReasonCache::default();
        let failed = || Some(ActionError::new("ErrImagePull", "no"));
        cache.update(&uid(), &started("a", failed()));
        assert_eq!(cache.of(&uid())["a"].reason, "ErrImagePull");
        cache.update(&uid(), &started("a", Some(ActionError { transient: true, ..ActionError::new("X", "y") })));
        assert_eq!(cache.of(&uid())["a"].reason, "ErrImagePull");
        cache.update(&uid(), &started("a", None));
        assert!(cache.of(&uid()).is_empty());
        for n in 0..1100 {
            cache.update(&uid(), &started(&format!("c{n}"), failed()));
        }
        assert_eq!((cache.entries.len(), cache.order.len()), (ENTRIES_MAX, ENTRIES_MAX));
        assert!(!cache.of(&uid()).contains_key("c99") && cache.of(&uid()).contains_key("c100"));
        cache.forget(&uid());
        assert!(cache.entries.is_empty() && cache.order.is_empty());
    }
}
