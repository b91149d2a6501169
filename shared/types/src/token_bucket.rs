//! A token bucket, as client-go's `flowcontrol` has it, that is told the time from outside.

use std::time::Duration;

/// So many in a second in the long run, and so many at once. Starts full.
#[derive(Debug, Clone)]
pub struct TokenBucket {
    per_second: f64,
    burst: f64,
    /// Below zero: that many wait for their turn.
    tokens: f64,
    /// When the tokens were counted, on the caller's clock.
    at: Duration,
}

impl TokenBucket {
    /// `now`: on any clock, as long as it is the same.
    pub fn new(per_second: f64, burst: f64, now: Duration) -> Self {
        TokenBucket { per_second, burst, tokens: burst, at: now }
    }

    fn fill(&mut self, now: Duration) {
        // A clock that was set back gives nothing and takes nothing.
        let elapsed = now.saturating_sub(self.at);
        self.at = now;
        self.tokens = (self.tokens + elapsed.as_secs_f64() * self.per_second).min(self.burst);
    }

    /// Takes a token if there is one.
    pub fn try_take(&mut self, now: Duration) -> bool {
        self.fill(now);
        let there = self.tokens >= 1.0;
        if there {
            self.tokens -= 1.0;
        }
        there
    }

    /// Takes a turn, in the order in which turns are asked for; answers how long to wait for it from `now`.
    pub fn reserve(&mut self, now: Duration) -> Duration {
        self.fill(now);
        self.tokens -= 1.0;
        if self.tokens >= 0.0 { Duration::ZERO } else { Duration::from_secs_f64(-self.tokens / self.per_second) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn a_burst_and_then_one_by_one() {
        let mut bucket = TokenBucket::new(2.0, 2.0, at(0));
        assert!(bucket.try_take(at(0)) && bucket.try_take(at(0)) && !bucket.try_take(at(0)));
        assert!(!bucket.try_take(at(499)) && bucket.try_take(at(500)));
        // Set back, and far ahead: at most a burst.
        assert!(!bucket.try_take(at(100)));
        assert!(bucket.try_take(at(100_000)) && bucket.try_take(at(100_000)) && !bucket.try_take(at(100_000)));
    }

    #[test]
    fn turns_are_given_in_order() {
        let mut bucket = TokenBucket::new(50.0, 100.0, at(0));
        assert!((0..100).all(|_| bucket.reserve(at(0)).is_zero()));
        assert_eq!(bucket.reserve(at(0)), at(20));
        assert_eq!(bucket.reserve(at(0)), at(40));
        // Both turns are over, one more token has come.
        assert!(bucket.reserve(at(60)).is_zero());
        assert!(!bucket.reserve(at(0)).is_zero(), "time does not run backwards");
        let later = at(3_600_000);
        assert_eq!((0..101).filter(|_| bucket.reserve(later).is_zero()).count(), 100, "a pause saves up one burst");
    }

    proptest::proptest! {
        /// In no window do more get their turn than burst + rate x window.
        #[test]
        fn never_more_than_allowed(gaps in proptest::collection::vec(0..40_u64, 1..300)) {
            let mut bucket = TokenBucket::new(50.0, 10.0, at(0));
            let mut now = at(0);
            let mut turns = Vec::new();
            for gap in gaps {
                now += at(gap);
                turns.push(now + bucket.reserve(now));
            }
            for (first, from) in turns.iter().enumerate() {
                for (count, to) in turns[first..].iter().enumerate() {
                    let allowed = 10.0 + 50.0 * to.saturating_sub(*from).as_secs_f64() + 1.0;
                    proptest::prop_assert!((count as f64) < allowed + 1e-6);
                }
            }
        }
    }
}
