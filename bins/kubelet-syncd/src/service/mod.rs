//! `kubelet.syncd.v1`: what this daemon tells the others. Read-only; whatever is shown is kept ready in [`crate::hub`],
//! so a caller costs the main loop nothing.

pub mod api;
pub mod evictions;
mod fits;
pub mod images;
pub mod late;
pub mod logs;
mod named_pod;
pub mod node_view;
pub mod ooms;
pub mod pod_resources;
pub mod pods_api;
pub mod resources;
pub mod rules;
pub mod running_pods;
pub mod runtime_stats;
pub mod silence;
pub mod stats;
pub mod storage;
pub mod streams;
mod views;
