//! The rule of PLEG: from what was known of a pod and what is the case now to lifecycle events. Pure.
//! (upstream `pkg/kubelet/pleg/generic.go`, generateEvents)

use std::collections::BTreeMap;

use bulkhead_types::PodUid;

use kubelet_model::pod::model::{RunState, RuntimePod, SandboxState};

/// What happened to one container or sandbox of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PodLifecycleEventKind {
    ContainerStarted,
    ContainerDied,
    ContainerRemoved,
    /// The state is not one to act on (created, unknown). Never delivered.
    ContainerChanged,
    /// A re-inspection was asked for and found nothing new, or an event of the pod was lost.
    PodSync,
}

/// A lifecycle event, as the main loop gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodLifecycleEvent {
    pub uid: PodUid,
    pub kind: PodLifecycleEventKind,
    /// Id of the container or sandbox; empty for [`PodLifecycleEventKind::PodSync`].
    pub id: Box<str>,
}

/// The states that the rule tells apart. A sandbox that is ready runs, one that is not has exited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlegState {
    Running,
    Exited,
    /// CRI's Created and Unknown.
    Unknown,
}

impl From<RunState> for PlegState {
    fn from(state: RunState) -> Self {
        match state {
            RunState::Running => PlegState::Running,
            RunState::Exited => PlegState::Exited,
            RunState::Created | RunState::Unknown => PlegState::Unknown,
        }
    }
}

impl From<SandboxState> for PlegState {
    fn from(state: SandboxState) -> Self {
        match state {
            SandboxState::Ready => PlegState::Running,
            SandboxState::NotReady => PlegState::Exited,
        }
    }
}

/// Containers and sandboxes of one pod by id.
pub type PodStates = BTreeMap<Box<str>, PlegState>;

/// What the rule sees of an inspected pod.
pub fn states_of(pod: &RuntimePod) -> PodStates {
    let containers = pod.containers.iter().map(|c| (Box::from(c.id.as_str()), c.state.into()));
    let sandboxes = pod.sandboxes.iter().map(|s| (Box::from(s.id.as_str()), s.state.into()));
    containers.chain(sandboxes).collect()
}

/// Events that lead from `old` to `new`, ordered by id.
pub fn diff(uid: &PodUid, old: &PodStates, new: &PodStates) -> Vec<PodLifecycleEvent> {
    use PodLifecycleEventKind as Kind;
    let mut events = Vec::new();
    let ids = old.keys().chain(new.keys().filter(|id| !old.contains_key(*id)));
    for id in ids {
        let before = old.get(id).copied();
        let after = new.get(id).copied();
        if before == after {
            continue;
        }
        let kinds: &[Kind] = match (before, after) {
            (_, Some(PlegState::Running)) => &[Kind::ContainerStarted],
            (_, Some(PlegState::Exited)) => &[Kind::ContainerDied],
            (_, Some(PlegState::Unknown)) => &[Kind::ContainerChanged],
            (Some(PlegState::Exited), None) => &[Kind::ContainerRemoved],
            (_, None) => &[Kind::ContainerDied, Kind::ContainerRemoved],
        };
        events.extend(kinds.iter().map(|&kind| PodLifecycleEvent { uid: uid.clone(), kind, id: id.clone() }));
    }
    events.sort_by(|a, b| a.id.cmp(&b.id));
    events
}

#[cfg(test)]
mod tests {
    use super::*;
    use PlegState::{Exited, Running, Unknown};
    use PodLifecycleEventKind::{ContainerChanged, ContainerDied, ContainerRemoved, ContainerStarted};
    use proptest::prelude::*;

    fn states(list: &[(&str, PlegState)]) -> PodStates {
        list.iter().map(|(id, state)| (Box::from(*id), *state)).collect()
    }

    #[test]
    fn table() {
        let uid = PodUid::parse("u").unwrap();
        let one = |state: Option<PlegState>| state.map_or_else(PodStates::new, |s| states(&[("a", s)]));
        #[rustfmt::skip]
        let cases: &[(Option<PlegState>, Option<PlegState>, &[PodLifecycleEventKind])] = &[
            (None,          Some(Running), &[ContainerStarted]),
            (None,          Some(Exited),  &[ContainerDied]),
            (None,          Some(Unknown), &[ContainerChanged]),
            (Some(Unknown), Some(Running), &[ContainerStarted]),
            (Some(Running), Some(Running), &[]),
            (Some(Running), Some(Exited),  &[ContainerDied]),
            (Some(Running), Some(Unknown), &[ContainerChanged]),
            (Some(Exited),  Some(Exited),  &[]),
            (Some(Exited),  None,          &[ContainerRemoved]),
            (Some(Running), None,          &[ContainerDied, ContainerRemoved]),
            (Some(Unknown), None,          &[ContainerDied, ContainerRemoved]),
        ];
        for (old, new, expected) in cases {
            let kinds: Vec<_> = diff(&uid, &one(*old), &one(*new)).into_iter().map(|e| e.kind).collect();
            assert_eq!(kinds, *expected, "{old:?} -> {new:?}");
        }
        let two = diff(&uid, &states(&[("b", Running)]), &states(&[("a", Running), ("b", Exited)]));
        assert_eq!(
            two.iter().map(|e| (&*e.id, e.kind)).collect::<Vec<_>>(),
            [("a", ContainerStarted), ("b", ContainerDied)]
        );
    }

    fn any_states() -> impl Strategy<Value = PodStates> {
        let state = prop_oneof![Just(Running), Just(Exited), Just(Unknown)];
        proptest::collection::btree_map("[a-e]", state, 0..6)
            .prop_map(|map| map.into_iter().map(|(id, state)| (Box::from(id), state)).collect())
    }

    proptest! {
        #[test]
        fn replaying_the_events_gives_the_new_states(old in any_states(), new in any_states()) {
            let uid = PodUid::parse("u").unwrap();
            let mut replayed = old.clone();
            for event in diff(&uid, &old, &new) {
                match event.kind {
                    ContainerStarted => { replayed.insert(event.id, Running); }
                    ContainerDied => { replayed.insert(event.id, Exited); }
                    ContainerChanged => { replayed.insert(event.id, Unknown); }
                    ContainerRemoved => { replayed.remove(&event.id); }
                    PodLifecycleEventKind::PodSync => prop_assert!(false, "not the rule's to make"),
                }
            }
            prop_assert_eq!(replayed, new);
            prop_assert!(diff(&uid, &old, &old).is_empty());
        }

        #[test]
        fn nothing_ends_unnoticed(old in any_states(), new in any_states()) {
            let uid = PodUid::parse("u").unwrap();
            let events = diff(&uid, &old, &new);
            for (id, _) in old.iter().filter(|(_, state)| **state == Running) {
                if new.get(id) != Some(&Running) && new.get(id) != Some(&Unknown) {
                    prop_assert!(events.iter().any(|e| e.id == *id && e.kind == ContainerDied));
                }
            }
        }
    }
}
