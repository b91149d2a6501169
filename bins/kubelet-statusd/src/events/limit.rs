//! Token buckets, told the time from outside: eventRecordQPS and eventBurst, and the spam filter's.

use std::time::Duration;

/// Upstream's client takes these for 0 (`staging/src/k8s.io/client-go/rest/config.go` DefaultQPS, DefaultBurst).
const DEFAULT_QPS: i32 = 5;
const DEFAULT_BURST: i32 = 10;

/// How many in a second, and how many at once.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    pub per_second: f64,
    pub burst: f64,
}

impl Rate {
    /// eventRecordQPS and eventBurst; 0 means the client's default.
    pub fn of(qps: i32, burst: i32) -> Self {
        let or = |value: i32, default: i32| f64::from(if value > 0 { value } else { default });
        Rate { per_second: or(qps, DEFAULT_QPS), burst: or(burst, DEFAULT_BURST) }
    }
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

    /// Takes a token, on credit if need be; answers how long to wait for it.
    pub fn take(&mut self, now: Duration) -> Duration {
        self.fill(now);
        self.tokens -= 1.0;
        Duration::from_secs_f64((-self.tokens).max(0.0) / self.rate.per_second)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn nought_is_the_clients_default() {
        assert_eq!(Rate::of(50, 100), Rate { per_second: 50.0, burst: 100.0 });
        assert_eq!(Rate::of(0, 100), Rate { per_second: 5.0, burst: 100.0 });
        assert_eq!(Rate::of(-1, 0), Rate { per_second: 5.0, burst: 10.0 });
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

    #[test]
    fn waiting_costs_its_share() {
        let mut bucket = Bucket::new(Rate { per_second: 10.0, burst: 1.0 }, at(0));
        assert_eq!(bucket.take(at(0)), at(0));
        assert_eq!(bucket.take(at(0)), at(100));
        assert_eq!(bucket.take(at(0)), at(200));
        assert_eq!(bucket.take(at(1000)), at(0));
    }
}
