//! Workload and faults of family `volumes`: pods with claims, and a CSI driver that hangs, fails, dies and answers what is not so.

use serde::{Deserialize, Serialize};

use crate::dice::Dice;
use crate::schedule::{CALM, Deed, Program, Shape, Step, shape, small};

/// What a pod claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Claim {
    /// ReadWriteOnce: pods of one node may share it.
    Once,
    /// The same, another volume.
    AlsoOnce,
    /// ReadWriteMany.
    Many,
    /// ReadWriteOncePod.
    OncePod,
    /// Of a generic ephemeral volume: the claim is the pod's own, and comes and goes with it.
    Own,
}

impl Claim {
    /// Those that are there from the beginning.
    pub const SHARED: [Claim; 4] = [Claim::Once, Claim::AlsoOnce, Claim::Many, Claim::OncePod];

    /// The claim's name; of [`Claim::Own`] the volume's, as the claim is named by its pod as well.
    pub fn name(self) -> &'static str {
        match self {
            Claim::Once => "once",
            Claim::AlsoOnce => "also-once",
            Claim::Many => "many",
            Claim::OncePod => "once-pod",
            Claim::Own => "own",
        }
    }

    pub fn access_mode(self) -> &'static str {
        match self {
            Claim::Once | Claim::AlsoOnce | Claim::Own => "ReadWriteOnce",
            Claim::Many => "ReadWriteMany",
            Claim::OncePod => "ReadWriteOncePod",
        }
    }

    /// The PersistentVolume that a pod of this uid gets; it is its handle as well.
    pub fn volume_of(self, uid: &str) -> String {
        match self {
            Claim::Own => format!("pv-own-{uid}"),
            other => format!("pv-{}", other.name()),
        }
    }
}

/// What becomes of the next change that is asked of the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum DriverFault {
    /// It does nothing, and answers with this code (gRPC's number).
    Fails { code: i32 },
    /// It does it, and answers with a code that leaves open whether it has.
    Unsure { code: i32 },
    /// It does it, and no answer comes.
    AnswerLost,
    /// It does it so many milliseconds later, whoever waits then. Meanwhile it takes nothing else for this volume.
    Late { by: u64 },
    /// It dies before it is done, or when it is done and before the answer, and starts again after so many milliseconds.
    Dies { done: bool, down: u64 },
    /// kubelet-syncd dies before it is done, or when it is done and before it has the answer.
    SyncdDies { done: bool },
}

/// Pods come early, share claims, end, are replaced by others of their names, and are deleted by force.
pub(crate) fn workload(dice: &mut Dice, steps: &mut Vec<Step>) {
    lives(dice, steps, "v", 30, with_claims);
}

/// The lives of pods whose names begin with `prefix`: of those that are replaced, so many per cent are by force.
pub(crate) fn lives(dice: &mut Dice, steps: &mut Vec<Step>, prefix: &str, force: u64, made: fn(&mut Dice) -> Shape) {
    let calm = u64::try_from(CALM.as_millis()).unwrap_or(u64::MAX);
    for number in 0..dice.between(1, 4) {
        let pod = format!("{prefix}{number}");
        let mut at = if dice.percent(30) { 0 } else { dice.below(calm / 3) };
        steps.push(Step { at, deed: Deed::Create { pod: pod.clone(), shape: made(dice) } });
        for _ in 0..dice.below(5) {
            at += if dice.percent(30) { dice.between(1, 200) } else { dice.between(200, calm / 3) };
            if at >= calm {
                break;
            }
            let deed = match dice.below(8) {
                0..=2 => Deed::Delete { pod: pod.clone(), grace: None },
                3 => Deed::Delete { pod: pod.clone(), grace: Some(dice.one_of(0, &[0, 1, 5])) },
                4 => Deed::Create { pod: pod.clone(), shape: made(dice) },
                _ => Deed::Replace { pod: pod.clone(), shape: made(dice), force: dice.percent(force) },
            };
            steps.push(Step { at, deed });
        }
    }
}

fn with_claims(dice: &mut Dice) -> Shape {
    let mut made = if dice.percent(50) { small(dice) } else { shape(dice) };
    let all = [Claim::Once, Claim::AlsoOnce, Claim::Many, Claim::OncePod, Claim::Own];
    made.claims = all.into_iter().filter(|_| dice.percent(35)).collect();
    if made.claims.is_empty() {
        made.claims.push(Claim::Once);
    }
    made
}

fn driver_fault(dice: &mut Dice) -> DriverFault {
    use tonic::Code;
    let open = [Code::Aborted, Code::Unavailable, Code::ResourceExhausted].map(i32::from);
    let unsure = dice.one_of(i32::from(Code::DeadlineExceeded), &open);
    let down = dice.one_of(200, &[1_000, 5_000, 30_000]);
    match dice.below(12) {
        0 | 1 => DriverFault::Fails { code: Code::Internal.into() },
        2 => DriverFault::Fails { code: unsure },
        3 | 4 => DriverFault::Unsure { code: unsure },
        5 | 6 => DriverFault::AnswerLost,
        7 | 8 => DriverFault::Late { by: dice.one_of(1_000, &[10_000, 60_000, 150_000]) },
        9 => DriverFault::Dies { done: dice.percent(70), down },
        _ => DriverFault::SyncdDies { done: dice.percent(70) },
    }
}

/// Four in five runs have faults of the driver beside the others.
pub(crate) fn faults(dice: &mut Dice, steps: &mut Vec<Step>) {
    if dice.percent(20) {
        return;
    }
    let calm = u64::try_from(CALM.as_millis()).unwrap_or(u64::MAX);
    for _ in 0..dice.between(1, 6) {
        let deed = match dice.below(10) {
            0 => Deed::KillDriver { down: dice.one_of(20, &[1_000, 5_000, 30_000]) },
            1 => Deed::Stop { program: Program::Driver, lasts: dice.one_of(200, &[2_000, 15_000, 40_000]) },
            _ => Deed::Driver { fault: driver_fault(dice) },
        };
        steps.push(Step { at: dice.below(calm), deed });
    }
}
