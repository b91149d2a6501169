//! Block devices that PersistentVolumes name: what is at a path, what of it is mounted once a node, and what is mapped
//! into pods (upstream `pkg/volume/local`, `pkg/volume/fc`, `pkg/volume/iscsi`). What is on a device is looked at,
//! formatted and checked by kubelet-disks, which attaches and detaches as well; here it is mounted.
//!
//! | module | decides |
//! |---|---|
//! | [`options`] | which file systems and mount options there are |
//! | [`fc`] | how disks behind Fibre Channel are named |
//! | [`iscsi`] | how disks of iSCSI targets are named, and what is written down of one |
//! | [`place`] | where a device is mounted once a node, and where it is mapped |
//! | [`look`] | what is at a path |
//! | [`global`] | what is mounted once a node, and when nobody has it any more |
//! | [`map`] | which devices are mapped into a pod |

pub mod fc;
pub mod global;
pub mod iscsi;
pub mod look;
pub mod map;
pub mod options;
pub mod place;

use std::path::PathBuf;

use bulkhead_sys::fs_context::ContextError;
use serde::{Deserialize, Serialize};

/// A block device by the kernel's name for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Below /dev, no link.
    pub path: PathBuf,
    pub major: u32,
    pub minor: u32,
}

/// What a volume's path leads to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Found {
    Folder,
    Device(Device),
}

/// Why a device is not used.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    #[error("the path {path} of a local volume cannot be opened")]
    Open { path: PathBuf, source: std::io::Error },
    #[error("only directory and block device are supported: {path} is {found}")]
    Kind { path: PathBuf, found: &'static str },
    #[error("the volume has volumeMode Block, and {path} is a folder")]
    NoDevice { path: PathBuf },
    #[error("the kernel has no name for block device {major}:{minor} at {path}")]
    NoName { path: PathBuf, major: u32, minor: u32 },
    #[error("{point} has device {there} mounted, and not {wanted}")]
    Another { point: PathBuf, there: String, wanted: String },
    #[error("mount failed: {device} at {point} as {fs_type} with options {options:?}{mismatch}: {source}")]
    Mount {
        device: PathBuf,
        point: PathBuf,
        fs_type: &'static str,
        options: Box<str>,
        /// In words, where something else was found on the device; else empty.
        mismatch: Box<str>,
        source: Box<ContextError>,
    },
    #[error("resize of format {fs_type} is not supported for device {device}")]
    NoGrowth { fs_type: String, device: PathBuf },
    #[error("{place} is in use by pod {pod}")]
    InUse { place: place::DiskPlace, pod: String },
    #[error("failed to let the file system at {point} grow")]
    Grow { point: PathBuf, source: std::io::Error },
}
