//! Configuration of a node: upstream's KubeletConfiguration and command line, defaults, limits, and the rendered result.
//!
//! The launcher reads and checks everything here once; daemons read [`NodeConfig`] alone. What is refused is refused
//! with field, value and what is allowed, all at once.

pub mod command_line;
pub mod cpu_set;
pub mod credential_providers;
pub mod defaults;
pub mod document;
pub mod endpoint;
pub mod eviction;
mod field;
pub mod flags;
pub mod gates;
pub mod internal;
pub mod kubeconfig;
pub mod kubelet;
pub mod kubelet_flags;
pub mod load;
mod node;
pub mod node_ip;
pub mod not_yet;
pub mod path_text;
pub mod reserved;
mod serving;
pub mod shutdown;
pub mod validate;
pub mod version;

pub use field::{DurationOrNanos, FieldError};
pub use gates::{Feature, FeatureGates};
pub use internal::Internal;
pub use kubelet::KubeletConfiguration;
pub use kubelet_flags::KubeletFlags;
pub use node::{Identity, NodeConfig, NodeConfigError, ResolveError, Users, run_dir_for, short_hash};
pub use serving::{ServingError, ServingPair};
