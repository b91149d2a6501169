//! When requests may be sent at all: one at a time, and ever less often, while the API server does not answer.

use bulkhead_types::BackOff;
use std::time::{Duration, Instant};

/// Pauses after failures: doubled each time between these, a random half of it taken off.
#[derive(Debug, Clone, Copy)]
pub struct Pauses {
    pub first: Duration,
    pub longest: Duration,
}

/// After an answer that asks to come again, of one pod.
pub const ANSWERED: Pauses = Pauses { first: Duration::from_millis(200), longest: Duration::from_secs(10) };
/// While nobody answers, of all.
pub const SILENT: Pauses = Pauses { first: Duration::from_millis(100), longest: Duration::from_secs(5) };

/// Randomness that need not be good: it spreads retries.
#[derive(Debug, Clone)]
pub struct Jitter(u64);

impl Jitter {
    pub fn new(seed: u64) -> Self {
        Jitter(seed | 1)
    }

    /// The pause after so many failures in a row (from 1).
    pub fn pause(&mut self, pauses: Pauses, failures: u32) -> Duration {
        let doubled = BackOff::new(pauses.first, pauses.longest).after(failures);
        // xorshift
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        let part = u32::try_from(self.0 % 1024).unwrap_or(0);
        doubled / 2 + doubled / 2 * part / 1024
    }
}

/// Open while the server answers.
#[derive(Debug, Default)]
pub struct Gate {
    failures: u32,
    closed_until: Option<Instant>,
    /// A request is under way that tells whether to open. Older ones may hang as long as they like.
    probing: bool,
}

impl Gate {
    /// Whether one more request may start beside so many others.
    pub fn admits(&self, now: Instant, in_flight: usize, limit: usize) -> bool {
        // A probe while it is closed: the first to be answered opens the gate for the rest.
        in_flight < limit && self.closed_until.is_none_or(|until| !self.probing && now >= until)
    }

    /// From when on it may admit the next; `None`: a request has to end first.
    pub fn opens_at(&self, now: Instant, in_flight: usize, limit: usize) -> Option<Instant> {
        if in_flight >= limit || self.probing {
            return None;
        }
        Some(self.closed_until.unwrap_or(now))
    }

    /// A request starts.
    pub fn starts(&mut self) {
        self.probing = self.closed_until.is_some();
    }

    /// An answer came, whatever it said. True: none had come before.
    pub fn answered(&mut self) -> bool {
        let was_closed = self.closed_until.is_some();
        *self = Gate::default();
        was_closed
    }

    /// No answer came. True: this is the first time in a row.
    pub fn silent(&mut self, now: Instant, jitter: &mut Jitter) -> bool {
        self.failures = self.failures.saturating_add(1);
        self.closed_until = Some(now + jitter.pause(SILENT, self.failures));
        self.probing = false;
        self.failures == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_limit() {
        let mut jitter = Jitter::new(7);
        for (failures, most) in [(1, 200), (2, 400), (3, 800), (7, 10_000), (1000, 10_000)] {
            let pause = jitter.pause(ANSWERED, failures);
            let most = Duration::from_millis(most);
            assert!(pause >= most / 2 && pause <= most, "{failures}: {pause:?}");
        }
    }

    #[test]
    fn one_request_probes_a_server_that_does_not_answer() {
        let (mut gate, mut jitter, now) = (Gate::default(), Jitter::new(1), Instant::now());
        assert!(gate.admits(now, 7, 8) && !gate.admits(now, 8, 8));
        assert!(gate.silent(now, &mut jitter) && !gate.silent(now, &mut jitter));
        assert!(!gate.admits(now, 0, 8));
        let later = gate.opens_at(now, 3, 8).unwrap();
        assert!(gate.admits(later, 0, 8) && gate.admits(later, 3, 8) && !gate.admits(later, 8, 8));
        gate.starts();
        assert!(!gate.admits(later, 1, 8) && gate.opens_at(later, 1, 8).is_none());
        assert!(gate.answered() && !gate.answered());
        assert!(gate.admits(now, 7, 8));
    }
}
