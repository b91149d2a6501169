//! A node that is drained: its pods are asked to go all at once, as `kubectl drain` does it for an upgrade of the node.

use std::collections::BTreeSet;

use crate::dice::Dice;
use crate::schedule::{CALM, Deed, Family, Step};

/// Between the first and the last deletion, milliseconds: they are asked for side by side.
const SPREAD: u64 = 300;

/// In a tenth of the runs of these families all pods of the API server that were created until then are deleted within a moment, each
/// with its own grace period; what is created afterwards comes to a node that takes pods again.
pub(crate) fn drain(dice: &mut Dice, steps: &mut Vec<Step>, family: Family) {
    let has_pods = matches!(family, Family::Api | Family::Volumes | Family::Claims | Family::Eviction);
    if !has_pods || !dice.percent(10) {
        return;
    }
    let calm = u64::try_from(CALM.as_millis()).unwrap_or(u64::MAX);
    let begins = dice.between(calm / 6, calm - 1 - SPREAD);
    let created = |step: &Step| match &step.deed {
        Deed::Create { pod, .. } | Deed::Replace { pod, .. } if step.at <= begins => Some(pod.clone()),
        _ => None,
    };
    let pods: BTreeSet<String> = steps.iter().filter_map(created).collect();
    for pod in pods {
        steps.push(Step { at: begins + dice.below(SPREAD), deed: Deed::Delete { pod, grace: None } });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Schedule;

    #[test]
    fn a_drained_node_is_asked_for_all_its_pods_within_a_moment() {
        let mut drained = 0;
        for seed in 0..200 {
            let mut steps = Schedule::of(seed, Some(Family::Api)).steps;
            let before = steps.len();
            drain(&mut Dice::of(seed, "test"), &mut steps, Family::Api);
            let new = steps.split_off(before);
            let Some(first) = new.iter().map(|step| step.at).min() else { continue };
            drained += 1;
            let gone: BTreeSet<&str> = new
                .iter()
                .filter_map(|step| match &step.deed {
                    Deed::Delete { pod, grace: None } => Some(pod.as_str()),
                    _ => None,
                })
                .collect();
            assert_eq!(gone.len(), new.len(), "each once, with its own grace period");
            assert!(new.iter().all(|step| step.at - first < SPREAD && u128::from(step.at) < CALM.as_millis()));
            let begun = steps.iter().filter(|step| step.at < first.saturating_sub(SPREAD));
            for step in begun {
                if let Deed::Create { pod, .. } = &step.deed {
                    assert!(gone.contains(pod.as_str()), "{pod} stays");
                }
            }
        }
        assert!((10..=30).contains(&drained), "{drained} of 200");
        let mut steps = Schedule::of(1, Some(Family::Pods)).steps;
        let before = steps.len();
        (0..50).for_each(|seed| drain(&mut Dice::of(seed, "test"), &mut steps, Family::Pods));
        assert_eq!(steps.len(), before, "a standalone node has no pods that could be deleted");
    }
}
