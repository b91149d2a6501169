//! Which devices a container gets (upstream `devicesToAllocate` and `filterByAffinity`).

use std::collections::BTreeSet;

use super::plugins::Devices;
use crate::topology::NumaMask;

type Ids = BTreeSet<String>;

/// Which devices can be taken, in upstream's order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// Taken whatever the plugin prefers.
    fixed: Ids,
    /// How many are taken beside those.
    needed: usize,
    /// Of which the plugin may choose.
    pool: Ids,
    /// In what order it goes on without its word.
    rest: Vec<Ids>,
}

/// Available devices by what the hint says: of its NUMA nodes, of others, of none. Without a hint, or without NUMA nodes, all are of
/// none.
fn by_affinity(devices: &Devices, available: &Ids, affinity: Option<NumaMask>) -> (Ids, Ids, Ids) {
    let aligned = devices.values().any(|device| !device.nodes.is_empty());
    let Some(mask) = affinity.filter(|_| aligned) else { return (Ids::new(), Ids::new(), available.clone()) };
    let (mut within, mut without, mut nowhere) = (Ids::new(), Ids::new(), Ids::new());
    for id in available {
        let nodes = devices.get(id).map(|device| device.nodes.as_slice()).unwrap_or_default();
        let place = match nodes {
            [] => &mut nowhere,
            nodes if nodes.iter().any(|node| u32::try_from(*node).is_ok_and(|node| mask.has(node))) => &mut within,
            _ => &mut without,
        };
        place.insert(id.clone());
    }
    (within, without, nowhere)
}

impl Plan {
    /// `available`: healthy devices that nobody has. `reusable`: devices of the pod's init containers.
    ///
    /// # Errors
    /// In upstream's words: there are not enough.
    pub fn new(
        resource: &str,
        required: usize,
        devices: &Devices,
        available: &Ids,
        reusable: &Ids,
        affinity: Option<NumaMask>,
    ) -> Result<Plan, String> {
        let mut fixed: Ids = reusable.iter().take(required).cloned().collect();
        let mut needed = required - fixed.len();
        if needed == 0 {
            return Ok(Plan { fixed, ..Plan::default() });
        }
        let available: Ids = available.difference(&fixed).cloned().collect();
        if available.len() < needed {
            return Err(format!(
                "requested number of devices unavailable for {resource}. Requested: {needed}, Available: {}",
                available.len()
            ));
        }
        let (aligned, unaligned, nowhere) = by_affinity(devices, &available, affinity);
        if needed < aligned.len() {
            return Ok(Plan { fixed, needed, rest: vec![aligned.clone()], pool: aligned });
        }
        needed -= aligned.len();
        fixed.extend(aligned);
        let pool = if needed == 0 { Ids::new() } else { available };
        Ok(Plan { fixed, needed, pool, rest: vec![unaligned, nowhere] })
    }

    /// What the plugin is asked: which it prefers of these, and which it has to take. None: there is nothing to choose.
    pub fn question(&self) -> Option<(Vec<String>, Vec<String>)> {
        let all = || self.pool.union(&self.fixed).cloned().collect();
        (self.needed > 0).then(|| (all(), self.fixed.iter().cloned().collect()))
    }

    /// The devices that are taken. `preferred`: the plugin's word; empty where it has none.
    pub fn devices(&self, preferred: &Ids) -> Ids {
        let mut taken = self.fixed.clone();
        let most = self.fixed.len() + self.needed;
        let liked: Ids = self.pool.intersection(preferred).cloned().collect();
        for from in std::iter::once(&liked).chain(&self.rest) {
            for id in from {
                if taken.len() < most {
                    taken.insert(id.clone());
                }
            }
        }
        taken
    }
}
