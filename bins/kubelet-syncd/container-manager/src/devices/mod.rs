//! Devices of plugins: which there are, which container has which, and what it is to get for them (upstream
//! `pkg/kubelet/cm/devicemanager`, decision 80). Calls of plugins are the caller's: here stands what to ask next ([`manager`]).
//!
//! A module uses only those above it in this table.
//!
//! | module | decides |
//! |---|---|
//! | [`plugins`] | which devices there are, and how many of them the node shows |
//! | [`held`] | nothing: who has which device; the checkpoint's form of it |
//! | [`selection`] | which devices are taken, and whether the plugin is asked which it prefers |
//! | [`hints`] | which NUMA nodes are good for a number of devices |
//! | [`grants`] | what a container gets for its devices, where answers name the same thing twice |
//! | [`manager`] | whether a pod can have what it asks for, and what its plugins are asked |

pub mod grants;
pub mod held;
pub mod hints;
pub mod manager;
pub mod plugins;
pub mod selection;

#[cfg(test)]
mod tests;

pub use grants::Grants;
pub use manager::{Admission, DeviceManager, Question};
pub use plugins::{Capacity, Device, PluginOptions};
