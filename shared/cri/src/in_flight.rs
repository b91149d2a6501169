//! Which calls are let finish when this process is told to stop.
//!
//! A runtime cancels what its caller no longer waits for, and a start that is cancelled half-way may leave a task behind
//! that nobody knows (see `tasks.rs`). So the calls that make or remove something are let finish, a container that was made
//! is started too, nothing new is begun, and everything else - questions, pulls, commands, stops with their grace periods -
//! may be cut off as ever.
//!
//! What is not begun any more is not answered either: an error would be told as the pod's, in an event and in its status,
//! while the next life of this process simply makes it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

/// Names of the client's methods whose calls are let finish.
const LET_FINISH: [&str; 5] =
    ["run_pod_sandbox", "remove_pod_sandbox", "create_container", "start_container", "remove_container"];

/// Those that begin something.
const BEGIN: [&str; 2] = ["run_pod_sandbox", "create_container"];
/// From one call of a chain to its next, with time to spare.
const BETWEEN_CALLS: Duration = Duration::from_millis(20);

/// Counts such calls; clones share the count.
#[derive(Debug, Clone)]
pub(crate) struct InFlight(Arc<watch::Sender<State>>);

#[derive(Debug, Default)]
struct State {
    calls: usize,
    closed: bool,
}

/// One call, until it is dropped.
#[derive(Debug)]
pub(crate) struct Call(Arc<watch::Sender<State>>);

impl InFlight {
    pub(crate) fn new() -> Self {
        InFlight(Arc::new(watch::Sender::new(State::default())))
    }

    /// None for a call that may be cut off. After [`InFlight::finish`] it never comes back for one that would begin
    /// something: whoever asks is cut off with the process.
    pub(crate) async fn begin(&self, method: &'static str) -> Option<Call> {
        if !LET_FINISH.contains(&method) {
            return None;
        }
        let begun = self.0.send_if_modified(|state| {
            let may = !(state.closed && BEGIN.contains(&method));
            state.calls += usize::from(may);
            may
        });
        if !begun {
            std::future::pending::<()>().await;
        }
        Some(Call(self.0.clone()))
    }

    /// Lets nothing new begin and waits for those in flight; false when some still ran after `patience`.
    pub(crate) async fn finish(&self, patience: Duration) -> bool {
        self.0.send_modify(|state| state.closed = true);
        let mut state = self.0.subscribe();
        let idle = async {
            loop {
                // The sender lives as long as `self`.
                let _ = state.wait_for(|state| state.calls == 0).await;
                tokio::time::sleep(BETWEEN_CALLS).await;
                if state.borrow().calls == 0 {
                    return;
                }
            }
        };
        tokio::time::timeout(patience, idle).await.is_ok()
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.0.send_modify(|state| state.calls = state.calls.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_has_begun_finishes_and_nothing_new_begins() {
        let calls = InFlight::new();
        let start = calls.begin("start_container").await.unwrap();
        assert!(calls.begin("list_containers").await.is_none() && calls.begin("pull_image").await.is_none());
        assert!(!calls.finish(Duration::from_secs(1)).await, "one still runs");
        for begins in BEGIN {
            let answered = tokio::time::timeout(Duration::from_secs(3600), calls.begin(begins)).await;
            assert!(answered.is_err(), "{begins} is not answered, so that no pod is told to have failed");
        }
        assert!(calls.begin("list_containers").await.is_none(), "questions go on");
        let waiting = tokio::spawn({
            let calls = calls.clone();
            async move { calls.finish(Duration::from_secs(60)).await }
        });
        tokio::task::yield_now().await;
        drop(start);
        let made = calls.begin("start_container").await;
        tokio::time::sleep(BETWEEN_CALLS * 3).await;
        assert!(!waiting.is_finished(), "a container that was made is started");
        drop(made);
        assert!(waiting.await.unwrap());
    }
}
