//! `memory_manager_state`, in both versions of upstream `memorymanager/state/checkpoint.go`: the second (written with the gate
//! `PodLevelResourceManagers` alone) has pods' own memory too.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::go::{CheckpointError, checksum, json, map, optional_map, parse, slice};
use crate::memory::state::{Block, MachineState, MemoryState, MemoryTable, NodeState};

/// The file's name in the root directory.
pub const FILE: &str = "memory_manager_state";

type Entries = BTreeMap<String, BTreeMap<String, Vec<Block>>>;

fn some<T: Default>() -> Option<T> {
    Some(T::default())
}

fn none_or_empty<T>(of: &Option<BTreeMap<String, T>>) -> bool {
    of.as_ref().is_none_or(BTreeMap::is_empty)
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct PodEntry {
    #[serde(default, rename = "memoryBlocks", skip_serializing_if = "Vec::is_empty")]
    blocks: Vec<Block>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct File {
    #[serde(default)]
    policy_name: String,
    /// By number in memory; Go writes a map's keys in the order of their texts.
    #[serde(default = "some")]
    machine_state: Option<BTreeMap<String, NodeState>>,
    #[serde(default = "some", skip_serializing_if = "none_or_empty")]
    entries: Option<Entries>,
    #[serde(default = "some", skip_serializing_if = "none_or_empty")]
    pod_entries: Option<BTreeMap<String, PodEntry>>,
    #[serde(default)]
    checksum: u64,
}

fn dump_blocks(blocks: &[Block]) -> String {
    slice(blocks, |block| {
        let (nodes, kind, size) = (slice(&block.nodes, u32::to_string), &block.kind, block.size);
        format!("{{NUMAAffinity:([]int){nodes} Type:(v1.ResourceName){kind} Size:(uint64){size}}}")
    })
}

fn dump_table(table: &MemoryTable) -> String {
    let MemoryTable { total, system_reserved, allocatable, reserved, free } = table;
    format!(
        "<*>{{TotalMemSize:(uint64){total} SystemReserved:(uint64){system_reserved} Allocatable:(uint64){allocatable} Reserved:(uint64){reserved} Free:(uint64){free}}}"
    )
}

fn dump_node(node: &NodeState) -> String {
    let (count, tables) = (node.number_of_assignments, map(&node.memory_map, dump_table));
    let cells = slice(&node.cells, u32::to_string);
    format!(
        "<*>{{NumberOfAssignments:(int){count} MemoryMap:(map[v1.ResourceName]*state.MemoryTable){tables} Cells:([]int){cells}}}"
    )
}

impl File {
    fn machine(&self) -> Result<Option<MachineState>, CheckpointError> {
        let number = |text: &String| {
            let bad = |_| CheckpointError::Json(format!("{text:?} is no number of a NUMA node"));
            text.parse::<u32>().map_err(bad)
        };
        let Some(nodes) = &self.machine_state else { return Ok(None) };
        nodes.iter().map(|(id, node)| Ok((number(id)?, node.clone()))).collect::<Result<_, _>>().map(Some)
    }

    fn sum(&self, name: &str, with_pods: bool) -> Result<u64, CheckpointError> {
        let machine = optional_map(self.machine()?.as_ref(), dump_node);
        let entries = optional_map(self.entries.as_ref(), |containers| map(containers, |blocks| dump_blocks(blocks)));
        let blocks = |pod: &PodEntry| format!("{{MemoryBlocks:([]state.Block){}}}", dump_blocks(&pod.blocks));
        let pods = optional_map(self.pod_entries.as_ref(), blocks);
        let pods = if with_pods { format!(" PodEntries:(state.PodMemoryAssignments){pods}") } else { String::new() };
        let policy = &self.policy_name;
        Ok(checksum(&format!(
            "(*state.{name}){{PolicyName:(string){policy} MachineState:(state.NUMANodeMap){machine} Entries:(state.ContainerMemoryAssignments){entries}{pods} Checksum:(checksum.Checksum)0}}"
        )))
    }
}

/// The file of a state. `pod_level`: the gate is on.
///
/// # Errors
/// None that a state can cause.
pub fn write(policy: &str, state: &MemoryState, pod_level: bool) -> Result<Vec<u8>, CheckpointError> {
    let pods = state.pods.iter().map(|(uid, blocks)| (uid.clone(), PodEntry { blocks: blocks.clone() }));
    let mut file = File {
        policy_name: policy.to_owned(),
        machine_state: Some(state.machine.iter().map(|(id, node)| (id.to_string(), node.clone())).collect()),
        entries: Some(state.entries.clone()),
        pod_entries: Some(if pod_level { pods.collect() } else { BTreeMap::new() }),
        checksum: 0,
    };
    file.checksum = file.sum("MemoryManagerCheckpoint", pod_level)?;
    json(&file)
}

/// The state of a file that the same policy wrote, in either version.
///
/// # Errors
/// It is cut off or damaged, or of another policy.
pub fn read(bytes: &[u8], policy: &str, pod_level: bool) -> Result<MemoryState, CheckpointError> {
    let file: File = parse(bytes)?;
    let second = pod_level && file.checksum == file.sum("MemoryManagerCheckpoint", true)?;
    let sums = |name: &str| Ok::<bool, CheckpointError>(file.checksum == file.sum(name, false)?);
    let named = !pod_level && sums("MemoryManagerCheckpointV1")?;
    if !second && !named && file.checksum != 0 && !sums("MemoryManagerCheckpoint")? {
        return Err(CheckpointError::Corrupted);
    }
    if file.policy_name != policy {
        let (configured, found) = (policy.to_owned(), file.policy_name);
        return Err(CheckpointError::MemoryPolicy { configured, found });
    }
    let machine = file.machine()?.unwrap_or_default();
    let pods = file.pod_entries.filter(|_| second).unwrap_or_default();
    let pods = pods.into_iter().map(|(uid, pod)| (uid, pod.blocks)).collect();
    Ok(MemoryState { machine, entries: file.entries.unwrap_or_default(), pods })
}
