//! When what is left of a pod that has ended is removed from the runtime: after those that are still to be stopped. Nobody waits for it,
//! and it takes the runtime's time from the ends of others (upstream leaves sandboxes to the minute's garbage collection).

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

/// A removal waits so long at most for take-downs to end. A crowd of a hundred is down by then or soon after, and what is left takes disk.
const WAIT_MAX: Duration = Duration::from_secs(10);
/// So many pods are removed from the runtime at a time.
const AT_A_TIME: usize = 4;

/// Why somebody waits for the removal.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Urgency {
    /// The pod begins anew under its uid, or may: a static pod does whose manifest is written again.
    pub comes_back: bool,
    /// The disk is short: what is removed is room.
    pub disk_pressure: bool,
    /// The machine goes down.
    pub shutdown: bool,
}

impl Urgency {
    pub(super) fn is_urgent(self) -> bool {
        self.comes_back || self.disk_pressure || self.shutdown
    }
}

/// Hands out turns, first come first served.
#[derive(Debug, Clone)]
pub(super) struct Removals(Arc<Semaphore>);

impl Default for Removals {
    fn default() -> Self {
        Removals(Arc::new(Semaphore::new(AT_A_TIME)))
    }
}

impl Removals {
    /// Waits for a turn, which ends when the answer is dropped. `quiet`: nothing is taken down; it is asked again once there is a place.
    pub(super) async fn turn(&self, quiet: impl Future<Output = ()>) -> Option<OwnedSemaphorePermit> {
        let until = Instant::now() + WAIT_MAX;
        // The semaphore is never closed; were it, removals would go unbounded rather than stop.
        let place = self.0.clone().acquire_owned().await.ok();
        let _ = timeout_at(until, quiet).await;
        place
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use futures_util::poll;
    use tokio::time::sleep;

    use super::*;

    #[test]
    fn only_what_somebody_waits_for_is_urgent() {
        for (comes_back, disk_pressure, shutdown, urgent) in [
            (false, false, false, false),
            (true, false, false, true),
            (false, true, false, true),
            (false, false, true, true),
        ] {
            assert_eq!(Urgency { comes_back, disk_pressure, shutdown }.is_urgent(), urgent);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn removals_wait_for_quiet_and_are_few_at_a_time() {
        let (removals, begun) = (Removals::default(), Instant::now());
        let soon = Duration::from_secs(1);
        let _first = removals.turn(sleep(soon)).await;
        assert_eq!(begun.elapsed(), soon);
        let mut others = Vec::new();
        for _ in 1..AT_A_TIME {
            others.push(removals.turn(ready(())).await);
        }
        let next = removals.turn(ready(()));
        tokio::pin!(next);
        assert!(poll!(&mut next).is_pending(), "all places are taken");
        others.pop();
        assert!(poll!(&mut next).is_ready());
    }

    #[tokio::test(start_paused = true)]
    async fn each_waits_for_ten_seconds_at_most_however_many_there_are() {
        let (removals, begun) = (Removals::default(), Instant::now());
        let turns = (0..AT_A_TIME * 3).map(|_| async { drop(removals.turn(pending()).await) });
        futures_util::future::join_all(turns).await;
        assert!(begun.elapsed() >= WAIT_MAX && begun.elapsed() < WAIT_MAX + Duration::from_millis(10));
    }
}
