//! The memory manager: which NUMA nodes' memory and huge pages a container has for itself (upstream
//! `pkg/kubelet/cm/memorymanager`).
//!
//! | module | decides |
//! |---|---|
//! | [`reservation`] | whether `reservedMemory` is what node allocatable lays aside |
//! | [`state`] | nothing: what each node has, and who has how much of it |
//! | [`policy`] | who gets memory of which nodes, and the hints about that |

pub mod policy;
pub mod reservation;
pub mod state;

#[cfg(test)]
mod policy_tests;

pub use policy::{MemoryManagerError, StaticMemory};
pub use reservation::Reserved;
pub use state::{Block, MachineState, MemoryState};
