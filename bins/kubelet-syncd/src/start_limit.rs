//! Fair, bounded starts: so many pods are between `RunPodSandbox` and `StartContainer` at a time, in order of arrival.
//!
//! A runtime that makes a hundred pods at once finishes none of them early and the last not sooner; a few at a time give
//! the median pod in half the time. Only starts are bounded: kills, status and image pulls never wait here. A slot that
//! is held too long (a hung call of the runtime) is given back to the others while its holder waits on.
//!
//! So many pods, and not all of a crowd, are prepared for their start as well: what is made for the last would take processors from the
//! first ([`StartLimiter::to_prepare`]).

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A start that takes longer than this blocks nobody else.
pub const HOLD: Duration = Duration::from_secs(5);

/// How many starts are in flight on a machine with so many processors: four for each, at least 4, at most 16. A start waits for the
/// kernel and for plugins as long as it computes; with half as many two processors are not busy all the time (SPECIFICATION.md).
pub fn slots(cpus: u32) -> usize {
    per_processor(cpus, 4, 4..=16)
}

/// How many pods are being prepared, or are and wait for a start: twice as many as start. A start never waits for one that is prepared.
pub fn to_prepare(cpus: u32) -> usize {
    slots(cpus) * 2
}

/// So many for each of the processors, within the bounds.
pub fn per_processor(cpus: u32, each: u32, bounds: RangeInclusive<usize>) -> usize {
    usize::try_from(cpus.saturating_mul(each)).unwrap_or(usize::MAX).clamp(*bounds.start(), *bounds.end())
}

/// Hands out the slots, first come first served.
#[derive(Debug, Clone)]
pub struct StartLimiter {
    slots: Arc<Semaphore>,
    hold: Duration,
    /// What is logged of a slot that is given away. None: nothing.
    late: Option<&'static str>,
}

impl StartLimiter {
    /// `hold`: after this time a slot is free again, whatever its holder does.
    pub fn new(slots: usize, hold: Duration) -> Self {
        let late = Some("pod start is slow: its start slot is given to the next pod");
        StartLimiter { slots: Arc::new(Semaphore::new(slots)), hold, late }
    }

    /// Of pods that are prepared; `slots`: see [`to_prepare`]. That one waits long for its start is nothing to tell.
    pub fn to_prepare(slots: usize, hold: Duration) -> Self {
        StartLimiter { late: None, ..StartLimiter::new(slots, hold) }
    }

    /// Waits for a turn. Dropping the answer ends it.
    pub async fn acquire(&self) -> StartSlot {
        // The semaphore is never closed; were it, starts would go unbounded rather than stop.
        self.slot(self.slots.clone().acquire_owned().await.ok())
    }

    /// A turn, if nobody has to be waited for.
    pub fn try_acquire(&self) -> Option<StartSlot> {
        self.slots.clone().try_acquire_owned().ok().map(|permit| self.slot(Some(permit)))
    }

    fn slot(&self, permit: Option<OwnedSemaphorePermit>) -> StartSlot {
        let permit = Arc::new(Mutex::new(permit));
        let (slow, hold, late) = (permit.clone(), self.hold, self.late);
        let timer = tokio::spawn(async move {
            tokio::time::sleep(hold).await;
            if release(&slow)
                && let Some(late) = late
            {
                tracing::warn!(after_seconds = hold.as_secs(), "{late}");
            }
        });
        StartSlot { permit, timer: timer.abort_handle() }
    }

    /// Starts that could begin now.
    pub fn free(&self) -> usize {
        self.slots.available_permits()
    }
}

fn release(permit: &Mutex<Option<OwnedSemaphorePermit>>) -> bool {
    permit.lock().take().is_some()
}

/// Prepares a pod. The place that it holds is given to the next one where that takes longer than `soon`: a volume that is slow, or an
/// object that is not there, holds up its own pod alone.
pub async fn prepare<T>(place: &mut Option<StartSlot>, soon: Duration, what: impl Future<Output = T>) -> T {
    tokio::pin!(what);
    tokio::select! {
        done = &mut what => done,
        () = tokio::time::sleep(soon) => {
            *place = None;
            what.await
        }
    }
}

/// A turn to start a pod.
#[derive(Debug)]
pub struct StartSlot {
    permit: Arc<Mutex<Option<OwnedSemaphorePermit>>>,
    timer: tokio::task::AbortHandle,
}

impl Drop for StartSlot {
    fn drop(&mut self) {
        self.timer.abort();
        release(&self.permit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_for_each_processor() {
        assert_eq!([0, 1, 2, 3, 4, 64].map(slots), [4, 4, 8, 12, 16, 16]);
        assert_eq!([1, 2, 64].map(to_prepare), [8, 16, 32]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_that_takes_long_to_prepare_holds_no_place() {
        let (limiter, soon) = (StartLimiter::to_prepare(1, HOLD), Duration::from_millis(300));
        for (millis, free) in [(200, 0), (400, 1)] {
            let mut place = limiter.try_acquire();
            prepare(&mut place, soon, tokio::time::sleep(Duration::from_millis(millis))).await;
            assert_eq!(limiter.free(), free, "{millis} ms");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn first_come_first_served_and_no_slot_is_lost() {
        let limiter = StartLimiter::new(1, Duration::from_secs(20));
        let first = limiter.acquire().await;
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        for i in 0..3 {
            let (limiter, order) = (limiter.clone(), order.clone());
            tasks.push(tokio::spawn(async move {
                let slot = limiter.acquire().await;
                order.lock().push(i);
                drop(slot);
            }));
            tokio::task::yield_now().await;
        }
        assert!(order.lock().is_empty());
        // The holder hangs: the slot is given to the others all the same.
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(*order.lock(), [0, 1, 2]);
        drop(first);
        assert_eq!(limiter.free(), 1);
        let slot = limiter.try_acquire();
        assert!(slot.is_some() && limiter.try_acquire().is_none());
        drop(slot);
        assert!(limiter.try_acquire().is_some());
    }
}
