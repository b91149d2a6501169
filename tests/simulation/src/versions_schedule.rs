//! Faults of versions: a process is replaced by another version of it, and the others stay what they are, until all are the same again.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::dice::Dice;
use crate::schedule::{CALM, Deed, Family, Program, Step};

/// Which version a process is of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Age {
    /// The last one that was released: it lacks what came since.
    Before,
    /// That of the source.
    #[default]
    Same,
    /// A later one: it says what nobody knows.
    After,
}

/// A process ends, and another version of it begins after so many milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionDeed {
    pub program: Program,
    pub age: Age,
    pub down: u64,
}

impl VersionDeed {
    /// Its name, for counting.
    pub fn kind(&self) -> &'static str {
        match self.age {
            Age::Before => "version-before",
            Age::Same => "version-same",
            Age::After => "version-after",
        }
    }
}

impl fmt::Display for VersionDeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = match self.age {
            Age::Before => "the version before",
            Age::Same => "this version",
            Age::After => "a later version",
        };
        write!(f, "{} is replaced by {version}, away for {} ms", self.program.name(), self.down)
    }
}

/// A quarter of the runs of these families have other versions for a time: one process, or all of them, one after the other.
pub(crate) fn faults(dice: &mut Dice, steps: &mut Vec<Step>, family: Family) {
    let programs: &[Program] = match family {
        Family::Pods | Family::Resources => &[Program::Syncd, Program::Volnetd],
        Family::Api | Family::Volumes | Family::Claims => &[Program::Syncd, Program::Volnetd, Program::Statusd],
        Family::Eviction => &[Program::Syncd, Program::Volnetd, Program::Statusd, Program::Evictiond],
        Family::Probes | Family::Many => return,
    };
    if !dice.percent(25) {
        return;
    }
    let calm = u64::try_from(CALM.as_millis()).unwrap_or(u64::MAX);
    let age = dice.one_of(Age::Before, &[Age::After]);
    let all = dice.percent(40);
    let only = usize::try_from(dice.below(programs.len() as u64)).unwrap_or(0);
    let begins = if dice.percent(40) { 0 } else { dice.below(calm / 2) };
    for (place, program) in programs.iter().enumerate() {
        if !all && place != only {
            continue;
        }
        let ends = begins + dice.between(2_000, calm / 2 - 1_000);
        for (at, age) in [(begins, age), (ends, Age::Same)] {
            let deed = VersionDeed { program: *program, age, down: dice.one_of(100, &[1_000, 5_000]) };
            steps.push(Step { at, deed: Deed::Version { deed } });
        }
    }
}
