//! How long a pod whose volumes cannot be had waits before they are tried again, and what is said of it
//! (upstream `pkg/util/goroutinemap/exponentialbackoff`).

use std::time::Duration;

use tokio::time::Instant;

/// Wait after the first failure; it doubles with each one.
const FIRST: Duration = Duration::from_millis(500);
/// The longest wait after an operation on a volume that failed.
pub const LONGEST: Duration = Duration::from_secs(122);

/// One pod that waits for its volumes.
#[derive(Debug, Clone)]
pub struct MountBackOff {
    wait: Duration,
    until: Instant,
    said: Vec<String>,
}

/// What is to be done about a failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountRetry {
    /// Until the next try.
    pub wait: Duration,
    /// The failures are news.
    pub say: bool,
}

impl MountBackOff {
    pub fn new(now: Instant) -> Self {
        MountBackOff { wait: Duration::ZERO, until: now, said: Vec::new() }
    }

    /// The volumes could not be had, for these reasons. A look that came before its time, with the same result, changes
    /// nothing and is no news. `longest`: the longest wait.
    pub fn failed(&mut self, reasons: &[String], longest: Duration, now: Instant) -> MountRetry {
        let early = now < self.until && self.said == reasons;
        if !early {
            self.wait = (self.wait * 2).max(FIRST).min(longest);
            self.until = now + self.wait;
            self.said = reasons.to_vec();
        }
        MountRetry { wait: self.until.saturating_duration_since(now), say: !early }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_and_early_looks_are_silent() {
        let start = Instant::now();
        let mut back_off = MountBackOff::new(start);
        let why = ["secret \"x\" not found".to_owned()];
        let mut now = start;
        for expected in [500, 1000, 2000, 4000, 8000, 16_000, 32_000] {
            let retry = back_off.failed(&why, LONGEST, now);
            assert_eq!(retry, MountRetry { wait: Duration::from_millis(expected), say: true });
            let early = back_off.failed(&why, LONGEST, now + retry.wait / 2);
            assert_eq!(early, MountRetry { wait: retry.wait / 2, say: false });
            now += retry.wait;
        }
        // Another reason is news at any time.
        assert!(back_off.failed(&["other".to_owned()], LONGEST, now).say);
        let retry = back_off.failed(&["third".to_owned()], LONGEST, now);
        assert_eq!(retry, MountRetry { wait: LONGEST, say: true });
        let ten = Duration::from_secs(10);
        assert_eq!(back_off.failed(&why, ten, now), MountRetry { wait: ten, say: true });
    }
}
