//! kubelet-evictiond on the node of family `eviction`: the process, the relay to kubelet-syncd, kubelet-walker's model, and what the
//! checks of pressure look at from turn to turn.

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

use super::disk::Disk;
use super::{Cluster, Node, Seat};
use crate::pressure::Uses;
use crate::pressure_schedule::{CLASSES, OLD_IMAGES, Plan, PressureDeed};
use crate::process::Process;
use crate::schedule::Program;
use crate::world::{Command, Shared};
use crate::{relay, walker};

/// The user that kubelet-evictiond is to kubelet-syncd. No process has it.
pub(super) const EVICTIOND: u32 = u32::MAX - 2;
/// So long after something was wrong kubelet-evictiond has what it asks for.
const SETTLED: Duration = Duration::from_secs(15);
/// When checks that speak of time are looked at again.
const LOOK: Duration = Duration::from_secs(5);

/// See the module.
#[derive(Debug)]
pub(super) struct Evictiond {
    /// Other sockets stand for who it is to kubelet-volnetd, and on the way to kubelet-syncd the relay stands.
    pub(super) config: NodeConfig,
    pub(super) seat: Seat,
    pub(super) state: Arc<Mutex<PathBuf>>,
    socket: UnixListener,
    lives: u64,
    next_look: Duration,
    /// When all pressure ends.
    relax: Option<Duration>,
}

impl Evictiond {
    /// `cluster`: with kubelet-statusd, which listens to kubelet-evictiond.
    pub(super) fn start(
        node: &NodeConfig,
        cluster: &Cluster,
        plan: Plan,
        folder: &Path,
        world: &Shared,
        machine: &Process,
    ) -> Result<Self> {
        {
            let mut world = world.lock();
            world.log_files.plan = plan.logs.clone();
            world.memory.on = true;
            world.pressure.begin(plan, &folder.join("machine"))?;
            world.images.extend(OLD_IMAGES.map(|(name, _)| name.to_owned()));
            world.note_pressure();
        }
        for (name, value) in CLASSES {
            let class = json!({"metadata": {"name": name}, "value": value});
            let path = "/apis/scheduling.k8s.io/v1/priorityclasses";
            let made = cluster.model.request("POST", path, &class);
            made.map_err(|refusal| anyhow!("a class of priority: {refusal}"))?;
        }
        let mut config = node.clone();
        config.paths.run_dir = folder.join("run-evictiond");
        config.users.evictiond = super::NOBODY;
        std::fs::create_dir_all(&config.paths.run_dir).context("making a folder")?;
        let path = config.paths.socket(Name::Evictiond);
        let socket = UnixListener::bind(&path).context("listening for kubelet-evictiond")?;
        std::os::unix::fs::symlink(&path, cluster.config.paths.socket(Name::Evictiond)).context("linking a socket")?;
        let machine = machine.handle().context("no machine")?;
        let listener = super::listen(&config.paths.socket(Name::Syncd))?;
        machine.spawn(relay::serve(world.clone(), listener, node.paths.socket(Name::Syncd), EVICTIOND));
        let path = kubelet_evictiond::walker::socket(&config.paths);
        let listener = bulkhead_sys::scm::listen(&path, 0o600).context("listening for kubelet-walker")?;
        machine.spawn(walker::serve(world.clone(), listener));
        let (state, relax) = (Arc::default(), Some(world.lock().calm));
        Ok(Evictiond { config, seat: Seat::empty(), state, socket, lives: 0, next_look: LOOK, relax })
    }

    /// Another life of it.
    fn begin(&mut self, folder: &Path, world: &Shared, disk: &mut Disk) -> Result<()> {
        disk.next_state(Program::Evictiond, folder, self.lives, &self.state)?;
        self.lives += 1;
        let socket = self.socket.try_clone().context("passing the socket")?.into();
        let kernel_log = world.lock().memory.open().context("opening the kernel's log")?;
        let listeners = [("grpc".to_owned(), socket), ("kmsg".to_owned(), kernel_log)].into();
        let daemon = Daemon::new(Name::Evictiond, self.config.clone(), listeners, Applied::default(), None);
        let daemon = Arc::new(daemon.map_err(|message| anyhow!(message))?);
        let shared = world.clone();
        shared.lock().tell("kubelet-evictiond", "starts");
        let process = Process::start(async move || {
            let ended = kubelet_evictiond::run(daemon).await;
            shared.lock().breaks("no-end", format!("kubelet-evictiond has ended: {ended:?}"));
            std::future::pending::<()>().await;
        })?;
        self.seat = Seat::taken(process);
        Ok(())
    }

    /// When something is to be done that nobody else does.
    pub(super) fn next(&self, world: &Shared) -> impl Iterator<Item = Option<Duration>> {
        [Some(self.next_look), self.relax, world.lock().pressure.ends()].into_iter()
    }
}

impl Node {
    /// It is due to come (back), or all pressure is over.
    pub(super) fn take_evictiond(&mut self) -> Result<()> {
        let Some(evictiond) = &mut self.evictiond else { return Ok(()) };
        let now = kernel::now();
        if evictiond.seat.back.is_some_and(|back| back <= now) {
            evictiond.begin(&self.folder, &self.world, &mut self.disk)?;
            self.world.lock().pressure.disturb();
        }
        if evictiond.relax.is_some_and(|at| at <= now) {
            evictiond.relax = None;
            let mut world = self.world.lock();
            world.pressure.relax();
            world.tell("somebody", "the node has enough of everything from now on");
        }
        Ok(())
    }

    /// What has changed in a turn. `of_syncd`: it was one of kubelet-syncd.
    pub(super) fn look_at_pressure(world: &Shared, state: Option<&Mutex<PathBuf>>) {
        let mut world = world.lock();
        if !world.pressure.on {
            return;
        }
        if let Some(state) = state {
            world.look_at_evictions(&state.lock());
        }
        world.note_ends_of_evicted();
    }

    /// After the turns of all.
    pub(super) fn note_pressure(&mut self) {
        let Some(evictiond) = &mut self.evictiond else { return };
        let looks = evictiond.seat.process.is_some() && evictiond.seat.stopped.is_none();
        let seats = [&self.syncd, &self.runtime, &self.volnetd, &evictiond.seat];
        let is_disturbed = seats.iter().any(|seat| seat.process.is_none() || seat.stopped.is_some());
        let mut world = self.world.lock();
        // Versions that differ may know nothing of each other's work.
        if is_disturbed
            || !world.ages.is_empty()
            || world.pressure.is_blind()
            || world.pressure.walker_is_late() > Duration::ZERO
        {
            world.pressure.disturb();
        }
        world.pressure.looks = looks && world.pressure.is_quiet_for(SETTLED);
        world.note_pressure();
        if evictiond.next_look <= kernel::now() {
            evictiond.next_look = kernel::now() + LOOK;
            world.check_pressure();
            world.check_logs();
        }
    }

    pub(super) fn do_pressure_step(&mut self, deed: &PressureDeed) {
        let mut world = self.world.lock();
        let time = |milliseconds: &u64| Duration::from_millis(*milliseconds);
        match deed {
            PressureDeed::Use { pod, memory, disk, tasks } => {
                world.pressure.uses(pod, Uses { memory: *memory, disk: *disk, images: 0, tasks: *tasks });
            }
            PressureDeed::Elsewhere { memory, disk, images, tasks } => {
                let uses = Uses { memory: *memory, disk: *disk, images: *images, tasks: *tasks };
                world.pressure.uses_elsewhere(uses);
            }
            PressureDeed::KillEvictiond { down } => world.commands.push(Command::KillEvictiond { down: *down }),
            PressureDeed::Break => world.pressure.breaks.send_modify(|count| *count += 1),
            PressureDeed::Blind { lasts } => world.pressure.blind(time(lasts)),
            PressureDeed::LateFigures { lasts, by } => world.pressure.late_figures(time(lasts), time(by)),
            PressureDeed::Rotation { peer, fault } => world.rotation_fails(*peer, *fault),
        }
    }
}
