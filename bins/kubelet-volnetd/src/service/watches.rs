//! `kubelet.volnetd.v1.Watches`.

use std::pin::Pin;

use bulkhead_ipc::volnetd::watch_event::Change;
use bulkhead_ipc::volnetd::watches_server::Watches as Service;
use bulkhead_ipc::volnetd::{WatchEvent, WatchKind, WatchRequest};
use tokio_stream::wrappers::BroadcastStream;
use tokio_stream::wrappers::errors::BroadcastStreamRecvError;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status};

use crate::validate;
use crate::watch::{ManifestChange, Watches};

#[derive(Debug, Clone)]
pub struct WatchService {
    pub watches: Watches,
}

#[tonic::async_trait]
impl Service for WatchService {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<WatchEvent, Status>> + Send>>;

    async fn watch(&self, request: Request<WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let request = request.into_inner();
        if request.kind() != WatchKind::Manifests {
            return Err(validate::bad("kind", &request.kind.to_string(), "WATCH_KIND_MANIFESTS").into());
        }
        let changes = BroadcastStream::new(self.watches.manifests()).map(|change| {
            Ok(match change {
                Ok(change) => event(change),
                // A reader that is too slow loses changes, not knowledge.
                Err(BroadcastStreamRecvError::Lagged(_)) => event(ManifestChange::Rescan),
            })
        });
        let first = tokio_stream::once(Ok(event(ManifestChange::Rescan)));
        Ok(Response::new(Box::pin(first.chain(changes))))
    }
}

fn event(change: ManifestChange) -> WatchEvent {
    let (change, name) = match change {
        // A name that is not UTF-8 cannot be asked for: look at everything, where it is left out.
        ManifestChange::Added(name) => (Change::Added, name.into_string()),
        ManifestChange::Modified(name) => (Change::Modified, name.into_string()),
        ManifestChange::Removed(name) => (Change::Removed, name.into_string()),
        ManifestChange::Rescan => (Change::Rescan, Ok(String::new())),
    };
    match name {
        Ok(name) => WatchEvent { change: change.into(), name },
        Err(_) => WatchEvent { change: Change::Rescan.into(), name: String::new() },
    }
}
