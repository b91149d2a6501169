//! What one watcher is told. It is told the newest state of each pod when its turn has come, so a slow one skips what is outdated;
//! upstream's is dropped when it is a hundred events behind.

use std::collections::hash_map::DefaultHasher;
use std::collections::{HashMap, VecDeque};
use std::hash::{Hash as _, Hasher as _};
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::watch;
use tonic::Status;

use crate::encode;
use crate::provider::Providers;
use crate::v1alpha1::{EventType, WatchPodsEvent};

/// What a watcher knows of a pod.
#[derive(Debug)]
struct Told {
    /// Of the bytes that it was sent.
    hash: u64,
    /// It was told that the pod is over, or was told of it for the first time after that.
    over: bool,
    namespace: String,
    name: String,
}

pub struct Watcher {
    providers: Arc<dyn Providers>,
    changes: watch::Receiver<u64>,
    position: u64,
    todo: VecDeque<String>,
    /// The pods that there were at the beginning have not all been told.
    initial: bool,
    told: HashMap<String, Told>,
}

impl std::fmt::Debug for Watcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watcher").field("position", &self.position).finish_non_exhaustive()
    }
}

impl Watcher {
    pub fn new(providers: Arc<dyn Providers>) -> Self {
        let changes = providers.changes();
        // Before the list: what changes meanwhile is looked at again.
        let (position, _) = providers.since(None);
        let mut todo = providers.uids();
        todo.sort();
        Watcher { changes, position, todo: todo.into(), initial: true, told: HashMap::new(), providers }
    }

    /// The next event, when there is one.
    ///
    /// # Errors
    /// A pod cannot be encoded, or nobody tells of pods any more.
    pub async fn next(&mut self) -> Result<WatchPodsEvent, Status> {
        loop {
            while let Some(uid) = self.todo.pop_front() {
                if let Some(event) = self.event(&uid)? {
                    return Ok(event);
                }
            }
            if std::mem::take(&mut self.initial) {
                return Ok(event(EventType::InitialSyncComplete, Vec::new()));
            }
            let (position, uids) = self.providers.since(Some(self.position));
            self.position = position;
            self.todo = uids.into();
            if self.todo.is_empty() && self.changes.changed().await.is_err() {
                return Err(Status::unavailable("kubelet-syncd ends"));
            }
        }
    }

    /// What there is to say of a pod that may have changed.
    fn event(&mut self, uid: &str) -> Result<Option<WatchPodsEvent>, Status> {
        let seen = self.providers.pod(uid);
        if seen.over && !self.initial {
            let forgotten = seen.pod.is_none();
            let Some(told) = self.told.get_mut(uid) else { return Ok(None) };
            let news = !std::mem::replace(&mut told.over, true);
            let metadata = json!({"metadata": {"namespace": told.namespace, "name": told.name, "uid": uid}});
            if forgotten {
                self.told.remove(uid);
            }
            return Ok(if news { Some(event(EventType::Deleted, encoded(&metadata)?)) } else { None });
        }
        // A pod that no source wants any more says no more before its end.
        let Some(pod) = seen.pod else { return Ok(None) };
        let bytes = encoded(&pod)?;
        let mut hasher = DefaultHasher::new();
        bytes.hash(&mut hasher);
        let hash = hasher.finish();
        let text = |field: &str| pod["metadata"][field].as_str().unwrap_or_default().to_owned();
        let told = Told { hash, over: seen.over, namespace: text("namespace"), name: text("name") };
        Ok(match self.told.insert(uid.to_owned(), told) {
            Some(before) if !before.over && before.hash == hash => None,
            Some(before) if !before.over => Some(event(EventType::Modified, bytes)),
            // New, or the same UID anew.
            _ => Some(event(EventType::Added, bytes)),
        })
    }
}

fn event(kind: EventType, pod: Vec<u8>) -> WatchPodsEvent {
    WatchPodsEvent { r#type: kind.into(), pod }
}

fn encoded(pod: &Value) -> Result<Vec<u8>, Status> {
    encode::pod(pod).map_err(|error| Status::internal(format!("error marshalling watch event pod: {error}")))
}

#[cfg(test)]
#[path = "watch_tests.rs"]
mod tests;
