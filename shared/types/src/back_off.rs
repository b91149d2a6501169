//! How long to pause between tries: doubling, up to a longest pause. Pure; who wants them spread adds the jitter.

use std::time::Duration;

/// Pauses after failures in a row: the first one, then twice the one before, never longer than the longest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackOff {
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl BackOff {
    pub const fn new(first: Duration, longest: Duration) -> Self {
        BackOff { first, longest, next: first }
    }

    /// The pause after another failure.
    pub fn pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = pause.saturating_mul(2).min(self.longest);
        pause
    }

    /// After something went well: the next pause is the first one again.
    pub fn reset(&mut self) {
        self.next = self.first;
    }

    /// The pause after `failures` in a row that somebody else counts, from 1; none means the first one too.
    pub fn after(self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(31);
        self.first.saturating_mul(1 << doublings).min(self.longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_begin_anew() {
        let mut back_off = BackOff::new(Duration::from_millis(100), Duration::from_millis(700));
        let pauses: Vec<u128> = (0..5).map(|_| back_off.pause().as_millis()).collect();
        assert_eq!(pauses, [100, 200, 400, 700, 700]);
        let counted: Vec<u128> = (0..6).map(|failures| back_off.after(failures).as_millis()).collect();
        assert_eq!(counted, [100, 100, 200, 400, 700, 700]);
        assert_eq!(back_off.after(u32::MAX).as_millis(), 700);
        back_off.reset();
        assert_eq!(back_off.pause().as_millis(), 100);
    }
}
