//! The eviction manager's loop: reads signals when they are due, judges, and when a threshold is to be acted on reclaims, ranks and has
//! one pod evicted. Decisions are those of the modules beside it.
//!
//! Readings of file systems are tasks: what hangs is unknown after a while ([`crate::signals::file_systems`]), and holds up nothing.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_config::eviction::{Signal, Threshold};
use bulkhead_config::{Feature, NodeConfig};
use bulkhead_daemon::progress::Heartbeat;
use bulkhead_daemon::state_file::{self, StateFile};
use bulkhead_daemon::{StateDir, StateError};
use bulkhead_ipc::evictiond::PodEvicted;
use bulkhead_ipc::syncd::{Candidate, EvictRequest, EvictionKind, EvictionOutcome, ReclaimRequest};
use bulkhead_types::Epoch;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};

use super::hold::{self, Hold};
use super::judge::{self, Judgement, Ledger};
use super::local_storage::{self, Exceeded};
use super::messages::{self, EvictionMessage};
use super::pressure::Shown;
use super::rank::{self, Ranked};
use super::syncd::Syncd;
use crate::disk;
use crate::image_gc::collector::{Collector, Reclaimed};
use crate::image_gc::passes::ImageFs;
use crate::image_gc::store::SyncdImages;
use crate::metrics::Metrics;
use crate::pods::PodSource;
use crate::runtime::RuntimeSource;
use crate::sample::SampleScope;
use crate::service::StatsService;
use crate::signals::cadence::{Falls, LONGEST, LONGEST_OF_FILE_SYSTEMS};
use crate::signals::file_systems::FileSystems;
use crate::signals::history::History;
use crate::signals::observation::{Observations, Resource};
use crate::signals::reader::{self, KernelReading, SharedReader};
use crate::signals::sensors::{self, Sensors};
use crate::signals::thresholds::{self, Layout};
use crate::walker::Walker;

const LEDGER: StateFile = StateFile { name: "pressure.json", version: judge::VERSION };
/// Seconds that a pod is given for a hard threshold or a limit of its own (upstream immediateEvictionGracePeriodSeconds).
const IMMEDIATE_GRACE: i64 = 1;
/// How often the end of evicted pods is asked for.
const WAIT_LOOK: Duration = Duration::from_millis(200);
/// How soon, and how late, a signal that is below its threshold is read again while nothing is to be done yet.
const MET_LOOK: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// A signal of which nothing is known is asked for so often: the pods' cgroup may not be there yet.
const UNKNOWN_LOOK: Duration = Duration::from_secs(1);
/// After a pass that evicted nobody: there was nobody, or enough was reclaimed.
const PAUSE: Duration = LONGEST;
/// Until file systems have been read nothing is said of conditions, but for no longer than this.
const FIRST_WORD_MAX: Duration = Duration::from_secs(10);
/// After a pass that kubelet-syncd did not answer.
const RETRY: Duration = Duration::from_secs(1);
/// Limits of pods' own are looked after so often (upstream's period).
const LIMITS_EVERY: Duration = Duration::from_secs(10);
/// While conditions hold, when they were observed last is written so often.
const LEDGER_EVERY: Duration = Duration::from_secs(10);
/// Of the pods evicted last so many are shown, each with so many bytes of what was said: all of them are one message.
const EVICTED_KEPT: usize = 16;
const SHOWN_TEXT_MAX: usize = 4 << 10;

/// What the loop is made of.
#[derive(Debug)]
pub struct Parts<P, R> {
    pub config: Arc<NodeConfig>,
    pub configured: Vec<Threshold>,
    pub epoch: Epoch,
    pub stats: Arc<StatsService<P, R>>,
    pub walker: Walker,
    pub reader: SharedReader,
    pub sensors: Sensors,
    pub syncd: Syncd,
    /// What removes images under disk pressure, and is told how full their file system is.
    pub images: Arc<Collector<SyncdImages>>,
    pub state: Arc<StateDir>,
    pub shown: Arc<Shown>,
    pub metrics: Metrics,
    pub stop: CancellationToken,
}

/// What comes back from tasks.
#[derive(Debug)]
enum News {
    FileSystem(String, Option<disk::FileSystem>, Duration),
    Folders(Option<(String, String)>),
}

/// See the module.
#[derive(Debug)]
pub struct Manager<P, R> {
    pub(super) parts: Parts<P, R>,
    pub(super) ledger: Ledger,
    /// What of the ledger is on the disk, and since when.
    saved: (Ledger, Option<Instant>),
    pub(super) seen: Observations,
    pub(super) falls: Falls,
    pub(super) history: History,
    pub(super) files: FileSystems,
    news: (mpsc::Sender<News>, mpsc::Receiver<News>),
    /// What came of the last pass.
    judged: Judgement,
    pub(super) hold: Hold,
    began: Instant,
    kernel_at: Instant,
    files_at: Instant,
    limits_at: Instant,
    /// The gate `KubeletSeparateDiskGC`.
    separate_disks: bool,
    split_told: bool,
    pub(super) evicted: Vec<(PodEvicted, Instant)>,
}

impl<P: PodSource, R: RuntimeSource> Manager<P, R> {
    /// # Errors
    /// The ledger cannot be read, or not be set aside.
    pub fn new(parts: Parts<P, R>) -> Result<Self, StateError> {
        // Another kubelet has told the conditions meanwhile: how long they have held, or not, nobody here knows.
        if parts.state.drop_outdated(&[LEDGER.name])? {
            parts.state.taken_over()?;
        }
        let ledger: Option<Ledger> = parts.state.load(LEDGER, |bytes| serde_json::from_slice(bytes))?;
        let boot_id = parts.config.boot_id.clone();
        let ledger = ledger.filter(|ledger| ledger.boot_id == boot_id).unwrap_or_default();
        let ledger = Ledger { boot_id, ..ledger };
        for (signal, kind) in thresholds::ignored(&parts.configured) {
            tracing::warn!("found {} for {kind} eviction. ignoring", signal.as_str());
        }
        let now = Instant::now();
        let root = parts.config.paths.root_dir.to_string_lossy().into_owned();
        Ok(Manager {
            saved: (ledger.clone(), None),
            ledger,
            seen: Observations::new(),
            falls: Falls::default(),
            history: History::default(),
            files: FileSystems::new(root),
            news: mpsc::channel(16),
            judged: Judgement::default(),
            hold: Hold::Nothing,
            began: now,
            kernel_at: now,
            files_at: now,
            limits_at: now + LIMITS_EVERY,
            separate_disks: parts.config.feature_gates().enabled(Feature::KubeletSeparateDiskGC),
            split_told: false,
            evicted: Vec::new(),
            parts,
        })
    }

    /// Until the daemon is to stop.
    pub async fn run(mut self, heartbeat: Heartbeat) {
        tracing::info!("Eviction manager: starting control loop");
        let stop = self.parts.stop.clone();
        loop {
            let due = self.due();
            let news = heartbeat
                .rests(async {
                    tokio::select! {
                        biased;
                        () = stop.cancelled() => Some(None),
                        news = self.news.1.recv() => Some(news),
                        () = self.parts.sensors.woken() => {
                            self.kernel_at = Instant::now();
                            None
                        }
                        () = self.parts.shown.asked() => {
                            self.show(&self.judged);
                            None
                        }
                        () = tokio::time::sleep_until(due) => None,
                    }
                })
                .await;
            match news {
                Some(None) => return,
                Some(Some(news)) => self.take(news),
                None => {}
            }
            // It may wait for kubelet-syncd and for file systems.
            let _waiting = heartbeat.waits_on();
            self.turn().await;
        }
    }

    fn due(&self) -> Instant {
        let hold = match &self.hold {
            Hold::Nothing => self.limits_at,
            Hold::Pods { look, .. } => *look,
            Hold::Pause { until } => *until,
        };
        let late = self.files.next_late();
        let others = [self.kernel_at, self.files_at, hold].into_iter().chain(late);
        others.fold(self.limits_at, Instant::min)
    }

    async fn turn(&mut self) {
        let now = Instant::now();
        self.give_up_late();
        if self.kernel_at <= now {
            self.read_kernel().await;
        }
        if self.files_at <= now {
            self.read_file_systems();
        }
        let judgement = self.judge();
        self.judged.clone_from(&judgement);
        // A new life, of a new boot even, takes no condition away before it has looked everywhere.
        if self.files.layout().is_some() || self.began.elapsed() >= FIRST_WORD_MAX {
            self.parts.shown.set_conditions(&judgement.conditions);
        }
        self.save();
        self.schedule();
        if self.release_hold().await {
            // This judgement is of readings from before.
            return self.show(&judgement);
        }
        let acts = self.hold == Hold::Nothing && !judgement.actionable.is_empty();
        if self.limits_at <= now || (acts && is_short_of_disk(&judgement.actionable)) {
            self.limits_at = now + LIMITS_EVERY;
            self.look_after_limits(acts).await;
        }
        if acts && self.hold == Hold::Nothing {
            self.act(&judgement.actionable).await;
            self.read_anew();
        }
        // While all is well the report is made for whoever asks for it.
        if self.hold != Hold::Nothing || !judgement.met.is_empty() {
            self.show(&judgement);
        }
    }

    pub(super) fn in_force(&self) -> Vec<Threshold> {
        let config = &self.parts.config;
        // The flag empties the list before thresholds are read (upstream `pkg/kubelet/kubelet.go` NewMainKubelet).
        let allocatable = config.kubelet.enforces_pods() && !config.flags.experimental_allocatable_ignore_eviction;
        thresholds::in_force(&self.parts.configured, allocatable, self.files.layout())
    }

    /// The runtime keeps images and writable layers on two file systems, and the gate that allows it is off (upstream: each pass
    /// fails).
    pub(super) fn is_split_against_the_gate(&self) -> bool {
        self.files.layout() == Some(Layout::Split) && !self.separate_disks
    }

    fn judge(&mut self) -> Judgement {
        if self.is_split_against_the_gate() {
            if !std::mem::replace(&mut self.split_told, true) {
                tracing::error!(
                    "KubeletSeparateDiskGC is turned off but we still have a split filesystem: no pod is evicted"
                );
            }
            return Judgement::default();
        }
        let transition = self.parts.config.kubelet.eviction_pressure_transition_period.to_std();
        let now = bulkhead_sys::clock::since_boot();
        judge::judge(&self.in_force(), &self.seen, &mut self.ledger, now, transition)
    }

    /// Keeps what outlives this process. What cannot be written - on a full disk, which is what evictions are for - is known all the
    /// same: only a restart would begin grace and transition periods anew.
    fn save(&mut self) {
        let (saved, at) = &self.saved;
        let is_old = !self.ledger.last_observed_ms.is_empty() && at.is_none_or(|at| at.elapsed() >= LEDGER_EVERY);
        if self.ledger.says_the_same(saved) && !is_old {
            return;
        }
        let written = state_file::encode(LEDGER.version, &self.ledger).map_err(|error| error.to_string());
        let written = written.and_then(|bytes| {
            self.parts.state.write(LEDGER.name, &bytes).map_err(|error| bulkhead_types::chain(&error))
        });
        if let Err(error) = written {
            tracing::warn!(error, "failed to save since when eviction thresholds are met");
        }
        // One that failed is tried again with the next change, or when it is old.
        self.saved = (self.ledger.clone(), Some(Instant::now()));
    }

    async fn read_kernel(&mut self) {
        let Some(KernelReading { seen, memory_usage }) = reader::read(&self.parts.reader).await else { return };
        for signal in [Signal::MemoryAvailable, Signal::AllocatableMemoryAvailable, Signal::PidAvailable] {
            match seen.get(&signal) {
                Some(reading) => drop(self.seen.insert(signal, *reading)),
                None => drop(self.seen.remove(&signal)),
            }
        }
        self.observe();
        self.parts.sensors.set(sensors::marks(&self.in_force(), &self.seen, &memory_usage));
    }

    fn observe(&mut self) {
        self.falls.observe(&self.seen);
        self.history.observe(&self.seen);
    }

    /// Begins readings; what they find comes as news.
    fn read_file_systems(&mut self) {
        self.files_at = Instant::now() + LONGEST_OF_FILE_SYSTEMS;
        if self.files.asks() {
            let (syncd, news) = (self.parts.syncd.clone(), self.news.0.clone());
            tokio::spawn(async move {
                let folders = syncd.image_fs().await.ok().and_then(|told| {
                    let images = told.images.map(|usage| usage.mountpoint).filter(|folder| folder.starts_with('/'))?;
                    let containers = told.containers.map(|usage| usage.mountpoint);
                    let containers = containers.filter(|folder| folder.starts_with('/'));
                    Some((images.clone(), containers.unwrap_or(images)))
                });
                // The loop is gone only when the process is.
                let _ = news.send(News::Folders(folders)).await;
            });
        }
        let folders = self.files.begin();
        self.begin_readings(folders);
    }

    fn begin_readings(&self, folders: Vec<String>) {
        for folder in folders {
            let (walker, news) = (self.parts.walker.clone(), self.news.0.clone());
            tokio::spawn(async move {
                // When it was begun: what it finds may be older than its answer.
                let at = bulkhead_sys::clock::since_boot();
                let found = walker.file_system(folder.clone()).await;
                let _ = news.send(News::FileSystem(folder, found, at)).await;
            });
        }
    }

    /// Readings that take too long say that nothing is known.
    fn give_up_late(&mut self) {
        if self.files.give_up_late(&mut self.seen) {
            self.observe();
        }
    }

    /// Waits for the readings that are under way, but not for those that are late.
    async fn end_of_readings(&mut self) {
        while let Some(late) = self.files.next_late() {
            tokio::select! {
                biased;
                Some(news) = self.news.1.recv() => self.take(news),
                () = tokio::time::sleep_until(late) => self.give_up_late(),
            }
        }
    }

    fn take(&mut self, news: News) {
        match news {
            // The runtime does not answer: it is where it was.
            News::Folders(None) => {}
            News::Folders(Some((images, containers))) => {
                if self.files.told(images, containers) {
                    self.files_at = Instant::now();
                }
            }
            News::FileSystem(folder, found, at) => {
                self.files.take(&folder, found, at, &mut self.seen);
                self.observe();
                if let Some(reading) = self.seen.get(&Signal::ImageFsAvailable) {
                    self.parts.images.saw(ImageFs { capacity: reading.capacity, available: reading.available });
                }
            }
        }
    }

    /// When signals are to be read again.
    fn schedule(&mut self) {
        let now = Instant::now();
        let (mut kernel, mut files) = (LONGEST, LONGEST_OF_FILE_SYSTEMS);
        for threshold in self.in_force() {
            let Some(reading) = self.seen.get(&threshold.signal) else {
                kernel = kernel.min(UNKNOWN_LOOK);
                continue;
            };
            let required = judge::required(&threshold, reading.capacity, false);
            let next = match judge::until_outlasted(&threshold, &self.ledger, bulkhead_sys::clock::since_boot()) {
                // It is below already, and nothing is done before its time.
                Some(left) => left.clamp(MET_LOOK.0, MET_LOOK.1),
                None => self.falls.until(threshold.signal, reading.available.saturating_sub(required)),
            };
            match Resource::of(threshold.signal) {
                Resource::Memory | Resource::Pids => kernel = kernel.min(next),
                Resource::EphemeralStorage | Resource::Inodes => files = files.min(next),
            }
        }
        // What is met already, and held, is looked at no faster than its end is.
        if self.hold != Hold::Nothing {
            (kernel, files) = (kernel.max(MET_LOOK.1), files.max(MET_LOOK.1));
        }
        let later = |at: Instant, next: Duration| if at <= now { now + next } else { at.min(now + next) };
        self.kernel_at = later(self.kernel_at, kernel);
        self.files_at = later(self.files_at, files);
    }

    /// Everything is read again before anything is acted on.
    fn read_anew(&mut self) {
        judge::begin_anew(&mut self.ledger, bulkhead_sys::clock::since_boot());
        self.kernel_at = Instant::now();
        self.files_at = self.kernel_at;
    }

    /// Looks whether what was waited for is over. True: it has just ended.
    async fn release_hold(&mut self) -> bool {
        let now = Instant::now();
        let was = self.hold.clone();
        match was.clone() {
            Hold::Nothing => {}
            Hold::Pause { until } if until > now => {}
            Hold::Pause { .. } => self.hold = Hold::Nothing,
            Hold::Pods { look, .. } if look > now => {}
            Hold::Pods { uids, until, .. } => {
                let over = match self.parts.syncd.in_flight().await {
                    Ok(in_flight) => !in_flight.iter().any(|one| uids.contains(&one.uid)),
                    // Unknown is not over.
                    Err(_) => false,
                };
                if over {
                    tracing::info!(pod_uids = ?uids, "Eviction manager: pods successfully cleaned up");
                    self.hold = Hold::Nothing;
                } else if until <= now {
                    tracing::info!(pod_uids = ?uids, "Eviction manager: timed out waiting for pods to be cleaned up");
                    self.hold = Hold::Nothing;
                } else {
                    self.hold = Hold::Pods { uids, until, look: Instant::now() + WAIT_LOOK };
                }
            }
        }
        let is_over = self.hold == Hold::Nothing && was != Hold::Nothing;
        if is_over {
            self.read_anew();
        }
        is_over
    }

    /// Reclaims, ranks, and has one pod evicted.
    async fn act(&mut self, actionable: &[Threshold]) {
        self.hold = match self.try_act(actionable).await {
            Ok(hold) => hold,
            Err(status) => failed(&status),
        };
    }

    async fn try_act(&mut self, actionable: &[Threshold]) -> Result<Hold, Status> {
        let pause = || Hold::Pause { until: Instant::now() + PAUSE };
        let Some(threshold) = actionable.first() else { return Ok(pause()) };
        let resource = Resource::of(threshold.signal);
        // What another life of this process had begun counts.
        if let Some(other) = self.in_flight().await? {
            return Ok(other);
        }
        tracing::info!(resourceName = resource.as_str(), "Eviction manager: attempting to reclaim");
        let layout = self.files.layout().unwrap_or_default();
        let reclaims = Reclaims::of(threshold.signal, layout);
        let request = ReclaimRequest { resource: resource.as_str().to_owned(), dead_containers: reclaims.containers };
        let pods = if reclaims != Reclaims::default() {
            could_reclaim(self.parts.syncd.reclaim(request).await)?;
            // After the containers: their images are unused from then on.
            let reclaimed = if reclaims.images { self.delete_unused_images().await } else { Reclaimed::default() };
            if self.is_enough().await {
                tracing::info!("Eviction manager: able to reduce resource pressure without evicting pods.");
                return Ok(pause());
            }
            if reclaimed.goes_on() {
                // Other signals are looked at, then the rest of the images goes.
                return Ok(Hold::Pause { until: Instant::now() + RETRY });
            }
            self.measured(resource).await?
        } else {
            // Nothing is reclaimed: the event need not be waited for.
            let (told, pods) = tokio::join!(self.parts.syncd.reclaim(request), self.measured(resource));
            could_reclaim(told)?;
            pods?
        };
        tracing::info!(resourceName = resource.as_str(), "Eviction manager: must evict pod(s) to reclaim");
        self.observe_age(actionable);
        self.evict_first(pods, *threshold, actionable, layout).await.map(|hold| hold.unwrap_or_else(pause))
    }

    /// What cannot be done is left: a pod goes instead.
    async fn delete_unused_images(&self) -> Reclaimed {
        match self.parts.images.delete_unused().await {
            Ok(reclaimed) => {
                let removed = reclaimed.removed;
                tracing::info!(
                    images = removed.images,
                    bytes = removed.bytes,
                    "Eviction manager: unused images are gone"
                );
                reclaimed
            }
            Err(status) => {
                let message = status.message();
                tracing::warn!(
                    "Eviction manager: unexpected error when attempting to reduce resource pressure: {message}"
                );
                Reclaimed::default()
            }
        }
    }

    /// The end of what is being evicted already, for whatever reason; `None`: nothing is, or it has been waited for.
    async fn in_flight(&self) -> Result<Option<Hold>, Status> {
        let in_flight = self.parts.syncd.in_flight().await?;
        Ok(hold::in_flight(in_flight).map(|(uids, left)| hold_for(uids, left)))
    }

    /// After something was reclaimed: no threshold is met any more, with its minimum reclaim (upstream
    /// reclaimNodeLevelResources).
    async fn is_enough(&mut self) -> bool {
        self.read_kernel().await;
        // Those that were begun before may not have seen it.
        self.end_of_readings().await;
        let folders = self.files.begin_each();
        self.begin_readings(folders);
        self.end_of_readings().await;
        !self.in_force().iter().any(|threshold| judge::is_met(threshold, &self.seen, true))
    }

    /// Pods that may go, with what they use now.
    async fn measured(&self, resource: Resource) -> Result<Vec<Ranked>, Status> {
        let scope = SampleScope { disks: resource != Resource::Memory, cgroups: false };
        let (pods, sample) = tokio::join!(self.parts.syncd.candidates(false), self.parts.stats.usage(scope));
        let (pods, sample) = (pods?, sample?);
        Ok(pods.into_iter().map(|pod| Ranked::of(pod, &sample.pods)).collect())
    }

    /// `None`: nobody could be evicted.
    async fn evict_first(
        &mut self,
        mut pods: Vec<Ranked>,
        threshold: Threshold,
        actionable: &[Threshold],
        layout: Layout,
    ) -> Result<Option<Hold>, Status> {
        if pods.is_empty() {
            tracing::warn!("Eviction manager: eviction thresholds have been met, but no pods are active to evict");
            return Ok(None);
        }
        rank::rank(&mut pods, threshold.signal, layout);
        let names: Vec<&str> = pods.iter().map(|ranked| ranked.pod.name.as_str()).collect();
        tracing::info!(pods = names.join(" "), "Eviction manager: pods ranked for eviction");
        for ranked in pods {
            if ranked.pod.critical {
                tracing::info!(pod = full_name(&ranked.pod), "Eviction manager: cannot evict a critical pod");
                continue;
            }
            let resource = Resource::of(threshold.signal);
            let message = messages::eviction(resource, &ranked, actionable, &self.seen);
            let grace = self.grace(&threshold, &ranked.pod);
            let request = self.request(&ranked.pod, EvictionKind::Threshold, threshold.signal.as_str(), grace, message);
            match self.parts.syncd.evict(request.clone()).await {
                Ok(EvictionOutcome::Accepted) => {
                    self.note(&ranked.pod, &request);
                    return Ok(Some(hold_for([request.uid].into(), hold::wait(grace))));
                }
                Ok(EvictionOutcome::RefusedBusy | EvictionOutcome::Already) => return self.in_flight().await,
                Ok(refused) => tracing::info!(pod = ranked.pod.name, ?refused, "Eviction manager: the pod stays"),
                // What is asked of this pod is not understood; of the next one it may be.
                Err(status) if status.code() == Code::InvalidArgument => {
                    let (pod, error) = (&ranked.pod.name, status.message());
                    tracing::error!(pod, error, "Eviction manager: the pod stays");
                }
                Err(status) => return Err(status),
            }
        }
        tracing::warn!("Eviction manager: unable to evict any pods from the node");
        Ok(None)
    }

    /// Seconds that the pod is given.
    fn grace(&self, threshold: &Threshold, pod: &Candidate) -> i64 {
        if threshold.is_hard() {
            return IMMEDIATE_GRACE;
        }
        let longest = i64::from(self.parts.config.kubelet.eviction_max_pod_grace_period);
        pod.grace_period_seconds.map_or(longest, |own| own.min(longest)).max(0)
    }

    fn request(
        &self,
        pod: &Candidate,
        kind: EvictionKind,
        signal: &str,
        grace_period_seconds: i64,
        message: EvictionMessage,
    ) -> EvictRequest {
        let at = bulkhead_sys::clock::since_boot().as_millis();
        let message = message.within_bounds();
        EvictRequest {
            id: format!("{:x}-{at}", self.parts.epoch.get()),
            uid: pod.uid.clone(),
            kind: kind.into(),
            signal: signal.to_owned(),
            grace_period_seconds,
            message: message.text,
            annotations: message.annotations.into_iter().collect(),
            disruption_target: kind == EvictionKind::Threshold,
        }
    }

    /// A pod is being evicted.
    fn note(&mut self, pod: &Candidate, request: &EvictRequest) {
        tracing::warn!(
            pod = full_name(pod),
            signal = request.signal,
            id = request.id,
            "Eviction manager: pod is evicted successfully"
        );
        self.parts.metrics.evictions.with_label_values(&[&request.signal]).inc();
        if self.evicted.len() == EVICTED_KEPT {
            self.evicted.remove(0);
        }
        let mut said = request.message.clone();
        messages::cut(&mut said, SHOWN_TEXT_MAX);
        let evicted = PodEvicted {
            uid: pod.uid.clone(),
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            signal: request.signal.clone(),
            message: said,
            age_seconds: 0.0,
        };
        self.evicted.push((evicted, Instant::now()));
    }

    fn observe_age(&self, actionable: &[Threshold]) {
        let now = bulkhead_sys::clock::since_boot();
        for threshold in actionable {
            if let Some(reading) = self.seen.get(&threshold.signal) {
                let age = now.saturating_sub(reading.at).as_secs_f64();
                self.parts.metrics.stats_age.with_label_values(&[threshold.signal.as_str()]).observe(age);
            }
        }
    }

    /// Evicts who exceeds a limit of its own, and waits for the end of all of them. `acts`: others would go after that, in this pass.
    async fn look_after_limits(&mut self, acts: bool) {
        let isolates = self.parts.config.kubelet.local_storage_capacity_isolation();
        if !isolates || self.is_split_against_the_gate() {
            return;
        }
        let evicted = match self.evict_for_limits().await {
            Ok(evicted) if evicted.is_empty() => return,
            Ok(evicted) => hold_for(evicted, hold::wait(IMMEDIATE_GRACE)),
            Err(status) if !acts => {
                return tracing::debug!(code = ?status.code(), "no limits are looked after: {}", status.message());
            }
            // Nobody goes in the place of one that exceeds its limit.
            Err(status) => failed(&status),
        };
        self.hold = hold::both(std::mem::replace(&mut self.hold, Hold::Nothing), evicted);
    }

    /// Evicts all pods that have used more than their own limits allow.
    async fn evict_for_limits(&mut self) -> Result<BTreeSet<String>, Status> {
        let pods = self.parts.syncd.candidates(true).await?;
        let limited: Vec<Candidate> =
            pods.into_iter().filter(|pod| !pod.critical && local_storage::has_limits(pod)).collect();
        let mut evicted = BTreeSet::new();
        if limited.is_empty() {
            return Ok(evicted);
        }
        let sample = self.parts.stats.usage(SampleScope { disks: true, cgroups: false }).await?;
        let layout = self.files.layout().unwrap_or_default();
        for pod in limited {
            let Ranked { pod, stats } = Ranked::of(pod, &sample.pods);
            let exceeded = stats.and_then(|stats| local_storage::exceeded(&pod, &stats, layout));
            let Some(Exceeded { signal, message: text }) = exceeded else { continue };
            let message = EvictionMessage { text, ..EvictionMessage::default() };
            let request = self.request(&pod, EvictionKind::LocalStorage, signal, IMMEDIATE_GRACE, message);
            match self.parts.syncd.evict(request.clone()).await {
                Ok(EvictionOutcome::Accepted) => {
                    self.note(&pod, &request);
                    evicted.insert(request.uid);
                }
                Ok(refused) => tracing::debug!(pod = pod.name, ?refused, "Eviction manager: the pod stays"),
                Err(status) => {
                    let (pod, code) = (full_name(&pod), status.code());
                    tracing::warn!(pod, ?code, "Eviction manager: pod failed to evict: {}", status.message());
                }
            }
        }
        Ok(evicted)
    }
}

/// "namespace/name", as upstream logs a pod.
fn full_name(pod: &Candidate) -> String {
    format!("{}/{}", pod.namespace, pod.name)
}

/// Nobody goes in this pass; the next one is soon.
fn failed(status: &Status) -> Hold {
    tracing::warn!(code = ?status.code(), "Eviction manager: failed to synchronize: {}", status.message());
    Hold::Pause { until: Instant::now() + RETRY }
}

/// The end of these pods, for so long.
fn hold_for(uids: BTreeSet<String>, left: Duration) -> Hold {
    let now = Instant::now();
    Hold::Pods { uids, until: now + left, look: now + WAIT_LOOK }
}

/// Limits of pods' own come first then (upstream localStorageEviction): who exceeds one goes in the place of others.
fn is_short_of_disk(actionable: &[Threshold]) -> bool {
    let is_of_disk =
        |threshold: &Threshold| matches!(Resource::of(threshold.signal), Resource::EphemeralStorage | Resource::Inodes);
    actionable.iter().any(is_of_disk)
}

/// What cannot be reclaimed, or not in time, is left: a pod goes instead.
///
/// # Errors
/// kubelet-syncd is away, so that no pod could be evicted.
fn could_reclaim(reclaimed: Result<(), Status>) -> Result<(), Status> {
    match reclaimed {
        Err(status) if status.code() == Code::Unavailable => Err(status),
        Err(status) => {
            let message = status.message();
            tracing::warn!(
                code = ?status.code(),
                "Eviction manager: unexpected error when attempting to reduce resource pressure: {message}"
            );
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}

/// What frees some of what is short, before a pod does (upstream buildSignalToNodeReclaimFuncs).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Reclaims {
    /// Dead containers.
    containers: bool,
    /// Images that nobody uses.
    images: bool,
}

impl Reclaims {
    fn of(signal: Signal, layout: Layout) -> Self {
        use Signal::{ImageFsAvailable, ImageFsInodesFree, NodeFsAvailable, NodeFsInodesFree};
        let (containers, images) = match (Resource::of(signal), layout) {
            (Resource::Memory | Resource::Pids, _) => (false, false),
            (_, Layout::Single) => (true, true),
            (_, Layout::ImageFs) => {
                let is_theirs = !matches!(signal, NodeFsAvailable | NodeFsInodesFree);
                (is_theirs, is_theirs)
            }
            (_, Layout::Split) => {
                let is_images = matches!(signal, ImageFsAvailable | ImageFsInodesFree);
                (!is_images, is_images)
            }
        };
        Reclaims { containers, images }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reclaim_that_fails_or_is_late_is_left_and_a_kubelet_syncd_that_is_away_is_waited_for() {
        for (reclaimed, goes_on) in [
            (Ok(()), true),
            (Err(Status::deadline_exceeded("kubelet-syncd does not answer")), true),
            (Err(Status::internal("x")), true),
            (Err(Status::unavailable("x")), false),
        ] {
            let told = format!("{reclaimed:?}");
            assert_eq!(could_reclaim(reclaimed).is_ok(), goes_on, "{told}");
        }
    }

    #[test]
    fn limits_of_pods_come_before_thresholds_of_disks() {
        use bulkhead_config::eviction::Limit;
        let threshold =
            |signal| Threshold { signal, limit: Limit::Fraction(0.1), grace_period: Duration::ZERO, min_reclaim: None };
        let short = Signal::ALL.into_iter().filter(|signal| is_short_of_disk(&[threshold(*signal)]));
        assert!(short.clone().all(|signal| signal.as_str().contains("fs.")));
        assert_eq!(short.count(), 6);
        assert!(is_short_of_disk(&[Signal::MemoryAvailable, Signal::NodeFsInodesFree].map(threshold)));
    }

    #[test]
    fn dead_containers_and_images_free_where_they_lie() {
        let of = |layout, what: fn(Reclaims) -> bool| {
            let signals = Signal::ALL.into_iter().filter(move |signal| what(Reclaims::of(*signal, layout)));
            signals.map(Signal::as_str).collect::<Vec<_>>()
        };
        let disks =
            ["nodefs", "imagefs", "containerfs"].map(|fs| [format!("{fs}.available"), format!("{fs}.inodesFree")]);
        let [node, images, containers] = disks;
        let all = [node.clone(), images.clone(), containers.clone()].concat();
        for (layout, for_containers, for_images) in [
            (Layout::Single, all.clone(), all),
            (
                Layout::ImageFs,
                [images.clone(), containers.clone()].concat(),
                [images.clone(), containers.clone()].concat(),
            ),
            (Layout::Split, [node, containers].concat(), images.to_vec()),
        ] {
            let sorted = |mut names: Vec<&'static str>| {
                names.sort_unstable();
                names
            };
            let mut expected = (for_containers, for_images);
            expected.0.sort();
            expected.1.sort();
            assert_eq!(sorted(of(layout, |reclaims| reclaims.containers)), expected.0, "{layout:?}");
            assert_eq!(sorted(of(layout, |reclaims| reclaims.images)), expected.1, "{layout:?}");
        }
    }
}
