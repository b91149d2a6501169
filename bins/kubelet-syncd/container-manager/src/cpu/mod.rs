//! The CPU manager: which containers have CPUs for themselves, and which (upstream `pkg/kubelet/cm/cpumanager`).
//!
//! | module | decides |
//! |---|---|
//! | [`options`] | which options of the static policy are allowed together, by which gate, on which machine |
//! | [`accumulator`] | which CPUs of those that are free are taken: as near together as can be |
//! | [`distributed`] | the same, spread evenly over NUMA nodes |
//! | [`state`] | nothing: who has which CPUs |
//! | [`policy`] | who gets CPUs, and the hints about that |

pub mod accumulator;
pub mod distributed;
pub mod options;
pub mod policy;
pub mod state;

#[cfg(test)]
mod accumulator_tests;
#[cfg(test)]
mod policy_tests;

pub use options::CpuOptions;
pub use policy::{CpuManagerError, StaticCpu};
pub use state::CpuState;
