//! The sockets below `plugins_registry`, as kubelet-volnetd tells them.

use std::time::Duration;

use bulkhead_ipc::client::Link;
use bulkhead_ipc::context::CallContext;
use bulkhead_ipc::volnetd::watch_event::Change;
use bulkhead_ipc::volnetd::watches_client::WatchesClient;
use bulkhead_ipc::volnetd::{WatchEvent, WatchKind, WatchRequest};
use tonic::Streaming;

use super::wanted::SocketEvent;

/// Pause before a broken watch is opened again.
const REOPEN: Duration = Duration::from_millis(200);
/// How long kubelet-volnetd may take to begin a stream.
const START: Duration = Duration::from_secs(5);

/// Where word of sockets comes from; a test tells its own.
pub trait SocketFeed: Send {
    /// The next event; it may be long in coming.
    fn next(&mut self) -> impl Future<Output = SocketEvent> + Send;
}

/// kubelet-volnetd's watch, begun anew whenever it ends.
#[derive(Debug)]
pub struct VolnetdSockets {
    link: Link,
    watch: Option<Streaming<WatchEvent>>,
}

impl VolnetdSockets {
    pub fn new(link: Link) -> Self {
        VolnetdSockets { link, watch: None }
    }

    async fn reopen(&mut self) {
        self.link.ready().await;
        let request = CallContext::new().streaming_request(WatchRequest { kind: WatchKind::Plugins.into() });
        let begun = tokio::time::timeout(START, WatchesClient::new(self.link.channel()).watch(request)).await;
        match begun.unwrap_or_else(|_| Err(tonic::Status::deadline_exceeded("the stream did not start"))) {
            Ok(stream) => self.watch = Some(stream.into_inner()),
            Err(status) => {
                tracing::warn!(code = ?status.code(), "failed to watch the plugin registry: {}", status.message());
                tokio::time::sleep(REOPEN * 5).await;
            }
        }
    }
}

impl SocketFeed for VolnetdSockets {
    async fn next(&mut self) -> SocketEvent {
        loop {
            let Some(watch) = &mut self.watch else {
                self.reopen().await;
                continue;
            };
            match watch.message().await {
                Ok(Some(event)) => match event.change() {
                    Change::Rescan => return SocketEvent::Restart,
                    Change::Added => return SocketEvent::Added { socket: event.name, identity: event.identity },
                    Change::Removed => return SocketEvent::Removed { socket: event.name },
                    Change::Listed => return SocketEvent::Listed,
                    Change::Modified | Change::Unspecified => {}
                },
                Ok(None) => self.ended("").await,
                Err(status) => self.ended(status.message()).await,
            }
        }
    }
}

impl VolnetdSockets {
    async fn ended(&mut self, why: &str) {
        tracing::debug!("watch of plugins ended: {why}");
        self.watch = None;
        tokio::time::sleep(REOPEN).await;
    }
}
