//! `kubelet.evictiond.v1.Stats`: one sample answers everyone who takes one of its age.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bulkhead_ipc::evictiond::stats_server::Stats;
use bulkhead_ipc::evictiond::{
    CgroupPage, CgroupsPart, CgroupsRequest, SummaryPart, SummaryRequest, cgroups_part, summary_part,
};
use bulkhead_ipc::syncd::RuntimePod;
use tokio::sync::Mutex;
use tonic::{Request, Response, Status};

use crate::disk_figures::Disks;
use crate::disk_reader::{DISK_PATIENCE, DiskReader};
use crate::groupless;
use crate::known_pods;
use crate::metrics::Metrics;
use crate::persistent::PersistentVolumes;
use crate::pods::{NodeWord, Pod, PodContainer, PodSource};
use crate::question::{self, Question};
use crate::rates::Rates;
use crate::runtime::{RuntimeDisks, RuntimeSource};
use crate::runtime_pods::{self, PodFigures};
use crate::sample::{Sample, SampleScope, Sampler};
use crate::traced::Traced;
use crate::walker::Walker;

/// How old a sample may be where the caller does not say.
pub const DEFAULT_AGE: Duration = Duration::from_secs(10);
/// Time between the two readings of the CPU counters that a rate is of, where no earlier sample has the first.
const RATE_GAP: Duration = Duration::from_millis(250);
/// How long a sample waits for a newer answer of the runtime where it can do with the last one.
const NEWER_PATIENCE: Duration = question::OVERDUE_PATIENCE;
/// How long a sample waits for an answer of the runtime that it needs: for evictions what the runtime says of disks, for statistics
/// figures that the runtime alone has (of containers without a cgroup, and of pods with gate PodAndContainerStatsFromCRI).
const RUNTIME_PATIENCE: Duration = Duration::from_secs(4);
/// After this the runtime is asked of disks again. It measures each container for an answer, which is not cheap, and renews its own
/// figures of disks every ten seconds at best.
const RUNTIME_KEEP: Duration = Duration::from_secs(20);
/// The same where it did not answer, or its answer lacks a container that runs.
const RUNTIME_RETRY: Duration = Duration::from_secs(5);
/// The same while containers without a cgroup run: their figures are in no other place, so each usual scrape shows new ones.
const GROUPLESS_KEEP: Duration = Duration::from_secs(5);
/// Control groups in one message of `Cgroups`. Most have 1 KB, one with as many devices as are told 12 KB: a message stays below
/// `bulkhead_ipc::MAX_MESSAGE_BYTES`.
const PAGE: usize = 16;

/// What one sample takes over from those before it.
#[derive(Debug, Default)]
struct State {
    /// The newest sample of [`Purpose::Statistics`], and when it was ready.
    last: Option<(Instant, Arc<Sample>)>,
    /// The pods of the newest sample: those that kubelet-syncd listed, and those that run and that it does not know of yet. `None`:
    /// it has listed none so far.
    pods: Option<Arc<Vec<Pod>>>,
    /// kubelet-syncd has once listed the pods of all sources.
    pods_known: bool,
    /// The folder in which the runtime keeps images, as kubelet-syncd told it last.
    image_fs: Option<String>,
    /// The image of sandboxes that the sampler was told.
    sandbox_image: Option<String>,
    /// The runtime's last answer of disks and containers.
    runtime_disks: Option<Arc<RuntimeDisks>>,
    disks_question: Question<Option<RuntimeDisks>>,
    /// Ids of the containers without a cgroup that the runtime told of for the newest sample.
    groupless: HashSet<String>,
    /// Their CPU rates.
    groupless_rates: Rates,
    /// The runtime's last figures of pods, where it has been asked for them.
    runtime_pods: Option<Arc<Vec<RuntimePod>>>,
    pods_question: Question<PodFigures>,
    traced: Traced,
}

/// What was measured and asked for one sample, each by itself.
struct Parts {
    /// By the kernel's files.
    sample: Sample,
    disks: Disks,
    pod_figures: PodFigures,
}

impl State {
    fn listed(&self) -> &[Pod] {
        self.pods.as_deref().map_or(&[], Vec::as_slice)
    }

    /// Whether the runtime is to be asked of disks again.
    fn disks_are_due(&self) -> bool {
        let knows_all = self.runtime_disks.as_ref().is_some_and(|told| {
            let mut running = self.listed().iter().flat_map(|pod| &pod.containers);
            running.all(|container| told.layers.contains_key(&container.id))
        });
        let keep = if knows_all { RUNTIME_KEEP } else { RUNTIME_RETRY };
        self.disks_question.age().is_none_or(|age| age >= keep)
    }

    /// The whole sample.
    fn merge(&mut self, parts: Parts) -> Sample {
        let Parts { mut sample, mut disks, pod_figures } = parts;
        sample.node.pods_known &= self.pods_known;
        sample.machine.pods_known &= self.pods_known;
        // Where the runtime tells figures of pods, they say which containers there are.
        let all_stay = pod_figures != PodFigures::OurOwn;
        let told = self.runtime_disks.as_deref();
        // For who shows no pods the runtime was not asked: an older answer does not say who runs now.
        if !sample.holds.is_for_cgroups_alone() {
            self.groupless =
                groupless::fill(&mut sample.pods, &sample.groupless, told, &mut self.groupless_rates, all_stay);
        }
        // It may have been asked again for containers without a cgroup.
        disks.runtime.clone_from(&self.runtime_disks);
        disks.fill(&mut sample, self.listed());
        self.put_figures(&mut sample, pod_figures);
        sample
    }

    /// Puts the runtime's figures of pods in the place of our own, where it is asked for them.
    fn put_figures(&mut self, sample: &mut Sample, figures: PodFigures) {
        match figures {
            PodFigures::OurOwn => return,
            PodFigures::Told(told) => self.runtime_pods = Some(told),
            // The last figures stay right for the time that stands beside each of them.
            PodFigures::Unknown => {}
        }
        match &self.runtime_pods {
            Some(told) => {
                sample.pods = runtime_pods::replace(std::mem::take(&mut sample.pods), self.listed(), told);
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
    /// How long a sample waits for what the runtime says of disks, once that is due. `is_known`: there is an earlier answer.
    fn disks_patience(self, is_known: bool) -> Duration {
        match (self, is_known) {
            (Purpose::Eviction, _) => RUNTIME_PATIENCE,
            (Purpose::Statistics, true) => NEWER_PATIENCE,
            (Purpose::Statistics, false) => DISK_PATIENCE,
        }
    }

    /// How long a sample waits for what the runtime says of containers without a cgroup. Their pods mostly have one, and pods are
    /// evicted by what their cgroup says.
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
    disks: DiskReader,
    metrics: Metrics,
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
        StatsService {
            state: Mutex::default(),
            disks: DiskReader::new(sampler.paths().instance.clone(), walker, metrics.clone(), volume_period),
            sampler: Arc::new(parking_lot::Mutex::new(sampler)),
            pods,
            runtime: Arc::new(runtime),
            metrics,
        }
    }

    /// Shows volumes of these, too.
    pub fn with_persistent(mut self, persistent: PersistentVolumes) -> Self {
        self.disks = self.disks.with_persistent(persistent);
        self
    }

    /// A new sample to evict pods by: of the pods that there are now, and without rates, so that it waits for no second reading of the
    /// counters. Nobody else is given it.
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
        let spans = state.traced.begin(state.pods.as_deref().map_or(&[], Vec::as_slice));
        let parts = self.measure(state, wanted, purpose).await?;
        let has_groupless = !parts.sample.groupless.is_empty() && parts.pod_figures == PodFigures::OurOwn;
        if has_groupless && !wanted.is_for_cgroups_alone() {
            self.ask_of_groupless(state, purpose).await;
        }
        let sample = state.merge(parts);
        drop(spans);
        self.metrics.pods.set(i64::try_from(sample.pods.len()).unwrap_or(i64::MAX));
        if wanted.disks {
            self.metrics.set_log_usage(&sample.pods);
        }
        Ok(sample)
    }

    /// Measures and asks for all that is wanted. The kernel's files are read while the runtime measures each container, which takes it
    /// longer the more there are.
    async fn measure(&self, state: &mut State, wanted: SampleScope, purpose: Purpose) -> Result<Parts, Status> {
        let pods = state.pods.clone();
        let listed = pods.as_deref().map_or(&[][..], Vec::as_slice);
        let is_due = state.disks_are_due();
        let State { runtime_disks, disks_question, pods_question, image_fs, .. } = state;
        let runtime = async {
            let patience = purpose.disks_patience(runtime_disks.is_some());
            self.ask_of_disks(runtime_disks, disks_question, is_due, patience).await;
            runtime_disks.clone()
        };
        let (sample, disks, pod_figures) = tokio::join!(
            self.read_kernel(pods.clone(), wanted, purpose),
            self.disks.read(listed, image_fs.clone(), runtime, wanted),
            self.ask_of_pods(pods_question, purpose),
        );
        Ok(Parts { sample: sample?, disks, pod_figures })
    }

    /// Renews what the runtime says of disks and containers. Without an answer the last one stands.
    async fn ask_of_disks(
        &self,
        last: &mut Option<Arc<RuntimeDisks>>,
        question: &mut Question<Option<RuntimeDisks>>,
        is_due: bool,
        patience: Duration,
    ) {
        let begin = || {
            let runtime = self.runtime.clone();
            is_due.then_some(async move { runtime.disks().await })
        };
        // It is put down at once: the caller may go away before the rest has been measured.
        if let Some(newer) = question.answer(begin, patience).await.flatten() {
            *last = Some(Arc::new(newer));
        }
    }

    /// The same where containers without a cgroup run, of which nobody else tells.
    async fn ask_of_groupless(&self, state: &mut State, purpose: Purpose) {
        let State { runtime_disks, disks_question, .. } = state;
        if disks_question.age().is_none_or(|age| age >= GROUPLESS_KEEP) {
            self.ask_of_disks(runtime_disks, disks_question, true, purpose.groupless_patience()).await;
        }
    }

    /// What the runtime says of pods, where it is asked for that. Pods are evicted by our own figures.
    async fn ask_of_pods(&self, question: &mut Question<PodFigures>, purpose: Purpose) -> PodFigures {
        let begin = || {
            let runtime = self.runtime.clone();
            Some(async move { runtime.pod_figures().await })
        };
        match purpose {
            Purpose::Eviction => PodFigures::OurOwn,
            Purpose::Statistics => question.answer(begin, RUNTIME_PATIENCE).await.unwrap_or(PodFigures::Unknown),
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
    async fn read_kernel(
        &self,
        pods: Option<Arc<Vec<Pod>>>,
        wanted: SampleScope,
        purpose: Purpose,
    ) -> Result<Sample, Status> {
        let timer = self.metrics.sample_seconds.start_timer();
        let read = move |sampler: &mut Sampler| sampler.sample(pods.as_deref().map(Vec::as_slice), wanted);
        let mut sample = self.with_sampler(read).await?;
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

    /// Works with the sampler, which reads files, on the blocking pool.
    async fn with_sampler<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Sampler) -> T + Send + 'static,
    ) -> Result<T, Status> {
        let sampler = self.sampler.clone();
        tokio::task::spawn_blocking(move || work(&mut sampler.lock()))
            .await
            .map_err(|error| Status::internal(format!("measuring was broken off: {error}")))
    }
}

fn age(milliseconds: u32) -> Duration {
    if milliseconds == 0 { DEFAULT_AGE } else { Duration::from_millis(milliseconds.into()) }
}

type PartStream<T> = tokio_stream::Iter<std::vec::IntoIter<Result<T, Status>>>;

#[tonic::async_trait]
impl<P: PodSource, R: RuntimeSource> Stats for StatsService<P, R> {
    type SummaryStream = PartStream<SummaryPart>;

    async fn summary(&self, request: Request<SummaryRequest>) -> Result<Response<Self::SummaryStream>, Status> {
        let request = request.into_inner();
        let wanted = SampleScope { disks: !request.cpu_and_memory_only, cgroups: false };
        let sample = self.sample(age(request.max_age_ms), wanted).await?;
        let node = std::iter::once(summary_part::Part::Node(sample.node.clone()));
        let pods = sample.pods.iter().cloned().map(summary_part::Part::Pod);
        let parts: Vec<_> = node.chain(pods).map(|part| Ok(SummaryPart { part: Some(part) })).collect();
        Ok(Response::new(tokio_stream::iter(parts)))
    }

    type CgroupsStream = PartStream<CgroupsPart>;

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
#[path = "service_tests.rs"]
mod tests;
