//! The tests of this crate from outside: one binary of the files below, because each would hold another copy of the same
//! libraries.
#![allow(clippy::unwrap_used, reason = "helpers of tests are no tests to the lint")]

mod api_writer;
mod client_certificate;
mod http;
mod https;
mod node;
mod node_on_server;
mod pods_view;
mod process;
mod state;
