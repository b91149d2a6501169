//! The checkpoint of devices (`kubelet_internal_checkpoint`): read at the start, written before a pod relies on it, and soon after
//! other changes.

use std::time::Duration;

use bulkhead_ipc::broker::BrokerClient;
use bulkhead_ipc::volnetd::StateKind;
use bulkhead_sys::memfd;
use kubelet_container_manager::checkpoint::devices as file;

use super::DevicePlugins;
use crate::container_manager::state_files::{self, StateFileError};

/// Changes that nobody relies on are gathered for so long before the checkpoint is written.
const SETTLE: Duration = Duration::from_secs(1);
/// After a write that failed, and how often one that a pod waits for is tried.
const WRITE_AGAIN: Duration = Duration::from_millis(500);
const WRITE_TRIES: u32 = 60;

/// The checkpoint as it is; None: there is none.
///
/// # Errors
/// It cannot be had.
pub async fn found(broker: &BrokerClient) -> Result<Option<Vec<u8>>, StateFileError> {
    match state_files::read(broker, StateKind::DeviceManager).await {
        // kubelet-volnetd of an earlier version: no device was ever given.
        Err(StateFileError::Broker(error)) if error.code() == tonic::Code::InvalidArgument => {
            tracing::warn!("kubelet-volnetd rejected the device plugin checkpoint: {error}");
            Ok(None)
        }
        found => found,
    }
}

impl DevicePlugins {
    pub(super) async fn keep_file(&self) {
        loop {
            self.dirty.notified().await;
            tokio::time::sleep(SETTLE).await;
            loop {
                let written = self.write().await;
                if let Err(error) = &written {
                    tracing::warn!("Writing checkpoint encountered: {error}");
                }
                if self.kept.lock().catch_up(&*self.store) && written.is_ok() {
                    break;
                }
                tokio::time::sleep(WRITE_AGAIN * 10).await;
            }
        }
    }

    /// Writes the checkpoint, if it is not as the devices are.
    async fn write(&self) -> Result<(), StateFileError> {
        let mut written = self.written.lock().await;
        let bytes = file::write(&self.manager.lock().to_file())?;
        if written.as_deref() != Some(&bytes) {
            self.broker.put_state(StateKind::DeviceManager, memfd::sealed(file::FILE, &bytes)?).await?;
            *written = Some(bytes);
        }
        Ok(())
    }

    /// The same for a pod that relies on it: kubelet-volnetd may be away for a moment.
    pub(super) async fn write_now(&self) -> Result<(), String> {
        let mut tries = 0;
        loop {
            match self.write().await {
                Ok(()) => return Ok(()),
                Err(error) if tries < WRITE_TRIES && error.is_away() => {
                    tries += 1;
                    tokio::time::sleep(WRITE_AGAIN).await;
                }
                Err(error) => return Err(format!("failed to write checkpoint file {:?}: {error}", file::FILE)),
            }
        }
    }
}
