//! The static policy (upstream `memorymanager/policy_static.go`): containers of Guaranteed pods have memory and huge pages of
//! certain NUMA nodes. A node gives memory alone, or always together with the same others.

use std::collections::BTreeMap;

use bulkhead_config::cpu_set::CpuSet;
use bulkhead_types::Quantity;

use super::reservation::Reserved;
use super::state::{Block, MachineState, MemoryState, MemoryTable, NodeState, give, release};
use crate::request::{ContainerRequest, Gates, Kind, Memory, PodRequest};
use crate::topology::machine::HugePages;
use crate::topology::mask::{NumaMask, combinations_of};
use crate::topology::{Counts, Hint, HintProvider, Machine, Refusal, ResourceHints};

/// Why the node does not start, or a container gets no memory; upstream's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MemoryManagerError {
    #[error("unknown policy: {0:?}")]
    Policy(String),
    #[error("policy \"BestEffort\" is not available for platform \"linux\"")]
    BestEffort,
    #[error("the reserved memory configuration references a NUMA node {0} that does not exist on this machine")]
    NoSuchNode(u32),
    #[error(
        "the total amount \"{reserved}\" of type {kind:?} is not equal to the value \"{wanted}\" determined by Node Allocatable feature"
    )]
    Sum { reserved: Quantity, kind: String, wanted: Quantity },
    // The spelling is upstream's.
    #[error("could not covert a variable of type Quantity to int64")]
    NoWholeNumber,
    #[error("[memorymanager] you should specify the system reserved memory")]
    NoReservation,
    #[error("[memorymanager] machine state can not be empty when it has memory assignments")]
    EmptyMachine,
    #[error(
        "[memorymanager] (pod: {pod}, container: {container}) the memory assignment uses the NUMA that does not exist"
    )]
    AssignedNode { pod: String, container: String },
    #[error(
        "[memorymanager] (pod: {pod}, container: {container}) the memory assignment uses memory resource that does not exist"
    )]
    AssignedKind { pod: String, container: String },
    #[error("[memorymanager] the expected machine state is different from the real one")]
    OtherMachine,
    #[error("[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available")]
    NoDefault,
    #[error("[memorymanager] failed to find the default preferred hint")]
    DefaultNotPreferred,
    #[error("[memorymanager] failed to find NUMA nodes to extend the current topology hint")]
    NoExtension,
    #[error("[memorymanager] failed to find the extended preferred hint")]
    ExtensionNotPreferred,
    #[error("[memorymanager] preferred hint violates NUMA node allocation")]
    Violation,
}

/// Bytes by set of nodes and kind of memory.
type Reusable = BTreeMap<(NumaMask, String), u64>;

/// The policy and its state.
#[derive(Debug, Clone)]
pub struct StaticMemory {
    /// The machine with nothing given.
    empty: MachineState,
    gates: Gates,
    pub state: MemoryState,
    pub counts: Counts,
    /// What init containers of the pod that is being taken in had of each set of nodes, which those after them may have.
    reusable: Option<(String, Reusable)>,
}

/// Upstream's name of huge pages of a size: `hugepages-2Mi`.
fn huge_page_name(pages: &HugePages) -> String {
    let bytes = i64::try_from(pages.page_size_kib.saturating_mul(1024)).unwrap_or(i64::MAX);
    format!("hugepages-{}", Quantity::from_bytes(bytes))
}

fn empty_machine(machine: &Machine, reserved: &Reserved) -> MachineState {
    let mut all = MachineState::new();
    for node in &machine.nodes {
        let laid_aside = |kind: &str| reserved.get(&node.id).and_then(|of| of.get(kind)).copied().unwrap_or(0);
        let table = |kind: &str, total: u64, others: u64| {
            let system_reserved = laid_aside(kind);
            // Upstream wraps around below zero here and would give away memory that there is not.
            let allocatable = total.saturating_sub(system_reserved).saturating_sub(others);
            MemoryTable { total, system_reserved, allocatable, reserved: 0, free: allocatable }
        };
        let (mut memory_map, mut huge) = (BTreeMap::new(), 0_u64);
        for pages in &node.huge_pages {
            let (kind, total) =
                (huge_page_name(pages), pages.count.saturating_mul(pages.page_size_kib).saturating_mul(1024));
            huge = huge.saturating_add(total);
            memory_map.insert(kind.clone(), table(&kind, total, 0));
        }
        memory_map.insert("memory".to_owned(), table("memory", node.memory, huge));
        all.insert(node.id, NodeState { number_of_assignments: 0, memory_map, cells: vec![node.id] });
    }
    all
}

fn same_nodes(one: &[u32], other: &[u32]) -> bool {
    one.iter().copied().collect::<CpuSet>() == other.iter().copied().collect()
}

impl StaticMemory {
    /// With an empty state; a state from a file is set by [`StaticMemory::restore`].
    ///
    /// # Errors
    /// No memory is laid aside.
    pub fn new(machine: &Machine, reserved: &Reserved, gates: Gates) -> Result<Self, MemoryManagerError> {
        if reserved.values().filter_map(|of| of.get("memory")).all(|bytes| *bytes == 0) {
            return Err(MemoryManagerError::NoReservation);
        }
        let empty = empty_machine(machine, reserved);
        let state = MemoryState { machine: empty.clone(), ..MemoryState::default() };
        Ok(StaticMemory { empty, gates, state, counts: Counts::default(), reusable: None })
    }

    /// Takes over a state that was kept.
    ///
    /// # Errors
    /// It does not fit the machine, the reservation, or itself.
    pub fn restore(&mut self, state: MemoryState) -> Result<(), MemoryManagerError> {
        if state.machine.is_empty() {
            return if state.entries.is_empty() { Ok(()) } else { Err(MemoryManagerError::EmptyMachine) };
        }
        let mut expected = self.empty.clone();
        for (pod, containers) in &state.entries {
            let own = self.gates.pod_level.then(|| state.pods.get(pod)).flatten().filter(|blocks| !blocks.is_empty());
            let lists: Vec<(&str, &Vec<Block>)> = match own {
                Some(blocks) => vec![("", blocks)],
                None => containers.iter().map(|(name, blocks)| (name.as_str(), blocks)).collect(),
            };
            for (container, block) in lists.into_iter().flat_map(|(name, blocks)| blocks.iter().map(move |b| (name, b)))
            {
                for node in &block.nodes {
                    let ids = || (pod.clone(), container.to_owned());
                    let Some(known) = expected.get(node) else {
                        let (pod, container) = ids();
                        return Err(MemoryManagerError::AssignedNode { pod, container });
                    };
                    if !known.memory_map.contains_key(&block.kind) {
                        let (pod, container) = ids();
                        return Err(MemoryManagerError::AssignedKind { pod, container });
                    }
                }
                give(&mut expected, &block.nodes, &block.kind, block.size);
            }
        }
        if !same_machine(&expected, &state.machine) {
            return Err(MemoryManagerError::OtherMachine);
        }
        self.state = state;
        Ok(())
    }

    /// Memory that containers can have for themselves at all, a block for each kind on each node.
    pub fn allocatable(&self) -> Vec<Block> {
        let tables = self.empty.iter().flat_map(|(node, state)| state.memory_map.iter().map(move |of| (*node, of)));
        let some = tables.filter(|(_, (_, table))| table.allocatable > 0);
        some.map(|(node, (kind, t))| Block { nodes: vec![node], kind: kind.clone(), size: t.allocatable }).collect()
    }

    /// NUMA nodes that a container's memory is on; empty: any.
    pub fn nodes_of(&self, uid: &str, container: &str) -> CpuSet {
        self.state.get(uid, container).into_iter().flatten().flat_map(|block| block.nodes.iter().copied()).collect()
    }

    /// Takes a container's memory back; a pod's that has some as a whole with its last container.
    pub fn remove(&mut self, uid: &str, container: &str) {
        // Not any more: a static pod may come again under its uid.
        self.reusable.take_if(|(pod, _)| pod == uid);
        if self.gates.pod_level && self.state.pods.contains_key(uid) {
            self.state.take(uid, container);
            if !self.state.entries.contains_key(uid) {
                for block in self.state.pods.remove(uid).unwrap_or_default() {
                    release(&mut self.state.machine, &block);
                }
            }
            return;
        }
        for block in self.state.take(uid, container).unwrap_or_default() {
            release(&mut self.state.machine, &block);
        }
    }

    fn reusable_of(&self, uid: &str, mask: NumaMask, kind: &str) -> u64 {
        let of = self.reusable.as_ref().filter(|(pod, _)| pod == uid);
        of.and_then(|(_, sizes)| sizes.get(&(mask, kind.to_owned()))).copied().unwrap_or(0)
    }

    /// An init container's memory may be had by those after it, until one that goes on running has it.
    fn update_reusable(&mut self, uid: &str, kind: Kind, blocks: &[Block]) {
        if self.reusable.as_ref().is_none_or(|(pod, _)| pod != uid) {
            self.reusable = Some((uid.to_owned(), BTreeMap::new()));
        }
        let Some((_, sizes)) = self.reusable.as_mut() else { return };
        for block in blocks {
            let key = (NumaMask::new(block.nodes.iter().copied()), block.kind.clone());
            if kind == Kind::Init {
                let most = sizes.entry(key).or_default();
                *most = (*most).max(block.size);
            } else if let Some(left) = sizes.get_mut(&key) {
                *left = left.saturating_sub(block.size);
            }
        }
    }

    /// What is had again of init containers is written off there, so that all blocks of a pod add up to what it has.
    fn write_off(&mut self, pod: &PodRequest, container: &str, blocks: &[Block]) {
        for block in blocks {
            let mut left = block.size;
            for init in pod.ended_before(container) {
                let Some(had) = self.state.entries.get_mut(&pod.uid).and_then(|of| of.get_mut(&init.name)) else {
                    continue;
                };
                for had in had.iter_mut().filter(|had| had.kind == block.kind && same_nodes(&had.nodes, &block.nodes)) {
                    let reused = had.size.min(left);
                    had.size -= reused;
                    left -= reused;
                }
            }
        }
    }

    /// Sets of nodes that have what is asked for; one list, as it is the same for each kind.
    fn hint_list(&self, uid: &str, wanted: &Memory) -> Vec<Hint> {
        let machine = &self.state.machine;
        let nodes: Vec<u32> = machine.keys().copied().collect();
        let (mut least, mut masks) = (nodes.len(), Vec::new());
        for mask in combinations_of(&nodes) {
            let of: Vec<u32> = mask.nodes().collect();
            let sum = |kind: &str, get: fn(&MemoryTable) -> u64| -> u64 {
                of.iter()
                    .filter_map(|node| machine.get(node)?.memory_map.get(kind))
                    .map(get)
                    .fold(0, u64::saturating_add)
            };
            if wanted.iter().any(|(kind, bytes)| sum(kind, |t| t.allocatable) < *bytes) {
                continue;
            }
            least = least.min(mask.count());
            let fits = |(kind, bytes): (&String, &u64)| {
                sum(kind, |t| t.free).saturating_add(self.reusable_of(uid, mask, kind)) >= *bytes
            };
            if may_group(machine, &of) && wanted.iter().all(fits) {
                masks.push(mask);
            }
        }
        masks.into_iter().map(|mask| Hint::new(mask, mask.count() == least)).collect()
    }

    fn resource_hints(&self, uid: &str, wanted: &Memory) -> ResourceHints {
        let hints = self.hint_list(uid, wanted);
        // Upstream gives no list at all where no nodes have enough, which is no preference.
        if hints.is_empty() {
            return ResourceHints::new();
        }
        wanted.keys().map(|kind| (kind.clone(), Some(hints.clone()))).collect()
    }

    /// The nodes for what is asked: the hint's; where it has none, the best; where they have not enough, the best that hold them.
    fn choose(&self, uid: &str, wanted: &Memory, hint: Hint) -> Result<Vec<u32>, MemoryManagerError> {
        let machine = &self.state.machine;
        // Upstream looks at the hints for `memory` alone.
        let best = |among: &dyn Fn(NumaMask) -> bool| {
            let hints = if wanted.contains_key("memory") { self.hint_list(uid, wanted) } else { Vec::new() };
            let masks = hints.into_iter().filter_map(|hint| Some((!hint.preferred, hint.affinity?)));
            masks.filter(|(_, mask)| among(*mask)).min_by_key(|(worse, mask)| (*worse, mask.count(), *mask))
        };
        let (mask, preferred) = match hint.affinity {
            Some(mask) => (mask, hint.preferred),
            None => {
                let (worse, mask) = best(&|_| true).ok_or(MemoryManagerError::NoDefault)?;
                if worse && hint.preferred {
                    return Err(MemoryManagerError::DefaultNotPreferred);
                }
                (mask, !worse)
            }
        };
        let free = |kind: &str, mask: NumaMask| -> u64 {
            let tables = mask.nodes().filter_map(|node| machine.get(&node)?.memory_map.get(kind));
            tables.map(|table| table.free).fold(0, u64::saturating_add)
        };
        let mask = if wanted.iter().any(|(kind, bytes)| free(kind, mask) < *bytes) {
            let (worse, wider) = best(&|wider| mask.and(wider) == mask).ok_or(MemoryManagerError::NoExtension)?;
            if worse && preferred {
                return Err(MemoryManagerError::ExtensionNotPreferred);
            }
            wider
        } else {
            mask
        };
        let mut nodes: Vec<u32> = mask.nodes().collect();
        // Hints of several managers are cut down to what they have in common, or are those of another one alone where no nodes have
        // memory for the pod as a whole: that may be one node of a group. Upstream takes memory of it alone then, and no longer counts
        // right what either has. Here it is the group's.
        if let [node] = nodes[..]
            && let Some(state) = machine.get(&node)
        {
            nodes.clone_from(&state.cells);
        }
        if violates(machine, &nodes) {
            return Err(MemoryManagerError::Violation);
        }
        Ok(nodes)
    }

    /// Hints of a container (or of a pod, by the first of its containers that has something) that has memory already.
    fn hints_again(blocks: &[Block], wanted: &Memory) -> ResourceHints {
        let fits = |block: &Block| wanted.get(&block.kind) == Some(&block.size);
        if blocks.len() != wanted.len() || !blocks.iter().all(fits) {
            return ResourceHints::new();
        }
        let hint = |block: &Block| Hint::new(NumaMask::new(block.nodes.iter().copied()), true);
        blocks.iter().map(|block| (block.kind.clone(), Some(vec![hint(block)]))).collect()
    }
}

/// Nodes may give memory together: alone if none is in a group, else as the group that they are.
fn may_group(machine: &MachineState, nodes: &[u32]) -> bool {
    if let [node] = nodes {
        return machine.get(node).is_none_or(|state| state.cells.len() <= 1);
    }
    !violates(machine, nodes)
}

/// Several nodes of which one gives memory alone or with others. (One node is never found fault with here, as upstream does not.)
fn violates(machine: &MachineState, nodes: &[u32]) -> bool {
    let used = nodes.iter().filter_map(|node| machine.get(node)).filter(|state| state.number_of_assignments > 0);
    nodes.len() > 1 && used.into_iter().any(|state| state.cells.len() == 1 || !same_nodes(&state.cells, nodes))
}

/// The same but for how a group's bytes lie on its nodes.
fn same_machine(one: &MachineState, other: &MachineState) -> bool {
    let group = |of: &MachineState, cells: &[u32], kind: &str| -> (u64, u64) {
        let tables = cells.iter().filter_map(|cell| of.get(cell)?.memory_map.get(kind));
        tables.fold((0, 0), |(free, reserved), t| (t.free.saturating_add(free), t.reserved.saturating_add(reserved)))
    };
    let same = |(id, a): (&u32, &NodeState)| {
        let Some(b) = other.get(id) else { return false };
        let tables = |(kind, x): (&String, &MemoryTable)| {
            let fixed = |t: &MemoryTable| (t.total, t.system_reserved, t.allocatable);
            b.memory_map.get(kind).is_some_and(|y| fixed(x) == fixed(y))
                && group(one, &a.cells, kind) == group(other, &a.cells, kind)
        };
        a.number_of_assignments == b.number_of_assignments
            && same_nodes(&a.cells, &b.cells)
            && a.memory_map.len() == b.memory_map.len()
            && a.memory_map.iter().all(tables)
    };
    one.len() == other.len() && one.iter().all(same)
}

/// A pod's own memory is all given to some of its containers, and others of them have none left.
fn check_shared_pool(pod: &PodRequest, total: &Memory) -> Result<(), String> {
    let (mut sum, mut shared) = (Memory::new(), false);
    let used_up = |sum: &Memory| total.iter().find(|(kind, all)| sum.get(*kind).copied().unwrap_or(0) >= **all);
    for container in &pod.containers {
        let own = container.memory.as_ref().map_err(ToString::to_string)?;
        match container.kind {
            Kind::Init if own.is_empty() => {
                if let Some((kind, _)) = used_up(&sum) {
                    return Err(format!(
                        "pod rejected, pod has shared init containers but no {kind} available for them"
                    ));
                }
            }
            Kind::Init => {}
            _ if own.is_empty() => shared = true,
            _ => own.iter().for_each(|(kind, bytes)| {
                let sum = sum.entry(kind.clone()).or_default();
                *sum = sum.saturating_add(*bytes);
            }),
        }
    }
    match used_up(&sum).filter(|_| shared) {
        Some((kind, _)) => Err(format!(
            "pod rejected, sum of exclusive container {kind} requests equals pod budget, leaving no memory for shared containers"
        )),
        None => Ok(()),
    }
}

fn blocks(nodes: &[u32], memory: &Memory) -> Vec<Block> {
    let some = memory.iter().filter(|(_, bytes)| **bytes > 0);
    some.map(|(kind, bytes)| Block { nodes: nodes.to_vec(), kind: kind.clone(), size: *bytes }).collect()
}

impl HintProvider for StaticMemory {
    fn hints(&self, pod: &PodRequest, container: &ContainerRequest) -> ResourceHints {
        let Ok(wanted) = &container.memory else { return ResourceHints::new() };
        if !pod.guaranteed || !pod.managed || self.has_ended(pod, container) {
            return ResourceHints::new();
        }
        match self.state.get(&pod.uid, &container.name) {
            Some(blocks) => Self::hints_again(blocks, wanted),
            None => self.resource_hints(&pod.uid, wanted),
        }
    }

    fn pod_hints(&self, pod: &PodRequest) -> ResourceHints {
        let Ok(wanted) = &pod.memory else { return ResourceHints::new() };
        if !pod.guaranteed || !pod.managed || wanted.is_empty() {
            return ResourceHints::new();
        }
        if pod.by_pod() && check_shared_pool(pod, wanted).is_err() {
            return wanted.keys().map(|kind| (kind.clone(), Some(Vec::new()))).collect();
        }
        // What it has as a whole; upstream looks at its first container's part.
        if let Some(blocks) = self.state.pods.get(&pod.uid).filter(|_| pod.by_pod()) {
            return Self::hints_again(blocks, wanted);
        }
        match pod.containers.iter().find_map(|container| self.state.get(&pod.uid, &container.name)) {
            Some(blocks) => Self::hints_again(blocks, wanted),
            None => self.resource_hints(&pod.uid, wanted),
        }
    }

    fn allocate(&mut self, pod: &PodRequest, container: &ContainerRequest, best: Hint) -> Result<(), Refusal> {
        if !pod.guaranteed || !pod.managed || self.has_ended(pod, container) {
            return Ok(());
        }
        self.counts.node.requests += 1;
        let outcome = self.allocate_container(pod, container, best);
        self.counts.node.errors += u64::from(outcome.is_err());
        outcome
    }

    fn allocate_pod(&mut self, pod: &PodRequest, best: Hint) -> Result<(), Refusal> {
        // A pod that has its memory keeps it; upstream would give it more beside.
        if !pod.guaranteed || self.state.pods.contains_key(&pod.uid) {
            return Ok(());
        }
        let outcome = self.allocate_all(pod, best);
        self.counts.pod.errors += u64::from(outcome.is_err());
        outcome
    }
}

impl StaticMemory {
    /// An init container whose memory was taken back when one after it was made: of a pod that is taken in again, after a restart.
    /// Upstream gives it memory once more, which nobody uses until the pod ends.
    fn has_ended(&self, pod: &PodRequest, container: &ContainerRequest) -> bool {
        let has = |name: &str| self.state.get(&pod.uid, name).is_some();
        let after = pod.containers.iter().skip_while(|other| other.name != container.name).skip(1);
        container.kind == Kind::Init && !has(&container.name) && after.into_iter().any(|other| has(&other.name))
    }

    fn allocate_container(
        &mut self,
        pod: &PodRequest,
        container: &ContainerRequest,
        best: Hint,
    ) -> Result<(), Refusal> {
        if let Some(has) = self.state.get(&pod.uid, &container.name).cloned() {
            self.update_reusable(&pod.uid, container.kind, &has);
            return Ok(());
        }
        let wanted = container.memory.as_ref().map_err(Refusal::unexpected)?;
        let nodes = self.choose(&pod.uid, wanted, best).map_err(Refusal::unexpected)?;
        let mask = NumaMask::new(nodes.iter().copied());
        let block = |(kind, size): (&String, &u64)| Block { nodes: nodes.clone(), kind: kind.clone(), size: *size };
        let own: Vec<Block> = wanted.iter().map(block).collect();
        for block in &own {
            let again = self.reusable_of(&pod.uid, mask, &block.kind);
            give(&mut self.state.machine, &nodes, &block.kind, block.size.saturating_sub(again));
            self.counts.node.allocations += 1;
        }
        self.counts.node.exclusive += 1;
        self.update_reusable(&pod.uid, container.kind, &own);
        self.state.set(&pod.uid, &container.name, own.clone());
        self.write_off(pod, &container.name, &own);
        Ok(())
    }

    fn allocate_all(&mut self, pod: &PodRequest, best: Hint) -> Result<(), Refusal> {
        let Ok(total) = &pod.memory else { return Ok(()) };
        self.counts.pod.requests += 1;
        check_shared_pool(pod, total).map_err(Refusal::empty_shared_pool)?;
        let nodes = self.choose(&pod.uid, total, best).map_err(Refusal::unexpected)?;
        // Sidecars' is theirs for good; an init container has what sidecars before it leave; the others what all of them leave.
        let (mut left, mut own) = (total.clone(), BTreeMap::new());
        for container in &pod.containers {
            let wanted = container.memory.as_ref().map_err(Refusal::unexpected)?;
            // Upstream counts init containers that ask for nothing, too.
            self.counts.pod.requests += u64::from(container.kind != Kind::App || !wanted.is_empty());
            match (wanted.is_empty(), container.kind) {
                (true, Kind::Init) => _ = own.insert(&container.name, blocks(&nodes, &left)),
                (true, _) => {}
                (false, kind) => {
                    own.insert(&container.name, blocks(&nodes, wanted));
                    for (resource, bytes) in wanted.iter().filter(|_| kind != Kind::Init) {
                        let rest = left.entry(resource.clone()).or_default();
                        *rest = rest.saturating_sub(*bytes);
                    }
                }
            }
        }
        for (kind, bytes) in total {
            give(&mut self.state.machine, &nodes, kind, *bytes);
        }
        for container in &pod.containers {
            let own = own.remove(&container.name).unwrap_or_else(|| blocks(&nodes, &left));
            self.state.set(&pod.uid, &container.name, own);
            let (given, shares) = (&mut self.counts.pod, container.memory.as_ref().is_ok_and(Memory::is_empty));
            given.allocations += 1;
            given.exclusive += u64::from(!shares);
            given.shared += u64::from(shares);
        }
        self.state.pods.insert(pod.uid.clone(), blocks(&nodes, total));
        Ok(())
    }
}
