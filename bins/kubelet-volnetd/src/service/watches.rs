//! `kubelet.volnetd.v1.Watches`.

use std::pin::Pin;
use std::sync::Arc;

use bulkhead_ipc::peers::Role;
use bulkhead_ipc::volnetd::watch_event::Change;
use bulkhead_ipc::volnetd::watches_server::Watches as Service;
use bulkhead_ipc::volnetd::{WatchEvent, WatchKind, WatchRequest};
use tokio::sync::mpsc;
use tokio_stream::wrappers::errors::BroadcastStreamRecvError;
use tokio_stream::wrappers::{BroadcastStream, ReceiverStream};
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status};

use crate::watch::plugins::{SocketChange, Sockets, changes};
use crate::watch::{ManifestChange, Watches};
use crate::{validate, verbs};

#[derive(Debug, Clone)]
pub struct WatchService {
    pub watches: Watches,
}

#[tonic::async_trait]
impl Service for WatchService {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<WatchEvent, Status>> + Send>>;

    async fn watch(&self, request: Request<WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let role = request.extensions().get::<Role>().copied();
        let kind = request.get_ref().kind();
        if kind == WatchKind::Unspecified {
            let allowed = "WATCH_KIND_MANIFESTS, WATCH_KIND_CREDENTIALS, WATCH_KIND_SERVING or WATCH_KIND_PLUGINS";
            return Err(validate::bad("kind", &request.get_ref().kind.to_string(), allowed).into());
        }
        if !role.is_some_and(|role| verbs::watch_peers(kind).contains(&role)) {
            let who = role.map_or("an unknown peer", Role::as_str);
            return Err(Status::permission_denied(format!("{} is not for {who}", kind.as_str_name())));
        }
        let first = tokio_stream::once(Ok(event(ManifestChange::Rescan)));
        Ok(Response::new(match kind {
            WatchKind::Credentials | WatchKind::Serving => {
                let changes = match kind {
                    WatchKind::Serving => self.watches.serving(),
                    _ => self.watches.credentials(),
                };
                let changes = BroadcastStream::new(changes);
                Box::pin(first.chain(changes.map(|_| Ok(event(ManifestChange::Rescan)))))
            }
            WatchKind::Plugins => Box::pin(first.chain(plugins(&self.watches))),
            WatchKind::Manifests | WatchKind::Unspecified => {
                let changes = BroadcastStream::new(self.watches.manifests()).map(|change| {
                    Ok(match change {
                        Ok(change) => event(change),
                        // A reader that is too slow loses changes, not knowledge.
                        Err(BroadcastStreamRecvError::Lagged(_)) => event(ManifestChange::Rescan),
                    })
                });
                Box::pin(first.chain(changes))
            }
        }))
    }
}

/// What is there, LISTED, and each change from then on. Who reads slowly gets the sum of what changed.
fn plugins(watches: &Watches) -> impl Stream<Item = Result<WatchEvent, Status>> + Send + use<> {
    let mut newest = watches.plugins();
    newest.mark_changed();
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        let mut known: Option<Arc<Sockets>> = None;
        loop {
            tokio::select! {
                changed = newest.changed() => if changed.is_err() { return },
                () = sender.closed() => return,
            }
            let Some(now) = newest.borrow_and_update().clone() else { continue };
            let mut events = socket_events(&known.clone().unwrap_or_default(), &now);
            if known.replace(now).is_none() {
                events.push(WatchEvent { change: Change::Listed.into(), ..Default::default() });
            }
            for event in events {
                if sender.send(Ok(event)).await.is_err() {
                    return;
                }
            }
        }
    });
    ReceiverStream::new(receiver)
}

fn socket_events(before: &Sockets, now: &Sockets) -> Vec<WatchEvent> {
    let event = |change| match change {
        SocketChange::Added(name, identity) => {
            WatchEvent { change: Change::Added.into(), name, identity, ..Default::default() }
        }
        SocketChange::Removed(name) => WatchEvent { change: Change::Removed.into(), name, ..Default::default() },
    };
    changes(before, now).into_iter().map(event).collect()
}

fn event(change: ManifestChange) -> WatchEvent {
    let unlinked = matches!(change, ManifestChange::Removed(_));
    let (change, name) = match change {
        // A name that is not UTF-8 cannot be asked for: look at everything, where it is left out.
        ManifestChange::Added(name) => (Change::Added, name.into_string()),
        ManifestChange::Modified(name) => (Change::Modified, name.into_string()),
        ManifestChange::Removed(name) | ManifestChange::MovedAway(name) => (Change::Removed, name.into_string()),
        ManifestChange::Rescan => (Change::Rescan, Ok(String::new())),
    };
    match name {
        Ok(name) => WatchEvent { change: change.into(), name, unlinked, ..Default::default() },
        Err(_) => WatchEvent { change: Change::Rescan.into(), ..Default::default() },
    }
}
