//! kubelet-walker's workers: whoever enters a file system that may never answer is one of them and not this process.

use bulkhead_ipc::common::walk_request::What;
use bulkhead_ipc::common::{
    ContainerLogFiles, ContainerLogId, WalkContainerLogs, WalkPodLogs, WalkReply, WalkRequest, WalkVolume, WalkVolumes,
};
use bulkhead_ipc::syncd::ContainerLogPlace;
use bulkhead_types::{InstancePaths, LogForm, LogStamp, chain};
use bulkhead_worker::fork_server::WORKERS_MAX;
use bulkhead_worker::{Limits, Message, Party, Share, Shares, WorkerPool};
use prost::Message as _;

use crate::disk::{FileSystem, Folder, Volume};
use crate::pods::Pod;

/// A walk takes a processor: no more of them than leave the others theirs. Of file systems that do not answer, one folder may be
/// asked for by statistics, eviction, images' removal and once more; a pod is walked for its volumes and for its logs; and of a
/// pod's volumes with servers one is asked at a time (as upstream, `pkg/kubelet/server/stats/volume_stat_calculator.go`), so
/// that one which does not answer keeps one worker, whatever the pod has beside it.
pub const LIMITS: Limits = Limits {
    shares: Shares {
        node: Share { places: 8, at_once: 4, of_one: 4 },
        local: Share { places: 40, at_once: 4, of_one: 2 },
        foreign: Share { places: 24, at_once: 4, of_one: 1 },
        // Statistics tell of a file system, or do not.
        questions: Share::NONE,
        // Measuring all files of a volume has a place as any other request.
        walks: Share::NONE,
    },
    hangs_after: Limits::HANGS_AFTER,
};
const _: () = assert!(LIMITS.workers() <= WORKERS_MAX, "the fork server has fewer");

/// What a pod's log folder and its containers' hold.
#[derive(Debug, Clone, Default)]
pub struct Logs {
    pub fs: Option<FileSystem>,
    /// By container name.
    pub containers: Vec<(String, Folder)>,
    /// Files right in the pod's log folder, and its /etc/hosts.
    pub other: Folder,
}

/// The files of one container's log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogFiles {
    /// Of the file that is written to, bytes; `None`: there is none.
    pub current_bytes: Option<u64>,
    /// In no order.
    pub rotated: Vec<(LogStamp, LogForm)>,
}

/// A volume with its name and how many seconds measuring it took.
pub type Measured = (String, Volume, f64);

/// The questions to kubelet-walker. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Walker {
    workers: WorkerPool,
}

impl Walker {
    pub fn new(workers: WorkerPool) -> Self {
        Walker { workers }
    }

    /// For tests, on threads of this process: the very function that kubelet-walker's workers run.
    #[cfg(test)]
    pub fn here(paths: InstancePaths) -> Self {
        Walker::new(WorkerPool::here(LIMITS, move |request| kubelet_walker::answer::answer(&paths, &request)))
    }

    /// Figures of the file system that holds this absolute path of the node's own; `None` where it is not there or nobody answers.
    pub async fn file_system(&self, path: String) -> Option<FileSystem> {
        self.statfs(Party::node(path.as_str()), path).await
    }

    /// The same of a disk that is mounted here, whosever it is.
    pub async fn disk(&self, point: String) -> Option<FileSystem> {
        self.statfs(Party::local(point.as_str()), point).await
    }

    /// The same of a pod's volume that may have a server.
    pub async fn volume(&self, pod_uid: &str, folder: String) -> Option<FileSystem> {
        self.statfs(Party::foreign(format!("pod {pod_uid}")), folder).await
    }

    async fn statfs(&self, party: Party, path: String) -> Option<FileSystem> {
        let what = format!("statfs of {path}");
        self.ask(party, what, What::FileSystem(path)).await?.file_system.map(FileSystem::from)
    }

    /// The pod's volumes that are there.
    pub async fn volumes(&self, pod: &Pod) -> Option<Vec<Measured>> {
        let volumes = pod
            .volumes
            .iter()
            .map(|volume| WalkVolume { plugin: volume.kind.plugin().to_owned(), name: volume.name.to_string() })
            .collect();
        let asked = WalkVolumes { pod_uid: pod.uid.to_string(), volumes };
        let what = format!("the volumes of pod {}/{} ({})", pod.namespace, pod.name, pod.uid);
        let reply = self.ask(Party::local(format!("pod {}", pod.uid)), what, What::Volumes(asked)).await?;
        let measured = reply.volumes.into_iter().map(|one| {
            let fs = one.file_system.map(FileSystem::from).unwrap_or_default();
            let folder = one.folder.map(Folder::from).unwrap_or_default();
            (one.name, Volume { fs, folder, is_mount: one.is_mount }, one.seconds)
        });
        Some(measured.collect())
    }

    /// What is kept for the pod beside its volumes.
    pub async fn logs(&self, pod: &Pod) -> Option<Logs> {
        let asked = WalkPodLogs {
            pod_uid: pod.uid.to_string(),
            namespace: pod.namespace.to_string(),
            name: pod.name.to_string(),
            containers: pod.containers.iter().map(|container| container.name.to_string()).collect(),
        };
        let what = format!("the logs of pod {}/{} ({})", pod.namespace, pod.name, pod.uid);
        let party = Party::local(format!("pod {}", pod.uid));
        let figures = self.ask(party, what, What::PodLogs(asked)).await?.pod_logs?;
        let containers = figures.containers.into_iter();
        Some(Logs {
            fs: figures.file_system.map(FileSystem::from),
            containers: containers.map(|one| (one.container, one.files.unwrap_or_default().into())).collect(),
            other: figures.other.unwrap_or_default().into(),
        })
    }

    /// The files of these logs, in their order; of one that cannot be looked at `None`. All of it is `None` where nobody answers.
    pub async fn container_logs(&self, logs: &[ContainerLogPlace]) -> Option<Vec<Option<LogFiles>>> {
        let asked = logs.iter().map(|log| ContainerLogId {
            pod_uid: log.pod_uid.clone(),
            namespace: log.namespace.clone(),
            name: log.name.clone(),
            container: log.container.clone(),
            restart_count: log.number,
        });
        let asked = WalkContainerLogs { logs: asked.collect() };
        let what = "the sizes of containers' logs".to_owned();
        let reply = self.ask(Party::node("containers' logs"), what, What::ContainerLogs(asked)).await?;
        (reply.container_logs.len() == logs.len()).then(|| reply.container_logs.into_iter().map(log_files).collect())
    }

    async fn ask(&self, party: Party, what: String, request: What) -> Option<WalkReply> {
        let request = WalkRequest { what: Some(request) }.encode_to_vec();
        let reply = match self.workers.call(party, what.clone(), Message::of(request), ()).await {
            Ok(reply) => reply,
            Err(error) => {
                tracing::debug!(what, error = chain(&error), "nothing is known of this");
                return None;
            }
        };
        let reply = WalkReply::decode(&*reply.bytes).ok()?;
        if reply.error.is_empty() {
            return Some(reply);
        }
        tracing::debug!(what, error = reply.error, "nothing is known of this");
        None
    }
}

fn log_files(wire: ContainerLogFiles) -> Option<LogFiles> {
    let rotated = wire.rotated.into_iter();
    let rotated =
        rotated.filter_map(|file| Some((LogStamp::parse(&file.stamp).ok()?, LogForm::of_suffix(&file.suffix)?)));
    wire.known.then(|| LogFiles { current_bytes: wire.current_bytes, rotated: rotated.collect() })
}

/// The name of kubelet-walker's socket, where it is a unit.
pub fn socket(paths: &InstancePaths) -> std::path::PathBuf {
    paths.run_dir.join("kubelet-walker.sock")
}
