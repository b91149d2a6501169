//! What the machine cannot give: reservations above its capacity, and reserved cgroups that are not there (upstream
//! `pkg/kubelet/cm/node_container_manager_linux.go`, where either ends the start).

use bulkhead_types::Quantity;

use super::{Limits, Machine, quoted};
use crate::eviction::{self, Signal};
use crate::kubelet::TextMap;
use crate::reserved::Part;

/// A cgroup of `enforceNodeAllocatable` that cannot be written to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnfitCgroup {
    pub part: Part,
    /// As configured.
    pub cgroup: String,
    pub why: String,
}

impl Limits<'_> {
    pub(super) fn allocatable(&mut self, machine: &Machine) {
        for UnfitCgroup { part, cgroup, why } in &machine.unfit_cgroups {
            self.refuse(part.field, quoted(cgroup), part.failed(cgroup, why));
        }
        let config = self.config;
        let of = |map: &TextMap, name: &str| map.get(name).and_then(|text| Quantity::parse(text).ok());
        let thresholds = eviction::parse_all(config).unwrap_or_default();
        let hard = |signal| thresholds.iter().find(|t| t.is_hard() && t.signal == signal).map(|t| t.limit);
        let offers_storage = config.local_storage_capacity_isolation.unwrap_or(true);
        // Explicit CPUs are a set of those that are online, whatever else is reserved of them.
        let cpus = machine.online_cpus.as_ref().filter(|_| config.reserved_system_cpus.is_empty());
        let capacities = [
            ("cpu", cpus.map(|cpus| Quantity::from_i64(i64::try_from(cpus.len()).unwrap_or(i64::MAX))), None),
            ("memory", machine.memory_bytes.map(Quantity::from_bytes), hard(Signal::MemoryAvailable)),
            (
                "ephemeral-storage",
                machine.root_dir_bytes.filter(|_| offers_storage).map(Quantity::from_bytes),
                hard(Signal::NodeFsAvailable),
            ),
        ];
        for (name, capacity, threshold) in capacities {
            let Some(capacity) = capacity else { continue };
            let amounts = [of(&config.kube_reserved, name), of(&config.system_reserved, name)];
            let kept_free = threshold.map(|limit| Quantity::from_bytes(limit.absolute(capacity.value())));
            let reservation: Quantity = amounts.into_iter().chain([kept_free]).flatten().sum();
            self.check(
                reservation <= capacity,
                "enforceNodeAllocatable",
                reservation,
                &format!(
                    "invalid Node Allocatable configuration. Resource {name:?} has a reservation of {reservation} but capacity of {capacity}. Expected capacity >= reservation. (kubeReserved, systemReserved and evictionHard together)"
                ),
            );
        }
    }
}
