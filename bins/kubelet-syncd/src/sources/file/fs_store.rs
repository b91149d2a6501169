//! The manifest store over plain paths and inotify, for tests: what the broker does, without the broker.

use std::io::Read as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::sync::mpsc;

use super::store::{Change, Content, Entry, EntryKind, Listing, ManifestStore, StoreError};
use kubelet_model::decode::MANIFEST_MAX_BYTES;

pub struct FsStore {
    path: PathBuf,
    watch: Option<mpsc::UnboundedReceiver<Change>>,
}

impl FsStore {
    pub fn new(path: &Path, watched: bool) -> Self {
        FsStore { path: path.to_owned(), watch: watched.then(|| watch(path)) }
    }
}

/// A thread that reads inotify; it ends with the test program, or when nobody listens to its next event.
fn watch(path: &Path) -> mpsc::UnboundedReceiver<Change> {
    let inotify = Inotify::init(InitFlags::IN_CLOEXEC).unwrap();
    let events = AddWatchFlags::IN_CREATE
        | AddWatchFlags::IN_MODIFY
        | AddWatchFlags::IN_CLOSE_WRITE
        | AddWatchFlags::IN_ATTRIB
        | AddWatchFlags::IN_MOVED_FROM
        | AddWatchFlags::IN_MOVED_TO
        | AddWatchFlags::IN_DELETE;
    inotify.add_watch(path, events).unwrap();
    let (tx, rx) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        while let Ok(events) = inotify.read_events() {
            for event in events {
                let name = event.name.map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
                let mask = event.mask;
                let change = if mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
                    Change::Rescan
                } else if mask.intersects(AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO) {
                    Change::Added(name)
                } else if mask.contains(AddWatchFlags::IN_DELETE) {
                    Change::Removed(name)
                } else if mask.contains(AddWatchFlags::IN_MOVED_FROM) {
                    Change::MovedAway(name)
                } else if mask.contains(AddWatchFlags::IN_IGNORED) {
                    return;
                } else {
                    Change::Modified(name)
                };
                if tx.send(change).is_err() {
                    return;
                }
            }
        }
    });
    rx
}

fn failed(doing: &'static str, name: &str, source: std::io::Error) -> StoreError {
    StoreError { doing, name: name.to_owned(), source }
}

impl ManifestStore for FsStore {
    async fn list(&mut self) -> Result<Listing, StoreError> {
        let shown = self.path.display().to_string();
        let meta = match std::fs::metadata(&self.path) {
            Ok(meta) => meta,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Listing::Missing),
            Err(e) => return Err(failed("examine", &shown, e)),
        };
        if meta.is_file() {
            return Ok(Listing::File);
        }
        if !meta.is_dir() {
            return Ok(Listing::Other);
        }
        let mut entries = Vec::new();
        for entry in std::fs::read_dir(&self.path).map_err(|e| failed("list", &shown, e))? {
            let entry = entry.map_err(|e| failed("list", &shown, e))?;
            let kind = entry.file_type().map_err(|e| failed("list", &shown, e))?;
            let kind = if kind.is_file() {
                EntryKind::Regular
            } else if kind.is_dir() {
                EntryKind::Folder
            } else if kind.is_symlink() {
                EntryKind::Link
            } else {
                EntryKind::Other
            };
            entries.push(Entry::new(entry.file_name().as_encoded_bytes(), kind));
        }
        Ok(Listing::Folder { device: meta.dev(), entries })
    }

    async fn read(&mut self, name: &str) -> Result<Content, StoreError> {
        let path = if name.is_empty() { self.path.clone() } else { self.path.join(name) };
        let opened = std::fs::OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(&path);
        let file = match opened {
            Ok(file) => file,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Content::Missing),
            Err(e) => return Err(failed("open", name, e)),
        };
        let kind = file.metadata().map_err(|e| failed("examine", name, e))?.file_type();
        if kind.is_dir() {
            return Ok(Content::Folder);
        }
        if kind.is_fifo() || !kind.is_file() {
            return Ok(Content::NotRegular);
        }
        let mut bytes = Vec::new();
        file.take(MANIFEST_MAX_BYTES as u64).read_to_end(&mut bytes).map_err(|e| failed("read", name, e))?;
        Ok(Content::Bytes(bytes))
    }

    async fn changed(&mut self) -> Change {
        let Some(watch) = &mut self.watch else { std::future::pending().await };
        match watch.recv().await {
            Some(change) => change,
            // The watched folder is gone.
            None => std::future::pending().await,
        }
    }
}
