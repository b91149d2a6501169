//! Which CPUs are taken of those that are free: whole NUMA nodes and sockets, whole caches if wanted, whole cores, single threads; at
//! each level what has least room is filled first (upstream `cpumanager/cpu_assignment.go`).

use bulkhead_config::cpu_set::CpuSet;

use crate::topology::cpus::{CpuTopology, Level};

/// In which order the threads of a socket are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// Core by core.
    #[default]
    Packed,
    /// By number: on usual machines a thread of each core, then the second of each.
    Spread,
}

/// Why CPUs cannot be taken; upstream's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TakeError {
    #[error("not enough cpus available to satisfy request: requested={requested}, available={available}")]
    NotEnough { requested: usize, available: usize },
    #[error("failed to allocate cpus")]
    Failed,
    #[error("accounting error, not enough CPUs allocated, remaining: {0}")]
    Remaining(usize),
}

/// CPUs that are free and how many of them are still wanted.
#[derive(Debug)]
pub(super) struct Accumulator<'a> {
    topology: &'a CpuTopology,
    pub(super) free: CpuSet,
    pub(super) needed: usize,
    pub(super) taken: CpuSet,
    order: Order,
    /// A NUMA node holds one socket or more; else a socket holds several nodes.
    numa_first: bool,
}

impl<'a> Accumulator<'a> {
    /// # Errors
    /// More are wanted than are free.
    pub(super) fn new(
        topology: &'a CpuTopology,
        available: &CpuSet,
        wanted: usize,
        order: Order,
    ) -> Result<Self, TakeError> {
        let free = available.intersection(topology.all());
        if wanted > free.len() {
            return Err(TakeError::NotEnough { requested: wanted, available: available.len() });
        }
        let numa_first = topology.count(Level::Socket) >= topology.count(Level::Numa);
        Ok(Accumulator { topology, free, needed: wanted, taken: CpuSet::default(), order, numa_first })
    }

    pub(super) fn free_in(&self, level: Level, id: u32) -> CpuSet {
        self.topology.within(&self.free, level, id)
    }

    /// Groups of a level that have free CPUs among these, the fullest first.
    fn sorted(&self, among: &CpuSet, level: Level) -> Vec<u32> {
        let mut ids = self.topology.groups(among, level);
        ids.sort_by_key(|id| (self.free_in(level, *id).len(), *id));
        ids
    }

    /// Groups of a level, gone through group by group of the level above.
    fn nested(&self, above: Level, outer: &[u32], level: Level) -> Vec<u32> {
        outer.iter().flat_map(|id| self.sorted(&self.free_in(above, *id), level)).collect()
    }

    pub(super) fn numa_nodes(&self) -> Vec<u32> {
        match self.numa_first {
            true => self.sorted(&self.free, Level::Numa),
            false => self.nested(Level::Socket, &self.sockets(), Level::Numa),
        }
    }

    fn sockets(&self) -> Vec<u32> {
        match self.numa_first {
            true => self.nested(Level::Numa, &self.numa_nodes(), Level::Socket),
            false => self.sorted(&self.free, Level::Socket),
        }
    }

    fn cores(&self) -> Vec<u32> {
        match self.numa_first {
            true => self.nested(Level::Socket, &self.sockets(), Level::Core),
            false => self.nested(Level::Numa, &self.numa_nodes(), Level::Core),
        }
    }

    fn cpus(&self) -> Vec<u32> {
        let (level, groups) = match self.order {
            Order::Packed => (Level::Core, self.cores()),
            Order::Spread => (Level::Socket, self.sockets()),
        };
        groups.iter().flat_map(|id| self.free_in(level, *id).iter().collect::<Vec<_>>()).collect()
    }

    pub(super) fn take(&mut self, cpus: &CpuSet) {
        let new = cpus.intersection(&self.free);
        self.free = self.free.difference(&new);
        self.taken = self.taken.union(&new);
        self.needed = self.needed.saturating_sub(new.len());
    }

    fn satisfied(&self) -> bool {
        self.needed == 0
    }

    /// Takes groups that are free as a whole, as long as at least one more is needed.
    fn take_whole(&mut self, level: Level, groups: &[u32]) {
        let whole = |id: u32| {
            let size = match level {
                // Of sockets and cores upstream takes the average for the size.
                Level::Socket | Level::Core => self.topology.per_group(level),
                Level::Numa | Level::Uncore => self.topology.group(level, id).len(),
            };
            self.free_in(level, id).len() == size
        };
        let free: Vec<u32> = groups.iter().copied().filter(|id| whole(*id)).collect();
        for id in free {
            let cpus = self.topology.group(level, id);
            if self.needed >= cpus.len() {
                self.take(&cpus);
            }
        }
    }

    fn uncore_caches(&self) -> Vec<u32> {
        self.nested(Level::Numa, &self.numa_nodes(), Level::Uncore)
    }

    /// Whole caches as long as one is needed, then all the rest from one cache if it has room.
    fn take_caches(&mut self) {
        for cache in self.uncore_caches() {
            if self.needed >= self.topology.per_group(Level::Uncore) {
                self.take_whole(Level::Uncore, &self.uncore_caches());
            }
            if self.satisfied() {
                return;
            }
            self.take_part_of_cache(cache);
            if self.satisfied() {
                return;
            }
        }
    }

    fn take_part_of_cache(&mut self, cache: u32) {
        let per_core = self.topology.per_group(Level::Core).max(1);
        let cores = self.topology.groups(&self.free_in(Level::Uncore, cache), Level::Core);
        let cores = cores.iter().take(self.needed.div_ceil(per_core));
        let mut cpus: Vec<u32> =
            cores.flat_map(|core| self.free_in(Level::Core, *core).iter().collect::<Vec<_>>()).collect();
        cpus.sort_unstable();
        // An odd number of threads: the last core gives but one.
        if !self.needed.is_multiple_of(2) && per_core > 1 && cpus.len() > self.needed {
            cpus.pop();
        }
        if cpus.len() == self.needed {
            self.take(&cpus.into_iter().collect());
        }
    }

    fn take_single(&mut self) {
        for cpu in self.cpus() {
            self.take(&CpuSet::from_iter([cpu]));
            if self.satisfied() {
                return;
            }
        }
    }
}

/// Takes CPUs as near together as can be.
///
/// # Errors
/// There are not as many.
pub fn take_packed(
    topology: &CpuTopology,
    available: &CpuSet,
    wanted: usize,
    order: Order,
    prefer_caches: bool,
) -> Result<CpuSet, TakeError> {
    let mut free = Accumulator::new(topology, available, wanted, order)?;
    let steps: [fn(&mut Accumulator<'_>); 4] = [
        |a| {
            if a.numa_first {
                a.take_whole(Level::Numa, &a.numa_nodes());
            } else {
                a.take_whole(Level::Socket, &a.sockets());
            }
        },
        |a| {
            if a.numa_first {
                a.take_whole(Level::Socket, &a.sockets());
            } else {
                a.take_whole(Level::Numa, &a.numa_nodes());
            }
        },
        |a| a.take_whole(Level::Core, &a.cores()),
        |a| a.take_single(),
    ];
    for (at, step) in steps.into_iter().enumerate() {
        if free.satisfied() {
            break;
        }
        if at == 2 && prefer_caches {
            free.take_caches();
        }
        // Threads that are to be spread are not taken by whole cores.
        let passed_over = at == 2 && order == Order::Spread;
        if !free.satisfied() && !passed_over {
            step(&mut free);
        }
    }
    if free.satisfied() { Ok(free.taken) } else { Err(TakeError::Failed) }
}
