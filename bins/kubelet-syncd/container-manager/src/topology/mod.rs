//! What the machine is, and how several managers agree on NUMA nodes for a container or pod (upstream
//! `pkg/kubelet/cm/topologymanager`).
//!
//! | module | decides |
//! |---|---|
//! | [`machine`] | nothing: nodes, cores, caches, memory, distances |
//! | [`sysfs`] | which machine a tree of `/sys/devices/system` describes |
//! | [`cpus`] | nothing: CPUs by core, cache, socket and node |
//! | [`mask`], [`hints`] | nothing: sets of NUMA nodes, what managers would like, and why a pod is refused |
//! | [`options`] | which policy, scope and options are allowed |
//! | [`merge`] | which hint is the best for all |
//! | [`scope`] | in which order hints are asked for and resources given |

pub mod cpus;
pub mod hints;
pub mod machine;
pub mod mask;
pub mod merge;
pub mod options;
pub mod scope;
pub mod sysfs;

#[cfg(test)]
pub mod machines;
#[cfg(test)]
mod merge_tests;
#[cfg(test)]
pub mod recorded;

pub use cpus::{CpuInfo, CpuTopology, Level};
pub use hints::{Counts, Given, Hint, HintProvider, Refusal, ResourceHints};
pub use machine::Machine;
pub use mask::NumaMask;
pub use options::{Policy, Scope, TopologyOptions};
pub use scope::TopologyManager;
