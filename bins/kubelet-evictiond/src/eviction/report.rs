//! What the operator is shown of the eviction manager: every signal beside its thresholds, what it waits for, whom it evicted.

use std::collections::BTreeSet;
use std::time::Duration;

use bulkhead_config::eviction::{Limit, Signal, Threshold};
use bulkhead_ipc::evictiond::{HistoryPoint, PodEvicted, PressureReport, SignalState, ThresholdState};

use super::hold::Hold;
use super::judge::{self, Judgement};
use super::manager::Manager;
use super::next;
use super::pressure::Report;
use crate::pods::PodSource;
use crate::runtime::RuntimeSource;
use crate::signals::thresholds::Layout;

impl<P: PodSource, R: RuntimeSource> Manager<P, R> {
    /// What the operator sees.
    pub(super) fn show(&self, judgement: &Judgement) {
        let now = bulkhead_sys::clock::since_boot();
        let in_force = self.in_force();
        let signals = Signal::ALL.into_iter().map(|signal| {
            let reading = self.seen.get(&signal);
            let of_signal = in_force.iter().filter(|threshold| threshold.signal == signal);
            let thresholds = of_signal.map(|threshold| {
                let first = self.ledger.first_observed_ms.get(&judge::key(threshold));
                let met_for = first.map(|at| now.saturating_sub(Duration::from_millis(*at)));
                ThresholdState {
                    limit: match threshold.limit {
                        Limit::Quantity(quantity) => quantity.to_string(),
                        Limit::Fraction(fraction) => format!("{}%", fraction * 100.0),
                    },
                    required: reading.map(|reading| judge::required(threshold, reading.capacity, false)),
                    grace_period_seconds: threshold.grace_period.as_secs_f64(),
                    minimum_reclaim: reading
                        .and_then(|reading| threshold.min_reclaim.map(|limit| limit.absolute(reading.capacity))),
                    met: judgement.met.contains(threshold),
                    met_for_seconds: met_for.unwrap_or_default().as_secs_f64(),
                }
            });
            SignalState {
                signal: signal.as_str().to_owned(),
                available: reading.map(|reading| reading.available),
                capacity: reading.map(|reading| reading.capacity),
                age_seconds: reading.map_or(0.0, |reading| now.saturating_sub(reading.at).as_secs_f64()),
                fall_per_second: self.falls.newest(signal),
                thresholds: thresholds.collect(),
                least_available: self.history.of(signal, now).into_iter().map(|least| HistoryPoint { least }).collect(),
            }
        });
        let layout = match self.files.layout() {
            None => "",
            Some(Layout::Single) => "single",
            Some(Layout::ImageFs) => "imagefs",
            Some(Layout::Split) => "split",
        };
        let evicted = self
            .evicted
            .iter()
            .map(|(evicted, at)| PodEvicted { age_seconds: at.elapsed().as_secs_f64(), ..evicted.clone() });
        let pressure = PressureReport {
            signals: signals.collect(),
            file_systems: layout.to_owned(),
            doing: self.doing(judgement),
            evicted: evicted.collect(),
            ..PressureReport::default()
        };
        let layout = self.files.layout().unwrap_or_default();
        let signals = next::nearest(&in_force, &self.seen);
        self.parts.shown.set_report(Report { pressure, signals, layout });
    }

    fn doing(&self, judgement: &Judgement) -> String {
        let waits = |threshold: &&Threshold| !self.ledger.met.contains(&judge::key(threshold));
        if self.is_split_against_the_gate() {
            return "evicts nobody: images and writable layers lie on two file systems, and the gate KubeletSeparateDiskGC is off"
                .to_owned();
        }
        match &self.hold {
            Hold::Pods { uids, .. } => waits_for(uids),
            Hold::Pause { .. } => "has evicted nobody, and looks again in some seconds".to_owned(),
            Hold::Nothing => match judgement.met.iter().find(waits) {
                Some(threshold) => {
                    let grace = threshold.grace_period.as_secs();
                    format!(
                        "{} is below its soft threshold, whose grace period is {grace} s",
                        threshold.signal.as_str()
                    )
                }
                None => String::new(),
            },
        }
    }
}

/// Many pods that exceed their own limits are named by their number alone.
fn waits_for(uids: &BTreeSet<String>) -> String {
    match uids.first().filter(|_| uids.len() == 1) {
        Some(uid) => format!("waits for the end of the evicted pod {uid}"),
        None => format!("waits for the end of {} evicted pods", uids.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_waited_for() {
        let uids = |uids: &[&str]| uids.iter().map(|uid| (*uid).to_owned()).collect();
        assert_eq!(waits_for(&uids(&["a"])), "waits for the end of the evicted pod a");
        assert_eq!(waits_for(&uids(&["a", "b"])), "waits for the end of 2 evicted pods");
    }
}
