//! Workload and faults of family `claims`: pods with ResourceClaims, two DRA drivers that hang, fail, die and leave, and claims that
//! come late or are made anew.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::dice::Dice;
use crate::schedule::{CALM, Deed, Program, Shape, Step, shape, small};

/// A DRA driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Dra {
    One,
    Two,
}

impl Dra {
    pub const ALL: [Dra; 2] = [Dra::One, Dra::Two];

    /// As it registers.
    pub fn name(self) -> &'static str {
        match self {
            Dra::One => "one.simulated",
            Dra::Two => "two.simulated",
        }
    }

    /// As the story calls it.
    pub fn short(self) -> &'static str {
        match self {
            Dra::One => "driver one",
            Dra::Two => "driver two",
        }
    }
}

/// What a pod claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum DeviceClaim {
    /// Shared by name; devices of driver one.
    One,
    /// The same of driver two.
    Two,
    /// The same of both.
    Both,
    /// From a template, with devices of driver one.
    Own,
    /// The same of both.
    OwnBoth,
}

impl DeviceClaim {
    pub const ALL: [DeviceClaim; 5] =
        [DeviceClaim::One, DeviceClaim::Two, DeviceClaim::Both, DeviceClaim::Own, DeviceClaim::OwnBoth];

    /// Those that are there from the beginning.
    pub const SHARED: [DeviceClaim; 3] = [DeviceClaim::One, DeviceClaim::Two, DeviceClaim::Both];

    /// The entry's name in the pod; of those that are shared the object's as well.
    pub fn name(self) -> &'static str {
        match self {
            DeviceClaim::One => "one",
            DeviceClaim::Two => "two",
            DeviceClaim::Both => "both",
            DeviceClaim::Own => "own",
            DeviceClaim::OwnBoth => "own-both",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|claim| claim.name() == name)
    }

    /// It is made from a template.
    pub fn is_own(self) -> bool {
        matches!(self, DeviceClaim::Own | DeviceClaim::OwnBoth)
    }

    /// Its requests, and whose device stands for each.
    pub fn requests(self) -> [(&'static str, Dra); 2] {
        match self {
            DeviceClaim::One | DeviceClaim::Own => [("a", Dra::One), ("b", Dra::One)],
            DeviceClaim::Two => [("a", Dra::Two), ("b", Dra::Two)],
            DeviceClaim::Both | DeviceClaim::OwnBoth => [("a", Dra::One), ("b", Dra::Two)],
        }
    }

    pub fn drivers(self) -> impl Iterator<Item = Dra> {
        Dra::ALL.into_iter().filter(move |driver| self.requests().iter().any(|(_, of)| of == driver))
    }
}

/// Which request of a claim the container of this name is to have; an empty one means all of them, None nothing of it.
pub fn request_of(container: &str) -> Option<&'static str> {
    match container {
        "c0" => Some(""),
        "c1" | "i1" => Some("a"),
        "i0" => Some("b"),
        _ => None,
    }
}

/// What becomes of the next call of a driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum DraFault {
    /// It does nothing, and says so of each claim.
    Refuses,
    /// It does nothing, and answers with a code (gRPC's number).
    Fails { code: i32 },
    /// It does it, and answers of one claim less.
    Skips,
    /// It does it, and no answer comes.
    AnswerLost,
    /// It does it so many milliseconds later, whoever waits then. Meanwhile it does nothing else.
    Late { by: u64 },
    /// It dies before it is done, or when it is done and before the answer, and starts again after so many milliseconds.
    Dies { done: bool, down: u64 },
    /// kubelet-syncd dies before it is done, or when it is done and before it has the answer.
    SyncdDies { done: bool },
    /// The pod that the call is for is deleted when it comes, and it is done so many milliseconds later.
    PodGoes { force: bool, by: u64 },
}

/// What comes up in family `claims` alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClaimsDeed {
    /// A driver is killed, and starts again after so many milliseconds. `leaves`: it takes its socket with it, as one that is removed.
    Kill { driver: Dra, down: u64, leaves: bool },
    /// The next call of a driver.
    Fault { driver: Dra, fault: DraFault },
    /// The cluster's controllers do nothing for so many milliseconds.
    NoControllers { lasts: u64 },
    /// Somebody deletes a claim, and makes another one of its name once it is gone.
    Renew { claim: DeviceClaim },
}

impl ClaimsDeed {
    /// Its name, for counting.
    pub fn kind(&self) -> &'static str {
        match self {
            ClaimsDeed::Kill { .. } => "kill-dra-driver",
            ClaimsDeed::Fault { .. } => "dra-fault",
            ClaimsDeed::NoControllers { .. } => "no-controllers",
            ClaimsDeed::Renew { .. } => "renew-claim",
        }
    }

    /// It is part of the workload, and no fault.
    pub fn is_workload(&self) -> bool {
        matches!(self, ClaimsDeed::Renew { .. })
    }
}

impl fmt::Display for ClaimsDeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClaimsDeed::Kill { driver, down, leaves } => {
                let how = if *leaves { "leaves" } else { "is killed" };
                write!(f, "{} {how} for {down} ms", driver.short())
            }
            ClaimsDeed::Fault { driver, fault } => write!(f, "the next call of {} is to be {fault:?}", driver.short()),
            ClaimsDeed::NoControllers { lasts } => write!(f, "the cluster's controllers do nothing for {lasts} ms"),
            ClaimsDeed::Renew { claim } => write!(f, "somebody makes the claim {} anew", claim.name()),
        }
    }
}

/// Pods come early, share claims, end, are replaced by others of their names, and are deleted by force; claims are made anew.
pub(crate) fn workload(dice: &mut Dice, steps: &mut Vec<Step>) {
    let calm = u64::try_from(CALM.as_millis()).unwrap_or(u64::MAX);
    crate::volumes_schedule::lives(dice, steps, "k", 40, with_claims);
    if dice.percent(30) {
        for _ in 0..dice.between(1, 3) {
            let claim = dice.one_of(DeviceClaim::One, &[DeviceClaim::Two, DeviceClaim::Both]);
            let deed = Deed::Claims { deed: ClaimsDeed::Renew { claim } };
            steps.push(Step { at: dice.below(calm), deed });
        }
    }
}

fn with_claims(dice: &mut Dice) -> Shape {
    let mut made = if dice.percent(50) { small(dice) } else { shape(dice) };
    made.device_claims = DeviceClaim::ALL.into_iter().filter(|_| dice.percent(35)).collect();
    if made.device_claims.is_empty() {
        made.device_claims.push(DeviceClaim::One);
    }
    made
}

fn fault(dice: &mut Dice) -> DraFault {
    use tonic::Code;
    let down = dice.one_of(200, &[1_000, 5_000, 30_000]);
    match dice.below(12) {
        0 => DraFault::Refuses,
        1 => DraFault::Fails { code: dice.one_of(Code::Internal, &[Code::Unavailable, Code::Aborted]).into() },
        2 => DraFault::Skips,
        3 | 4 => DraFault::AnswerLost,
        5 | 6 => DraFault::Late { by: dice.one_of(1_000, &[10_000, 60_000, 150_000]) },
        7 => DraFault::Dies { done: dice.percent(70), down },
        8 | 9 => DraFault::PodGoes { force: dice.percent(40), by: dice.one_of(20, &[1_000, 10_000]) },
        _ => DraFault::SyncdDies { done: dice.percent(70) },
    }
}

/// Four in five runs have faults of the drivers and of the controllers beside the others.
pub(crate) fn faults(dice: &mut Dice, steps: &mut Vec<Step>) {
    if dice.percent(20) {
        return;
    }
    let calm = u64::try_from(CALM.as_millis()).unwrap_or(u64::MAX);
    for _ in 0..dice.between(1, 6) {
        let driver = dice.one_of(Dra::One, &[Dra::Two]);
        let deed = match dice.below(12) {
            0 | 1 => {
                let down = dice.one_of(20, &[1_000, 5_000, 30_000, 60_000]);
                ClaimsDeed::Kill { driver, down, leaves: dice.percent(40) }
            }
            2 => ClaimsDeed::NoControllers { lasts: dice.one_of(1_000, &[10_000, 60_000]) },
            3 => {
                let lasts = dice.one_of(200, &[2_000, 15_000, 40_000]);
                let deed = Deed::Stop { program: Program::Dra(driver), lasts };
                steps.push(Step { at: dice.below(calm), deed });
                continue;
            }
            _ => ClaimsDeed::Fault { driver, fault: fault(dice) },
        };
        steps.push(Step { at: dice.below(calm), deed: Deed::Claims { deed } });
    }
}
