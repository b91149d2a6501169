//! Containers and sandboxes that end by nobody's wish, and kills for want of memory.

use serde_json::Value;

use super::Node;
use crate::memory_schedule::{MemoryDeed, Victim};
use crate::process::Process;
use crate::schedule::Program;
use crate::world::{Command, State};
use crate::{memory, runtime};

/// Where kubelet-syncd keeps which kill it has told of last.
const TOLD: &str = "out-of-memory.json";

/// The most that a daemon may have on its heap, KiB: some two and a half times as much as any was seen to have.
#[derive(Debug, Clone, Copy)]
struct Bound {
    itself: u64,
    /// For each pod that is wanted or shown.
    of_pod: u64,
}

const HEAPS: [(Program, Bound); 3] = [
    (Program::Syncd, Bound { itself: 4 << 10, of_pod: 512 }),
    (Program::Statusd, Bound { itself: 2 << 10, of_pod: 128 }),
    (Program::Evictiond, Bound { itself: 2 << 10, of_pod: 128 }),
];

/// One of them, by a number that picks it.
fn pick<T: Clone>(all: &[T], pick: u64) -> Option<T> {
    let place = usize::try_from(pick.checked_rem(all.len() as u64)?).ok()?;
    all.get(place).cloned()
}

impl Node {
    /// What each daemon has on its heap, which goes with the pods that there are: what waits and what is remembered has its bounds.
    pub(super) fn look_at_heaps(&mut self) {
        let pods = {
            let world = self.world.lock();
            u64::try_from(world.shown.len().max(world.wanted.len())).unwrap_or(u64::MAX)
        };
        for (program, bound) in HEAPS {
            let held = self.seat(program).and_then(|seat| seat.process.as_ref()).map_or(0, Process::held) >> 10;
            let most = bound.itself + bound.of_pod.saturating_mul(pods);
            if held > most {
                let text = format!("{} has {held} KiB on its heap with {pods} pods, at most {most}", program.name());
                self.world.lock().breaks("heap-bound", text);
            }
        }
    }

    pub(super) fn exit(&self, number: u64, code: i32, out_of_memory: bool) {
        let (Some(id), Some(machine)) = (self.running(number), self.machine.handle()) else { return };
        let reason = if out_of_memory { "OOMKilled" } else { "" };
        runtime::ended(&self.world, &machine, &id, if out_of_memory { 137 } else { code }, reason);
    }

    pub(super) fn sandbox_dies(&self, number: u64) {
        let (Some(id), Some(machine)) = (self.ready_sandbox(number), self.machine.handle()) else { return };
        runtime::sandbox_dies(&self.world, &machine, &id);
    }

    fn running(&self, number: u64) -> Option<String> {
        let world = self.world.lock();
        let running = world.containers.values().filter(|container| container.state == State::Running);
        pick(&running.map(|container| container.id.clone()).collect::<Vec<_>>(), number)
    }

    fn ready_sandbox(&self, number: u64) -> Option<String> {
        let world = self.world.lock();
        let ready = world.sandboxes.values().filter(|sandbox| sandbox.ready);
        pick(&ready.map(|sandbox| sandbox.id.clone()).collect::<Vec<_>>(), number)
    }

    pub(super) fn do_memory_step(&mut self, deed: MemoryDeed) {
        match deed {
            MemoryDeed::Limit { pick, late } => self.kill_container(pick, true, late),
            MemoryDeed::Within { pick, ends } => {
                let (Some(id), Some(machine)) = (self.running(pick), self.machine.handle()) else { return };
                memory::kill_in_container(&self.world, &machine, &id, ends);
            }
            MemoryDeed::Machine { victim: Victim::Container, pick, .. } => self.kill_container(pick, false, 0),
            MemoryDeed::Machine { victim: Victim::Shim, pick, .. } => {
                let (Some(sandbox), Some(machine)) = (self.ready_sandbox(pick), self.machine.handle()) else { return };
                self.world.lock().kill(Victim::Shim.process(), None, false);
                runtime::sandbox_dies(&self.world, &machine, &sandbox);
            }
            MemoryDeed::Machine { victim, down, .. } => {
                let command = match victim {
                    Victim::Syncd => Command::KillSyncd { down },
                    Victim::Statusd => Command::KillStatusd { down },
                    Victim::Evictiond => Command::KillEvictiond { down },
                    Victim::Volnetd => Command::RestartVolnetd { down },
                    Victim::Runtime | Victim::Container | Victim::Shim => Command::RestartRuntime { down },
                };
                // Nobody kills who is not there.
                if self.is_there(command) {
                    self.world.lock().kill(victim.process(), None, false);
                    self.command(command);
                }
            }
        }
    }

    fn is_there(&self, command: Command) -> bool {
        let cluster = self.cluster.as_ref();
        let seat = match command {
            Command::KillSyncd { .. } => Some(&self.syncd),
            Command::KillStatusd { .. } => cluster.map(|cluster| &cluster.statusd),
            Command::KillEvictiond { .. } => self.evictiond.as_ref().map(|evictiond| &evictiond.seat),
            Command::RestartVolnetd { .. } => Some(&self.volnetd),
            _ => Some(&self.runtime),
        };
        seat.is_some_and(|seat| seat.process.is_some())
    }

    fn kill_container(&self, number: u64, is_limit: bool, late: u64) {
        let (Some(id), Some(machine)) = (self.running(number), self.machine.handle()) else { return };
        memory::kill_container(&self.world, &machine, &id, is_limit, late);
    }

    /// kubelet-syncd ends: what it has taken and nobody has from it is told by nobody else.
    pub(super) fn note_told_kills(&self) {
        let state = self.state.lock();
        let kept = std::fs::read(state.join(TOLD)).ok();
        let kept = kept.and_then(|kept| serde_json::from_slice::<Value>(&kept).ok());
        let of_boot = kept.filter(|kept| kept["boot_id"] == self.config.boot_id.as_str());
        self.world.lock().memory.syncd_ends(of_boot.and_then(|kept| kept["sequence"].as_u64()));
    }
}
