//! What the file source needs from whoever can open the manifest folder: a listing, bytes, and word of changes.

use std::future::Future;

/// Something that stands in the folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub name: String,
    pub kind: EntryKind,
}

/// What a directory entry is, before it is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    Regular,
    Folder,
    /// A symbolic link; what it leads to shows when it is read.
    Link,
    /// Pipe, socket, device.
    Other,
    /// Its name is not UTF-8 and shown as near as possible: nobody can be asked for it by that name.
    Unnamable,
}

impl Entry {
    /// An entry by its name in the folder.
    pub fn new(name: &[u8], kind: EntryKind) -> Entry {
        match std::str::from_utf8(name) {
            Ok(name) => Entry { name: name.to_owned(), kind },
            Err(_) => Entry { name: String::from_utf8_lossy(name).into_owned(), kind: EntryKind::Unnamable },
        }
    }
}

/// What is at the configured path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listing {
    /// Nothing: an empty set.
    Missing,
    /// A single manifest.
    File,
    Folder {
        /// Device number of the folder: it tells an emptied folder from one whose file system is gone.
        device: u64,
        entries: Vec<Entry>,
    },
    /// Neither folder nor regular file.
    Other,
}

/// What reading one name gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// At most [`kubelet_model::decode::MANIFEST_MAX_BYTES`] bytes; cut there when there are more.
    Bytes(Vec<u8>),
    /// No such file, or a link that leads nowhere.
    Missing,
    Folder,
    /// Pipe, socket, device.
    NotRegular,
}

/// Word of a change. Names are those inside the folder; for a single file they are not looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    Added(String),
    /// Written, closed after writing, or its mode changed.
    Modified(String),
    /// Its name was removed.
    Removed(String),
    /// Moved away, or nobody knows how it went.
    MovedAway(String),
    /// Events were lost, or the watch has just begun: look at everything.
    Rescan,
}

/// The path, or a file in it, exists and cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("failed to {doing} {name:?}: {source}")]
pub struct StoreError {
    pub doing: &'static str,
    pub name: String,
    #[source]
    pub source: std::io::Error,
}

/// Access to the manifest path. In production every call goes to the descriptor broker, and the watch is its stream.
pub trait ManifestStore: Send {
    fn list(&mut self) -> impl Future<Output = Result<Listing, StoreError>> + Send;
    /// Empty name: the single file.
    fn read(&mut self, name: &str) -> impl Future<Output = Result<Content, StoreError>> + Send;
    /// Waits for the next change; safe to cancel. A store without a watch waits for ever: re-scans do the work then.
    fn changed(&mut self) -> impl Future<Output = Change> + Send;
}

/// No manifests, for sources without a path of them (tests).
#[derive(Debug, Default)]
pub struct NoManifests;

impl ManifestStore for NoManifests {
    async fn list(&mut self) -> Result<Listing, StoreError> {
        Ok(Listing::Missing)
    }

    async fn read(&mut self, _: &str) -> Result<Content, StoreError> {
        Ok(Content::Missing)
    }

    async fn changed(&mut self) -> Change {
        std::future::pending().await
    }
}
