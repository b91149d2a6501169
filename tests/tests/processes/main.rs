//! The processes of the node, of its neighbours and of other versions: one test binary of the files below, each of
//! which says what it asks.
//! (`tests/README.md` says why they share one.)

mod audit;
mod chaos;
mod cves;
mod faults;
mod intruder;
mod launcher;
mod many;
mod mixed_versions;
mod neighbours;
mod node_facts;
mod privileges;
mod runtime;
mod silent_file_systems;
mod slow_registry;
mod standalone;
mod take_over;
mod two_nodes;
