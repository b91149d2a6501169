//! Restart counts that outlive a pod's containers: a static pod that is removed and added again while it ends keeps its uid and begins
//! anew, and with its former life its containers and their logs go. Its counts go on all the same (upstream leaves the dead containers
//! to garbage collection, and counts from them).

use std::collections::{BTreeMap, HashMap};

use bulkhead_types::PodUid;
use kubelet_model::pod::model::RuntimePod;
use parking_lot::{Mutex, MutexGuard};

/// The highest restart count of each container by its name, of pods that have begun anew.
#[derive(Debug, Default)]
pub(super) struct FormerLives(Mutex<HashMap<PodUid, BTreeMap<String, u32>>>);

impl FormerLives {
    fn pods(&self) -> MutexGuard<'_, HashMap<PodUid, BTreeMap<String, u32>>> {
        // Plain data, valid at every step.
        self.0.lock()
    }

    /// The pod begins anew. `old`: its containers, which are removed now.
    pub(super) fn note(&self, uid: &PodUid, old: &RuntimePod) {
        let mut pods = self.pods();
        for container in &old.containers {
            let counts = pods.entry(uid.clone()).or_default();
            let count = counts.entry(container.name.clone()).or_default();
            *count = container.restart_count.max(*count);
        }
    }

    /// The least restart count of the container's next instance.
    pub(super) fn next_count(&self, uid: &PodUid, container: &str) -> u32 {
        let pods = self.pods();
        let last = pods.get(uid).and_then(|counts| counts.get(container));
        last.map_or(0, |count| count.saturating_add(1))
    }

    /// Forgets pods that do not come back.
    pub(super) fn retain(&self, keep: impl Fn(&PodUid) -> bool) {
        self.pods().retain(|uid, _| keep(uid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kubelet_model::fixtures::{container_status, uid};
    use kubelet_model::pod::model::RunState;

    #[test]
    fn counts_go_on_until_the_pod_is_forgotten() {
        let lives = FormerLives::default();
        let pod = |counts: &[(&str, u32)]| {
            let containers = counts.iter().map(|(name, restart_count)| kubelet_model::pod::model::ContainerStatus {
                restart_count: *restart_count,
                ..container_status(name, RunState::Exited, 0)
            });
            RuntimePod { containers: containers.collect(), ..RuntimePod::default() }
        };
        let next = || ["a", "b", "c"].map(|name| lives.next_count(&uid(), name));
        assert_eq!(next(), [0, 0, 0]);
        lives.note(&uid(), &pod(&[("a", 1), ("a", 0), ("b", 0)]));
        assert_eq!(next(), [2, 1, 0]);
        // The next life ended before all of its containers were started.
        lives.note(&uid(), &pod(&[("a", 2)]));
        assert_eq!(next(), [3, 1, 0]);
        lives.retain(|_| false);
        assert_eq!(next(), [0, 0, 0]);
    }
}
