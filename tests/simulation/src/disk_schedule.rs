//! Faults of the disk on which processes keep their state: the power goes with all that was not synced, there is no room, syncing takes
//! its time, or fails.

use std::fmt;

use bulkhead_simulation_kernel as kernel;
use serde::{Deserialize, Serialize};

use crate::dice::Dice;
use crate::pressure_schedule::PressureDeed;
use crate::schedule::{CALM, Deed, Family, Step};

/// What fails once, with EIO.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum DiskFailure {
    /// Writing into a state file.
    Write,
    /// Syncing it.
    Sync,
    /// Syncing the folder, when the new file has its name already.
    SyncFolder,
}

impl From<DiskFailure> for kernel::Failure {
    fn from(failure: DiskFailure) -> Self {
        match failure {
            DiskFailure::Write => kernel::Failure::Write,
            DiskFailure::Sync => kernel::Failure::Sync,
            DiskFailure::SyncFolder => kernel::Failure::SyncFolder,
        }
    }
}

/// What the disk does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum DiskDeed {
    /// The node loses its power, and has it again after so many milliseconds.
    PowerCut {
        /// Before the write or sync of a state file that comes after so many others from now on. None: now, when nobody is at one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after: Option<u64>,
        down: u64,
        /// Picks what is there afterwards of what was not synced.
        pick: u64,
    },
    /// There is no room for so many milliseconds.
    Full { lasts: u64 },
    /// Each sync takes so much longer.
    Slow { lasts: u64, by: u64 },
    /// The next one of this kind fails.
    Fails { what: DiskFailure },
}

impl DiskDeed {
    /// Its name, for counting.
    pub fn kind(&self) -> &'static str {
        match self {
            DiskDeed::PowerCut { after: None, .. } => "power-cut",
            DiskDeed::PowerCut { .. } => "power-cut-in-a-write",
            DiskDeed::Full { .. } => "disk-full",
            DiskDeed::Slow { .. } => "disk-slow",
            DiskDeed::Fails { .. } => "disk-failure",
        }
    }
}

impl fmt::Display for DiskDeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DiskDeed::PowerCut { after: None, down, .. } => write!(f, "the node loses its power for {down} ms"),
            DiskDeed::PowerCut { after: Some(after), down, .. } => {
                write!(f, "the node is to lose its power for {down} ms, {after} steps of writing state from now")
            }
            DiskDeed::Full { lasts } => write!(f, "the disk of the state files is full for {lasts} ms"),
            DiskDeed::Slow { lasts, by } => write!(f, "each sync of a state file takes {by} ms for {lasts} ms"),
            DiskDeed::Fails { what } => write!(f, "the disk is to fail once: {what:?}"),
        }
    }
}

/// Families whose node loses its power: in the others it is the same as in `Pods`, or not modelled what else is lost with it.
fn has_disk_faults(family: Family) -> bool {
    matches!(family, Family::Pods | Family::Api | Family::Resources | Family::Eviction | Family::Volumes)
}

/// Two in five runs of these families have some.
pub(crate) fn faults(dice: &mut Dice, steps: &mut Vec<Step>, family: Family) {
    if !has_disk_faults(family) || !dice.percent(40) {
        return;
    }
    let calm = u64::try_from(CALM.as_millis()).unwrap_or(u64::MAX);
    let times: Vec<u64> = steps.iter().map(|step| step.at).filter(|at| *at < calm).collect();
    let is_short =
        |step: &&Step| matches!(step.deed, Deed::Pressure { deed: PressureDeed::Elsewhere { disk: 1.., .. } });
    let short: Vec<u64> = steps.iter().filter(is_short).map(|step| step.at).collect();
    for _ in 0..dice.between(1, 3) {
        let some_time = dice.one_of(1_000, &[5_000, 20_000, 40_000]);
        let (pick, down) = (dice.draw(), dice.one_of(1_000, &[15_000]));
        let mut at = dice.below(calm);
        let deed = match dice.below(10) {
            0 | 1 => DiskDeed::PowerCut { after: None, down, pick },
            2..=5 => {
                // State is written after something has happened: each time a file is written, synced, and its folder is.
                let place = usize::try_from(dice.below(times.len() as u64)).unwrap_or(0);
                at = times.get(place).copied().unwrap_or(at);
                DiskDeed::PowerCut { after: Some(dice.below(9)), down, pick }
            }
            6 | 7 => {
                // Who runs out of disk mostly does so everywhere.
                let place = usize::try_from(dice.below(short.len() as u64)).unwrap_or(0);
                at = short.get(place).copied().unwrap_or(at);
                DiskDeed::Full { lasts: dice.one_of(1_000, &[10_000, 40_000, 100_000]) }
            }
            8 => DiskDeed::Slow { lasts: some_time, by: dice.one_of(50, &[500, 3_000]) },
            _ => {
                let what = dice.one_of(DiskFailure::Write, &[DiskFailure::Sync, DiskFailure::SyncFolder]);
                DiskDeed::Fails { what }
            }
        };
        steps.push(Step { at, deed: Deed::Disk { deed } });
    }
}
