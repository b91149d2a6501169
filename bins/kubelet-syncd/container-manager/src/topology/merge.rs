//! Which hint is the best for all managers (upstream `topologymanager/policy.go` and the policies beside it).

use std::collections::BTreeSet;

use super::hints::{Hint, ResourceHints};
use super::mask::NumaMask;
use super::options::{NumaInfo, Policy, TopologyOptions};

/// The best hint under a policy, and whether a pod with it is taken in.
pub fn merge(policy: Policy, numa: &NumaInfo, options: TopologyOptions, providers: &[ResourceHints]) -> (Hint, bool) {
    if policy == Policy::None {
        return (Hint { affinity: None, preferred: false }, true);
    }
    let mut lists = flatten(providers);
    if policy == Policy::SingleNumaNode {
        for list in &mut lists {
            list.retain(|hint| hint.preferred && hint.affinity.is_none_or(|mask| mask.count() == 1));
        }
    }
    let closest = options.prefer_closest && policy != Policy::SingleNumaNode;
    let mut best = Merger::new(numa, closest, &lists).best();
    if policy == Policy::SingleNumaNode && best.affinity == Some(numa.all()) {
        best.affinity = None;
    }
    (best, policy == Policy::BestEffort || best.preferred)
}

/// A list of hints for each resource of each manager; who has none does not care.
fn flatten(providers: &[ResourceHints]) -> Vec<Vec<Hint>> {
    let mut lists = Vec::new();
    for hints in providers {
        if hints.is_empty() {
            lists.push(vec![Hint::ANY]);
        }
        for list in hints.values() {
            lists.push(match list {
                None => vec![Hint::ANY],
                Some(list) if list.is_empty() => vec![Hint { affinity: None, preferred: false }],
                Some(list) => list.clone(),
            });
        }
    }
    lists
}

/// A hint of all managers together.
#[derive(Debug, Clone, Copy)]
struct Merged {
    mask: NumaMask,
    preferred: bool,
}

struct Merger<'a> {
    numa: &'a NumaInfo,
    closest: bool,
    lists: &'a [Vec<Hint>],
    /// Nodes that the most demanding manager needs at least: what a hint that nobody prefers should come near to.
    wanted: usize,
}

impl<'a> Merger<'a> {
    fn new(numa: &'a NumaInfo, closest: bool, lists: &'a [Vec<Hint>]) -> Self {
        let least = |list: &Vec<Hint>| list.iter().filter_map(|hint| hint.affinity).map(NumaMask::count).min();
        let wanted = lists.iter().filter_map(least).max().unwrap_or(0);
        Merger { numa, closest, lists, wanted }
    }

    /// `candidate` fits better than `current`, both being preferred or both not.
    fn fits_better(&self, candidate: NumaMask, current: NumaMask) -> bool {
        if self.closest { self.numa.closer(candidate, current) } else { candidate.narrower_than(current) }
    }

    fn replaces(&self, current: Option<Merged>, candidate: Merged) -> bool {
        let new = candidate.mask.count();
        if new == 0 {
            return false;
        }
        let Some(current) = current else { return true };
        if current.preferred != candidate.preferred {
            return candidate.preferred;
        }
        let had = current.mask.count();
        let fitter = self.fits_better(candidate.mask, current.mask);
        if current.preferred || had > self.wanted {
            return fitter;
        }
        // Not preferred: as near to the wanted number of nodes as can be from below, and not above it.
        if had == self.wanted {
            return new == self.wanted && fitter;
        }
        if new > self.wanted {
            return false;
        }
        new > had || (new == had && fitter)
    }

    /// Upstream goes through every choice of one hint from each list: with eight nodes and three resources these are sixteen million.
    /// Here list by list, and what comes out alike goes on as one. The order of candidates does not matter to the best.
    fn best(&self) -> Hint {
        let start = Partial { mask: self.numa.all(), preferred: true, common: None };
        let mut partial = BTreeSet::from([start]);
        for list in self.lists {
            partial = partial.iter().flat_map(|before| list.iter().map(|hint| before.with(*hint))).collect();
        }
        let mut best = None;
        for Partial { mask, preferred, .. } in partial {
            let candidate = Merged { mask, preferred };
            if self.replaces(best, candidate) {
                best = Some(candidate);
            }
        }
        let best = best.unwrap_or(Merged { mask: self.numa.all(), preferred: false });
        Hint::new(best.mask, best.preferred)
    }
}

/// Hints of some of the lists together: the nodes that they have in common; preferred only if each is and all name the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Partial {
    mask: NumaMask,
    preferred: bool,
    /// What those name that do not take any, as long as it is the same.
    common: Option<NumaMask>,
}

impl Partial {
    fn with(&self, hint: Hint) -> Partial {
        let Some(mask) = hint.affinity else {
            return Partial { preferred: self.preferred && hint.preferred, ..*self }.settled();
        };
        let same = self.common.is_none_or(|common| common == mask);
        let preferred = self.preferred && hint.preferred && same;
        Partial { mask: self.mask.and(mask), preferred, common: Some(mask) }.settled()
    }

    /// Once it is not preferred it does not matter why.
    fn settled(self) -> Partial {
        Partial { common: self.common.filter(|_| self.preferred), ..self }
    }
}
