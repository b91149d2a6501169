//! What is away for hours: a process that is not started again, a machine that is off, an API server that is out of reach. In a few
//! runs one of the schedule's faults lasts as long, and a part of what would come later comes afterwards.

use crate::claims_schedule::ClaimsDeed;
use crate::dice::Dice;
use crate::disk_schedule::DiskDeed;
use crate::pressure_schedule::PressureDeed;
use crate::schedule::{CALM, Deed, Step};

const MINUTE: u64 = 60_000;

/// How long a deed has something be away, milliseconds. None: it has nothing be away, or nobody knows from when on: a power cut in a
/// write may come hours later, and would not be over when the node is to come to rest.
fn lasting(deed: &mut Deed) -> Option<&mut u64> {
    match deed {
        Deed::KillSyncd { down }
        | Deed::KillStatusd { down }
        | Deed::KillDriver { down }
        | Deed::KillPlugin { down }
        | Deed::RestartRuntime { down }
        | Deed::RestartVolnetd { down }
        | Deed::RestartApi { down }
        | Deed::Pressure { deed: PressureDeed::KillEvictiond { down } }
        | Deed::Claims { deed: ClaimsDeed::Kill { down, .. } }
        | Deed::Disk { deed: DiskDeed::PowerCut { after: None, down, .. } } => Some(down),
        Deed::Stop { lasts, .. }
        | Deed::SilentApi { lasts }
        | Deed::SilentWatches { lasts, .. }
        | Deed::LoseEvents { lasts }
        | Deed::Claims { deed: ClaimsDeed::NoControllers { lasts } }
        | Deed::Disk { deed: DiskDeed::Full { lasts } } => Some(lasts),
        _ => None,
    }
}

/// Lets one of the faults last for hours in one of thirty runs that have some. Answers by how much the run is longer, milliseconds.
pub(crate) fn stretch(dice: &mut Dice, steps: &mut [Step]) -> u64 {
    if !dice.percent(4) {
        return 0;
    }
    let calm = u64::try_from(CALM.as_millis()).unwrap_or(u64::MAX);
    let lasting: Vec<&mut Step> = steps.iter_mut().filter(|step| lasting(&mut step.deed.clone()).is_some()).collect();
    let pick = usize::try_from(dice.below(lasting.len().max(1) as u64)).unwrap_or(0);
    let Some(step) = lasting.into_iter().nth(pick) else { return 0 };
    let longer = dice.one_of(10 * MINUTE, &[20 * MINUTE, 60 * MINUTE, 180 * MINUTE]);
    if let Some(lasts) = self::lasting(&mut step.deed) {
        *lasts += longer;
    }
    // What comes until then meets who is away, and what comes later who is back.
    let until = step.at + 1 + dice.below(calm.saturating_sub(step.at).max(1));
    for step in steps.iter_mut().filter(|step| step.at >= until) {
        step.at += longer;
    }
    longer
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::{Family, Schedule};

    #[test]
    fn what_lasts_for_hours_is_over_when_the_node_is_to_come_to_rest() {
        for family in Family::ALL {
            let mut stretched = 0;
            for seed in 0..400 {
                let schedule = Schedule::of(seed, Some(family));
                if schedule.longer == 0 {
                    continue;
                }
                stretched += 1;
                let mut steps = schedule.steps.clone();
                let long = |step: &mut Step| lasting(&mut step.deed).is_some_and(|lasts| *lasts >= schedule.longer);
                let (long, others): (Vec<Step>, Vec<Step>) = steps.drain(..).partition(|step| long(&mut step.clone()));
                let [long] = long.as_slice() else { panic!("seed {seed}: {long:?}") };
                let calm = u64::try_from(schedule.calm().as_millis()).unwrap();
                assert_eq!(calm, u64::try_from(CALM.as_millis()).unwrap() + schedule.longer);
                assert!(long.at + schedule.longer < calm, "seed {seed}: {long:?}");
                assert!(others.iter().all(|step| step.at < calm || step.deed.is_workload()), "seed {seed}");
                assert!(schedule.steps.is_sorted_by_key(|step| step.at), "seed {seed}");
            }
            assert!(stretched > 2, "{family:?}");
        }
    }
}
