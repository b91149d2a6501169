//! Volumes of CSI drivers: what is made before and looked at after each call that kubelet-syncd makes of a driver (upstream
//! `pkg/volume/csi`, `pkg/volume/util` and `operationexecutor`).
//!
//! The folders and `vol_data.json` are ours. What a driver puts there is not: a link is followed to the number of a
//! block device alone, nothing is entered but by a worker, and of its contents nothing is removed but one empty folder
//! or one name. A mount over a folder of ours, which would lead elsewhere, is found in mountinfo before the way is
//! taken.
//!
//! | module | decides |
//! |---|---|
//! | [`paths`] | what is a name, and where upstream keeps what concerns it |
//! | [`data`] | what `vol_data.json` says |
//! | [`way`] | whether the way to a folder is ours |
//! | [`references`] | where else on the machine what is mounted once a node is mounted, a FlexVolume driver's too |
//! | [`stage`] | what is done once a node |
//! | [`publish`] | what is done once a pod |
//! | [`block`] | how a pod's device is bound, linked and held |
//! | [`list`] | what there is |
//! | [`boot`] | when nothing of it is certain |

pub mod block;
pub mod boot;
pub mod data;
pub mod list;
pub mod paths;
pub mod publish;
pub mod references;
pub mod stage;
pub mod way;

use std::path::PathBuf;

use bulkhead_sys::loop_device::LoopError;
use bulkhead_sys::mount::MountError;
use bulkhead_sys::open::OpenError;
use bulkhead_sys::tree::TreeError;
use serde::{Deserialize, Serialize};

use super::ownership::OwnershipError;

/// Why a verb around a driver's call failed.
#[derive(Debug, thiserror::Error)]
pub enum CsiError {
    #[error("failed to open {path}")]
    Open { path: PathBuf, source: OpenError },
    #[error("{path} is a symbolic link or lies behind one, and none is followed")]
    Link { path: PathBuf },
    #[error("{path} is {found}, which is in the way")]
    InTheWay { path: PathBuf, found: &'static str },
    #[error("something is mounted over {path}, which is on the way to the volume")]
    MountInTheWay { path: PathBuf },
    #[error("{path} belongs to volume {handle} of driver {driver}, which has to go first")]
    Another { path: PathBuf, driver: String, handle: String },
    #[error("{path} says that it is volume {handle} of driver {driver}, which has to be asked to take it back")]
    Readable { path: PathBuf, driver: String, handle: String },
    #[error("{what} is not prepared here")]
    NotPrepared { what: String },
    #[error("the driver has put nothing at {path}")]
    NoTarget { path: PathBuf },
    #[error("what the driver has put at {path} is {found}, and has to be {allowed}")]
    Target { path: PathBuf, found: &'static str, allowed: &'static str },
    #[error("applyFSGroup failed for vol {handle}")]
    Group { handle: String, source: OwnershipError },
    #[error("{path} is still mounted ({fs_type}), held by {holders}")]
    StillMounted { path: PathBuf, fs_type: String, holders: String },
    #[error(
        "GetDeviceMountRefs check failed: the device mount path {path:?} is still mounted by other references [{references}]"
    )]
    MountedElsewhere { path: PathBuf, references: String },
    #[error("{what} is still published to {pods}")]
    StillPublished { what: String, pods: String },
    #[error("{path} is not empty, and nothing is removed that a driver may need")]
    NotEmpty { path: PathBuf },
    #[error("failed to examine {path}")]
    Unserved { path: PathBuf, source: std::io::Error },
    #[error("failed to {doing} {path}")]
    Io { doing: &'static str, path: PathBuf, source: std::io::Error },
    #[error("failed to remove {path}")]
    Remove { path: PathBuf, source: TreeError },
    #[error(transparent)]
    Mount(#[from] MountError),
    #[error("failed to hold {path} by a loop device")]
    Loop { path: PathBuf, source: LoopError },
}

/// What a look before a Prepare found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Prepared {
    /// All of it is there, as it has to be.
    Before(PathBuf),
    /// It is made by now.
    Now(PathBuf),
    /// Something has to be made, which is written into the journal first.
    Needed,
}
