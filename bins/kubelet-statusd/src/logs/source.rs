//! Where a log file comes from: kubelet-volnetd, which opens it by ids and passes it, read-only. This process opens no
//! path of a pod.

use std::fs::File;
use std::future::Future;
use std::time::Duration;

use bulkhead_ipc::broker::{BrokerClient, BrokerError};
use bulkhead_ipc::client::Link;
use bulkhead_ipc::volnetd::rotated_log::Pick;
use bulkhead_ipc::volnetd::{ContainerLog, RotatedLog, open_request::Kind};
use bulkhead_types::{BackOff, LogStamp};
use tokio::time::Instant;
use tonic::Code;

use super::pods;

/// For so long a request waits for a kubelet-volnetd that is away: longer than a restart takes.
const PATIENCE: Duration = Duration::from_secs(5);
/// And so long for a file that is not there: in a rotation the next one comes at once.
const GAP: Duration = Duration::from_millis(300);
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

    /// Opens the oldest rotated file that is later than this one: as the runtime wrote it, or compressed.
    fn open_after(&self, stamp: LogStamp) -> impl Future<Output = Result<File, NoFile>> + Send;

    /// Whether this rotated file is kept, in whichever form.
    fn is_kept(&self, stamp: LogStamp) -> impl Future<Output = Result<bool, NoFile>> + Send;

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

impl Brokered {
    async fn ask(&self, kind: Kind) -> Result<File, NoFile> {
        match self.broker.open(kind).await {
            Ok(fd) => Ok(File::from(fd)),
            Err(error) => Err(match error.code() {
                Code::NotFound => NoFile::Missing,
                Code::Unavailable | Code::DeadlineExceeded | Code::ResourceExhausted => NoFile::Away(error),
                _ => NoFile::Refused(error),
            }),
        }
    }

    async fn rotated(&self, stamp: LogStamp, pick: Pick) -> Result<File, NoFile> {
        let ContainerLog { pod, container, restart_count } = self.log.clone();
        let (stamp, pick) = (stamp.to_string(), pick.into());
        self.ask(Kind::RotatedLog(RotatedLog { pod, container, restart_count, stamp, pick })).await
    }
}

impl Source for Brokered {
    async fn open(&self) -> Result<File, NoFile> {
        self.ask(Kind::ContainerLog(self.log.clone())).await
    }

    async fn open_after(&self, stamp: LogStamp) -> Result<File, NoFile> {
        self.rotated(stamp, Pick::Next).await
    }

    async fn is_kept(&self, stamp: LogStamp) -> Result<bool, NoFile> {
        match self.rotated(stamp, Pick::Any).await {
            Ok(_) => Ok(true),
            Err(NoFile::Missing) => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn is_forgotten(&self) -> bool {
        let uid = self.log.pod.as_ref().map(|pod| pod.uid.clone()).unwrap_or_default();
        matches!(pods::get(&self.syncd, "", &uid).await, Err(status) if status.code() == Code::NotFound)
    }
}

/// Opens the file for a request: a restart of kubelet-volnetd is waited out, and a rotation.
///
/// # Errors
/// See [`NoFile`].
pub async fn open_patiently(source: &impl Source) -> Result<File, NoFile> {
    let began = Instant::now();
    let mut retry = BackOff::new(RETRY.0, RETRY.1);
    loop {
        match source.open().await {
            Err(NoFile::Away(_)) if began.elapsed() < PATIENCE => {}
            Err(NoFile::Missing) if began.elapsed() < GAP => {}
            answer => return answer,
        }
        tokio::time::sleep(retry.pause()).await;
    }
}
