//! Whether the API server was reachable lately, as far as our own requests tell, and how long whoever it failed waits for
//! it: until any request of this process reaches it again.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, watch};
use tokio::time::Instant;

use crate::backoff::random_fraction;

/// While nobody answers, one of those who wait asks at least this often, however long it has waited before; the others
/// keep their own pauses.
const PROBE_EVERY: Duration = Duration::from_secs(5);
/// Those who waited come back within this time of the first answer, not all at once.
const SPREAD: Duration = Duration::from_secs(1);

/// What the last requests said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reachability {
    /// Nothing was asked yet, or there are no credentials to ask with.
    Unknown,
    /// The last request was answered - with whatever; an error code is an answer.
    Reachable { since: Instant },
    /// The last request was not answered.
    Unreachable { since: Instant, reason: Arc<str> },
}

impl Reachability {
    pub fn is_reachable(&self) -> bool {
        matches!(self, Reachability::Reachable { .. })
    }
}

/// Takes notes for [`Reachability`]; wakes whoever waits only when something changed.
#[derive(Debug)]
pub(crate) struct Notes {
    now: watch::Sender<Reachability>,
    /// Whose turn it is to ask whether the server is back.
    probe: Mutex<()>,
}

impl Notes {
    pub(crate) fn new() -> Self {
        Notes { now: watch::Sender::new(Reachability::Unknown), probe: Mutex::new(()) }
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Reachability> {
        self.now.subscribe()
    }

    /// Waits for `pause`; while the server does not answer, no longer than until somebody has reached it again.
    pub(crate) async fn pause(&self, pause: Duration) {
        let mut now = self.subscribe();
        if !matches!(*now.borrow_and_update(), Reachability::Unreachable { .. }) {
            return tokio::time::sleep(pause).await;
        }
        let end = Instant::now() + pause;
        let returned = async {
            // The sender lives as long as this borrow of it.
            let _ = now.wait_for(Reachability::is_reachable).await;
            let spread = Instant::now() + SPREAD.mul_f64(random_fraction());
            tokio::time::sleep_until(spread.min(end)).await;
        };
        let turn = async {
            let _turn = self.probe.lock().await;
            tokio::time::sleep(PROBE_EVERY.mul_f64(0.75 + random_fraction() / 4.0)).await;
        };
        tokio::select! {
            () = tokio::time::sleep_until(end) => {}
            () = returned => {}
            () = turn => {}
        }
    }

    pub(crate) fn answered(&self) {
        let changed = self.now.send_if_modified(|now| {
            let changes = !now.is_reachable();
            if changes {
                *now = Reachability::Reachable { since: Instant::now() };
            }
            changes
        });
        if changed {
            tracing::info!("the API server answers");
        }
    }

    pub(crate) fn failed(&self, why: &str) {
        let changed = self.now.send_if_modified(|now| {
            let changes = !matches!(now, Reachability::Unreachable { .. });
            if changes {
                *now = Reachability::Unreachable { since: Instant::now(), reason: why.into() };
            }
            changes
        });
        if changed {
            tracing::warn!(error = why, "the API server does not answer");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_changes_of_reachability_are_logged() {
        let notes = Notes::new();
        let mut seen = notes.subscribe();
        notes.failed("refused");
        assert!(seen.has_changed().unwrap());
        let first = seen.borrow_and_update().clone();
        assert!(matches!(&first, Reachability::Unreachable { reason, .. } if &**reason == "refused"));
        notes.failed("again");
        assert!(!seen.has_changed().unwrap());
        notes.answered();
        assert!(seen.borrow_and_update().is_reachable());
        notes.answered();
        assert!(!seen.has_changed().unwrap());
    }

    const LONG: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn the_first_answer_wakes_all_who_wait_and_not_in_step() {
        let notes = Notes::new();
        notes.failed("refused");
        let start = Instant::now();
        let back = async {
            tokio::time::sleep(Duration::from_secs(2)).await;
            notes.answered();
        };
        let waits = futures_util::future::join_all((0..50).map(|_| async {
            notes.pause(LONG).await;
            start.elapsed()
        }));
        let (waited, ()) = tokio::join!(waits, back);
        assert!(waited.iter().all(|at| (2.0..=3.01).contains(&at.as_secs_f64())), "{waited:?}");
        let first_half = waited.iter().filter(|at| at.as_secs_f64() < 2.5).count();
        assert!((5..45).contains(&first_half), "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn one_asks_often_while_the_others_keep_their_pauses() {
        let notes = Notes::new();
        notes.failed("refused");
        let start = Instant::now();
        let mut waited = futures_util::future::join_all((0..20).map(|_| async {
            notes.pause(LONG).await;
            start.elapsed().as_secs_f64()
        }))
        .await;
        waited.sort_by(f64::total_cmp);
        assert!((3.7..=5.01).contains(&waited[0]), "{waited:?}");
        assert!(waited.windows(2).all(|two| two[1] >= 30.0 || two[1] - two[0] >= 3.7), "one at a time: {waited:?}");
        assert!((5..=8).contains(&waited.iter().filter(|at| **at < 30.0).count()), "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_that_has_another_cause_is_kept() {
        let notes = Notes::new();
        notes.answered();
        let start = Instant::now();
        tokio::join!(notes.pause(LONG), async { notes.answered() });
        assert_eq!(start.elapsed(), LONG);
        notes.failed("refused");
        notes.pause(Duration::from_millis(800)).await;
        assert_eq!(start.elapsed(), LONG + Duration::from_millis(800), "a short one stays short");
    }
}
