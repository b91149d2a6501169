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
/// The same for one that has just begun and has not asked the runtime about the pod yet, from when it says so.
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
/// none. A restart of kubelet-syncd is waited out; a state without `instances` is of one that has not asked the runtime even so.
///
/// # Errors
/// kubelet-syncd does not say.
pub async fn named(syncd: &Link, namespace: &str, name: &str) -> Result<Option<PodState>, tonic::Status> {
    let mut patience = Patience { began: Instant::now(), looks_since: None };
    loop {
        if let Some(known) = patience.hear(get(syncd, namespace, name).await, namespace, name) {
            return known;
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// Since when a request waits, and for what.
struct Patience {
    began: Instant,
    /// Since kubelet-syncd answers and has not asked the runtime.
    looks_since: Option<Instant>,
}

impl Patience {
    /// What an answer means for [`named`]. `None`: kubelet-syncd is asked again.
    fn hear(
        &mut self,
        answer: Result<PodState, tonic::Status>,
        namespace: &str,
        name: &str,
    ) -> Option<Result<Option<PodState>, tonic::Status>> {
        match answer {
            Ok(state) if state.namespace != namespace || state.name != name => Some(Ok(None)),
            Ok(state) if state.instances.is_some() => Some(Ok(Some(state))),
            Ok(state) => {
                let looks_since = *self.looks_since.get_or_insert_with(Instant::now);
                (looks_since.elapsed() >= LOOKING).then_some(Ok(Some(state)))
            }
            Err(status) if status.code() == tonic::Code::NotFound => Some(Ok(None)),
            Err(status) if is_unknown(&status) && self.began.elapsed() < PATIENCE => None,
            Err(status) => Some(Err(status)),
        }
    }
}

#[cfg(test)]
mod tests {
    use bulkhead_ipc::syncd::Instances;

    use super::*;

    fn pod(name: &str) -> PodState {
        PodState { namespace: "ns".into(), name: name.into(), ..PodState::default() }
    }

    /// Asks a kubelet-syncd that is away for so long and looks at the pod for so long after that: whether the runtime was asked, and
    /// how long it took.
    async fn asked(away: Duration, looks: Duration) -> (Result<Option<bool>, tonic::Code>, Duration) {
        let mut patience = Patience { began: Instant::now(), looks_since: None };
        loop {
            let took = patience.began.elapsed();
            let answer = match took {
                now if now < away => Err(tonic::Status::unavailable("away")),
                now if now < away + looks => Ok(pod("p")),
                _ => Ok(PodState { instances: Some(Instances::default()), ..pod("p") }),
            };
            if let Some(known) = patience.hear(answer, "ns", "p") {
                let known = known.map(|pod| pod.map(|pod| pod.instances.is_some())).map_err(|status| status.code());
                return (known, took);
            }
            tokio::time::advance(RETRY).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_waited_for_a_restart_waits_for_the_first_look_as_well() {
        let seconds = Duration::from_secs;
        for (away, looks, expected, at) in [
            (seconds(0), seconds(0), Ok(Some(true)), seconds(0)),
            (seconds(0), seconds(1), Ok(Some(true)), seconds(1)),
            (seconds(3), seconds(1), Ok(Some(true)), seconds(4)),
            (seconds(0), seconds(60), Ok(Some(false)), seconds(2)),
            (seconds(3), seconds(60), Ok(Some(false)), seconds(5)),
            (seconds(60), seconds(0), Err(tonic::Code::Unavailable), seconds(5)),
        ] {
            assert_eq!(asked(away, looks).await, (expected, at), "away for {away:?}, looks for {looks:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn another_pod_and_none() {
        for answer in [Ok(pod("q")), Err(tonic::Status::not_found("no such pod"))] {
            let mut patience = Patience { began: Instant::now(), looks_since: None };
            assert!(matches!(patience.hear(answer, "ns", "p"), Some(Ok(None))));
        }
    }
}
