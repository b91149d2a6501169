//! How much was left of each resource in the last ten minutes, for whoever looks at a node that is short of something. Pure.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bulkhead_config::eviction::Signal;

use super::observation::Observations;

/// A point is the least that was read within so many milliseconds.
const STEP_MS: u64 = 10_000;
/// Ten minutes.
const POINTS: u64 = 60;

/// The least that was left within a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Point {
    /// Since boot, in steps.
    step: u64,
    least: i64,
}

/// The points of each signal, at most [`POINTS`].
#[derive(Debug, Clone, Default)]
pub struct History {
    points: BTreeMap<Signal, VecDeque<Point>>,
}

fn step_of(at: Duration) -> u64 {
    u64::try_from(at.as_millis()).unwrap_or(u64::MAX) / STEP_MS
}

impl History {
    /// Takes in readings; one that is there already counts once.
    pub fn observe(&mut self, seen: &Observations) {
        for (signal, reading) in seen {
            let points = self.points.entry(*signal).or_default();
            let step = step_of(reading.at);
            match points.back_mut() {
                Some(last) if last.step >= step => last.least = last.least.min(reading.available),
                _ => points.push_back(Point { step, least: reading.available }),
            }
            while points.front().is_some_and(|first| first.step + POINTS <= step) {
                points.pop_front();
            }
        }
    }

    /// The least that was left in each step up to now, the oldest first; `None` where nothing was read in it. Steps without a
    /// reading at the beginning are left out.
    pub fn of(&self, signal: Signal, now: Duration) -> Vec<Option<i64>> {
        let last = step_of(now);
        let Some(points) = self.points.get(&signal) else { return Vec::new() };
        let within = |point: &&Point| point.step + POINTS > last && point.step <= last;
        let Some(first) = points.iter().find(within).map(|point| point.step) else { return Vec::new() };
        let at = |step| points.iter().find(|point| point.step == step).map(|point| point.least);
        (first..=last).map(at).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::signals::observation::Observation;

    const SIGNAL: Signal = Signal::MemoryAvailable;

    fn seen(available: i64, second: u64) -> Observations {
        Observations::from([(SIGNAL, Observation { available, capacity: 100, at: Duration::from_secs(second) })])
    }

    #[test]
    fn a_point_is_the_least_of_its_ten_seconds() {
        let mut history = History::default();
        let of = |history: &History, second| history.of(SIGNAL, Duration::from_secs(second));
        assert_eq!(of(&history, 5), []);
        for (second, available) in [(100, 50), (104, 20), (109, 90), (110, 40), (135, 10)] {
            history.observe(&seen(available, second));
        }
        assert_eq!(of(&history, 139), [Some(20), Some(40), None, Some(10)]);
        assert_eq!(of(&history, 150), [Some(20), Some(40), None, Some(10), None, None]);
        assert_eq!(of(&history, 705).first(), Some(&Some(40)), "ten minutes");
        assert_eq!(of(&history, 10_000), []);
    }

    proptest! {
        #[test]
        fn never_more_than_ten_minutes(readings in prop::collection::vec((any::<i64>(), 0..100_000_u64), 0..200), now in 0..100_000_u64) {
            let mut history = History::default();
            for (available, second) in readings {
                history.observe(&seen(available, second));
            }
            prop_assert!(history.of(SIGNAL, Duration::from_secs(now)).len() <= 60);
            prop_assert!(history.points.values().all(|points| points.len() <= 60));
        }
    }
}
