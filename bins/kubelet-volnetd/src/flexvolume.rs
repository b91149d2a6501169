//! What kubelet-flexvolume is asked: to call a FlexVolume driver. It is there only where an operator has switched it on.

use std::sync::OnceLock;
use std::time::Duration;

use bulkhead_ipc::common::flex_reply::Outcome;
use bulkhead_ipc::common::{FlexReply, FlexRequest};
use bulkhead_ipc::helper::{AskError, Asker};

/// Longer than kubelet-flexvolume gives one call.
const PATIENCE: Duration = Duration::from_secs(25 * 60);

/// Why a driver has not done it.
#[derive(Debug, thiserror::Error)]
pub enum FlexError {
    /// Nobody ever will answer, as things are.
    #[error(
        "volumes of kind flexVolume are off on this node: an operator switches them on by `systemctl enable --now \
         kubelet-flexvolume.socket`, or, without systemd's units, by --flexvolume"
    )]
    Off,
    /// Nothing is known of what was done: it may be asked for again.
    #[error("kubelet-flexvolume cannot be asked")]
    Ask(#[source] AskError),
    #[error("the driver does not support it")]
    NotSupported,
    #[error("{0}")]
    Failed(String),
    /// Nothing is known of what the driver has done.
    #[error("{0}")]
    Late(String),
}

impl From<AskError> for FlexError {
    fn from(error: AskError) -> Self {
        match error {
            AskError::NoHelper => FlexError::Off,
            AskError::Io(error) if error.kind() == std::io::ErrorKind::NotFound => FlexError::Off,
            AskError::TooLong => FlexError::Failed("options and secret of the volume are too long".to_owned()),
            other => FlexError::Ask(other),
        }
    }
}

/// The asker, which is there once the process serves.
#[derive(Debug, Default)]
pub struct Flex(OnceLock<Asker>);

impl Flex {
    /// Once.
    pub fn set(&self, asker: Asker) {
        if self.0.set(asker).is_err() {
            tracing::warn!("FlexVolume helper already set");
        }
    }

    /// What the driver has said beside that it has done it.
    ///
    /// # Errors
    /// See [`FlexError`].
    pub async fn ask(&self, question: &FlexRequest) -> Result<FlexReply, FlexError> {
        let asker = self.0.get().cloned().unwrap_or_default();
        let reply: FlexReply = asker.ask_for(question, PATIENCE).await?;
        match reply.outcome() {
            Outcome::Done => Ok(reply),
            Outcome::NotSupported => Err(FlexError::NotSupported),
            Outcome::Late => Err(FlexError::Late(reply.message)),
            Outcome::Failed | Outcome::Unspecified => Err(FlexError::Failed(reply.message)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn where_nobody_listens_the_operator_is_told_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let off = Flex::default();
        assert!(matches!(off.ask(&FlexRequest::default()).await, Err(FlexError::Off)));
        let nobody = Flex::default();
        nobody.set(Asker::at(&folder.path().join("kubelet-flexvolume.sock")));
        let error = nobody.ask(&FlexRequest::default()).await.unwrap_err().to_string();
        assert!(error.contains("systemctl enable --now kubelet-flexvolume.socket"), "{error}");
    }
}
