//! Has disks measured by kubelet-walker and keeps their figures: file systems, and what of the node's own disk each pod uses. A figure
//! that is young is not measured again, and one that hangs is not waited for twice.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_ipc::evictiond::MountedFileSystem;
use bulkhead_types::InstancePaths;

use crate::disk::{Cache, FileSystem};
use crate::disk_figures::{Disks, PodDisk, PodLogs, PodVolumes};
use crate::incomplete::Incomplete;
use crate::machine::{self, Mounted};
use crate::metrics::Metrics;
use crate::persistent::PersistentVolumes;
use crate::pods::Pod;
use crate::runtime::RuntimeDisks;
use crate::sample::SampleScope;
use crate::stats::Moment;
use crate::walker::{Logs, Walker};

/// How long a sample waits for kubelet-walker; figures that come later are those of a later sample.
pub const DISK_PATIENCE: Duration = Duration::from_secs(2);
/// How old figures of file systems and of pods' logs may be. statfs is cheap, and evictions are decided by what it says.
const FILE_SYSTEM_KEEP: Duration = Duration::from_secs(5);

/// What it measures, and the figures that it has measured.
#[derive(Debug)]
pub struct DiskReader {
    paths: InstancePaths,
    walker: Walker,
    metrics: Metrics,
    /// By uid of the pod. `None`: statistics of volumes are off (`volumeStatsAggPeriod` of zero or less).
    volumes: Option<Cache<String, PodVolumes>>,
    /// By uid of the pod.
    logs: Cache<String, PodLogs>,
    /// By a folder on each.
    file_systems: Cache<String, FileSystem>,
    mounted: Cache<Mounted, FileSystem>,
    /// `None`: nobody asks for them.
    persistent: Option<PersistentVolumes>,
    incomplete: Arc<Incomplete>,
}

impl DiskReader {
    /// `volume_period`: how old the usage of volumes may be; `None` switches it off.
    pub fn new(paths: InstancePaths, walker: Walker, metrics: Metrics, volume_period: Option<Duration>) -> Self {
        DiskReader {
            paths,
            walker,
            metrics,
            volumes: volume_period.map(Cache::keeping),
            logs: Cache::keeping(FILE_SYSTEM_KEEP),
            file_systems: Cache::keeping(FILE_SYSTEM_KEEP),
            mounted: Cache::keeping(FILE_SYSTEM_KEEP),
            persistent: None,
            incomplete: Arc::default(),
        }
    }

    /// Shows volumes of these, too.
    pub fn with_persistent(mut self, persistent: PersistentVolumes) -> Self {
        self.persistent = Some(persistent);
        self
    }

    /// Renews what is old of the figures that are wanted and gives the newest of each, without waiting for what hangs. `image_folder`:
    /// where the runtime keeps images. `runtime`: what the runtime says of disks; the file systems that it names are measured, too.
    pub async fn read(
        &self,
        pods: &[Pod],
        image_folder: Option<String>,
        runtime: impl Future<Output = Option<Arc<RuntimeDisks>>>,
        wanted: SampleScope,
    ) -> Disks {
        let mut disks = Disks { image_folder, ..Disks::default() };
        if wanted.cgroups {
            disks.mounted = self.mounted().await;
        }
        if !wanted.disks {
            return disks;
        }
        let root = self.paths.root_dir.to_string_lossy().into_owned();
        let known: BTreeSet<String> = disks.image_folder.iter().cloned().chain([root.clone()]).collect();
        let file_systems = async {
            let runtime = runtime.await;
            let folders = known.into_iter().chain(runtime.iter().flat_map(|runtime| runtime.folders())).collect();
            self.renew_file_systems(&folders).await;
            (runtime, folders)
        };
        let ((runtime, folders), ..) =
            tokio::join!(file_systems, self.renew_logs(pods), self.renew_volumes(pods), self.renew_persistent(pods));
        disks.node = self.file_systems.get(&root);
        disks.folders =
            folders.into_iter().filter_map(|folder| Some((folder.clone(), self.file_systems.get(&folder)?))).collect();
        disks.pods = pods.iter().map(|pod| (pod.uid.to_string(), self.of_pod(pod.uid.as_str()))).collect();
        disks.runtime = runtime;
        disks
    }

    /// The newest figures of a pod's disks.
    fn of_pod(&self, uid: &str) -> PodDisk {
        let uid = uid.to_owned();
        PodDisk {
            volumes: self.volumes.as_ref().and_then(|volumes| volumes.get(&uid)).unwrap_or_default(),
            persistent: self.persistent.as_ref().map(|all| all.of(&uid)).unwrap_or_default(),
            logs: self.logs.get(&uid),
        }
    }

    async fn renew_file_systems(&self, folders: &BTreeSet<String>) {
        let statfs = folders.iter().cloned().map(|folder| {
            let walker = self.walker.clone();
            (folder.clone(), async move { walker.file_system(folder).await })
        });
        self.file_systems.refresh(statfs.collect(), DISK_PATIENCE).await;
    }

    async fn renew_logs(&self, pods: &[Pod]) {
        let lists = pods.iter().map(|pod| {
            let (walker, pod) = (self.walker.clone(), pod.clone());
            (pod.uid.to_string(), async move { pod_logs(&walker, &pod).await })
        });
        self.logs.refresh(lists.collect(), DISK_PATIENCE).await;
    }

    async fn renew_volumes(&self, pods: &[Pod]) {
        let Some(volumes) = &self.volumes else { return };
        let walks = pods.iter().map(|pod| {
            let (walker, pod, metrics) = (self.walker.clone(), pod.clone(), self.metrics.clone());
            let incomplete = self.incomplete.clone();
            (pod.uid.to_string(), async move { pod_volumes(&walker, &pod, &metrics, &incomplete).await })
        });
        volumes.refresh(walks.collect(), DISK_PATIENCE).await;
    }

    async fn renew_persistent(&self, pods: &[Pod]) {
        if let Some(persistent) = &self.persistent {
            persistent.pods_are(pods);
            persistent.refresh(DISK_PATIENCE).await;
        }
    }

    /// The machine's file systems with their figures.
    async fn mounted(&self) -> Vec<MountedFileSystem> {
        let root = self.paths.root_dir.clone();
        let list = tokio::task::spawn_blocking(move || {
            let root = std::fs::canonicalize(&root).unwrap_or(root);
            let mountinfo = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
            let devices = machine::devices(&std::fs::read("/proc/diskstats").unwrap_or_default());
            (machine::file_systems(&mountinfo, &root, &devices), devices)
        });
        let Ok((list, devices)) = list.await else { return Vec::new() };
        let statfs = list.iter().map(|mounted| {
            let (walker, point) = (self.walker.clone(), mounted.point.to_string_lossy().into_owned());
            (mounted.clone(), async move { walker.disk(point).await })
        });
        self.mounted.refresh(statfs.collect(), DISK_PATIENCE).await;
        let figures =
            list.iter().filter_map(|mounted| Some(machine::measured(mounted, self.mounted.get(mounted)?, &devices)));
        figures.collect()
    }
}

async fn pod_volumes(walker: &Walker, pod: &Pod, metrics: &Metrics, incomplete: &Incomplete) -> Option<PodVolumes> {
    let measured = walker.volumes(pod).await?;
    let mut volumes = PodVolumes { time: Moment::now().text, ..PodVolumes::default() };
    for (name, volume, seconds) in measured {
        metrics.volume_seconds.with_label_values(&["du"]).observe(seconds);
        if volume.folder.incomplete && incomplete.is_news(&format!("{}/{name}", pod.uid)) {
            let pod = format!("{}/{}", pod.namespace, pod.name);
            tracing::warn!(pod, volume = name, "the usage of the volume is incomplete: it holds more than is reported");
        }
        let known = pod.volumes.iter().find(|known| known.name.as_str() == name);
        volumes.all.push((name, volume, known.is_some_and(|known| known.kind.is_ephemeral())));
    }
    Some(volumes)
}

async fn pod_logs(walker: &Walker, pod: &Pod) -> Option<PodLogs> {
    let Logs { fs, containers, other } = walker.logs(pod).await?;
    Some(PodLogs { containers, other, fs, time: Moment::now().text })
}
