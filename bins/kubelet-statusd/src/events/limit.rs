//! A token bucket that is told the time from outside.

use std::time::Duration;

/// How many in a second, and how many at once.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    pub per_second: f64,
    pub burst: f64,
}

/// A bucket that starts full.
#[derive(Debug, Clone)]
pub struct Bucket {
    rate: Rate,
    tokens: f64,
    /// When the tokens were counted, on the caller's clock.
    at: Duration,
}

impl Bucket {
    /// `now`: on any clock, as long as it is the same.
    pub fn new(rate: Rate, now: Duration) -> Self {
        Bucket { rate, tokens: rate.burst, at: now }
    }

    fn fill(&mut self, now: Duration) {
        // A clock that was set back gives nothing and takes nothing.
        let elapsed = now.saturating_sub(self.at);
        self.at = now;
        self.tokens = (self.tokens + elapsed.as_secs_f64() * self.rate.per_second).min(self.rate.burst);
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
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn a_burst_and_then_one_by_one() {
        let mut bucket = Bucket::new(Rate { per_second: 2.0, burst: 2.0 }, at(0));
        assert!(bucket.try_take(at(0)) && bucket.try_take(at(0)) && !bucket.try_take(at(0)));
        assert!(!bucket.try_take(at(499)) && bucket.try_take(at(500)));
        // Set back, and far ahead: at most a burst.
        assert!(!bucket.try_take(at(100)));
        assert!(bucket.try_take(at(100_000)) && bucket.try_take(at(100_000)) && !bucket.try_take(at(100_000)));
    }
}
