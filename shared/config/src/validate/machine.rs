//! Limits that depend on the machine: cgroup version, swap, online CPUs, size of the memory.

use bulkhead_types::Quantity;

use super::{Limits, UnfitCgroup, quoted};
use crate::cpu_set::CpuSet;
use crate::eviction::{self, Signal};
use crate::kubelet::TextMap;

/// Facts of the machine, gathered by the launcher.
#[derive(Debug, Clone, Default)]
pub struct Machine {
    /// A unified hierarchy at /sys/fs/cgroup; a hybrid machine counts as v1, as upstream counts it.
    pub cgroup_v2: bool,
    /// The areas listed in /proc/swaps.
    pub swaps: Vec<String>,
    /// None: could not be read, nothing is checked against it.
    pub online_cpus: Option<CpuSet>,
    /// Whether the cgroup that `cgroupRoot` names exists in some hierarchy.
    pub cgroup_root_exists: bool,
    /// Bytes of memory; None: could not be read.
    pub memory_bytes: Option<i64>,
    /// Bytes of the file system that holds the root directory; None: not known.
    pub root_dir_bytes: Option<i64>,
    /// Cgroups of `enforceNodeAllocatable` that cannot be written to.
    pub unfit_cgroups: Vec<UnfitCgroup>,
    /// In a user namespace, where the swap check does not apply.
    pub in_user_namespace: bool,
}

impl Limits<'_> {
    pub(super) fn machine(&mut self, machine: &Machine) {
        let config = self.config;
        if !machine.cgroup_v2 {
            self.check(
                !config.fail_cgroup_v1(),
                "failCgroupV1",
                "true",
                "this machine uses cgroup v1, which is refused while failCgroupV1 is true: boot with cgroup v2, or set failCgroupV1: false (--fail-cgroupv1=false)",
            );
            self.check(
                config.single_process_oom_kill != Some(false),
                "singleProcessOOMKill",
                "false",
                "must be true or not set on cgroup v1, which cannot kill a whole cgroup",
            );
            self.check(
                config.memory_swap.swap_behavior != "LimitedSwap",
                "memorySwap.swapBehavior",
                quoted(&config.memory_swap.swap_behavior),
                "LimitedSwap needs cgroup v2",
            );
        }
        // tmpfs and zram below a user namespace do not count upstream either.
        if config.fail_swap_on() && !machine.swaps.is_empty() && !machine.in_user_namespace {
            self.refuse(
                "failSwapOn",
                "true",
                format!(
                    "running with swap on is not supported while failSwapOn is true: disable swap ({}), or set failSwapOn: false (--fail-swap-on=false)",
                    machine.swaps.join(", ")
                ),
            );
        }
        if !config.cgroup_root.is_empty() && !machine.cgroup_root_exists {
            self.refuse(
                "cgroupRoot",
                quoted(&config.cgroup_root),
                "must exist: create the cgroup in every hierarchy before the start",
            );
        }
        if let (Some(online), Ok(reserved)) = (&machine.online_cpus, CpuSet::parse(&config.reserved_system_cpus))
            && !reserved.is_subset(online)
        {
            self.refuse(
                "reservedSystemCPUs",
                quoted(&config.reserved_system_cpus),
                format!("must be a subset of the online CPUs {online}"),
            );
        }
        self.static_memory(machine);
        self.allocatable(machine);
    }

    /// What the static memory manager lays aside on the NUMA nodes must be what node allocatable lays aside (upstream
    /// `pkg/kubelet/cm/memorymanager` validateReservedMemory, which ends the start there too).
    fn static_memory(&mut self, machine: &Machine) {
        let config = self.config;
        if config.memory_manager_policy != "Static" {
            return;
        }
        let of = |map: &TextMap| map.get("memory").and_then(|text| Quantity::parse(text).ok()).unwrap_or_default();
        let thresholds = eviction::parse_all(config).unwrap_or_default();
        let hard = thresholds.iter().find(|t| t.is_hard() && t.signal == Signal::MemoryAvailable).map(|t| t.limit);
        let kept_free = match (hard, machine.memory_bytes) {
            (None, _) => Quantity::ZERO,
            (Some(eviction::Limit::Quantity(quantity)), _) => quantity,
            (Some(limit), Some(capacity)) => Quantity::from_bytes(limit.absolute(capacity)),
            (Some(_), None) => return,
        };
        let wanted = of(&config.kube_reserved) + of(&config.system_reserved) + kept_free;
        let reserved: Quantity =
            config.reserved_memory.iter().filter_map(|node| node.limits.get("memory").copied()).sum();
        self.check(
            reserved == wanted && reserved > Quantity::ZERO,
            "reservedMemory",
            reserved,
            &format!(
                "memoryManagerPolicy Static needs as much memory there, over all NUMA nodes and above 0, as kubeReserved, systemReserved and evictionHard[memory.available] have together: {wanted}"
            ),
        );
    }
}
