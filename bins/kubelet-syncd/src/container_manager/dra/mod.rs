//! Claims of drivers (dynamic resource allocation): prepared before a pod's sandbox is made, given to its containers as names of CDI
//! devices, taken back when its containers have ended (upstream `pkg/kubelet/cm/dra`, decision 81).
//!
//! What is decided is decided in [`kubelet_container_manager::dra`]; here it is done. A module uses only those above it in this table.
//!
//! | module | decides |
//! |---|---|
//! | [`ports`] | nothing: claims on the API server and the state file, each behind a trait |
//! | [`holds`] | whose turn it is with a claim |
//! | [`metrics`] | nothing: what is measured |
//! | [`manager`] | in which order a claim is looked at, written down, prepared and given |
//! | [`health`] | when the health of a driver's devices is asked for again |
//! | [`slices`] | when ResourceSlices are to be deleted |
//! | [`lost`] | when claims of pods that are gone are tried again |

pub mod health;
pub mod holds;
pub mod lost;
pub mod manager;
pub mod metrics;
pub mod ports;
pub mod slices;

pub use manager::{DraManager, Settings};

#[cfg(test)]
mod tests;
