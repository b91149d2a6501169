//! Which of kubelet-volnetd and kubelet-evictiond has been silent for longer than a restart takes, for the Node's Ready condition.

use std::time::Duration;

use bulkhead_ipc::client::{Link, PeerState};
use tokio::sync::watch;

use super::ready::SilentPeers;

/// As long as kubelet-syncd is given: without kubelet-volnetd nothing starts or ends.
const VOLNETD_GRACE: Duration = Duration::from_secs(20);
/// Pods run, start and end without kubelet-evictiond; what it measures is looked at in seconds, and counts for minutes.
const EVICTIOND_GRACE: Duration = Duration::from_secs(60);

/// Tells it for ever. Before the first answer a process counts as silent from now on.
pub async fn follow(volnetd: Link, evictiond: Link, told: watch::Sender<SilentPeers>) {
    let tell = |part: fn(&mut SilentPeers) -> &mut bool| {
        let told = &told;
        move |silent| {
            told.send_if_modified(|known| std::mem::replace(part(known), silent) != silent);
        }
    };
    tokio::join!(
        watch_one(volnetd.watch(), VOLNETD_GRACE, tell(|peers| &mut peers.volnetd)),
        watch_one(evictiond.watch(), EVICTIOND_GRACE, tell(|peers| &mut peers.evictiond)),
    );
}

/// Tells when the process has not been ready for `grace`, and when it is again. Ends with the link.
async fn watch_one(mut states: watch::Receiver<PeerState>, grace: Duration, tell: impl Fn(bool)) {
    let is_ready = |state: &PeerState| state.ready_epoch().is_some();
    loop {
        let in_time = tokio::time::timeout(grace, states.wait_for(is_ready)).await.map(|answer| answer.is_ok());
        let there = match in_time {
            Ok(there) => there,
            Err(_) => {
                tell(true);
                let there = states.wait_for(is_ready).await.is_ok();
                tell(false);
                there
            }
        };
        if !there || states.wait_for(|state| !is_ready(state)).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use bulkhead_types::Epoch;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_restart_is_not_told_and_silence_is_once() {
        let (state, states) = watch::channel(PeerState::Unknown);
        let told = RefCell::new(Vec::new());
        let grace = Duration::from_secs(20);
        let known = |epoch, ready| PeerState::Known { epoch: Epoch::from_random(epoch), ready };
        let play = async {
            let pass = |seconds| tokio::time::sleep(Duration::from_secs(seconds));
            pass(19).await;
            state.send_replace(known(1, true));
            pass(60).await;
            // A restart, and one that takes its time to become ready.
            state.send_replace(PeerState::Unknown);
            pass(10).await;
            state.send_replace(known(2, false));
            pass(9).await;
            state.send_replace(known(2, true));
            pass(60).await;
            assert!(told.borrow().is_empty(), "{told:?}");
            state.send_replace(PeerState::Unknown);
            pass(19).await;
            assert!(told.borrow().is_empty(), "{told:?}");
            pass(2).await;
            assert_eq!(*told.borrow(), [true]);
            state.send_replace(known(3, false));
            pass(60).await;
            state.send_replace(known(3, true));
            pass(1).await;
            assert_eq!(*told.borrow(), [true, false]);
            drop(state);
        };
        tokio::join!(play, watch_one(states, grace, |silent| told.borrow_mut().push(silent)));
    }
}
