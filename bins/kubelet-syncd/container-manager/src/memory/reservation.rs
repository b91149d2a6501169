//! `reservedMemory` against what node allocatable lays aside (upstream `memorymanager/memory_manager.go`).

use std::collections::{BTreeMap, BTreeSet};

use bulkhead_types::Quantity;
use bulkhead_types::resource_name::is_memory;
use kubelet_model::pod::resources::Amounts;

use super::policy::MemoryManagerError;
use crate::topology::Machine;

/// Bytes laid aside of each kind of memory on each node.
pub type Reserved = BTreeMap<u32, BTreeMap<String, u64>>;

/// `list`: node and what is laid aside there, as configured; `allocatable`: what node allocatable lays aside of each resource.
///
/// # Errors
/// A node that there is not, sums that differ, or an amount that is no whole number of bytes.
pub fn reserved(
    machine: &Machine,
    list: &[(u32, Amounts)],
    allocatable: &Amounts,
) -> Result<Reserved, MemoryManagerError> {
    let mut sums = Amounts::new();
    for (node, limits) in list {
        if !machine.nodes.iter().any(|known| known.id == *node) {
            return Err(MemoryManagerError::NoSuchNode(*node));
        }
        for (kind, quantity) in limits {
            match sums.get_mut(kind) {
                Some(sum) => *sum += *quantity,
                None => _ = sums.insert(kind.clone(), *quantity),
            }
        }
    }
    let kinds: BTreeSet<&String> = sums.keys().chain(allocatable.keys().filter(|name| is_memory(name))).collect();
    for kind in kinds {
        let of = |list: &Amounts| list.get(kind).copied().unwrap_or(Quantity::ZERO);
        let (reserved, wanted) = (of(&sums), of(allocatable));
        if reserved != wanted {
            return Err(MemoryManagerError::Sum { reserved, kind: kind.clone(), wanted });
        }
    }
    let mut all: Reserved = machine.nodes.iter().map(|node| (node.id, BTreeMap::new())).collect();
    for (node, limits) in list {
        for (kind, quantity) in limits {
            let bytes = u64::try_from(quantity.value()).ok().filter(|_| quantity.is_integer());
            let bytes = bytes.ok_or(MemoryManagerError::NoWholeNumber)?;
            all.entry(*node).or_default().insert(kind.clone(), bytes);
        }
    }
    Ok(all)
}
