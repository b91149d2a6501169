//! The static policy (upstream `cpumanager/policy_static.go`): containers of Guaranteed pods that ask for whole CPUs have them for
//! themselves; all others share the rest.

use std::collections::BTreeMap;

use bulkhead_config::cpu_set::CpuSet;
use bulkhead_types::Quantity;

use super::accumulator::{Order, TakeError, take_packed};
use super::distributed::take_distributed;
use super::options::{CpuOptionError, CpuOptions};
use super::state::CpuState;
use crate::request::{ContainerRequest, Gates, Kind, PodRequest};
use crate::topology::cpus::{CpuTopology, Level};
use crate::topology::mask::{NumaMask, combinations_of};
use crate::topology::options::Policy;
use crate::topology::{Counts, Hint, HintProvider, Refusal, ResourceHints};

/// Why the node does not start; upstream's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CpuManagerError {
    #[error("unknown policy: \"{0}\"")]
    Policy(String),
    /// The options as Go prints a map.
    #[error("new none policy error: None policy: received unsupported options=map[{0}]")]
    NoneOptions(String),
    #[error("[cpumanager] unable to determine reserved CPU resources for static policy")]
    NoReservation,
    #[error("[cpumanager] the static policy requires systemreserved.cpu + kubereserved.cpu to be greater than zero")]
    ZeroReservation,
    #[error("new static policy error: {0}")]
    Options(#[from] CpuOptionError),
    #[error(
        "new static policy error: [cpumanager] unable to reserve the required amount of CPUs (size of {reserved} did not equal {wanted})"
    )]
    Reserve { reserved: CpuSet, wanted: usize },
    #[error(
        "new static policy error: [cpumanager] unable to build the reserved physical CPUs from the reserved set: unknown CPU ID: {0}"
    )]
    UnknownCpu(u32),
    #[error("default cpuset cannot be empty")]
    EmptyDefault,
    #[error("some of strictly reserved cpus: \"{both}\" are present in defaultCpuSet: \"{default}\"")]
    StrictlyReserved { both: CpuSet, default: CpuSet },
    #[error("not all reserved cpus: \"{reserved}\" are present in defaultCpuSet: \"{default}\"")]
    NotReserved { reserved: CpuSet, default: CpuSet },
    #[error("pod: {pod}, container: {container} cpuset: \"{cpus}\" overlaps with default cpuset \"{default}\"")]
    Overlap { pod: String, container: String, cpus: CpuSet, default: CpuSet },
    #[error("current set of available CPUs \"{available}\" doesn't match with CPUs in state \"{known}\"")]
    OtherCpus { available: CpuSet, known: CpuSet },
}

/// CPUs that nobody may have for himself.
#[derive(Debug, Clone, Default)]
pub struct Reservation {
    /// `reservedSystemCPUs`; empty: the first cores, as many as `amount` says.
    pub cpus: CpuSet,
    /// What node allocatable lays aside.
    pub amount: Option<Quantity>,
}

/// The policy and its state.
#[derive(Debug, Clone)]
pub struct StaticCpu {
    topology: CpuTopology,
    options: CpuOptions,
    reserved: CpuSet,
    /// All CPUs of the cores that reserved ones are of.
    reserved_cores: CpuSet,
    gates: Gates,
    pub state: CpuState,
    pub counts: Counts,
    /// CPUs of the init containers of the pod that is being taken in, which those after them may have.
    reusable: Option<(String, CpuSet)>,
}

impl StaticCpu {
    /// With an empty state; a state from a file is set by [`StaticCpu::restore`].
    ///
    /// # Errors
    /// Options or reservation do not fit each other or the machine.
    pub fn new(
        topology: CpuTopology,
        options: &BTreeMap<String, String>,
        reservation: &Reservation,
        policy: Policy,
        gates: Gates,
    ) -> Result<Self, CpuManagerError> {
        let amount = reservation.amount.ok_or(CpuManagerError::NoReservation)?;
        if amount.is_zero() {
            return Err(CpuManagerError::ZeroReservation);
        }
        let wanted = usize::try_from(amount.milli_value().max(0)).unwrap_or(0).div_ceil(1000);
        let options = CpuOptions::parse(options, gates)?;
        options.check(&topology, policy)?;
        let mut manager = StaticCpu {
            topology,
            options,
            reserved: reservation.cpus.clone(),
            reserved_cores: CpuSet::default(),
            gates,
            state: CpuState::default(),
            counts: Counts::default(),
            reusable: None,
        };
        if manager.reserved.is_empty() {
            manager.reserved = manager.take(manager.topology.all(), wanted).unwrap_or_default();
        }
        if manager.reserved.len() != wanted {
            return Err(CpuManagerError::Reserve { reserved: manager.reserved, wanted });
        }
        for cpu in manager.reserved.iter() {
            let core = manager.topology.info(cpu).ok_or(CpuManagerError::UnknownCpu(cpu))?.core;
            manager.reserved_cores = manager.reserved_cores.union(&manager.topology.group(Level::Core, core));
        }
        manager.state.default = manager.pool();
        Ok(manager)
    }

    /// All CPUs that containers may run on.
    fn pool(&self) -> CpuSet {
        match self.options.strict_reservation {
            true => self.topology.all().difference(&self.reserved),
            false => self.topology.all().clone(),
        }
    }

    /// Takes over a state that was kept.
    ///
    /// # Errors
    /// It does not fit the machine, the reservation, or itself.
    pub fn restore(&mut self, state: CpuState) -> Result<(), CpuManagerError> {
        if state.default.is_empty() && state.entries.is_empty() {
            // A file that nobody has written anything to.
            return Ok(());
        }
        // Where reserved CPUs are nobody's, all others may have been given. Upstream gives them too, and refuses to start after that.
        if state.default.is_empty() && !self.options.strict_reservation {
            return Err(CpuManagerError::EmptyDefault);
        }
        let default = || state.default.clone();
        let both = self.reserved.intersection(&state.default);
        if self.options.strict_reservation && !both.is_empty() {
            return Err(CpuManagerError::StrictlyReserved { both, default: default() });
        }
        if !self.options.strict_reservation && both != self.reserved {
            return Err(CpuManagerError::NotReserved { reserved: self.reserved.clone(), default: default() });
        }
        let mut known = default();
        for (pod, containers) in &state.entries {
            for (container, cpus) in containers {
                if !cpus.intersection(&state.default).is_empty() {
                    let (pod, container) = (pod.clone(), container.clone());
                    return Err(CpuManagerError::Overlap { pod, container, cpus: cpus.clone(), default: default() });
                }
                known = known.union(cpus);
            }
        }
        if self.gates.pod_level {
            known = state.pods.values().fold(known, |known, cpus| known.union(cpus));
        }
        if known != self.pool() {
            return Err(CpuManagerError::OtherCpus { available: self.pool(), known });
        }
        self.state = state;
        Ok(())
    }

    pub fn topology(&self) -> &CpuTopology {
        &self.topology
    }

    /// CPUs that containers can have for themselves at all.
    pub fn allocatable(&self) -> CpuSet {
        self.topology.all().difference(&self.reserved)
    }

    /// CPUs that can be had now.
    pub fn available(&self) -> CpuSet {
        self.state.default.difference(&self.reserved)
    }

    fn take(&self, from: &CpuSet, count: usize) -> Result<CpuSet, TakeError> {
        let order = if self.options.distribute_across_cores { Order::Spread } else { Order::Packed };
        if self.options.distribute_across_numa {
            let group = if self.options.full_pcpus_only { self.topology.per_group(Level::Core) } else { 1 };
            return take_distributed(&self.topology, from, count, group, order);
        }
        take_packed(&self.topology, from, count, order, self.options.prefer_align_by_uncore)
    }

    /// CPUs of the hint's nodes first, then others.
    fn allocate_cpus(&mut self, count: usize, best: Hint, reusable: &CpuSet) -> Result<CpuSet, TakeError> {
        let from = self.available().union(reusable);
        let mut taken = CpuSet::default();
        if let Some(mask) = best.affinity {
            let aligned = self.aligned(mask, &from);
            taken = self.take(&aligned, count.min(aligned.len()))?;
        }
        let rest = self.take(&from.difference(&taken), count - taken.len())?;
        let taken = taken.union(&rest);
        self.state.default = self.state.default.difference(&taken);
        Ok(taken)
    }

    /// Those of the hint's nodes; with `align-by-socket` those of the nodes' sockets.
    fn aligned(&self, mask: NumaMask, from: &CpuSet) -> CpuSet {
        let in_mask = |cpu: &u32| self.topology.info(*cpu).is_some_and(|info| mask.has(info.numa));
        if !self.options.align_by_socket {
            return from.iter().filter(in_mask).collect();
        }
        let sockets = self.topology.groups(&self.topology.all().iter().filter(in_mask).collect(), Level::Socket);
        let in_socket = |cpu: &u32| self.topology.info(*cpu).is_some_and(|info| sockets.contains(&info.socket));
        from.iter().filter(in_socket).collect()
    }

    fn reusable_of(&self, uid: &str) -> CpuSet {
        self.reusable.as_ref().filter(|(pod, _)| pod == uid).map(|(_, cpus)| cpus.clone()).unwrap_or_default()
    }

    /// An init container's CPUs may be had by those after it; a sidecar keeps its own.
    fn update_reusable(&mut self, uid: &str, kind: Kind, cpus: &CpuSet) {
        let had = self.reusable_of(uid);
        let now = if kind == Kind::Init { had.union(cpus) } else { had.difference(cpus) };
        self.reusable = Some((uid.to_owned(), now));
    }

    /// With `full-pcpus-only` nobody gets half a core.
    fn check_smt(&self, wanted: usize) -> Result<(), Refusal> {
        let per_core = self.topology.per_group(Level::Core).max(1);
        let refuse = |message| Err(Refusal { reason: "SMTAlignmentError", message });
        if !self.options.full_pcpus_only {
            return Ok(());
        }
        if !wanted.is_multiple_of(per_core) {
            return refuse(format!(
                "SMT Alignment Error: requested {wanted} cpus not multiple cpus per core = {per_core}"
            ));
        }
        let free = self.state.default.difference(&self.reserved_cores).len();
        if wanted > free {
            return refuse(format!(
                "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = {free}, requested CPUs = {wanted}, CPUs per core = {per_core}"
            ));
        }
        Ok(())
    }

    /// Takes a container's CPUs back. Those that another of the pod's containers has too (an init container's that were had again) stay
    /// with it; those of a pod that has some as a whole come back with its last container.
    pub fn remove(&mut self, uid: &str, container: &str) {
        let Some(cpus) = self.state.take(uid, container) else { return };
        // Not any more: a static pod may come again under its uid.
        self.reusable.take_if(|(pod, _)| pod == uid);
        if self.gates.pod_level && self.state.pods.contains_key(uid) {
            if !self.state.entries.contains_key(uid) {
                let cpus = self.state.pods.remove(uid).unwrap_or_default();
                self.state.default = self.state.default.union(&cpus);
            }
            return;
        }
        let siblings = self.state.entries.get(uid).into_iter().flat_map(|containers| containers.values());
        let in_use = siblings.fold(CpuSet::default(), |sum, cpus| sum.union(cpus));
        self.state.default = self.state.default.union(&cpus.difference(&in_use));
    }

    /// As upstream's tables of hints have it.
    #[cfg(test)]
    pub(super) fn forget_reservation(&mut self) {
        self.reserved = CpuSet::default();
    }

    fn hint_list(&self, available: &CpuSet, reusable: &CpuSet, wanted: usize) -> Vec<Hint> {
        let nodes = self.topology.groups(self.topology.all(), Level::Numa);
        // How many each node has, once and not for each of the masks.
        let count = |cpus: &CpuSet| -> Vec<(u32, usize)> {
            nodes.iter().map(|node| (*node, self.topology.within(cpus, Level::Numa, *node).len())).collect()
        };
        let in_mask = |counts: &[(u32, usize)], mask: NumaMask| -> usize {
            counts.iter().filter(|(node, _)| mask.has(*node)).map(|(_, count)| count).sum()
        };
        let (all, free, kept) = (count(self.topology.all()), count(available), count(reusable));
        let (mut least, mut masks) = (nodes.len(), Vec::new());
        for mask in combinations_of(&nodes) {
            if in_mask(&all, mask) >= wanted {
                least = least.min(mask.count());
            }
            // What the pod's own containers leave must lie within the mask whole.
            let whole = in_mask(&kept, mask) == reusable.len();
            if whole && reusable.len() + in_mask(&free, mask) >= wanted {
                masks.push(mask);
            }
        }
        let preferred =
            |mask: NumaMask| mask.count() == least || (self.options.align_by_socket && self.fills_sockets(mask, least));
        masks.into_iter().map(|mask| Hint::new(mask, preferred(mask))).collect()
    }

    /// The mask reaches over no more sockets than the narrowest must.
    fn fills_sockets(&self, mask: NumaMask, least: usize) -> bool {
        let sockets = self.topology.count(Level::Socket).max(1);
        let per_socket = self.topology.count(Level::Numa) / sockets;
        if per_socket == 0 {
            return false;
        }
        let in_mask = |cpu: &u32| self.topology.info(*cpu).is_some_and(|info| mask.has(info.numa));
        let cpus: CpuSet = self.topology.all().iter().filter(in_mask).collect();
        self.topology.groups(&cpus, Level::Socket).len() == least.div_ceil(per_socket)
    }

    fn cpu_hints(hints: Vec<Hint>) -> ResourceHints {
        ResourceHints::from([("cpu".to_owned(), Some(hints))])
    }
}

/// A pod's own CPUs are all given to some of its containers, and others of them have none left (upstream
/// `validatePodScopeResources`).
fn check_shared_pool(pod: &PodRequest) -> Result<(), String> {
    let (mut sum, mut shared) = (0_u32, false);
    for container in &pod.containers {
        match (container.kind, container.cpus) {
            (Kind::Init, 0) if sum >= pod.cpus => {
                return Err("pod rejected, pod has shared init containers but no cpus available for them".to_owned());
            }
            (Kind::Init, _) => {}
            (_, 0) => shared = true,
            (_, cpus) => sum = sum.saturating_add(cpus),
        }
    }
    if shared && sum >= pod.cpus {
        return Err(
            "pod rejected, sum of exclusive container cpu requests equals pod budget, leaving no cpus for shared containers"
                .to_owned(),
        );
    }
    Ok(())
}

impl HintProvider for StaticCpu {
    fn hints(&self, pod: &PodRequest, container: &ContainerRequest) -> ResourceHints {
        let wanted = container.cpus as usize;
        if wanted == 0 || !pod.managed {
            return ResourceHints::new();
        }
        match self.state.get(&pod.uid, &container.name) {
            Some(has) if has.len() != wanted => Self::cpu_hints(Vec::new()),
            Some(has) => Self::cpu_hints(self.hint_list(has, &CpuSet::default(), wanted)),
            None => Self::cpu_hints(self.hint_list(&self.available(), &self.reusable_of(&pod.uid), wanted)),
        }
    }

    fn pod_hints(&self, pod: &PodRequest) -> ResourceHints {
        let wanted = pod.cpus as usize;
        if wanted == 0 || !pod.managed {
            return ResourceHints::new();
        }
        if pod.by_pod() && check_shared_pool(pod).is_err() {
            return Self::cpu_hints(Vec::new());
        }
        // It has its CPUs already: upstream misses those that containers share, and so refuses such a pod after a restart.
        if let Some(has) = self.state.pods.get(&pod.uid).filter(|_| pod.by_pod()) {
            let fits = has.len() == wanted;
            return Self::cpu_hints(if fits { self.hint_list(has, &CpuSet::default(), wanted) } else { Vec::new() });
        }
        let mut has = CpuSet::default();
        for container in &pod.containers {
            let Some(own) = self.state.get(&pod.uid, &container.name) else { continue };
            if own.len() != container.cpus as usize {
                return Self::cpu_hints(Vec::new());
            }
            has = has.union(own);
        }
        if has.len() == wanted {
            return Self::cpu_hints(self.hint_list(&has, &CpuSet::default(), wanted));
        }
        let reusable = self.reusable_of(&pod.uid).union(&has);
        Self::cpu_hints(self.hint_list(&self.available(), &reusable, wanted))
    }

    fn allocate(&mut self, pod: &PodRequest, container: &ContainerRequest, best: Hint) -> Result<(), Refusal> {
        if container.cpus == 0 || !pod.managed {
            return Ok(());
        }
        self.counts.node.requests += 1;
        let outcome = self.allocate_container(pod, container, best);
        self.counts.node.errors += u64::from(outcome.is_err());
        outcome
    }

    fn allocate_pod(&mut self, pod: &PodRequest, best: Hint) -> Result<(), Refusal> {
        // A pod that has its CPUs keeps them; upstream would give it others beside.
        if pod.cpus == 0 || self.state.pods.contains_key(&pod.uid) {
            return Ok(());
        }
        let outcome = self.allocate_all(pod, best);
        self.counts.pod.errors += u64::from(outcome.is_err());
        outcome
    }
}

impl StaticCpu {
    /// CPUs that containers have for themselves.
    pub fn exclusive(&self) -> CpuSet {
        let all = self.state.entries.values().flat_map(BTreeMap::values);
        all.fold(CpuSet::default(), |sum, cpus| sum.union(cpus))
    }

    /// The same by NUMA node, for each node of the machine.
    pub fn exclusive_by_node(&self) -> BTreeMap<u32, usize> {
        let (exclusive, nodes) = (self.exclusive(), self.topology.groups(self.topology.all(), Level::Numa));
        nodes.iter().map(|node| (*node, self.topology.within(&exclusive, Level::Numa, *node).len())).collect()
    }

    /// `full-pcpus-only`: what is given is whole cores.
    pub fn gives_whole_cores(&self) -> bool {
        self.options.full_pcpus_only
    }

    fn allocate_container(
        &mut self,
        pod: &PodRequest,
        container: &ContainerRequest,
        best: Hint,
    ) -> Result<(), Refusal> {
        let wanted = container.cpus as usize;
        if let Some(has) = self.state.get(&pod.uid, &container.name).cloned() {
            // Upstream asks for whole free cores first here too, and so refuses a pod at a restart for the cores that it has itself.
            self.update_reusable(&pod.uid, container.kind, &has);
            return Ok(());
        }
        self.check_smt(wanted)?;
        let reusable = self.reusable_of(&pod.uid);
        let cpus = self.allocate_cpus(wanted, best, &reusable).map_err(Refusal::unexpected)?;
        self.counts.uncore_aligned += u64::from(self.topology.uncore_aligned(&cpus));
        self.counts.node.allocations += 1;
        self.counts.node.exclusive += 1;
        self.update_reusable(&pod.uid, container.kind, &cpus);
        self.state.set(&pod.uid, &container.name, cpus);
        Ok(())
    }

    fn allocate_all(&mut self, pod: &PodRequest, best: Hint) -> Result<(), Refusal> {
        let wanted = pod.cpus as usize;
        check_shared_pool(pod).map_err(Refusal::empty_shared_pool)?;
        self.check_smt(wanted)?;
        let all = self.allocate_cpus(wanted, best, &CpuSet::default()).map_err(Refusal::unexpected)?;
        self.counts.uncore_aligned += u64::from(self.topology.uncore_aligned(&all));
        // Sidecars' are theirs for good; an init container has what sidecars before it leave; the others what all sidecars leave.
        let (mut left, mut own) = (all.clone(), BTreeMap::new());
        for container in &pod.containers {
            let cpus = match (container.cpus as usize, container.kind) {
                (0, Kind::Init) => left.clone(),
                (0, _) => continue,
                (wanted, _) => {
                    self.counts.pod.requests += 1;
                    self.take(&left, wanted).map_err(Refusal::unexpected)?
                }
            };
            if container.kind != Kind::Init {
                left = left.difference(&cpus);
            }
            own.insert(&container.name, cpus);
        }
        self.state.pods.insert(pod.uid.clone(), all);
        for container in &pod.containers {
            let cpus = own.get(&container.name).unwrap_or(&left).clone();
            self.state.set(&pod.uid, &container.name, cpus);
            let given = &mut self.counts.pod;
            given.allocations += 1;
            given.exclusive += u64::from(container.cpus > 0);
            given.shared += u64::from(container.cpus == 0);
        }
        Ok(())
    }
}
