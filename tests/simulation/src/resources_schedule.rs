//! Workload and faults of family `resources`: pods that have devices and CPUs for themselves, and a device plugin that dies, fails, is
//! late, and whose devices fall ill.

use serde::{Deserialize, Serialize};

use crate::dice::Dice;
use crate::schedule::{CALM, Deed, Program, STOPPED_BY, Shape, Step, shape, small};

/// The plugin registers in the first seconds; a pod that comes before any plugin did asks for something that nobody knows.
const FIRST: u64 = 5_000;

/// What becomes of the next call of the plugin that is about devices of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PluginFault {
    /// It does nothing, and answers with an error.
    Fails,
    /// No answer comes.
    AnswerLost,
    /// It answers so many milliseconds later.
    Late { by: u64 },
    /// It dies before it answers, and starts again after so many milliseconds.
    Dies { down: u64 },
    /// kubelet-syncd dies before it has the answer.
    SyncdDies,
}

/// Pods come, end, are edited and go; together they want more than there is at times. Once all that is not wanted has ended, somebody
/// wants the rest.
pub(crate) fn workload(dice: &mut Dice, steps: &mut Vec<Step>) {
    let calm = u64::try_from(CALM.as_millis()).unwrap_or(u64::MAX);
    for number in 0..dice.between(2, 5) {
        let pod = format!("d{number}");
        let mut at = FIRST + if dice.percent(40) { dice.below(50) } else { dice.below(calm / 3) };
        steps.push(Step { at, deed: Deed::Write { pod: pod.clone(), shape: with_resources(dice) } });
        let mut there = true;
        for _ in 0..dice.below(5) {
            at += if dice.percent(30) { dice.between(1, 200) } else { dice.between(200, calm / 3) };
            if at >= calm {
                break;
            }
            let deed = match there && dice.percent(60) {
                true => Deed::Remove { pod: pod.clone() },
                false => Deed::Write { pod: pod.clone(), shape: with_resources(dice) },
            };
            there = !matches!(deed, Deed::Remove { .. });
            steps.push(Step { at, deed });
        }
    }
    let at = u64::try_from(STOPPED_BY.as_millis()).unwrap_or(u64::MAX).saturating_add(20_000);
    steps.push(Step { at, deed: Deed::Claim });
}

fn with_resources(dice: &mut Dice) -> Shape {
    let mut made = if dice.percent(60) { small(dice) } else { shape(dice) };
    let (devices, cpus) = (dice.percent(75), dice.percent(45));
    for container in made.init.iter_mut().chain(&mut made.containers) {
        if devices && dice.percent(65) {
            container.devices = dice.one_of(1, &[1, 1, 2]);
        }
        if cpus && dice.percent(65) {
            container.cpus = dice.one_of(1, &[1, 2]);
        }
    }
    made
}

fn plugin_fault(dice: &mut Dice) -> PluginFault {
    match dice.below(8) {
        0 | 1 => PluginFault::Fails,
        2 => PluginFault::AnswerLost,
        3 | 4 => PluginFault::Late { by: dice.one_of(1_000, &[10_000, 60_000, 150_000]) },
        5 => PluginFault::Dies { down: dice.one_of(200, &[1_000, 5_000, 30_000]) },
        _ => PluginFault::SyncdDies,
    }
}

/// Nothing happens but that the plugin dies and comes back in time, or a device falls ill, and that a pod comes meanwhile.
fn absences(dice: &mut Dice, steps: &mut Vec<Step>) {
    let first = |pod: &String| pod == "d0";
    steps.retain(|step| match &step.deed {
        Deed::Write { pod, .. } | Deed::Remove { pod } => first(pod),
        other => other.is_workload(),
    });
    for number in 0..dice.between(1, 2) {
        let at = FIRST + number * 80_000 + dice.below(60_000);
        let down = dice.one_of(1_000, &[5_000, 20_000]);
        let (fault, later, devices) = match dice.percent(40) {
            // Most of those that are left.
            true => (Deed::Sicken { pick: dice.draw(), lasts: 60_000 }, dice.between(12_000, 55_000), 3),
            false => (Deed::KillPlugin { down }, dice.below(down), 1),
        };
        steps.push(Step { at, deed: fault });
        let mut shape = small(dice);
        if let Some(container) = shape.containers.first_mut() {
            container.devices = devices;
        }
        steps.push(Step { at: at + later, deed: Deed::Write { pod: format!("w{number}"), shape } });
    }
}

/// Four in five runs have faults of the plugin, and most of them others beside.
pub(crate) fn faults(dice: &mut Dice, steps: &mut Vec<Step>) {
    if dice.percent(20) {
        return;
    }
    if dice.percent(20) {
        return absences(dice, steps);
    }
    let calm = u64::try_from(CALM.as_millis()).unwrap_or(u64::MAX);
    for _ in 0..dice.between(1, 6) {
        let deed = match dice.below(13) {
            // Whoever was given something is looked at anew.
            10.. => Deed::KillSyncd { down: dice.one_of(20, &[200, 5_000]) },
            0..=3 => Deed::KillPlugin { down: dice.one_of(20, &[1_000, 5_000, 20_000, 60_000]) },
            4 | 5 => Deed::Sicken { pick: dice.draw(), lasts: dice.one_of(200, &[5_000, 20_000, 60_000]) },
            6 => Deed::Stop { program: Program::Plugin, lasts: dice.one_of(200, &[2_000, 15_000, 40_000]) },
            _ => Deed::Plugin { fault: plugin_fault(dice) },
        };
        steps.push(Step { at: dice.between(FIRST, calm - 1), deed });
    }
}
