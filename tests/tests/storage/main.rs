//! Persistent volumes and their drivers: one test binary of the files below, each of which says what it asks.
//! (`tests/README.md` says why they share one.)

mod attach_limits;
mod boots;
mod certificates;
mod chaos;
mod claims;
mod credentials;
mod drain;
mod flexvolume;
mod health;
mod life;
mod linked_root;
mod local_devices;
mod measured;
mod migration;
mod own_attach;
mod registration;
mod resource_claims;
mod resource_take_over;
mod restarts;
mod selinux;
mod take_over;
mod two_nodes;
mod unknown_volumes;
mod volume_faults;
mod without_api_server;

/// The driver of our own.
const DRIVER: &str = env!("CARGO_BIN_EXE_csi_driver");
/// The driver of our own for claims of devices.
const DRA_DRIVER: &str = env!("CARGO_BIN_EXE_dra_driver");
/// The device plugin of our own.
const DEVICE_PLUGIN: &str = env!("CARGO_BIN_EXE_device_plugin");
