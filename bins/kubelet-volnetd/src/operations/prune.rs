//! Orphans: volumes, directories and cgroups of pods that nobody desires. Only syncd knows which pods are desired, so
//! this runs on its word alone (and under the guard); here it is only worked out what there is beyond them.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_types::{PodUid, chain};

use tonic::Status;

use super::on_the_pool;
use crate::node::Node;
use crate::volumes::teardown::Scope;
use crate::volumes::{VolumeError, list};

/// For one orphan; what takes longer is done all the same, and told by the next pass.
const PATIENCE: Duration = Duration::from_secs(10);

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

/// Removes what belongs to pods that are not in `known`, telling each step. A pod that another verb works on is kept. No further pod is
/// begun with once `is_asked` says no: who has asked keeps new pods from being made only for as long as it waits, and a pod that is
/// made then is not among the known.
///
/// # Errors
/// What is there cannot be listed.
pub async fn prune(
    node: &Arc<Node>,
    known: Arc<HashSet<PodUid>>,
    is_asked: impl Fn() -> bool + Clone + Send + 'static,
    mut tell: impl FnMut(Step),
) -> Result<(), Status> {
    // Processes first: what is left running in a cgroup may hold a mount.
    let (of, goes_on) = (known.clone(), is_asked.clone());
    let steps = on_the_pool(node, move |node| Ok::<_, VolumeError>(cgroups(node, &of, goes_on))).await?;
    steps.into_iter().for_each(&mut tell);
    for pod in on_the_pool(node, list::pods_on_disk).await? {
        if known.contains(&pod) {
            continue;
        }
        if !is_asked() {
            tracing::info!("removal of leftovers cancelled");
            return Ok(());
        }
        let path = node.settings.paths.pod(&pod).display().to_string();
        let step = |action, what: String, error| Step { action, pod: pod.clone(), what, error };
        let Some(locks) = node.try_lock_whole_pod(&pod) else {
            tell(step(Action::Kept, path, chain(&node.busy(&pod))));
            continue;
        };
        // One that hangs holds up no other.
        let torn_down = super::tear_down(node.clone(), locks, pod.clone(), Scope::Everything);
        match tokio::time::timeout(PATIENCE, torn_down).await {
            Ok(Ok(outcome)) => {
                for point in outcome.unmounted {
                    tell(step(Action::Unmounted, point, String::new()));
                }
                if outcome.left.is_empty() {
                    tell(step(Action::RemovedDirectory, path, String::new()));
                } else {
                    tell(step(Action::Kept, path, outcome.left.join("; ")));
                }
            }
            Ok(Err(status)) => tell(step(Action::Kept, path, status.message().to_owned())),
            Err(_) => tell(step(Action::Kept, path, chain(&node.busy(&pod)))),
        }
    }
    // What another kubelet has left without a pod.
    super::local::end_unused(node).await;
    Ok(())
}

/// Cgroups of pods that nobody desires.
fn cgroups(node: &Node, known: &HashSet<PodUid>, is_asked: impl Fn() -> bool) -> Vec<Step> {
    let found = node.cgroups.list().unwrap_or_else(|error| {
        tracing::warn!(error = chain(&error), "the pods' cgroups cannot be listed, pruning directories alone");
        Vec::new()
    });
    let mut steps = Vec::new();
    for found in found {
        if known.contains(&found.pod) {
            continue;
        }
        if !is_asked() {
            break;
        }
        let what = found.path.to_string();
        let step = |action, error| Step { action, pod: found.pod.clone(), what, error };
        steps.push(match node.try_lock_pod(&found.pod) {
            None => step(Action::Kept, chain(&node.busy(&found.pod))),
            Some(_lock) => match node.cgroups.remove(&found.pod) {
                Ok(()) => step(Action::RemovedCgroup, String::new()),
                Err(error) => step(Action::Kept, chain(&error)),
            },
        });
    }
    steps
}
