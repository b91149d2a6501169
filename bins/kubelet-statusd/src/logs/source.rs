//! Where a log file comes from: kubelet-volnetd, which opens it by ids and passes it, read-only. This process opens no
//! path of a pod.

use std::fs::File;
use std::future::Future;
use std::time::Duration;

use bulkhead_ipc::broker::{BrokerClient, BrokerError};
use bulkhead_ipc::client::Link;
use bulkhead_ipc::volnetd::{ContainerLog, open_request::Kind};
use bulkhead_types::BackOff;
use tokio::time::Instant;
use tonic::Code;

use super::pods;

/// For so long a request waits for a kubelet-volnetd that is away: longer than a restart takes.
const PATIENCE: Duration = Duration::from_secs(5);
const RETRY: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

/// Why there is no file.
#[derive(Debug, thiserror::Error)]
pub enum NoFile {
    /// No file of that name: not yet, or not any more.
    #[error("there is no log file")]
    Missing,
    /// Nothing is known of it.
    #[error("kubelet-volnetd does not answer")]
    Away(#[source] BrokerError),
    /// It is something that is not opened: a link, or no regular file.
    #[error("the log file is refused")]
    Refused(#[source] BrokerError),
}

/// One container's log file, whichever is at its place at the moment.
pub trait Source: Send + Sync + 'static {
    /// Opens what is there now.
    fn open(&self) -> impl Future<Output = Result<File, NoFile>> + Send;

    /// Nobody knows the pod any more. Silence is no such word.
    fn is_forgotten(&self) -> impl Future<Output = bool> + Send;
}

/// By the broker.
#[derive(Debug, Clone)]
pub struct Brokered {
    pub broker: BrokerClient,
    pub syncd: Link,
    pub log: ContainerLog,
}

impl Source for Brokered {
    async fn open(&self) -> Result<File, NoFile> {
        match self.broker.open(Kind::ContainerLog(self.log.clone())).await {
            Ok(fd) => Ok(File::from(fd)),
            Err(error) => Err(match error.code() {
                Code::NotFound => NoFile::Missing,
                Code::Unavailable | Code::DeadlineExceeded | Code::ResourceExhausted => NoFile::Away(error),
                _ => NoFile::Refused(error),
            }),
        }
    }

    async fn is_forgotten(&self) -> bool {
        let uid = self.log.pod.as_ref().map(|pod| pod.uid.clone()).unwrap_or_default();
        matches!(pods::get(&self.syncd, "", &uid).await, Err(status) if status.code() == Code::NotFound)
    }
}

/// Opens the file for a request: a restart of kubelet-volnetd is waited out.
///
/// # Errors
/// See [`NoFile`].
pub async fn open_patiently(source: &impl Source) -> Result<File, NoFile> {
    let began = Instant::now();
    let mut retry = BackOff::new(RETRY.0, RETRY.1);
    loop {
        match source.open().await {
            Err(NoFile::Away(_)) if began.elapsed() < PATIENCE => {}
            answer => return answer,
        }
        tokio::time::sleep(retry.pause()).await;
    }
}
