//! Orphans: volumes, directories and cgroups of pods that nobody desires. Only syncd knows which pods are desired, so
//! this runs on its word alone (and under the guard); here it is only worked out what there is beyond them.

use std::collections::HashSet;

use bulkhead_types::{PodUid, chain};

use super::{VolumeError, list, teardown};
use crate::node::Node;

/// One thing that was done or not done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    pub action: Action,
    pub pod: PodUid,
    pub what: String,
    /// Empty when it worked.
    pub error: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Unmounted,
    RemovedDirectory,
    RemovedCgroup,
    /// Something stands in the way; the next prune tries again.
    Kept,
}

impl Action {
    pub const fn as_str(self) -> &'static str {
        match self {
            Action::Unmounted => "unmounted",
            Action::RemovedDirectory => "removed directory",
            Action::RemovedCgroup => "removed cgroup",
            Action::Kept => "kept",
        }
    }
}

/// Removes what belongs to pods that are not in `known`, telling each step. A pod that another verb works on is kept.
pub fn prune(node: &Node, known: &HashSet<PodUid>, mut tell: impl FnMut(Step)) -> Result<(), VolumeError> {
    let in_cgroups = node.cgroups.list().unwrap_or_else(|error| {
        tracing::warn!(error = chain(&error), "the pods' cgroups cannot be listed, pruning directories alone");
        Vec::new()
    });
    // Processes first: what is left running in a cgroup may hold a mount.
    for found in in_cgroups {
        if known.contains(&found.pod) {
            continue;
        }
        let what = found.path.to_string();
        let step = |action, error| Step { action, pod: found.pod.clone(), what, error };
        let Some(_lock) = node.try_lock_pod(&found.pod) else {
            tell(step(Action::Kept, "another request works on this pod".to_owned()));
            continue;
        };
        tell(match node.cgroups.remove(&found.pod) {
            Ok(()) => step(Action::RemovedCgroup, String::new()),
            Err(error) => step(Action::Kept, chain(&error)),
        });
    }
    for pod in list::pods_on_disk(node)? {
        if known.contains(&pod) {
            continue;
        }
        let path = node.settings.paths.pod(&pod).display().to_string();
        let step = |action, what: String, error| Step { action, pod: pod.clone(), what, error };
        let Some(_lock) = node.try_lock_pod(&pod) else {
            tell(step(Action::Kept, path, "another request works on this pod".to_owned()));
            continue;
        };
        match teardown::tear_down(node, &pod, teardown::Scope::Everything) {
            Ok(outcome) => {
                for point in outcome.unmounted {
                    tell(step(Action::Unmounted, point, String::new()));
                }
                if outcome.left.is_empty() {
                    tell(step(Action::RemovedDirectory, path, String::new()));
                } else {
                    tell(step(Action::Kept, path, outcome.left.join("; ")));
                }
            }
            Err(error) => tell(step(Action::Kept, path, chain(&error))),
        }
    }
    Ok(())
}
