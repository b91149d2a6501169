//! What persistent volumes and those of CSI drivers hold. This process enters none of them: kubelet-syncd asks their drivers, and
//! names the folders of the others, whose file systems kubelet-walker's workers look at.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bulkhead_daemon::progress::Heartbeat;
use bulkhead_ipc::MAX_MESSAGE_BYTES;
use bulkhead_ipc::client::Link;
use bulkhead_ipc::context::CallContext;
use bulkhead_ipc::evictiond::{FsStats, VolumeStats};
use bulkhead_ipc::syncd::storage_client::StorageClient;
use bulkhead_ipc::syncd::{VolumeUsage, VolumeUsagesRequest};
use futures_util::future::join_all;
use parking_lot::Mutex;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{GaugeVec, Opts};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::ask_syncd::each_at_most;
use crate::disk::Cache;
use crate::pods::Pod;
use crate::stats::{self, Moment};
use crate::walker::Walker;

/// Drivers have 10 s each, some at a time.
const DEADLINE: Duration = Duration::from_secs(60);
/// For folders whose file systems are looked at; figures that come later are in the next answer.
const FOLDERS: Duration = Duration::from_secs(10);
/// More volumes than a node can have; the rest of a longer list is cut.
const MAX_VOLUMES: usize = 20_000;

/// By the pod's uid.
type Figures = HashMap<String, Vec<VolumeStats>>;

/// Figures of all such volumes, renewed when they are asked for. Cheap to clone.
#[derive(Debug, Clone)]
pub struct PersistentVolumes {
    link: Link,
    walker: Walker,
    /// `None`: statistics of volumes are off.
    renewed: Option<Arc<Cache<(), ()>>>,
    figures: Arc<Mutex<Figures>>,
    /// Pods that run, by their uids: a kubelet-syncd that has started does not know of their volumes at once.
    running: Arc<Mutex<HashSet<String>>>,
    /// Folders that are being looked at, with the volumes that are told what comes of it: a pod may have one by several names.
    asked: Arc<Mutex<HashMap<String, Vec<VolumeUsage>>>>,
}

impl PersistentVolumes {
    /// `period`: how old figures may be; `None` switches them off.
    pub fn new(link: Link, walker: Walker, period: Option<Duration>) -> Self {
        PersistentVolumes {
            link,
            walker,
            renewed: period.map(|period| Arc::new(Cache::keeping(period))),
            figures: Arc::default(),
            running: Arc::default(),
            asked: Arc::default(),
        }
    }

    /// Which pods there are: figures of volumes of one that runs stay.
    pub fn pods_are(&self, pods: &[Pod]) {
        let running = pods.iter().filter(|pod| !pod.containers.is_empty()).map(|pod| pod.uid.to_string()).collect();
        *self.running.lock() = running;
    }

    /// Renews what is old, and waits for it so long at most; a driver that is slower is seen in later figures.
    pub async fn refresh(&self, patience: Duration) {
        if let Some(renewed) = &self.renewed {
            let this = self.clone();
            renewed.refresh(vec![((), async move { this.renew().await })], patience).await;
        }
    }

    /// Has drivers asked in each `period`, whoever reads: an event comes of a condition (upstream `pkg/kubelet/server/stats`
    /// fs_resource_analyzer.go and volume_stat_calculator.go). Ends with `stop`.
    pub async fn keep_new(&self, period: Duration, heartbeat: &Heartbeat, stop: &CancellationToken) {
        in_each_period(period, heartbeat, stop, async || self.refresh(period).await).await;
    }

    pub fn of(&self, pod_uid: &str) -> Vec<VolumeStats> {
        self.figures.lock().get(pod_uid).cloned().unwrap_or_default()
    }

    /// `None`: it could not be found out which volumes there are.
    async fn renew(&self) -> Option<()> {
        match tokio::time::timeout(DEADLINE, self.ask()).await {
            Ok(Ok(())) => Some(()),
            Ok(Err(status)) => {
                tracing::debug!(code = ?status.code(), "usage of volumes is not told: {}", status.message());
                None
            }
            Err(_) => None,
        }
    }

    async fn ask(&self) -> Result<(), tonic::Status> {
        let mut client = StorageClient::new(self.link.channel()).max_decoding_message_size(MAX_MESSAGE_BYTES);
        let list =
            client.volume_usages(CallContext::new().request(VolumeUsagesRequest {}, DEADLINE)).await?.into_inner();
        let (mut there, mut measured) = (HashSet::new(), Vec::new());
        each_at_most(list, MAX_VOLUMES, "volumes' usage", |told| {
            there.insert((told.pod_uid.clone(), told.volume.clone()));
            if told.folder.is_empty() {
                let time = Moment::now().text;
                let fs = figures(&told, &time);
                // Each as it comes: who is slow holds up no other.
                note(&mut self.figures.lock(), &told, fs, &time);
            } else {
                measured.extend(self.measure(told));
            }
        })
        .await?;
        let _ = tokio::time::timeout(FOLDERS, join_all(measured)).await;
        let running = self.running.lock().clone();
        forget(&mut self.figures.lock(), &there, &running);
        Ok(())
    }
}

impl PersistentVolumes {
    /// Has the folder looked at, by a task of its own: what comes late is noted late. A folder that has not been answered for,
    /// because its server is away, is not asked for again; of the pod's other folders nothing is known meanwhile, as the pod has
    /// one worker for all of them.
    fn measure(&self, told: VolumeUsage) -> Option<JoinHandle<()>> {
        let (pod, folder) = (told.pod_uid.clone(), told.folder.clone());
        match self.asked.lock().entry(folder.clone()) {
            Entry::Occupied(asked) => {
                let waiting = asked.into_mut();
                if !waiting.iter().any(|known| (&known.pod_uid, &known.volume) == (&told.pod_uid, &told.volume)) {
                    waiting.push(told);
                }
                return None;
            }
            Entry::Vacant(place) => place.insert(vec![told]),
        };
        let this = self.clone();
        Some(tokio::spawn(async move {
            let fs = this.walker.volume(&pod, folder.clone()).await;
            let time = Moment::now().text;
            let fs = fs.map(|fs| stats::whole(fs, &time));
            let waiting = this.asked.lock().remove(&folder).unwrap_or_default();
            let mut figures = this.figures.lock();
            waiting.iter().for_each(|told| note(&mut figures, told, fs.clone(), &time));
        }))
    }
}

/// At once, and then as soon as what was asked for is `period` old.
async fn in_each_period(period: Duration, heartbeat: &Heartbeat, stop: &CancellationToken, ask: impl AsyncFn()) {
    let asking = async {
        loop {
            ask().await;
            tokio::time::sleep(period).await;
        }
    };
    tokio::select! {
        () = heartbeat.rests(asking) => {}
        () = stop.cancelled() => {}
    }
}

/// `None`: the driver says nothing. Less than nothing is nothing.
fn figures(told: &VolumeUsage, time: &str) -> Option<FsStats> {
    let of = |number: Option<i64>| number.map(|number| u64::try_from(number).unwrap_or(0));
    let fs = FsStats {
        time: time.to_owned(),
        available_bytes: of(told.available_bytes),
        capacity_bytes: of(told.capacity_bytes),
        used_bytes: of(told.used_bytes),
        inodes_free: of(told.inodes_free),
        inodes: of(told.inodes),
        inodes_used: of(told.inodes_used),
    };
    (fs != FsStats { time: time.to_owned(), ..FsStats::default() }).then_some(fs)
}

/// What is not known now stays as it was known last, with its time. A driver may tell of the volume's condition alone: then there is no
/// figure but the time, until one is known.
fn note(figures: &mut Figures, told: &VolumeUsage, fs: Option<FsStats>, time: &str) {
    if fs.is_none() && told.abnormal.is_none() {
        return;
    }
    let volumes = figures.entry(told.pod_uid.clone()).or_default();
    let mut known = volumes.iter_mut().find(|known| known.name == told.volume);
    let before = known.as_mut().and_then(|known| known.fs.take());
    let untold = || FsStats { time: time.to_owned(), ..FsStats::default() };
    let volume = VolumeStats {
        name: told.volume.clone(),
        fs: Some(fs.or(before).unwrap_or_else(untold)),
        claim_namespace: told.claim_namespace.clone(),
        claim_name: told.claim_name.clone(),
        abnormal: told.abnormal,
    };
    match known {
        Some(known) => *known = volume,
        None => volumes.push(volume),
    }
}

/// Volumes (pod and name) that are not there any more go, unless their pod runs: it has its volumes for as long as that.
fn forget(figures: &mut Figures, there: &HashSet<(String, String)>, running: &HashSet<String>) {
    figures.retain(|pod, volumes| {
        volumes.retain(|volume| running.contains(pod) || there.contains(&(pod.clone(), volume.name.clone())));
        !volumes.is_empty()
    });
}

/// Upstream's `kubelet_volume_stats_*`, of volumes with a claim, each claim once (`pkg/kubelet/metrics/collectors/volume_stats.go`).
#[derive(Debug)]
pub struct VolumeGauges {
    volumes: PersistentVolumes,
    /// In the order of [`FAMILIES`].
    gauges: [GaugeVec; FAMILIES.len()],
    health: GaugeVec,
}

type Figure = fn(&FsStats) -> Option<u64>;

const FAMILIES: [(&str, &str, Figure); 6] = [
    ("kubelet_volume_stats_capacity_bytes", "[ALPHA] Capacity in bytes of the volume", |fs| fs.capacity_bytes),
    ("kubelet_volume_stats_available_bytes", "[ALPHA] Number of available bytes in the volume", |fs| {
        fs.available_bytes
    }),
    ("kubelet_volume_stats_used_bytes", "[ALPHA] Number of used bytes in the volume", |fs| fs.used_bytes),
    ("kubelet_volume_stats_inodes", "[ALPHA] Maximum number of inodes in the volume", |fs| fs.inodes),
    ("kubelet_volume_stats_inodes_free", "[ALPHA] Number of free inodes in the volume", |fs| fs.inodes_free),
    ("kubelet_volume_stats_inodes_used", "[ALPHA] Number of used inodes in the volume", |fs| fs.inodes_used),
];

/// Of volumes whose drivers say it alone.
const HEALTH: (&str, &str) = (
    "kubelet_volume_stats_health_status_abnormal",
    "[ALPHA] Abnormal volume health status. The count is either 1 or 0. 1 indicates the volume is unhealthy, 0 indicates volume is \
     healthy",
);

impl VolumeGauges {
    /// # Errors
    /// Never: the names are in order.
    pub fn new(volumes: PersistentVolumes) -> Result<Self, prometheus::Error> {
        let gauge = |(name, help, _): (&str, &str, Figure)| {
            GaugeVec::new(Opts::new(name, help), &["namespace", "persistentvolumeclaim"])
        };
        let [a, b, c, d, e, f] = FAMILIES.map(gauge);
        let health = GaugeVec::new(Opts::new(HEALTH.0, HEALTH.1), &["namespace", "persistentvolumeclaim"])?;
        Ok(VolumeGauges { volumes, gauges: [a?, b?, c?, d?, e?, f?], health })
    }
}

impl Collector for VolumeGauges {
    fn desc(&self) -> Vec<&Desc> {
        self.gauges.iter().chain([&self.health]).flat_map(|gauge| gauge.desc()).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let figures = self.volumes.figures.lock().clone();
        for (gauge, (.., figure)) in self.gauges.iter().zip(FAMILIES) {
            gauge.reset();
            for volume in figures.values().flatten().filter(|volume| !volume.claim_name.is_empty()) {
                let labels = [volume.claim_namespace.as_str(), volume.claim_name.as_str()];
                if let Some(number) = volume.fs.as_ref().and_then(figure) {
                    gauge.with_label_values(&labels).set(number as f64);
                }
            }
        }
        self.health.reset();
        for volume in figures.values().flatten().filter(|volume| !volume.claim_name.is_empty()) {
            if let Some(abnormal) = volume.abnormal {
                let labels = [volume.claim_namespace.as_str(), volume.claim_name.as_str()];
                self.health.with_label_values(&labels).set(f64::from(u8::from(abnormal)));
            }
        }
        self.gauges.iter().chain([&self.health]).flat_map(|gauge| gauge.collect()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(pod: &str, volume: &str, used: Option<i64>) -> VolumeUsage {
        VolumeUsage {
            pod_uid: pod.into(),
            volume: volume.into(),
            claim_name: "c".into(),
            used_bytes: used,
            ..VolumeUsage::default()
        }
    }

    #[test]
    fn what_is_not_told_now_stays_until_the_volume_is_gone() {
        let mut all = Figures::new();
        let mut take = |told: &VolumeUsage, time: &str| note(&mut all, told, figures(told, time), time);
        take(&told("p", "v", Some(5)), "1");
        take(&told("p", "w", Some(-7)), "1");
        take(&told("p", "v", None), "2");
        let fs = |all: &Figures, at: usize| all["p"][at].fs.clone().unwrap();
        assert_eq!((fs(&all, 0).used_bytes, fs(&all, 0).time.as_str()), (Some(5), "1"));
        assert_eq!(fs(&all, 1).used_bytes, Some(0));
        let (w, nothing, running) = (("p".to_owned(), "w".to_owned()), HashSet::new(), HashSet::from(["p".to_owned()]));
        forget(&mut all, &nothing, &running);
        assert_eq!(all["p"].len(), 2, "a kubelet-syncd that has just started does not know them yet");
        forget(&mut all, &HashSet::from([w]), &HashSet::new());
        assert_eq!(all["p"].len(), 1);
        forget(&mut all, &nothing, &HashSet::new());
        assert!(all.is_empty());
    }

    #[test]
    fn a_condition_is_kept_without_figures_and_beside_those_that_are_known() {
        let mut all = Figures::new();
        let mut take = |used, abnormal, time: &str| {
            let told = VolumeUsage { abnormal, ..told("p", "v", used) };
            note(&mut all, &told, figures(&told, time), time);
            let volume = all.get("p").and_then(|volumes| volumes.first()).cloned()?;
            let fs = volume.fs.unwrap();
            Some((fs.used_bytes, fs.time, volume.abnormal))
        };
        assert_eq!(take(None, None, "1"), None, "nothing is told");
        assert_eq!(take(None, Some(true), "2"), Some((None, "2".into(), Some(true))));
        assert_eq!(take(Some(5), Some(false), "3"), Some((Some(5), "3".into(), Some(false))));
        assert_eq!(take(None, Some(true), "4"), Some((Some(5), "3".into(), Some(true))), "the figures of before");
        assert_eq!(take(None, None, "5"), Some((Some(5), "3".into(), Some(true))), "no answer");
        assert_eq!(take(Some(6), None, "6"), Some((Some(6), "6".into(), None)), "it tells no condition any more");
    }

    #[tokio::test(start_paused = true)]
    async fn drivers_are_asked_at_once_and_then_in_each_period() {
        let progress = bulkhead_daemon::progress::Progress::default();
        let (heartbeat, stop) =
            (progress.register("health of volumes", Duration::from_secs(20)), CancellationToken::new());
        let asked = std::cell::Cell::new(0);
        let asking = in_each_period(Duration::from_secs(60), &heartbeat, &stop, async || asked.set(asked.get() + 1));
        let watching = async {
            for (seconds, times) in [(1, 1), (58, 1), (2, 2), (60, 3)] {
                tokio::time::sleep(Duration::from_secs(seconds)).await;
                assert_eq!(asked.get(), times);
                assert_eq!(progress.beat(), bulkhead_daemon::progress::Beat::Send);
            }
            stop.cancel();
        };
        tokio::join!(asking, watching);
    }

    /// A folder whose server is away costs one worker, and the others' figures come all the same.
    #[tokio::test]
    async fn a_folder_that_is_not_answered_for_is_not_asked_for_again() {
        use bulkhead_ipc::common::{FileSystemFigures, WalkReply};
        use bulkhead_worker::{Message, WorkerPool};
        use prost::Message as _;

        let (release, held) = std::sync::mpsc::channel::<()>();
        let (held, asked) = (Mutex::new(held), Arc::new(Mutex::new(0)));
        let counted = asked.clone();
        let pool = WorkerPool::here(crate::walker::LIMITS, move |request| {
            if String::from_utf8_lossy(&request.bytes).contains("/away") {
                *counted.lock() += 1;
                let _ = held.lock().recv();
            }
            let figures = FileSystemFigures { capacity_bytes: 7, ..FileSystemFigures::default() };
            Message::of(WalkReply { file_system: Some(figures), ..WalkReply::default() }.encode_to_vec())
        });
        let link = Link::open("test", bulkhead_types::Process::Syncd, std::path::Path::new("/nowhere"));
        let volumes = PersistentVolumes::new(link, Walker::new(pool), Some(Duration::from_secs(60)));
        let of = |pod: &str, folder: &str| VolumeUsage { folder: folder.into(), ..told(pod, "v", None) };
        let away = volumes.measure(of("p", "/away")).unwrap();
        assert!(volumes.measure(of("p", "/away")).is_none());
        let by_another_name = VolumeUsage { volume: "w".into(), ..of("p", "/away") };
        assert!(volumes.measure(by_another_name).is_none());
        volumes.measure(of("q", "/there")).unwrap().await.unwrap();
        assert_eq!(volumes.of("q")[0].fs.as_ref().unwrap().capacity_bytes, Some(7));
        assert!(volumes.of("p").is_empty());
        release.send(()).unwrap();
        away.await.unwrap();
        let names: Vec<String> = volumes.of("p").into_iter().map(|volume| volume.name).collect();
        assert_eq!(
            (names, *asked.lock()),
            (vec!["v".into(), "w".into()], 1),
            "what comes late is noted late, of each name"
        );
        release.send(()).unwrap();
        volumes.measure(of("p", "/away")).unwrap().await.unwrap();
        assert_eq!(*asked.lock(), 2, "and asked for again once it was answered for");
    }

    /// Each of its volumes is a question; none of them but the first is waited for, and nobody else is refused for them.
    #[tokio::test]
    async fn a_pod_with_silent_volumes_takes_one_worker_and_the_node_is_measured() {
        use bulkhead_ipc::common::{FileSystemFigures, WalkReply};
        use bulkhead_worker::{Limits, Message, WorkerPool};
        use prost::Message as _;

        let (release, held) = std::sync::mpsc::channel::<()>();
        let (held, met) = (Mutex::new(held), Arc::new(Mutex::new(0)));
        let counted = met.clone();
        let limits = Limits { hangs_after: Duration::from_millis(50), ..crate::walker::LIMITS };
        let pool = WorkerPool::here(limits, move |request| {
            if String::from_utf8_lossy(&request.bytes).contains("/away") {
                *counted.lock() += 1;
                let _ = held.lock().recv();
            }
            let figures = FileSystemFigures { capacity_bytes: 7, ..FileSystemFigures::default() };
            Message::of(WalkReply { file_system: Some(figures), ..WalkReply::default() }.encode_to_vec())
        });
        let link = Link::open("test", bulkhead_types::Process::Syncd, std::path::Path::new("/nowhere"));
        let walker = Walker::new(pool.clone());
        let volumes = PersistentVolumes::new(link, walker.clone(), Some(Duration::from_secs(60)));
        let of = |pod: &str, folder: String| VolumeUsage { folder, ..told(pod, "v", None) };
        let asked: Vec<_> = (0..61).map(|n| volumes.measure(of("attacker", format!("/away/{n}"))).unwrap()).collect();
        let mut asked = asked.into_iter();
        let first = asked.next().unwrap();
        for refused in asked {
            refused.await.unwrap();
        }
        assert_eq!((pool.hanging().len(), *met.lock()), (1, 1));
        assert!(walker.file_system("/var/lib/kubelet".into()).await.is_some(), "the node's signals");
        assert!(walker.container_logs(&[]).await.is_some(), "rotation of logs");
        volumes.measure(of("other", "/there".into())).unwrap().await.unwrap();
        assert_eq!((volumes.of("other").len(), volumes.of("attacker").len()), (1, 0));
        release.send(()).unwrap();
        first.await.unwrap();
        assert_eq!((volumes.of("attacker").len(), pool.hanging().len()), (1, 0));
    }
}
