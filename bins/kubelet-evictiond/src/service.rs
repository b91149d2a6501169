//! `kubelet.evictiond.v1.Stats`: one sample answers everyone who takes one of its age.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bulkhead_ipc::evictiond::stats_server::Stats;
use bulkhead_ipc::evictiond::{SummaryPart, SummaryRequest, summary_part::Part};
use bulkhead_types::InstancePaths;
use tokio::sync::Mutex;
use tonic::{Request, Response, Status};

use crate::disk::{self, Cache};
use crate::metrics::Metrics;
use crate::pods::{Pod, PodSource};
use crate::sample::{Disks, PodDisk, Sample, Sampler};

/// Age of a sample that is good enough when the caller names none.
const DEFAULT_AGE: Duration = Duration::from_secs(10);
/// A CPU rate needs two readings: when there is no earlier one, a second follows after this.
const RATE_GAP: Duration = Duration::from_millis(250);
/// How long a request waits for disk usage; later figures come with a later request.
const DISK_PATIENCE: Duration = Duration::from_secs(2);
/// statfs is cheap and decides on pressure: its figures are as fresh as a sample.
const FILE_SYSTEM_KEEP: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum FsKey {
    Node,
    Image(String),
}

#[derive(Debug, Default)]
struct State {
    last: Option<(Instant, Arc<Sample>)>,
    /// The newest list that kubelet-syncd gave.
    pods: Option<Arc<Vec<Pod>>>,
    image_fs: Option<String>,
}

/// The service. One request measures, the others wait for its sample.
#[derive(Debug)]
pub struct StatsService<P> {
    state: Mutex<State>,
    /// Locked on the blocking pool only. Beside `state`, because a caller that goes away drops its request half-way.
    sampler: Arc<std::sync::Mutex<Sampler>>,
    pods: P,
    paths: InstancePaths,
    /// `None`: statistics of volumes are off (`volumeStatsAggPeriod` below zero).
    pod_disks: Option<Cache<String, PodDisk>>,
    file_systems: Cache<FsKey, disk::FileSystem>,
    metrics: Metrics,
}

type Measure<V> = Box<dyn FnOnce() -> Option<V> + Send>;

impl<P: PodSource> StatsService<P> {
    /// `volume_period`: how old disk usage of pods may be; `None` switches it off.
    pub fn new(sampler: Sampler, pods: P, metrics: Metrics, volume_period: Option<Duration>) -> Self {
        let paths = sampler.paths().instance.clone();
        StatsService {
            state: Mutex::default(),
            sampler: Arc::new(std::sync::Mutex::new(sampler)),
            pods,
            paths,
            pod_disks: volume_period.map(Cache::keeping),
            file_systems: Cache::keeping(FILE_SYSTEM_KEEP),
            metrics,
        }
    }

    /// A sample that is at most `max_age` old.
    ///
    /// # Errors
    /// The blocking pool is gone: the process stops.
    pub async fn sample(&self, max_age: Duration) -> Result<Arc<Sample>, Status> {
        let asked = Instant::now();
        let mut state = self.state.lock().await;
        // Waiting for the lock may have taken the time in which another request measured.
        if let Some((at, sample)) = &state.last
            && (*at >= asked || at.elapsed() <= max_age)
        {
            self.metrics.samples_reused.inc();
            return Ok(sample.clone());
        }
        let (pods, image_fs) = tokio::join!(self.pods.pods(), self.pods.image_fs());
        if let Some(pods) = pods {
            state.pods = Some(Arc::new(pods));
        }
        if image_fs.is_some() {
            state.image_fs = image_fs;
        }
        let pods = state.pods.clone();
        let disks = Arc::new(self.disks(pods.as_deref().map_or(&[], Vec::as_slice), state.image_fs.clone()).await);
        let mut sample = self.measure(pods.clone(), disks.clone()).await?;
        if sample.without_rate {
            tokio::time::sleep(RATE_GAP).await;
            sample = self.measure(pods, disks).await?;
        }
        self.metrics.pods.set(i64::try_from(sample.pods.len()).unwrap_or(i64::MAX));
        let sample = Arc::new(sample);
        state.last = Some((Instant::now(), sample.clone()));
        Ok(sample)
    }

    async fn measure(&self, pods: Option<Arc<Vec<Pod>>>, disks: Arc<Disks>) -> Result<Sample, Status> {
        let sampler = self.sampler.clone();
        let timer = self.metrics.sample_seconds.start_timer();
        let work = move || {
            let mut sampler = sampler.lock().map_err(|_| Status::internal("an earlier sample failed half-way"))?;
            Ok(sampler.sample(pods.as_ref().map(|pods| pods.as_slice()), &disks))
        };
        let sample = tokio::task::spawn_blocking(work)
            .await
            .map_err(|error| Status::internal(format!("measuring was broken off: {error}")))?;
        timer.observe_duration();
        sample
    }

    /// Renews disk figures that are old, without waiting for what hangs.
    async fn disks(&self, pods: &[Pod], image_fs: Option<String>) -> Disks {
        let root = self.paths.root_dir.clone();
        let mut file_systems: Vec<(FsKey, Measure<disk::FileSystem>)> =
            vec![(FsKey::Node, Box::new(move || disk::file_system(&root).ok()))];
        let image_key = image_fs.clone().map(FsKey::Image);
        if let (Some(key), Some(path)) = (image_key.clone(), image_fs) {
            file_systems.push((key, Box::new(move || disk::file_system(path.as_ref()).ok())));
        }
        let walks = pods
            .iter()
            .map(|pod| {
                let (paths, pod, metrics) = (self.paths.clone(), pod.clone(), self.metrics.clone());
                (pod.uid.to_string(), move || Some(pod_disk(&paths, &pod, &metrics)))
            })
            .collect();
        let walk = async {
            if let Some(disks) = &self.pod_disks {
                disks.refresh(walks, DISK_PATIENCE).await;
            }
        };
        tokio::join!(self.file_systems.refresh(file_systems, DISK_PATIENCE), walk);
        let known = |pod: &Pod| Some((pod.uid.to_string(), self.pod_disks.as_ref()?.get(&pod.uid.to_string())?));
        Disks {
            node: self.file_systems.get(&FsKey::Node),
            image: image_key.and_then(|key| self.file_systems.get(&key)),
            pods: pods.iter().filter_map(known).collect::<HashMap<_, _>>(),
        }
    }
}

fn pod_disk(paths: &InstancePaths, pod: &Pod, metrics: &Metrics) -> PodDisk {
    let timed = |path: &std::path::Path| {
        let timer = metrics.volume_seconds.with_label_values(&["du"]).start_timer();
        let measured = disk::volume(path).ok();
        timer.observe_duration();
        measured
    };
    let mut pod_disk = PodDisk::default();
    for name in &pod.empty_dirs {
        // Paths are built from checked ids, so no answer of another process is a path here.
        if let Some((fs, folder)) = timed(&paths.volume(&pod.uid, "kubernetes.io/empty-dir", name)) {
            pod_disk.volumes.push((name.to_string(), fs, folder));
        }
    }
    let logs = paths.pod_logs(&pod.namespace, &pod.name, &pod.uid);
    pod_disk.log_fs = disk::file_system(&logs).ok();
    for container in &pod.containers {
        if let Ok(folder) = disk::walk(&logs.join(container.name.as_str()), disk::Bounds::default()) {
            pod_disk.logs.push((container.name.to_string(), folder));
        }
    }
    pod_disk
}

#[tonic::async_trait]
impl<P: PodSource> Stats for StatsService<P> {
    type SummaryStream = tokio_stream::Iter<std::vec::IntoIter<Result<SummaryPart, Status>>>;

    async fn summary(&self, request: Request<SummaryRequest>) -> Result<Response<Self::SummaryStream>, Status> {
        let max_age = match request.into_inner().max_age_ms {
            0 => DEFAULT_AGE,
            milliseconds => Duration::from_millis(milliseconds.into()),
        };
        let sample = self.sample(max_age).await?;
        let node = std::iter::once(Part::Node(sample.node.clone()));
        let pods = sample.pods.iter().cloned().map(Part::Pod);
        let parts: Vec<_> = node.chain(pods).map(|part| Ok(SummaryPart { part: Some(part) })).collect();
        Ok(Response::new(tokio_stream::iter(parts)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::NodePaths;
    use bulkhead_types::{ContainerName, Namespace, PodName, PodUid, VolumeName};
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    #[derive(Default)]
    struct FakePods {
        away: AtomicBool,
        asked: AtomicUsize,
    }

    impl PodSource for Arc<FakePods> {
        async fn pods(&self) -> Option<Vec<Pod>> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            let pod = Pod {
                uid: PodUid::parse("u1").unwrap(),
                namespace: Namespace::parse("default").unwrap(),
                name: PodName::parse("web").unwrap(),
                started_at: "2026-01-01T00:00:00Z".into(),
                cgroup: Some("/".into()),
                containers: vec![crate::pods::PodContainer {
                    name: ContainerName::parse("main").unwrap(),
                    id: "none".into(),
                    started_at: String::new(),
                }],
                empty_dirs: vec![VolumeName::parse("scratch").unwrap()],
            };
            (!self.away.load(Ordering::Relaxed)).then(|| vec![pod])
        }

        async fn image_fs(&self) -> Option<String> {
            Some("/".into())
        }
    }

    fn service(root: &std::path::Path) -> (StatsService<Arc<FakePods>>, Arc<FakePods>) {
        let instance = InstancePaths { root_dir: root.into(), run_dir: root.into(), pod_logs_dir: root.join("logs") };
        let paths = NodePaths { node_name: "n".into(), instance, pods_cgroups: vec!["/no-such-kubepods".into()] };
        let fake = Arc::new(FakePods::default());
        let metrics = Metrics::register(&prometheus::Registry::new()).unwrap();
        (StatsService::new(Sampler::new(paths).unwrap(), fake.clone(), metrics, Some(DEFAULT_AGE)), fake)
    }

    #[tokio::test]
    async fn a_sample_has_rates_disks_and_a_life() {
        let temp = tempfile::tempdir().unwrap();
        let volume = temp.path().join("pods/u1/volumes/kubernetes.io~empty-dir/scratch");
        let logs = temp.path().join("logs/default_web_u1/main");
        std::fs::create_dir_all(&volume).unwrap();
        std::fs::create_dir_all(&logs).unwrap();
        std::fs::write(volume.join("f"), vec![1; 50_000]).unwrap();
        std::fs::write(logs.join("0.log"), vec![1; 9_000]).unwrap();
        let (service, fake) = service(temp.path());
        let sample = service.sample(DEFAULT_AGE).await.unwrap();
        assert!(sample.node.pods_known && !sample.without_rate);
        assert!(sample.node.cpu.as_ref().unwrap().usage_nano_cores.is_some(), "two readings were taken");
        assert!(sample.node.node_fs.as_ref().unwrap().capacity_bytes.unwrap() > 0);
        let pod = &sample.pods[0];
        assert!(pod.cpu.as_ref().unwrap().usage_nano_cores.is_some());
        let scratch = pod.volumes[0].fs.as_ref().unwrap();
        assert!(scratch.used_bytes.unwrap() >= 50_000 && scratch.inodes_used == Some(2), "{scratch:?}");
        assert!(pod.ephemeral_storage.as_ref().unwrap().used_bytes.unwrap() >= 59_000);

        service.sample(DEFAULT_AGE).await.unwrap();
        assert_eq!(fake.asked.load(Ordering::Relaxed), 1, "a young sample answers");
        fake.away.store(true, Ordering::Relaxed);
        let again = service.sample(Duration::ZERO).await.unwrap();
        assert_eq!(fake.asked.load(Ordering::Relaxed), 2);
        assert_eq!(again.pods.len(), 1, "unknown is not gone");
    }

    #[tokio::test]
    async fn a_caller_that_goes_away_breaks_nothing() {
        let temp = tempfile::tempdir().unwrap();
        let (service, _) = service(temp.path());
        for _ in 0..20 {
            let _ = tokio::time::timeout(Duration::from_micros(300), service.sample(Duration::ZERO)).await;
        }
        assert!(service.sample(Duration::ZERO).await.is_ok());
    }

    #[tokio::test]
    async fn without_syncd_the_node_is_still_measured() {
        let temp = tempfile::tempdir().unwrap();
        let (service, fake) = service(temp.path());
        fake.away.store(true, Ordering::Relaxed);
        let sample = service.sample(Duration::ZERO).await.unwrap();
        assert!(!sample.node.pods_known && sample.pods.is_empty());
        assert!(sample.node.memory.is_some());
    }
}
