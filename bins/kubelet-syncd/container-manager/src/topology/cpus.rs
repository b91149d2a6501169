//! CPUs by core, cache, socket and NUMA node (upstream `cpumanager/topology`).

use std::collections::{BTreeMap, BTreeSet};

use bulkhead_config::cpu_set::CpuSet;

use super::machine::Machine;

/// Where a CPU is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuInfo {
    pub numa: u32,
    pub socket: u32,
    /// The number of its core's first CPU: the kernel's own numbers of cores are no more than one socket's.
    pub core: u32,
    pub uncore: u32,
}

/// What CPUs are grouped by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    Numa,
    Socket,
    Uncore,
    Core,
}

impl CpuInfo {
    fn id(&self, level: Level) -> u32 {
        match level {
            Level::Numa => self.numa,
            Level::Socket => self.socket,
            Level::Uncore => self.uncore,
            Level::Core => self.core,
        }
    }
}

/// All CPUs that are online.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpuTopology {
    cpus: BTreeMap<u32, CpuInfo>,
    all: CpuSet,
}

impl CpuTopology {
    pub fn new(cpus: BTreeMap<u32, CpuInfo>) -> Self {
        let all = cpus.keys().copied().collect();
        CpuTopology { cpus, all }
    }

    /// A core without a cache of its own kind counts as one of its socket's cache.
    pub fn of(machine: &Machine) -> Self {
        let mut cpus = BTreeMap::new();
        for node in &machine.nodes {
            for core in &node.cores {
                let Some(id) = core.threads.iter().min() else { continue };
                let uncore = core.uncore_cache.unwrap_or(core.socket);
                let info = CpuInfo { numa: node.id, socket: core.socket, core: *id, uncore };
                cpus.extend(core.threads.iter().map(|cpu| (*cpu, info)));
            }
        }
        CpuTopology::new(cpus)
    }

    pub fn all(&self) -> &CpuSet {
        &self.all
    }

    pub fn info(&self, cpu: u32) -> Option<&CpuInfo> {
        self.cpus.get(&cpu)
    }

    /// The groups that these CPUs belong to, ascending.
    pub fn groups(&self, cpus: &CpuSet, level: Level) -> Vec<u32> {
        let ids: BTreeSet<u32> = cpus.iter().filter_map(|cpu| Some(self.info(cpu)?.id(level))).collect();
        ids.into_iter().collect()
    }

    /// Those of these CPUs that belong to a group.
    pub fn within(&self, cpus: &CpuSet, level: Level, id: u32) -> CpuSet {
        cpus.iter().filter(|cpu| self.info(*cpu).is_some_and(|info| info.id(level) == id)).collect()
    }

    /// All CPUs of a group.
    pub fn group(&self, level: Level, id: u32) -> CpuSet {
        self.within(&self.all, level, id)
    }

    pub fn count(&self, level: Level) -> usize {
        self.groups(&self.all, level).len()
    }

    /// CPUs in a group on average, rounded down: upstream looks at this and not at the single group.
    pub fn per_group(&self, level: Level) -> usize {
        self.all.len().checked_div(self.count(level)).unwrap_or(0)
    }

    /// All share one last-level cache.
    pub fn uncore_aligned(&self, cpus: &CpuSet) -> bool {
        self.groups(cpus, Level::Uncore).len() <= 1
    }
}
