//! Images: names, presence, pulls, and what is told about them.

pub mod backoff;
mod manager;
#[cfg(test)]
mod manager_tests;
mod metrics;
pub mod reference;

pub use manager::{
    ImageError, ImageErrorReason, ImageEvents, ImageManager, ImageRef, ImageRequest, ImageService, PullLimits,
    PullPolicy,
};
pub use metrics::ImageMetrics;
