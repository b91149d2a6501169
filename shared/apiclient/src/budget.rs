//! How long a request has to wait for its turn: a token bucket as client-go's `flowcontrol` has it, pure in time.

use std::time::{Duration, Instant};

/// What upstream's client takes for a configured 0 (client-go `rest`: DefaultQPS).
const DEFAULT_PER_SECOND: f64 = 5.0;
/// The same for the burst (DefaultBurst).
const DEFAULT_BURST: f64 = 10.0;

/// `per_second` requests in the long run, `burst` at once. Turns are given in the order in which they are asked for.
#[derive(Debug, Clone)]
pub struct Bucket {
    per_second: f64,
    burst: f64,
    /// Below zero: that many requests wait.
    tokens: f64,
    at: Option<Instant>,
}

impl Bucket {
    /// 0 means the default of upstream's client: 5 in a second, 10 at once.
    pub fn new(per_second: i32, burst: i32) -> Self {
        let per_second = if per_second > 0 { f64::from(per_second) } else { DEFAULT_PER_SECOND };
        let burst = if burst > 0 { f64::from(burst) } else { DEFAULT_BURST };
        Bucket { per_second, burst, tokens: burst, at: None }
    }

    /// Takes a turn; answers how long to wait for it from `now`.
    pub fn take(&mut self, now: Instant) -> Duration {
        let passed = self.at.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        self.at = Some(self.at.map_or(now, |at| at.max(now)));
        self.tokens = (self.tokens + passed.as_secs_f64() * self.per_second).min(self.burst) - 1.0;
        if self.tokens >= 0.0 { Duration::ZERO } else { Duration::from_secs_f64(-self.tokens / self.per_second) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_and_then_the_rate() {
        let (mut bucket, start) = (Bucket::new(50, 100), Instant::now());
        for _ in 0..100 {
            assert_eq!(bucket.take(start), Duration::ZERO);
        }
        assert_eq!(bucket.take(start), Duration::from_millis(20));
        assert_eq!(bucket.take(start), Duration::from_millis(40));
        // Both turns are over, one more token has come.
        assert_eq!(bucket.take(start + Duration::from_millis(60)), Duration::ZERO);
        assert!(bucket.take(start) > Duration::ZERO, "time does not run backwards");
        let later = start + Duration::from_secs(3600);
        assert_eq!((0..101).filter(|_| bucket.take(later).is_zero()).count(), 100, "a pause saves up one burst");
    }

    #[test]
    fn zero_is_the_clients_default() {
        let (mut bucket, now) = (Bucket::new(0, 0), Instant::now());
        assert_eq!((0..20).filter(|_| bucket.take(now).is_zero()).count(), 10);
        assert_eq!(bucket.take(now), Duration::from_millis(2200));
    }

    proptest::proptest! {
        /// In no window do more requests get their turn than burst + rate x window.
        #[test]
        fn never_more_than_allowed(gaps in proptest::collection::vec(0..40_u64, 1..300)) {
            let (mut bucket, start) = (Bucket::new(50, 10), Instant::now());
            let mut now = start;
            let mut turns = Vec::new();
            for gap in gaps {
                now += Duration::from_millis(gap);
                turns.push(now + bucket.take(now));
            }
            for (first, from) in turns.iter().enumerate() {
                for (count, to) in turns[first..].iter().enumerate() {
                    let allowed = 10.0 + 50.0 * to.saturating_duration_since(*from).as_secs_f64() + 1.0;
                    proptest::prop_assert!((count as f64) < allowed + 1e-6);
                }
            }
        }
    }
}
