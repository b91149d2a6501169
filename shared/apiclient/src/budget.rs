//! How long a request has to wait for its turn, with the defaults of upstream's client.

use std::time::{Duration, Instant};

use bulkhead_types::TokenBucket;

/// What upstream's client takes for a configured 0 (client-go `rest`: DefaultQPS).
const DEFAULT_PER_SECOND: f64 = 5.0;
/// The same for the burst (DefaultBurst).
const DEFAULT_BURST: f64 = 10.0;

/// `per_second` requests in the long run, `burst` at once. Turns are given in the order in which they are asked for.
#[derive(Debug, Clone)]
pub struct Budget {
    bucket: TokenBucket,
    began: Instant,
}

impl Budget {
    /// 0 means the default of upstream's client: 5 in a second, 10 at once.
    pub fn new(per_second: i32, burst: i32, now: Instant) -> Self {
        let per_second = if per_second > 0 { f64::from(per_second) } else { DEFAULT_PER_SECOND };
        let burst = if burst > 0 { f64::from(burst) } else { DEFAULT_BURST };
        Budget { bucket: TokenBucket::new(per_second, burst, Duration::ZERO), began: now }
    }

    /// Takes a turn; answers how long to wait for it from `now`.
    pub fn take(&mut self, now: Instant) -> Duration {
        self.bucket.reserve(now.saturating_duration_since(self.began))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_and_then_the_rate() {
        let start = Instant::now();
        let mut budget = Budget::new(50, 100, start);
        assert!((0..100).all(|_| budget.take(start).is_zero()));
        assert_eq!(budget.take(start), Duration::from_millis(20));
        assert_eq!(budget.take(start + Duration::from_millis(20)), Duration::from_millis(20));
    }

    #[test]
    fn zero_is_the_clients_default() {
        let now = Instant::now();
        let mut budget = Budget::new(0, 0, now);
        assert_eq!((0..20).filter(|_| budget.take(now).is_zero()).count(), 10);
        assert_eq!(budget.take(now), Duration::from_millis(2200));
    }
}
