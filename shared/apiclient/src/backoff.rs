//! How long to pause after failures: doubling, jittered, capped, as client-go's reflector does it.

use bulkhead_types::BackOff;
use std::time::Duration;

/// A number in `0.0..1.0`, good enough to spread what would come at the same time.
pub fn random_fraction() -> f64 {
    let mut bytes = [0; 4];
    // Without random numbers retries come in step, which is no reason to fail.
    if getrandom::fill(&mut bytes).is_err() {
        return 0.5;
    }
    f64::from(u32::from_le_bytes(bytes)) / (f64::from(u32::MAX) + 1.0)
}

/// Pauses between `first` and twice the current step, which doubles up to `last`.
#[derive(Debug, Clone)]
pub struct Backoff {
    steps: BackOff,
    last: Duration,
}

impl Backoff {
    pub const fn new(first: Duration, last: Duration) -> Self {
        Backoff { steps: BackOff::new(first, last), last }
    }

    /// The next pause; `fraction` in 0..1 is the jitter.
    pub fn next(&mut self, fraction: f64) -> Duration {
        self.steps.pause().mul_f64(1.0 + fraction.clamp(0.0, 1.0)).min(self.last)
    }

    /// After something went well.
    pub fn reset(&mut self) {
        self.steps.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_with_jitter_up_to_the_cap() {
        let mut backoff = Backoff::new(Duration::from_millis(800), Duration::from_secs(30));
        assert_eq!(backoff.next(0.0), Duration::from_millis(800));
        assert_eq!(backoff.next(0.5), Duration::from_millis(2400));
        for _ in 0..10 {
            assert!(backoff.next(1.0) <= Duration::from_secs(30));
        }
        assert_eq!(backoff.next(0.0), Duration::from_secs(30));
        backoff.reset();
        assert_eq!(backoff.next(0.0), Duration::from_millis(800));
        for _ in 0..100 {
            assert!((0.0..1.0).contains(&random_fraction()));
        }
    }
}
