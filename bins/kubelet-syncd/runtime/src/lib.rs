//! One pod at the container runtime: which size it was granted, what to do with its sandbox and containers, and its status.
//!
//! A module uses only those above it in this table (`tests/tests/files/layers.rs` holds it to that).
//!
//! | module | decides |
//! |---|---|
//! | [`stages`] | nothing: how long the stages of a pod's start take |
//! | [`allocation`] | which size a pod was granted, and whether it may be resized |
//! | [`runtime`] | what to do with a pod's sandbox and containers, and the exact requests for it |
//! | [`status`] | the pod's status as the API shows it |

pub mod allocation;
pub mod runtime;
pub mod stages;
pub mod status;
