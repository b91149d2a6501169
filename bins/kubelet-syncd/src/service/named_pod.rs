//! Which pod is meant by a name or a uid: the one that the sources want now (upstream `pkg/kubelet/pod/pod_manager.go`,
//! GetPodByName), not its predecessor of the same name, whose state is kept until housekeeping forgets it. Pure.

use std::sync::Arc;

use bulkhead_ipc::syncd::{GetPodRequest, PodState};
use kubelet_model::v1::Pod;

/// What a name means.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Meant<'a> {
    Pod(&'a Arc<PodState>),
    /// One of which nothing is known yet: its source has not delivered, or it is on its way from there.
    MayCome,
    Nothing,
}

/// `known`: every pod that has a state. `desired`: the pods that sources want now; `all_ready`: all of them are named there.
pub(super) fn meant<'a>(
    wanted: &GetPodRequest,
    known: &'a [Arc<PodState>],
    desired: &[Arc<Pod>],
    all_ready: bool,
) -> Meant<'a> {
    let is_named = |uid: &str, namespace: &str, name: &str| {
        uid == wanted.name || (name == wanted.name && (wanted.namespace.is_empty() || namespace == wanted.namespace))
    };
    let desired: Vec<&str> = desired
        .iter()
        .filter_map(|pod| {
            let metadata = &pod.metadata;
            let (uid, name) = (metadata.uid.as_deref()?, metadata.name.as_deref().unwrap_or_default());
            is_named(uid, metadata.namespace.as_deref().unwrap_or("default"), name).then_some(uid)
        })
        .collect();
    let known = || known.iter().filter(|state| is_named(&state.uid, &state.namespace, &state.name));
    // A uid is one pod's, whether it is wanted or not.
    let exact = || known().find(|state| state.uid == wanted.name);
    let current = known().find(|state| desired.contains(&state.uid.as_str()));
    match current.or_else(exact) {
        Some(state) => Meant::Pod(state),
        None if !desired.is_empty() => Meant::MayCome,
        None => match known().next() {
            Some(state) => Meant::Pod(state),
            None if all_ready => Meant::Nothing,
            None => Meant::MayCome,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(uid: &str, namespace: &str) -> Arc<PodState> {
        Arc::new(PodState { uid: uid.into(), namespace: namespace.into(), name: "web".into(), ..PodState::default() })
    }

    fn desired(uid: &str, namespace: &str) -> Arc<Pod> {
        let metadata = serde_json::json!({"uid": uid, "namespace": namespace, "name": "web"});
        Arc::new(serde_json::from_value(serde_json::json!({"metadata": metadata})).unwrap())
    }

    #[test]
    fn the_pod_that_is_wanted_and_not_its_predecessor() {
        let old = known("a-old", "default");
        let both = [old.clone(), known("b-new", "default"), known("c", "other")];
        let (new, other) = (desired("b-new", "default"), desired("c", "other"));
        let of = |namespace: &str, name: &str, known: &[Arc<PodState>], desired: &[Arc<Pod>], all_ready| {
            let wanted = GetPodRequest { namespace: namespace.into(), name: name.into() };
            match meant(&wanted, known, desired, all_ready) {
                Meant::Pod(state) => state.uid.clone(),
                Meant::MayCome => "may come".to_owned(),
                Meant::Nothing => "nothing".to_owned(),
            }
        };
        let wanted = [new, other.clone()];
        assert_eq!(of("default", "web", &both, &wanted, true), "b-new");
        assert_eq!(of("default", "web", &both[..1], &wanted, true), "may come", "on its way from its source");
        assert_eq!(of("default", "web", &both[..1], &[other], true), "a-old", "what is left of it");
        assert_eq!(of("default", "web", &both[..1], &[], false), "a-old", "its source may deliver yet");
        assert_eq!(of("other", "web", &both, &wanted, true), "c");
        // By uid.
        assert_eq!(of("", "a-old", &both, &wanted, true), "a-old");
        assert_eq!(of("", "b-new", &[old], &wanted, true), "may come");
        assert_eq!(of("default", "none", &both, &wanted, true), "nothing");
        assert_eq!(of("default", "none", &both, &wanted, false), "may come");
    }
}
