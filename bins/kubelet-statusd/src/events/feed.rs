//! kubelet-syncd's events, read one after the other from where we were.

use std::time::Duration;

use bulkhead_ipc::MAX_MESSAGE_BYTES;
use bulkhead_ipc::client::Link;
use bulkhead_ipc::common::Cursor;
use bulkhead_ipc::context::CallContext;
use bulkhead_ipc::syncd::events_client::EventsClient;
use bulkhead_ipc::syncd::{Event, WatchEventsRequest};
use tokio::sync::mpsc::Sender;

/// Pause after a stream has ended or was refused; doubled each time between these.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// How long the answer to a call may take to begin.
const START: Duration = Duration::from_secs(5);

/// Follows the events until nobody listens. A full channel holds up the stream; kubelet-syncd's own queue goes on.
pub async fn follow(link: Link, mut cursor: Option<Cursor>, events: Sender<Event>) {
    let mut pause = RETRY.0;
    loop {
        // Another epoch than the cursor's starts at the beginning of that one's queue: those are other events.
        link.ready().await;
        let mut client = EventsClient::new(link.channel()).max_decoding_message_size(MAX_MESSAGE_BYTES);
        let request = CallContext::new().streaming_request(WatchEventsRequest { cursor });
        match tokio::time::timeout(START, client.watch(request)).await {
            Ok(Ok(answer)) => {
                let mut stream = answer.into_inner();
                while let Ok(Some(event)) = stream.message().await {
                    pause = RETRY.0;
                    cursor = event.cursor.or(cursor);
                    if events.send(event).await.is_err() {
                        return;
                    }
                }
            }
            Ok(Err(status)) => tracing::debug!(code = ?status.code(), "kubelet-syncd does not stream its events"),
            Err(_) => tracing::debug!("kubelet-syncd does not begin to stream its events"),
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = events.closed() => return,
        }
        pause = (pause * 2).min(RETRY.1);
    }
}
