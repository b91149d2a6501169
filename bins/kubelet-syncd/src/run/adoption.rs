//! Static pods that the runtime has when the process starts, running or ended: whose they are, and which manifest may take them over.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use bulkhead_cri::{CriClient, v1};
use bulkhead_types::PodUid;
use tokio::time::Instant;

use super::runtime::RUNTIME_RETRY;
use crate::ownership::{Owner, Ownership};
use crate::private_state::PrivateState;
use crate::sources::FoundPod;
use crate::sources::uids::UidStore as _;
use kubelet_model::annotations::CONFIG_SOURCE;
use kubelet_model::pod::labels;
use kubelet_model::pod::source::SourceKind;
use kubelet_pleg::PodCache;

/// So often it is asked whose a running pod is, before that counts as unclear.
const OWNER_TRIES: usize = 20;

/// Static pods that the runtime has now, for the adoption of their uids. Asked once, until answered.
pub async fn found_static_pods(cri: &CriClient) -> Vec<FoundPod> {
    loop {
        let lists = tokio::join!(
            cri.list_pod_sandbox(v1::ListPodSandboxRequest::default()),
            cri.list_containers(v1::ListContainersRequest::default())
        );
        match lists {
            (Ok(sandboxes), Ok(containers)) => return adoptable(&sandboxes.items, &containers.containers),
            (Err(error), _) | (_, Err(error)) => tracing::debug!(%error, "running pods could not be listed yet"),
        }
        tokio::time::sleep(RUNTIME_RETRY).await;
    }
}

/// Static pods of this instance's earlier lives, by its own record.
pub fn recorded_pods(state: &PrivateState) -> HashSet<PodUid> {
    // An unreadable record is reported by the sources, which rely on it, too.
    let book = state.load().unwrap_or_default();
    book.choices.values().filter_map(|choice| PodUid::parse(&choice.uid).ok()).collect()
}

/// Without the pods of another instance. One of which nothing is known may be taken over: it has our node's name and
/// runs what our manifest says, or it is no candidate.
pub async fn not_foreign(
    running: Vec<FoundPod>,
    ownership: &Ownership,
    cache: &PodCache,
    started: Instant,
) -> Vec<FoundPod> {
    let mut rest = Vec::new();
    for pod in running {
        let Ok(uid) = PodUid::parse(&pod.uid) else { continue };
        let mut owner = Owner::Unclear;
        for _ in 0..OWNER_TRIES {
            if let Ok(seen) = cache.get_newer_than(&uid, started).await {
                owner = ownership.of(&seen).await;
                if ownership.decided(&seen).is_some() {
                    break;
                }
            }
            tokio::time::sleep(RUNTIME_RETRY).await;
        }
        if owner != Owner::Foreign {
            rest.push(pod);
        }
    }
    rest
}

/// Which of two instances of a container is newer: the attempt says so where the clock was set back between them.
fn place(container: &v1::Container) -> (u32, i64) {
    (container.metadata.as_ref().map_or(0, |metadata| metadata.attempt), container.created_at)
}

/// File and HTTP pods by their ready sandboxes, with the newest instance of each of their containers. Of a name without a ready one the
/// last sandbox that still has containers stands for the pod: it has finished, or the machine was started again.
fn adoptable(sandboxes: &[v1::PodSandbox], containers: &[v1::Container]) -> Vec<FoundPod> {
    let is_ready = |sandbox: &v1::PodSandbox| sandbox.state == i32::from(v1::PodSandboxState::SandboxReady);
    let pod = |sandbox: &v1::PodSandbox| {
        let metadata = sandbox.metadata.clone()?;
        let source = SourceKind::parse(sandbox.annotations.get(CONFIG_SOURCE)?)?;
        let mut newest: HashMap<&str, &v1::Container> = HashMap::new();
        for container in containers.iter().filter(|c| c.pod_sandbox_id == sandbox.id) {
            let Some(name) = container.labels.get(labels::CONTAINER_NAME) else { continue };
            let slot = newest.entry(name).or_insert(container);
            if place(slot) < place(container) {
                *slot = container;
            }
        }
        let mut containers: Vec<(String, u32)> = newest
            .into_iter()
            .filter_map(|(name, container)| {
                let hash = container.annotations.get(labels::CONTAINER_HASH)?;
                Some((name.to_owned(), u32::from_str_radix(hash, 16).ok()?))
            })
            .collect();
        containers.sort();
        let v1::PodSandboxMetadata { uid, namespace, name, .. } = metadata;
        Some(FoundPod { uid, namespace, name, source, runs: is_ready(sandbox), containers })
    };
    let name = |sandbox: &v1::PodSandbox| {
        let metadata = sandbox.metadata.as_ref();
        metadata.map(|metadata| (metadata.namespace.clone(), metadata.name.clone()))
    };
    let (ready, others): (Vec<_>, Vec<_>) = sandboxes.iter().partition(|sandbox| is_ready(sandbox));
    let mut found: Vec<&v1::PodSandbox> = ready;
    let mut names: HashSet<_> = found.iter().map(|sandbox| name(sandbox)).collect();
    let mut others: Vec<_> =
        others.into_iter().filter(|sandbox| containers.iter().any(|c| c.pod_sandbox_id == sandbox.id)).collect();
    others.sort_by_key(|sandbox| Reverse(sandbox.created_at));
    found.extend(others.into_iter().filter(|sandbox| names.insert(name(sandbox))));
    found.into_iter().filter_map(pod).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_that_of_the_newest_instance() {
        let sandbox = |state: v1::PodSandboxState| v1::PodSandbox {
            id: "s".into(),
            metadata: Some(v1::PodSandboxMetadata {
                name: "p-node".into(),
                uid: "u".into(),
                namespace: "default".into(),
                attempt: 0,
            }),
            state: state.into(),
            annotations: [(CONFIG_SOURCE.to_owned(), SourceKind::File.to_string())].into(),
            ..Default::default()
        };
        let container = |created_at, hash: &str| v1::Container {
            pod_sandbox_id: "s".into(),
            created_at,
            labels: [(labels::CONTAINER_NAME.to_owned(), "a".to_owned())].into(),
            annotations: [(labels::CONTAINER_HASH.to_owned(), hash.to_owned())].into(),
            ..Default::default()
        };
        // The clock was set back before the restart.
        let restarted = v1::Container {
            metadata: Some(v1::ContainerMetadata { name: "a".into(), attempt: 1 }),
            ..container(0, "ef")
        };
        let found = adoptable(
            &[sandbox(v1::PodSandboxState::SandboxReady)],
            &[container(1, "ab"), restarted, container(2, "cd")],
        );
        assert_eq!(found[0].containers, [("a".to_owned(), 0xef)]);
        let containers = [container(1, "ab"), container(2, "cd")];
        let found = adoptable(&[sandbox(v1::PodSandboxState::SandboxReady)], &containers);
        assert_eq!(found[0].containers, [("a".to_owned(), 0xcd)]);
        assert!(PodUid::parse(&found[0].uid).is_ok());
    }

    #[test]
    fn a_pod_that_has_finished_is_known_by_its_last_sandbox() {
        let sandbox = |id: &str, uid: &str, created_at, state: v1::PodSandboxState| v1::PodSandbox {
            id: id.into(),
            metadata: Some(v1::PodSandboxMetadata {
                name: "p-node".into(),
                uid: uid.into(),
                namespace: "default".into(),
                attempt: 0,
            }),
            state: state.into(),
            created_at,
            annotations: [(CONFIG_SOURCE.to_owned(), SourceKind::File.to_string())].into(),
            ..Default::default()
        };
        let container = |sandbox: &str| v1::Container {
            pod_sandbox_id: sandbox.into(),
            labels: [(labels::CONTAINER_NAME.to_owned(), "a".to_owned())].into(),
            annotations: [(labels::CONTAINER_HASH.to_owned(), "ab".to_owned())].into(),
            ..Default::default()
        };
        let (ready, ended) = (v1::PodSandboxState::SandboxReady, v1::PodSandboxState::SandboxNotready);
        let all = ["old", "last", "now"].map(container);
        let uids = |sandboxes: &[v1::PodSandbox], containers: &[v1::Container]| -> Vec<String> {
            let found = adoptable(sandboxes, containers);
            assert!(found.iter().all(|pod| pod.runs == (pod.uid == "u-now")), "{found:?}");
            found.into_iter().map(|pod| pod.uid).collect()
        };
        let (old, last) = (sandbox("old", "u-old", 1, ended), sandbox("last", "u-last", 2, ended));
        assert_eq!(uids(&[old.clone(), last.clone()], &all), ["u-last"]);
        assert_eq!(uids(&[old.clone(), last.clone()], &all[..1]), ["u-old"], "of the last nothing is left");
        assert_eq!(uids(&[old, last.clone(), sandbox("now", "u-now", 0, ready)], &all), ["u-now"]);
        assert!(uids(&[last], &[]).is_empty());
    }
}
