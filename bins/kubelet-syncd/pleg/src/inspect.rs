//! Asking the runtime: everything by two lists; one pod by a status for each of its ids, where all of them are known (after a list of
//! everything they are), else by two filtered lists and a status for what changed. A filtered list costs the runtime as much as one
//! of everything.

use std::collections::{BTreeMap, HashMap, HashSet};

use bulkhead_cri::{CriClient, CriError, v1};
use bulkhead_types::PodUid;
use futures_util::future::try_join_all;

use super::cache::KnownIds;
use super::mapping;
use super::relist::{PlegState, PodStates};
use kubelet_model::pod::labels;
use kubelet_model::pod::model::{ContainerStatus, RuntimePod, SandboxState, SandboxStatus};

/// What a list of everything tells of each pod.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Everything {
    pub states: HashMap<PodUid, PodStates>,
    /// Of those of which [`inspect_pod`] would find something.
    pub ids: HashMap<PodUid, KnownIds>,
}

impl Everything {
    /// Everything that carries a pod uid.
    fn of(sandboxes: &[v1::PodSandbox], containers: &[v1::Container]) -> Self {
        let mut all = Everything::default();
        for sandbox in sandboxes {
            let Some(uid) = mapping::pod_of_sandbox(sandbox) else { continue };
            // Lists of one pod go by the label, which a sandbox that is no kubelet's does not have.
            if sandbox.labels.get(labels::POD_UID).is_some_and(|label| label == uid.as_str()) {
                all.ids.entry(uid.clone()).or_default().sandboxes.push(sandbox.id.as_str().into());
            }
            let state = PlegState::from(mapping::sandbox_state(sandbox.state));
            all.states.entry(uid).or_default().insert(sandbox.id.as_str().into(), state);
        }
        for container in containers {
            let Some(uid) = mapping::pod_of_container(container) else { continue };
            let ids = (container.id.as_str().into(), container.pod_sandbox_id.as_str().into());
            all.ids.entry(uid.clone()).or_default().containers.push(ids);
            let state = PlegState::from(mapping::run_state(container.state));
            all.states.entry(uid).or_default().insert(container.id.as_str().into(), state);
        }
        all
    }
}

pub(super) async fn list_all(client: &CriClient) -> Result<Everything, CriError> {
    let (sandboxes, containers) = lists(client, &BTreeMap::new()).await?;
    Ok(Everything::of(&sandboxes, &containers))
}

/// The pod of an id that an event named. None: the runtime does not know the id, or it is not a kubelet's.
pub(super) async fn find_owner(client: &CriClient, id: &str) -> Result<Option<PodUid>, CriError> {
    let containers = client.list_containers(v1::ListContainersRequest {
        filter: Some(v1::ContainerFilter { id: id.to_owned(), ..Default::default() }),
    });
    let sandboxes = client.list_pod_sandbox(v1::ListPodSandboxRequest {
        filter: Some(v1::PodSandboxFilter { id: id.to_owned(), ..Default::default() }),
    });
    let (containers, sandboxes) = tokio::try_join!(containers, sandboxes)?;
    let container = containers.containers.iter().find(|c| c.id == id).and_then(mapping::pod_of_container);
    Ok(container.or_else(|| sandboxes.items.iter().find(|s| s.id == id).and_then(mapping::pod_of_sandbox)))
}

/// One pod in full. What `previous` holds in the same state is taken over: within one state nothing that the model
/// keeps can change, but for the ids in `refresh` (an out-of-memory kill may be noted after the exit).
pub(super) async fn inspect_pod(
    client: &CriClient,
    uid: &PodUid,
    previous: &RuntimePod,
    refresh: &HashSet<Box<str>>,
) -> Result<RuntimePod, CriError> {
    let labels = BTreeMap::from([(labels::POD_UID.to_owned(), uid.as_str().to_owned())]);
    let (sandboxes, containers) = lists(client, &labels).await?;
    let mut pod = RuntimePod { uid: Some(uid.clone()), ..Default::default() };
    if let Some(metadata) = sandboxes.iter().find_map(|s| s.metadata.as_ref()) {
        pod.namespace.clone_from(&metadata.namespace);
        pod.name.clone_from(&metadata.name);
    } else if let Some(container) = containers.first() {
        (pod.namespace, pod.name) = pod_names(&container.labels);
    }

    let sandboxes = try_join_all(sandboxes.iter().map(|listed| sandbox_status(client, listed, previous)));
    let containers = try_join_all(containers.iter().map(|listed| container_status(client, listed, previous, refresh)));
    let (sandboxes, containers) = tokio::try_join!(sandboxes, containers)?;
    pod.sandboxes = sandboxes.into_iter().flatten().collect();
    pod.containers = containers.into_iter().flatten().collect();
    newest_first(&mut pod);
    Ok(pod)
}

/// One pod in full, by the ids of all that it has.
pub(super) async fn inspect_known(
    client: &CriClient,
    uid: &PodUid,
    previous: &RuntimePod,
    ids: &KnownIds,
) -> Result<RuntimePod, CriError> {
    let sandboxes = try_join_all(ids.sandboxes.iter().map(|id| sandbox_by_id(client, id)));
    let containers = try_join_all(ids.containers.iter().map(|(id, _)| container_by_id(client, id)));
    let (sandboxes, containers) = tokio::try_join!(sandboxes, containers)?;
    let mut pod = RuntimePod {
        uid: Some(uid.clone()),
        namespace: previous.namespace.clone(),
        name: previous.name.clone(),
        ..Default::default()
    };
    if let Some(metadata) = sandboxes.iter().flatten().find_map(|status| status.metadata.as_ref()) {
        pod.namespace.clone_from(&metadata.namespace);
        pod.name.clone_from(&metadata.name);
    } else if let Some(container) = containers.iter().flatten().next().filter(|_| pod.name.is_empty()) {
        (pod.namespace, pod.name) = pod_names(&container.labels);
    }
    pod.sandboxes = sandboxes.iter().flatten().filter_map(mapping::sandbox).collect();
    let containers = ids.containers.iter().zip(&containers);
    let containers = containers.filter_map(|((_, sandbox), status)| mapping::container(status.as_ref()?, sandbox));
    pod.containers = containers.collect();
    newest_first(&mut pod);
    Ok(pod)
}

/// Namespace and name of the pod that a container is labelled with.
fn pod_names(labels: &BTreeMap<String, String>) -> (String, String) {
    let label = |key: &str| labels.get(key).cloned().unwrap_or_default();
    (label(labels::POD_NAMESPACE), label(labels::POD_NAME))
}

/// The count of restarts tells which instance is newer, before the time does: a clock that was set back between two of them makes the
/// newer one look older. Upstream goes by the time alone (`kuberuntime_container.go` getPodContainerStatuses).
fn newest_first(pod: &mut RuntimePod) {
    pod.sandboxes
        .sort_by(|a, b| (b.attempt, b.created_at, b.id.as_str()).cmp(&(a.attempt, a.created_at, a.id.as_str())));
    let place = |container: &ContainerStatus| (container.restart_count, container.created_at);
    pod.containers.sort_by(|a, b| place(b).cmp(&place(a)).then_with(|| b.id.as_str().cmp(a.id.as_str())));
}

async fn lists(
    client: &CriClient,
    labels: &BTreeMap<String, String>,
) -> Result<(Vec<v1::PodSandbox>, Vec<v1::Container>), CriError> {
    let sandboxes = client.list_pod_sandbox(v1::ListPodSandboxRequest {
        filter: Some(v1::PodSandboxFilter { label_selector: labels.clone(), ..Default::default() }),
    });
    let containers = client.list_containers(v1::ListContainersRequest {
        filter: Some(v1::ContainerFilter { label_selector: labels.clone(), ..Default::default() }),
    });
    let (sandboxes, containers) = tokio::try_join!(sandboxes, containers)?;
    Ok((sandboxes.items, containers.containers))
}

async fn sandbox_status(
    client: &CriClient,
    listed: &v1::PodSandbox,
    previous: &RuntimePod,
) -> Result<Option<SandboxStatus>, CriError> {
    let known = previous.sandboxes.iter().find(|s| s.id.as_str() == listed.id);
    if let Some(known) = known {
        // A ready sandbox without its address is still being set up.
        let settled = known.state == SandboxState::NotReady || known.host_network || !known.ips.is_empty();
        if settled && known.state == mapping::sandbox_state(listed.state) {
            return Ok(Some(known.clone()));
        }
    }
    Ok(sandbox_by_id(client, &listed.id).await?.as_ref().and_then(mapping::sandbox))
}

async fn sandbox_by_id(client: &CriClient, id: &str) -> Result<Option<v1::PodSandboxStatus>, CriError> {
    let request = v1::PodSandboxStatusRequest { pod_sandbox_id: id.to_owned(), verbose: false };
    Ok(found(client.pod_sandbox_status(request).await)?.and_then(|reply| reply.status))
}

async fn container_status(
    client: &CriClient,
    listed: &v1::Container,
    previous: &RuntimePod,
    refresh: &HashSet<Box<str>>,
) -> Result<Option<ContainerStatus>, CriError> {
    let known = previous.containers.iter().find(|c| c.id.as_str() == listed.id);
    if let Some(known) = known
        && known.state == mapping::run_state(listed.state)
        && !refresh.contains(listed.id.as_str())
    {
        return Ok(Some(known.clone()));
    }
    let status = container_by_id(client, &listed.id).await?;
    Ok(status.and_then(|status| mapping::container(&status, &listed.pod_sandbox_id)))
}

async fn container_by_id(client: &CriClient, id: &str) -> Result<Option<v1::ContainerStatus>, CriError> {
    let request = v1::ContainerStatusRequest { container_id: id.to_owned(), verbose: false };
    Ok(found(client.container_status(request).await)?.and_then(|reply| reply.status))
}

/// What vanished between the list and the question is gone, and no failure.
fn found<T>(result: Result<T, CriError>) -> Result<Option<T>, CriError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kubelet_model::fixtures::container_status;
    use kubelet_model::pod::model::RunState;

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn a_list_of_everything_tells_states_and_ids() {
        let sandbox = |id: &str, uid: &str, label: Option<&str>| v1::PodSandbox {
            id: id.into(),
            metadata: Some(v1::PodSandboxMetadata { uid: uid.into(), ..Default::default() }),
            labels: label.map(|label| labels(&[(labels::POD_UID, label)])).unwrap_or_default(),
            ..Default::default()
        };
        let container = |id: &str, sandbox: &str, uid: Option<&str>| v1::Container {
            id: id.into(),
            pod_sandbox_id: sandbox.into(),
            state: v1::ContainerState::ContainerExited as i32,
            labels: uid.map(|uid| labels(&[(labels::POD_UID, uid)])).unwrap_or_default(),
            ..Default::default()
        };
        let all = Everything::of(
            &[sandbox("s1", "u", Some("u")), sandbox("s2", "u", Some("u")), sandbox("t", "by-hand", None)],
            &[container("c", "s1", Some("u")), container("d", "t", None), container("e", "gone", Some("v"))],
        );
        let uid = |text: &str| PodUid::parse(text).unwrap();
        let states = |list: &[(&str, PlegState)]| -> PodStates {
            list.iter().map(|(id, state)| (Box::from(*id), *state)).collect()
        };
        let running = PlegState::Running;
        let expected = HashMap::from([
            (uid("u"), states(&[("s1", running), ("s2", running), ("c", PlegState::Exited)])),
            (uid("by-hand"), states(&[("t", running)])),
            (uid("v"), states(&[("e", PlegState::Exited)])),
        ]);
        assert_eq!(all.states, expected);
        let ids = HashMap::from([
            (
                uid("u"),
                KnownIds { sandboxes: vec!["s1".into(), "s2".into()], containers: vec![("c".into(), "s1".into())] },
            ),
            (uid("v"), KnownIds { sandboxes: Vec::new(), containers: vec![("e".into(), "gone".into())] }),
        ]);
        assert_eq!(all.ids, ids, "lists of one pod would not show what is not labelled");
    }

    #[test]
    fn names_of_a_pod_without_a_sandbox() {
        let labelled = labels(&[(labels::POD_NAMESPACE, "default"), (labels::POD_NAME, "a")]);
        assert_eq!(pod_names(&labelled), ("default".to_owned(), "a".to_owned()));
        assert_eq!(pod_names(&BTreeMap::new()), (String::new(), String::new()));
    }

    #[test]
    fn a_restart_is_newer_than_what_it_restarted_whatever_the_clock_says() {
        let instance = |id: &str, restart_count, created: u64| ContainerStatus {
            id: bulkhead_types::ContainerId::parse(id).unwrap(),
            restart_count,
            created_at: std::time::UNIX_EPOCH + std::time::Duration::from_secs(created),
            ..container_status("a", RunState::Exited, 1)
        };
        let mut pod = RuntimePod {
            containers: vec![instance("first", 0, 9000), instance("third", 2, 200), instance("second", 1, 100)],
            ..RuntimePod::default()
        };
        newest_first(&mut pod);
        let ids: Vec<&str> = pod.containers.iter().map(|container| container.id.as_str()).collect();
        assert_eq!(ids, ["third", "second", "first"]);

        // Counts that nobody can tell apart: the time decides, then the id.
        pod.containers = vec![instance("b", 0, 1), instance("c", 0, 1), instance("a", 0, 2)];
        newest_first(&mut pod);
        let ids: Vec<&str> = pod.containers.iter().map(|container| container.id.as_str()).collect();
        assert_eq!(ids, ["a", "c", "b"]);
    }
}
