//! What the kernel kills for want of memory: a container that has reached its limit, or, where the machine itself has none left, whatever
//! it picks: a container, a runtime's shim, the runtime, or one of the node's own processes.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::dice::Dice;
use crate::schedule::{CALM, Deed, Family, Step};

/// Whom the kernel picks where the machine has no memory left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Victim {
    /// All that runs in a container, as its control group ends as a whole (`memory.oom.group`).
    Container,
    /// What holds a sandbox and its containers for the runtime: they end with it.
    Shim,
    Runtime,
    Syncd,
    Statusd,
    Evictiond,
    Volnetd,
}

impl Victim {
    /// The process's name as the kernel has it, which is at most 15 letters.
    pub fn process(self) -> &'static str {
        match self {
            Victim::Container => "run",
            Victim::Shim => "containerd-shim",
            Victim::Runtime => "containerd",
            Victim::Syncd => "kubelet-syncd",
            Victim::Statusd => "kubelet-statusd",
            Victim::Evictiond => "kubelet-evictio",
            Victim::Volnetd => "kubelet-volnetd",
        }
    }
}

/// What comes to an end for want of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemoryDeed {
    /// One of the running containers, by a number that picks it, has reached its limit. The runtime knows the reason so many milliseconds
    /// later than the end.
    Limit { pick: u64, late: u64 },
    /// The kernel kills a process of one of the running containers, which has reached its limit, and the runtime says why while the
    /// container runs: that is the reason of its end, whatever it ends with. Of that it ends so many milliseconds later; None: it was not
    /// its first process, and the container goes on.
    Within { pick: u64, ends: Option<u64> },
    /// The machine has none left. A process that is started again by others comes back after so many milliseconds.
    Machine { victim: Victim, pick: u64, down: u64 },
}

impl MemoryDeed {
    /// Its name, for counting.
    pub fn kind(&self) -> &'static str {
        match self {
            MemoryDeed::Limit { .. } => "memory-limit",
            MemoryDeed::Within { .. } => "memory-within",
            MemoryDeed::Machine { .. } => "memory-of-machine",
        }
    }
}

impl fmt::Display for MemoryDeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemoryDeed::Limit { late: 0, .. } => write!(f, "a container has reached its limit of memory"),
            MemoryDeed::Limit { late, .. } => {
                write!(f, "a container has reached its limit of memory, and the runtime knows {late} ms after its end")
            }
            MemoryDeed::Within { ends: None, .. } => {
                write!(f, "a process of a container is killed at the limit of memory, and the container goes on")
            }
            MemoryDeed::Within { ends: Some(after), .. } => {
                write!(f, "a container has reached its limit of memory, and ends {after} ms after the runtime knows")
            }
            MemoryDeed::Machine { victim, .. } => {
                write!(f, "the machine is out of memory, and the kernel picks {}", victim.process())
            }
        }
    }
}

/// A third of the runs of these families have some.
pub(crate) fn faults(dice: &mut Dice, steps: &mut Vec<Step>, family: Family) {
    if !matches!(family, Family::Pods | Family::Api | Family::Eviction) || !dice.percent(33) {
        return;
    }
    let calm = u64::try_from(CALM.as_millis()).unwrap_or(u64::MAX);
    for _ in 0..dice.between(1, 4) {
        let pick = dice.draw();
        let deed = if dice.percent(35) {
            MemoryDeed::Limit { pick, late: dice.one_of(0, &[0, 5, 2_000]) }
        } else {
            let others = [Victim::Container, Victim::Shim, Victim::Runtime, Victim::Syncd, Victim::Statusd];
            let own = [Victim::Evictiond, Victim::Volnetd];
            let victim = dice.one_of(Victim::Container, &[others.as_slice(), own.as_slice()].concat());
            // The supervisor starts it again at once, or with a pause that grows.
            MemoryDeed::Machine { victim, pick, down: dice.one_of(100, &[1_000, 10_000]) }
        };
        steps.push(Step { at: dice.below(calm), deed: Deed::Memory { deed } });
    }
    for _ in 0..dice.below(3) {
        let ends = if dice.percent(50) { None } else { Some(dice.one_of(1, &[20, 2_000])) };
        let deed = MemoryDeed::Within { pick: dice.draw(), ends };
        steps.push(Step { at: dice.below(calm), deed: Deed::Memory { deed } });
    }
}
