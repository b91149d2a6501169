//! When the next reading comes: before the steepest fall that was seen could reach a threshold. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use bulkhead_config::eviction::Signal;

use super::observation::{Observation, Observations, Resource};

/// Readings come no closer together than this.
const SHORTEST: Duration = Duration::from_millis(20);
/// And no further apart (upstream's period, `pkg/kubelet/kubelet.go` evictionMonitoringPeriod).
pub const LONGEST: Duration = Duration::from_secs(10);
/// A file system is looked at so often at least: a disk that has never been written to fast may be now.
pub const LONGEST_OF_FILE_SYSTEMS: Duration = Duration::from_secs(1);
/// A fall that was seen is reckoned with for so long.
const REMEMBERED: Duration = Duration::from_secs(600);
/// Falls that are reckoned with before any was seen, a second: what one program can take without special effort.
const MEMORY_FLOOR: f64 = (1_u64 << 30) as f64;
const STORAGE_FLOOR: f64 = (256_u64 << 20) as f64;
const INODES_FLOOR: f64 = 50_000.0;
const PIDS_FLOOR: f64 = 5_000.0;

#[derive(Debug, Clone, Copy)]
struct Fall {
    /// Units a second.
    rate: f64,
    at: Duration,
}

/// How fast each signal has fallen.
#[derive(Debug, Clone, Default)]
pub struct Falls {
    last: BTreeMap<Signal, Observation>,
    /// The steepest of the time that is remembered, and what was seen last.
    steepest: BTreeMap<Signal, Fall>,
    newest: BTreeMap<Signal, f64>,
}

impl Falls {
    /// Takes in readings.
    pub fn observe(&mut self, seen: &Observations) {
        self.last.retain(|signal, _| seen.contains_key(signal));
        for (signal, now) in seen {
            let Some(before) = self.last.insert(*signal, *now) else { continue };
            let elapsed = now.at.saturating_sub(before.at).as_secs_f64();
            if elapsed <= 0.0 {
                continue;
            }
            let rate = (before.available.saturating_sub(now.available)) as f64 / elapsed;
            self.newest.insert(*signal, rate);
            let steepest = self.steepest.entry(*signal).or_insert(Fall { rate: 0.0, at: now.at });
            if rate >= steepest.rate || now.at.saturating_sub(steepest.at) > REMEMBERED {
                *steepest = Fall { rate: rate.max(0.0), at: now.at };
            }
        }
    }

    /// Units a second by which it fell from the reading before to the last one; below 0 it rose. `None`: there is one reading.
    pub fn newest(&self, signal: Signal) -> Option<f64> {
        self.newest.get(&signal).copied()
    }

    /// After which time a signal with this reading has to be looked at again, so that it cannot fall by more than `margin`
    /// meanwhile.
    pub fn until(&self, signal: Signal, margin: i64) -> Duration {
        let (floor, longest) = match Resource::of(signal) {
            Resource::Memory => (MEMORY_FLOOR, LONGEST),
            Resource::EphemeralStorage => (STORAGE_FLOOR, LONGEST_OF_FILE_SYSTEMS),
            Resource::Inodes => (INODES_FLOOR, LONGEST_OF_FILE_SYSTEMS),
            Resource::Pids => (PIDS_FLOOR, LONGEST),
        };
        let rate = self.steepest.get(&signal).map_or(floor, |fall| fall.rate.max(floor));
        let seconds = (margin.max(0) as f64 / rate).clamp(SHORTEST.as_secs_f64(), longest.as_secs_f64());
        Duration::from_secs_f64(seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SIGNAL: Signal = Signal::MemoryAvailable;
    const MIB: i64 = 1 << 20;

    fn seen(available: i64, milliseconds: u64) -> Observations {
        let at = Duration::from_millis(milliseconds);
        Observations::from([(SIGNAL, Observation { available, capacity: 1 << 40, at })])
    }

    #[test]
    fn the_steepest_fall_sets_the_pace() {
        let mut falls = Falls::default();
        assert_eq!(falls.until(SIGNAL, 1 << 40), LONGEST);
        assert_eq!(falls.until(SIGNAL, 512 * MIB), Duration::from_millis(500), "1 GiB a second at least");
        assert_eq!(falls.until(SIGNAL, -5), SHORTEST);
        falls.observe(&seen(10_000 * MIB, 0));
        assert_eq!(falls.newest(SIGNAL), None);
        falls.observe(&seen(10_000 * MIB - 2048 * MIB, 500));
        assert_eq!(falls.newest(SIGNAL), Some((4096 * MIB) as f64));
        assert_eq!(falls.until(SIGNAL, 512 * MIB), Duration::from_millis(125), "4 GiB a second were seen");
        falls.observe(&seen(10_000 * MIB, 1000));
        assert!(falls.newest(SIGNAL).unwrap() < 0.0);
        assert_eq!(falls.until(SIGNAL, 512 * MIB), Duration::from_millis(125), "which may come again");
        falls.observe(&seen(10_000 * MIB, 700_000));
        assert_eq!(falls.until(SIGNAL, 512 * MIB), Duration::from_millis(500), "but not for ever");
        assert_eq!(falls.until(Signal::NodeFsAvailable, 1 << 40), LONGEST_OF_FILE_SYSTEMS);
    }

    proptest! {
        #[test]
        fn always_within_the_bounds(readings in prop::collection::vec((any::<i64>(), any::<u32>()), 0..20), margin in any::<i64>()) {
            let mut falls = Falls::default();
            for (available, at) in readings {
                falls.observe(&seen(available, at.into()));
                let next = falls.until(SIGNAL, margin);
                prop_assert!((SHORTEST..=LONGEST).contains(&next));
            }
        }
    }
}
