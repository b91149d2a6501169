//! Changes of the manifest path. A folder is watched itself; a single file, or a path that does not exist yet, is
//! watched through the nearest directory that exists.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use bulkhead_sys::inotify::{Change, Event, WatchId};
use tokio::sync::broadcast;

use super::{Follower, NotWatched, RETRY};

/// A change for subscribers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ManifestChange {
    Added(OsString),
    Modified(OsString),
    Removed(OsString),
    MovedAway(OsString),
    /// Look at everything.
    Rescan,
}

/// What is being watched for the manifest path.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Target {
    /// The directory under inotify.
    dir: PathBuf,
    /// Only this name in it is meant: the single file, or the next component of the missing path.
    only: Option<OsString>,
    /// The path itself is there.
    found: bool,
}

/// Decides what to watch for `path`.
async fn target(path: &Path) -> Target {
    let path = path.to_owned();
    let looked = tokio::task::spawn_blocking(move || target_now(&path)).await;
    looked.unwrap_or_else(|_| Target { dir: PathBuf::from("/"), only: None, found: false })
}

/// Looks at the disk, changes nothing.
fn target_now(path: &Path) -> Target {
    if path.is_dir() {
        return Target { dir: path.to_owned(), only: None, found: true };
    }
    let mut missing = path;
    loop {
        let Some(parent) = missing.parent() else {
            return Target { dir: PathBuf::from("/"), only: None, found: false };
        };
        if parent.is_dir() {
            let only = missing.file_name().map(OsString::from);
            return Target { dir: parent.to_owned(), only, found: missing == path && path.exists() };
        }
        missing = parent;
    }
}

pub async fn follow(mut follower: Follower, path: PathBuf, sender: broadcast::Sender<ManifestChange>) {
    let mut complained = false;
    loop {
        let aim = target(&path).await;
        let watch = match follower.watch_dir(&aim.dir).await {
            Ok(watch) => watch,
            Err(error) => {
                if matches!(error, NotWatched::Refused(_)) && !complained {
                    complained = true;
                    tracing::warn!(path = %aim.dir.display(), %error, "cannot watch for manifests, looking now and then");
                }
                // Nothing tells what changes meanwhile.
                let _ = sender.send(ManifestChange::Rescan);
                follower.pause().await;
                continue;
            }
        };
        complained = false;
        // It may have changed between the look and the watch.
        if target(&path).await == aim {
            let _ = sender.send(ManifestChange::Rescan);
            until_moved(&mut follower, watch, &path, &aim, &sender).await;
        }
        follower.unwatch(watch).await;
    }
}

/// Passes changes on until something else has to be watched.
async fn until_moved(
    follower: &mut Follower,
    watch: WatchId,
    path: &Path,
    aim: &Target,
    sender: &broadcast::Sender<ManifestChange>,
) {
    loop {
        let event = if aim.found {
            Some(follower.next().await)
        } else {
            // The directory that we watch may be a stand-in (a mount may come over it): look now and then.
            tokio::time::timeout(RETRY, follower.next()).await.ok()
        };
        if let Some(event) = event {
            match interpret(&event, watch, aim) {
                Some(change) => {
                    let _ = sender.send(change);
                }
                None if event.change == Change::SelfGone && event.watch == Some(watch) => return,
                None => {}
            }
        }
        // A single file, or a missing path, decides anew what is to be watched.
        if (aim.only.is_some() || !aim.found) && target(path).await != *aim {
            return;
        }
    }
}

/// What an event means to subscribers. Pure.
fn interpret(event: &Event, watch: WatchId, aim: &Target) -> Option<ManifestChange> {
    if event.change == Change::Overflow {
        return Some(ManifestChange::Rescan);
    }
    if event.watch != Some(watch) || !aim.found {
        return None;
    }
    if event.name.is_empty() {
        // About the directory itself: its mode or owner may decide whether it is read at all.
        return (event.change == Change::Modified).then_some(ManifestChange::Rescan);
    }
    if aim.only.as_ref().is_some_and(|only| *only != event.name) {
        return None;
    }
    match event.change {
        Change::Added => Some(ManifestChange::Added(event.name.clone())),
        Change::Modified => Some(ManifestChange::Modified(event.name.clone())),
        Change::Removed => Some(ManifestChange::Removed(event.name.clone())),
        Change::MovedAway => Some(ManifestChange::MovedAway(event.name.clone())),
        Change::SelfGone | Change::Overflow => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    async fn next(receiver: &mut broadcast::Receiver<ManifestChange>) -> ManifestChange {
        tokio::time::timeout(Duration::from_secs(10), receiver.recv())
            .await
            .expect("a change")
            .expect("an open channel")
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_folder_that_comes_goes_and_comes_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/manifests");
        let followed = super::super::Followed { manifests: Some(path.clone()), ..Default::default() };
        let watches = super::super::tests::start(followed);
        let mut changes = watches.manifests();
        assert_eq!(next(&mut changes).await, ManifestChange::Rescan);
        for _ in 0..2 {
            std::fs::create_dir_all(&path).unwrap();
            // One level may be seen before the other: wait until the folder itself is watched.
            loop {
                std::fs::write(path.join("pod.yaml"), "x").unwrap();
                if tokio::time::timeout(Duration::from_millis(200), async {
                    while !matches!(next(&mut changes).await, ManifestChange::Added(_) | ManifestChange::Modified(_)) {}
                })
                .await
                .is_ok()
                {
                    break;
                }
            }
            std::fs::remove_file(path.join("pod.yaml")).unwrap();
            while next(&mut changes).await != ManifestChange::Removed("pod.yaml".into()) {}
            std::fs::write(path.join("pod.yaml"), "x").unwrap();
            std::fs::rename(path.join("pod.yaml"), dir.path().join("pod.yaml")).unwrap();
            while next(&mut changes).await != ManifestChange::MovedAway("pod.yaml".into()) {}
            std::fs::remove_dir(&path).unwrap();
            while next(&mut changes).await != ManifestChange::Rescan {}
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_single_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pod.yaml");
        std::fs::write(&path, "x").unwrap();
        let followed = super::super::Followed { manifests: Some(path.clone()), ..Default::default() };
        let watches = super::super::tests::start(followed);
        let mut changes = watches.manifests();
        assert_eq!(next(&mut changes).await, ManifestChange::Rescan);
        std::fs::write(dir.path().join("other"), "x").unwrap();
        std::fs::write(&path, "y").unwrap();
        assert_eq!(next(&mut changes).await, ManifestChange::Modified("pod.yaml".into()));
    }
}
