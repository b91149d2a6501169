//! The managers behind one door: started from settings, machine and files; asked when a pod is taken in, when a container is made or is
//! gone; and asked what is to be written and what to be changed. All of it in memory: the caller writes and calls.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use bulkhead_config::cpu_set::CpuSet;
use kubelet_model::pod::resources::Amounts;
use kubelet_model::v1::Pod;

use crate::checkpoint::{self, CheckpointError, cpu::InitialContainers};
use crate::cpu::policy::Reservation;
use crate::cpu::{CpuManagerError, CpuState, StaticCpu};
use crate::memory::reservation::reserved;
use crate::memory::{Block, MemoryManagerError, MemoryState, StaticMemory};
use crate::request::{Gates, PodRequest};
use crate::topology::options::{Policy, TopologyManagerError};
use crate::topology::sysfs::SysfsError;
use crate::topology::{CpuTopology, HintProvider, Machine, Refusal, TopologyManager};

/// What is configured.
#[derive(Debug, Clone)]
pub struct Settings {
    /// `cpuManagerPolicy`, `cpuManagerPolicyOptions`
    pub cpu_policy: String,
    pub cpu_options: BTreeMap<String, String>,
    /// `reservedSystemCPUs`, and the CPU that node allocatable lays aside (kubeReserved and systemReserved).
    pub cpu_reservation: Reservation,
    /// `memoryManagerPolicy`
    pub memory_policy: String,
    /// `reservedMemory`: node and amounts.
    pub reserved_memory: Vec<(u32, Amounts)>,
    /// All that node allocatable lays aside, hard eviction thresholds among it.
    pub memory_reservation: Amounts,
    /// `topologyManagerPolicy`, `topologyManagerScope`, `topologyManagerPolicyOptions`
    pub topology_policy: String,
    pub topology_scope: String,
    pub topology_options: BTreeMap<String, String>,
    pub gates: Gates,
    /// Where the state files are: messages name them.
    pub root: PathBuf,
}

/// As upstream is without configuration: nobody has anything for himself.
impl Default for Settings {
    fn default() -> Self {
        Settings {
            cpu_policy: "none".to_owned(),
            cpu_options: BTreeMap::new(),
            cpu_reservation: Reservation::default(),
            memory_policy: "None".to_owned(),
            reserved_memory: Vec::new(),
            memory_reservation: Amounts::new(),
            topology_policy: "none".to_owned(),
            topology_scope: "container".to_owned(),
            topology_options: BTreeMap::new(),
            gates: Gates::default(),
            root: PathBuf::new(),
        }
    }
}

/// The state files as they were found; None: there is none.
#[derive(Debug, Clone, Default)]
pub struct Found {
    pub cpu: Option<Vec<u8>>,
    pub memory: Option<Vec<u8>>,
}

/// Why the node does not start; upstream's words, after which its kubelet exits 1.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    #[error("could not detect the topology of this machine: {}: {error}", path.display())]
    Unreadable { path: PathBuf, error: String },
    #[error(transparent)]
    Machine(#[from] SysfsError),
    #[error(transparent)]
    Topology(#[from] TopologyManagerError),
    #[error(transparent)]
    Cpu(CpuManagerError),
    #[error(transparent)]
    Memory(MemoryManagerError),
    #[error(
        "start cpu manager error: could not restore state from checkpoint: {error}, please drain this node and delete the CPU manager checkpoint file {path:?} before restarting Kubelet"
    )]
    CpuFile { error: CheckpointError, path: PathBuf },
    #[error(
        "start memory manager error: could not restore state from checkpoint: {error}, please drain this node and delete the memory manager checkpoint file {path:?} before restarting Kubelet"
    )]
    MemoryFile { error: CheckpointError, path: PathBuf },
    #[error("start cpu manager error: {0}")]
    CpuState(CpuManagerError),
    #[error("start memory manager error: {0}")]
    MemoryState(MemoryManagerError),
}

/// What a container has for itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Allocation {
    /// Empty: it runs on the shared CPUs.
    pub cpus: CpuSet,
    /// Empty: its memory is of any node.
    pub memory: Vec<Block>,
}

/// Container name to what it has.
pub type Allocations = BTreeMap<String, Allocation>;

/// A container that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Running {
    pub uid: String,
    pub name: String,
    /// The runtime's.
    pub id: String,
}

/// A container whose CPUs the runtime is to change (CRI UpdateContainerResources).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpuUpdate {
    pub container: Running,
    pub cpus: CpuSet,
}

/// How much of a container's CPUs others have too (upstream `cm/qos`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isolation {
    Host,
    Pod,
    Container,
}

/// A file to write, whole and atomically, before what it says is relied on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateFile {
    /// Below the root directory.
    pub name: &'static str,
    pub content: Vec<u8>,
}

#[derive(Debug, Clone)]
pub struct ContainerManager {
    gates: Gates,
    topology: TopologyManager,
    cpu: Option<StaticCpu>,
    memory: Option<StaticMemory>,
    /// What the files hold.
    written: BTreeMap<&'static str, Vec<u8>>,
    /// What the runtime was told last of each container's CPUs, by pod uid and container name: known from the moment that a container
    /// is made, before anybody has seen it run. Several by their ids, the newest last, where an older one could not be ended.
    applied: BTreeMap<(String, String), Vec<(String, CpuSet)>>,
}

/// Policies `none`.
impl Default for ContainerManager {
    fn default() -> Self {
        ContainerManager {
            gates: Gates::default(),
            topology: TopologyManager::default(),
            cpu: None,
            memory: None,
            written: BTreeMap::new(),
            applied: BTreeMap::new(),
        }
    }
}

impl ContainerManager {
    /// The managers as configured, with the state of the files.
    ///
    /// # Errors
    /// Settings, machine and files do not fit together.
    pub fn start(
        settings: &Settings,
        machine: &Machine,
        found: &Found,
        initial: &InitialContainers,
    ) -> Result<Self, StartError> {
        let gates = settings.gates;
        let topology = TopologyManager::new(
            &settings.topology_policy,
            &settings.topology_scope,
            &settings.topology_options,
            machine,
        )?;
        let mut cpu = cpu(settings, machine, topology.policy()).map_err(StartError::Cpu)?;
        let mut memory = memory(settings, machine).map_err(StartError::Memory)?;
        if let Some(bytes) = &found.cpu {
            let state = checkpoint::cpu::read(bytes, &settings.cpu_policy, gates.pod_level, initial);
            let path = || settings.root.join(checkpoint::cpu::FILE);
            let state = state.map_err(|error| StartError::CpuFile { error, path: path() })?;
            if let Some(cpu) = &mut cpu {
                cpu.restore(state).map_err(StartError::CpuState)?;
            }
        }
        if let Some(bytes) = &found.memory {
            let state = checkpoint::memory::read(bytes, &settings.memory_policy, gates.pod_level);
            let path = || settings.root.join(checkpoint::memory::FILE);
            let state = state.map_err(|error| StartError::MemoryFile { error, path: path() })?;
            if let Some(memory) = &mut memory {
                memory.restore(state).map_err(StartError::MemoryState)?;
            }
        }
        let files = [(checkpoint::cpu::FILE, &found.cpu), (checkpoint::memory::FILE, &found.memory)];
        let written = files.into_iter().filter_map(|(name, content)| Some((name, content.clone()?))).collect();
        Ok(ContainerManager { gates, topology, cpu, memory, written, applied: BTreeMap::new() })
    }

    /// Gives a pod what it asks for, or nothing. A pod that has it keeps it. `devices`: managers that are asked before these, which
    /// take back themselves what a refused pod was given there.
    ///
    /// # Errors
    /// It cannot be had, or not as the topology manager's policy demands.
    pub fn admit(&mut self, pod: &Pod, devices: &mut [&mut dyn HintProvider]) -> Result<Allocations, Refusal> {
        let pod = PodRequest::of(pod, self.gates);
        let (mut cpu, mut memory) = (self.cpu.clone(), self.memory.clone());
        let mut providers: Vec<&mut dyn HintProvider> = Vec::new();
        for device in devices.iter_mut() {
            providers.push(&mut **device);
        }
        providers.extend(cpu.as_mut().map(|cpu| cpu as &mut dyn HintProvider));
        providers.extend(memory.as_mut().map(|memory| memory as &mut dyn HintProvider));
        if let Err(refusal) = self.topology.admit(&pod, &mut providers) {
            // What was counted stays counted.
            if let (Some(own), Some(tried)) = (&mut self.cpu, cpu) {
                own.counts = tried.counts;
            }
            if let (Some(own), Some(tried)) = (&mut self.memory, memory) {
                own.counts = tried.counts;
            }
            return Err(refusal);
        }
        (self.cpu, self.memory) = (cpu, memory);
        let names = pod.containers.iter().map(|container| &container.name);
        Ok(names.map(|name| (name.clone(), self.allocation(&pod.uid, name))).collect())
    }

    /// What a container has for itself.
    pub fn allocation(&self, uid: &str, container: &str) -> Allocation {
        let cpus = self.cpu.as_ref().and_then(|cpu| cpu.state.get(uid, container).cloned()).unwrap_or_default();
        let memory = self.memory.as_ref().and_then(|memory| memory.state.get(uid, container).cloned());
        Allocation { cpus, memory: memory.unwrap_or_default() }
    }

    /// Takes a container's CPUs and memory back. Only of one that never runs again: a restarted one finds its own.
    pub fn remove(&mut self, uid: &str, container: &str) {
        if let Some(cpu) = &mut self.cpu {
            cpu.remove(uid, container);
        }
        if let Some(memory) = &mut self.memory {
            memory.remove(uid, container);
        }
    }

    /// Takes back what containers have that are of no pod that counts. Not before every source of pods has delivered: a pod that is
    /// not known yet would lose its own.
    /// `is_active`: by pod uid and container name. Answers whether anything was taken back.
    pub fn remove_stale(&mut self, is_active: impl Fn(&str, &str) -> bool) -> bool {
        let mut stale = self.holders();
        stale.retain(|(uid, container)| !is_active(uid, container));
        for (uid, container) in &stale {
            self.remove(uid, container);
        }
        !stale.is_empty()
    }

    /// Takes everything of a pod back that was admitted here and does not run after all.
    pub fn remove_pod(&mut self, uid: &str) {
        self.remove_stale(|pod, _| pod != uid);
    }

    /// Pod uid and name of every container that has something for itself.
    pub fn holders(&self) -> BTreeSet<(String, String)> {
        let cpu = self.cpu.iter().flat_map(|cpu| pairs(&cpu.state.entries));
        let memory = self.memory.iter().flat_map(|memory| pairs(&memory.state.entries));
        cpu.chain(memory).collect()
    }

    /// Containers may have CPUs or memory for themselves: what the files say is relied on.
    pub fn gives(&self) -> bool {
        self.cpu.is_some() || self.memory.is_some()
    }

    /// A container was made with these CPUs and is about to be started: init containers before it have ended, and their memory is taken
    /// back.
    pub fn created(&mut self, pod: &Pod, container: &Running, cpus: CpuSet) {
        self.apply(container, cpus);
        let pod = PodRequest::of(pod, self.gates);
        let Some(memory) = self.memory.as_mut() else { return };
        for init in pod.ended_before(&container.name) {
            memory.remove(&pod.uid, &init.name);
        }
    }

    /// CPUs that a container is to run on (CRI `cpuset_cpus`); empty: nothing is set.
    pub fn cpuset_of(&self, uid: &str, container: &str) -> CpuSet {
        self.cpu.as_ref().map(|cpu| cpu.state.or_default(uid, container).clone()).unwrap_or_default()
    }

    /// NUMA nodes that its memory is to be of (CRI `cpuset_mems`), without ranges as upstream sends them; empty: nothing is set.
    pub fn memory_nodes_of(&self, uid: &str, container: &str) -> String {
        let nodes = self.memory.as_ref().map(|memory| memory.nodes_of(uid, container)).unwrap_or_default();
        nodes.iter().map(|node| node.to_string()).collect::<Vec<_>>().join(",")
    }

    /// Containers that run on other CPUs than they are to. After a restart of this process each is told once.
    pub fn plan(&self, running: &[Running]) -> Vec<CpuUpdate> {
        let wanted = |container: &Running| self.cpuset_of(&container.uid, &container.name);
        let updates =
            running.iter().map(|container| CpuUpdate { container: container.clone(), cpus: wanted(container) });
        let differs = |CpuUpdate { container, cpus }: &CpuUpdate| {
            let applied = self.applied.get(&(container.uid.clone(), container.name.clone()));
            let told = applied.into_iter().flatten().find(|(id, _)| *id == container.id);
            told.is_none_or(|(_, told)| told != cpus)
        };
        updates.filter(|update| !update.cpus.is_empty() && differs(update)).collect()
    }

    /// The runtime has changed a container's CPUs.
    pub fn updated(&mut self, update: CpuUpdate) {
        self.apply(&update.container, update.cpus);
    }

    fn apply(&mut self, container: &Running, cpus: CpuSet) {
        let applied = self.applied.entry((container.uid.clone(), container.name.clone())).or_default();
        match applied.iter_mut().find(|(id, _)| *id == container.id) {
            Some((_, told)) => *told = cpus,
            None => applied.push((container.id.clone(), cpus)),
        }
    }

    /// Forgets what the runtime was told of pods that are gone, and of containers that others of their names have followed and that do
    /// not run any more. `is_known`: by uid.
    pub fn retain(&mut self, is_known: impl Fn(&str) -> bool, running: &[Running]) {
        self.applied.retain(|(uid, _), _| is_known(uid));
        for told in self.applied.values_mut().filter(|told| told.len() > 1) {
            let newest = told.pop();
            told.retain(|(id, _)| running.iter().any(|container| container.id == *id));
            told.extend(newest);
        }
    }

    /// Files whose content is no longer what was written.
    ///
    /// # Errors
    /// None that a state can cause.
    pub fn state_to_write(&self) -> Result<Vec<StateFile>, CheckpointError> {
        let (none_cpu, none_memory) = (CpuState::default(), MemoryState::default());
        let cpu = self.cpu.as_ref().map_or(("none", &none_cpu), |cpu| ("static", &cpu.state));
        let memory = self.memory.as_ref().map_or(("None", &none_memory), |memory| ("Static", &memory.state));
        let level = self.gates.pod_level;
        let files = [
            (checkpoint::cpu::FILE, checkpoint::cpu::write(cpu.0, cpu.1, level)?),
            (checkpoint::memory::FILE, checkpoint::memory::write(memory.0, memory.1, level)?),
        ];
        let files = files.into_iter().filter(|(name, content)| self.written.get(name) != Some(content));
        Ok(files.map(|(name, content)| StateFile { name, content }).collect())
    }

    /// A file has been written.
    pub fn written(&mut self, file: StateFile) {
        self.written.insert(file.name, file.content);
    }

    /// How much of a container's CPUs others have too.
    pub fn isolation(&self, pod: &PodRequest, container: &str) -> Isolation {
        if self.allocation(&pod.uid, container).cpus.is_empty() {
            return Isolation::Host;
        }
        let own = pod.container(container).is_some_and(|container| container.cpus > 0);
        if pod.by_pod() && !own { Isolation::Pod } else { Isolation::Container }
    }

    /// Containers that no CFS quota holds (gate `DisableCPUQuotaWithExclusiveCPUs`), and whether none holds the pod either.
    pub fn without_quota(&self, pod: &Pod) -> (BTreeSet<String>, bool) {
        if !self.gates.no_quota || self.cpu.is_none() {
            return (BTreeSet::new(), false);
        }
        let pod = PodRequest::of(pod, self.gates);
        let own = |name: &str| self.isolation(&pod, name) == Isolation::Container;
        let names: BTreeSet<String> = pod.containers.iter().map(|c| c.name.clone()).filter(|name| own(name)).collect();
        let whole = if pod.by_pod() { names.len() == pod.containers.len() } else { !names.is_empty() };
        (names, whole)
    }

    /// CPUs that containers can have for themselves at all (PodResources GetAllocatableResources); empty with policy `none`.
    pub fn allocatable_cpus(&self) -> CpuSet {
        self.cpu.as_ref().map(StaticCpu::allocatable).unwrap_or_default()
    }

    /// The same of memory.
    pub fn allocatable_memory(&self) -> Vec<Block> {
        self.memory.as_ref().map(StaticMemory::allocatable).unwrap_or_default()
    }

    /// Gate PodLevelResourceManagers: pods may have CPUs and memory of their own.
    pub fn has_pod_level(&self) -> bool {
        self.gates.pod_level
    }

    pub fn topology(&self) -> &TopologyManager {
        &self.topology
    }

    pub fn cpu(&self) -> Option<&StaticCpu> {
        self.cpu.as_ref()
    }

    pub fn memory(&self) -> Option<&StaticMemory> {
        self.memory.as_ref()
    }
}

fn pairs<T>(entries: &BTreeMap<String, BTreeMap<String, T>>) -> impl Iterator<Item = (String, String)> {
    entries.iter().flat_map(|(uid, of)| of.keys().map(move |name| (uid.clone(), name.clone())))
}

fn cpu(settings: &Settings, machine: &Machine, policy: Policy) -> Result<Option<StaticCpu>, CpuManagerError> {
    let options = &settings.cpu_options;
    match settings.cpu_policy.as_str() {
        "none" if options.is_empty() => Ok(None),
        "none" => {
            let options: Vec<String> = options.iter().map(|(name, value)| format!("{name}:{value}")).collect();
            Err(CpuManagerError::NoneOptions(options.join(" ")))
        }
        "static" => {
            let topology = CpuTopology::of(machine);
            StaticCpu::new(topology, options, &settings.cpu_reservation, policy, settings.gates).map(Some)
        }
        other => Err(CpuManagerError::Policy(other.to_owned())),
    }
}

fn memory(settings: &Settings, machine: &Machine) -> Result<Option<StaticMemory>, MemoryManagerError> {
    match settings.memory_policy.as_str() {
        "None" => Ok(None),
        "Static" => {
            let reserved = reserved(machine, &settings.reserved_memory, &settings.memory_reservation)?;
            StaticMemory::new(machine, &reserved, settings.gates).map(Some)
        }
        "BestEffort" => Err(MemoryManagerError::BestEffort),
        other => Err(MemoryManagerError::Policy(other.to_owned())),
    }
}

#[cfg(test)]
#[path = "manager_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "life_tests.rs"]
mod life_tests;
