//! What /runningpods/ is made of: what the runtime lists, kept for a moment (upstream `pkg/kubelet/container/runtime_cache.go`), so that
//! however many ask at once, and however often, the runtime is asked once.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_cri::{CriClient, CriError, v1};
use bulkhead_ipc::syncd as api;
use kubelet_model::pod::labels::{CONTAINER_NAME, POD_NAME, POD_NAMESPACE, POD_UID};
use tokio::sync::Mutex;
use tokio::time::Instant;
use tonic::Status;

/// A list that is older is not answered any more (upstream `pkg/kubelet/kubelet.go`, runtimeCacheRefreshPeriod).
const REFRESH: Duration = Duration::from_secs(3);

/// The list that was answered last.
#[derive(Debug, Default)]
pub struct RunningPods(Mutex<Option<Listed>>);

#[derive(Debug)]
struct Listed {
    /// When the runtime was asked: what it answered is no older.
    at: Instant,
    pods: Arc<[api::RunningPod]>,
}

impl RunningPods {
    /// The newest list, by `list` where there is none or it is older than 3 s. Whoever asks meanwhile waits for the same answer.
    ///
    /// # Errors
    /// `Unavailable`: the runtime gave no list. Nothing is kept of that.
    pub async fn get<F>(&self, list: impl FnOnce() -> F) -> Result<Arc<[api::RunningPod]>, Status>
    where
        F: Future<Output = Result<Vec<api::RunningPod>, CriError>>,
    {
        let mut listed = self.0.lock().await;
        if let Some(listed) = listed.as_ref().filter(|listed| listed.at.elapsed() <= REFRESH) {
            return Ok(listed.pods.clone());
        }
        let at = Instant::now();
        let pods: Arc<[_]> = list().await.map_err(|error| Status::unavailable(error.to_string()))?.into();
        *listed = Some(Listed { at, pods: pods.clone() });
        Ok(pods)
    }
}

/// Asks the runtime.
///
/// # Errors
/// It does not answer, or refuses.
pub async fn list(cri: &CriClient) -> Result<Vec<api::RunningPod>, CriError> {
    let ready = v1::PodSandboxStateValue { state: v1::PodSandboxState::SandboxReady.into() };
    let sandboxes = v1::PodSandboxFilter { state: Some(ready), ..Default::default() };
    let running = v1::ContainerStateValue { state: v1::ContainerState::ContainerRunning.into() };
    let containers = v1::ContainerFilter { state: Some(running), ..Default::default() };
    let (sandboxes, containers) = tokio::try_join!(
        cri.list_pod_sandbox(v1::ListPodSandboxRequest { filter: Some(sandboxes) }),
        cri.list_containers(v1::ListContainersRequest { filter: Some(containers) }),
    )?;
    Ok(running_pods(sandboxes.items, containers.containers))
}

/// Pods with a ready sandbox or a running container, the newest first (upstream
/// `kuberuntime_manager.go` GetPods, then `ToAPIPod`).
fn running_pods(sandboxes: Vec<v1::PodSandbox>, containers: Vec<v1::Container>) -> Vec<api::RunningPod> {
    let mut pods: Vec<(i64, api::RunningPod)> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    for sandbox in sandboxes {
        let Some(metadata) = sandbox.metadata else { continue };
        match places.get(&metadata.uid) {
            Some(place) => pods[*place].0 = pods[*place].0.max(sandbox.created_at),
            None => {
                places.insert(metadata.uid.clone(), pods.len());
                let pod = api::RunningPod {
                    uid: metadata.uid,
                    namespace: metadata.namespace,
                    name: metadata.name,
                    containers: Vec::new(),
                };
                pods.push((sandbox.created_at, pod));
            }
        }
    }
    for container in containers {
        let label = |key: &str| container.labels.get(key).cloned().unwrap_or_default();
        let uid = label(POD_UID);
        if uid.is_empty() {
            // Somebody else's: no pod's.
            continue;
        }
        let place = *places.entry(uid.clone()).or_insert_with(|| {
            let pod =
                api::RunningPod { uid, namespace: label(POD_NAMESPACE), name: label(POD_NAME), ..Default::default() };
            pods.push((container.created_at, pod));
            pods.len() - 1
        });
        let image = container.image.as_ref().map(|image| image.image.clone()).unwrap_or_default();
        pods[place].1.containers.push(api::RunningContainer { name: label(CONTAINER_NAME), image });
    }
    pods.sort_by_key(|(created, _)| std::cmp::Reverse(*created));
    pods.into_iter().map(|(_, pod)| pod).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[tokio::test(start_paused = true)]
    async fn however_many_ask_the_runtime_is_asked_once_in_three_seconds() {
        let (running, asked) = (RunningPods::default(), Cell::new(0));
        let away = Cell::new(false);
        let list = || async {
            asked.set(asked.get() + 1);
            let name = asked.get().to_string();
            // Others ask before there is an answer.
            tokio::time::sleep(Duration::from_secs(1)).await;
            if away.get() {
                return Err(CriError { code: tonic::Code::Unavailable, method: "m", message: "away".into() });
            }
            Ok(vec![api::RunningPod { name, ..Default::default() }])
        };
        let get = async || running.get(list).await.map(|pods| pods[0].name.clone()).map_err(|status| status.code());
        let (one, other) = tokio::join!(get(), get());
        assert_eq!((one.as_deref(), other.as_deref()), (Ok("1"), Ok("1")));
        // The list is 1 s old when it is there.
        tokio::time::advance(REFRESH - Duration::from_secs(1)).await;
        assert_eq!(get().await.as_deref(), Ok("1"), "it has just become as old as it may");
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(get().await.as_deref(), Ok("2"));
        tokio::time::advance(REFRESH).await;
        away.set(true);
        assert_eq!(get().await, Err(tonic::Code::Unavailable), "no outdated answer");
        away.set(false);
        assert_eq!(get().await.as_deref(), Ok("4"));
    }

    #[test]
    fn what_runs_is_what_the_runtime_lists() {
        let sandbox = |uid: &str, created_at| v1::PodSandbox {
            metadata: Some(v1::PodSandboxMetadata {
                uid: uid.into(),
                name: format!("{uid}-name"),
                ..Default::default()
            }),
            created_at,
            ..Default::default()
        };
        let container = |uid: &str, name: &str, created_at| v1::Container {
            labels: [(POD_UID, uid), (POD_NAME, "left"), (CONTAINER_NAME, name)]
                .into_iter()
                .filter(|(_, value)| !value.is_empty())
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .collect(),
            image: Some(v1::ImageSpec { image: "sha256:1".into(), ..Default::default() }),
            created_at,
            ..Default::default()
        };
        let pods = running_pods(
            vec![sandbox("a", 1), sandbox("b", 5), sandbox("a", 3)],
            vec![
                container("a", "one", 2),
                container("", "foreign", 9),
                container("c", "alone", 4),
                container("a", "two", 9),
            ],
        );
        let brief: Vec<(String, String, Vec<String>)> = pods
            .into_iter()
            .map(|p| (p.uid, p.name, p.containers.into_iter().map(|c| format!("{} {}", c.name, c.image)).collect()))
            .collect();
        let of = |uid: &str, name: &str, containers: &[&str]| {
            (uid.to_owned(), name.to_owned(), containers.iter().map(|c| format!("{c} sha256:1")).collect::<Vec<_>>())
        };
        assert_eq!(brief, [of("b", "b-name", &[]), of("c", "left", &["alone"]), of("a", "a-name", &["one", "two"])]);
    }
}
