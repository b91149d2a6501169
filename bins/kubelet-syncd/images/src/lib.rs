//! Images: names, presence, pulls, and what is told about them.

pub mod backoff;
pub mod credentials;
pub mod export;
mod file_id;
pub mod in_use;
mod manager;
#[cfg(test)]
mod manager_tests;
mod metrics;
pub mod pull_files;
pub mod pull_records;
pub mod queue;
mod writes;

pub use file_id::{FileId, Folder};
pub use manager::{
    Credential, Credentials, ImageError, ImageErrorReason, ImageEvents, ImageManager, ImageRef, ImageRequest,
    ImageService, PullLimits, PullPolicy, RecordStore, RecordStoreError,
};
pub use metrics::ImageMetrics;
