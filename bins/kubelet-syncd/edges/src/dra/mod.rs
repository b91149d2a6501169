//! Plugins of DRA drivers: which are there, whether they can be reached, and what they are asked (upstream
//! `pkg/kubelet/cm/dra/plugin`).
//!
//! A module uses only those above it in this table.
//!
//! | module | decides |
//! |---|---|
//! | [`connection`] | when a plugin that cannot be reached is tried again |
//! | [`plugin`] | which version of the service a plugin is asked by, and how long a call may take |
//! | [`plugins`] | which plugin of a driver is asked |

pub mod connection;
pub mod plugin;
pub mod plugins;

pub use plugin::{CALL_TIMEOUT, Calls, Plugin, Service};
pub use plugins::{DriverError, Plugins};

#[cfg(test)]
mod tests;
