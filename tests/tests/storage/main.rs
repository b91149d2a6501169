//! Persistent volumes and their drivers: one test binary of the files below, each of which says what it asks.
//! (`tests/README.md` says why they share one.)

mod attach_limits;
mod credentials;
mod drain;
mod health;
mod life;
mod migration;
mod registration;
mod restarts;
mod volume_faults;
mod without_api_server;

/// The driver of our own.
const DRIVER: &str = env!("CARGO_BIN_EXE_csi_driver");
