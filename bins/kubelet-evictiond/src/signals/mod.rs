//! Eviction signals: what is left of each resource, below which thresholds that is too little, and when to look again.
//!
//! | module | decides |
//! |---|---|
//! | [`observation`] | what a reading says of each signal |
//! | [`thresholds`] | which thresholds are in force on this node's file systems |
//! | [`file_systems`] | where images and writable layers lie |
//! | [`cadence`] | when the next reading comes |
//! | [`history`] | what the last ten minutes are shown as |
//! | [`reader`] | nothing: reads memory and tasks from the kernel, file systems through kubelet-walker |
//! | [`sensors`] | what wakes before the next reading is due |

pub mod cadence;
pub mod file_systems;
pub mod history;
pub mod observation;
pub mod reader;
pub mod sensors;
pub mod thresholds;
