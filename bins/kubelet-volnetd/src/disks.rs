//! What kubelet-disks is asked: to make a device ready to be mounted, to let its file system grow.

use std::sync::OnceLock;
use std::time::Duration;

use bulkhead_ipc::common::disk_reply::Outcome;
use bulkhead_ipc::common::disk_request::Act;
use bulkhead_ipc::common::{DiskFileSystem, DiskReply, DiskRequest};
use bulkhead_ipc::helper::{AskError, Asker};

/// The socket's name, among those that the launcher passes and below the folder of the sockets.
pub const SOCKET: &str = "disks";

/// Longer than kubelet-disks gives one device: a check of a large one takes long, and whoever asks again waits behind it.
const PATIENCE: Duration = Duration::from_secs(7 * 60 * 60);

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
        let question = DiskRequest { act: act.into(), device, major, minor, file_system, read_only };
        let asker = self.0.get().cloned().unwrap_or_default();
        let reply: DiskReply = asker.ask_for(&question, PATIENCE).await?;
        match reply.outcome() {
            Outcome::Ready | Outcome::Formatted => Ok(reply.found),
            Outcome::Failed | Outcome::Unspecified => Err(DisksError::Failed(reply.message)),
        }
    }
}
