//! What strangers and greedy peers were refused: counted always, told in the log now and then.
//!
//! Whoever may connect may be refused as often as it likes, so a refusal writes no line of its own: the first of its
//! reason does, and after it one in [`LOG_INTERVAL`], which says how many there were since.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// At most one line of each reason in this time.
pub const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Why a peer was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// It is no process of this node, or runs in a pod: refused before a byte of it is read.
    Stranger,
    /// It has as many connections as it may have.
    Connections,
    /// It did not say what it wants in time.
    Handshake,
    /// It has as many calls in flight as it may have.
    Calls,
    /// Its requests hold as much memory as they may.
    Bytes,
    /// The method is another's, or is not served.
    Method,
    /// It asks the broker faster than it is answered.
    Broker,
}

impl Reason {
    pub const ALL: [Reason; 7] = [
        Reason::Stranger,
        Reason::Connections,
        Reason::Handshake,
        Reason::Calls,
        Reason::Bytes,
        Reason::Method,
        Reason::Broker,
    ];

    /// The metric's label.
    pub const fn as_str(self) -> &'static str {
        match self {
            Reason::Stranger => "stranger",
            Reason::Connections => "connections",
            Reason::Handshake => "handshake",
            Reason::Calls => "calls",
            Reason::Bytes => "bytes",
            Reason::Method => "method",
            Reason::Broker => "broker",
        }
    }
}

#[derive(Debug, Default)]
struct Tally {
    count: AtomicU64,
    /// When the last line was written, and what the count was then.
    told: Mutex<Option<(Instant, u64)>>,
}

/// Counts of a process's refusals.
#[derive(Debug, Default)]
pub struct Refusals {
    tallies: [Tally; Reason::ALL.len()],
}

impl Refusals {
    /// Counts one. `Some(n)` when a line is due: n were refused for this reason since the last line, this one included.
    pub fn record(&self, reason: Reason) -> Option<u64> {
        self.record_at(reason, Instant::now())
    }

    fn record_at(&self, reason: Reason, now: Instant) -> Option<u64> {
        let tally = self.tallies.get(reason as usize)?;
        let count = tally.count.fetch_add(1, Ordering::Relaxed) + 1;
        let mut told = tally.told.lock();
        match *told {
            Some((when, _)) if now.saturating_duration_since(when) < LOG_INTERVAL => None,
            before => {
                *told = Some((now, count));
                Some(count - before.map_or(0, |(_, count)| count))
            }
        }
    }

    /// Refused so far, by reason.
    pub fn count(&self, reason: Reason) -> u64 {
        self.tallies.get(reason as usize).map_or(0, |tally| tally.count.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_its_place() {
        let refusals = Refusals::default();
        for reason in Reason::ALL {
            assert_eq!(refusals.record(reason), Some(1));
            assert_eq!(refusals.count(reason), 1);
        }
    }

    #[test]
    fn all_refusals_are_counted_and_few_are_logged() {
        let refusals = Refusals::default();
        let start = Instant::now();
        let at = |seconds| refusals.record_at(Reason::Calls, start + Duration::from_secs(seconds));
        assert_eq!(at(0), Some(1));
        assert_eq!(at(1), None);
        assert_eq!(at(9), None);
        assert_eq!(at(10), Some(3));
        assert_eq!(refusals.record_at(Reason::Bytes, start), Some(1), "reasons do not silence each other");
        assert_eq!(at(60), Some(1));
        assert_eq!(refusals.count(Reason::Calls), 5);
    }
}
