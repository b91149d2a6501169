//! The manifest folder through the descriptor broker: the folder is root's, this process cannot walk to it. It gets the
//! folder and each manifest as an open descriptor, and word of changes as a stream of `kubelet-volnetd`.

use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::time::Duration;

use bulkhead_ipc::broker::{BrokerClient, BrokerError};
use bulkhead_ipc::client::Link;
use bulkhead_ipc::context::CallContext;
use bulkhead_ipc::volnetd::open_request::Kind;
use bulkhead_ipc::volnetd::watch_event::Change as WireChange;
use bulkhead_ipc::volnetd::watches_client::WatchesClient;
use bulkhead_ipc::volnetd::{Manifest, WatchEvent, WatchKind, WatchRequest};
use rustix::fs::{Dir, FileType};
use tonic::{Code, Streaming};

use crate::sources::file::{Change, Content, Entry, EntryKind, Listing, ManifestStore, StoreError};
use kubelet_model::decode::MANIFEST_MAX_BYTES;

/// Pause before a broken watch is opened again.
const REOPEN: Duration = Duration::from_millis(200);
/// How long kubelet-volnetd may take to begin a stream.
const START: Duration = Duration::from_secs(5);
/// Entries of one folder that are looked at; more cannot be meant.
const ENTRIES_MAX: usize = 10_000;

/// See the module.
#[derive(Debug)]
pub struct BrokerManifests {
    broker: BrokerClient,
    link: Link,
    watch: Option<Streaming<WatchEvent>>,
}

impl BrokerManifests {
    pub fn new(broker: BrokerClient, link: Link) -> Self {
        BrokerManifests { broker, link, watch: None }
    }

    async fn open(&self, name: &str) -> Result<OwnedFd, BrokerError> {
        let manifest = Manifest { index: 0, name: name.to_owned() };
        self.broker.open(Kind::Manifest(manifest)).await
    }
}

fn failed(doing: &'static str, name: &str, error: impl Into<std::io::Error>) -> StoreError {
    StoreError { doing, name: name.to_owned(), source: error.into() }
}

fn from_broker(doing: &'static str, name: &str, error: BrokerError) -> StoreError {
    failed(doing, name, std::io::Error::other(error))
}

impl ManifestStore for BrokerManifests {
    async fn list(&mut self) -> Result<Listing, StoreError> {
        const DOING: &str = "opening the manifest path";
        let fd = match self.open("").await {
            Ok(fd) => fd,
            Err(error) if error.code() == Code::NotFound => return Ok(Listing::Missing),
            Err(error) => return Err(from_broker(DOING, "", error)),
        };
        let stat = rustix::fs::fstat(&fd).map_err(|e| failed(DOING, "", e))?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => return Ok(Listing::File),
            FileType::Directory => {}
            _ => return Ok(Listing::Other),
        }
        let mut entries = Vec::new();
        for entry in Dir::new(fd).map_err(|e| failed(DOING, "", e))?.take(ENTRIES_MAX) {
            let entry = entry.map_err(|e| failed("listing the manifest folder", "", e))?;
            let name = entry.file_name().to_bytes();
            let kind = match entry.file_type() {
                FileType::RegularFile => EntryKind::Regular,
                FileType::Directory => EntryKind::Folder,
                FileType::Symlink => EntryKind::Link,
                // Some file systems do not say: reading shows.
                FileType::Unknown => EntryKind::Link,
                _ => EntryKind::Other,
            };
            if name != b"." && name != b".." {
                entries.push(Entry::new(name, kind));
            }
        }
        Ok(Listing::Folder { device: stat.st_dev, entries })
    }

    async fn read(&mut self, name: &str) -> Result<Content, StoreError> {
        const DOING: &str = "reading manifest";
        let fd = match self.open(name).await {
            Ok(fd) => fd,
            Err(error) if error.code() == Code::NotFound => return Ok(Content::Missing),
            // It opens regular files only; what else a link may lead to is refused.
            Err(BrokerError::Refused { code: Code::FailedPrecondition, message, .. })
                if message.contains("regular file") =>
            {
                return Ok(Content::NotRegular);
            }
            Err(error) => return Err(from_broker(DOING, name, error)),
        };
        let mut bytes = Vec::new();
        let limit = u64::try_from(MANIFEST_MAX_BYTES).unwrap_or(u64::MAX);
        std::fs::File::from(fd).take(limit).read_to_end(&mut bytes).map_err(|e| failed(DOING, name, e))?;
        Ok(Content::Bytes(bytes))
    }

    async fn changed(&mut self) -> Change {
        loop {
            if let Some(watch) = &mut self.watch {
                match watch.message().await {
                    Ok(Some(event)) => match event.change() {
                        WireChange::Added => return Change::Added(event.name),
                        WireChange::Modified => return Change::Modified(event.name),
                        WireChange::Removed if event.unlinked => return Change::Removed(event.name),
                        WireChange::Removed => return Change::MovedAway(event.name),
                        WireChange::Rescan => return Change::Rescan,
                        WireChange::Unspecified | WireChange::Listed => continue,
                    },
                    Ok(None) => {}
                    Err(status) => {
                        tracing::debug!(code = ?status.code(), "watch of the manifests ended: {}", status.message())
                    }
                }
                self.watch = None;
                tokio::time::sleep(REOPEN).await;
            }
            self.link.ready().await;
            let request = CallContext::new().streaming_request(WatchRequest { kind: WatchKind::Manifests.into() });
            let begun = tokio::time::timeout(START, WatchesClient::new(self.link.channel()).watch(request)).await;
            match begun.unwrap_or_else(|_| Err(tonic::Status::deadline_exceeded("the stream did not start"))) {
                Ok(stream) => {
                    self.watch = Some(stream.into_inner());
                    // What changed while nobody watched.
                    return Change::Rescan;
                }
                Err(status) => {
                    tracing::warn!(code = ?status.code(), "failed to watch static pod manifests: {}", status.message());
                    tokio::time::sleep(REOPEN * 5).await;
                }
            }
        }
    }
}
