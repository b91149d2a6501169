//! NUMA nodes that are good for a number of devices (upstream `topology_hints.go`).

use std::collections::BTreeSet;

use super::plugins::{Device, Devices};
use crate::topology::mask::combinations_of;
use crate::topology::{Hint, NumaMask};

/// Any device tells of NUMA nodes, so the plugin cares.
pub fn has_topology(devices: &Devices) -> bool {
    devices.values().any(|device| !device.nodes.is_empty())
}

fn touches(mask: NumaMask, device: &Device) -> bool {
    device.nodes.iter().any(|node| u32::try_from(*node).is_ok_and(|node| mask.has(node)))
}

/// `machine`: its NUMA nodes. `reusable`: devices that have to be among them.
pub fn hints(
    machine: &[u32],
    devices: &Devices,
    available: &BTreeSet<String>,
    reusable: &BTreeSet<String>,
    request: usize,
) -> Vec<Hint> {
    let told: BTreeSet<u32> =
        devices.values().flat_map(|d| &d.nodes).filter_map(|node| u32::try_from(*node).ok()).collect();
    let mut nodes: Vec<u32> = machine.iter().copied().filter(|node| told.contains(node)).collect();
    if nodes.is_empty() {
        nodes = machine.to_vec();
    }
    let mut least = nodes.len();
    let mut good = Vec::new();
    for mask in combinations_of(&nodes) {
        if devices.values().filter(|device| touches(mask, device)).count() >= request {
            least = least.min(mask.count());
        }
        let placed = || reusable.iter().filter_map(|id| devices.get(id)).filter(|device| !device.nodes.is_empty());
        if placed().any(|device| !touches(mask, device)) {
            continue;
        }
        let free = available.difference(reusable).filter_map(|id| devices.get(id)).filter(|d| touches(mask, d));
        if placed().count() + free.count() >= request {
            good.push(mask);
        }
    }
    good.into_iter().map(|mask| Hint::new(mask, mask.count() == least)).collect()
}
