//! The node: its processes, and who of them runs next. Time passes only when all of them wait.

mod claims;
mod disk;
mod evictiond;
mod memory;
mod versions;
mod volnetd;

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use bulkhead_config::NodeConfig;
use bulkhead_daemon::Daemon;
use bulkhead_daemon::privileges::Applied;
use bulkhead_simulation_kernel as kernel;
use bulkhead_types::Process as Name;
use parking_lot::Mutex;
use serde_json::json;

use crate::claims_schedule::Dra;
use crate::pressure_schedule::Asks;
use crate::process::Process;
use crate::root_dir::RootDir;
use crate::schedule::{CALM, Deed, Family, Program, STOPPED_BY, Schedule, Shape, Step};
use crate::volumes_schedule::Claim;
use crate::world::{Command, Shared, Wanted, World};
use disk::Disk;
use evictiond::Evictiond;

use crate::{apiserver, csi_driver, device_plugin, observer, resources, runtime, workers};

/// Paths of the node as everybody names them; nothing is there.
pub const POD_LOGS: &str = "/simulated/logs";
pub const PODS: &str = "/simulated/root/pods";
pub const ROOT: &str = "/simulated/root";
const MANIFESTS: &str = "/simulated/manifests";

/// How long a probe's command may take, seconds.
pub const PROBE_TIMEOUT: u64 = 1;

/// A user that no process has.
const NOBODY: u32 = u32::MAX - 1;

/// Who has a state folder, by the places in which they get their turns.
const WRITERS: [(usize, Program); 4] =
    [(0, Program::Syncd), (1, Program::Volnetd), (4, Program::Statusd), (7, Program::Evictiond)];

/// A turn in which something moved is followed by another one, at most so often before time has to pass. (A whole run, of 18 minutes, has
/// 3 000 to 32 000.)
const TURNS_MAX: u32 = 20_000;

/// A process that may be away.
#[derive(Debug)]
struct Seat {
    process: Option<Process>,
    /// When it comes back.
    back: Option<Duration>,
    /// It is stopped until then.
    stopped: Option<Duration>,
}

impl Seat {
    /// Somebody comes at the beginning.
    fn empty() -> Self {
        Seat { process: None, back: Some(Duration::ZERO), stopped: None }
    }

    /// Nobody comes.
    fn none() -> Self {
        Seat { process: None, back: None, stopped: None }
    }

    fn taken(process: Process) -> Self {
        Seat { process: Some(process), back: None, stopped: None }
    }
}

/// See the module.
#[derive(Debug)]
pub struct Node {
    world: Shared,
    config: NodeConfig,
    folder: PathBuf,
    state: Arc<Mutex<PathBuf>>,
    lives: u64,
    statusd_lives: u64,
    syncd_socket: UnixListener,
    syncd: Seat,
    volnetd: Seat,
    runtime: Seat,
    /// The device plugin; nobody where there is none.
    plugin: Seat,
    /// The socket of device plugins' registration, which kubelet-volnetd has bound.
    registrar: Arc<OwnedFd>,
    machine: Process,
    cluster: Option<Cluster>,
    evictiond: Option<Evictiond>,
    /// DRA drivers; nobody where there are none.
    drivers: [(Dra, Seat); 2],
    steps: Vec<Step>,
    /// When [`World::check_stopped`] is due.
    stopped_by: Option<Duration>,
    /// When faults end that are left over.
    calm: Option<Duration>,
    disk: Disk,
    /// Somebody stands between the processes, as they may be of different versions.
    is_mixed: bool,
}

/// What a node with an API server has beside.
#[derive(Debug)]
struct Cluster {
    /// kubelet-statusd's: other sockets stand for who it is to kubelet-volnetd.
    config: NodeConfig,
    model: apiserver::Model,
    seen: apiserver::Seen,
    apiserver: Seat,
    statusd: Seat,
    /// The CSI driver; nobody where there is none.
    driver: Seat,
    statusd_socket: UnixListener,
    state: Arc<Mutex<PathBuf>>,
    /// Pods that are to be created once their name is free.
    waiting: Vec<(String, Shape)>,
    /// Faults that end by themselves, and when.
    ends: Vec<(Duration, End)>,
}

/// The end of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    SilentWatches {
        bookmarks: bool,
    },
    SilentApi,
    /// The cluster's controllers look at what has changed.
    Controllers,
    /// No fault is left over for the time in which the node is to come to rest.
    All,
}

fn configuration(folder: &Path) -> Result<NodeConfig> {
    let mut config = NodeConfig::for_tests(folder);
    config.paths.root_dir = ROOT.into();
    config.flags.root_dir = ROOT.into();
    config.paths.pod_logs_dir = POD_LOGS.into();
    config.kubelet.pod_logs_dir = POD_LOGS.to_owned();
    config.kubelet.static_pod_path = MANIFESTS.to_owned();
    config.kubelet.resolv_conf = Some(String::new());
    config.node_ips = vec!["10.0.0.1".parse()?];
    config.boot_id = "simulated-0".to_owned();
    // Everybody here has one user: to kubelet-syncd it is kubelet-statusd's, as that is who listens to it.
    config.users.syncd = NOBODY;
    config.users.evictiond = NOBODY;
    Ok(config)
}

/// The same node with an API server. What is written there whatever happens is written seldom, and no port is listened on.
fn with_api(config: &mut NodeConfig) {
    config.flags.kubeconfig = "/simulated/kubeconfig".to_owned();
    config.kubelet.enable_server = Some(false);
    config.kubelet.node_lease_duration_seconds = 400;
    let seldom = bulkhead_types::GoDuration::from_secs(120);
    config.kubelet.node_status_update_frequency = seldom;
}

/// The same node with CPUs to give. The system keeps one.
fn with_resources(config: &mut NodeConfig) {
    config.kubelet.cpu_manager_policy = "static".to_owned();
    config.kubelet.system_reserved.insert("cpu".to_owned(), "1".to_owned());
}

/// What a container asks for; null: nothing. In a pod in which one has CPUs for itself all are limited.
fn limits(shape: &Shape, container: &crate::schedule::ContainerShape) -> serde_json::Value {
    let mut limits = serde_json::Map::new();
    if shape.is_guaranteed() {
        let cpus = if container.cpus > 0 { container.cpus.to_string() } else { format!("{}m", resources::SHARED) };
        limits.insert("cpu".to_owned(), json!(cpus));
        limits.insert("memory".to_owned(), json!(format!("{}Mi", resources::MEMORY_OF_CONTAINER)));
    }
    if container.devices > 0 {
        limits.insert(resources::RESOURCE.to_owned(), json!(container.devices.to_string()));
    }
    if let Some(asks) = &shape.asks {
        return asked(asks, container);
    }
    if limits.is_empty() { serde_json::Value::Null } else { json!({"limits": limits}) }
}

/// Of memory, CPU and disk. All of it is the first container's; in a pod whose memory is limited the others are limited too.
fn asked(asks: &Asks, container: &crate::schedule::ContainerShape) -> serde_json::Value {
    let (mut requests, mut limits) = (serde_json::Map::new(), serde_json::Map::new());
    let is_first = container.name == "c0";
    if asks.memory > 0 && (is_first || asks.is_limited) {
        let memory = if is_first { asks.memory } else { 1 };
        let maps = if asks.is_limited { vec![&mut requests, &mut limits] } else { vec![&mut requests] };
        for map in maps {
            map.insert("memory".to_owned(), json!(format!("{memory}Mi")));
            map.insert("cpu".to_owned(), json!("10m"));
        }
    }
    for (map, amount) in [(&mut requests, asks.disk), (&mut limits, asks.disk_limit)] {
        if is_first && amount > 0 {
            map.insert("ephemeral-storage".to_owned(), json!(format!("{amount}Mi")));
        }
    }
    json!({"requests": requests, "limits": limits})
}

/// A pod as it is written down.
pub(crate) fn manifest(pod: &str, shape: &Shape, version: u64) -> serde_json::Value {
    let container = |c: &crate::schedule::ContainerShape| {
        let mut made = json!({"name": c.name, "image": "image", "imagePullPolicy": "IfNotPresent",
            "command": c.behaviour.words()});
        if c.sidecar
            && let Some(made) = made.as_object_mut()
        {
            made.insert("restartPolicy".to_owned(), json!("Always"));
        }
        if let Some(sized) = &shape.sized {
            sized.put_into(&mut made, &c.name);
        }
        let lifecycle = shape.lifecycle(&c.name);
        if !lifecycle.is_null() {
            made["lifecycle"] = lifecycle;
        }
        let resources = limits(shape, c);
        if !resources.is_null() {
            made["resources"] = resources;
        }
        if !shape.claims.is_empty() {
            let mount = |claim: &Claim| json!({"name": claim.name(), "mountPath": format!("/{}", claim.name())});
            made["volumeMounts"] = shape.claims.iter().map(mount).collect();
        }
        for probe in &c.probes {
            let spec = json!({"exec": {"command": probe.words()}, "periodSeconds": probe.period,
                "failureThreshold": probe.threshold, "timeoutSeconds": PROBE_TIMEOUT});
            if let Some(made) = made.as_object_mut() {
                made.insert(format!("{}Probe", probe.kind.name()), spec);
            }
        }
        made
    };
    let mut made = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": pod, "namespace": "default", "annotations": {"simulation/version": version.to_string()}},
        "spec": {"restartPolicy": shape.restart_policy, "terminationGracePeriodSeconds": shape.grace,
            "initContainers": shape.init.iter().map(container).collect::<Vec<_>>(),
            "containers": shape.containers.iter().map(container).collect::<Vec<_>>()}});
    crate::claims::put_into(&mut made, shape);
    if let Some(asks) = shape.asks {
        made["spec"]["priorityClassName"] = json!(asks.class());
    }
    if !shape.claims.is_empty() {
        made["spec"]["volumes"] = shape.claims.iter().map(|claim| volume(*claim)).collect();
    }
    made
}

/// A volume of a pod, by a claim.
fn volume(claim: Claim) -> serde_json::Value {
    let name = claim.name();
    if claim != Claim::Own {
        return json!({"name": name, "persistentVolumeClaim": {"claimName": name}});
    }
    let spec = json!({"accessModes": [claim.access_mode()], "storageClassName": "",
        "resources": {"requests": {"storage": "1Mi"}}});
    json!({"name": name, "ephemeral": {"volumeClaimTemplate": {"spec": spec}}})
}

impl Cluster {
    fn start(family: Family, node: &NodeConfig, folder: &Path, world: &Shared, machine: &Process) -> Result<Self> {
        let mut config = node.clone();
        config.paths.run_dir = folder.join("run-statusd");
        std::fs::create_dir_all(&config.paths.run_dir).context("making a folder")?;
        let syncd = config.paths.socket(Name::Syncd);
        std::os::unix::fs::symlink(node.paths.socket(Name::Syncd), syncd).context("linking a socket")?;
        let statusd_socket =
            UnixListener::bind(config.paths.socket(Name::Statusd)).context("listening for kubelet-statusd")?;
        let model = apiserver::Model::start(world.clone(), &machine.handle().context("no machine")?)?;
        anyhow::ensure!(kernel::route(apiserver::PORT, &api_socket(folder)), "the folder's path is too long");
        let has_driver = family == Family::Volumes;
        (world.lock().has_api, world.lock().has_driver) = (true, has_driver);
        if has_driver {
            model.furnish();
        }
        if family == Family::Claims {
            world.lock().claims.on = true;
            model.furnish_claims();
        }
        Ok(Cluster {
            config,
            model,
            seen: apiserver::Seen::default(),
            apiserver: Seat::empty(),
            statusd: Seat::empty(),
            driver: if has_driver { Seat::empty() } else { Seat::none() },
            statusd_socket,
            state: Arc::default(),
            waiting: Vec::new(),
            ends: vec![(world.lock().calm, End::All)],
        })
    }

    /// Pods whose name is free now, and what the last turn has brought.
    fn look(&mut self) {
        let has_changed = self.model.look(&mut self.seen);
        let mut world = self.model.world().lock();
        if has_changed
            && (world.has_driver || world.claims.on)
            && !self.ends.iter().any(|(_, end)| *end == End::Controllers)
        {
            let late = world.way_to_api() + world.dice.below(100);
            self.ends.push((kernel::now() + Duration::from_millis(late), End::Controllers));
        }
        drop(world);
        let model = &self.model;
        self.waiting.retain(|(pod, shape)| !model.create(pod, shape));
    }

    fn create(&mut self, pod: &str, shape: &Shape) {
        if !self.model.create(pod, shape) {
            self.waiting.retain(|(other, _)| other != pod);
            self.waiting.push((pod.to_owned(), shape.clone()));
        }
    }

    fn delete(&mut self, pod: &str, grace: Option<u64>) {
        self.waiting.retain(|(other, _)| other != pod);
        self.model.delete(pod, grace);
    }

    fn end_faults(&mut self) {
        let now = kernel::now();
        let (due, later) = std::mem::take(&mut self.ends).into_iter().partition(|(at, _)| *at <= now);
        self.ends = later;
        let due: Vec<(Duration, End)> = due;
        for (_, end) in due {
            match end {
                End::SilentWatches { bookmarks } => self.model.silence_watches(false, bookmarks),
                End::SilentApi => self.model.silence(false),
                End::Controllers if self.model.world().lock().claims.on => {
                    let again = self.model.allocate();
                    self.ends.extend(again.map(|at| (at, End::Controllers)));
                }
                End::Controllers => self.model.reconcile(),
                End::All => self.model.end_faults(),
            }
        }
    }
}

fn driver_socket(folder: &Path) -> PathBuf {
    folder.join("driver.sock")
}

fn plugin_socket(folder: &Path) -> PathBuf {
    folder.join("plugin.sock")
}

fn registrar_socket(folder: &Path) -> PathBuf {
    folder.join("registrar.sock")
}

/// Where kubelet-volnetd's workers are to be had.
fn workers_socket(folder: &Path) -> PathBuf {
    folder.join("workers.sock")
}

fn api_socket(folder: &Path) -> PathBuf {
    folder.join("apiserver.sock")
}

impl Node {
    /// A node on which nothing runs yet, with sockets and state below `folder`.
    ///
    /// # Errors
    /// The folder cannot be filled, or a socket not be made.
    pub fn new(schedule: &Schedule, folder: &Path) -> Result<Self> {
        let mut config = configuration(folder)?;
        if schedule.family.has_api() {
            with_api(&mut config);
        }
        if let Some(plan) = &schedule.plan {
            plan.put_into(&mut config.kubelet);
            config.users.evictiond = evictiond::EVICTIOND;
        }
        let has_plugin = schedule.family == Family::Resources;
        if has_plugin {
            with_resources(&mut config);
        }
        let cpus = if has_plugin { resources::CPUS } else { resources::CPUS_OF_OTHERS };
        resources::machine(&folder.join("machine"), cpus)?;
        let registrar: OwnedFd = listen(&registrar_socket(folder))?.into();
        for name in ["run", "manifests"] {
            std::fs::create_dir_all(folder.join(name)).with_context(|| format!("making {name}"))?;
        }
        let socket = config.paths.socket(Name::Syncd);
        let syncd_socket = UnixListener::bind(&socket).context("listening for kubelet-syncd")?;
        let world = Shared::new(schedule.seed);
        let calm = schedule.calm();
        world.lock().calm = calm;
        if has_plugin {
            world.lock().resources.begin();
        }
        world.lock().root_dir = RootDir::lay(folder)?;
        let observed = world.clone();
        let machine = Process::start(async move || observer::listen(observed, &socket).await)?;
        let of_workers = bulkhead_sys::scm::listen(&workers_socket(folder), 0o600).context("listening for workers")?;
        let settings = world.lock().root_dir.settings(&config)?;
        machine.handle().context("no machine")?.spawn(workers::serve(world.clone(), settings, of_workers));
        let family = schedule.family;
        let has_api = family.has_api();
        let cluster = has_api.then(|| Cluster::start(family, &config, folder, &world, &machine)).transpose()?;
        let evictiond = match (&cluster, &schedule.plan) {
            (Some(cluster), Some(plan)) => {
                Some(Evictiond::start(&config, cluster, plan.clone(), folder, &world, &machine)?)
            }
            _ => None,
        };
        let mut steps = schedule.steps.clone();
        steps.reverse();
        let mut node = Node {
            world,
            config,
            folder: folder.to_owned(),
            state: Arc::default(),
            lives: 0,
            statusd_lives: 0,
            syncd_socket,
            syncd: Seat::empty(),
            volnetd: Seat::empty(),
            runtime: Seat::empty(),
            plugin: if has_plugin { Seat::empty() } else { Seat::none() },
            registrar: Arc::new(registrar),
            machine,
            cluster,
            evictiond,
            drivers: claims::seats(family),
            steps,
            stopped_by: Some(STOPPED_BY + (calm - CALM)),
            calm: has_plugin.then_some(calm),
            disk: Disk::new(calm),
            is_mixed: false,
        };
        if versions::come_up(schedule) {
            node.mix()?;
        }
        Ok(node)
    }

    /// Runs to the end, or until a check fails.
    ///
    /// # Errors
    /// The simulation itself does not work.
    pub fn run(mut self) -> Result<Shared> {
        let end = self.world.lock().end();
        loop {
            self.take_seats()?;
            self.do_steps()?;
            let until = self.turns()?;
            self.end_disk_faults();
            if self.stopped_by.is_some_and(|by| by <= kernel::now()) {
                self.stopped_by = None;
                self.world.lock().check_stopped();
            }
            if self.calm.is_some_and(|at| at <= kernel::now()) {
                self.calm = None;
                let mut world = self.world.lock();
                world.call_faults.clear();
                world.resources.faults.clear();
            }
            if !self.world.lock().broken.is_empty() {
                break;
            }
            let steps = self.steps.last().map(|step| Duration::from_millis(step.at));
            let cluster = self.cluster.as_ref();
            let seats = [&self.syncd, &self.volnetd, &self.runtime, &self.plugin].into_iter();
            let seats = seats.chain(cluster.into_iter().flat_map(|c| [&c.apiserver, &c.statusd, &c.driver]));
            let seats = seats.chain(self.evictiond.iter().map(|evictiond| &evictiond.seat));
            let seats = seats.chain(self.drivers.iter().map(|(_, seat)| seat));
            let looks = self.evictiond.iter().flat_map(|evictiond| evictiond.next(&self.world));
            let back = seats.flat_map(|seat| [seat.back, seat.stopped]);
            let ends = cluster.into_iter().flat_map(|c| c.ends.iter().map(|(at, _)| Some(*at)));
            let next = back
                .chain(ends)
                .chain(looks)
                .chain(self.disk.next())
                .chain([until, steps, self.stopped_by, self.calm])
                .flatten()
                .min()
                .unwrap_or(end);
            if next >= end {
                kernel::advance(end);
                self.world.lock().check_end();
                break;
            }
            kernel::advance(next);
        }
        Ok(self.world.clone())
    }

    /// Turns until all wait. Answers when the first goes on by itself.
    fn turns(&mut self) -> Result<Option<Duration>> {
        for _ in 0..TURNS_MAX {
            let mut moved = false;
            let mut until = None;
            let seats = [&mut self.syncd, &mut self.volnetd, &mut self.runtime, &mut self.plugin];
            let cluster = self.cluster.iter_mut().flat_map(|c| [&mut c.statusd, &mut c.apiserver, &mut c.driver]);
            let seats = seats.into_iter().chain(cluster).chain(self.evictiond.iter_mut().map(|one| &mut one.seat));
            let seats = seats.chain(self.drivers.iter_mut().map(|(_, seat)| seat));
            let running = seats.enumerate().filter(|(_, seat)| seat.stopped.is_none());
            let running = running.filter_map(|(place, seat)| Some((place, seat.process.as_mut()?)));
            let (mut ended, mut is_cut) = (false, false);
            for (place, process) in running.chain([(usize::MAX, &mut self.machine)]) {
                let is_due = process.is_due();
                if is_due {
                    let turn = process.turn();
                    moved |= turn.moved;
                    ended |= turn.ended;
                }
                until = until.into_iter().chain(process.until()).min();
                if !is_due && place != 0 {
                    continue;
                }
                is_cut = WRITERS.iter().any(|(of, writer)| *of == place && self.disk.look(&self.world, *writer));
                if is_cut {
                    break;
                }
                // kubelet-syncd's is the first: what it has decided is seen before others do something about it.
                Node::look_at_pressure(&self.world, (place == 0).then_some(&self.state));
                if place == 0 {
                    self.world.lock().look_at_sizes();
                }
            }
            self.wait_for_disk();
            if is_cut {
                self.cut_power()?;
            }
            if ended {
                return Err(anyhow!("a process has ended by itself"));
            }
            self.world.lock().steps += 1;
            if let Some(panic) = crate::outcome::take_panic() {
                self.world.lock().breaks("no-panic", panic);
            }
            if let Some(cluster) = &mut self.cluster {
                cluster.look();
            }
            self.delete_going();
            self.look_at_heaps();
            moved |= is_cut | self.do_commands();
            self.note_pressure();
            if !moved {
                return Ok(until);
            }
            if !self.world.lock().broken.is_empty() {
                return Ok(None);
            }
        }
        self.world.lock().breaks("no-circle", format!("{TURNS_MAX} turns without an end"));
        Ok(None)
    }

    /// Processes that are due to come (back) do.
    fn take_seats(&mut self) -> Result<()> {
        let now = kernel::now();
        for program in Program::ALL {
            if let Some(seat) = self.seat(program).filter(|seat| seat.stopped.is_some_and(|until| until <= now)) {
                seat.stopped = None;
                let mut world = self.world.lock();
                world.tell(program.name(), "goes on");
                world.resources.disturb();
                world.pressure.disturb();
            }
        }
        let is_due = |seat: &Seat| seat.back.is_some_and(|back| back <= now);
        if is_due(&self.runtime) {
            let listener = listen(&self.config.runtime_socket)?;
            let machine = self.machine.handle().context("no machine")?;
            let model = runtime::Model { world: self.world.clone(), machine };
            let process = Process::start(async move || runtime::serve(model, listener).await)?;
            self.runtime = Seat::taken(process);
        }
        if is_due(&self.volnetd) {
            self.start_volnetd()?;
        }
        if is_due(&self.syncd) {
            self.start_syncd()?;
        }
        if is_due(&self.plugin) {
            let listener = listen(&plugin_socket(&self.folder))?;
            let (world, registrar) = (self.world.clone(), registrar_socket(&self.folder));
            world.lock().tell("plugin", "starts");
            let process = Process::start(async move || device_plugin::serve(world, listener, registrar).await)?;
            self.plugin = Seat::taken(process);
        }
        if let Some(cluster) = &mut self.cluster {
            cluster.end_faults();
            if is_due(&cluster.apiserver) {
                let listener = listen(&api_socket(&self.folder))?;
                let model = cluster.model.clone();
                let process = Process::start(async move || model.serve(listener).await)?;
                cluster.apiserver = Seat::taken(process);
            }
            if is_due(&cluster.driver) {
                let listener = listen(&driver_socket(&self.folder))?;
                let world = self.world.clone();
                cluster.driver = Seat::taken(Process::start(async move || csi_driver::serve(world, listener).await)?);
                let mut world = self.world.lock();
                world.tell("driver", "starts");
                world.volumes.socket_comes();
            }
            if is_due(&cluster.statusd) {
                self.start_statusd()?;
            }
        }
        self.take_drivers()?;
        self.take_evictiond()
    }

    /// Another life of kubelet-syncd, with what the last one has left in its state folder.
    fn start_syncd(&mut self) -> Result<()> {
        self.disk.next_state(Program::Syncd, &self.folder, self.lives, &self.state)?;
        self.lives += 1;
        let socket: OwnedFd = self.syncd_socket.try_clone().context("passing the socket")?.into();
        let config = self.config.clone();
        let listeners = [("grpc".to_owned(), socket)].into();
        let daemon = Daemon::new(Name::Syncd, config, listeners, Applied::default(), None);
        let daemon = Arc::new(daemon.map_err(|message| anyhow!(message))?);
        let world = self.world.clone();
        world.lock().tell("kubelet-syncd", "starts");
        let process = Process::start(async move || {
            let ended = kubelet_syncd::run::run(daemon).await;
            world.lock().breaks("no-end", format!("kubelet-syncd has ended: {ended:?}"));
            std::future::pending::<()>().await;
        })?;
        self.syncd = Seat::taken(process);
        let mut world = self.world.lock();
        (world.life, world.life_since) = (self.lives, World::wall());
        world.resources.syncd_starts(self.lives == 1);
        world.sizes.life_begins(&self.state);
        world.forget_unwritten();
        Ok(())
    }

    /// Another life of kubelet-statusd.
    fn start_statusd(&mut self) -> Result<()> {
        let Some(cluster) = &mut self.cluster else { return Ok(()) };
        self.disk.next_state(Program::Statusd, &self.folder, self.statusd_lives, &cluster.state)?;
        self.statusd_lives += 1;
        let socket: OwnedFd = cluster.statusd_socket.try_clone().context("passing the socket")?.into();
        let listeners = [("grpc".to_owned(), socket)].into();
        let daemon = Daemon::new(Name::Statusd, cluster.config.clone(), listeners, Applied::default(), None);
        let daemon = Arc::new(daemon.map_err(|message| anyhow!(message))?);
        let world = self.world.clone();
        world.lock().tell("kubelet-statusd", "starts");
        let process = Process::start(async move || {
            let ended = kubelet_statusd::run(daemon).await;
            world.lock().breaks("no-end", format!("kubelet-statusd has ended: {ended:?}"));
            std::future::pending::<()>().await;
        })?;
        cluster.statusd = Seat::taken(process);
        Ok(())
    }

    fn seat(&mut self, program: Program) -> Option<&mut Seat> {
        match program {
            Program::Syncd => Some(&mut self.syncd),
            Program::Statusd => self.cluster.as_mut().map(|cluster| &mut cluster.statusd),
            Program::Driver => self.cluster.as_mut().map(|cluster| &mut cluster.driver),
            Program::Volnetd => Some(&mut self.volnetd),
            Program::Runtime => Some(&mut self.runtime),
            Program::Plugin => Some(&mut self.plugin),
            Program::Evictiond => self.evictiond.as_mut().map(|evictiond| &mut evictiond.seat),
            Program::Dra(driver) => self.dra_seat(driver),
        }
    }

    fn do_commands(&mut self) -> bool {
        let commands = std::mem::take(&mut self.world.lock().commands);
        for command in &commands {
            self.command(*command);
        }
        !commands.is_empty()
    }

    fn command(&mut self, command: Command) {
        let now = kernel::now();
        let (seat, down) = match (command, &mut self.cluster) {
            (Command::KillSyncd { down }, _) => (&mut self.syncd, down),
            (Command::RestartRuntime { down }, _) => (&mut self.runtime, down),
            (Command::RestartVolnetd { down }, _) => (&mut self.volnetd, down),
            (Command::KillPlugin { down }, _) => (&mut self.plugin, down),
            (Command::KillStatusd { down }, Some(cluster)) => (&mut cluster.statusd, down),
            (Command::RestartApi { down }, Some(cluster)) => (&mut cluster.apiserver, down),
            (Command::KillDriver { down }, Some(cluster)) => (&mut cluster.driver, down),
            (Command::KillStatusd { .. } | Command::RestartApi { .. } | Command::KillDriver { .. }, None) => return,
            (Command::KillDra { driver, down }, _) => match self.drivers.iter_mut().find(|(of, _)| *of == driver) {
                Some((_, seat)) => (seat, down),
                None => return,
            },
            (Command::KillEvictiond { down }, _) => match &mut self.evictiond {
                Some(evictiond) => (&mut evictiond.seat, down),
                None => return,
            },
        };
        if seat.process.take().is_none() {
            return;
        }
        (seat.back, seat.stopped) = (Some(now + Duration::from_millis(down)), None);
        if matches!(command, Command::KillSyncd { .. }) {
            self.note_told_kills();
        }
        let mut world = self.world.lock();
        if !matches!(command, Command::KillPlugin { .. }) {
            world.resources.disturb();
        }
        world.pressure.disturb();
        match command {
            Command::KillEvictiond { .. } => world.tell("kubelet-evictiond", "is dead"),
            Command::KillPlugin { .. } => {
                world.resources.plugin_dies();
                world.tell("plugin", "is dead");
            }
            Command::KillSyncd { .. } => {
                world.tell("kubelet-syncd", "is dead");
                // Connections that nobody has taken yet end with whoever made them, and who asks now waits for the next life.
            }
            Command::RestartRuntime { .. } => {
                runtime::goes(&mut world);
                let _ = std::fs::remove_file(&self.config.runtime_socket);
                world.tell("runtime", "is away");
            }
            Command::RestartVolnetd { .. } => {
                world.watchers.clear();
                world.volumes.watchers.clear();
                world.claims.watchers.clear();
                let _ = std::fs::remove_file(self.volnetd_socket(&self.config));
                let _ = std::fs::remove_file(self.config.paths.broker_socket());
                world.tell("kubelet-volnetd", "is away");
                drop(world);
                for (config, _) in self.others() {
                    let _ = std::fs::remove_file(self.volnetd_socket(config));
                    let _ = std::fs::remove_file(config.paths.broker_socket());
                }
            }
            Command::KillStatusd { .. } => world.tell("kubelet-statusd", "is dead"),
            // Its socket stays where it is, and refuses connections.
            Command::KillDriver { .. } => world.tell("driver", "is dead"),
            Command::KillDra { driver, .. } => world.tell(driver.short(), "is dead"),
            Command::RestartApi { .. } => {
                let _ = std::fs::remove_file(api_socket(&self.folder));
                world.tell("kube-apiserver", "is away");
            }
        }
    }

    fn do_steps(&mut self) -> Result<()> {
        let now = kernel::now();
        while self.steps.last().is_some_and(|step| Duration::from_millis(step.at) <= now) {
            let Some(step) = self.steps.pop() else { break };
            self.do_step(&step.deed)?;
        }
        Ok(())
    }

    fn do_step(&mut self, deed: &Deed) -> Result<()> {
        let now = kernel::now();
        let until = |lasts: &u64| now + Duration::from_millis(*lasts);
        {
            let mut world = self.world.lock();
            world.tell(if deed.is_workload() { "somebody" } else { "fault" }, deed.to_string());
            world.coverage.deed(deed.kind());
            if !deed.is_workload() {
                world.pressure.disturb();
            }
        }
        match deed {
            Deed::Write { pod, shape } => self.write(pod, shape)?,
            Deed::Remove { pod } => {
                let mut world = self.world.lock();
                if let Some(wanted) = world.wanted.remove(pod) {
                    world.resources.want_no_more(wanted.version);
                }
                drop(world);
                let path = self.folder.join("manifests").join(format!("{pod}.json"));
                if std::fs::remove_file(path).is_ok() {
                    self.tell_watchers(pod, bulkhead_ipc::volnetd::watch_event::Change::Removed);
                }
            }
            Deed::Create { .. }
            | Deed::Edit { .. }
            | Deed::Delete { .. }
            | Deed::Replace { .. }
            | Deed::Meddle { .. }
            | Deed::Resize { .. }
            | Deed::Api { .. }
            | Deed::CloseWatches
            | Deed::ForgetHistory
            | Deed::SilentWatches { .. }
            | Deed::SilentApi { .. } => self.do_api_step(deed),
            Deed::KillDriver { down } => self.command(Command::KillDriver { down: *down }),
            Deed::KillPlugin { down } => self.command(Command::KillPlugin { down: *down }),
            Deed::Plugin { fault } => self.world.lock().resources.faults.push(*fault),
            Deed::Sicken { pick, lasts } => self.sicken(*pick, Duration::from_millis(*lasts)),
            Deed::Claim => {
                let shape = self.world.lock().claim();
                if let Some(shape) = shape {
                    self.world.lock().tell("somebody", format!("writes the manifest of {}: {shape}", resources::CLAIM));
                    self.write(resources::CLAIM, &shape)?;
                }
            }
            Deed::Driver { fault } => self.world.lock().volumes.faults.push(*fault),
            Deed::KillStatusd { down } => self.command(Command::KillStatusd { down: *down }),
            Deed::RestartApi { down } => self.command(Command::RestartApi { down: *down }),
            Deed::Stop { program, lasts } => {
                // Nobody stops who is not there.
                if let Some(seat) = self.seat(*program).filter(|seat| seat.process.is_some()) {
                    seat.stopped = Some(until(lasts));
                    let mut world = self.world.lock();
                    world.resources.disturb();
                    world.pressure.disturb();
                }
            }
            Deed::KillSyncd { down } => self.command(Command::KillSyncd { down: *down }),
            Deed::RestartRuntime { down } => self.command(Command::RestartRuntime { down: *down }),
            Deed::RestartVolnetd { down } => self.command(Command::RestartVolnetd { down: *down }),
            Deed::Call { peer, fault } => self.world.lock().call_faults.push((*peer, *fault)),
            Deed::Exit { pick, code, out_of_memory } => self.exit(*pick, *code, *out_of_memory),
            Deed::SandboxDies { pick } => self.sandbox_dies(*pick),
            Deed::LoseEvents { lasts } => self.world.lock().weather.lost_until = until(lasts),
            Deed::DoubleEvents { lasts } => self.world.lock().weather.doubled_until = until(lasts),
            Deed::LateEvents { lasts, by } => {
                let mut world = self.world.lock();
                (world.weather.late_until, world.weather.late_by) = (until(lasts), *by);
            }
            Deed::SlowRuntime { lasts, by } => {
                let mut world = self.world.lock();
                (world.weather.slow_until, world.weather.slow_by) = (until(lasts), *by);
            }
            Deed::StepClock { by } => {
                self.world.lock().back_off.clock_was_set = true;
                kernel::step_wall_clock(*by);
            }
            Deed::Memory { deed } => self.do_memory_step(*deed),
            Deed::Version { deed } => self.do_version_step(*deed),
            Deed::Pressure { deed } => self.do_pressure_step(deed),
            Deed::Disk { deed } => self.do_disk_step(deed)?,
            Deed::Claims { deed } => self.do_claims_step(deed),
        }
        Ok(())
    }

    fn do_api_step(&mut self, deed: &Deed) {
        let Some(cluster) = &mut self.cluster else { return };
        let now = kernel::now();
        match deed {
            Deed::Create { pod, shape } => cluster.create(pod, shape),
            Deed::Edit { pod, image } => cluster.model.edit(pod, *image),
            Deed::Delete { pod, grace } => cluster.delete(pod, *grace),
            Deed::Replace { pod, shape, force } => {
                cluster.delete(pod, force.then_some(0));
                cluster.create(pod, shape);
            }
            Deed::Meddle { pod } => cluster.model.meddle(pod),
            Deed::Resize { pod, sizes } => cluster.model.resize(pod, sizes),
            Deed::Api { fault } => cluster.model.fault(*fault),
            Deed::CloseWatches => cluster.model.close_watches(),
            Deed::ForgetHistory => {
                // What came before would be forgotten here, too.
                cluster.look();
                cluster.model.forget_history();
            }
            Deed::SilentWatches { lasts, bookmarks } => {
                cluster.model.silence_watches(true, *bookmarks);
                cluster.ends.push((now + Duration::from_millis(*lasts), End::SilentWatches { bookmarks: *bookmarks }));
            }
            Deed::SilentApi { lasts } => {
                cluster.model.silence(true);
                cluster.ends.push((now + Duration::from_millis(*lasts), End::SilentApi));
            }
            _ => {}
        }
    }

    /// As a careful administrator: the file is written under another name and renamed.
    fn write(&mut self, pod: &str, shape: &Shape) -> Result<()> {
        let version = {
            let mut world = self.world.lock();
            let version = world.next_version();
            let wanted = Wanted { shape: shape.clone(), version, since: kernel::now(), uid: None, is_edited: false };
            if let Some(before) = world.wanted.insert(pod.to_owned(), wanted) {
                world.resources.want_no_more(before.version);
            }
            world.resources.want(version, shape);
            version
        };
        let manifest = manifest(pod, shape, version);
        let manifests = self.folder.join("manifests");
        let path = manifests.join(format!("{pod}.json"));
        let change = if path.exists() {
            bulkhead_ipc::volnetd::watch_event::Change::Modified
        } else {
            bulkhead_ipc::volnetd::watch_event::Change::Added
        };
        let new = self.folder.join("new.json");
        std::fs::write(&new, manifest.to_string()).context("writing a manifest")?;
        std::fs::rename(&new, &path).context("writing a manifest")?;
        self.tell_watchers(pod, change);
        Ok(())
    }

    fn tell_watchers(&self, pod: &str, change: bulkhead_ipc::volnetd::watch_event::Change) {
        let event = bulkhead_ipc::volnetd::WatchEvent {
            change: change.into(),
            name: format!("{pod}.json"),
            unlinked: change == bulkhead_ipc::volnetd::watch_event::Change::Removed,
            ..Default::default()
        };
        self.world.lock().watchers.retain(|watcher| watcher.send(Ok(event.clone())).is_ok());
    }

    /// A device falls ill, and recovers by itself.
    fn sicken(&self, pick: u64, lasts: Duration) {
        let Some(id) = self.world.lock().resources.sicken(pick, false) else { return };
        self.world.lock().tell("plugin", format!("device {id} is not healthy"));
        let (world, Some(machine)) = (self.world.clone(), self.machine.handle()) else { return };
        machine.spawn(async move {
            tokio::time::sleep(lasts).await;
            let mut world = world.lock();
            world.resources.sicken(pick, true);
            world.tell("plugin", format!("device {id} is healthy"));
        });
    }
}

fn listen(path: &Path) -> Result<UnixListener> {
    let _ = std::fs::remove_file(path);
    let listener = UnixListener::bind(path).with_context(|| format!("listening at {}", path.display()))?;
    listener.set_nonblocking(true).context("making a listener")?;
    Ok(listener)
}

/// For messages of the world.
impl std::fmt::Display for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for line in self.story.iter() {
            writeln!(f, "{line}")?;
        }
        Ok(())
    }
}
