use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::PodStatus;
use kubelet_model::v1::PodSpec;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn pod(value: Value) -> Pod {
    serde_json::from_value(value).unwrap()
}

fn simple(uid: &str, name: &str, image: &str) -> Pod {
    pod(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"uid": uid, "name": name, "namespace": "default",
        "annotations": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": image}]}, "status": {"phase": "Pending"}}))
}

fn now() -> Timestamp {
    "2026-11-21T01:24:24.097598Z".parse().unwrap()
}

fn shape(merged: &Merged) -> Vec<(PodOp, Vec<String>)> {
    let uids = |u: &PodUpdate| u.pods.iter().map(|p| p.metadata.uid.clone().unwrap()).collect();
    merged.updates.iter().map(|u| (u.op, uids(u))).collect()
}

fn uids(list: &[&str]) -> Vec<String> {
    list.iter().map(|u| (*u).to_owned()).collect()
}

#[test]
fn changes_in_order() {
    let mut merge = Merge::default();
    merge.register(SourceKind::File);
    let first =
        merge.set(SourceKind::File, vec![simple("1", "a", "i"), simple("2", "b", "i"), simple("3", "c", "i")], now());
    assert_eq!(shape(&first), [(PodOp::Add, uids(&["1", "2", "3"]))]);
    let annotations = first.updates[0].pods[0].metadata.annotations.clone().unwrap();
    assert_eq!(annotations[CONFIG_SOURCE], "file");
    assert_eq!(annotations[CONFIG_SEEN], "2026-11-21T01:24:24.097598000Z");

    let mut deleted = simple("3", "c", "i");
    deleted.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now()));
    let next = vec![simple("4", "d", "i"), simple("2", "b", "j"), deleted];
    let second = merge.set(SourceKind::File, next.clone(), Timestamp::now());
    assert_eq!(
        shape(&second),
        [
            (PodOp::Remove, uids(&["1"])),
            (PodOp::Add, uids(&["4"])),
            (PodOp::Update, uids(&["2"])),
            (PodOp::Delete, uids(&["3"])),
        ]
    );
    let updated = &second.updates[2].pods[0];
    assert_eq!(updated.metadata.annotations.as_ref().unwrap()[CONFIG_SEEN], annotations[CONFIG_SEEN], "seen is kept");
    assert_eq!(shape(&merge.set(SourceKind::File, next.clone(), now())), [], "the same set again");

    let mut running = next;
    running[0].status = serde_json::from_value(json!({"phase": "Running"})).unwrap();
    assert_eq!(shape(&merge.set(SourceKind::File, running, now())), [(PodOp::Reconcile, uids(&["4"]))]);
}

#[test]
fn local_annotations_do_not_count_others_do() {
    let mut merge = Merge::default();
    merge.set(SourceKind::Api, vec![simple("1", "a", "i")], now());
    let mut same = simple("1", "a", "i");
    let annotations = same.metadata.annotations.as_mut().unwrap();
    annotations.insert(CONFIG_SEEN.to_owned(), "x".to_owned());
    annotations.insert(CONFIG_MIRROR.to_owned(), "y".to_owned());
    assert_eq!(shape(&merge.set(SourceKind::Api, vec![same.clone()], now())), []);
    same.metadata.annotations.as_mut().unwrap().insert("a".to_owned(), "c".to_owned());
    assert_eq!(shape(&merge.set(SourceKind::Api, vec![same], now())), [(PodOp::Update, uids(&["1"]))]);
    let mut bare = simple("1", "a", "i");
    bare.metadata.annotations = None;
    assert_eq!(shape(&merge.set(SourceKind::Api, vec![bare], now())), [(PodOp::Update, uids(&["1"]))]);
}

#[test]
fn duplicates_are_dropped_with_an_event() {
    let mut merge = Merge::default();
    let set = vec![simple("1", "a", "i"), simple("2", "a", "j"), simple("1", "z", "k")];
    let merged = merge.set(SourceKind::Http, set, now());
    assert_eq!(shape(&merged), [(PodOp::Add, uids(&["1"]))]);
    let messages: Vec<&str> = merged.dropped.iter().map(|d| d.message.as_str()).collect();
    assert_eq!(
        messages,
        [
            "Error validating pod a_default(2) from http due to duplicate pod name \"a\", ignoring",
            "Error validating pod z_default(1) from http due to duplicate pod uid \"1\", ignoring",
        ]
    );
    assert!(merged.dropped.iter().all(|d| d.reason == "FailedValidation"));
}

#[test]
fn readiness_needs_delivery_and_a_listener() {
    let mut merge = Merge::default();
    assert!(merge.all_ready(), "no source at all");
    merge.register(SourceKind::File);
    merge.register(SourceKind::Http);
    assert!(!merge.all_ready());
    let empty = merge.set(SourceKind::File, vec![], now());
    assert_eq!(shape(&empty), [(PodOp::Add, vec![])], "the first set says that the source has spoken");
    assert_eq!(shape(&merge.set(SourceKind::File, vec![], now())), []);
    merge.consumed(SourceKind::File);
    assert!(!merge.all_ready());
    merge.set(SourceKind::Http, vec![simple("1", "a", "i")], now());
    assert!(!merge.all_ready());
    merge.consumed(SourceKind::Http);
    assert!(merge.all_ready());
    assert!(merge.delivered(SourceKind::File) && !merge.delivered(SourceKind::Api));
    assert_eq!(merge.count(SourceKind::Http), 1);
}

#[test]
fn single_changes() {
    let mut merge = Merge::default();
    merge.register(SourceKind::Api);
    let early = merge.upsert(SourceKind::Api, simple("0", "z", "i"), now());
    assert_eq!(shape(&early), [(PodOp::Add, uids(&["0"]))]);
    assert!(!merge.delivered(SourceKind::Api), "one pod is no set");
    merge.set(SourceKind::Api, vec![simple("1", "a", "i"), simple("2", "b", "i")], now());
    assert_eq!(shape(&merge.upsert(SourceKind::Api, simple("1", "a", "i"), now())), []);
    assert_eq!(shape(&merge.upsert(SourceKind::Api, simple("1", "a", "j"), now())), [(PodOp::Update, uids(&["1"]))]);
    assert_eq!(shape(&merge.upsert(SourceKind::Api, simple("3", "c", "i"), now())), [(PodOp::Add, uids(&["3"]))]);
    let successor = merge.upsert(SourceKind::Api, simple("4", "b", "i"), now());
    assert_eq!(shape(&successor), [(PodOp::Remove, uids(&["2"])), (PodOp::Add, uids(&["4"]))]);
    assert_eq!(shape(&merge.again(SourceKind::Api, "3")), [(PodOp::Again, uids(&["3"]))]);
    assert_eq!(shape(&merge.again(SourceKind::Api, "2")), []);
    let renewed = merge.renew(SourceKind::Api, "3", now());
    assert_eq!(shape(&renewed), [(PodOp::Remove, uids(&["3"])), (PodOp::Add, uids(&["3"]))]);
    assert_eq!(shape(&merge.renew(SourceKind::Api, "2", now())), []);
    assert_eq!(shape(&merge.remove(SourceKind::Api, "2")), [], "its successor has its name");
    assert_eq!(shape(&merge.remove(SourceKind::Api, "1")), [(PodOp::Remove, uids(&["1"]))]);
    let left: Vec<&str> = merge.names(SourceKind::Api).map(|(uid, _)| uid).collect();
    assert_eq!((left, merge.count(SourceKind::Api)), (vec!["4", "3"], 2));
}

/// uid, name, image, status, asked to terminate.
type Small = (u8, u8, u8, u8, bool);

fn build((uid, name, image, phase, deleted): Small) -> Pod {
    let mut pod = simple(&uid.to_string(), &format!("n{name}"), &format!("i{image}"));
    pod.status = serde_json::from_value(json!({"phase": format!("p{phase}")})).unwrap();
    pod.metadata.deletion_timestamp = deleted.then(|| k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now()));
    pod
}

type Content = BTreeMap<String, (String, Option<PodSpec>, Option<PodStatus>, bool)>;

fn content(pod: &Pod) -> (String, Option<PodSpec>, Option<PodStatus>, bool) {
    let meta = &pod.metadata;
    (meta.name.clone().unwrap_or_default(), pod.spec.clone(), pod.status.clone(), meta.deletion_timestamp.is_some())
}

proptest! {
    /// A set after single changes finds nothing to do exactly where they have led to it already.
    #[test]
    fn single_changes_lead_where_a_set_does(
        first in proptest::collection::vec((0u8..5, 0u8..2, 0u8..2, any::<bool>()), 0..5),
        changes in proptest::collection::vec((0u8..5, 0u8..2, 0u8..2, any::<bool>(), any::<bool>()), 0..12)
    ) {
        let mut merge = Merge::default();
        let mut model: BTreeMap<String, Pod> = BTreeMap::new();
        for (uid, image, phase, deleted) in first {
            let pod = build((uid, uid, image, phase, deleted));
            model.entry(uid.to_string()).or_insert(pod);
        }
        merge.set(SourceKind::Api, model.values().cloned().collect(), now());
        for (uid, image, phase, deleted, gone) in changes {
            let merged = if gone {
                model.remove(&uid.to_string());
                merge.remove(SourceKind::Api, &uid.to_string())
            } else {
                let pod = build((uid, uid, image, phase, deleted));
                model.insert(uid.to_string(), pod.clone());
                merge.upsert(SourceKind::Api, pod, now())
            };
            prop_assert!(merged.updates.len() <= 1);
        }
        prop_assert_eq!(merge.count(SourceKind::Api), model.len());
        prop_assert_eq!(merge.names(SourceKind::Api).count(), model.len());
        let same = merge.set(SourceKind::Api, model.into_values().collect(), now());
        prop_assert_eq!(shape(&same), []);
    }

    #[test]
    fn applying_the_changes_gives_the_set(
        sets in proptest::collection::vec(
            (any::<bool>(), proptest::collection::vec((0u8..5, 0u8..6, 0u8..2, 0u8..2, any::<bool>()), 0..6)), 1..12)
    ) {
        let mut merge = Merge::default();
        let mut model: BTreeMap<SourceKind, Content> = BTreeMap::new();
        let mut spoken = BTreeSet::new();
        for (api, small) in sets {
            let kind = if api { SourceKind::Api } else { SourceKind::File };
            let state = model.entry(kind).or_default();
            // A name is part of a uid's identity: it does not change under one uid.
            let pods: Vec<Pod> = small.iter().map(|s| build((s.0, s.0 / 2 + s.1 / 5, s.2, s.3, s.4))).collect();
            let mut wanted = Content::new();
            let mut names = BTreeSet::new();
            for pod in &pods {
                let uid = pod.metadata.uid.clone().unwrap();
                let name = pod.metadata.name.clone().unwrap();
                if names.contains(&name) || wanted.contains_key(&uid) {
                    continue;
                }
                names.insert(name);
                wanted.insert(uid, content(pod));
            }
            let given = pods.len();
            let merged = merge.set(kind, pods, now());
            prop_assert_eq!(merged.dropped.len(), given - wanted.len());
            if spoken.insert(kind) {
                prop_assert!(!merged.updates.is_empty(), "the first set is always heard of");
            }
            let order = |op: PodOp| match op {
                PodOp::Remove => 0, PodOp::Add => 1, PodOp::Update => 2, PodOp::Delete => 3, PodOp::Reconcile => 5, PodOp::Again => 6,
            };
            let mut last = -1;
            let mut touched = BTreeSet::new();
            for update in &merged.updates {
                prop_assert_eq!(update.source, kind);
                let rank = if update.pods.is_empty() { 4 } else { order(update.op) };
                prop_assert!(rank > last, "order of operations");
                last = rank;
                for pod in &update.pods {
                    let uid = pod.metadata.uid.clone().unwrap();
                    prop_assert!(touched.insert(uid.clone()), "one change for each pod");
                    match update.op {
                        PodOp::Remove => prop_assert!(state.remove(&uid).is_some()),
                        PodOp::Add => prop_assert!(state.insert(uid, content(pod)).is_none()),
                        PodOp::Delete => {
                            prop_assert!(pod.metadata.deletion_timestamp.is_some());
                            prop_assert!(state.insert(uid, content(pod)).is_some());
                        }
                        PodOp::Update | PodOp::Reconcile => prop_assert!(state.insert(uid, content(pod)).is_some()),
                        PodOp::Again => prop_assert!(false, "a set says nothing of what was away"),
                    }
                }
            }
            let with_names = |c: &Content| -> BTreeMap<String, _> {
                c.iter().map(|(u, v)| (u.clone(), (v.1.clone(), v.2.clone(), v.3))).collect()
            };
            prop_assert_eq!(with_names(state), with_names(&wanted));
            prop_assert_eq!(merge.count(kind), wanted.len());
        }
    }
}

#[test]
fn changes_are_called_as_in_upstreams_log() {
    let all = [PodOp::Add, PodOp::Update, PodOp::Remove, PodOp::Delete, PodOp::Reconcile];
    assert_eq!(all.map(PodOp::as_str), ["ADD", "UPDATE", "REMOVE", "DELETE", "RECONCILE"]);
}
