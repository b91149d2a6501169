//! Keeps the removal of leftovers and the start of pods apart: the new folders of a pod that the removal does not know would be
//! taken for leftovers.

use std::collections::HashSet;
use std::sync::Arc;

use bulkhead_types::PodUid;
use tokio::sync::watch;

/// Pods that are safe from the removal that runs now; absent when none runs.
#[derive(Debug)]
pub struct PruneGate(watch::Sender<Option<Arc<HashSet<PodUid>>>>);

impl Default for PruneGate {
    fn default() -> Self {
        PruneGate(watch::Sender::new(None))
    }
}

impl PruneGate {
    /// Whether a removal runs.
    pub fn is_pruning(&self) -> bool {
        self.0.borrow().is_some()
    }

    /// A removal begins, of what belongs to none of these pods.
    pub fn begin(&self, keep: HashSet<PodUid>) {
        self.0.send_replace(Some(Arc::new(keep)));
    }

    pub fn end(&self) {
        self.0.send_replace(None);
    }

    /// Waits while a removal runs that does not know the pod.
    pub async fn wait(&self, uid: &PodUid) {
        let mut pruning = self.0.subscribe();
        // The sender lives in `self`.
        let _ = pruning.wait_for(|keep| keep.as_ref().is_none_or(|keep| keep.contains(uid))).await;
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn a_pod_that_the_removal_does_not_know_waits_for_its_end() {
        let (gate, known, new) = (PruneGate::default(), PodUid::parse("a").unwrap(), PodUid::parse("b").unwrap());
        assert!(!gate.is_pruning() && gate.wait(&new).now_or_never().is_some());
        gate.begin(HashSet::from([known.clone()]));
        assert!(gate.is_pruning() && gate.wait(&known).now_or_never().is_some());
        assert!(gate.wait(&new).now_or_never().is_none());
        gate.end();
        assert!(gate.wait(&new).now_or_never().is_some());
    }
}
