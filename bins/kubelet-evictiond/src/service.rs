//! `kubelet.evictiond.v1.Stats`: one sample answers everyone who takes one of its age.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bulkhead_ipc::evictiond::stats_server::Stats;
use bulkhead_ipc::evictiond::{
    CgroupPage, CgroupsPart, CgroupsRequest, MountedFileSystem, SummaryPart, SummaryRequest, cgroups_part, summary_part,
};
use bulkhead_ipc::syncd::RuntimePod;
use bulkhead_types::InstancePaths;
use tokio::sync::Mutex;
use tonic::{Request, Response, Status};

use crate::disk::{self, Cache};
use crate::disk_figures::{Disks, PodDisk, PodLogs, PodVolumes};
use crate::groupless;
use crate::incomplete::Incomplete;
use crate::known_pods;
use crate::machine::{self, Mounted};
use crate::metrics::Metrics;
use crate::persistent::PersistentVolumes;
use crate::pods::{NodeWord, Pod, PodContainer, PodSource};
use crate::question::{self, Question};
use crate::rates::Rates;
use crate::runtime::{RuntimeDisks, RuntimeSource};
use crate::runtime_pods::{self, PodFigures};
use crate::sample::{Sample, SampleScope, Sampler};
use crate::stats::Moment;
use crate::traced::Traced;
use crate::walker::{Logs, Walker};

/// Age of a sample that is good enough when the caller names none.
pub const DEFAULT_AGE: Duration = Duration::from_secs(10);
/// A CPU rate needs two readings of a counter: when there is no earlier one, a second follows after this.
const RATE_GAP: Duration = Duration::from_millis(250);
/// How long a request waits for disk usage; later figures come with a later request.
const DISK_PATIENCE: Duration = Duration::from_secs(2);
/// How long it waits for the runtime where an earlier word of it stands.
const NEWER_PATIENCE: Duration = question::OVERDUE_PATIENCE;
/// How long who evicts waits for the runtime's newest word, and who asks for figures of pods or containers that are its to tell.
const RUNTIME_PATIENCE: Duration = Duration::from_secs(4);
/// statfs is cheap and decides on pressure: its figures are as fresh as a sample.
const FILE_SYSTEM_KEEP: Duration = Duration::from_secs(5);
/// The runtime measures each container for an answer, which is not cheap, and renews its own disk figures every ten
/// seconds at best.
const RUNTIME_KEEP: Duration = Duration::from_secs(20);
/// How soon it is asked again when it does not answer, or of a container that it has not told of.
const RUNTIME_RETRY: Duration = Duration::from_secs(5);
/// How old its word may be while containers without a cgroup run, of which nobody else tells: each usual scrape has a new one.
const GROUPLESS_KEEP: Duration = Duration::from_secs(5);
/// Groups in one message. Most have 1 KB, one with as many devices as are told 12, so that a page fits into a message.
const PAGE: usize = 16;

#[derive(Debug, Default)]
struct State {
    last: Option<(Instant, Arc<Sample>)>,
    /// The newest list that kubelet-syncd gave, with what it did not know of yet.
    pods: Option<Arc<Vec<Pod>>>,
    /// It has listed all pods once.
    pods_known: bool,
    image_fs: Option<String>,
    /// As the sampler has it.
    sandbox_image: Option<String>,
    /// What the runtime said last of disks and containers, and the question.
    runtime: Option<Arc<RuntimeDisks>>,
    of_disks: Question<Option<RuntimeDisks>>,
    /// Ids of the containers that have no cgroup and that it tells of, by the newest sample; and their CPU rates.
    groupless: HashSet<String>,
    rates: Rates,
    /// What it told last of pods, where it is asked, and the question.
    told_of_pods: Option<Arc<Vec<RuntimePod>>>,
    of_pods: Question<PodFigures>,
    traced: Traced,
}

impl State {
    /// Gives the containers without a cgroup what the runtime told last of them. `all_stay`: its figures of pods say which there are.
    fn fill_groupless(&mut self, sample: &mut Sample, all_stay: bool) {
        let told = self.runtime.as_deref();
        self.groupless = groupless::fill(&mut sample.pods, &sample.groupless, told, &mut self.rates, all_stay);
    }

    /// Has the runtime's figures of pods take the place of our own, where it is asked for them.
    fn put_figures(&mut self, sample: &mut Sample, figures: PodFigures) {
        match figures {
            PodFigures::OurOwn => return,
            PodFigures::Told(told) => self.told_of_pods = Some(told),
            // Who does not answer now has been right before, at the time that stands beside it.
            PodFigures::Unknown => {}
        }
        match &self.told_of_pods {
            Some(told) => {
                let listed = self.pods.as_deref().map_or(&[][..], Vec::as_slice);
                sample.pods = runtime_pods::replace(std::mem::take(&mut sample.pods), listed, told);
            }
            None => {
                sample.pods.clear();
                sample.node.pods_known = false;
            }
        }
    }
}

/// What a sample is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// Somebody reads it: with CPU rates, which may take a second reading, and of the pods that are known.
    Statistics,
    /// Pods are evicted by it: what they use, by our own figures, and of the pods that there are now.
    Eviction,
}

impl Purpose {
    /// How long a sample waits for what the runtime says of disks, once that is due. `is_known`: it has said it before.
    fn patience(self, is_known: bool) -> Duration {
        match (self, is_known) {
            (Purpose::Eviction, _) => RUNTIME_PATIENCE,
            (Purpose::Statistics, true) => NEWER_PATIENCE,
            (Purpose::Statistics, false) => DISK_PATIENCE,
        }
    }

    /// The same for what it says of containers without a cgroup. Their pods mostly have one, by which they are evicted.
    fn groupless_patience(self) -> Duration {
        match self {
            Purpose::Eviction => NEWER_PATIENCE,
            Purpose::Statistics => RUNTIME_PATIENCE,
        }
    }
}

/// The service. One request measures, the others wait for its sample.
#[derive(Debug)]
pub struct StatsService<P, R> {
    state: Mutex<State>,
    /// Locked on the blocking pool only. Beside `state`, because a caller that goes away drops its request half-way.
    sampler: Arc<parking_lot::Mutex<Sampler>>,
    pods: P,
    runtime: Arc<R>,
    paths: InstancePaths,
    /// `None`: statistics of volumes are off (`volumeStatsAggPeriod` of zero or less).
    volumes: Option<Cache<String, PodVolumes>>,
    logs: Cache<String, PodLogs>,
    file_systems: Cache<String, disk::FileSystem>,
    mounted: Cache<Mounted, disk::FileSystem>,
    /// `None`: nobody asks for them.
    persistent: Option<PersistentVolumes>,
    walker: Walker,
    metrics: Metrics,
    incomplete: Arc<Incomplete>,
}

impl<P: PodSource, R: RuntimeSource> StatsService<P, R> {
    /// `volume_period`: how old the usage of volumes may be; `None` switches it off.
    pub fn new(
        sampler: Sampler,
        pods: P,
        runtime: R,
        walker: Walker,
        metrics: Metrics,
        volume_period: Option<Duration>,
    ) -> Self {
        let paths = sampler.paths().instance.clone();
        StatsService {
            state: Mutex::default(),
            sampler: Arc::new(parking_lot::Mutex::new(sampler)),
            pods,
            runtime: Arc::new(runtime),
            paths,
            volumes: volume_period.map(Cache::keeping),
            logs: Cache::keeping(FILE_SYSTEM_KEEP),
            file_systems: Cache::keeping(FILE_SYSTEM_KEEP),
            mounted: Cache::keeping(FILE_SYSTEM_KEEP),
            persistent: None,
            walker,
            metrics,
            incomplete: Arc::default(),
        }
    }

    /// Shows volumes of these, too.
    pub fn with_persistent(mut self, persistent: PersistentVolumes) -> Self {
        self.persistent = Some(persistent);
        self
    }

    /// A new sample for whoever needs no rates, and so need not wait for a second reading. Nobody else is given it. Who asks evicts by
    /// it: it is of the pods that there are now.
    ///
    /// # Errors
    /// `Unavailable`: kubelet-syncd does not say which pods there are. The blocking pool is gone: the process stops.
    pub async fn usage(&self, wanted: SampleScope) -> Result<Arc<Sample>, Status> {
        let mut state = self.state.lock().await;
        let sample = self.new_sample(&mut state, wanted, Purpose::Eviction).await?;
        Ok(Arc::new(sample))
    }

    /// A sample that is at most `max_age` old and holds what is wanted.
    ///
    /// # Errors
    /// The blocking pool is gone: the process stops.
    pub async fn sample(&self, max_age: Duration, wanted: SampleScope) -> Result<Arc<Sample>, Status> {
        let asked = Instant::now();
        let mut state = self.state.lock().await;
        // Waiting for the lock may have taken the time in which another request measured.
        if let Some((at, sample)) = &state.last
            && (*at >= asked || at.elapsed() <= max_age)
            && sample.answers(wanted)
        {
            self.metrics.samples_reused.inc();
            return Ok(sample.clone());
        }
        let sample = Arc::new(self.new_sample(&mut state, wanted, Purpose::Statistics).await?);
        state.last = Some((Instant::now(), sample.clone()));
        Ok(sample)
    }

    async fn new_sample(&self, state: &mut State, wanted: SampleScope, purpose: Purpose) -> Result<Sample, Status> {
        self.list_pods(state, purpose).await?;
        let pods = state.pods.clone();
        let listed = pods.as_deref().map_or(&[][..], Vec::as_slice);
        let spans = state.traced.begin(listed);
        let is_due = runtime_is_asked(state, wanted);
        let State { runtime: said, of_disks, of_pods, .. } = state;
        let patience = purpose.patience(said.is_some());
        let runtime = async {
            let begin = || {
                let runtime = self.runtime.clone();
                is_due.then_some(async move { runtime.disks().await })
            };
            // Without an answer the last one stands.
            let answer = if wanted.disks { of_disks.answer(begin, patience).await } else { None };
            answer.flatten().map(Arc::new).or_else(|| said.clone())
        };
        let figures = async {
            let runtime = self.runtime.clone();
            let begin = || Some(async move { runtime.pod_figures().await });
            match purpose {
                Purpose::Eviction => PodFigures::OurOwn,
                Purpose::Statistics => of_pods.answer(begin, RUNTIME_PATIENCE).await.unwrap_or(PodFigures::Unknown),
            }
        };
        // The kernel's files are read while the runtime measures each container, which takes it longer the more there are.
        let (sample, mut disks, figures) = tokio::join!(
            self.measure(pods.clone(), wanted, purpose),
            self.disks(listed, state.image_fs.clone(), runtime, wanted),
            figures
        );
        let mut sample = sample?;
        sample.node.pods_known &= state.pods_known;
        sample.machine.pods_known &= state.pods_known;
        if wanted.disks {
            state.runtime = disks.runtime.take();
        }
        let are_our_own = figures == PodFigures::OurOwn;
        if are_our_own && !sample.groupless.is_empty() && !wanted.is_for_cgroups_alone() {
            self.ask_of_groupless(state, purpose).await;
        }
        state.fill_groupless(&mut sample, !are_our_own);
        disks.runtime.clone_from(&state.runtime);
        disks.fill(&mut sample, listed);
        drop(spans);
        state.put_figures(&mut sample, figures);
        self.metrics.pods.set(i64::try_from(sample.pods.len()).unwrap_or(i64::MAX));
        if wanted.disks {
            self.metrics.set_log_usage(&sample.pods);
        }
        Ok(sample)
    }

    /// Renews what the runtime says of containers, where that is old. Without an answer the last one stands.
    async fn ask_of_groupless(&self, state: &mut State, purpose: Purpose) {
        if state.of_disks.age().is_some_and(|age| age < GROUPLESS_KEEP) {
            return;
        }
        let runtime = self.runtime.clone();
        let begin = || Some(async move { runtime.disks().await });
        if let Some(newer) = state.of_disks.answer(begin, purpose.groupless_patience()).await.flatten() {
            state.runtime = Some(Arc::new(newer));
        }
    }

    /// Asks kubelet-syncd which pods there are, where the runtime keeps images, and of which it makes sandboxes. Without an answer
    /// the last ones stand.
    async fn list_pods(&self, state: &mut State, purpose: Purpose) -> Result<(), Status> {
        // Whether all pods are listed is asked before, as afterwards it would be said of a longer list; and again, as another
        // kubelet-syncd may have listed them.
        let node = self.pods.node().await;
        let pods = if node.is_some() { self.pods.pods().await } else { None };
        let NodeWord { image_fs, sandbox_image, sources_ready } = node.unwrap_or_default();
        let sources_ready = sources_ready && self.pods.node().await.is_some_and(|node| node.sources_ready);
        match (pods, purpose) {
            (Some(listed), _) => {
                let before = state.pods.clone().unwrap_or_default();
                let pods = self.known_pods(listed, before, state.groupless.clone(), sources_ready).await?;
                state.pods = Some(Arc::new(pods));
                state.pods_known |= sources_ready;
            }
            // As upstream's manager, which does nothing in a pass without a summary (`pkg/kubelet/eviction/eviction_manager.go`).
            (None, Purpose::Eviction) => {
                return Err(Status::unavailable("kubelet-syncd does not answer: which pods there are is not known"));
            }
            (None, Purpose::Statistics) => {}
        }
        if image_fs.is_some() {
            state.image_fs = image_fs;
        }
        if let Some(name) = sandbox_image.filter(|name| state.sandbox_image.as_ref() != Some(name)) {
            state.sandbox_image = Some(name.clone());
            self.with_sampler(move |sampler: &mut Sampler| sampler.set_sandbox_image(name)).await?;
        }
        Ok(())
    }

    /// The listed pods, with those of `before` that still run and that kubelet-syncd does not know of yet. Of containers without a
    /// cgroup nobody can tell; they count.
    async fn known_pods(
        &self,
        listed: Vec<Pod>,
        before: Arc<Vec<Pod>>,
        groupless: HashSet<String>,
        sources_ready: bool,
    ) -> Result<Vec<Pod>, Status> {
        let merge = move |sampler: &mut Sampler| {
            let runs = |cgroup: Option<&str>, container: &PodContainer| {
                groupless.contains(&container.id) || sampler.has_group(cgroup, &container.id)
            };
            known_pods::known(listed, &before, sources_ready, runs)
        };
        self.with_sampler(merge).await
    }

    /// Reads the kernel's files, and counters once more where somebody needs rates that are not known yet.
    async fn measure(
        &self,
        pods: Option<Arc<Vec<Pod>>>,
        wanted: SampleScope,
        purpose: Purpose,
    ) -> Result<Sample, Status> {
        let timer = self.metrics.sample_seconds.start_timer();
        let pods = move |sampler: &mut Sampler| sampler.sample(pods.as_deref().map(Vec::as_slice), wanted);
        let mut sample = self.with_sampler(pods).await?;
        timer.observe_duration();
        if sample.unrated.is_empty() || purpose == Purpose::Eviction {
            return Ok(sample);
        }
        tokio::time::sleep(RATE_GAP).await;
        let rated = move |sampler: &mut Sampler| {
            sampler.rate(&mut sample);
            sample
        };
        self.with_sampler(rated).await
    }

    /// Reads the kernel's files, on the blocking pool.
    async fn with_sampler<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Sampler) -> T + Send + 'static,
    ) -> Result<T, Status> {
        let sampler = self.sampler.clone();
        tokio::task::spawn_blocking(move || work(&mut sampler.lock()))
            .await
            .map_err(|error| Status::internal(format!("measuring was broken off: {error}")))
    }

    /// Renews disk figures that are old, without waiting for what hangs. `runtime`: what the runtime says of disks.
    async fn disks(
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
            self.refresh_file_systems(&folders).await;
            (runtime, folders)
        };
        let walks = pods
            .iter()
            .map(|pod| {
                let (walker, pod, metrics) = (self.walker.clone(), pod.clone(), self.metrics.clone());
                let incomplete = self.incomplete.clone();
                (pod.uid.to_string(), async move { pod_volumes(&walker, &pod, &metrics, &incomplete).await })
            })
            .collect();
        let walk = async {
            if let Some(volumes) = &self.volumes {
                volumes.refresh(walks, DISK_PATIENCE).await;
            }
        };
        let lists = pods
            .iter()
            .map(|pod| {
                let (walker, pod) = (self.walker.clone(), pod.clone());
                (pod.uid.to_string(), async move { pod_logs(&walker, &pod).await })
            })
            .collect();
        let logs = self.logs.refresh(lists, DISK_PATIENCE);
        let persistent = async {
            if let Some(persistent) = &self.persistent {
                persistent.pods_are(pods);
                persistent.refresh(DISK_PATIENCE).await;
            }
        };
        let ((runtime, folders), ..) = tokio::join!(file_systems, logs, walk, persistent);
        let known = |pod: &Pod| {
            let uid = pod.uid.to_string();
            let volumes = self.volumes.as_ref().and_then(|volumes| volumes.get(&uid));
            let persistent = self.persistent.as_ref().map(|all| all.of(&uid)).unwrap_or_default();
            let disk = PodDisk { volumes: volumes.unwrap_or_default(), persistent, logs: self.logs.get(&uid) };
            (uid, disk)
        };
        disks.node = self.file_systems.get(&root);
        disks.folders =
            folders.into_iter().filter_map(|folder| Some((folder.clone(), self.file_systems.get(&folder)?))).collect();
        disks.pods = pods.iter().map(known).collect::<HashMap<_, _>>();
        disks.runtime = runtime;
        disks
    }

    async fn refresh_file_systems(&self, folders: &BTreeSet<String>) {
        let statfs = folders.iter().cloned().map(|folder| {
            let walker = self.walker.clone();
            (folder.clone(), async move { walker.file_system(folder).await })
        });
        self.file_systems.refresh(statfs.collect(), DISK_PATIENCE).await;
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
        let statfs = list
            .iter()
            .map(|mounted| {
                let (walker, point) = (self.walker.clone(), mounted.point.to_string_lossy().into_owned());
                (mounted.clone(), async move { walker.disk(point).await })
            })
            .collect();
        self.mounted.refresh(statfs, DISK_PATIENCE).await;
        let figures =
            list.iter().filter_map(|mounted| Some(machine::measured(mounted, self.mounted.get(mounted)?, &devices)));
        figures.collect()
    }
}

/// Whether it is time to ask the runtime what it knows of disks.
fn runtime_is_asked(state: &State, wanted: SampleScope) -> bool {
    let knows_all = state.runtime.as_ref().is_some_and(|runtime| {
        let mut running = state.pods.iter().flat_map(|pods| pods.iter()).flat_map(|pod| &pod.containers);
        running.all(|container| runtime.layers.contains_key(&container.id))
    });
    let keep = if knows_all { RUNTIME_KEEP } else { RUNTIME_RETRY };
    wanted.disks && state.of_disks.age().is_none_or(|age| age >= keep)
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

fn age(milliseconds: u32) -> Duration {
    if milliseconds == 0 { DEFAULT_AGE } else { Duration::from_millis(milliseconds.into()) }
}

type Parts<T> = tokio_stream::Iter<std::vec::IntoIter<Result<T, Status>>>;

#[tonic::async_trait]
impl<P: PodSource, R: RuntimeSource> Stats for StatsService<P, R> {
    type SummaryStream = Parts<SummaryPart>;

    async fn summary(&self, request: Request<SummaryRequest>) -> Result<Response<Self::SummaryStream>, Status> {
        let request = request.into_inner();
        let wanted = SampleScope { disks: !request.cpu_and_memory_only, cgroups: false };
        let sample = self.sample(age(request.max_age_ms), wanted).await?;
        let node = std::iter::once(summary_part::Part::Node(sample.node.clone()));
        let pods = sample.pods.iter().cloned().map(summary_part::Part::Pod);
        let parts: Vec<_> = node.chain(pods).map(|part| Ok(SummaryPart { part: Some(part) })).collect();
        Ok(Response::new(tokio_stream::iter(parts)))
    }

    type CgroupsStream = Parts<CgroupsPart>;

    async fn cgroups(&self, request: Request<CgroupsRequest>) -> Result<Response<Self::CgroupsStream>, Status> {
        let wanted = SampleScope { disks: false, cgroups: true };
        let sample = self.sample(age(request.into_inner().max_age_ms), wanted).await?;
        let machine = std::iter::once(cgroups_part::Part::Machine(sample.machine.clone()));
        let pages =
            sample.cgroups.chunks(PAGE).map(|page| cgroups_part::Part::Page(CgroupPage { cgroups: page.to_vec() }));
        let parts: Vec<_> = machine.chain(pages).map(|part| Ok(CgroupsPart { part: Some(part) })).collect();
        Ok(Response::new(tokio_stream::iter(parts)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::Hierarchy;
    use crate::pods::{PodVolume, VolumeKind};
    use crate::runtime::ContainerFigures;
    use crate::sample::NodePaths;
    use bulkhead_ipc::syncd::{DiskUsage, RuntimeContainer, RuntimeCpu, RuntimeMemory};
    use bulkhead_types::{ContainerName, Namespace, PodName, PodUid, VolumeName};
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    #[derive(Default)]
    struct FakePods {
        figures: parking_lot::Mutex<Option<PodFigures>>,
        away: AtomicBool,
        /// kubelet-syncd has started and no source has delivered.
        starting: AtomicBool,
        /// The cgroup of its pod; empty: "/".
        cgroup: parking_lot::Mutex<String>,
        asked: AtomicUsize,
        runtime_asked: AtomicUsize,
        /// The runtime answers when the kernel's files have been read.
        runtime_waits: parking_lot::Mutex<Option<Metrics>>,
        /// Nor sooner than this.
        runtime_hangs: parking_lot::Mutex<Option<tokio::sync::watch::Receiver<bool>>>,
        /// What it says of containers.
        told: parking_lot::Mutex<HashMap<String, ContainerFigures>>,
    }

    impl PodSource for Arc<FakePods> {
        async fn pods(&self) -> Option<Vec<Pod>> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            let pod = Pod {
                uid: PodUid::parse("u1").unwrap(),
                namespace: Namespace::parse("default").unwrap(),
                name: PodName::parse("web").unwrap(),
                started_at: "2026-01-01T00:00:00Z".into(),
                cgroup: Some(format!("/{}", self.cgroup.lock())),
                containers: vec![crate::pods::PodContainer {
                    name: ContainerName::parse("main").unwrap(),
                    id: "none".into(),
                    image: "img".into(),
                    started_at: String::new(),
                }],
                sandbox: Some("s1".into()),
                host_network: false,
                volumes: vec![PodVolume { name: VolumeName::parse("scratch").unwrap(), kind: VolumeKind::EmptyDir }],
                trace_parent: String::new(),
            };
            Some(if self.starting.load(Ordering::Relaxed) { Vec::new() } else { vec![pod] })
        }

        async fn node(&self) -> Option<NodeWord> {
            let sources_ready = !self.starting.load(Ordering::Relaxed);
            let word = NodeWord { image_fs: Some("/".into()), sandbox_image: None, sources_ready };
            (!self.away.load(Ordering::Relaxed)).then_some(word)
        }
    }

    impl RuntimeSource for Arc<FakePods> {
        async fn disks(&self) -> Option<RuntimeDisks> {
            self.runtime_asked.fetch_add(1, Ordering::Relaxed);
            let waits = self.runtime_waits.lock().clone();
            while waits.as_ref().is_some_and(|metrics| metrics.sample_seconds.get_sample_count() == 0) {
                tokio::task::yield_now().await;
            }
            let hangs = self.runtime_hangs.lock().clone();
            if let Some(mut hangs) = hangs {
                hangs.wait_for(|hangs| !hangs).await.unwrap();
            }
            let usage = |bytes| DiskUsage {
                time_ms: 1_795_222_061_500,
                mountpoint: "/".into(),
                used_bytes: Some(bytes),
                inodes_used: Some(3),
            };
            let figures = self.told.lock().clone();
            let disks = RuntimeDisks { images: Some(usage(700)), figures, ..RuntimeDisks::default() };
            (!self.away.load(Ordering::Relaxed)).then_some(disks)
        }

        async fn pod_figures(&self) -> PodFigures {
            self.figures.lock().clone().unwrap_or(PodFigures::OurOwn)
        }
    }

    const ALL: SampleScope = SampleScope { disks: true, cgroups: false };

    fn service(root: &std::path::Path) -> (StatsService<Arc<FakePods>, Arc<FakePods>>, Arc<FakePods>) {
        let instance = InstancePaths { root_dir: root.into(), run_dir: root.into(), pod_logs_dir: root.join("logs") };
        let paths = NodePaths {
            boot_id: String::new(),
            node_name: "n".into(),
            instance,
            pods_cgroups: vec!["/no-such-kubepods".into()],
            system_cgroups: Vec::new(),
        };
        let fake = Arc::new(FakePods::default());
        let metrics = Metrics::register(&prometheus::Registry::new()).unwrap();
        let walker = Walker::here(paths.instance.clone());
        let sampler = Sampler::new(paths).unwrap();
        (StatsService::new(sampler, fake.clone(), fake.clone(), walker, metrics, Some(DEFAULT_AGE)), fake)
    }

    /// Gives the container its cgroup, in the pod's own.
    fn put_group(
        service: &mut StatsService<Arc<FakePods>, Arc<FakePods>>,
        fake: &FakePods,
        root: &std::path::Path,
    ) -> std::path::PathBuf {
        let hierarchy = root.join("cgroup");
        let container = hierarchy.join("podu1/none");
        std::fs::create_dir_all(&container).unwrap();
        let paths = service.sampler.lock().paths().clone();
        service.sampler = Arc::new(parking_lot::Mutex::new(Sampler::of(paths, Hierarchy::V2 { root: hierarchy })));
        "podu1".clone_into(&mut fake.cgroup.lock());
        container
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
        let sample = service.sample(DEFAULT_AGE, ALL).await.unwrap();
        assert!(sample.node.pods_known && sample.unrated.is_empty());
        let (cpu, memory) = (sample.node.cpu.as_ref().unwrap(), sample.node.memory.as_ref().unwrap());
        assert!(cpu.usage_nano_cores.is_some(), "two readings were taken");
        assert!(cpu.time > memory.time, "the second of the counters alone");
        assert!(sample.node.node_fs.as_ref().unwrap().capacity_bytes.unwrap() > 0);
        let pod = &sample.pods[0];
        assert!(pod.cpu.as_ref().unwrap().usage_nano_cores.is_some());
        let scratch = pod.volumes[0].fs.as_ref().unwrap();
        assert!(scratch.used_bytes.unwrap() >= 50_000 && scratch.inodes_used == Some(2), "{scratch:?}");
        let ephemeral = pod.ephemeral_storage.as_ref().unwrap();
        assert!(ephemeral.used_bytes.unwrap() >= 50_000, "logs of a container count with it, and it does not run");
        let images = sample.node.image_fs.as_ref().unwrap();
        assert_eq!((images.used_bytes, images.inodes_used), (Some(700), Some(3)), "of the runtime");
        assert!(images.capacity_bytes.unwrap() > 0, "of the file system");

        service.sample(DEFAULT_AGE, ALL).await.unwrap();
        assert_eq!(fake.asked.load(Ordering::Relaxed), 1, "a young sample answers");
        fake.away.store(true, Ordering::Relaxed);
        let again = service.sample(Duration::ZERO, ALL).await.unwrap();
        assert_eq!(again.pods.len(), 1, "unknown is not gone");
        let refused = service.usage(ALL).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::Unavailable, "and nobody is evicted by an old list");
        assert_eq!(fake.runtime_asked.load(Ordering::Relaxed), 1, "the runtime is asked at its own pace");
        assert_eq!(again.node.image_fs.as_ref().unwrap().used_bytes, Some(700));
    }

    #[tokio::test]
    async fn the_kernel_s_files_are_read_while_the_runtime_measures() {
        let temp = tempfile::tempdir().unwrap();
        let (service, fake) = service(temp.path());
        *fake.runtime_waits.lock() = Some(service.metrics.clone());
        let sample = tokio::time::timeout(Duration::from_secs(60), service.sample(Duration::ZERO, ALL)).await;
        let sample = sample.expect("neither waits for the other").unwrap();
        assert_eq!(sample.node.image_fs.as_ref().unwrap().used_bytes, Some(700));
        assert!(sample.node.cpu.as_ref().unwrap().usage_nano_cores.is_some());
    }

    /// A runtime with a thousand containers takes seconds: what it says is not lost because somebody waits no longer.
    #[tokio::test(start_paused = true)]
    async fn what_the_runtime_says_late_comes_with_a_later_sample() {
        let temp = tempfile::tempdir().unwrap();
        let (mut service, fake) = service(temp.path());
        put_group(&mut service, &fake, temp.path());
        let (hangs, following) = tokio::sync::watch::channel(true);
        *fake.runtime_hangs.lock() = Some(following);
        let images = |sample: Arc<Sample>| sample.node.image_fs.as_ref().unwrap().used_bytes;
        for _ in 0..2 {
            let began = tokio::time::Instant::now();
            assert_eq!(images(service.sample(Duration::ZERO, ALL).await.unwrap()), None);
            assert!(began.elapsed() < RUNTIME_PATIENCE, "{:?}", began.elapsed());
        }
        assert_eq!(images(service.usage(ALL).await.unwrap()), None, "who evicts waits longer, and not for ever");
        hangs.send_replace(false);
        assert_eq!(images(service.sample(Duration::ZERO, ALL).await.unwrap()), Some(700));
        assert_eq!(fake.runtime_asked.load(Ordering::Relaxed), 1, "it is asked once");
    }

    #[tokio::test]
    async fn without_statistics_of_volumes_logs_are_measured() {
        let temp = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(temp.path().join("pods/u1/volumes/kubernetes.io~empty-dir/scratch")).unwrap();
        std::fs::create_dir_all(temp.path().join("logs/default_web_u1")).unwrap();
        std::fs::write(temp.path().join("pods/u1/etc-hosts"), vec![1; 6_000]).unwrap();
        let (mut service, _) = service(temp.path());
        service.volumes = None;
        let sample = service.sample(Duration::ZERO, ALL).await.unwrap();
        assert!(sample.pods[0].volumes.is_empty());
        let ephemeral = sample.pods[0].ephemeral_storage.as_ref().unwrap();
        assert!(ephemeral.used_bytes.unwrap() >= 6_000 && ephemeral.inodes_used == Some(1), "{ephemeral:?}");
    }

    #[tokio::test]
    async fn what_is_not_wanted_is_not_measured() {
        let temp = tempfile::tempdir().unwrap();
        let (mut service, fake) = service(temp.path());
        put_group(&mut service, &fake, temp.path());
        let small = service.sample(Duration::ZERO, SampleScope::default()).await.unwrap();
        assert!(small.node.node_fs.is_none() && small.node.network.is_none() && small.cgroups.is_empty());
        assert_eq!(fake.runtime_asked.load(Ordering::Relaxed), 0);
        let detailed = service.sample(DEFAULT_AGE, SampleScope { disks: false, cgroups: true }).await.unwrap();
        assert_eq!(detailed.cgroups[0].id, "/", "a young sample that lacks it does not answer");
        assert!(detailed.cgroups[0].file_systems.iter().any(|fs| fs.capacity_bytes > 0));
        let again = service.sample(DEFAULT_AGE, SampleScope::default()).await.unwrap();
        assert!(Arc::ptr_eq(&again, &detailed), "one with more answers who wants less");
    }

    fn figures(seconds: i64, used: u64) -> ContainerFigures {
        let time_ms = seconds * 1000;
        ContainerFigures {
            cpu: Some(RuntimeCpu { time_ms, usage_core_nano_seconds: Some(used), ..RuntimeCpu::default() }),
            memory: Some(RuntimeMemory { time_ms, working_set: Some(used), ..RuntimeMemory::default() }),
            ..ContainerFigures::default()
        }
    }

    /// Of /metrics/resource, which asks for no disks, and of who evicts.
    #[tokio::test(start_paused = true)]
    async fn the_runtime_tells_of_containers_without_a_cgroup_at_the_rate_of_a_scrape() {
        const SECOND: u64 = 1_000_000_000;
        let small = SampleScope::default();
        let temp = tempfile::tempdir().unwrap();
        let (mut service, fake) = service(temp.path());
        let group = put_group(&mut service, &fake, temp.path());
        std::fs::remove_dir(&group).unwrap();
        fake.told.lock().insert("none".into(), figures(100, SECOND));
        let shown = |sample: &Sample| {
            let one = sample.pods[0].containers.first()?;
            let (cpu, memory) = (one.cpu.clone()?, one.memory.clone()?);
            Some((cpu.usage_core_nano_seconds?, cpu.usage_nano_cores, memory.working_set_bytes?))
        };
        let sample = service.sample(Duration::ZERO, small).await.unwrap();
        assert_eq!(shown(&sample), Some((SECOND, None, SECOND)));
        let pod = &sample.pods[0];
        assert_eq!(pod.memory.as_ref().and_then(|memory| memory.working_set_bytes), Some(SECOND), "the pod's sum");
        // A newer word that is not asked for yet.
        fake.told.lock().insert("none".into(), figures(110, 6 * SECOND));
        let sample = service.sample(Duration::ZERO, small).await.unwrap();
        assert_eq!(shown(&sample), Some((SECOND, None, SECOND)));
        assert_eq!(fake.runtime_asked.load(Ordering::Relaxed), 1);
        tokio::time::advance(GROUPLESS_KEEP).await;
        let cgroups = SampleScope { disks: false, cgroups: true };
        let sample = service.sample(Duration::ZERO, cgroups).await.unwrap();
        assert!(sample.cgroups.iter().all(|group| group.container.is_empty()), "it has no series of it");
        assert_eq!(fake.runtime_asked.load(Ordering::Relaxed), 1, "for who shows no pods it is not asked");
        assert!(Arc::ptr_eq(&sample, &service.sample(DEFAULT_AGE, cgroups).await.unwrap()));
        let sample = service.sample(DEFAULT_AGE, small).await.unwrap();
        assert_eq!(shown(&sample), Some((6 * SECOND, Some(SECOND / 2), 6 * SECOND)));
        assert_eq!(shown(&service.usage(small).await.unwrap()), shown(&sample), "evictions rank by it");
        assert_eq!(fake.runtime_asked.load(Ordering::Relaxed), 2);

        let (hangs, following) = tokio::sync::watch::channel(true);
        *fake.runtime_hangs.lock() = Some(following);
        tokio::time::advance(GROUPLESS_KEEP).await;
        let began = tokio::time::Instant::now();
        assert_eq!(shown(&service.usage(small).await.unwrap()), shown(&sample), "the last word stands");
        assert_eq!(began.elapsed(), NEWER_PATIENCE, "a runtime that hangs holds up no eviction");
        assert_eq!(shown(&service.sample(Duration::ZERO, small).await.unwrap()), shown(&sample));
        assert_eq!(began.elapsed(), RUNTIME_PATIENCE, "who shows it waits for the rest of its patience");
        for _ in 0..2 {
            let began = tokio::time::Instant::now();
            service.sample(Duration::ZERO, small).await.unwrap();
            assert_eq!(began.elapsed(), NEWER_PATIENCE, "and once a question");
            let began = tokio::time::Instant::now();
            service.sample(Duration::ZERO, cgroups).await.unwrap();
            assert_eq!(began.elapsed(), Duration::ZERO, "or not at all");
        }
        fake.told.lock().clear();
        hangs.send_replace(false);
        assert_eq!(shown(&service.sample(Duration::ZERO, small).await.unwrap()), None, "it is not told of any more");
        std::fs::create_dir(&group).unwrap();
        tokio::time::advance(2 * RUNTIME_KEEP).await;
        let sample = service.sample(Duration::ZERO, small).await.unwrap();
        assert_eq!(sample.pods[0].containers.len(), 1, "with a cgroup the runtime is not needed");
        assert_eq!(fake.runtime_asked.load(Ordering::Relaxed), 3, "nor asked");
    }

    #[tokio::test]
    async fn the_runtime_s_figures_where_they_are_its_to_tell() {
        let temp = tempfile::tempdir().unwrap();
        let (service, fake) = service(temp.path());
        let figures = |figures| *fake.figures.lock() = Some(figures);
        figures(PodFigures::Unknown);
        let sample = service.sample(Duration::ZERO, ALL).await.unwrap();
        assert!(!sample.node.pods_known && sample.pods.is_empty(), "not told yet");
        assert_eq!(service.usage(ALL).await.unwrap().pods.len(), 1, "who evicts waits for nobody");
        figures(PodFigures::Told(Arc::new(vec![RuntimePod {
            sandbox_id: "s1".into(),
            process_count: Some(4),
            ..RuntimePod::default()
        }])));
        for _ in 0..2 {
            let sample = service.sample(Duration::ZERO, ALL).await.unwrap();
            let counts: Vec<_> = sample.pods.iter().map(|pod| pod.process.and_then(|all| all.process_count)).collect();
            assert_eq!((counts.as_slice(), sample.node.pods_known), ([Some(4)].as_slice(), true));
            assert!(sample.pods[0].ephemeral_storage.is_some() || sample.pods[0].volumes.is_empty());
            // The last word stands while there is no newer one.
            figures(PodFigures::Unknown);
        }
        let main = RuntimeContainer { id: "none".into(), cpu: Some(RuntimeCpu::default()), ..Default::default() };
        let pod = RuntimePod { sandbox_id: "s1".into(), containers: vec![main], ..RuntimePod::default() };
        figures(PodFigures::Told(Arc::new(vec![pod])));
        let asked = fake.runtime_asked.load(Ordering::Relaxed);
        service.state.lock().await.of_disks = Question::default();
        let sample = service.sample(Duration::ZERO, SampleScope::default()).await.unwrap();
        assert!(sample.pods[0].containers[0].cpu.is_some(), "it has no cgroup");
        assert_eq!(fake.runtime_asked.load(Ordering::Relaxed), asked, "one word of the runtime is enough");
        figures(PodFigures::OurOwn);
        let sample = service.sample(Duration::ZERO, ALL).await.unwrap();
        assert!(sample.pods[0].cpu.is_some(), "a runtime that has none");
    }

    #[tokio::test]
    async fn a_caller_that_goes_away_breaks_nothing() {
        let temp = tempfile::tempdir().unwrap();
        let (service, _) = service(temp.path());
        for _ in 0..20 {
            let _ = tokio::time::timeout(Duration::from_micros(300), service.sample(Duration::ZERO, ALL)).await;
        }
        assert!(service.sample(Duration::ZERO, ALL).await.is_ok());
    }

    #[tokio::test]
    async fn pods_that_run_are_told_while_kubelet_syncd_starts() {
        let temp = tempfile::tempdir().unwrap();
        let (mut service, fake) = service(temp.path());
        let container = put_group(&mut service, &fake, temp.path());
        let told = async || {
            let sample = service.sample(Duration::ZERO, ALL).await.unwrap();
            (sample.pods.len(), sample.node.pods_known)
        };
        fake.starting.store(true, Ordering::Relaxed);
        assert_eq!(told().await, (0, false), "none is listed, and that says nothing");
        fake.starting.store(false, Ordering::Relaxed);
        assert_eq!(told().await, (1, true));
        fake.starting.store(true, Ordering::Relaxed);
        assert_eq!(told().await, (1, true), "it has started again");
        std::fs::remove_dir(&container).unwrap();
        assert_eq!(told().await, (0, true), "what has ended is not told");
        fake.starting.store(false, Ordering::Relaxed);
        fake.told.lock().insert("none".into(), figures(1, 10));
        service.state.lock().await.of_disks = Question::default();
        assert_eq!(told().await, (1, true));
        fake.starting.store(true, Ordering::Relaxed);
        assert_eq!(told().await, (1, true), "of whom the runtime told without a cgroup");
    }

    #[tokio::test]
    async fn without_syncd_the_node_is_still_measured() {
        let temp = tempfile::tempdir().unwrap();
        let (service, fake) = service(temp.path());
        fake.away.store(true, Ordering::Relaxed);
        let sample = service.sample(Duration::ZERO, ALL).await.unwrap();
        assert!(!sample.node.pods_known && sample.pods.is_empty());
        assert!(sample.node.memory.is_some());
    }
}
