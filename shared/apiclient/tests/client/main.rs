//! The client against servers that are real on the wire: TLS, protocols, replaced credentials, limits, failures, watches.

#![allow(clippy::unwrap_used, reason = "a test's panic is its message")]

mod broker;
mod connections;
mod credentials;
mod requests;
mod watches;
mod world;
