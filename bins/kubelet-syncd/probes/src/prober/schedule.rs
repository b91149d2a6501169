//! When which worker is due: one queue for all, and for each worker a beat that keeps its phase. Pure.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;

/// Which worker.
pub type WorkerId = u64;

/// The beats of one worker. A beat that passes while it works is made up for at once; more of them are not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Beat {
    next: Instant,
    period: Duration,
}

impl Beat {
    pub fn new(first: Instant, period: Duration) -> Self {
        Beat { next: first, period: period.max(Duration::from_millis(1)) }
    }

    pub fn next(&self) -> Instant {
        self.next
    }

    /// The beat's time has come, or is about to.
    pub fn take(&mut self, now: Instant) {
        let late = now.saturating_duration_since(self.next);
        let missed = late.as_nanos() / self.period.as_nanos();
        let missed = u32::try_from(missed).unwrap_or(u32::MAX);
        self.next += self.period.saturating_mul(missed.saturating_add(1));
    }

    /// The worker is to work out of turn: the next beat is now, and the period counts from here.
    pub fn restart(&mut self, now: Instant) {
        self.next = now;
    }
}

/// Who is due when.
#[derive(Debug, Default)]
pub struct Queue {
    order: BTreeSet<(Instant, WorkerId)>,
}

impl Queue {
    /// True: it is the first now, whoever sleeps until the first has to know.
    pub fn insert(&mut self, at: Instant, worker: WorkerId) -> bool {
        self.order.insert((at, worker));
        self.order.first() == Some(&(at, worker))
    }

    pub fn remove(&mut self, at: Instant, worker: WorkerId) {
        self.order.remove(&(at, worker));
    }

    pub fn first(&self) -> Option<Instant> {
        self.order.first().map(|(at, _)| *at)
    }

    /// One that is due until then.
    pub fn pop(&mut self, until: Instant) -> Option<WorkerId> {
        let (at, _) = self.order.first()?;
        if *at > until {
            return None;
        }
        self.order.pop_first().map(|(_, worker)| worker)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_beat_keeps_its_phase() {
        let start = Instant::now();
        let mut beat = Beat::new(start, SECOND);
        beat.take(start);
        assert_eq!(beat.next(), start + SECOND);
        // Its work took two and a half periods: one beat at once, the next in phase.
        let late = start + SECOND * 5 / 2;
        beat.take(late);
        assert_eq!(beat.next(), start + SECOND * 3);
        // A little early is the same beat.
        beat.take(start + SECOND * 3 - SECOND / 100);
        assert_eq!(beat.next(), start + SECOND * 4);
        beat.restart(start + SECOND * 7 / 2);
        assert_eq!(beat.next(), start + SECOND * 7 / 2);
        beat.take(start + SECOND * 7 / 2);
        assert_eq!(beat.next(), start + SECOND * 9 / 2);
    }

    #[test]
    fn first_come_first() {
        let start = Instant::now();
        let mut queue = Queue::default();
        assert!(queue.insert(start + SECOND, 1));
        assert!(!queue.insert(start + SECOND * 2, 2));
        assert!(queue.insert(start, 3));
        queue.remove(start + SECOND, 1);
        assert_eq!((queue.pop(start + SECOND), queue.pop(start + SECOND)), (Some(3), None));
        assert_eq!(queue.first(), Some(start + SECOND * 2));
    }
}
