//! The container manager's resource managers: which CPUs and which NUMA nodes' memory a container has for itself (upstream
//! `pkg/kubelet/cm/{topologymanager,cpumanager,memorymanager}`, decision 75). Values and rules: a machine, a pod and a state in, a
//! state or a refusal out. Nothing is read or written here but a machine's tree of files ([`topology::sysfs`]).
//!
//! A module uses only those above it in this table.
//!
//! | module | decides |
//! |---|---|
//! | [`request`] | what a pod asks of the managers, and which containers may have CPUs and memory for themselves |
//! | [`topology`] | what the machine is; how hints of several managers become one; whether a pod is refused for it |
//! | [`cpu`] | which CPUs |
//! | [`memory`] | which NUMA nodes' memory |
//! | [`checkpoint`] | how that is written in upstream's files, and whether a file is to be believed |
//! | [`devices`] | which devices of plugins |
//! | [`dra`] | which claims of drivers a pod may use, who is asked about them, and what containers get of the answers |
//! | [`manager`] | nothing: all of them behind one door |
//! | [`settings`] | nothing: what is configured, and the start from it |

pub mod checkpoint;
pub mod cpu;
pub mod devices;
pub mod dra;
pub mod manager;
pub mod memory;
#[cfg(test)]
pub mod pods;
pub mod request;
pub mod settings;
pub mod topology;

pub use manager::{ContainerManager, Settings, StartError};
