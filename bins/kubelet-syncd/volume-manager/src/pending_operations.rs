//! Operations that run, and what may not begin meanwhile (upstream NestedPendingOperations,
//! `pkg/volume/util/nestedpendingoperations/nestedpendingoperations.go`). Pure.

use std::collections::BTreeMap;

use bulkhead_types::PodUid;

use crate::spec::UniqueName;

/// One operation on a volume.
#[derive(Debug, Clone)]
struct Running {
    /// See [`PendingOperations::excludes`].
    scope: Option<PodUid>,
    /// The pod whose part of the volume it is at work on.
    publishes_to: Option<PodUid>,
}

/// All operations that run, by their volumes.
#[derive(Debug, Clone, Default)]
pub struct PendingOperations(BTreeMap<UniqueName, Vec<Running>>);

impl PendingOperations {
    /// Whether an operation may not begin yet. `scope`: the one pod whose part it is about, as upstream's key has it; `None` excludes, and
    /// is excluded by, every other operation on the volume.
    pub fn excludes(&self, volume: &UniqueName, scope: Option<&PodUid>) -> bool {
        let mut running = self.0.get(volume).into_iter().flatten();
        running.any(|other| scope.is_none() || other.scope.is_none() || other.scope.as_ref() == scope)
    }

    /// Begins one that is not excluded. `publishes_to`: see [`Self::holding`].
    pub fn begin(&mut self, volume: &UniqueName, scope: Option<&PodUid>, publishes_to: Option<&PodUid>) {
        let running = Running { scope: scope.cloned(), publishes_to: publishes_to.cloned() };
        self.0.entry(volume.clone()).or_default().push(running);
    }

    /// The one that excludes all others has done what is done once a node, and comes to the pod's part.
    pub fn publishes(&mut self, volume: &UniqueName, pod: &PodUid) {
        let mut running = self.0.get_mut(volume).into_iter().flatten();
        if let Some(running) = running.find(|running| running.scope.is_none()) {
            running.publishes_to = Some(pod.clone());
        }
    }

    pub fn end(&mut self, volume: &UniqueName, scope: Option<&PodUid>) {
        if let Some(running) = self.0.get_mut(volume) {
            running.retain(|running| running.scope.as_ref() != scope);
            if running.is_empty() {
                self.0.remove(volume);
            }
        }
    }

    /// Whether one with the same key runs.
    pub fn runs(&self, volume: &UniqueName, scope: Option<&PodUid>) -> bool {
        self.0.get(volume).into_iter().flatten().any(|other| other.scope.as_ref() == scope)
    }

    /// How many operations on the volume run.
    pub fn count(&self, volume: &UniqueName) -> usize {
        self.0.get(volume).map_or(0, Vec::len)
    }

    /// Volumes with any.
    pub fn volumes(&self) -> impl Iterator<Item = &UniqueName> {
        self.0.keys()
    }

    /// Volumes that hold back the pod's end: what is done of them is about the pod's part. Of what is done once a node the pod need not
    /// await the end, as upstream's `PodHasMountedVolumes` has it.
    pub fn holding<'a>(&'a self, pod: &'a PodUid) -> impl Iterator<Item = &'a UniqueName> {
        let holds = |running: &Running| running.publishes_to.as_ref() == Some(pod);
        self.0.iter().filter(move |(_, all)| all.iter().any(holds)).map(|(name, _)| name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of upstream's `nestedpendingoperations_test.go`, without nodes.
    #[test]
    fn operations_exclude_each_other_by_their_keys() {
        let uid = |name: &str| PodUid::parse(name).unwrap();
        let volume = |name: &str| UniqueName(name.into());
        for (running, volume_of_next, next, is_excluded) in [
            (None, "v", None, true),
            (None, "v", Some("a"), true),
            (Some("a"), "v", None, true),
            (Some("a"), "v", Some("a"), true),
            (Some("a"), "v", Some("b"), false),
            (None, "w", None, false),
            (Some("a"), "w", Some("a"), false),
        ] {
            let (scope, next) = (running.map(uid), next.map(uid));
            let mut busy = PendingOperations::default();
            busy.begin(&volume("v"), scope.as_ref(), None);
            let excludes = busy.excludes(&volume(volume_of_next), next.as_ref());
            assert_eq!(excludes, is_excluded, "{running:?}, then {volume_of_next} {next:?}");
            assert_eq!(busy.runs(&volume(volume_of_next), next.as_ref()), volume_of_next == "v" && scope == next);
            busy.end(&volume("v"), scope.as_ref());
            assert!(!busy.excludes(&volume("v"), None) && busy.volumes().next().is_none());
        }
    }

    #[test]
    fn the_end_of_one_leaves_the_others() {
        let (a, b) = (PodUid::parse("a").unwrap(), PodUid::parse("b").unwrap());
        let (v, mut busy) = (UniqueName("v".into()), PendingOperations::default());
        busy.begin(&v, Some(&a), Some(&a));
        busy.begin(&v, Some(&b), Some(&b));
        assert_eq!(busy.count(&v), 2);
        busy.end(&v, Some(&a));
        assert_eq!(busy.count(&v), 1);
        assert!(!busy.excludes(&v, Some(&a)) && busy.excludes(&v, Some(&b)) && busy.excludes(&v, None));
        assert_eq!((busy.holding(&a).count(), busy.holding(&b).count()), (0, 1));
    }

    #[test]
    fn what_is_done_once_a_node_holds_no_pod() {
        let (a, v, mut busy) = (PodUid::parse("a").unwrap(), UniqueName("v".into()), PendingOperations::default());
        busy.publishes(&v, &a);
        assert_eq!(busy.holding(&a).count(), 0, "nothing runs");
        busy.begin(&v, None, None);
        assert_eq!(busy.holding(&a).count(), 0);
        busy.publishes(&v, &a);
        assert_eq!(busy.holding(&a).collect::<Vec<_>>(), [&v]);
    }
}
