//! What kubelet-disks is asked: to make a device ready to be mounted, to let its file system grow; to attach a disk, and to detach it.

use std::sync::OnceLock;
use std::time::Duration;

use bulkhead_ipc::common::disk_reply::Outcome;
use bulkhead_ipc::common::disk_request::Act;
use bulkhead_ipc::common::{DiskFileSystem, DiskReply, DiskRequest, FcDisk};
use bulkhead_ipc::helper::{AskError, Asker};

/// The socket's name, among those that the launcher passes and below the folder of the sockets.
pub const SOCKET: &str = "disks";

/// Longer than kubelet-disks gives one device: a check of a large one takes long, and whoever asks again waits behind it.
const PATIENCE: Duration = Duration::from_secs(7 * 60 * 60);

/// A scan of all SCSI hosts ends sooner, and so does what multipathd is asked.
const ATTACH: Duration = Duration::from_secs(120);

/// Why a device is not ready.
#[derive(Debug, thiserror::Error)]
pub enum DisksError {
    /// Nothing is known of what was done: it may be asked for again.
    #[error("kubelet-disks cannot be asked")]
    Ask(#[from] AskError),
    #[error("{0}")]
    Failed(String),
}

/// The asker, which is there once the process serves.
#[derive(Debug, Default)]
pub struct Disks(OnceLock<Asker>);

impl Disks {
    /// Once.
    pub fn set(&self, asker: Asker) {
        if self.0.set(asker).is_err() {
            tracing::warn!("whom to ask about disks was known already");
        }
    }

    /// What was found on the device; empty where it was formatted.
    ///
    /// # Errors
    /// Nobody answers, or it cannot be done.
    pub async fn ask(
        &self,
        act: Act,
        device: (String, u32, u32),
        file_system: DiskFileSystem,
        read_only: bool,
    ) -> Result<String, DisksError> {
        let (device, major, minor) = device;
        let file_system = file_system.into();
        let question = DiskRequest { act: act.into(), device, major, minor, file_system, read_only, fc: None };
        let reply = self.answered(&question, PATIENCE).await?;
        match reply.outcome() {
            Outcome::Ready | Outcome::Formatted => Ok(reply.found),
            _ => Err(DisksError::Failed(reply.message)),
        }
    }

    /// Its device: path and numbers, as kubelet-disks has them.
    ///
    /// # Errors
    /// Nobody answers, or there is no such disk.
    pub async fn attach(&self, disk: FcDisk) -> Result<(String, u32, u32), DisksError> {
        let question = DiskRequest { act: Act::Attach.into(), fc: Some(disk), ..DiskRequest::default() };
        let reply = self.answered(&question, ATTACH).await?;
        match reply.outcome() {
            Outcome::Attached => Ok((reply.device, reply.major, reply.minor)),
            _ => Err(DisksError::Failed(reply.message)),
        }
    }

    /// Takes a device out of the kernel; the one that the disk's name leads to where it is not known by another.
    ///
    /// # Errors
    /// Nobody answers, or it is in use.
    pub async fn detach(&self, device: Option<(String, u32, u32)>, disk: FcDisk) -> Result<(), DisksError> {
        let (device, major, minor) = device.unwrap_or_default();
        let (act, fc) = (Act::Detach.into(), Some(disk));
        let question = DiskRequest { act, device, major, minor, fc, ..DiskRequest::default() };
        let reply = self.answered(&question, ATTACH).await?;
        match reply.outcome() {
            Outcome::Detached => Ok(()),
            _ => Err(DisksError::Failed(reply.message)),
        }
    }

    async fn answered(&self, question: &DiskRequest, patience: Duration) -> Result<DiskReply, AskError> {
        let asker = self.0.get().cloned().unwrap_or_default();
        asker.ask_for(question, patience).await
    }
}
