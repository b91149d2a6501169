//! Which thresholds are met, for how long they have been, and which conditions follow (upstream
//! `pkg/kubelet/eviction/eviction_manager.go` synchronize). Pure.
//!
//! Times are since boot, so that a clock that is set changes none of them, and are kept over a restart of this process.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bulkhead_config::eviction::{Limit, Signal, Threshold};
use serde::{Deserialize, Serialize};

use crate::signals::observation::{Condition, Observations};

/// The form of the state file.
pub const VERSION: u64 = 1;

/// What is known from earlier passes. Kept on disk, for the boot that it is of.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledger {
    pub boot_id: String,
    /// When each threshold that is met was met first, milliseconds since boot, by [`key`].
    #[serde(default)]
    pub first_observed_ms: BTreeMap<String, u64>,
    /// When each condition was observed last.
    #[serde(default)]
    pub last_observed_ms: BTreeMap<String, u64>,
    /// Thresholds that had outlasted their grace period in the last pass: they are met until the minimum reclaim is reached, too.
    #[serde(default)]
    pub met: BTreeSet<String>,
    /// Readings that were begun before are not acted on. Not kept: a new process reads anew.
    #[serde(skip)]
    pub read_before_ms: u64,
}

impl Ledger {
    /// But for when conditions were observed last.
    pub fn says_the_same(&self, other: &Ledger) -> bool {
        self.first_observed_ms == other.first_observed_ms
            && self.met == other.met
            && self.last_observed_ms.keys().eq(other.last_observed_ms.keys())
    }
}

/// What follows from a pass.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Judgement {
    pub conditions: BTreeSet<Condition>,
    /// Met, whether or not for long enough.
    pub met: Vec<Threshold>,
    /// To be acted on, memory first.
    pub actionable: Vec<Threshold>,
}

/// Names a threshold in the ledger; another limit or grace period makes another threshold.
pub fn key(threshold: &Threshold) -> String {
    let limit = match threshold.limit {
        Limit::Quantity(quantity) => quantity.to_string(),
        Limit::Fraction(fraction) => format!("{fraction}"),
    };
    format!("{}<{limit} for {:?}", threshold.signal.as_str(), threshold.grace_period)
}

/// What a threshold asks for, in units of its signal; with what is to be reclaimed beyond it, if that counts.
pub fn required(threshold: &Threshold, capacity: i64, with_reclaim: bool) -> i64 {
    let reclaim = threshold.min_reclaim.filter(|_| with_reclaim).map_or(0, |limit| limit.absolute(capacity));
    threshold.limit.absolute(capacity).saturating_add(reclaim)
}

/// A threshold without a reading is not met.
pub fn is_met(threshold: &Threshold, seen: &Observations, with_reclaim: bool) -> bool {
    let reading = seen.get(&threshold.signal);
    reading.is_some_and(|reading| reading.available < required(threshold, reading.capacity, with_reclaim))
}

/// Memory before all else (upstream byEvictionPriority).
fn memory_last(signal: Signal) -> bool {
    !matches!(signal, Signal::MemoryAvailable | Signal::AllocatableMemoryAvailable)
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// One pass. `now`: since boot. `transition`: for so long a condition stays after it was observed last.
pub fn judge(
    thresholds: &[Threshold],
    seen: &Observations,
    ledger: &mut Ledger,
    now: Duration,
    transition: Duration,
) -> Judgement {
    let now_ms = milliseconds(now);
    // Names are made of those few that are met.
    let is_still_met = |threshold: &&Threshold| is_met(threshold, seen, true) && ledger.met.contains(&key(threshold));
    let met: Vec<Threshold> =
        thresholds.iter().filter(|t| is_met(t, seen, false) || is_still_met(t)).copied().collect();

    let first = met.iter().map(|threshold| {
        let key = key(threshold);
        let at = ledger.first_observed_ms.get(&key).copied().unwrap_or(now_ms);
        (key, at)
    });
    ledger.first_observed_ms = first.collect();

    for condition in met.iter().map(|threshold| Condition::of(threshold.signal)) {
        ledger.last_observed_ms.insert(condition.as_str().to_owned(), now_ms);
    }
    let transition = milliseconds(transition);
    ledger.last_observed_ms.retain(|_, at| now_ms.saturating_sub(*at) < transition || *at == now_ms);
    let conditions =
        Condition::ALL.into_iter().filter(|one| ledger.last_observed_ms.contains_key(one.as_str())).collect();

    let outlasted = |threshold: &&Threshold| {
        let first = ledger.first_observed_ms.get(&key(threshold)).copied().unwrap_or(now_ms);
        now_ms.saturating_sub(first) >= milliseconds(threshold.grace_period)
    };
    let mut actionable: Vec<Threshold> = met.iter().filter(outlasted).copied().collect();
    ledger.met = actionable.iter().map(key).collect();
    // The same reading evicts no second pod.
    actionable.retain(|threshold| {
        let at = seen.get(&threshold.signal).map_or(0, |reading| milliseconds(reading.at));
        at > ledger.read_before_ms || ledger.read_before_ms == 0
    });
    actionable.sort_by_key(|threshold| memory_last(threshold.signal));
    Judgement { conditions, met, actionable }
}

/// How long a threshold that is met has to wait yet. `None`: it is not met.
pub fn until_outlasted(threshold: &Threshold, ledger: &Ledger, now: Duration) -> Option<Duration> {
    if ledger.first_observed_ms.is_empty() {
        return None;
    }
    let first = Duration::from_millis(*ledger.first_observed_ms.get(&key(threshold))?);
    Some(threshold.grace_period.saturating_sub(now.saturating_sub(first)))
}

/// What was read until now says nothing of what is left from now on: something was evicted or reclaimed.
pub fn begin_anew(ledger: &mut Ledger, now: Duration) {
    ledger.read_before_ms = milliseconds(now);
}

#[cfg(test)]
mod tests {
    use bulkhead_types::Quantity;
    use proptest::prelude::*;

    use super::*;
    use crate::signals::observation::Observation;

    const MEMORY: Signal = Signal::MemoryAvailable;
    const DISK: Signal = Signal::NodeFsAvailable;
    const TRANSITION: Duration = Duration::from_secs(300);

    fn threshold(signal: Signal, amount: i64, grace: u64, reclaim: Option<i64>) -> Threshold {
        let limit = |amount| Limit::Quantity(Quantity::from_i64(amount));
        Threshold {
            signal,
            limit: limit(amount),
            grace_period: Duration::from_secs(grace),
            min_reclaim: reclaim.map(limit),
        }
    }

    fn seen(of: &[(Signal, i64)], second: u64) -> Observations {
        let at = Duration::from_secs(second);
        of.iter()
            .map(|(signal, available)| (*signal, Observation { available: *available, capacity: 1000, at }))
            .collect()
    }

    fn pass(thresholds: &[Threshold], readings: &[(Signal, i64)], ledger: &mut Ledger, second: u64) -> Judgement {
        let seen = seen(readings, second);
        judge(thresholds, &seen, ledger, Duration::from_secs(second), TRANSITION)
    }

    #[test]
    fn a_soft_threshold_waits_and_its_condition_does_not() {
        let soft = [threshold(MEMORY, 100, 30, None)];
        let mut ledger = Ledger::default();
        assert_eq!(pass(&soft, &[(MEMORY, 100)], &mut ledger, 0), Judgement::default(), "not below");
        let first = pass(&soft, &[(MEMORY, 99)], &mut ledger, 10);
        assert_eq!((first.actionable.len(), first.conditions), (0, [Condition::Memory].into()));
        assert!(pass(&soft, &[(MEMORY, 50)], &mut ledger, 39).actionable.is_empty());
        let left = |ledger: &Ledger| until_outlasted(&soft[0], ledger, Duration::from_secs(39));
        assert_eq!((left(&ledger), left(&Ledger::default())), (Some(Duration::from_secs(1)), None));
        // A restart between: the ledger was on the disk.
        let text = serde_json::to_vec(&ledger).unwrap();
        let mut ledger: Ledger = serde_json::from_slice(&text).unwrap();
        assert_eq!(pass(&soft, &[(MEMORY, 50)], &mut ledger, 40).actionable, soft);
        assert!(pass(&soft, &[(MEMORY, 100)], &mut ledger, 50).actionable.is_empty());
        let again = pass(&soft, &[(MEMORY, 50)], &mut ledger, 51);
        assert!(again.actionable.is_empty(), "the grace period begins anew");
    }

    #[test]
    fn a_condition_stays_for_the_transition_period() {
        let hard = [threshold(MEMORY, 100, 0, None)];
        let mut ledger = Ledger::default();
        assert!(pass(&hard, &[(MEMORY, 99)], &mut ledger, 0).conditions.contains(&Condition::Memory));
        for second in [1, 150, 299] {
            let judgement = pass(&hard, &[(MEMORY, 500)], &mut ledger, second);
            assert!(judgement.actionable.is_empty() && judgement.conditions.contains(&Condition::Memory));
        }
        assert!(pass(&hard, &[(MEMORY, 500)], &mut ledger, 300).conditions.is_empty());
    }

    #[test]
    fn the_minimum_reclaim_counts_once_a_threshold_was_acted_on() {
        let hard = [threshold(DISK, 100, 0, Some(50))];
        let mut ledger = Ledger::default();
        assert!(pass(&hard, &[(DISK, 149)], &mut ledger, 0).met.is_empty(), "not yet");
        assert_eq!(pass(&hard, &[(DISK, 99)], &mut ledger, 1).actionable, hard);
        assert_eq!(pass(&hard, &[(DISK, 149)], &mut ledger, 2).actionable, hard, "freed too little");
        assert!(pass(&hard, &[(DISK, 150)], &mut ledger, 3).met.is_empty());
        assert!(pass(&hard, &[(DISK, 149)], &mut ledger, 4).met.is_empty());
    }

    #[test]
    fn memory_comes_first_and_readings_from_before_an_eviction_make_no_second_one() {
        let hard = [threshold(DISK, 100, 0, None), threshold(MEMORY, 100, 0, None)];
        let mut ledger = Ledger::default();
        let both = pass(&hard, &[(DISK, 1), (MEMORY, 1)], &mut ledger, 5);
        assert_eq!(both.actionable.iter().map(|t| t.signal).collect::<Vec<_>>(), [MEMORY, DISK]);
        // A pod was evicted, which took until now.
        begin_anew(&mut ledger, Duration::from_secs(6));
        let old = seen(&[(DISK, 1), (MEMORY, 1)], 5);
        let judgement = judge(&hard, &old, &mut ledger, Duration::from_secs(6), TRANSITION);
        assert!(judgement.actionable.is_empty(), "nothing was read since");
        assert_eq!(judgement.conditions, [Condition::Memory, Condition::Disk].into());
        assert_eq!(pass(&hard, &[(MEMORY, 1)], &mut ledger, 7).actionable.len(), 1);
    }

    #[test]
    fn an_unknown_signal_meets_nothing() {
        let hard = [threshold(DISK, 100, 0, None)];
        let mut ledger = Ledger::default();
        assert_eq!(pass(&hard, &[(DISK, 1)], &mut ledger, 0).actionable, hard);
        let unknown = pass(&hard, &[(MEMORY, 1)], &mut ledger, 1);
        assert!(unknown.actionable.is_empty() && unknown.conditions.contains(&Condition::Disk), "as it was");
    }

    proptest! {
        /// Whatever is read and whenever: what is acted on is met, and a condition never goes before its time.
        #[test]
        fn no_condition_flaps(readings in prop::collection::vec((0..200_i64, 1..200_u64), 1..40), grace in 0..60_u64) {
            let hard = [threshold(MEMORY, 100, grace, Some(20))];
            let mut ledger = Ledger::default();
            let (mut second, mut observed, mut nearly) = (1000_u64, None, None);
            for (available, step) in readings {
                second += step;
                let judgement = pass(&hard, &[(MEMORY, available)], &mut ledger, second);
                if available < 100 {
                    observed = Some(second);
                }
                if available < 120 {
                    nearly = Some(second);
                }
                prop_assert!(judgement.actionable.is_empty() || available < 120);
                let must = observed.is_some_and(|at| second - at < TRANSITION.as_secs());
                prop_assert!(!must || judgement.conditions.contains(&Condition::Memory));
                // Above the threshold and its reclaim nothing is observed.
                let may = nearly.is_some_and(|at| second - at < TRANSITION.as_secs());
                prop_assert!(may || judgement.conditions.is_empty());
            }
        }
    }
}
