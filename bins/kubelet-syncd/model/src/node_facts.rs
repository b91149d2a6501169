//! What the builders of CRI requests have to know about this node, gathered once and passed in, so that they stay pure.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bulkhead_types::Quantity;
use tokio::sync::watch;

use crate::selinux::SeLinux;

/// `memorySwap.swapBehavior`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SwapBehavior {
    #[default]
    NoSwap,
    LimitedSwap,
}

/// The node's settings of memory QoS (gate `MemoryQoS`); there are none where the gate is off or cgroups are those of v1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MemoryQos {
    /// `memoryThrottlingFactor`, above 0 and at most 1.
    pub throttling_factor: f64,
    /// `memoryReservationPolicy` is `TieredReservation`: requests are kept, for guaranteed pods at any rate.
    pub tiered: bool,
    /// Bytes: the node's memory without what is reserved; stands in for a limit that a container does not have.
    pub allocatable: i64,
    /// Bytes.
    pub page_size: i64,
}

/// Facts and settings of the node. Built by the core from the configuration, [`HostFacts`] and the runtime's answers.
#[derive(Debug, Clone)]
pub struct NodeFacts {
    pub host: HostFacts,
    /// Name in front of `://` in container ids, as the runtime's Version call gives it.
    pub runtime_name: String,
    pub pod_logs_dir: PathBuf,
    /// `<root-dir>/pods`.
    pub pods_dir: PathBuf,
    /// `<root-dir>/seccomp`.
    pub seccomp_root: PathBuf,
    pub seccomp_default: bool,
    pub cpu_cfs_quota: bool,
    /// Microseconds.
    pub cpu_cfs_quota_period_us: i64,
    /// `podPidsLimit`; None when not positive.
    pub pod_pids_limit: Option<i64>,
    pub swap_behavior: SwapBehavior,
    /// `singleProcessOOMKill`; None is upstream's default for the cgroup version.
    pub single_process_oom_kill: Option<bool>,
    /// None: gate MemoryQoS is off, or cgroups are those of v1.
    pub memory_qos: Option<MemoryQos>,
    /// `resolvConf`; empty turns the node's resolver off.
    pub resolv_conf: PathBuf,
    pub cluster_dns: Vec<String>,
    pub cluster_domain: String,
    /// Gate HostnameOverride.
    pub hostname_override: bool,
    /// Gate EnvFiles.
    pub env_files: bool,
    /// Gate `ContainerStopSignals`: containers may name the signal that stops them.
    pub stop_signals: bool,
    /// Statuses tell which image a volume has (gate ImageVolumeWithDigest).
    pub image_volume_digests: bool,
    /// Statuses say what the pod as a whole was given (gate InPlacePodLevelResourcesVerticalScaling).
    pub pod_level_resize: bool,
    /// What a container without a limit may use (`resourceFieldRef`).
    pub allocatable: BTreeMap<String, Quantity>,
    /// `--node-ip` as it is configured, primary first; an unspecified one (`::`) says the family alone. Often empty.
    pub node_ips: Vec<IpAddr>,
    /// Addresses of the node, primary first. Empty without an API server.
    pub host_ips: Vec<IpAddr>,
    /// The runtime's handlers by name; the default one's is empty.
    pub handlers: BTreeMap<String, HandlerFeatures>,
}

/// What a handler of the runtime can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HandlerFeatures {
    /// It mounts recursively read-only.
    pub recursive_read_only_mounts: bool,
    /// It gives pods users of their own.
    pub user_namespaces: bool,
}

impl NodeFacts {
    /// What a handler can do; one that the runtime does not name can do nothing beyond the usual.
    pub fn handler(&self, name: &str) -> HandlerFeatures {
        self.handlers.get(name).copied().unwrap_or_default()
    }

    /// Facts with upstream's default configuration, for a node whose host part is known.
    pub fn new(host: HostFacts) -> Self {
        NodeFacts {
            host,
            runtime_name: "containerd".to_owned(),
            pod_logs_dir: PathBuf::from("/var/log/pods"),
            pods_dir: PathBuf::from("/var/lib/kubelet/pods"),
            seccomp_root: PathBuf::from("/var/lib/kubelet/seccomp"),
            seccomp_default: false,
            cpu_cfs_quota: true,
            cpu_cfs_quota_period_us: 100_000,
            pod_pids_limit: None,
            swap_behavior: SwapBehavior::NoSwap,
            single_process_oom_kill: None,
            memory_qos: None,
            resolv_conf: PathBuf::from("/etc/resolv.conf"),
            cluster_dns: Vec::new(),
            cluster_domain: String::new(),
            hostname_override: true,
            env_files: true,
            stop_signals: false,
            image_volume_digests: false,
            pod_level_resize: true,
            allocatable: BTreeMap::new(),
            node_ips: Vec::new(),
            host_ips: Vec::new(),
            handlers: BTreeMap::new(),
        }
    }

    /// At most one address of each family, that of the configured node address first, else IPv4 (upstream sortPodIPs): which
    /// addresses the node turns out to have decides nothing.
    pub fn sort_pod_ips(&self, ips: &[IpAddr]) -> Vec<IpAddr> {
        let first_of = |v6: bool| ips.iter().find(|ip| ip.is_ipv6() == v6).copied();
        let v6_first = self.node_ips.first().is_some_and(IpAddr::is_ipv6);
        [first_of(v6_first), first_of(!v6_first)].into_iter().flatten().collect()
    }
}

/// The facts as they are now; what changes in them (the node's addresses, once the API server tells them) is seen by
/// whoever asks next. Cheap to clone.
#[derive(Debug, Clone)]
pub struct SharedFacts(Arc<watch::Sender<Arc<NodeFacts>>>);

impl SharedFacts {
    pub fn new(facts: NodeFacts) -> Self {
        SharedFacts(Arc::new(watch::Sender::new(Arc::new(facts))))
    }

    /// One consistent picture. Whoever works for a while keeps it instead of asking twice.
    pub fn get(&self) -> Arc<NodeFacts> {
        self.0.borrow().clone()
    }

    /// The node's addresses, primary first. Answers whether they are others than before.
    pub fn set_host_ips(&self, host_ips: Vec<IpAddr>) -> bool {
        self.0.send_if_modified(|facts| {
            let changed = facts.host_ips != host_ips;
            if changed {
                *facts = Arc::new(NodeFacts { host_ips, ..NodeFacts::clone(facts) });
            }
            changed
        })
    }

    /// What the runtime's handlers can do, which an upgrade of the runtime may change.
    pub fn set_handlers(&self, handlers: BTreeMap<String, HandlerFeatures>) {
        self.0.send_if_modified(|facts| {
            let changed = facts.handlers != handlers;
            if changed {
                *facts = Arc::new(NodeFacts { handlers, ..NodeFacts::clone(facts) });
            }
            changed
        });
    }

    /// Sees each change.
    pub fn watch(&self) -> watch::Receiver<Arc<NodeFacts>> {
        self.0.subscribe()
    }
}

/// What the kernel says about the machine. All of it is world-readable.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostFacts {
    pub cgroup_v2: bool,
    /// The memory controller accounts for swap.
    pub swap_controller: bool,
    /// Bytes.
    pub memory_capacity: u64,
    /// Bytes.
    pub swap_capacity: u64,
    /// The kernel lists an area to swap to (upstream `pkg/kubelet/util/swap` IsSwapOn).
    pub swap_on: bool,
    /// Page sizes as the kernel's cgroup files name them: `2MB`, `1GB`.
    pub hugepage_sizes: Vec<String>,
    /// CPUs with a `thermal_throttle` folder, which containers must not see.
    pub thermal_throttle_cpus: Vec<u32>,
    pub selinux_enabled: bool,
}

impl HostFacts {
    /// Reads the facts below `root` (`/` on a real machine). What cannot be read counts as absent.
    pub fn read(root: &Path) -> Self {
        let meminfo = std::fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
        let cgroup = root.join("sys/fs/cgroup");
        let cgroup_v2 = cgroup.join("cgroup.controllers").exists();
        let swap_controller = if cgroup_v2 {
            own_cgroup(root).is_some_and(|own| cgroup.join(own).join("memory.swap.max").exists())
        } else {
            cgroup.join("memory/memory.memsw.limit_in_bytes").exists()
        };
        HostFacts {
            cgroup_v2,
            swap_controller,
            memory_capacity: meminfo_bytes(&meminfo, "MemTotal:"),
            swap_capacity: meminfo_bytes(&meminfo, "SwapTotal:"),
            // The first line is the table's head. A kernel without swap has no such file.
            swap_on: std::fs::read_to_string(root.join("proc/swaps")).is_ok_and(|text| text.trim().lines().count() > 1),
            hugepage_sizes: hugepage_sizes(&root.join("sys/kernel/mm/hugepages")),
            thermal_throttle_cpus: thermal_throttle_cpus(&root.join("sys/devices/system/cpu")),
            selinux_enabled: SeLinux::is_on(root),
        }
    }
}

fn own_cgroup(root: &Path) -> Option<PathBuf> {
    let text = std::fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let path = text.lines().find_map(|l| l.strip_prefix("0::/"))?;
    Some(PathBuf::from(path))
}

fn meminfo_bytes(meminfo: &str, key: &str) -> u64 {
    meminfo
        .lines()
        .find_map(|line| line.strip_prefix(key))
        .and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok())
        .map_or(0, |kib| kib.saturating_mul(1024))
}

/// `hugepages-2048kB` becomes `2MB`; small pages first.
fn hugepage_sizes(dir: &Path) -> Vec<String> {
    let mut sizes: Vec<u64> = names(dir)
        .iter()
        .filter_map(|n| n.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse::<u64>().ok())
        .filter_map(|kib| kib.checked_mul(1024))
        .collect();
    sizes.sort_unstable();
    sizes.into_iter().map(hugepage_size_name).collect()
}

/// A page size in bytes as the kernel names it: whole units of 1024, `KB`, `MB`, `GB`.
pub fn hugepage_size_name(bytes: u64) -> String {
    let (mut value, mut unit) = (bytes, 0);
    while value >= 1024 && value % 1024 == 0 && unit < 5 {
        value /= 1024;
        unit += 1;
    }
    format!("{value}{}", ["B", "KB", "MB", "GB", "TB", "PB"][unit])
}

fn thermal_throttle_cpus(dir: &Path) -> Vec<u32> {
    let mut cpus: Vec<u32> = names(dir)
        .iter()
        .filter_map(|n| n.strip_prefix("cpu")?.parse().ok())
        .filter(|n: &u32| dir.join(format!("cpu{n}/thermal_throttle")).exists())
        .collect();
    cpus.sort_unstable();
    cpus
}

fn names(dir: &Path) -> Vec<String> {
    std::fs::read_dir(dir)
        .map(|entries| entries.flatten().filter_map(|e| e.file_name().into_string().ok()).collect())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_of_a_made_up_machine() {
        let root = tempfile::tempdir().unwrap();
        let make = |path: &str| std::fs::create_dir_all(root.path().join(path)).unwrap();
        make("proc");
        make("sys/fs/cgroup/memory");
        make("sys/kernel/mm/hugepages/hugepages-2048kB");
        make("sys/kernel/mm/hugepages/hugepages-1048576kB");
        make("sys/devices/system/cpu/cpu10/thermal_throttle");
        make("sys/devices/system/cpu/cpu2/thermal_throttle");
        make("sys/devices/system/cpu/cpufreq");
        std::fs::write(root.path().join("sys/fs/cgroup/memory/memory.memsw.limit_in_bytes"), "").unwrap();
        std::fs::write(root.path().join("proc/meminfo"), "MemTotal:  1024 kB\nSwapTotal:  2 kB\n").unwrap();
        let swaps = root.path().join("proc/swaps");
        std::fs::write(&swaps, "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n").unwrap();
        assert!(!HostFacts::read(root.path()).swap_on);
        std::fs::write(&swaps, "Filename Type Size Used Priority\n/swap file 1 0 -2\n").unwrap();
        let facts = HostFacts::read(root.path());
        let expected = HostFacts {
            cgroup_v2: false,
            swap_controller: true,
            memory_capacity: 1 << 20,
            swap_capacity: 2048,
            swap_on: true,
            hugepage_sizes: vec!["2MB".into(), "1GB".into()],
            thermal_throttle_cpus: vec![2, 10],
            selinux_enabled: false,
        };
        assert_eq!(facts, expected);
        assert_eq!(HostFacts::read(Path::new("/nowhere")), HostFacts::default());
        assert_eq!(hugepage_size_name(64 * 1024), "64KB");
    }

    #[test]
    fn changed_addresses_are_in_the_next_facts() {
        let shared = SharedFacts::new(NodeFacts::new(HostFacts::default()));
        let (before, ips) = (shared.get(), vec!["10.0.0.1".parse::<IpAddr>().unwrap()]);
        assert!(shared.set_host_ips(ips.clone()) && !shared.set_host_ips(ips.clone()));
        assert_eq!((&before.host_ips, &shared.get().host_ips), (&Vec::new(), &ips));
    }

    #[test]
    fn one_address_of_each_family() {
        let ip = |text: &&str| text.parse::<IpAddr>().unwrap();
        let mut facts = NodeFacts::new(HostFacts::default());
        // What the node was found to have does not count.
        facts.host_ips = vec![ip(&"fd00::9")];
        // Upstream's TestSortPodIPs.
        let cases: [(&str, &[&str], &[&str]); 11] = [
            ("", &["10.0.0.1"], &["10.0.0.1"]),
            ("", &["10.0.0.1", "fd01::1234"], &["10.0.0.1", "fd01::1234"]),
            ("192.168.1.1", &["10.0.0.1", "fd01::1234"], &["10.0.0.1", "fd01::1234"]),
            ("", &["fd01::1234", "10.0.0.1"], &["10.0.0.1", "fd01::1234"]),
            ("192.168.1.1", &["fd01::1234", "10.0.0.1"], &["10.0.0.1", "fd01::1234"]),
            ("fd00::5678", &["10.0.0.1", "fd01::1234"], &["fd01::1234", "10.0.0.1"]),
            ("::", &["10.0.0.1", "fd01::1234"], &["fd01::1234", "10.0.0.1"]),
            ("fd00::5678", &["10.0.0.1"], &["10.0.0.1"]),
            ("", &["fd01::1234"], &["fd01::1234"]),
            ("", &["10.0.0.1", "10.0.0.2", "10.0.0.3"], &["10.0.0.1"]),
            ("", &["10.0.0.1", "10.0.0.2", "fd01::1234", "fd01::5678"], &["10.0.0.1", "fd01::1234"]),
        ];
        for (node_ip, ips, sorted) in cases {
            facts.node_ips = node_ip.parse().into_iter().collect();
            let given: Vec<IpAddr> = ips.iter().map(ip).collect();
            let wanted: Vec<IpAddr> = sorted.iter().map(ip).collect();
            assert_eq!(facts.sort_pod_ips(&given), wanted, "{node_ip} {ips:?}");
        }
    }
}
