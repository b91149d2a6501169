//! Asking the runtime: everything by two lists; one pod by a status for each of its ids, where all of them are known, else by two
//! filtered lists and a status for what changed. A filtered list costs the runtime as much as one of everything.

use std::collections::{BTreeMap, HashMap, HashSet};

use bulkhead_cri::{CriClient, CriError, v1};
use bulkhead_types::PodUid;
use futures_util::future::try_join_all;

use super::cache::KnownIds;
use super::mapping;
use super::relist::{PlegState, PodStates};
use kubelet_model::pod::model::{ContainerStatus, RuntimePod, SandboxState, SandboxStatus};

/// States of everything that carries a pod uid.
pub(super) async fn list_all(client: &CriClient) -> Result<HashMap<PodUid, PodStates>, CriError> {
    let (sandboxes, containers) = lists(client, &BTreeMap::new()).await?;
    let mut pods: HashMap<PodUid, PodStates> = HashMap::new();
    for sandbox in &sandboxes {
        if let Some(uid) = mapping::pod_of_sandbox(sandbox) {
            let state = PlegState::from(mapping::sandbox_state(sandbox.state));
            pods.entry(uid).or_default().insert(sandbox.id.as_str().into(), state);
        }
    }
    for container in &containers {
        if let Some(uid) = mapping::pod_of_container(container) {
            let state = PlegState::from(mapping::run_state(container.state));
            pods.entry(uid).or_default().insert(container.id.as_str().into(), state);
        }
    }
    Ok(pods)
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
    let labels = BTreeMap::from([(mapping::LABEL_POD_UID.to_owned(), uid.as_str().to_owned())]);
    let (sandboxes, containers) = lists(client, &labels).await?;
    let mut pod = RuntimePod { uid: Some(uid.clone()), ..Default::default() };
    if let Some(metadata) = sandboxes.iter().find_map(|s| s.metadata.as_ref()) {
        pod.namespace.clone_from(&metadata.namespace);
        pod.name.clone_from(&metadata.name);
    } else if let Some(container) = containers.first() {
        pod.namespace = container.labels.get(mapping::LABEL_POD_NAMESPACE).cloned().unwrap_or_default();
        pod.name = container.labels.get(mapping::LABEL_POD_NAME).cloned().unwrap_or_default();
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
    let containers = try_join_all(ids.containers.iter().map(|(id, sandbox)| container_by_id(client, id, sandbox)));
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
    }
    pod.sandboxes = sandboxes.iter().flatten().filter_map(mapping::sandbox).collect();
    pod.containers = containers.into_iter().flatten().collect();
    newest_first(&mut pod);
    Ok(pod)
}

fn newest_first(pod: &mut RuntimePod) {
    pod.sandboxes
        .sort_by(|a, b| (b.attempt, b.created_at, b.id.as_str()).cmp(&(a.attempt, a.created_at, a.id.as_str())));
    pod.containers.sort_by(|a, b| (b.created_at, b.id.as_str()).cmp(&(a.created_at, a.id.as_str())));
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
    container_by_id(client, &listed.id, &listed.pod_sandbox_id).await
}

async fn container_by_id(client: &CriClient, id: &str, sandbox: &str) -> Result<Option<ContainerStatus>, CriError> {
    let request = v1::ContainerStatusRequest { container_id: id.to_owned(), verbose: false };
    let status = found(client.container_status(request).await)?.and_then(|reply| reply.status);
    Ok(status.and_then(|status| mapping::container(&status, sandbox)))
}

/// What vanished between the list and the question is gone, and no failure.
fn found<T>(result: Result<T, CriError>) -> Result<Option<T>, CriError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}
