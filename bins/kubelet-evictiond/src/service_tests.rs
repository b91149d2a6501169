//! What a sample of the service holds and how long it takes, with kubelet-syncd and the runtime in the test's hands.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::*;
use crate::cgroup::Hierarchy;
use crate::pods::{PodVolume, VolumeKind};
use crate::runtime::ContainerFigures;
use crate::sample::NodePaths;
use bulkhead_ipc::syncd::{DiskUsage, RuntimeContainer, RuntimeCpu, RuntimeMemory};
use bulkhead_types::{ContainerName, InstancePaths, Namespace, PodName, PodUid, VolumeName};

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
    let paths = service.sampler.lock().paths().instance.clone();
    service.disks = DiskReader::new(paths.clone(), Walker::here(paths), service.metrics.clone(), None);
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
    service.state.lock().await.disks_question = Question::default();
    let sample = service.sample(Duration::ZERO, SampleScope::default()).await.unwrap();
    assert!(sample.pods[0].containers[0].cpu.is_some(), "it has no cgroup");
    assert_eq!(fake.runtime_asked.load(Ordering::Relaxed), asked, "one word of the runtime is enough");
    figures(PodFigures::OurOwn);
    let sample = service.sample(Duration::ZERO, ALL).await.unwrap();
    assert!(sample.pods[0].cpu.is_some(), "a runtime that has none");
}

/// A caller that goes away while the runtime measures, and one that goes between the two readings of the counters, when the runtime has
/// answered: in both cases the answer is that of the next sample, and the runtime is asked once.
#[tokio::test(start_paused = true)]
async fn a_caller_that_goes_away_breaks_nothing() {
    for (hangs, gone_after) in [(true, DISK_PATIENCE / 2), (false, RATE_GAP / 2)] {
        let temp = tempfile::tempdir().unwrap();
        let (service, fake) = service(temp.path());
        let (runtime, following) = tokio::sync::watch::channel(hangs);
        *fake.runtime_hangs.lock() = Some(following);
        let caller = tokio::time::timeout(gone_after, service.sample(Duration::ZERO, ALL)).await;
        assert!(caller.is_err(), "{hangs}: its sample was not ready");
        assert_eq!(fake.runtime_asked.load(Ordering::Relaxed), 1, "{hangs}");
        runtime.send_replace(false);
        let sample = service.sample(Duration::ZERO, ALL).await.unwrap();
        assert_eq!(sample.node.image_fs.as_ref().unwrap().used_bytes, Some(700), "{hangs}");
        assert_eq!(fake.runtime_asked.load(Ordering::Relaxed), 1, "{hangs}: nobody asked again");
        assert!(sample.unrated.is_empty() && sample.node.pods_known, "{hangs}");
        assert_eq!(sample.pods.len(), 1, "{hangs}");
    }
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
}

#[tokio::test]
async fn a_container_without_a_cgroup_is_told_while_kubelet_syncd_starts() {
    let temp = tempfile::tempdir().unwrap();
    let (mut service, fake) = service(temp.path());
    std::fs::remove_dir(put_group(&mut service, &fake, temp.path())).unwrap();
    let told = async || {
        let sample = service.sample(Duration::ZERO, ALL).await.unwrap();
        (sample.pods.len(), sample.node.pods_known)
    };
    fake.told.lock().insert("none".into(), figures(1, 10));
    assert_eq!(told().await, (1, true));
    // Somebody who shows no pods does not ask the runtime again.
    service.state.lock().await.runtime_disks = None;
    service.sample(Duration::ZERO, SampleScope { disks: false, cgroups: true }).await.unwrap();
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
