//! How far kubelet-syncd's events have been dealt with, kept across restarts.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bulkhead_daemon::StateDir;
use bulkhead_ipc::common::Cursor;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

/// In the state folder.
const FILE: &str = "events.json";
/// Written at most so often: each write costs the disk two flushes.
const EVERY: Duration = Duration::from_millis(250);

#[derive(Serialize, Deserialize)]
struct Kept {
    epoch: u64,
    seq: u64,
}

#[derive(Debug, Default)]
struct Now {
    cursor: Option<Cursor>,
    written: Option<Cursor>,
}

/// Shared by who reads events and who writes the file.
#[derive(Debug, Clone)]
pub struct Position {
    state: Arc<StateDir>,
    now: Arc<Mutex<Now>>,
    moved: Arc<Notify>,
}

impl Position {
    /// Reads what the last run left. A file that cannot be read counts as none: events are then named again, and refused
    /// by the server where they are there already.
    pub fn read(state: Arc<StateDir>) -> Self {
        let kept = match state.read(FILE) {
            Ok(Some(bytes)) => match serde_json::from_slice::<Kept>(&bytes) {
                Ok(kept) => Some(Cursor { epoch: kept.epoch, seq: kept.seq }),
                Err(error) => {
                    tracing::warn!(%error, FILE, "state file is damaged: events are read from the beginning");
                    None
                }
            },
            Ok(None) => None,
            Err(error) => {
                tracing::warn!(%error, "events are read from the beginning");
                None
            }
        };
        let now = Now { cursor: kept, written: kept };
        Position { state, now: Arc::new(Mutex::new(now)), moved: Arc::new(Notify::new()) }
    }

    /// Up to where events have been dealt with.
    pub fn get(&self) -> Option<Cursor> {
        self.lock().cursor
    }

    /// This one has been dealt with.
    pub fn advance(&self, cursor: Cursor) {
        self.lock().cursor = Some(cursor);
        self.moved.notify_one();
    }

    /// Writes the file whenever there is something to write, for ever.
    pub async fn keep(&self) {
        loop {
            self.moved.notified().await;
            tokio::time::sleep(EVERY).await;
            self.write().await;
        }
    }

    /// Writes the file if it is not of now.
    pub async fn write(&self) {
        let cursor = {
            let now = self.lock();
            now.cursor.filter(|_| now.cursor != now.written)
        };
        let Some(cursor) = cursor else { return };
        let state = self.state.clone();
        let kept = Kept { epoch: cursor.epoch, seq: cursor.seq };
        let written = tokio::task::spawn_blocking(move || {
            let bytes = serde_json::to_vec(&kept).unwrap_or_default();
            state.write(FILE, &bytes)
        });
        match written.await {
            Ok(Ok(())) => self.lock().written = Some(cursor),
            Ok(Err(error)) => tracing::warn!(%error, "position in the events is not kept"),
            Err(error) => tracing::warn!(%error, "position in the events is not kept"),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Now> {
        // Nothing panics while it is held.
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(temp: &tempfile::TempDir) -> Arc<StateDir> {
        Arc::new(StateDir::lock(std::fs::File::open(temp.path()).unwrap().into()).unwrap())
    }

    #[tokio::test]
    async fn a_restart_goes_on_where_the_last_run_was() {
        let temp = tempfile::tempdir().unwrap();
        let position = Position::read(folder(&temp));
        assert_eq!(position.get(), None);
        position.advance(Cursor { epoch: u64::MAX, seq: 7 });
        position.write().await;
        drop(position);
        assert_eq!(Position::read(folder(&temp)).get(), Some(Cursor { epoch: u64::MAX, seq: 7 }));
        std::fs::write(temp.path().join(FILE), "{").unwrap();
        assert_eq!(Position::read(folder(&temp)).get(), None);
    }
}
