//! CPU rates from two readings of a counter. Pure.

use std::collections::HashMap;

/// A reading younger than this makes too coarse a rate: the earlier one stays the base.
const SHORTEST_NANOSECONDS: u64 = 200_000_000;
/// A reading older than this says nothing of "now".
const LONGEST_NANOSECONDS: u64 = 90_000_000_000;

#[derive(Debug, Clone, Copy)]
struct Reading {
    at: u64,
    usage: u64,
    rate: Option<u64>,
    /// Of the newest sample, to drop those that are gone.
    round: u64,
}

/// Remembers one reading for each cgroup, or for each container that a runtime tells of.
#[derive(Debug, Default)]
pub struct Rates {
    readings: HashMap<Box<str>, Reading>,
    round: u64,
}

impl Rates {
    /// Starts a sample; [`Self::end`] drops what it did not see.
    pub fn begin(&mut self) {
        self.round += 1;
    }

    /// Takes a reading (`at` in nanoseconds of one clock, `usage` in CPU nanoseconds) and gives the rate in billionths of a core, if
    /// there is a base for one. A counter that went back (the cgroup was made anew) starts again, as does a clock (a runtime's, which is
    /// set).
    pub fn observe(&mut self, cgroup: &str, at: u64, usage: u64) -> Option<u64> {
        let round = self.round;
        let Some(reading) = self.readings.get_mut(cgroup) else {
            self.readings.insert(cgroup.into(), Reading { at, usage, rate: None, round });
            return None;
        };
        reading.round = round;
        let elapsed = at.saturating_sub(reading.at);
        if usage < reading.usage || at < reading.at || elapsed > LONGEST_NANOSECONDS {
            *reading = Reading { at, usage, rate: None, round };
        } else if elapsed >= SHORTEST_NANOSECONDS {
            let rate = u128::from(usage - reading.usage) * 1_000_000_000 / u128::from(elapsed);
            *reading = Reading { at, usage, rate: Some(u64::try_from(rate).unwrap_or(u64::MAX)), round };
        }
        reading.rate
    }

    /// Forgets cgroups that the sample did not name.
    pub fn end(&mut self) {
        let round = self.round;
        self.readings.retain(|_, reading| reading.round == round);
    }

    pub fn len(&self) -> usize {
        self.readings.len()
    }

    pub fn is_empty(&self) -> bool {
        self.readings.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn rates_need_two_readings_of_the_same_life() {
        let mut rates = Rates::default();
        rates.begin();
        assert_eq!(rates.observe("/a", 10 * SECOND, 5 * SECOND), None, "first reading");
        assert_eq!(rates.observe("/a", 12 * SECOND, 6 * SECOND), Some(SECOND / 2), "1 s of CPU in 2 s");
        assert_eq!(rates.observe("/a", 12 * SECOND + 5, 6 * SECOND + 5), Some(SECOND / 2), "too soon: as before");
        assert_eq!(rates.observe("/a", 13 * SECOND, 1), None, "made anew");
        assert_eq!(rates.observe("/a", 14 * SECOND, 1), Some(0), "idle");
        assert_eq!(rates.observe("/a", 500 * SECOND, 2), None, "too long ago");
        assert_eq!(rates.observe("/a", 501 * SECOND, 2), Some(0));
        assert_eq!(rates.observe("/a", 400 * SECOND, 2), None, "the clock was set");
    }

    #[test]
    fn what_is_gone_is_forgotten() {
        let mut rates = Rates::default();
        rates.begin();
        rates.observe("/a", 1, 1);
        rates.observe("/b", 1, 1);
        rates.end();
        rates.begin();
        rates.observe("/b", 2, 1);
        rates.end();
        assert_eq!(rates.len(), 1);
    }

    proptest! {
        #[test]
        fn no_clock_and_no_counter_makes_it_panic(readings in proptest::collection::vec((any::<u64>(), any::<u64>()), 1..20)) {
            let mut rates = Rates::default();
            for (at, usage) in readings {
                rates.begin();
                rates.observe("/a", at, usage);
                rates.end();
                prop_assert_eq!(rates.len(), 1);
            }
        }
    }
}
