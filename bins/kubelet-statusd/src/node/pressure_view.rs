//! What kubelet-evictiond says presses on the node: followed by a stream, remembered while it is away. Until it has spoken nothing is
//! known, and the conditions stay as the API server has them.

use std::time::Duration;

use bulkhead_daemon::progress::Heartbeat;
use bulkhead_ipc::MAX_MESSAGE_BYTES;
use bulkhead_ipc::client::Link;
use bulkhead_ipc::context::CallContext;
use bulkhead_ipc::evictiond::WatchPressureRequest;
use bulkhead_ipc::evictiond::pressure_client::PressureClient;
use bulkhead_types::BackOff;
use tokio::sync::watch;

use super::conditions::Pressure;

/// Pause after a stream has ended or was refused; doubled each time between these.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// How long the answer to a call may take to begin.
const START: Duration = Duration::from_secs(5);

/// Follows it for ever. `None` is never told: the last word stands.
pub async fn follow(link: Link, told: watch::Sender<Option<Pressure>>, heartbeat: Heartbeat) {
    let mut retry = BackOff::new(RETRY.0, RETRY.1);
    loop {
        heartbeat.rests(link.ready()).await;
        let mut client = PressureClient::new(link.channel()).max_decoding_message_size(MAX_MESSAGE_BYTES);
        let request = CallContext::new().streaming_request(WatchPressureRequest {});
        match heartbeat.within(START, tokio::time::timeout(START, client.watch(request))).await {
            Ok(Ok(answer)) => {
                let mut stream = answer.into_inner();
                while let Ok(Some(state)) = heartbeat.rests(stream.message()).await {
                    retry.reset();
                    let pressure =
                        Pressure { memory: state.memory_pressure, disk: state.disk_pressure, pid: state.pid_pressure };
                    told.send_if_modified(|known| known.replace(pressure) != Some(pressure));
                }
            }
            // One of a version before has no such service: nothing is known.
            Ok(Err(status)) => tracing::debug!(code = ?status.code(), "kubelet-evictiond does not tell of pressure"),
            Err(_) => tracing::debug!("kubelet-evictiond does not begin to tell of pressure"),
        }
        heartbeat.rests(tokio::time::sleep(retry.pause())).await;
    }
}
