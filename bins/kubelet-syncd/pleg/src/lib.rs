//! The pod lifecycle event generator: keeps the pod cache true to the runtime and tells the main loop what changed.
//!
//! Driven by the runtime's events, with a slow audit relist that counts and repairs what they missed; where there are
//! no events, or a stream tells nothing of what happens, it relists each second, as upstream does (upstream `pkg/kubelet/pleg`).
//!
//! A module uses only those above it in this table (`tests/tests/files/layers.rs` holds it to that).
//!
//! | module | decides |
//! |---|---|
//! | `options` | nothing: how often to list, and whether to ask for events |
//! | [`mapping`] | what a pod is by the runtime's answers |
//! | [`cache`] | what is known of each pod, and who may rely on it |
//! | [`relist`] | which events a pod's change is |
//! | `due` | which pod is looked at next |
//! | `relist_time` | which looks belong to one relist, for its metric |
//! | `evented` | where events come from |
//! | `ended` | which containers count as ended before the runtime's list says so |
//! | `trust` | whether a stream tells what happens |
//! | `metrics` | nothing: upstream's metrics |
//! | `inspect` | what the runtime is asked about a pod, and about all |
//! | `subscribers` | who hears of events, and what is kept for a slow reader |
//! | `tracker` | which pods are to be looked at, and when |
//! | `shared` | nothing: what task and handles have in common |
//! | `run` | nothing: the task around them, which makes the calls |
//! | `handle` | whether the generator is healthy; what others ask of it |

pub mod cache;
mod due;
mod ended;
mod evented;
mod handle;
mod inspect;
pub mod mapping;
mod metrics;
mod options;
pub mod relist;
mod relist_time;
mod run;
mod shared;
mod subscribers;
mod tracker;
mod trust;

pub use cache::{Busy, CacheError, Making, PodCache};
pub use evented::EventSource;
pub use handle::{Pleg, PlegUnhealthy};
pub use options::PlegOptions;
pub use relist::{PodLifecycleEvent, PodLifecycleEventKind};
pub use run::PlegTask;
pub use shared::PlegStats;
