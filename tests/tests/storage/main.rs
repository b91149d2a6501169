//! Persistent volumes and their drivers: one test binary of the files below, each of which says what it asks.
//! (`tests/README.md` says why they share one.)

mod certificates;
mod drain;
mod life;
mod registration;
mod restarts;
mod volume_faults;

/// The driver of our own.
const DRIVER: &str = env!("CARGO_BIN_EXE_csi_driver");
