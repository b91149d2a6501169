//! The node as units of a machine with systemd: one test binary of the files below, each of which says what it asks.
//! (`tests/README.md` says why they share one.)

mod guide;
mod independence;
mod kubeadm_cluster;
mod memory_limits;
mod node_shutdown;
mod package;
mod systemd_machine;
mod units_live;
