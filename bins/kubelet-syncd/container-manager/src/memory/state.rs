//! What each NUMA node has, and who has how much of it (upstream `memorymanager/state`). Fields and their order are those of
//! upstream's checkpoint.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Bytes of one kind of memory on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MemoryTable {
    pub total: u64,
    pub system_reserved: u64,
    pub allocatable: u64,
    pub reserved: u64,
    pub free: u64,
}

/// A node.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeState {
    /// Blocks of memory that are (partly) on it.
    pub number_of_assignments: i64,
    pub memory_map: BTreeMap<String, MemoryTable>,
    /// The nodes that give memory together with it; itself alone where none does.
    pub cells: Vec<u32>,
}

pub type MachineState = BTreeMap<u32, NodeState>;

/// What a container has of one kind of memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    #[serde(rename = "numaAffinity")]
    pub nodes: Vec<u32>,
    #[serde(rename = "type")]
    pub kind: String,
    /// Bytes. 0 for an init container's whose memory those after it have.
    pub size: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MemoryState {
    pub machine: MachineState,
    /// Pod uid, then container name.
    pub entries: BTreeMap<String, BTreeMap<String, Vec<Block>>>,
    /// Memory of pods that have some as a whole.
    pub pods: BTreeMap<String, Vec<Block>>,
}

impl MemoryState {
    pub fn get(&self, uid: &str, container: &str) -> Option<&Vec<Block>> {
        self.entries.get(uid)?.get(container)
    }

    pub(super) fn set(&mut self, uid: &str, container: &str, blocks: Vec<Block>) {
        self.entries.entry(uid.to_owned()).or_default().insert(container.to_owned(), blocks);
    }

    pub(super) fn take(&mut self, uid: &str, container: &str) -> Option<Vec<Block>> {
        let containers = self.entries.get_mut(uid)?;
        let had = containers.remove(container);
        if containers.is_empty() {
            self.entries.remove(uid);
        }
        had
    }
}

/// Gives bytes of a kind on these nodes, the first first; each counts an assignment even if it gives none.
pub(super) fn give(machine: &mut MachineState, nodes: &[u32], kind: &str, mut bytes: u64) {
    for node in nodes {
        let Some(state) = machine.get_mut(node) else { continue };
        state.number_of_assignments += 1;
        state.cells = nodes.to_vec();
        let Some(table) = state.memory_map.get_mut(kind) else { continue };
        let given = bytes.min(table.free);
        table.reserved += given;
        table.free -= given;
        bytes -= given;
    }
}

/// Takes a block back. A node that nobody has memory of is alone again.
pub(super) fn release(machine: &mut MachineState, block: &Block) {
    let mut bytes = block.size;
    for node in &block.nodes {
        let Some(state) = machine.get_mut(node) else { continue };
        state.number_of_assignments -= 1;
        if state.number_of_assignments == 0 {
            state.cells = vec![*node];
        }
        let Some(table) = state.memory_map.get_mut(&block.kind) else { continue };
        let released = bytes.min(table.reserved);
        table.free += released;
        table.reserved -= released;
        bytes -= released;
    }
}
