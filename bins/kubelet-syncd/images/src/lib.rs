//! Images: names, presence, pulls, and what is told about them.
//!
//! A module uses only those above it in this table (`tests/tests/files/layers.rs` holds it to that).
//!
//! | module | decides |
//! |---|---|
//! | [`backoff`] | how long a failed pull is not tried again |
//! | [`queue`] | who pulls, and who waits for that |
//! | [`in_use`] | which images garbage collection must not take away |
//! | `writes` | which writes to the disk one write does |
//! | `file_id` | the names of upstream's files of pulls |
//! | `pull_policy` | when an image is pulled |
//! | [`pull_records`] | who may use an image without pulling it |
//! | [`pull_files`] | what stands in upstream's files of pulls |
//! | `metrics` | nothing: upstream's metrics |
//! | `manager` | whether an image is there, and what is done and said about it |
//! | [`credentials`] | with which credentials an image is pulled |
//! | [`export`] | when upstream's files of pulls are read and written |

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
mod pull_policy;
pub mod pull_records;
pub mod queue;
mod writes;

pub use file_id::{FileId, Folder};
pub use manager::{
    Credential, Credentials, ImageError, ImageErrorReason, ImageEvents, ImageManager, ImageRef, ImageRequest,
    ImageService, PullLimits, RecordStore, RecordStoreError,
};
pub use metrics::ImageMetrics;
pub use pull_policy::PullPolicy;
