//! Watches: where one begins, what it is told, when it ends (`apiserver/pkg/storage/cacher`, KEP-956 for bookmarks,
//! KEP-3157 for lists by watch).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::Shared;
use super::lists::parse_version;
use super::negotiation::Output;
use super::request::Request;
use super::resources::Resource;
use super::status::{ApiError, FieldError};
use super::storage::{ChangeKind, Object};
use super::table;

/// Events that wait for a client which does not read; beyond that the watch waits for it.
pub const QUEUE: usize = 64;

/// What a watch was asked for.
#[derive(Debug)]
pub struct Watch {
    resource: &'static Resource,
    request: Request,
    output: Output,
    begin: Begin,
    bookmarks: bool,
    timeout: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Begin {
    /// What is there, then changes. With a bookmark in between if asked for by `sendInitialEvents`.
    State { marked: bool },
    /// Changes from now on.
    Now,
    /// Changes after a version.
    After(u64),
}

impl Watch {
    /// Checks the parameters.
    ///
    /// # Errors
    /// 400, 422.
    pub fn new(resource: &'static Resource, request: Request, output: Output) -> Result<Self, ApiError> {
        let query = &request.query;
        let version = parse_version(query.get("resourceVersion"))?;
        let initial = query.has("sendInitialEvents").then(|| query.flag("sendInitialEvents"));
        let matching = query.get("resourceVersionMatch");
        let refuse = |why: &str| {
            let error = FieldError::forbidden("resourceVersionMatch", why);
            Err(ApiError::invalid("meta.k8s.io", "ListOptions", "", &[error]))
        };
        match (initial, matching) {
            (None, "") => {}
            (None, _) => {
                return refuse("resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided");
            }
            (Some(_), "NotOlderThan") => {}
            (Some(_), _) => {
                return refuse("sendInitialEvents requires setting resourceVersionMatch to NotOlderThan");
            }
        }
        let begin = match (initial, version) {
            (Some(true), _) => Begin::State { marked: true },
            (None, 0) => Begin::State { marked: false },
            (Some(false), 0) => Begin::Now,
            (_, version) => Begin::After(version),
        };
        let bookmarks = query.flag("allowWatchBookmarks");
        // Without a wish the real server ends a watch after half an hour to an hour.
        let timeout =
            Duration::from_secs(query.number("timeoutSeconds").filter(|seconds| *seconds > 0).unwrap_or(2700));
        Ok(Self { resource, request, output, begin, bookmarks, timeout })
    }

    /// Delivers until the time is up, the client is gone, or history has run out.
    pub(super) async fn run(self, shared: Arc<Shared>, sender: mpsc::Sender<Bytes>) {
        // Nobody is left to be told how it ended.
        let _ = self.deliver(&shared, &sender).await;
    }

    async fn deliver(
        &self,
        shared: &Shared,
        sender: &mpsc::Sender<Bytes>,
    ) -> Result<(), mpsc::error::SendError<Bytes>> {
        let (mut cursor, initial, mut changed) = {
            let store = shared.store();
            let changed = store.subscribe(self.resource);
            let initial: Vec<Object> = match self.begin {
                Begin::State { .. } => store
                    .list(self.resource, self.namespace())
                    .filter(|object| self.request.selector.matches(self.resource, &object.value))
                    .cloned()
                    .collect(),
                _ => Vec::new(),
            };
            let cursor = match self.begin {
                Begin::After(version) => version,
                _ => store.version(),
            };
            (cursor, initial, changed)
        };
        for object in &initial {
            sender.send(self.event(ChangeKind::Added.name(), object)).await?;
        }
        if self.begin == (Begin::State { marked: true }) && self.bookmarks {
            sender.send(self.bookmark(cursor, true)).await?;
        }
        let deadline = Instant::now() + self.timeout;
        let mut control = shared.faults.watch_control();
        let generation = control.borrow_and_update().generation;
        let mut next_bookmark = Instant::now() + shared.config.bookmark_every;
        loop {
            let state = *control.borrow_and_update();
            if state.generation != generation {
                return Ok(());
            }
            changed.borrow_and_update();
            if !state.paused && !state.withheld {
                match self.collect(shared, &mut cursor) {
                    Ok(events) => {
                        for event in events {
                            sender.send(event).await?;
                        }
                    }
                    Err(expired) => {
                        let event = json!({"type": "ERROR", "object": expired.status()});
                        return sender.send(line(&event)).await;
                    }
                }
            }
            tokio::select! {
                _ = changed.changed() => {}
                _ = control.changed() => {}
                () = tokio::time::sleep_until(next_bookmark), if self.bookmarks => {
                    next_bookmark = Instant::now() + shared.config.bookmark_every;
                    if !state.paused {
                        // What changed in this very moment comes first: a bookmark promises that.
                        if !state.withheld
                            && let Ok(events) = self.collect(shared, &mut cursor)
                        {
                            for event in events {
                                sender.send(event).await?;
                            }
                        }
                        sender.send(self.bookmark(cursor, false)).await?;
                    }
                }
                () = tokio::time::sleep_until(deadline) => return Ok(()),
                () = sender.closed() => return Ok(()),
            }
        }
    }

    fn namespace(&self) -> Option<&str> {
        Some(self.request.namespace.as_str()).filter(|namespace| !namespace.is_empty())
    }

    /// Events since `cursor`, which moves on to the present.
    fn collect(&self, shared: &Shared, cursor: &mut u64) -> Result<Vec<Bytes>, ApiError> {
        let store = shared.store();
        let changes = store
            .changes_after(self.resource, *cursor)
            .map_err(|oldest| ApiError::too_old(*cursor, oldest))?
            .filter_map(|change| change.seen_by(self.resource, self.namespace(), &self.request.selector));
        let seen: Vec<_> = changes.collect();
        *cursor = store.version().max(*cursor);
        drop(store);
        Ok(seen.into_iter().map(|(kind, object)| self.event(kind.name(), &object)).collect())
    }

    fn event(&self, kind: &str, object: &Object) -> Bytes {
        match self.output {
            Output::Json => {
                let json = object.json();
                let mut text = Vec::with_capacity(json.len() + 40);
                text.extend_from_slice(b"{\"type\":\"");
                text.extend_from_slice(kind.as_bytes());
                text.extend_from_slice(b"\",\"object\":");
                text.extend_from_slice(&json);
                text.extend_from_slice(b"}\n");
                text.into()
            }
            Output::Table => {
                let table = table::of(
                    self.resource,
                    std::slice::from_ref(object),
                    json!({}),
                    &self.request.query,
                    std::time::SystemTime::now(),
                );
                line(&json!({"type": kind, "object": table}))
            }
            Output::Metadata => line(&json!({"type": kind, "object": super::negotiation::metadata_of(&object.value)})),
        }
    }

    /// As a typed server writes an empty object.
    fn bookmark(&self, version: u64, initial_end: bool) -> Bytes {
        let mut object = json!({
            "kind": self.resource.kind,
            "apiVersion": self.resource.api_version(),
            "metadata": {"resourceVersion": version.to_string()},
        });
        match self.resource.kind {
            "Pod" => (object["spec"], object["status"]) = (json!({"containers": null}), json!({})),
            "Node" => {
                object["spec"] = json!({});
                object["status"] = json!({"daemonEndpoints": {"kubeletEndpoint": {"Port": 0}}});
            }
            "Lease" => object["spec"] = json!({}),
            _ => {}
        }
        if initial_end {
            object["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        line(&json!({"type": "BOOKMARK", "object": object}))
    }
}

fn line(event: &Value) -> Bytes {
    let mut text = event.to_string().into_bytes();
    text.push(b'\n');
    text.into()
}
