//! The node's certificates on the disk, by way of kubelet-volnetd: what is there, and what is to be written.

use std::sync::Arc;

use bulkhead_apiclient::source::SourceError;
use bulkhead_apiclient::{CredentialFile, CredentialSource};
use bulkhead_ipc::broker::{BrokerClient, BrokerError};
use bulkhead_ipc::volnetd::{ServingPair, credential};
use prost::Message as _;

/// Why something was not read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("{} {source}", .file.name())]
    Read { file: CredentialFile, source: SourceError },
    #[error("it cannot be written")]
    Put(#[from] BrokerError),
    #[error("it cannot be handed over")]
    Memfd(#[from] std::io::Error),
}

impl StoreError {
    /// kubelet-volnetd is away for the moment.
    pub fn is_unknown(&self) -> bool {
        match self {
            StoreError::Read { source, .. } => source.is_unknown(),
            StoreError::Put(error) => {
                matches!(
                    error.code(),
                    tonic::Code::Unavailable | tonic::Code::DeadlineExceeded | tonic::Code::Cancelled
                )
            }
            StoreError::Memfd(_) => false,
        }
    }
}

/// See the module.
#[derive(Clone)]
pub struct Store {
    pub source: Arc<dyn CredentialSource>,
    pub broker: BrokerClient,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").finish_non_exhaustive()
    }
}

impl Store {
    /// A file's bytes; None: there is none.
    ///
    /// # Errors
    /// It cannot be read, or kubelet-volnetd is away.
    pub async fn read(&self, file: CredentialFile) -> Result<Option<Vec<u8>>, StoreError> {
        match self.source.read(file).await {
            Ok(bytes) => Ok(Some(bytes)),
            Err(SourceError::Missing) => Ok(None),
            Err(source) => Err(StoreError::Read { file, source }),
        }
    }

    /// Puts a pair into force; `kind` says which.
    ///
    /// # Errors
    /// It is not written.
    pub async fn put(&self, kind: credential::Kind, certificates: Vec<u8>, key: &str) -> Result<(), StoreError> {
        let pair = ServingPair { certificates, private_key: key.as_bytes().to_vec() };
        self.hand_over(kind, &pair.encode_to_vec()).await
    }

    /// Keeps a key whose request is not answered yet.
    ///
    /// # Errors
    /// It is not written.
    pub async fn put_pending(&self, key: &str) -> Result<(), StoreError> {
        self.put(credential::Kind::PendingClientKey, Vec::new(), key).await
    }

    /// Has the kubeconfig written that shows the pair which is asked for.
    ///
    /// # Errors
    /// There is no bootstrap kubeconfig, or the new one is not written.
    pub async fn put_kubeconfig(&self) -> Result<(), StoreError> {
        self.hand_over(credential::Kind::Kubeconfig, &[]).await
    }

    async fn hand_over(&self, kind: credential::Kind, content: &[u8]) -> Result<(), StoreError> {
        let content = bulkhead_sys::memfd::sealed("credential", content)?;
        Ok(self.broker.put_credential(kind, content).await?)
    }
}
