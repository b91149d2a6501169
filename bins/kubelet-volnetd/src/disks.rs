//! What kubelet-disks is asked: to make a device ready to be mounted, to let its file system grow; to attach a disk, and to detach it.

use std::sync::OnceLock;
use std::time::Duration;

use bulkhead_ipc::common::disk_reply::Outcome;
use bulkhead_ipc::common::disk_request::Act;
use bulkhead_ipc::common::{DiskFileSystem, DiskReply, DiskRequest, FcDisk, IscsiDisk};
use bulkhead_ipc::helper::{AskError, Asker};

/// Longer than kubelet-disks gives one device: a check of a large one takes long, and whoever asks again waits behind it.
const PATIENCE: Duration = Duration::from_secs(7 * 60 * 60);

/// A scan of all SCSI hosts ends sooner, and so does what multipathd is asked; iscsid tries each of up to 32 portals of a target for
/// two minutes, and whoever asks again waits behind it.
const ATTACH: Duration = Duration::from_secs(90 * 60);

/// Why a device is not ready.
#[derive(Debug, thiserror::Error)]
pub enum DisksError {
    /// Nothing is known of what was done: it may be asked for again.
    #[error("kubelet-disks cannot be asked")]
    Ask(#[from] AskError),
    #[error("{0}")]
    Failed(String),
}

/// A disk that is attached, by its names.
#[derive(Debug, Clone)]
pub enum Named {
    Fc(FcDisk),
    Iscsi(IscsiDisk),
}

impl Named {
    fn into_question(self) -> DiskRequest {
        match self {
            Named::Fc(disk) => DiskRequest { fc: Some(disk), ..DiskRequest::default() },
            Named::Iscsi(disk) => DiskRequest { iscsi: Some(disk), ..DiskRequest::default() },
        }
    }
}

/// The asker, which is there once the process serves.
#[derive(Debug, Default)]
pub struct Disks(OnceLock<Asker>);

impl Disks {
    /// Once.
    pub fn set(&self, asker: Asker) {
        if self.0.set(asker).is_err() {
            tracing::warn!("disk helper already set");
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
        let about = DiskRequest { device, major, minor, ..DiskRequest::default() };
        let question = DiskRequest { act: act.into(), file_system, read_only, ..about };
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
    pub async fn attach(&self, disk: Named) -> Result<(String, u32, u32), DisksError> {
        let question = DiskRequest { act: Act::Attach.into(), ..disk.into_question() };
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
    pub async fn detach(
        &self,
        device: Option<(String, u32, u32)>,
        disk: Named,
        log_out: bool,
    ) -> Result<(), DisksError> {
        let (device, major, minor) = device.unwrap_or_default();
        let act = Act::Detach.into();
        let question = DiskRequest { act, device, major, minor, log_out, ..disk.into_question() };
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
