//! The machine's capacity, and what of it the pods' tree gets (upstream `pkg/kubelet/cm/node_container_manager_linux.go`).
//! What one pod gets is `pod::resources`; writing it is `kubelet-volnetd`'s.

use std::collections::BTreeMap;

use bulkhead_ipc::volnetd::CgroupResources;
use bulkhead_types::Quantity;

use kubelet_model::node_facts::hugepage_size_name;
use kubelet_model::pod::resources::milli_cpu_to_shares;

/// What the machine has.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Capacity {
    pub cpus: u32,
    /// Which they are, as the kernel lists them; empty: it does not say.
    pub online: String,
    /// Bytes.
    pub memory: u64,
    /// Tasks that the kernel allows at a time; None: it does not say.
    pub pids: Option<u64>,
    /// Page size in bytes to total bytes of such pages.
    pub huge_pages: BTreeMap<u64, u64>,
}

impl Capacity {
    /// Reads /proc and /sys; what cannot be read counts as absent.
    pub fn read() -> Capacity {
        let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let online = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
        let mut huge_pages = BTreeMap::new();
        for entry in std::fs::read_dir("/sys/kernel/mm/hugepages").into_iter().flatten().flatten() {
            let name = entry.file_name();
            let size =
                name.to_str().and_then(|n| n.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse::<u64>().ok());
            let count = std::fs::read_to_string(entry.path().join("nr_hugepages")).ok();
            if let (Some(kilobytes), Some(count)) = (size, count.and_then(|c| c.trim().parse::<u64>().ok())) {
                huge_pages.insert(kilobytes * 1024, kilobytes * 1024 * count);
            }
        }
        let number = |path: &str| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
        // Both limit the whole machine (upstream `pkg/kubelet/stats/pidlimit`).
        let pids = [number("/proc/sys/kernel/pid_max"), number("/proc/sys/kernel/threads-max")];
        Capacity {
            cpus: count_cpus(&online),
            online: online.trim().to_owned(),
            memory: parse_total_memory(&meminfo),
            pids: pids.into_iter().flatten().min(),
            huge_pages,
        }
    }
}

fn parse_total_memory(meminfo: &str) -> u64 {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:")).unwrap_or("");
    line.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap_or(0) * 1024
}

/// `0-3,6` has five.
fn count_cpus(online: &str) -> u32 {
    let count: u32 = online
        .trim()
        .split(',')
        .filter_map(|range| match range.split_once('-') {
            Some((from, to)) => Some(to.parse::<u32>().ok()?.checked_sub(from.parse().ok()?)? + 1),
            None => range.parse::<u32>().ok().map(|_| 1),
        })
        .sum();
    count.max(1)
}

/// Amounts kept away from pods (`kubeReserved`, `systemReserved`), already parsed. Where `reservedSystemCPUs` is set, the
/// rendered configuration has their number as the only reservation of CPU.
pub type Reserved = BTreeMap<String, Quantity>;

/// Sum of two reservations.
pub fn reserved(kube: &BTreeMap<String, String>, system: &BTreeMap<String, String>) -> Reserved {
    let mut sum = Reserved::new();
    for (name, text) in kube.iter().chain(system) {
        if let Ok(amount) = Quantity::parse(text) {
            *sum.entry(name.clone()).or_insert(Quantity::ZERO) += amount;
        }
    }
    sum
}

/// Limits of the `kubepods` cgroup. `enforce_pods`: `enforceNodeAllocatable` has `pods` in it.
pub fn kubepods_resources(capacity: &Capacity, reserved: &Reserved, enforce_pods: bool) -> CgroupResources {
    let less = |total: Quantity, name: &str| {
        let rest = match reserved.get(name).filter(|_| enforce_pods) {
            Some(kept) => total - *kept,
            None => total,
        };
        if rest.is_negative() { Quantity::ZERO } else { rest }
    };
    let amount = |n: u64| Quantity::from_i64(i64::try_from(n).unwrap_or(i64::MAX));
    let memory = less(amount(capacity.memory), "memory");
    CgroupResources {
        cpu_shares: Some(milli_cpu_to_shares(less(Quantity::from_i64(i64::from(capacity.cpus)), "cpu").milli_value())),
        cpu_quota_us: None,
        cpu_period_us: None,
        memory_limit_bytes: Some(memory.value()).filter(|bytes| *bytes > 0),
        pids_limit: capacity.pids.map(|pids| less(amount(pids), "pid").value()).filter(|pids| *pids > 0),
        hugepage_limits: capacity.huge_pages.iter().map(|(size, total)| (hugepage_size_name(*size), *total)).collect(),
        // All of them, so that systemd knows that the pods' tree has the controller and does not take it away (upstream
        // does so where no CPUs are exclusive).
        cpus: Some(capacity.online.clone()).filter(|online| !online.is_empty()),
        memory_min_bytes: None,
        memory_low_bytes: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files() {
        assert_eq!(parse_total_memory("MemTotal:       24570100 kB\nMemFree: 1 kB\n"), 24_570_100 * 1024);
        assert_eq!(parse_total_memory(""), 0);
        assert_eq!(count_cpus("0-1\n"), 2);
        assert_eq!(count_cpus("0-3,6,8-9"), 7);
        assert_eq!(count_cpus(""), 1);
    }

    #[test]
    fn reservations() {
        let capacity = Capacity {
            cpus: 2,
            online: "0-1".to_owned(),
            memory: 4 << 30,
            pids: Some(4096),
            huge_pages: BTreeMap::from([(2 << 20, 0)]),
        };
        let texts = |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let kept = reserved(&texts(&[("cpu", "500m"), ("memory", "1Gi")]), &texts(&[("cpu", "500m"), ("pid", "96")]));
        let limits = kubepods_resources(&capacity, &kept, true);
        assert_eq!((limits.cpu_shares, limits.memory_limit_bytes), (Some(1024), Some(3 << 30)));
        assert_eq!((limits.pids_limit, limits.cpus.as_deref()), (Some(4000), Some("0-1")));
        let not_enforced = kubepods_resources(&capacity, &kept, false);
        assert_eq!((not_enforced.memory_limit_bytes, not_enforced.pids_limit), (Some(4 << 30), Some(4096)));
        assert_eq!(kubepods_resources(&Capacity { pids: None, ..capacity.clone() }, &kept, true).pids_limit, None);
    }
}
