//! What the node has and what of it pods may have, as the Node's status tells it (upstream
//! `pkg/kubelet/nodestatus`, MachineInfo, and `pkg/kubelet/cm`, GetNodeAllocatableReservation). Pure.

use std::collections::BTreeMap;
use std::path::Path;

use bulkhead_config::NodeConfig;
use bulkhead_types::Quantity;
use bulkhead_types::resource_name::{HUGE_PAGES, is_huge_page};
use kubelet_container_manager::devices::Capacity as DeviceCapacity;

use crate::cgroups::{Capacity, Reserved};

/// Amounts by resource name, in the API's notation when printed.
pub type Amounts = BTreeMap<String, Quantity>;

/// Both lists of the Node's status.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeResources {
    pub capacity: Amounts,
    pub allocatable: Amounts,
}

/// Size in bytes of the file system that holds `path`; None: the kernel does not say.
pub fn file_system_size(path: &Path) -> Option<u64> {
    match rustix::fs::statvfs(path) {
        Ok(stat) => Some(stat.f_blocks.saturating_mul(stat.f_frsize)),
        Err(error) => {
            tracing::warn!(%error, path = %path.display(), "size of the root directory's file system is not known");
            None
        }
    }
}

fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

fn less(from: Quantity, amount: Quantity) -> Quantity {
    let rest = from - amount;
    if rest.is_negative() { Quantity::ZERO } else { rest }
}

/// What the machine has and the configuration leaves of it. `reserved`: `kubeReserved` and `systemReserved` together.
pub fn of_node(config: &NodeConfig, machine: &Capacity, reserved: &Reserved) -> NodeResources {
    // A node that does not isolate local storage offers none (upstream GetCapacity).
    let offers_storage = config.kubelet.local_storage_capacity_isolation();
    let storage = file_system_size(&config.paths.root_dir).filter(|_| offers_storage);
    let no_thresholds = BTreeMap::new();
    let eviction_hard = match config.flags.experimental_allocatable_ignore_eviction {
        true => &no_thresholds,
        false => &config.kubelet.eviction_hard,
    };
    of(machine, storage, config.pod_capacity(machine.cpus), reserved, eviction_hard)
}

/// `ephemeral_storage`: bytes of the root directory's file system. `pods`: `maxPods` and `podsPerCore` put together.
/// `reserved`: `kubeReserved` and `systemReserved` together.
pub fn of(
    machine: &Capacity,
    ephemeral_storage: Option<u64>,
    pods: i64,
    reserved: &Reserved,
    eviction_hard: &BTreeMap<String, String>,
) -> NodeResources {
    let mut capacity = Amounts::from([
        ("cpu".to_owned(), Quantity::from_i64(i64::from(machine.cpus))),
        ("memory".to_owned(), Quantity::from_bytes(signed(machine.memory))),
        ("pods".to_owned(), Quantity::from_i64(pods)),
    ]);
    if let Some(bytes) = ephemeral_storage {
        capacity.insert("ephemeral-storage".to_owned(), Quantity::from_bytes(signed(bytes)));
    }
    for (size, total) in &machine.huge_pages {
        let name = format!("{HUGE_PAGES}{}", Quantity::from_bytes(signed(*size)));
        capacity.insert(name, Quantity::from_bytes(signed(*total)));
    }
    let evicted = [("memory", "memory.available"), ("ephemeral-storage", "nodefs.available")];
    let mut allocatable = Amounts::new();
    for (name, total) in &capacity {
        let kept = reserved.get(name).copied().unwrap_or_default();
        let threshold = evicted.iter().find(|(resource, _)| resource == name);
        let evict = threshold.and_then(|(_, signal)| threshold_amount(eviction_hard.get(*signal)?, *total));
        allocatable.insert(name.clone(), less(*total, kept + evict.unwrap_or_default()));
    }
    // Huge pages are set aside from the same memory.
    let huge = capacity.iter().filter(|(name, _)| is_huge_page(name));
    let huge = huge.fold(Quantity::ZERO, |sum, (_, amount)| sum + *amount);
    if let Some(memory) = allocatable.get_mut("memory") {
        *memory = less(*memory, huge);
    }
    NodeResources { capacity, allocatable }
}

/// What a hard threshold keeps free. Percentages are float32 in upstream, and so is the byte that this makes.
fn threshold_amount(text: &str, total: Quantity) -> Option<Quantity> {
    match text.strip_suffix('%') {
        // Both literals switch the threshold off.
        Some("0" | "100") => None,
        Some(percent) => {
            let fraction = percent.trim().parse::<f32>().ok().filter(|p| p.is_finite())? / 100.0;
            Some(Quantity::from_bytes((total.value() as f64 * f64::from(fraction)) as i64))
        }
        None => Quantity::parse(text).ok(),
    }
}

impl NodeResources {
    /// Puts in what plugins have.
    pub fn extend(&mut self, shown: &DeviceCapacity) {
        let put = |to: &mut Amounts, from: &BTreeMap<String, u64>| {
            to.extend(
                from.iter().map(|(name, n)| (name.clone(), Quantity::from_i64(i64::try_from(*n).unwrap_or(i64::MAX)))),
            );
        };
        put(&mut self.capacity, &shown.capacity);
        put(&mut self.allocatable, &shown.allocatable);
    }

    /// Memory that pods may have in sum, bytes: also the upper bound of a memory-backed volume.
    pub fn allocatable_memory(&self) -> u64 {
        self.allocatable.get("memory").and_then(|memory| u64::try_from(memory.value()).ok()).unwrap_or_default()
    }
}

/// As the API writes them.
pub fn texts(amounts: &Amounts) -> BTreeMap<String, String> {
    amounts.iter().map(|(name, amount)| (name.clone(), amount.to_string())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    fn shown(amounts: &Amounts) -> String {
        texts(amounts).into_iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(" ")
    }

    /// Numbers of a real node: a threshold of one percent of the file system, to the byte.
    #[test]
    fn as_upstream_reports_it() {
        let machine = Capacity {
            cpus: 2,
            memory: 24_684_092 * 1024,
            huge_pages: BTreeMap::from([(2 << 20, 0), (1 << 30, 0)]),
            ..Capacity::default()
        };
        let hard = map(&[("memory.available", "100Mi"), ("nodefs.available", "1%"), ("imagefs.available", "15%")]);
        let node = of(&machine, Some(264_212_084 * 1024), 250, &Reserved::new(), &hard);
        assert_eq!(
            shown(&node.capacity),
            "cpu=2 ephemeral-storage=264212084Ki hugepages-1Gi=0 hugepages-2Mi=0 memory=24684092Ki pods=250"
        );
        assert_eq!(
            shown(&node.allocatable),
            "cpu=2 ephemeral-storage=267847642337 hugepages-1Gi=0 hugepages-2Mi=0 memory=24581692Ki pods=250"
        );
        assert_eq!(node.allocatable_memory(), 24_581_692 * 1024);
    }

    #[test]
    fn what_the_configuration_leaves_out() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = NodeConfig::for_tests(folder.path());
        std::fs::create_dir_all(&config.paths.root_dir).unwrap();
        config.kubelet.eviction_hard = map(&[("memory.available", "1Gi")]);
        let machine = Capacity { cpus: 2, memory: 4 << 30, ..Capacity::default() };
        let of_node = |config: &NodeConfig| of_node(config, &machine, &Reserved::new());
        let node = of_node(&config);
        assert!(node.capacity.contains_key("ephemeral-storage") && node.allocatable.contains_key("ephemeral-storage"));
        assert_eq!(node.allocatable_memory(), 3 << 30);
        config.kubelet.local_storage_capacity_isolation = Some(false);
        config.flags.experimental_allocatable_ignore_eviction = true;
        let node = of_node(&config);
        assert!(
            !node.capacity.contains_key("ephemeral-storage") && !node.allocatable.contains_key("ephemeral-storage")
        );
        assert_eq!(node.allocatable_memory(), 4 << 30);
    }

    #[test]
    fn reservations_and_huge_pages() {
        let huge = BTreeMap::from([(2 << 20, 512 << 20)]);
        let machine = Capacity { cpus: 2, memory: 4 << 30, pids: Some(4096), huge_pages: huge, ..Capacity::default() };
        let kept = crate::cgroups::reserved(
            &map(&[("cpu", "500m"), ("memory", "1Gi"), ("ephemeral-storage", "1Gi")]),
            &map(&[("cpu", "600m"), ("pid", "96"), ("hugepages-2Mi", "12Mi")]),
        );
        let node =
            of(&machine, Some(10 << 30), 110, &kept, &map(&[("memory.available", "25%"), ("nodefs.available", "0%")]));
        assert_eq!(
            shown(&node.allocatable),
            "cpu=900m ephemeral-storage=9Gi hugepages-2Mi=500Mi memory=1536Mi pods=110"
        );
        let greedy = crate::cgroups::reserved(&map(&[("cpu", "3"), ("memory", "5Gi")]), &map(&[]));
        let node = of(&machine, None, 110, &greedy, &map(&[]));
        assert_eq!(shown(&node.allocatable), "cpu=0 hugepages-2Mi=512Mi memory=0 pods=110");
        assert!(!node.capacity.contains_key("ephemeral-storage"), "not known is not zero");
    }
}
