//! Processes that run the machine's programs for one daemon, which must not start any itself (decision 57).
//!
//! A question is one datagram with the writing end of a pipe, and the answer goes into that pipe. What is asked is typed;
//! which program is run with which arguments is decided in the helper's own code.
//!
//! # Modules
//! A module uses only those above it in this table (`tests/tests/files/layers.rs` holds it to that).
//!
//! | module | decides |
//! |---|---|
//! | [`program`] | where a program may lie, with what it is started, how long it may take |
//! | [`serve`] | who may ask, how many questions are answered at once, when the process ends |
//! | [`start`] | nothing: what comes before the first question, for helpers that root asks |

pub mod program;
pub mod serve;
pub mod start;

pub use program::{Ended, Program};
pub use serve::{Door, Limits, serve};
