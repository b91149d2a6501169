//! The pods API (upstream `pkg/kubelet/apis/pods`, gate PodsAPI): the pods of this node with their newest status, told to agents on
//! the node without the API server (decision 87). What is told comes from whoever implements [`Providers`].
//!
//! A module uses only those above it in this table.
//!
//! | module | decides |
//! |---|---|
//! | [`api`] | nothing: the messages, as generated |
//! | [`schema`] | nothing: which fields a pod has on the wire, read from `core_v1.txt` |
//! | [`encode`] | how the JSON of a pod becomes upstream's bytes |
//! | [`provider`] | nothing: who tells of pods |
//! | [`watch`] | which events a watcher is told |
//! | [`server`] | what each method answers |

pub mod api;
pub mod encode;
pub mod provider;
pub mod schema;
pub mod server;
pub mod watch;

pub use api::v1alpha1;
pub use provider::{Providers, Seen};
pub use server::{PodsApi, serve};
