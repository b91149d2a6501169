//! What is true: what the runtime has and really runs, what kubelet-volnetd has made, which manifests there are, and the story of it
//! all. Models of the peers change it, and each change is looked at by the [`crate::checks`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bulkhead_simulation_kernel as kernel;
use parking_lot::{Mutex, MutexGuard};

use crate::back_off::BackOff;
use crate::claims::Claims;
use crate::claims_schedule::Dra;
use crate::coverage::Coverage;
use crate::dice::Dice;
use crate::hooks::HookRuns;
use crate::logs::Logs;
use crate::memory::{Memory, OUT_OF_MEMORY};
use crate::pressure::Pressure;
use crate::resources::Resources;
use crate::root_dir::RootDir;
use crate::schedule::{Behaviour, CALM, CallFault, Peer, ProbeKind, Program, SETTLING, Shape};
use crate::sizes::PodSizes;
use crate::versions::{Age, Record};
use crate::volumes::Volumes;

/// How long a start takes to be noted, nanoseconds: of a container that ends sooner the end is before the start.
const ANSWERING: i64 = 2_000_000;

/// A sandbox of the runtime.
#[derive(Debug, Clone)]
pub struct Sandbox {
    pub id: String,
    pub config: bulkhead_cri::v1::PodSandboxConfig,
    pub ready: bool,
    pub created: i64,
    pub ip: String,
    /// Init containers that have succeeded in it.
    pub done: BTreeSet<String>,
    /// Containers of it that have run.
    pub ran: BTreeSet<String>,
    /// Names whose startup probe has passed in some instance.
    pub passed: BTreeSet<String>,
    /// Which life of kubelet-syncd has made it.
    pub life: u64,
    /// It was made when nobody waited for that any more.
    pub is_ghost: bool,
}

/// What a container does now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Created,
    Running,
    Exited,
}

/// A container of the runtime.
#[derive(Debug, Clone)]
pub struct Container {
    pub id: String,
    pub sandbox: String,
    pub config: bulkhead_cri::v1::ContainerConfig,
    pub behaviour: Behaviour,
    pub state: State,
    pub created: i64,
    pub started: i64,
    pub finished: i64,
    pub exit_code: i32,
    pub reason: String,
    /// CPUs that it may run on, as it was told last; empty: it was told none.
    pub cpus: String,
    /// It was started when nobody waited for that any more.
    pub is_ghost: bool,
    /// kubelet-syncd has had it stopped.
    pub is_stopped: bool,
    /// It has asked for that.
    pub is_to_stop: bool,
    /// When it was started, as the simulation counts.
    pub began: Duration,
    /// What its probes came to.
    pub probed: BTreeMap<ProbeKind, Probed>,
}

/// What one probe of a container came to so far.
#[derive(Debug, Clone, Copy, Default)]
pub struct Probed {
    /// Answers in a row that kubelet-syncd may have taken for failures.
    pub failures: u64,
    /// It has passed at least once, whether the answer arrived or not.
    pub has_passed: bool,
}

impl Container {
    pub fn name(&self) -> &str {
        self.config.metadata.as_ref().map_or("", |metadata| metadata.name.as_str())
    }

    pub fn restart_count(&self) -> u32 {
        let count = self.config.annotations.get("io.kubernetes.container.restartCount");
        count.and_then(|count| count.parse().ok()).unwrap_or(0)
    }

    pub fn uid(&self) -> &str {
        self.config.labels.get("io.kubernetes.pod.uid").map_or("", String::as_str)
    }
}

/// A manifest, and since when it is as it is.
#[derive(Debug, Clone)]
pub struct Wanted {
    pub shape: Shape,
    /// Counts everything that is written, so that each content is there once.
    pub version: u64,
    pub since: Duration,
    /// Its uid, where it is the API server's.
    pub uid: Option<String>,
    /// Its image was changed since, so its containers may be stopped.
    pub is_edited: bool,
}

/// A pod as the API server has it, or had it last.
#[derive(Debug, Clone, Default)]
pub struct Object {
    pub name: String,
    /// What it was made of.
    pub version: Option<u64>,
    /// Of a static pod.
    pub is_mirror: bool,
    pub phase: String,
    pub reason: String,
    pub start_time: String,
    pub counts: BTreeMap<String, u32>,
    /// Numbers of the containers' ids; the model's grow.
    pub ids: BTreeMap<String, u64>,
    /// Ids of containers that were said to have ended.
    pub ended: BTreeSet<String>,
    pub running: BTreeSet<String>,
    /// Somebody else's condition is in it.
    pub has_foreign: bool,
    pub is_deleting: bool,
    pub is_gone: bool,
    /// When it was last changed.
    pub changed: Duration,
}

/// What is known of the pods that were ever asked for.
#[derive(Debug, Clone, Default)]
pub struct Past {
    pub shape: Option<Shape>,
    /// Highest restart count of each container that was started.
    pub counts: BTreeMap<String, u32>,
    /// Containers that have ended, and the code that was the last.
    pub ended: BTreeMap<String, i32>,
    /// Containers of which one was made when nobody waited for it any more. The record made last is then not that of the last start,
    /// and upstream goes by the former: it counts restarts on from it (`kuberuntime_container.go` startContainer) and starts anew where
    /// it says "created" (`container/helpers.go` ShouldContainerBeRestarted). And those that had succeeded when the stop for their
    /// restart arrived.
    pub unsure: BTreeSet<String>,
}

/// What was last told of a pod.
#[derive(Debug, Clone, Default)]
pub struct Told {
    pub phase: String,
    pub counts: BTreeMap<String, u32>,
    pub worker: i32,
    pub running: BTreeSet<String>,
    pub ready: BTreeSet<String>,
    pub may_delete: bool,
    /// Containers may still run: what ends the pod is withheld from the API server until it is false.
    pub may_run: bool,
    pub reason: String,
    pub message: String,
    /// Of a static pod: what it was made of.
    pub version: Option<u64>,
}

/// How the runtime and its events are at a time.
#[derive(Debug, Clone, Copy, Default)]
pub struct Weather {
    pub lost_until: Duration,
    pub doubled_until: Duration,
    pub late_until: Duration,
    pub late_by: u64,
    pub slow_until: Duration,
    pub slow_by: u64,
}

/// What the run is to do with its processes once the turn is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    KillSyncd { down: u64 },
    RestartRuntime { down: u64 },
    RestartVolnetd { down: u64 },
    KillStatusd { down: u64 },
    KillDriver { down: u64 },
    KillPlugin { down: u64 },
    KillEvictiond { down: u64 },
    KillDra { driver: Dra, down: u64 },
    RestartApi { down: u64 },
}

/// A listener of the runtime's events.
pub type Listener = tokio::sync::mpsc::UnboundedSender<Result<bulkhead_cri::v1::ContainerEventResponse, tonic::Status>>;

#[derive(Debug)]
pub struct World {
    pub dice: Dice,
    pub sandboxes: BTreeMap<String, Sandbox>,
    pub containers: BTreeMap<String, Container>,
    pub listeners: Vec<Listener>,
    pub runtime_is_away: bool,
    /// Events of the runtime that are to be told once the call that made them is done.
    pub happened: Vec<bulkhead_cri::v1::ContainerEventResponse>,
    /// Tells who waits for the end of a container that one has ended.
    pub exits: tokio::sync::watch::Sender<()>,
    pub watchers: Vec<tokio::sync::mpsc::UnboundedSender<Result<bulkhead_ipc::volnetd::WatchEvent, tonic::Status>>>,
    pub images: BTreeSet<String>,
    /// kubelet-volnetd's.
    pub root_dir: RootDir,
    /// For its workers.
    pub workers: Dice,
    pub cgroups: BTreeSet<String>,
    /// Folders of logs, by uid, with the highest number of a log of each container.
    pub logs: BTreeMap<String, BTreeMap<String, u32>>,
    /// Files of the logs of containers.
    pub log_files: Logs,
    pub volnetd_epoch: u64,
    /// Claims' volumes.
    pub volumes: Volumes,
    /// Devices and CPUs that containers have for themselves.
    pub resources: Resources,
    /// Claims of drivers' devices.
    pub claims: Claims,
    /// What the node is short of.
    pub pressure: Pressure,
    /// What the kernel has killed for want of memory, and how containers have ended.
    pub memory: Memory,
    pub back_off: BackOff,
    /// CPU and memory that containers are given.
    pub sizes: PodSizes,
    /// Hooks of containers.
    pub hooks: HookRuns,
    /// Processes that are of another version than the source.
    pub ages: Vec<(Program, Age)>,
    /// What the version before has, where processes of it come up.
    pub record: Option<Arc<Record>>,
    /// The node has a CSI driver.
    pub has_driver: bool,
    pub wanted: BTreeMap<String, Wanted>,
    /// By uid.
    pub past: BTreeMap<String, Past>,
    pub told: BTreeMap<String, Told>,
    /// The node has an API server.
    pub has_api: bool,
    /// Pods of the API server, by uid.
    pub objects: BTreeMap<String, Object>,
    /// Pods that somebody has asked to be deleted.
    pub asked: BTreeSet<String>,
    /// Those of them whose objects went at once.
    pub forced: BTreeSet<String>,
    /// kubelet-statusd dies once its next write of a pod is done.
    pub statusd_dies: bool,
    /// Pods that this life of kubelet-syncd shows.
    pub shown: BTreeSet<String>,
    pub weather: Weather,
    pub call_faults: Vec<(Peer, CallFault)>,
    pub commands: Vec<Command>,
    /// Whoever has asked for what is being done still waits for it. Else nobody can be blamed for what it does to what came since.
    pub is_waited_for: bool,
    /// When kube-apiserver last took a request whose sender had gone meanwhile.
    pub last_words: Option<Duration>,
    /// When what is being done was asked for, on the kernel's clock.
    pub asked_for_at: Duration,
    /// Lives of kubelet-syncd so far.
    pub life: u64,
    /// When this one has begun, by the machine's clock.
    pub life_since: i64,
    /// How often the machine has lost its power.
    pub boots: u64,
    /// The disk of the state files has no room.
    pub disk_is_full: bool,
    pub coverage: Coverage,
    pub story: Vec<String>,
    pub broken: Vec<String>,
    /// Calls that change something, of the current virtual minute.
    pub changes: (u64, u64),
    /// When the last one was.
    pub last_change: BTreeMap<String, Duration>,
    /// Pods that were made: how many lives were lived.
    pub lives: u64,
    pub steps: u64,
    /// When nothing happens from outside any more.
    pub calm: Duration,
    ids: u64,
    versions: u64,
}

/// The world, shared by the models.
#[derive(Debug, Clone)]
pub struct Shared(Arc<Mutex<World>>);

impl Shared {
    pub fn new(seed: u64) -> Self {
        Shared(Arc::new(Mutex::new(World {
            dice: Dice::of(seed, "world"),
            sandboxes: BTreeMap::new(),
            containers: BTreeMap::new(),
            listeners: Vec::new(),
            runtime_is_away: false,
            happened: Vec::new(),
            exits: tokio::sync::watch::Sender::new(()),
            watchers: Vec::new(),
            images: BTreeSet::new(),
            root_dir: RootDir::default(),
            workers: Dice::of(seed, "workers"),
            cgroups: BTreeSet::new(),
            logs: BTreeMap::new(),
            log_files: Logs::default(),
            volnetd_epoch: 1,
            volumes: Volumes::default(),
            resources: Resources::default(),
            claims: Claims::default(),
            pressure: Pressure::default(),
            memory: Memory::default(),
            back_off: BackOff::default(),
            sizes: PodSizes::default(),
            hooks: HookRuns::default(),
            ages: Vec::new(),
            record: None,
            has_driver: false,
            wanted: BTreeMap::new(),
            past: BTreeMap::new(),
            told: BTreeMap::new(),
            has_api: false,
            objects: BTreeMap::new(),
            asked: BTreeSet::new(),
            forced: BTreeSet::new(),
            statusd_dies: false,
            shown: BTreeSet::new(),
            weather: Weather::default(),
            call_faults: Vec::new(),
            commands: Vec::new(),
            is_waited_for: false,
            last_words: None,
            asked_for_at: Duration::ZERO,
            life: 0,
            life_since: 0,
            boots: 0,
            disk_is_full: false,
            coverage: Coverage::default(),
            story: Vec::new(),
            broken: Vec::new(),
            changes: (0, 0),
            last_change: BTreeMap::new(),
            lives: 0,
            steps: 0,
            calm: CALM,
            ids: 0,
            versions: 0,
        })))
    }

    pub fn lock(&self) -> MutexGuard<'_, World> {
        self.0.lock()
    }
}

impl World {
    /// The machine's clock, nanoseconds since 1970.
    pub fn wall() -> i64 {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
    }

    /// When the run is over.
    pub fn end(&self) -> Duration {
        self.calm + SETTLING
    }

    /// Which version a process is of.
    pub fn age(&self, program: Program) -> Age {
        self.ages.iter().find(|(of, _)| *of == program).map(|(_, age)| *age).unwrap_or_default()
    }

    pub fn set_age(&mut self, program: Program, age: Age) {
        self.ages.retain(|(of, _)| *of != program);
        if age != Age::Same {
            self.ages.push((program, age));
        }
    }

    pub fn next_id(&mut self, prefix: &str) -> String {
        self.ids += 1;
        format!("{prefix}{}", self.ids)
    }

    pub fn next_version(&mut self) -> u64 {
        self.versions += 1;
        self.versions
    }

    /// Another life of kubelet-syncd is listened to: it looks up phases anew.
    pub fn begin_listening(&mut self) {
        self.shown.clear();
        for told in self.told.values_mut() {
            told.phase.clear();
            told.worker = 0;
        }
    }

    /// A line of the story.
    pub fn tell(&mut self, who: &str, what: impl AsRef<str>) {
        let now = kernel::now();
        self.story.push(format!("{:>10.3} s  {who:<16} {}", now.as_secs_f64(), what.as_ref()));
    }

    /// A check has failed. The first one is what counts: the run ends with it.
    pub fn breaks(&mut self, check: &str, what: impl AsRef<str>) {
        let text = format!("{check}: {}", what.as_ref());
        self.tell("CHECK", &text);
        self.broken.push(text);
    }

    /// Takes the fault that is meant for the next change asked of this peer.
    pub fn take_fault(&mut self, peer: Peer) -> Option<CallFault> {
        let place = self.call_faults.iter().position(|(of, _)| *of == peer)?;
        self.resources.disturb();
        self.pressure.disturb();
        Some(self.call_faults.remove(place).1)
    }

    /// How long a message is under way to or from the API server, milliseconds.
    pub fn way_to_api(&mut self) -> u64 {
        match self.dice.below(20) {
            0..=11 => 0,
            12..=17 => self.dice.between(1, 10),
            18 => self.dice.between(10, 100),
            _ => self.dice.between(100, 1_000),
        }
    }

    /// How long a call is under way to the peer and back, milliseconds.
    pub fn latency(&mut self, peer: Peer) -> (u64, u64) {
        let slow =
            if peer == Peer::Runtime && kernel::now() < self.weather.slow_until { self.weather.slow_by } else { 0 };
        let way = |dice: &mut Dice| match dice.below(20) {
            0..=9 => 0,
            10..=17 => dice.between(1, 5),
            18 => dice.between(5, 50),
            _ => dice.between(50, 500),
        };
        let there = way(&mut self.dice);
        let back = if self.dice.percent(80) { 0 } else { way(&mut self.dice) };
        (there + slow, back + slow)
    }

    /// How long a worker of kubelet-volnetd takes for what it is asked.
    pub fn worker_is_late(&mut self) -> Duration {
        let dice = &mut self.workers;
        Duration::from_millis(match dice.below(20) {
            0..=12 => 0,
            13..=18 => dice.between(1, 10),
            _ => dice.between(10, 500),
        })
    }

    pub fn sandboxes_of<'a>(&'a self, uid: &'a str) -> impl Iterator<Item = &'a Sandbox> {
        self.sandboxes.values().filter(move |sandbox| uid_of(sandbox) == uid)
    }

    pub fn newest_sandbox<'a>(&'a self, uid: &'a str) -> Option<&'a Sandbox> {
        self.sandboxes_of(uid).max_by_key(|sandbox| (attempt_of(sandbox), sandbox.created))
    }

    /// Containers of the pod that run.
    pub fn running<'a>(&'a self, uid: &'a str) -> impl Iterator<Item = &'a Container> {
        self.containers.values().filter(move |container| container.uid() == uid && container.state == State::Running)
    }

    /// The manifest that this pod was made of, if it is as it was.
    pub fn wanted_by(&self, uid: &str) -> Option<(&String, &Wanted)> {
        let version = self.sandboxes_of(uid).next().and_then(version_of)?;
        self.wanted.iter().find(|(_, wanted)| wanted.version == version)
    }

    /// A container ends.
    pub fn exit(&mut self, id: &str, code: i32, reason: &str) -> bool {
        let now = World::wall();
        // As containerd 2.x, which finds out that it has ended, and not how.
        let (code, reason) = if self.runtime_is_away { (255, "Unknown") } else { (code, reason) };
        let away = self.runtime_is_away;
        let Some(container) = self.containers.get_mut(id).filter(|c| c.state == State::Running) else { return false };
        // One that was known before stays.
        let known = std::mem::take(&mut container.reason);
        let reason = if known.is_empty() || away { reason } else { &known };
        container.state = State::Exited;
        container.exit_code = code;
        // As with containerd: the start is noted when it is answered, the end when it was.
        let at_once = now.saturating_sub(container.started) < ANSWERING;
        container.finished = if at_once { container.started - ANSWERING } else { now };
        container.reason = match (reason, code) {
            ("", 0) => "Completed".to_owned(),
            ("", _) => "Error".to_owned(),
            (other, _) => other.to_owned(),
        };
        self.back_off.ends(container);
        self.memory.ends(id, code, &container.reason);
        let (is_stopped, is_to_stop) = (container.is_stopped, container.is_to_stop);
        let of_memory = container.reason == OUT_OF_MEMORY;
        let (name, uid, sandbox) = (container.name().to_owned(), container.uid().to_owned(), container.sandbox.clone());
        // As with upstream (kuberuntime/helpers.go isInitContainerFailed): of an init container of which a process was killed that is how
        // it has ended itself, whatever its code says.
        let shape = self.past.get(&uid).and_then(|past| past.shape.as_ref());
        let is_init = shape.is_some_and(|shape| shape.init.iter().any(|init| init.name == name && !init.sidecar));
        let counts = if code == 0 && of_memory && is_init { 137 } else { code };
        if counts == 0
            && let Some(sandbox) = self.sandboxes.get_mut(&sandbox)
        {
            sandbox.done.insert(name.clone());
        }
        // One that is to restart, for its probe has failed, does so whatever it ends with, as with upstream (computePodActions).
        let noted = if counts == 0 && is_stopped { 143 } else { counts };
        let is_to_stop = is_to_stop || self.hooks.is_to_end(id);
        let past = self.past.entry(uid.clone()).or_default();
        past.ended.insert(name.clone(), noted);
        if noted == 0 && is_to_stop {
            past.unsure.insert(name.clone());
        }
        self.log_ends(id);
        self.resources_rest(&uid);
        self.exits.send_replace(());
        self.tell("runtime", format!("container {name} ({id}) of {} ends with {code}", self.short(&uid)));
        true
    }

    /// A stop of the container arrives. One that has ended before kubelet-syncd knew restarts as if it had been stopped.
    pub fn is_asked_to_stop(&mut self, id: &str) {
        let Some(container) = self.containers.get_mut(id) else { return };
        container.is_to_stop = true;
        if container.state == State::Exited {
            let (uid, name) = (container.uid().to_owned(), container.name().to_owned());
            self.past.entry(uid).or_default().unsure.insert(name);
        }
    }

    /// The pod's name and version, for people.
    pub fn short(&self, uid: &str) -> String {
        let sandbox = self.sandboxes_of(uid).next();
        let name = sandbox.and_then(|s| s.config.metadata.as_ref()).map(|m| m.name.clone());
        match (name, sandbox.and_then(version_of)) {
            (Some(name), Some(version)) => format!("{name} (version {version})"),
            _ => uid.chars().take(8).collect(),
        }
    }
}

pub fn uid_of(sandbox: &Sandbox) -> &str {
    sandbox.config.metadata.as_ref().map_or("", |metadata| metadata.uid.as_str())
}

pub fn attempt_of(sandbox: &Sandbox) -> u32 {
    sandbox.config.metadata.as_ref().map_or(0, |metadata| metadata.attempt)
}

/// Which manifest it was made of.
pub fn version_of(sandbox: &Sandbox) -> Option<u64> {
    sandbox.config.annotations.get("simulation/version")?.parse().ok()
}
