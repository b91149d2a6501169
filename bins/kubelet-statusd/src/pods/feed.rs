//! kubelet-syncd's stream of pods, followed across its restarts and ours.

use std::time::Duration;

use bulkhead_ipc::MAX_POD_BYTES;
use bulkhead_ipc::client::Link;
use bulkhead_ipc::common::Cursor;
use bulkhead_ipc::context::CallContext;
use bulkhead_ipc::syncd::pod_update::Update;
use bulkhead_ipc::syncd::pods_client::PodsClient;
use bulkhead_ipc::syncd::{PodState, PodUpdate, WatchPodsRequest};
use bulkhead_types::{BackOff, IdError, PodUid};
use tokio::sync::mpsc::Sender;

/// Pause after a stream has ended or was refused; doubled each time between these.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// How long the answer to a call may take to begin.
const START: Duration = Duration::from_secs(5);

/// What the stream says. `T`: what the reader makes of a pod's state.
#[derive(Debug)]
pub enum News<T> {
    /// A stream of pods begins, of the kubelet-syncd with this epoch.
    Connected(u64),
    Pod(T),
    Removed(PodUid),
    SnapshotDone,
}

/// Follows the pods until nobody listens. `of`: translates a state out of the wire's type.
pub async fn pods<T>(link: Link, news: Sender<News<T>>, of: fn(PodState) -> Result<T, IdError>) {
    let mut cursor: Option<Cursor> = None;
    let mut retry = BackOff::new(RETRY.0, RETRY.1);
    loop {
        link.ready().await;
        let mut client = PodsClient::new(link.channel()).max_decoding_message_size(MAX_POD_BYTES);
        let request = CallContext::new().streaming_request(WatchPodsRequest { cursor });
        match tokio::time::timeout(START, client.watch(request)).await {
            Ok(Ok(answer)) => {
                let mut stream = answer.into_inner();
                let mut connected = None;
                let mut whole = false;
                while let Ok(Some(update)) = stream.message().await {
                    retry.reset();
                    let Some(at) = update.cursor else { continue };
                    if connected != Some(at.epoch) {
                        // One resumes where everything before is known: after a snapshot, or where we resumed ourselves.
                        whole = cursor.is_some_and(|cursor| cursor.epoch == at.epoch);
                        connected = Some(at.epoch);
                        if news.send(News::Connected(at.epoch)).await.is_err() {
                            return;
                        }
                    }
                    whole |= matches!(update.update, Some(Update::SnapshotDone(_)));
                    if let Some(one) = read(update, of)
                        && news.send(one).await.is_err()
                    {
                        return;
                    }
                    if whole {
                        cursor = Some(at);
                    }
                }
            }
            Ok(Err(status)) => tracing::debug!(code = ?status.code(), "kubelet-syncd does not stream its pods"),
            Err(_) => tracing::debug!("kubelet-syncd does not begin to stream its pods"),
        }
        if wait(&news, &mut retry).await.is_none() {
            return;
        }
    }
}

/// What an update says, in the types of this process.
fn read<T>(update: PodUpdate, of: fn(PodState) -> Result<T, IdError>) -> Option<News<T>> {
    let news = match update.update? {
        Update::Upsert(state) => of(state).map(News::Pod),
        Update::RemovedUid(uid) => PodUid::parse(&uid).map(News::Removed),
        Update::SnapshotDone(_) => Ok(News::SnapshotDone),
    };
    news.inspect_err(|error| tracing::warn!(%error, "skipping pod of kubelet-syncd without a valid uid")).ok()
}

/// Sleeps, longer each time; `None` when nobody listens any more.
async fn wait<T>(news: &Sender<News<T>>, retry: &mut BackOff) -> Option<()> {
    tokio::select! {
        () = tokio::time::sleep(retry.pause()) => Some(()),
        () = news.closed() => None,
    }
}
