//! The node: its processes, and who of them runs next. Time passes only when all of them wait.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use bulkhead_config::NodeConfig;
use bulkhead_daemon::Daemon;
use bulkhead_daemon::privileges::Applied;
use bulkhead_simulation_kernel as kernel;
use bulkhead_types::Process as Name;
use serde_json::json;

use crate::process::Process;
use crate::schedule::{CALM, Deed, SETTLING, STOPPED_BY, Schedule, Shape, Step};
use crate::world::{Command, Shared, Wanted, World};
use crate::{observer, runtime, volnetd};

/// Paths of the node as everybody names them; nothing is there.
pub const POD_LOGS: &str = "/simulated/logs";
pub const PODS: &str = "/simulated/root/pods";
const ROOT: &str = "/simulated/root";
const MANIFESTS: &str = "/simulated/manifests";

/// A user that no process has.
const NOBODY: u32 = u32::MAX - 1;

/// A turn in which something moved is followed by another one, at most so often before time has to pass.
const TURNS_MAX: u32 = 100_000;

/// A process that may be away.
#[derive(Debug)]
struct Seat {
    process: Option<Process>,
    /// When it comes back.
    back: Option<Duration>,
}

/// See the module.
#[derive(Debug)]
pub struct Node {
    world: Shared,
    config: NodeConfig,
    folder: PathBuf,
    state: Arc<Mutex<PathBuf>>,
    lives: u64,
    syncd_socket: UnixListener,
    syncd: Seat,
    volnetd: Seat,
    runtime: Seat,
    machine: Process,
    steps: Vec<Step>,
    /// When [`World::check_stopped`] is due.
    stopped_by: Option<Duration>,
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
    config.boot_id = "simulated".to_owned();
    // Everybody here has one user: to kubelet-syncd it is kubelet-statusd's, as that is who listens to it.
    config.users.syncd = NOBODY;
    config.users.evictiond = NOBODY;
    Ok(config)
}

impl Node {
    /// A node on which nothing runs yet, with sockets and state below `folder`.
    ///
    /// # Errors
    /// The folder cannot be filled, or a socket not be made.
    pub fn new(schedule: &Schedule, folder: &Path) -> Result<Self> {
        let config = configuration(folder)?;
        for name in ["run", "manifests"] {
            std::fs::create_dir_all(folder.join(name)).with_context(|| format!("making {name}"))?;
        }
        let socket = config.paths.socket(Name::Syncd);
        let syncd_socket = UnixListener::bind(&socket).context("listening for kubelet-syncd")?;
        let world = Shared::new(schedule.seed);
        let observed = world.clone();
        let machine = Process::start(async move || observer::listen(observed, &socket).await)?;
        let none = || Seat { process: None, back: Some(Duration::ZERO) };
        let mut steps = schedule.steps.clone();
        steps.reverse();
        Ok(Node {
            world,
            config,
            folder: folder.to_owned(),
            state: Arc::default(),
            lives: 0,
            syncd_socket,
            syncd: none(),
            volnetd: none(),
            runtime: none(),
            machine,
            steps,
            stopped_by: Some(STOPPED_BY),
        })
    }

    /// Runs to the end, or until a check fails.
    ///
    /// # Errors
    /// The simulation itself does not work.
    pub fn run(mut self) -> Result<Shared> {
        let end = CALM + SETTLING;
        loop {
            self.take_seats()?;
            self.do_steps()?;
            let until = self.turns()?;
            if self.stopped_by.is_some_and(|by| by <= kernel::now()) {
                self.stopped_by = None;
                self.world.lock().check_stopped();
            }
            if !self.world.lock().broken.is_empty() {
                break;
            }
            let steps = self.steps.last().map(|step| Duration::from_millis(step.at));
            let back = [&self.syncd, &self.volnetd, &self.runtime].map(|seat| seat.back);
            let next = back.into_iter().chain([until, steps, self.stopped_by]).flatten().min().unwrap_or(end);
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
            let seats = [&mut self.syncd, &mut self.volnetd, &mut self.runtime];
            let running = seats.into_iter().filter_map(|seat| seat.process.as_mut());
            let mut ended = false;
            for process in running.chain([&mut self.machine]) {
                let turn = process.turn();
                moved |= turn.moved;
                ended |= turn.ended;
                until = until.into_iter().chain(turn.until).min();
            }
            if ended {
                return Err(anyhow!("a process has ended by itself"));
            }
            self.world.lock().steps += 1;
            if let Some(panic) = crate::outcome::take_panic() {
                self.world.lock().breaks("no-panic", panic);
            }
            moved |= self.do_commands();
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
        let is_due = |seat: &Seat| seat.back.is_some_and(|back| back <= now);
        if is_due(&self.runtime) {
            let listener = listen(&self.config.runtime_socket)?;
            let machine = self.machine.handle().context("no machine")?;
            let model = runtime::Model { world: self.world.clone(), machine };
            let process = Process::start(async move || runtime::serve(model, listener).await)?;
            self.runtime = Seat { process: Some(process), back: None };
        }
        if is_due(&self.volnetd) {
            self.start_volnetd()?;
        }
        if is_due(&self.syncd) {
            self.start_syncd()?;
        }
        Ok(())
    }

    fn start_volnetd(&mut self) -> Result<()> {
        let listener = listen(&self.config.paths.socket(Name::Volnetd))?;
        let side_path = self.config.paths.broker_socket();
        let _ = std::fs::remove_file(&side_path);
        let side = bulkhead_sys::scm::listen(&side_path, 0o600).context("listening for the broker")?;
        let epoch = {
            let mut world = self.world.lock();
            world.volnetd_epoch += 1;
            world.watchers.clear();
            world.volnetd_epoch
        };
        let model = volnetd::Model {
            world: self.world.clone(),
            machine: self.machine.handle().context("no machine")?,
            epoch,
            manifests: self.folder.join("manifests"),
            state: self.state.clone(),
            runtime_socket: self.config.runtime_socket.clone(),
        };
        let users = Arc::new(bulkhead_ipc::peers::PeerUsers {
            syncd: self.config.users.statusd,
            evictiond: NOBODY,
            statusd: NOBODY,
            pods_cgroup: "/simulated".into(),
            no_pods: None,
        });
        let process = Process::start(async move || volnetd::serve(model, listener, side, users).await)?;
        self.volnetd = Seat { process: Some(process), back: None };
        Ok(())
    }

    /// Another life of kubelet-syncd, with what the last one has left in its state folder.
    fn start_syncd(&mut self) -> Result<()> {
        self.next_state()?;
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
        self.syncd = Seat { process: Some(process), back: None };
        self.world.lock().life = self.lives;
        Ok(())
    }

    /// A folder of its own for each life, as the last one may hold the lock of its folder for as long as this program runs.
    fn next_state(&mut self) -> Result<()> {
        let path = self.folder.join(format!("state-{}", self.lives));
        self.lives += 1;
        std::fs::create_dir(&path).context("making the state folder")?;
        let before = self.state.lock().map_err(|_| anyhow!("poisoned"))?.clone();
        if !before.as_os_str().is_empty() {
            for entry in std::fs::read_dir(&before).context("reading the state folder")? {
                let entry = entry?;
                std::fs::rename(entry.path(), path.join(entry.file_name())).context("moving state")?;
            }
        }
        *self.state.lock().map_err(|_| anyhow!("poisoned"))? = path;
        Ok(())
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
        let (seat, down) = match command {
            Command::KillSyncd { down } => (&mut self.syncd, down),
            Command::RestartRuntime { down } => (&mut self.runtime, down),
            Command::RestartVolnetd { down } => (&mut self.volnetd, down),
        };
        if seat.process.take().is_none() {
            return;
        }
        seat.back = Some(now + Duration::from_millis(down));
        let mut world = self.world.lock();
        match command {
            Command::KillSyncd { .. } => {
                world.tell("kubelet-syncd", "is dead");
                // Connections that nobody has taken yet end with whoever made them, and who asks now waits for the next life.
            }
            Command::RestartRuntime { .. } => {
                world.listeners.clear();
                let _ = std::fs::remove_file(&self.config.runtime_socket);
                world.tell("runtime", "is away");
            }
            Command::RestartVolnetd { .. } => {
                world.watchers.clear();
                let _ = std::fs::remove_file(self.config.paths.socket(Name::Volnetd));
                let _ = std::fs::remove_file(self.config.paths.broker_socket());
                world.tell("kubelet-volnetd", "is away");
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
        }
        match deed {
            Deed::Write { pod, shape } => self.write(pod, shape)?,
            Deed::Remove { pod } => {
                self.world.lock().wanted.remove(pod);
                let path = self.folder.join("manifests").join(format!("{pod}.json"));
                if std::fs::remove_file(path).is_ok() {
                    self.tell_watchers(pod, bulkhead_ipc::volnetd::watch_event::Change::Removed);
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
            Deed::StepClock { by } => kernel::step_wall_clock(*by),
        }
        Ok(())
    }

    /// As a careful administrator: the file is written under another name and renamed.
    fn write(&mut self, pod: &str, shape: &Shape) -> Result<()> {
        let version = {
            let mut world = self.world.lock();
            let version = world.next_version();
            world.wanted.insert(pod.to_owned(), Wanted { shape: shape.clone(), version, since: kernel::now() });
            version
        };
        let container = |c: &crate::schedule::ContainerShape| {
            let mut made = json!({"name": c.name, "image": "image", "imagePullPolicy": "IfNotPresent",
                "command": c.behaviour.words()});
            if c.sidecar
                && let Some(made) = made.as_object_mut()
            {
                made.insert("restartPolicy".to_owned(), json!("Always"));
            }
            made
        };
        let manifest = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": pod, "namespace": "default", "annotations": {"simulation/version": version.to_string()}},
            "spec": {"restartPolicy": shape.restart_policy, "terminationGracePeriodSeconds": shape.grace,
                "initContainers": shape.init.iter().map(container).collect::<Vec<_>>(),
                "containers": shape.containers.iter().map(container).collect::<Vec<_>>()}});
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
            identity: String::new(),
        };
        self.world.lock().watchers.retain(|watcher| watcher.send(Ok(event.clone())).is_ok());
    }

    fn exit(&self, pick: u64, code: i32, out_of_memory: bool) {
        let running: Vec<String> = {
            let world = self.world.lock();
            world
                .containers
                .values()
                .filter(|c| c.state == crate::world::State::Running)
                .map(|c| c.id.clone())
                .collect()
        };
        let place = usize::try_from(pick.checked_rem(running.len() as u64).unwrap_or(0)).unwrap_or(0);
        let (Some(id), Some(machine)) = (running.get(place), self.machine.handle()) else { return };
        let reason = if out_of_memory { "OOMKilled" } else { "" };
        runtime::ended(&self.world, &machine, id, if out_of_memory { 137 } else { code }, reason);
    }

    fn sandbox_dies(&self, pick: u64) {
        let mut world = self.world.lock();
        let ready: Vec<String> = world.sandboxes.values().filter(|s| s.ready).map(|s| s.id.clone()).collect();
        let place = usize::try_from(pick.checked_rem(ready.len() as u64).unwrap_or(0)).unwrap_or(0);
        let (Some(id), Some(machine)) = (ready.get(place), self.machine.handle()) else { return };
        if let Some(sandbox) = world.sandboxes.get_mut(id) {
            sandbox.ready = false;
        }
        let inside: Vec<String> =
            world.containers.values().filter(|c| c.sandbox == *id).map(|c| c.id.clone()).collect();
        world.tell("runtime", format!("sandbox {id} has died"));
        drop(world);
        for container in inside {
            runtime::ended(&self.world, &machine, &container, 255, "Unknown");
        }
        runtime::tell_end(&self.world, &machine, id);
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
