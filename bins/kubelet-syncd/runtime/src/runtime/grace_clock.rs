//! Which time is part of a grace period: none for which signals of the pod are held back for other pods (decision 89).

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// For how long signals of one pod have been held back, counted while at least one is. Clones are the same one.
#[derive(Debug, Clone, Default)]
pub struct HeldBack(watch::Sender<State>);

#[derive(Debug, Default)]
struct State {
    /// Signals that wait.
    waiting: usize,
    /// When the first of them began to.
    since: Option<Instant>,
    /// What was counted before that.
    before: Duration,
}

impl State {
    fn total(&self, now: Instant) -> Duration {
        self.before + self.since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }
}

/// A signal that is held back, until this is dropped.
#[derive(Debug)]
#[must_use = "the signal is held back until it is dropped"]
pub struct Waiting(HeldBack);

impl Drop for Waiting {
    fn drop(&mut self) {
        let now = Instant::now();
        self.0.0.send_modify(|state| {
            state.waiting = state.waiting.saturating_sub(1);
            if state.waiting == 0 {
                state.before = state.total(now);
                state.since = None;
            }
        });
    }
}

impl HeldBack {
    /// A signal begins to wait.
    pub fn begin(&self) -> Waiting {
        let now = Instant::now();
        self.0.send_modify(|state| {
            state.waiting += 1;
            state.since.get_or_insert(now);
        });
        Waiting(self.clone())
    }

    /// Counts a grace period from now on.
    pub fn clock(&self) -> GraceClock {
        let began = Instant::now();
        GraceClock { held: self.clone(), began, before: self.0.borrow().total(began) }
    }
}

/// Counts the time of a grace period; it stands while a signal of the pod is held back.
#[derive(Debug)]
pub struct GraceClock {
    held: HeldBack,
    began: Instant,
    /// For how long signals had been held back when it began.
    before: Duration,
}

impl GraceClock {
    /// How much was counted so far.
    pub fn spent(&self) -> Duration {
        let now = Instant::now();
        let held = self.held.0.borrow().total(now).saturating_sub(self.before);
        now.saturating_duration_since(self.began).saturating_sub(held)
    }

    /// Waits for something until so much was counted.
    pub async fn within(&self, limit: Duration, what: impl Future<Output = ()>) {
        tokio::select! {
            biased;
            () = what => {}
            () = self.reaches(limit) => {}
        }
    }

    async fn reaches(&self, limit: Duration) {
        let mut state = self.held.0.subscribe();
        loop {
            let stands = state.borrow_and_update().since.is_some();
            let left = limit.saturating_sub(self.spent());
            if left.is_zero() {
                return;
            }
            tokio::select! {
                // The sender lives in self.
                _ = state.changed() => {}
                () = tokio::time::sleep(left), if !stands => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// After how long the clock has counted so many seconds.
    async fn seconds_until(clock: &GraceClock, limit: u32) -> u64 {
        let begun = Instant::now();
        clock.within(SECOND * limit, std::future::pending()).await;
        begun.elapsed().as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn it_stands_while_at_least_one_signal_is_held_back() {
        let held = HeldBack::default();
        let clock = held.clock();
        tokio::time::sleep(SECOND).await;
        let (first, second) = (held.begin(), held.clone().begin());
        tokio::time::sleep(SECOND * 2).await;
        drop(first);
        tokio::time::sleep(SECOND * 4).await;
        assert_eq!((clock.spent().as_secs(), held.clock().spent().as_secs()), (1, 0));
        drop(second);
        tokio::time::sleep(SECOND * 8).await;
        assert_eq!(clock.spent().as_secs(), 9);
    }

    #[tokio::test(start_paused = true)]
    async fn a_limit_moves_with_it() {
        let held = HeldBack::default();
        assert_eq!(seconds_until(&held.clock(), 5).await, 5, "nothing is held back");
        let clock = held.clock();
        let hold = async {
            let first = held.begin();
            tokio::time::sleep(SECOND * 6).await;
            drop(first);
            tokio::time::sleep(SECOND * 2).await;
            let _again = held.begin();
            tokio::time::sleep(SECOND).await;
        };
        let (took, ()) = tokio::join!(seconds_until(&clock, 5), hold);
        assert_eq!(took, 5 + 6 + 1);
        assert_eq!(seconds_until(&clock, 5).await, 0, "it was reached");
        // What comes is not waited for any longer, also while it stands.
        let _held = held.begin();
        let begun = Instant::now();
        held.clock().within(SECOND, tokio::time::sleep(SECOND * 3)).await;
        assert_eq!(begun.elapsed().as_secs(), 3);
    }
}
