//! Upstream's state files, byte for byte (upstream `pkg/kubelet/checkpointmanager`, `cm/{cpu,memory,device}manager`, `cm/dra/state`):
//! upstream's kubelet reads what is written here, and the other way round.
//!
//! The checksum is FNV-1a of 32 bits over what Go's `spew` prints of the structure (types and field names of upstream's source
//! among it), so each structure's text is written down here; the names of fields may not change.
//!
//! | module | decides |
//! |---|---|
//! | [`go`] | how Go prints and escapes; why a file is not believed |
//! | [`cpu`], [`memory`], [`devices`], [`dra`], [`dra_health`] | each file |

pub mod cpu;
pub mod devices;
pub mod dra;
pub mod dra_health;
pub mod go;
pub mod memory;

#[cfg(test)]
mod tests;

pub use go::CheckpointError;
