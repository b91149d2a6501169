//! The node as a member of a cluster: one test binary of the files below, each of which says what it asks.
//! (`tests/README.md` says why they share one.)

mod certificates;
mod clock_jump;
mod cluster_chaos;
mod cluster_controllers;
mod cluster_credentials;
mod cluster_csi;
mod cluster_faults;
mod cluster_life;
mod cluster_lists;
mod cluster_node;
mod cluster_pods;
mod cluster_refusals;
mod cluster_restarts;
mod cluster_static;
mod cluster_volumes;
mod device_plugins;
mod events_of_faults;
mod eviction;
mod eviction_faults;
mod image_gc;
mod plugins;
mod registry;
