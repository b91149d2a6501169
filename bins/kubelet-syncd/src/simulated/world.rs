//! The process that looks after the one pod of the simulated node: what the main loop, its work and the API server do,
//! one after another, with the real decisions in between.

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::PodStatus;
use kubelet_model::v1::Pod;
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::machine::{Fault, Reach};
use crate::desired;
use crate::pod_workers::{Action, Lifecycle, Outcome, PodView, Retry, UpdateType, Work, WorkKind, Workers, delay};
use kubelet_model::fixtures::{FakeObjects, UID, uid};
use kubelet_model::node_facts::{HostFacts, NodeFacts};
use kubelet_model::pod::model::{RunState, RuntimePod};
use kubelet_model::pod::restart::History;
use kubelet_model::pod::spec::PodIdentity;
use kubelet_probes::prober::results::ProbeResults;
use kubelet_runtime::runtime::backoff::{BackOffStore, CrashLoopBackOff};
use kubelet_runtime::runtime::fake_runtime::{Fake, kill_pod};
use kubelet_runtime::runtime::gc::GcPolicy;
use kubelet_runtime::runtime::resize::NoResizer;
use kubelet_runtime::runtime::result::SyncResult;
use kubelet_runtime::runtime::run_options::NoContainerManager;
use kubelet_runtime::runtime::sync::{RuntimeManager, SyncContext};
use kubelet_runtime::status::next::{Observation, Stage, is_over, next};
use kubelet_runtime::status::pod_status::StatusInput;
use kubelet_runtime::status::reason_cache::ReasonCache;

const SYNC: Duration = Duration::from_secs(60);
/// So much work without any time passing is a circle.
const CIRCLE: usize = 60;

#[derive(Debug, Clone, Default)]
struct Kept(Arc<Mutex<Vec<u8>>>);

impl BackOffStore for Kept {
    fn save(&self, json: &[u8]) {
        *self.0.lock() = json.to_vec();
    }
}

/// A clock of its own for each life of the process, which runs as fast as anybody waits for it.
struct Clockwork(tokio::runtime::Runtime);

impl Clockwork {
    fn new() -> Self {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        Clockwork(builder.enable_time().start_paused(true).build().unwrap())
    }

    /// None: whoever does it has died over it.
    fn finish<T>(&self, what: impl Future<Output = T>) -> Option<T> {
        let never = tokio::time::Duration::from_secs(86_400);
        self.0.block_on(async { tokio::time::timeout(never, what).await.ok() })
    }
}

type Executor = RuntimeManager<Reach, Fake, Fake>;

pub struct World {
    pub reach: Reach,
    /// As its source has it, with the API server's status.
    pub pod: Pod,
    /// A source names it.
    pub wanted: bool,
    pub workers: Workers<Arc<Pod>>,
    pub told: Option<PodStatus>,
    pub probes: ProbeResults,
    executor: Executor,
    kept: Kept,
    failures: ReasonCache,
    work: Option<Work<Arc<Pod>>>,
    /// Seconds at which the pod is looked at again.
    due: Option<u64>,
    facts: NodeFacts,
    base: Instant,
    fake: Fake,
    in_sync: bool,
    clockwork: Clockwork,
}

impl World {
    pub fn new(pod: Pod, base: Instant) -> Self {
        let (reach, kept, fake) = (Reach::default(), Kept::default(), Fake::default());
        let mut facts = NodeFacts::new(HostFacts::default());
        facts.resolv_conf = PathBuf::new();
        let executor = executor(&reach, &fake, &kept);
        reach.machine().pod = Arc::new(pod.clone());
        {
            let mut machine = reach.machine();
            machine.runtime =
                RuntimePod { uid: Some(uid()), namespace: "ns".into(), name: "p".into(), ..Default::default() };
        }
        let mut world = World {
            reach,
            pod,
            wanted: true,
            workers: Workers::default(),
            told: None,
            probes: ProbeResults::default(),
            executor,
            kept,
            failures: ReasonCache::default(),
            work: None,
            due: None,
            facts,
            base,
            fake,
            in_sync: false,
            clockwork: Clockwork::new(),
        };
        world.deliver(UpdateType::Create);
        world
    }

    fn now(&self) -> Instant {
        self.base + Duration::from_secs(self.reach.machine().seconds)
    }

    /// The source has the pod like this now.
    pub fn changed(&mut self, change: impl FnOnce(&mut Pod)) {
        change(&mut self.pod);
        self.reach.machine().pod = Arc::new(self.pod.clone());
        self.deliver(UpdateType::Update);
    }

    pub fn deliver(&mut self, kind: UpdateType) {
        if !self.wanted && kind != UpdateType::Kill {
            return;
        }
        let runtime = self.reach.machine().runtime.clone();
        let pod = Arc::new(self.pod.clone());
        let seen = PodView {
            facts: desired::facts(&pod),
            pod,
            runtime_ended: !runtime.has_ready_sandbox() && runtime.running().next().is_none(),
        };
        let actions = self.workers.update(&uid(), kind, seen, None, self.now());
        self.apply(actions);
    }

    /// No source names the pod any more.
    pub fn remove(&mut self) {
        if std::mem::take(&mut self.wanted) {
            self.deliver(UpdateType::Kill);
        }
    }

    pub fn housekeep(&mut self) {
        let wanted: HashSet<_> = self.wanted.then(uid).into_iter().collect();
        let now = self.now();
        let (_, actions) = self.workers.sync_known(&wanted, now);
        self.apply(actions);
        if !self.wanted && self.workers.lifecycle(&uid()).is_none() {
            let ready = self.reach.machine().runtime.has_ready_sandbox();
            if ready || self.reach.machine().living().next().is_some() {
                let actions = self.workers.kill_runtime_pod(&uid(), "p_ns", 1, now);
                self.apply(actions);
            }
        }
    }

    fn apply(&mut self, actions: Vec<Action<Arc<Pod>>>) {
        for action in actions {
            match action {
                Action::Run { work, .. } => {
                    assert!(self.work.replace(*work).is_none(), "two pieces of work at once");
                    self.due = None;
                }
                Action::Requeue { retry, .. } => {
                    let seconds = self.reach.machine().seconds;
                    self.due = Some(seconds + delay(retry, SYNC, 0.5).as_secs());
                }
                Action::Cancel { .. } | Action::Finished { .. } => {}
            }
        }
    }

    /// Another life of the process: all that it has is the API server's pod, the runtime and what it saved.
    pub fn restart(&mut self) {
        self.clockwork = Clockwork::new();
        self.executor = executor(&self.reach, &self.fake, &self.kept);
        self.workers = Workers::default();
        self.told = None;
        self.failures = ReasonCache::default();
        self.probes = ProbeResults::default();
        self.work = None;
        self.due = None;
        self.in_sync = false;
        // What was not told to anybody is forgotten.
        self.reach.machine().over = self.pod.status.as_ref().is_some_and(is_over);
        self.deliver(UpdateType::Create);
    }

    /// What was told gets to the API server, which is not told of an end while something runs.
    pub fn publish(&mut self) {
        let Some(told) = self.told.clone() else { return };
        let mut status = told;
        let before = self.pod.status.clone().unwrap_or_default();
        if is_over(&status) && self.reach.machine().living().next().is_some() {
            status.phase = before.phase.clone().or(Some("Pending".to_owned()));
        }
        self.compare(&before, &status, "published");
        self.pod.status = Some(status);
    }

    fn compare(&self, before: &PodStatus, after: &PodStatus, how: &str) {
        let mut broken = Vec::new();
        if is_over(before) && before.phase != after.phase {
            broken.push(format!("{how}: phase {:?} became {:?}", before.phase, after.phase));
        }
        let all = |s: &PodStatus| {
            let lists = [&s.init_container_statuses, &s.container_statuses, &s.ephemeral_container_statuses];
            lists.into_iter().flatten().flatten().map(|c| (c.name.clone(), c.restart_count)).collect::<BTreeMap<_, _>>()
        };
        let counts = all(after);
        for (name, count) in all(before) {
            if counts.get(&name).is_some_and(|now| *now < count) {
                broken.push(format!("{how}: restart count of {name} fell from {count} to {}", counts[&name]));
            }
        }
        self.reach.machine().broken.extend(broken);
    }

    fn tell(&mut self, runtime: &RuntimePod, stage: Stage) -> PodStatus {
        let failures = self.failures.failures().clone();
        let pod = self.pod.clone();
        let now = jiff::Timestamp::try_from(self.reach.machine().now()).unwrap();
        let input = StatusInput {
            pod: &pod,
            runtime,
            old: self.told.as_ref(),
            start_failures: &failures,
            messages: &BTreeMap::new(),
            probes: &self.probes,
            facts: &self.facts,
            handler: None,
            actuated: None,
            resize: &[],
            terminal: stage != Stage::Alive,
            termination: None,
            now,
        };
        let look = Observation { last: self.told.as_ref(), stage, in_sync: self.in_sync, newer_sandbox: false };
        let (status, _) = next(&input, look);
        if let Some(before) = self.told.as_ref().or(pod.status.as_ref()) {
            self.compare(before, &status, "told");
        }
        self.told = Some(status.clone());
        status
    }

    fn looks_of_now(&mut self) -> Vec<RuntimePod> {
        std::mem::take(&mut self.reach.machine().seen)
    }

    /// Does the work in hand. False: there was none.
    pub fn work(&mut self) -> bool {
        let Some(work) = self.work.take() else { return false };
        self.looks_of_now();
        let kind = work.kind;
        let runtime = self.reach.machine().runtime.clone();
        let outcome = match (kind, work.pod.clone()) {
            (WorkKind::Sync, Some(pod)) => self.sync(&pod, &runtime),
            (WorkKind::Terminating, Some(pod)) => {
                self.reach.machine().over = true;
                self.tell(&runtime, Stage::Alive);
                self.end(Some(&pod), &runtime, work.termination.grace_seconds)
            }
            (WorkKind::Terminated, _) => {
                self.tell(&runtime, Stage::Gone);
                if self.reach.machine().living().next().is_some() {
                    self.reach.machine().broken.push("something runs after the pod's end".to_owned());
                }
                Some(Outcome::Done)
            }
            (WorkKind::TerminatingRuntime, _) | (_, None) => self.end(None, &runtime, work.termination.grace_seconds),
        };
        match outcome {
            Some(outcome) => {
                let now = self.now();
                let actions = self.workers.done(&uid(), kind, outcome, now);
                self.apply(actions);
            }
            None => self.restart(),
        }
        true
    }

    /// None: the process died meanwhile.
    fn sync(&mut self, pod: &Arc<Pod>, runtime: &RuntimePod) -> Option<Outcome> {
        let status = self.tell(runtime, Stage::Alive);
        if is_over(&status) {
            self.reach.machine().over = true;
            return Some(Outcome::Terminal);
        }
        let result = self.bring(pod, runtime);
        self.in_sync = true;
        for seen in self.looks_of_now() {
            self.tell(&seen, Stage::Alive);
        }
        self.in_sync = false;
        let result = result?;
        self.failures.update(&result);
        let worked = result.did_work() && result.is_ok();
        let now = self.reach.machine().runtime.clone();
        self.tell(&now, Stage::Alive);
        if worked {
            // The look that follows is news.
            self.deliver(UpdateType::Sync);
        }
        Some(match self.retry(&result) {
            None if result.is_reset() => Outcome::Again,
            None => Outcome::Done,
            Some(retry) => Outcome::Failed(retry),
        })
    }

    fn bring(&mut self, pod: &Arc<Pod>, runtime: &RuntimePod) -> Option<SyncResult> {
        self.fake.log().highest_log = self.reach.machine().highest_log();
        let past = History::of(pod, runtime, self.told.as_ref());
        let (volumes, objects, cancel) = (BTreeMap::new(), FakeObjects::default(), CancellationToken::new());
        let context = SyncContext {
            facts: &self.facts,
            cgroup_parent: &format!("/kubepods/pod{UID}"),
            volumes: &volumes,
            objects: &objects,
            probes: &self.probes,
            past: &past,
            cancel: &cancel,
            resizer: &NoResizer,
            container_manager: &NoContainerManager,
            on_sandbox_ready: &|_, _| {},
        };
        let identity = PodIdentity::of(pod).unwrap();
        self.clockwork.finish(self.executor.sync_pod(pod, &identity, runtime, &context))
    }

    fn retry(&self, result: &SyncResult) -> Option<Retry> {
        if result.is_ok() {
            return None;
        }
        if result.is_transient() {
            return Some(Retry::PeerAway);
        }
        let now = self.reach.machine().now();
        let left = result.back_off_until().map(|until| until.duration_since(now).unwrap_or_default());
        Some(Retry::after_failure(left, result.only_restarts_wait()))
    }

    fn end(&mut self, pod: Option<&Arc<Pod>>, runtime: &RuntimePod, grace: u64) -> Option<Outcome> {
        let grace = i64::try_from(grace).unwrap();
        let killed = self.clockwork.finish(kill_pod(&self.executor, pod.map(|p| &**p), runtime, Some(grace)))?;
        let after = self.reach.machine().runtime.clone();
        if !killed.is_ok() || after.running().next().is_some() {
            return Some(Outcome::Failed(Retry::Failed { back_off: None }));
        }
        if pod.is_some() {
            self.tell(&after, Stage::Stopped);
        }
        Some(Outcome::Done)
    }

    /// Works until nothing is left to do at this time.
    pub fn settle(&mut self) {
        for _ in 0..CIRCLE {
            let seconds = self.reach.machine().seconds;
            if self.work() {
                continue;
            }
            if self.due.is_none_or(|due| due > seconds) {
                return;
            }
            self.due = None;
            if self.wanted {
                self.deliver(UpdateType::Sync);
            } else {
                let now = self.now();
                let actions = self.workers.renotify(&uid(), now);
                self.apply(actions);
            }
        }
        let picture = self.picture();
        self.reach.machine().broken.push(format!("goes round in a circle:\n{picture}"));
    }

    /// All that matters, for people.
    pub fn picture(&self) -> String {
        let machine = self.reach.machine();
        let sandboxes = machine.runtime.sandboxes.iter().map(|s| format!("{} {} {:?}", s.id, s.attempt, s.state));
        let containers = machine.runtime.containers.iter().map(|c| {
            format!(
                "{} {} in {} {:?} {} {} #{}",
                c.name, c.id, c.sandbox_id, c.state, c.exit_code, c.reason, c.restart_count
            )
        });
        let lines: Vec<String> = sandboxes.chain(containers).collect();
        let told = serde_json::to_string(&self.told).unwrap();
        format!(
            "{:?} due {:?} at {}\n{}\n{told}",
            self.workers.lifecycle(&uid()),
            self.due,
            machine.seconds,
            lines.join("\n")
        )
    }

    /// The runtime has changed by itself.
    pub fn event(&mut self) {
        let lifecycle = self.workers.lifecycle(&uid());
        if self.wanted && lifecycle == Some(Lifecycle::Sync) {
            let runtime = self.reach.machine().runtime.clone();
            self.tell(&runtime, Stage::Alive);
        }
        self.deliver(UpdateType::Sync);
    }

    /// Removes dead containers beyond the newest of each.
    pub fn collect(&mut self) {
        let runtime = self.reach.machine().runtime.clone();
        let dead: Vec<_> = runtime.containers.iter().filter(|c| c.state == RunState::Exited).cloned().collect();
        for one in dead {
            self.clockwork.finish(self.executor.remove_surplus(&runtime, &one.id, GcPolicy::default(), false));
        }
        self.looks_of_now();
    }

    pub fn fails_after(&mut self, calls: usize, fault: Fault) {
        self.reach.machine().fuse = Some((calls, fault));
    }
}

fn executor(reach: &Reach, fake: &Fake, kept: &Kept) -> Executor {
    let mut back_off = CrashLoopBackOff::default();
    back_off.restore(&kept.0.lock());
    let clock = reach.clone();
    let events = Arc::new(fake.clone());
    RuntimeManager::new(reach.clone(), fake.clone(), fake.clone(), events, back_off, Arc::new(kept.clone()))
        .with_clock(Arc::new(move || clock.machine().now()))
}
