//! What goes with something else: a namespace's content, and what a node that is gone owned (garbage collection).

use serde_json::Value;

use super::super::Shared;
use super::super::deletion::{DeletionOutcome, Options, decide};
use super::super::resources::{RESOURCES, named};
use super::super::storage::{Store, key_of};

/// Ends namespaces that are to go, once they are empty.
pub(super) fn clean_namespaces(shared: &Shared) {
    let mut store = shared.store();
    let namespaces = named("namespaces");
    let ending: Vec<String> = store
        .list(namespaces, None)
        .filter(|namespace| namespace.value["metadata"]["deletionTimestamp"].is_string())
        .filter_map(|namespace| namespace.value["metadata"]["name"].as_str().map(str::to_owned))
        .collect();
    for namespace in ending {
        let mut left = false;
        for resource in RESOURCES.iter().filter(|resource| resource.namespaced && !resource.question) {
            let all: Vec<Value> = store.list(resource, Some(&namespace)).map(|object| object.value.clone()).collect();
            for object in all {
                let (_, name) = key_of(&object);
                let scheduled =
                    resource.kind == "Pod" && object["spec"]["nodeName"].as_str().is_some_and(|node| !node.is_empty());
                if !scheduled {
                    store.remove(resource, &namespace, &name);
                    continue;
                }
                // A pod on a node ends in its own time.
                left = true;
                if !object["metadata"]["deletionTimestamp"].is_string() {
                    let verdict = decide(resource, &object, &Options::default(), shared.clock.now());
                    if let Ok(DeletionOutcome::Mark { timestamp, grace_period_seconds, .. }) = verdict {
                        let mut marked = object;
                        marked["metadata"]["deletionTimestamp"] = timestamp.into();
                        marked["metadata"]["deletionGracePeriodSeconds"] = grace_period_seconds.into();
                        let generation = marked["metadata"]["generation"].as_i64().unwrap_or(0) + 1;
                        marked["metadata"]["generation"] = generation.into();
                        store.put(resource, marked);
                        if grace_period_seconds == 0 {
                            store.remove(resource, &namespace, &name);
                        }
                    }
                }
            }
        }
        if !left {
            store.remove(namespaces, "", &namespace);
        }
    }
}

/// Removes what a node owned that is gone.
pub(super) fn clean_orphans(shared: &Shared) {
    let mut store = shared.store();
    let nodes = named("nodes");
    let orphaned = |object: &Value, store: &Store| {
        let owners = object["metadata"]["ownerReferences"].as_array().map(Vec::as_slice).unwrap_or_default();
        owners.iter().any(|owner| owner["kind"] == "Node")
            && owners.iter().all(|owner| {
                let name = owner["name"].as_str().unwrap_or_default();
                owner["kind"] == "Node"
                    && store.get(nodes, "", name).is_none_or(|node| node.value["metadata"]["uid"] != owner["uid"])
            })
    };
    // A lease outlives its node's object by nothing, a mirror pod neither; both come back with the node.
    for plural in ["csinodes", "leases", "pods"] {
        let resource = named(plural);
        let gone: Vec<(String, String)> = store
            .list(resource, None)
            .filter(|object| orphaned(&object.value, &store))
            .map(|object| key_of(&object.value))
            .collect();
        for (namespace, name) in gone {
            store.remove(resource, &namespace, &name);
        }
    }
}
