//! What is asked of a running container and run in it: probes, and lifecycle hooks.
//!
//! A module uses only those above it in this table (`tests/tests/files/layers.rs` holds it to that).
//!
//! | module | decides |
//! |---|---|
//! | [`hooks`] | when postStart and preStop run, and that they run once |
//! | [`prober`] | whether a container has started, is ready, lives |

pub mod hooks;
pub mod prober;
