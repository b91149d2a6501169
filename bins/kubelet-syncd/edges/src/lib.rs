//! What lies outside the process, each behind a type or a trait that a test replaces: connections to pods, volnetd, the runtime.
//!
//! A module uses only those above it in this table (`tests/tests/files/layers.rs` holds it to that).
//!
//! | module | decides |
//! |---|---|
//! | [`resolver`] | how many names are looked up at a time, and for whom |
//! | [`dial`] | how a connection to a pod is made |
//! | [`http_get`] | what an HTTP probe or hook sends, and which answer is a success |
//! | [`volnetd`] | nothing: the verbs of the other side, and the proof that a destructive one needs |
//! | [`csi`] | which drivers can be called now, and what an answer that is none means |
//! | [`device_plugin`] | how long a device plugin may take |
//! | [`dra`] | which plugin of a DRA driver is asked |
//! | [`runtime_service`] | nothing: the runtime's calls that change something, as a trait |

pub mod csi;
pub mod device_plugin;
pub mod dial;
pub mod dra;
#[cfg(any(test, feature = "fixtures"))]
pub mod fixtures;
pub mod http_get;
#[cfg(test)]
mod name_server;
pub mod resolver;
pub mod runtime_service;
pub mod volnetd;
