//! Which volumes a pod wants. What is mounted is `kubelet-volnetd`'s knowledge, and so is every path it answers.
//!
//! [`plan`] is pure: a pod's volumes as the verbs that make them, or the reason why one cannot be had. [`set_up`] asks
//! for all of them at once. A container's mounts are made of the answers by `runtime::container_config`.

pub mod plan;
pub mod set_up;

pub use plan::{VolumeKind, VolumePlan, plan};
pub use set_up::{VolumeError, set_up};
