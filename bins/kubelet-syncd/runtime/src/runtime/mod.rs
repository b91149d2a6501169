//! The runtime side of a pod: what CRI says of it, what has to be done next, and the requests that do it.
//!
//! | module | decides |
//! |---|---|
//! | [`actions`] | what one sync has to do: kill, create, start, reset |
//! | [`sandbox_config`], [`container_config`] | the CRI requests, byte for byte those of upstream |
//! | [`argument_list`] | how much a program may be started with |
//! | [`security`], [`env`], [`sub_paths`], [`dns`], [`hosts`], [`image_volumes`] | their parts |
//! | [`run_options`] | nothing: what the container manager gives a container, and the trait of who gives it |
//! | [`request_check`] | whether a request grants no more than the spec, asked again before it is sent |
//! | [`pod_runtime`], [`userns`] | the handler that runs a pod, and which users of the machine are the pod's own |
//! | [`resize`] | how running containers and their pod get the size that they were granted |
//! | [`backoff`] | how long a crashed container waits |
//! | `former_lives` | restart counts of a pod that begins anew under its uid |
//! | [`kill`], [`gc`] | grace periods and order of stopping; which dead containers and sandboxes go |
//! | [`grace_clock`] | which time is part of a grace period |
//! | [`post_start_gate`] | which instance is shown while a postStart hook runs |
//! | [`sync`], `start`, `stop`, `end` | the executor: does it, in order, over [`ports`] |
//! | [`result`] | what came of it: requeue time, error text, waiting reasons |
//!
//! Entry points:
//! * [`sync::RuntimeManager::sync_pod`] with a status newer than the end of the pod's last sync, and a
//!   [`sync::SyncContext`]; its result goes to [`crate::status::reason_cache::ReasonCache`].
//! * [`sync::RuntimeManager::kill_pod`], with the pod or, for an orphan, without.
//! * [`sync::RuntimeManager::collect_garbage`] every minute, [`sync::RuntimeManager::remove_surplus`] when a container
//!   died, [`sync::RuntimeManager::forget_expired_back_off`] with housekeeping.
//!
//! Everything but the executor is pure. Nothing here touches a file but the node's resolv.conf (read).

pub mod actions;
pub mod argument_list;
pub mod backoff;
pub mod container_config;
pub mod dns;
mod end;
pub mod env;
pub mod env_files;
#[cfg(any(test, feature = "fixtures"))]
pub mod fake_runtime;
mod former_lives;
pub mod gc;
#[cfg(test)]
mod given_tests;
pub mod grace_clock;
#[cfg(test)]
mod hook_tests;
pub mod hosts;
pub mod image_volumes;
pub mod kill;
pub mod pod_runtime;
pub mod ports;
pub mod post_start_gate;
pub mod request_check;
pub mod resize;
pub mod result;
pub mod run_options;
pub mod sandbox_config;
pub mod security;
mod start;
pub mod stop;
pub mod sub_paths;
pub mod sync;
pub mod userns;
