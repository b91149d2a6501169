//! Which CPUs are taken if they are to be spread evenly over NUMA nodes where one is not enough (upstream
//! `takeByTopologyNUMADistributed`, KEP-2902).
//!
//! A difference: upstream keeps the best choice of four nodes or more in a list whose last places the search goes on to overwrite, so
//! that it may take CPUs from other nodes than it chose. Here the choice stays.

use std::collections::BTreeMap;

use bulkhead_config::cpu_set::CpuSet;

use super::accumulator::{Accumulator, Order, TakeError, take_packed};
use crate::topology::cpus::{CpuTopology, Level};
use crate::topology::mask::choose;

/// Free CPUs of each node.
type Free = BTreeMap<u32, usize>;

/// To a thousandth, as upstream compares them.
fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// How unevenly the nodes would be left: the standard deviation of what is free on each.
fn imbalance(free: &Free) -> f64 {
    let count = free.len() as f64;
    let mean = rounded(free.values().map(|n| *n as f64).sum::<f64>() / count);
    rounded((free.values().map(|n| (*n as f64 - mean).powi(2)).sum::<f64>() / count).sqrt())
}

/// Nodes to take from, and those of them that give the rest after an equal share of each.
#[derive(Debug, Clone)]
struct Choice {
    nodes: Vec<u32>,
    rest: Vec<u32>,
    imbalance: f64,
}

#[derive(Debug, Clone, Copy)]
struct Wanted {
    cpus: usize,
    /// CPUs are given in groups of this size.
    group: usize,
}

impl Wanted {
    /// What each of `nodes` gives.
    fn share(self, nodes: usize) -> usize {
        self.cpus / nodes / self.group * self.group
    }
}

/// The best way to give what is left after equal shares: over as many nodes as can be.
fn rest(free: &Free, nodes: &[u32], rest: usize, group: usize) -> Option<(Vec<u32>, f64)> {
    if rest == 0 {
        return Some((Vec::new(), imbalance(free)));
    }
    let able: Vec<u32> = nodes.iter().copied().filter(|node| free[node] >= group).collect();
    let mut best: Option<(Vec<u32>, f64)> = None;
    for subset in (1..=able.len()).rev().flat_map(|size| choose(&able, size)) {
        let room: usize = subset.iter().map(|node| free[node] / group * group).sum();
        if room < rest {
            continue;
        }
        let (mut free, mut rest) = (free.clone(), rest);
        for node in subset.iter().cycle() {
            if rest == 0 {
                break;
            }
            if let Some(free) = free.get_mut(node).filter(|free| **free >= group) {
                *free -= group;
                rest = rest.saturating_sub(group);
            }
        }
        let imbalance = imbalance(&free);
        if best.as_ref().is_none_or(|(_, least)| imbalance < *least) {
            best = Some((subset, imbalance));
        }
    }
    best
}

fn choice(free: &Free, nodes: Vec<u32>, wanted: Wanted) -> Option<Choice> {
    let groups: usize = nodes.iter().map(|node| free[node] / wanted.group).sum();
    let share = wanted.share(nodes.len());
    if groups * wanted.group < wanted.cpus || nodes.iter().any(|node| free[node] < share) {
        return None;
    }
    let mut after = free.clone();
    for node in &nodes {
        *after.get_mut(node)? -= share;
    }
    let (rest, imbalance) = rest(&after, &nodes, wanted.cpus - share * nodes.len(), wanted.group)?;
    Some(Choice { nodes, rest, imbalance })
}

/// The first choice of a size that leaves the nodes most even.
fn best(free: &Free, order: &[u32], size: usize, wanted: Wanted) -> Option<Choice> {
    let mut best: Option<Choice> = None;
    for nodes in choose(order, size) {
        if best.as_ref().is_some_and(|best| best.imbalance == 0.0) {
            break;
        }
        let Some(found) = choice(free, nodes, wanted) else { continue };
        if best.as_ref().is_none_or(|best| found.imbalance < best.imbalance) {
            best = Some(found);
        }
    }
    best
}

/// Takes CPUs in groups of `group` (1, or a core's threads), as many from each of as few NUMA nodes as can be. Where that cannot be
/// they are packed.
///
/// # Errors
/// There are not as many.
pub fn take_distributed(
    topology: &CpuTopology,
    available: &CpuSet,
    cpus: usize,
    group: usize,
    order: Order,
) -> Result<CpuSet, TakeError> {
    let group = group.max(1);
    if !cpus.is_multiple_of(group) {
        return take_packed(topology, available, cpus, order, false);
    }
    let mut acc = Accumulator::new(topology, available, cpus, order)?;
    if cpus == 0 {
        return Ok(acc.taken);
    }
    let wanted = Wanted { cpus, group };
    let nodes = acc.numa_nodes();
    let free: Free = nodes.iter().map(|node| (*node, acc.free_in(Level::Numa, *node).len())).collect();
    let groups_needed = cpus.div_ceil(group);
    let groups_per_node = topology.all().len().div_ceil(group).div_ceil(topology.count(Level::Numa).max(1)).max(1);
    let (least, most) = (groups_needed.div_ceil(groups_per_node), groups_needed.min(nodes.len()));
    let Some(choice) = (least..=most).find_map(|size| best(&free, &nodes, size, wanted)) else {
        return take_packed(topology, available, cpus, order, false);
    };
    let share = wanted.share(choice.nodes.len());
    for node in &choice.nodes {
        let taken = take_packed(topology, &acc.free_in(Level::Numa, *node), share, order, false)?;
        acc.take(&taken);
    }
    for node in choice.rest.iter().cycle() {
        if acc.needed == 0 {
            break;
        }
        let left = acc.free_in(Level::Numa, *node);
        if left.len() >= group {
            acc.take(&take_packed(topology, &left, group, order, false)?);
        }
    }
    if acc.needed > 0 { Err(TakeError::Remaining(acc.needed)) } else { Ok(acc.taken) }
}
