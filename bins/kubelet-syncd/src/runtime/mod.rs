//! The runtime side of a pod: what CRI says of it, what has to be done next, and the requests that do it.
//!
//! | module | decides |
//! |---|---|
//! | [`model`] | what the runtime knows of a pod (filled by PLEG) |
//! | [`actions`], [`restart`] | what one sync has to do: kill, create, start, reset |
//! | [`sandbox_config`], [`container_config`] | the CRI requests, byte for byte those of upstream |
//! | [`resources`], [`security`], [`env`], [`downward`], [`sub_paths`], [`dns`], [`hosts`], [`labels`], [`hash`], [`names`] | their parts |
//! | [`request_check`] | whether a request grants no more than the spec, asked again before it is sent |
//! | [`pod_runtime`], [`userns`] | the handler that runs a pod, and which users of the machine are the pod's own |
//! | [`named_objects`] | which objects of the API server are asked for, and what came of it |
//! | [`resize`] | how running containers and their pod get the size that they were granted |
//! | [`backoff`] | how long a crashed container waits |
//! | [`kill`], [`gc`] | grace periods and order of stopping; which dead containers and sandboxes go |
//! | [`sync`], `start`, `stop` | the executor: does it, in order, over [`ports`] |
//! | [`result`] | what came of it: requeue time, error text, waiting reasons |
//! | [`node_facts`], [`podspec`], [`events`] | facts of the node, reading pods, events |
//!
//! Entry points for the core:
//! * [`sync::RuntimeManager::sync_pod`] with a status newer than the end of the pod's last sync, and a
//!   [`sync::SyncContext`]; then feed its result to [`crate::status::reason_cache::ReasonCache`].
//! * [`sync::RuntimeManager::kill_pod`], with the pod or, for an orphan, without.
//! * [`sync::RuntimeManager::collect_garbage`] every minute, [`sync::RuntimeManager::remove_surplus`] when a container
//!   died, [`sync::RuntimeManager::forget_expired_back_off`] with housekeeping.
//! * [`resources::qos_class`], [`resources::pod_cgroup_resources`], [`resources::burstable_cpu_shares`] for cgroups.
//! * [`node_facts::HostFacts::read`] and [`node_facts::NodeFacts::new`] at start.
//!
//! Everything but the executor is pure. Nothing here touches a file but the node's resolv.conf (read).

pub mod actions;
pub mod backoff;
pub mod container_config;
mod cri_api;
pub mod dns;
pub mod downward;
pub mod dynamic_resources;
mod end;
pub mod env;
pub mod env_files;
pub mod events;
#[cfg(test)]
pub(crate) mod fake_runtime;
#[cfg(test)]
pub(crate) mod fixtures;
pub mod gc;
#[cfg(test)]
mod given_tests;
pub mod hash;
#[cfg(test)]
mod hook_tests;
pub mod hosts;
pub mod image_volumes;
pub mod kill;
pub mod labels;
pub mod memory_qos;
pub mod model;
pub mod named_objects;
pub mod names;
pub mod node_facts;
pub mod pod_runtime;
pub mod podspec;
pub mod ports;
pub mod post_start_gate;
pub mod request_check;
pub mod resize;
pub mod resources;
pub mod restart;
pub mod result;
pub mod sandbox_config;
pub mod security;
mod start;
pub mod stop;
pub mod stop_signal;
pub mod sub_paths;
pub mod sync;
pub mod userns;
