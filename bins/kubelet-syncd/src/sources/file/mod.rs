//! The manifest folder (or single file) as a source of pods: `staticPodPath`.
//!
//! It takes and refuses what upstream does (`pkg/kubelet/config/file.go`): every regular file whose name does not begin
//! with a dot, links to regular files too, no sub-folders, a missing path is an empty set. It differs in what happens to
//! a pod whose file has become unreadable, invalid or half-written: the last good pod stays, and the trouble is
//! reported once. Of a file that never gave a pod here the consumer is told: what runs may be its pod, left by upstream's
//! kubelet. [`folder`] decides, this module waits and reads.

mod folder;
mod store;

#[cfg(test)]
mod fs_store;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_types::PodUid;
use futures_util::FutureExt as _;
use kubelet_model::v1::Pod;
use parking_lot::Mutex;
use tokio::time::Instant;

pub use folder::{Absence, Folder};
pub use store::{Change, Content, Entry, EntryKind, Listing, ManifestStore, NoManifests, StoreError};

use super::static_pod::ForNode;
use super::uids::Uids;

/// Changes that are taken in before files are read.
const CHANGES_TOGETHER: usize = 1000;

/// Where and how often to look.
#[derive(Debug, Clone)]
pub struct FileConfig {
    /// `staticPodPath`, for messages and for the uid record; the store knows how to open it.
    pub path: PathBuf,
    /// `fileCheckFrequency`: everything is listed and read again, whatever the watch said.
    pub check_every: Duration,
}

/// Receives complete sets and the list of what is wrong at the moment.
pub trait SetSink: Send {
    /// A new complete set. Resolves when it has been taken; false when nobody listens any more.
    fn set(&mut self, pods: Vec<Pod>) -> impl Future<Output = bool> + Send;
    /// That pod of the set was away for a moment and is wanted again, unchanged. False when nobody listens any more.
    fn again(&mut self, uid: PodUid, absence: Absence) -> impl Future<Output = bool> + Send;
    fn errors(&mut self, errors: Vec<String>);
    /// What could not be taken and may be the manifest of a pod that runs; in force together with the next set.
    fn untaken(&mut self, _untaken: Vec<String>) {}
}

/// Runs until the sink is gone.
pub async fn run<S: ManifestStore, K: SetSink>(
    config: FileConfig,
    node: ForNode,
    uids: Arc<Mutex<Uids>>,
    mut store: S,
    mut sink: K,
) {
    let mut folder = Folder::new(&config.path, node, uids);
    let mut rescan_at = Instant::now();
    loop {
        if Instant::now() >= rescan_at {
            rescan(&mut folder, &mut store).await;
            rescan_at = Instant::now() + config.check_every;
        }
        for name in folder.due(Instant::now()) {
            read(&mut folder, &mut store, &name).await;
        }
        if folder.relist_due(Instant::now()) {
            rescan(&mut folder, &mut store).await;
        }
        if let Some(pods) = folder.take_set(Instant::now()) {
            sink.errors(folder.errors());
            sink.untaken(folder.untaken());
            if !sink.set(pods).await {
                return;
            }
        } else if folder.take_errors_changed() {
            sink.errors(folder.errors());
        }
        for (uid, absence) in folder.take_again() {
            if !sink.again(uid, absence).await {
                return;
            }
        }
        let wake = folder.next_due().map_or(rescan_at, |at| at.min(rescan_at));
        tokio::select! {
            change = store.changed() => {
                // Sixty files copied at once are one set, not sixty: whatever is known by now is taken together.
                let mut next = Some(change);
                for _ in 0..CHANGES_TOGETHER {
                    match next.take() {
                        None => break,
                        Some(Change::Added(name) | Change::Modified(name)) => folder.touched(&name, Instant::now()),
                        Some(Change::Removed(name)) => folder.gone(&name, Absence::Removed, Instant::now()),
                        Some(Change::MovedAway(name)) => folder.gone(&name, Absence::MovedAway, Instant::now()),
                        Some(Change::Rescan) => rescan_at = Instant::now(),
                    }
                    next = store.changed().now_or_never();
                }
                if next.is_some() {
                    // One that was taken from the store and not looked at: the re-scan finds it.
                    rescan_at = Instant::now();
                }
            }
            () = tokio::time::sleep_until(wake) => {}
        }
    }
}

async fn rescan<S: ManifestStore>(folder: &mut Folder, store: &mut S) {
    let listing = store.list().await;
    for name in folder.listed(listing, Instant::now()) {
        read(folder, store, &name).await;
    }
}

async fn read<S: ManifestStore>(folder: &mut Folder, store: &mut S, name: &str) {
    let content = store.read(name).await;
    folder.read(name, content, Instant::now());
}
