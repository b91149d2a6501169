//! One probe of one container as a state machine: when it is made, what its results come to, when it is not made any more.
//!
//! Pure. The rules are upstream's (`pkg/kubelet/prober/worker.go`), with one difference: results are counted anew for
//! each instance of the container, so that what an earlier one did ends none that has only begun.
//!
//! ```text
//!            new instance              threshold of failures (liveness),
//!   no instance -------> probing ---------------------------------------> on hold
//!                          ^                or of either (startup)          |
//!                          +------------------------------------------------+
//!                                          new instance
//! ```

use std::time::{Duration, SystemTime};

use bulkhead_types::ContainerId;
use serde::{Deserialize, Serialize};

use super::results::ProbeResult;

/// What a probe decides about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ProbeKind {
    Startup,
    Readiness,
    Liveness,
}

impl ProbeKind {
    pub const ALL: [ProbeKind; 3] = [ProbeKind::Startup, ProbeKind::Readiness, ProbeKind::Liveness];

    /// As events and metrics have it.
    pub const fn as_str(self) -> &'static str {
        match self {
            ProbeKind::Startup => "Startup",
            ProbeKind::Readiness => "Readiness",
            ProbeKind::Liveness => "Liveness",
        }
    }

    /// What counts before the first result.
    const fn initial(self) -> ProbeResult {
        match self {
            ProbeKind::Startup => ProbeResult::Unknown,
            ProbeKind::Readiness => ProbeResult::Failure,
            ProbeKind::Liveness => ProbeResult::Success,
        }
    }
}

/// The numbers of a probe's spec.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    pub initial_delay: Duration,
    pub success_threshold: u32,
    pub failure_threshold: u32,
}

/// What is remembered of one instance; it outlives this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Memory {
    pub container: ContainerId,
    /// What is published; None: nothing yet.
    pub result: Option<ProbeResult>,
    /// The last result, and how often in a row it came; the count stops at the threshold.
    pub last: Option<ProbeOutcome>,
    pub run: u32,
    /// Nothing is probed until there is another instance.
    pub on_hold: bool,
}

/// What one probe came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProbeOutcome {
    Success,
    Failure,
}

/// What a container's instance does, by the pod's status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TargetState {
    /// Neither has it ended for good nor does it run.
    Waiting,
    /// None: nobody knows since when.
    Running {
        since: Option<SystemTime>,
    },
    Ended {
        restarts: bool,
    },
}

/// The instance that is probed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    pub id: ContainerId,
    pub state: TargetState,
    /// `started` of the status.
    pub started: bool,
}

/// What a tick sees.
#[derive(Debug, Clone, Copy)]
pub struct Sight<'a> {
    /// The pod's phase is one that it does not leave.
    pub pod_is_over: bool,
    pub pod_is_deleted: bool,
    /// None: the container has not been made.
    pub target: Option<&'a Target>,
    /// When this process began.
    pub began: SystemTime,
    pub now: SystemTime,
}

/// What is done at a tick.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tick {
    Wait,
    Probe,
    /// Never again.
    End,
}

/// A container that ran this long before this process began was probed by an earlier one (upstream
/// `kubeletRestartGracePeriod`).
const OLDER_BY: Duration = Duration::from_secs(10);

/// One probe of one container of one pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Worker {
    kind: ProbeKind,
    rules: Rules,
    memory: Option<Memory>,
}

impl Worker {
    pub fn new(kind: ProbeKind, rules: Rules) -> Self {
        Worker { kind, rules, memory: None }
    }

    pub fn kind(&self) -> ProbeKind {
        self.kind
    }

    pub fn memory(&self) -> Option<&Memory> {
        self.memory.as_ref()
    }

    /// What is published, and of which instance.
    pub fn published(&self) -> Option<(&ContainerId, ProbeResult)> {
        let memory = self.memory.as_ref()?;
        Some((&memory.container, memory.result?))
    }

    /// The time for a probe has come. `restored` gives what an earlier process knew of an instance.
    pub fn tick(&mut self, sight: &Sight<'_>, restored: impl FnOnce(&ContainerId) -> Option<Memory>) -> Tick {
        if sight.pod_is_over {
            return Tick::End;
        }
        let Some(target) = sight.target else { return Tick::Wait };
        if self.memory.as_ref().is_none_or(|memory| memory.container != target.id) {
            self.memory = Some(restored(&target.id).unwrap_or_else(|| self.begin(target, sight.began)));
        }
        let Some(memory) = &mut self.memory else { return Tick::Wait };
        if memory.on_hold {
            return Tick::Wait;
        }
        let since = match target.state {
            TargetState::Running { since } => since,
            // It may be made and not started yet: it is not ready, and nothing has failed for which it would be killed as soon as it
            // runs. (Upstream tells no status in the middle of a start, and so need not tell these apart.)
            TargetState::Waiting => {
                if self.kind == ProbeKind::Readiness {
                    memory.result = Some(ProbeResult::Failure);
                }
                return Tick::Wait;
            }
            TargetState::Ended { restarts } => {
                memory.result = Some(ProbeResult::Failure);
                return if restarts { Tick::Wait } else { Tick::End };
            }
        };
        if sight.pod_is_deleted && self.kind != ProbeKind::Readiness {
            // It ends quietly.
            memory.result = Some(ProbeResult::Success);
            return Tick::End;
        }
        let age = since.and_then(|since| sight.now.duration_since(since).ok());
        if self.rules.initial_delay > Duration::ZERO && age.is_none_or(|age| age < self.rules.initial_delay) {
            return Tick::Wait;
        }
        // The startup probe stays for the next instance; the others wait for it.
        if target.started == (self.kind == ProbeKind::Startup) { Tick::Wait } else { Tick::Probe }
    }

    fn begin(&self, target: &Target, began: SystemTime) -> Memory {
        let is_old = match target.state {
            TargetState::Running { since: Some(since) } => since.checked_add(OLDER_BY).is_some_and(|t| t < began),
            _ => false,
        };
        let result = if self.kind == ProbeKind::Startup && target.started {
            Some(ProbeResult::Success)
        } else if is_old {
            // Whatever was said of it stays said until there is a result.
            None
        } else {
            Some(self.kind.initial())
        };
        Memory { container: target.id.clone(), result, last: None, run: 0, on_hold: false }
    }

    /// A probe has ended with a result. An error of the prober is none and is not told here.
    pub fn done(&mut self, verdict: ProbeOutcome) {
        let Some(memory) = &mut self.memory else { return };
        let (threshold, result) = match verdict {
            ProbeOutcome::Success => (self.rules.success_threshold, ProbeResult::Success),
            ProbeOutcome::Failure => (self.rules.failure_threshold, ProbeResult::Failure),
        };
        if memory.last != Some(verdict) {
            memory.last = Some(verdict);
            memory.run = 0;
        }
        memory.run = memory.run.saturating_add(1).min(threshold.max(1));
        if memory.run < threshold {
            return;
        }
        memory.result = Some(result);
        if self.kind == ProbeKind::Startup || (self.kind == ProbeKind::Liveness && verdict == ProbeOutcome::Failure) {
            memory.on_hold = true;
            memory.run = 0;
        }
    }
}

#[cfg(test)]
#[path = "worker_tests.rs"]
mod tests;
