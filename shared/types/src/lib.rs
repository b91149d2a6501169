//! Values that several processes share: ids, paths built from them, generations, quantities, durations, hashes, and how
//! addresses are read.
//!
//! No I/O, no async, no generated code. An id can only be made by parsing it, so a value of such a type stays valid
//! wherever it goes; path builders take ids alone, so no text of a pod ever becomes a path component unchecked.

mod back_off;
pub mod cpu;
mod epoch;
mod error_text;
mod go_arch;
mod go_duration;
pub mod hash;
mod ids;
pub mod ip;
mod later;
mod log_file;
mod paths;
mod quantity;
pub mod resource_name;
mod token_bucket;

pub use back_off::BackOff;
pub use epoch::{Epoch, Generation};
pub use error_text::{chain, go_aggregate};
pub use go_arch::go_arch;
pub use go_duration::{GoDuration, GoDurationError};
pub use ids::{ContainerId, ContainerName, FlexDriver, IdError, Namespace};
pub use ids::{NodeName, PodName, PodUid, SandboxId, VolumeName};
pub use ids::{is_dns1123_label, is_dns1123_subdomain};
pub use later::{FAR, later};
pub use log_file::{LogForm, LogStamp, current_log_name, parse_rotated_log_name, rotated_log_name};
pub use paths::{InstancePaths, escape_qualified_name, pod_log_dir_name};
pub use quantity::{Quantity, QuantityError};
pub use token_bucket::TokenBucket;

/// The four processes. One name everywhere: folder, crate, binary, unit, user, socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Process {
    Syncd,
    Volnetd,
    Evictiond,
    Statusd,
}

impl Process {
    /// All four, in the order in which they are started: a process comes after those that it calls.
    pub const ALL: [Process; 4] = [Process::Volnetd, Process::Syncd, Process::Evictiond, Process::Statusd];

    /// Binary, unit, user and socket name: `kubelet-syncd`.
    pub const fn name(self) -> &'static str {
        match self {
            Process::Syncd => "kubelet-syncd",
            Process::Volnetd => "kubelet-volnetd",
            Process::Evictiond => "kubelet-evictiond",
            Process::Statusd => "kubelet-statusd",
        }
    }

    /// Name in the proto package and below `<root-dir>/bulkhead/`: `syncd`.
    pub const fn short(self) -> &'static str {
        match self {
            Process::Syncd => "syncd",
            Process::Volnetd => "volnetd",
            Process::Evictiond => "evictiond",
            Process::Statusd => "statusd",
        }
    }
}

impl std::fmt::Display for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Quality-of-service class of a pod (upstream `pkg/apis/core/v1/helper/qos`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub enum QosClass {
    Guaranteed,
    Burstable,
    BestEffort,
}

impl QosClass {
    /// As in `status.qosClass`.
    pub const fn as_str(self) -> &'static str {
        match self {
            QosClass::Guaranteed => "Guaranteed",
            QosClass::Burstable => "Burstable",
            QosClass::BestEffort => "BestEffort",
        }
    }
}

impl std::fmt::Display for QosClass {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}
