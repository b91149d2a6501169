//! In-place resize: what a pod asks for, what it was granted, and what it really has.
//!
//! ```text
//! desired (spec)  --admission-->  allocated  --runtime and cgroups-->  actuated
//! ```
//!
//! Everybody downstream of the main loop sees pods with their *allocated* resources ([`Allocations::granted`]); a pod
//! that asks for something else waits in a queue ([`pending`]) until admission grants it or says that it never can
//! ([`feasibility`]). What has been granted is carried out by [`crate::runtime::resize`]. Rules: upstream
//! `pkg/kubelet/allocation`, KEP 1287.
//!
//! The book of both ([`book`]) is on disk before anybody relies on it, in this process's private folder; upstream's own
//! checkpoint files follow it ([`export`]), so that a node can change hands in either direction.

pub mod book;
pub mod checkpoint;
pub mod conditions;
pub mod export;
pub mod feasibility;
pub mod messages;
pub mod pending;
pub mod record;

pub use book::{AllocationStore, Allocations, Saved, VERSION};
pub use conditions::ResizeConditions;
pub use record::{Gates, PodResources};
