//! kubelet-syncd's events, read one after the other from where we were.

use std::time::Duration;

use bulkhead_ipc::MAX_MESSAGE_BYTES;
use bulkhead_ipc::client::Link;
use bulkhead_ipc::context::CallContext;
use bulkhead_ipc::syncd::WatchEventsRequest;
use bulkhead_ipc::syncd::events_client::EventsClient;
use bulkhead_types::BackOff;

use super::backlog::Backlog;

/// Pause after a stream has ended or was refused; doubled each time between these.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// How long the answer to a call may take to begin.
const START: Duration = Duration::from_secs(5);

/// Follows the events for ever, whether the API server takes any or not. A full backlog holds up the stream;
/// kubelet-syncd's own queue goes on. `lost`: told how many of them were dropped there.
pub async fn follow(link: Link, backlog: &Backlog, lost: impl Fn(u64)) {
    let mut retry = BackOff::new(RETRY.0, RETRY.1);
    loop {
        // Another epoch than the cursor's starts at the beginning of that one's queue: those are other events.
        link.ready().await;
        let mut client = EventsClient::new(link.channel()).max_decoding_message_size(MAX_MESSAGE_BYTES);
        let request = CallContext::new().streaming_request(WatchEventsRequest { cursor: backlog.position() });
        match tokio::time::timeout(START, client.watch(request)).await {
            Ok(Ok(answer)) => {
                let mut stream = answer.into_inner();
                while let Ok(Some(event)) = stream.message().await {
                    retry.reset();
                    lost(event.dropped);
                    backlog.push(event).await;
                }
            }
            Ok(Err(status)) => tracing::debug!(code = ?status.code(), "kubelet-syncd does not stream its events"),
            Err(_) => tracing::debug!("kubelet-syncd does not begin to stream its events"),
        }
        tokio::time::sleep(retry.pause()).await;
    }
}
