//! Probes by a command, and what the command finds.

use serde::{Deserialize, Serialize};

use crate::dice::Dice;
use crate::schedule::{Deed, Step};

/// What a probe is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ProbeKind {
    Startup,
    Liveness,
    Readiness,
}

impl ProbeKind {
    pub const ALL: [ProbeKind; 3] = [ProbeKind::Startup, ProbeKind::Liveness, ProbeKind::Readiness];

    /// As a container's field begins.
    pub fn name(self) -> &'static str {
        match self {
            ProbeKind::Startup => "startup",
            ProbeKind::Liveness => "liveness",
            ProbeKind::Readiness => "readiness",
        }
    }
}

/// A probe by a command, and what the command finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeShape {
    pub kind: ProbeKind,
    /// It passes from so many milliseconds after the container's start on.
    pub passes_after: u64,
    /// And fails again from then on. None: never.
    pub fails_after: Option<u64>,
    /// Seconds.
    pub period: u64,
    /// Failures in a row.
    pub threshold: u64,
}

impl ProbeShape {
    /// As words of a command, which the model of the runtime reads from the request.
    pub fn words(self) -> Vec<String> {
        let fails = self.fails_after.map_or_else(|| "never".to_owned(), |after| after.to_string());
        vec!["probe".to_owned(), self.kind.name().to_owned(), self.passes_after.to_string(), fails]
    }

    /// Whether it passes so many milliseconds after the container's start.
    pub fn passes(&self, since: u64) -> bool {
        since >= self.passes_after && self.fails_after.is_none_or(|after| since < after)
    }
}

/// Most containers that run on get probes.
pub(crate) fn probes(dice: &mut Dice, steps: &mut [Step]) {
    for step in steps {
        let Deed::Write { shape, .. } = &mut step.deed else { continue };
        let sidecars = shape.init.iter_mut().filter(|container| container.sidecar);
        for container in sidecars.chain(&mut shape.containers) {
            for kind in ProbeKind::ALL {
                if !dice.percent(45) {
                    continue;
                }
                let fails = dice.percent(if kind == ProbeKind::Readiness { 40 } else { 15 });
                let passes_after = if dice.percent(50) { 0 } else { dice.below(20_000) };
                container.probes.push(ProbeShape {
                    kind,
                    passes_after,
                    fails_after: fails.then(|| passes_after + dice.between(1_000, 120_000)),
                    period: dice.one_of(1, &[2, 10]),
                    threshold: dice.one_of(3, &[1, 2]),
                });
            }
        }
    }
}
