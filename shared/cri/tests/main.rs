//! The tests of this crate from outside: one binary of the files below, because each would hold another copy of the same
//! libraries.
#![allow(clippy::unwrap_used, reason = "helpers of tests are no tests to the lint")]

mod client;
mod streamed_lists;
mod wire;
