//! When an ended daemon is started again. Pure.

use bulkhead_types::BackOff;
use std::time::Duration;

const FIRST: Duration = Duration::from_millis(100);
const MAX: Duration = Duration::from_secs(10);
/// A daemon that lived this long starts afresh.
const PROVEN: Duration = Duration::from_secs(30);

/// Back-off of one daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestartBackOff(BackOff);

impl RestartBackOff {
    pub const fn new() -> Self {
        RestartBackOff(BackOff::new(FIRST, MAX))
    }

    /// The wait before the next start of a daemon that lived for `lived`.
    pub fn after(&mut self, lived: Duration) -> Duration {
        if lived >= PROVEN {
            self.0.reset();
        }
        self.0.pause()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_to_a_limit_and_forgets_after_a_good_run() {
        let mut back_off = RestartBackOff::new();
        let waits: Vec<u128> = (0..9).map(|_| back_off.after(Duration::from_secs(1)).as_millis()).collect();
        assert_eq!(waits, [100, 200, 400, 800, 1600, 3200, 6400, 10000, 10000]);
        assert_eq!(back_off.after(Duration::from_secs(31)).as_millis(), 100);
    }
}
