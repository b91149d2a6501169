//! What kubelet-syncd says of the pod that a request names.

use std::time::Duration;

use bulkhead_ipc::MAX_POD_BYTES;
use bulkhead_ipc::client::{Link, is_unknown};
use bulkhead_ipc::context::CallContext;
use bulkhead_ipc::syncd::pods_client::PodsClient;
use bulkhead_ipc::syncd::{GetPodRequest, PodState};
use tokio::time::Instant;

const DEADLINE: Duration = Duration::from_secs(3);
/// For so long a request waits for a kubelet-syncd that is away: longer than a restart takes.
const PATIENCE: Duration = Duration::from_secs(5);
/// The same for one that has just begun and has not asked the runtime about the pod yet.
const LOOKING: Duration = Duration::from_secs(2);
const RETRY: Duration = Duration::from_millis(50);

/// Asks once. An empty namespace: `name` is a uid.
///
/// # Errors
/// NOT_FOUND: there is no such pod. Otherwise nothing is known of it.
pub async fn get(syncd: &Link, namespace: &str, name: &str) -> Result<PodState, tonic::Status> {
    let mut client = PodsClient::new(syncd.channel()).max_decoding_message_size(MAX_POD_BYTES);
    let request = GetPodRequest { namespace: namespace.to_owned(), name: name.to_owned() };
    let call = client.get(CallContext::new().request(request, DEADLINE));
    let answer = tokio::time::timeout(DEADLINE, call).await;
    Ok(answer.map_err(|_| tonic::Status::deadline_exceeded("kubelet-syncd does not answer"))??.into_inner())
}

/// The pod of this namespace and name, and of no other: syncd takes a uid for a name, a path does not. `None`: there is
/// none. A restart of kubelet-syncd is waited out.
///
/// # Errors
/// kubelet-syncd does not say.
pub async fn named(syncd: &Link, namespace: &str, name: &str) -> Result<Option<PodState>, tonic::Status> {
    let began = Instant::now();
    loop {
        match get(syncd, namespace, name).await {
            Ok(state) if state.namespace != namespace || state.name != name => return Ok(None),
            Ok(state) if state.instances.is_some() || began.elapsed() >= LOOKING => return Ok(Some(state)),
            Ok(_) => tokio::time::sleep(RETRY).await,
            Err(status) if status.code() == tonic::Code::NotFound => return Ok(None),
            Err(status) if is_unknown(&status) && began.elapsed() < PATIENCE => tokio::time::sleep(RETRY).await,
            Err(status) => return Err(status),
        }
    }
}
