//! How many requests are answered: upstream's token bucket (`pkg/kubelet/apis/grpc`, `golang.org/x/time/rate`).

use parking_lot::Mutex;
use tokio::time::Instant;
use tonic::Status;

/// Requests a second, and how many more at once (upstream `podresources.DefaultQPS`, `DefaultBurstTokens`).
pub const QPS: f64 = 100.0;
pub const BURST: f64 = 10.0;

/// Tokens, and since when there are so many.
#[derive(Debug, Clone, Copy)]
struct Bucket {
    tokens: f64,
    since: Instant,
}

impl Bucket {
    fn full(now: Instant) -> Self {
        Bucket { tokens: BURST, since: now }
    }

    /// Takes one, where there is one.
    fn take(&mut self, now: Instant) -> bool {
        let gained = now.saturating_duration_since(self.since).as_secs_f64() * QPS;
        self.tokens = (self.tokens + gained).min(BURST);
        self.since = self.since.max(now);
        let taken = self.tokens >= 1.0;
        if taken {
            self.tokens -= 1.0;
        }
        taken
    }
}

/// One bucket for all clients and both versions, as upstream has it.
#[derive(Debug)]
pub struct Limiter(Mutex<Bucket>);

impl Default for Limiter {
    fn default() -> Self {
        Limiter(Mutex::new(Bucket::full(Instant::now())))
    }
}

impl Limiter {
    /// # Errors
    /// RESOURCE_EXHAUSTED, in upstream's words: too many requests.
    pub fn allow(&self) -> Result<(), Status> {
        let mut bucket = self.0.lock();
        if bucket.take(Instant::now()) { Ok(()) } else { Err(Status::resource_exhausted("rejected by rate limit")) }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn ten_at_once_then_one_each_ten_milliseconds() {
        let limiter = Limiter::default();
        assert!((0..10).all(|_| limiter.allow().is_ok()));
        let refused = limiter.allow().unwrap_err();
        assert_eq!((refused.code(), refused.message()), (tonic::Code::ResourceExhausted, "rejected by rate limit"));
        tokio::time::advance(Duration::from_millis(10)).await;
        assert!(limiter.allow().is_ok() && limiter.allow().is_err());
        tokio::time::advance(Duration::from_secs(3600)).await;
        assert_eq!((0..100).filter(|_| limiter.allow().is_ok()).count(), 10, "no more than a burst is saved up");
    }

    proptest! {
        /// Over any time no more pass than the burst and the rate give.
        #[test]
        fn never_more_than_the_rate(gaps in prop::collection::vec(0_u64..40, 1..300)) {
            let start = Instant::now();
            let (mut bucket, mut now, mut passed) = (Bucket::full(start), start, 0_u32);
            for gap in gaps {
                now += Duration::from_millis(gap);
                passed += u32::from(bucket.take(now));
                let most = BURST + QPS * now.duration_since(start).as_secs_f64();
                prop_assert!(f64::from(passed) <= most + 1e-6, "{passed} of {most}");
            }
        }
    }
}
