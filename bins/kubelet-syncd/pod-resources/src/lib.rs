//! The pod resources API (upstream `pkg/kubelet/apis/podresources`): which CPUs, memory, devices and claims each container has for
//! itself, told to monitoring agents and schedulers of devices on the node (decision 83). What is told comes from whoever
//! implements [`Providers`].
//!
//! A module uses only those above it in this table.
//!
//! | module | decides |
//! |---|---|
//! | [`api`] | nothing: the messages of both versions, as generated |
//! | [`holds`] | nothing: what a container has for itself, and who tells it |
//! | [`rate`] | whether one more request is answered now |
//! | [`metrics`] | nothing: what is counted of requests |
//! | [`authority`] | nothing: which bytes of a client h2 would refuse |
//! | [`connections`] | how many clients are talked to at a time |
//! | [`server`] | what of it each version and method tells, and of which pods |

pub mod api;
pub mod authority;
pub mod connections;
pub mod holds;
pub mod metrics;
pub mod rate;
pub mod server;

pub use api::{v1, v1alpha1};
pub use holds::Providers;
pub use metrics::EndpointMetrics;
pub use server::{Lister, serve};
