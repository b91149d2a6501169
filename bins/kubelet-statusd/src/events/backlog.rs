//! kubelet-syncd's events that were read and are not dealt with yet, and how far its queue was read. Both outlive this
//! process: while the API server is away kubelet-syncd may end, and its queue with it.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bulkhead_daemon::StateDir;
use bulkhead_daemon::state_file::{self, StateFile};
use bulkhead_ipc::common::Cursor;
use bulkhead_ipc::syncd::{Event, EventObject};
use parking_lot::Mutex;
use prost::Message as _;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

/// In the state folder.
const FILE: StateFile = StateFile { name: "events.json", version: 1 };
/// Written at most so often: each write costs the disk two flushes.
const EVERY: Duration = Duration::from_millis(250);
/// With each of so many events that wait the pause grows once more: the file grows with them.
const STEP: usize = 50;
/// Events kept while the API server is away; more stay in kubelet-syncd's own queue.
pub const CAPACITY: usize = 1000;
/// And so many bytes of them, as messages: as many as kubelet-syncd's own queue has.
const BYTES_MAX: usize = 4 << 20;

#[derive(Serialize, Deserialize)]
struct SavedBacklog {
    epoch: u64,
    seq: u64,
    #[serde(default, deserialize_with = "state_file::list")]
    waiting: Vec<KeptEvent>,
}

#[derive(Serialize, Deserialize)]
struct KeptEvent {
    epoch: u64,
    seq: u64,
    #[serde(default)]
    time: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    message: String,
    #[serde(default)]
    pod_uid: String,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    pod_name: String,
    #[serde(default)]
    field_path: String,
    #[serde(default, skip_serializing_if = "HashMap::is_empty")]
    annotations: HashMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    object: Option<KeptObject>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct KeptObject {
    kind: String,
    namespace: String,
    name: String,
    uid: String,
    resource_version: String,
}

impl From<EventObject> for KeptObject {
    fn from(object: EventObject) -> Self {
        let EventObject { kind, namespace, name, uid, resource_version } = object;
        KeptObject { kind, namespace, name, uid, resource_version }
    }
}

impl From<KeptObject> for EventObject {
    fn from(object: KeptObject) -> Self {
        let KeptObject { kind, namespace, name, uid, resource_version } = object;
        EventObject { kind, namespace, name, uid, resource_version }
    }
}

impl KeptEvent {
    /// `None`: without a place among the others it cannot be told from them.
    fn of(event: &Event) -> Option<Self> {
        let cursor = event.cursor?;
        let event = event.clone();
        Some(KeptEvent {
            epoch: cursor.epoch,
            seq: cursor.seq,
            time: event.time,
            kind: event.r#type,
            reason: event.reason,
            message: event.message,
            pod_uid: event.pod_uid,
            namespace: event.namespace,
            pod_name: event.pod_name,
            field_path: event.field_path,
            annotations: event.annotations,
            object: event.object.map(KeptObject::from),
        })
    }

    fn event(self) -> Event {
        Event {
            cursor: Some(Cursor { epoch: self.epoch, seq: self.seq }),
            time: self.time,
            r#type: self.kind,
            reason: self.reason,
            message: self.message,
            pod_uid: self.pod_uid,
            namespace: self.namespace,
            pod_name: self.pod_name,
            field_path: self.field_path,
            annotations: self.annotations,
            // Counted when the file was read.
            dropped: 0,
            object: self.object.map(EventObject::from),
        }
    }
}

#[derive(Debug, Default)]
struct Now {
    read: Option<Cursor>,
    waiting: VecDeque<Event>,
    /// What they take as messages.
    bytes: usize,
    /// Counts changes; which of them is on the disk.
    changes: u64,
    written: u64,
}

impl Now {
    /// One that is larger than all the room has it for itself.
    fn has_room(&self, bytes: usize) -> bool {
        self.waiting.is_empty() || (self.waiting.len() < CAPACITY && self.bytes.saturating_add(bytes) <= BYTES_MAX)
    }

    fn add(&mut self, event: Event, bytes: usize) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.waiting.push_back(event);
    }
}

/// Shared by who reads events, who sends them and who writes the file.
#[derive(Debug, Clone)]
pub struct Backlog {
    state: Arc<StateDir>,
    now: Arc<Mutex<Now>>,
    changed: Arc<Notify>,
    came: Arc<Notify>,
    room: Arc<Notify>,
}

impl Backlog {
    /// Reads what the last run left. A file that cannot be read counts as none: events are then named again, and refused
    /// by the server where they are there already.
    pub fn read(state: Arc<StateDir>) -> Self {
        let now = match state.load(FILE, |bytes| serde_json::from_slice::<SavedBacklog>(bytes)) {
            Ok(Some(kept)) => {
                let mut now = Now { read: Some(Cursor { epoch: kept.epoch, seq: kept.seq }), ..Now::default() };
                for event in kept.waiting.into_iter().take(CAPACITY).map(KeptEvent::event) {
                    let bytes = event.encoded_len();
                    now.add(event, bytes);
                }
                now
            }
            Ok(None) => Now::default(),
            Err(error) => {
                tracing::warn!(%error, "failed to read the kept events, reading kubelet-syncd's from the beginning");
                Now::default()
            }
        };
        Backlog {
            state,
            now: Arc::new(Mutex::new(now)),
            changed: Arc::default(),
            came: Arc::default(),
            room: Arc::default(),
        }
    }

    /// Up to where events were read.
    pub fn position(&self) -> Option<Cursor> {
        self.now.lock().read
    }

    /// Takes an event that was read, when there is room for it.
    pub async fn push(&self, event: Event) {
        let bytes = event.encoded_len();
        loop {
            let room = self.room.notified();
            if self.now.lock().has_room(bytes) {
                break;
            }
            room.await;
        }
        {
            let mut now = self.now.lock();
            now.read = event.cursor.or(now.read);
            now.add(event, bytes);
            now.changes += 1;
        }
        self.came.notify_one();
        self.changed.notify_one();
    }

    /// The oldest event; it stays until [`Backlog::dealt_with`].
    pub async fn oldest(&self) -> Event {
        loop {
            if let Some(event) = self.now.lock().waiting.front() {
                return event.clone();
            }
            self.came.notified().await;
        }
    }

    /// The oldest event needs no more.
    pub fn dealt_with(&self) {
        {
            let mut now = self.now.lock();
            let bytes = now.waiting.pop_front().map_or(0, |event| event.encoded_len());
            now.bytes = now.bytes.saturating_sub(bytes);
            now.changes += 1;
        }
        self.room.notify_one();
        self.changed.notify_one();
    }

    /// Writes the file whenever there is something to write, for ever.
    pub async fn keep(&self) {
        loop {
            self.changed.notified().await;
            let waiting = u32::try_from(self.now.lock().waiting.len() / STEP).unwrap_or(u32::MAX);
            tokio::time::sleep(EVERY.saturating_mul(waiting.saturating_add(1))).await;
            self.write().await;
        }
    }

    /// Writes the file if it is not of now.
    pub async fn write(&self) {
        let (changes, kept) = {
            let now = self.now.lock();
            // Nothing was ever read with a place to go on from.
            let Some(read) = now.read.filter(|_| now.changes != now.written) else { return };
            let waiting = now.waiting.iter().filter_map(KeptEvent::of).collect();
            (now.changes, SavedBacklog { epoch: read.epoch, seq: read.seq, waiting })
        };
        let state = self.state.clone();
        let written = tokio::task::spawn_blocking(move || {
            let bytes = state_file::encode(FILE.version, &kept).unwrap_or_default();
            state.write(FILE.name, &bytes)
        });
        match written.await {
            Ok(Ok(())) => self.now.lock().written = changes,
            Ok(Err(error)) => tracing::warn!(%error, "failed to keep waiting events for the next start"),
            Err(error) => tracing::warn!(%error, "failed to keep waiting events for the next start"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(temp: &tempfile::TempDir) -> Arc<StateDir> {
        Arc::new(StateDir::lock(std::fs::File::open(temp.path()).unwrap().into()).unwrap())
    }

    fn event(seq: u64) -> Event {
        Event {
            cursor: Some(Cursor { epoch: u64::MAX, seq }),
            time: "2026-01-02T03:04:05.678Z".into(),
            r#type: "Warning".into(),
            reason: "BackOff".into(),
            message: format!("message {seq}"),
            pod_uid: "u".into(),
            namespace: "d".into(),
            pod_name: "p".into(),
            field_path: "spec.containers{main}".into(),
            annotations: [("starved_resource".to_owned(), "memory".to_owned())].into(),
            dropped: 0,
            object: seq
                .is_multiple_of(2)
                .then(|| EventObject { kind: "PersistentVolume".into(), ..EventObject::default() }),
        }
    }

    #[tokio::test]
    async fn a_restart_has_what_waited_and_goes_on_where_the_last_run_was() {
        let temp = tempfile::tempdir().unwrap();
        let backlog = Backlog::read(folder(&temp));
        assert_eq!(backlog.position(), None);
        for seq in [5, 6, 7] {
            backlog.push(event(seq)).await;
        }
        assert_eq!(backlog.oldest().await, event(5));
        backlog.dealt_with();
        backlog.write().await;
        drop(backlog);
        let backlog = Backlog::read(folder(&temp));
        assert_eq!(backlog.position(), event(7).cursor);
        for seq in [6, 7] {
            assert_eq!(backlog.oldest().await, event(seq));
            backlog.dealt_with();
        }
        backlog.write().await;
        drop(backlog);
        let backlog = Backlog::read(folder(&temp));
        assert_eq!((backlog.position(), backlog.now.lock().waiting.len()), (event(7).cursor, 0));
        drop(backlog);
        // As an earlier version wrote it.
        std::fs::write(temp.path().join(FILE.name), r#"{"epoch":3,"seq":4}"#).unwrap();
        assert_eq!(Backlog::read(folder(&temp)).position(), Some(Cursor { epoch: 3, seq: 4 }));
        std::fs::write(temp.path().join(FILE.name), "{").unwrap();
        assert_eq!(Backlog::read(folder(&temp)).position(), None);
        assert_eq!(std::fs::read(temp.path().join("events.json.damaged")).unwrap(), b"{");
    }

    #[tokio::test]
    async fn it_is_bounded_and_who_reads_waits_for_room() {
        let temp = tempfile::tempdir().unwrap();
        let backlog = Backlog::read(folder(&temp));
        for seq in 0..CAPACITY as u64 {
            backlog.push(event(seq)).await;
        }
        let more = backlog.push(event(CAPACITY as u64));
        tokio::pin!(more);
        assert!(futures_util::poll!(&mut more).is_pending());
        backlog.dealt_with();
        more.await;
        assert_eq!(backlog.oldest().await, event(1));
        assert_eq!(backlog.now.lock().waiting.len(), CAPACITY);
    }

    #[tokio::test]
    async fn it_is_bounded_in_bytes_over_a_restart_too() {
        let temp = tempfile::tempdir().unwrap();
        let long = |seq: u64| Event { message: "x".repeat(100 << 10), ..event(seq) };
        let mut backlog = Backlog::read(folder(&temp));
        let mut read = 0;
        for restart in [false, true] {
            if restart {
                backlog.write().await;
                drop(backlog);
                backlog = Backlog::read(folder(&temp));
            }
            while futures_util::FutureExt::now_or_never(backlog.push(long(read))).is_some() {
                read += 1;
            }
            assert_eq!(read, 40, "more than there is room for waits with whoever brings it");
            let now = backlog.now.lock();
            assert_eq!(now.bytes, now.waiting.iter().map(Event::encoded_len).sum::<usize>());
            assert!(now.bytes <= BYTES_MAX);
        }
        for _ in 0..read {
            backlog.dealt_with();
        }
        assert_eq!(backlog.now.lock().bytes, 0);
        // One alone is let in however large it is: it could never go elsewhere.
        backlog.push(Event { message: "x".repeat(BYTES_MAX + 1), ..event(read) }).await;
        assert!(futures_util::FutureExt::now_or_never(backlog.push(event(read + 1))).is_none());
        backlog.dealt_with();
        backlog.push(event(read + 1)).await;
    }
}
