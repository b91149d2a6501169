//! Which volumes a pod wants. What is mounted is `kubelet-volnetd`'s knowledge, and so is every path it answers.
//!
//! [`plan`] is pure: a pod's volumes as the verbs that make them, or the reason why one cannot be had. [`content`] and
//! [`render`], pure too, say which files the API's volumes show, [`paths`] which names those may have. [`set_up`] asks
//! for all volumes at once and brings files up to date; [`set_up_once`] says which stay as they are where that fails, [`back_off`]
//! when to try again. A container's mounts are made of the answers by `runtime::container_config`.

pub mod back_off;
pub mod content;
pub mod metrics;
pub mod paths;
pub mod plan;
pub mod render;
pub mod set_up;
pub mod set_up_once;

pub use plan::{VolumeKind, VolumePlan, plan};
pub use set_up::{Maker, VolumeError};
