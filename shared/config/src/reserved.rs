//! What `enforceNodeAllocatable` has written to cgroups that are not the pods': `system-reserved`, `kube-reserved`, and each of them
//! `-compressible` (upstream `pkg/kubelet/cm/node_container_manager_linux.go`). The launcher refuses to start without such a
//! cgroup, kubelet-volnetd writes, kubelet-syncd tells.

use bulkhead_types::Quantity;

use crate::gates::{Feature, FeatureGates};
use crate::kubelet::{KubeletConfiguration, TextMap};

/// One entry of `enforceNodeAllocatable` that has a cgroup of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// As in the configuration.
    pub key: &'static str,
    /// The field that names its cgroup.
    pub field: &'static str,
    /// In upstream's messages.
    title: &'static str,
    whose: &'static str,
    /// Of CPU alone, which can be taken back at any time.
    compressible: bool,
}

/// In the order in which upstream goes through them.
pub const PARTS: [Part; 4] = [
    part("system-reserved", "systemReservedCgroup", "System Reserved", "system reserved", false),
    part("kube-reserved", "kubeReservedCgroup", "Kube Reserved", "kube reserved", false),
    part(
        "system-reserved-compressible",
        "systemReservedCgroup",
        "System Reserved Compressible",
        "system reserved",
        true,
    ),
    part("kube-reserved-compressible", "kubeReservedCgroup", "Kube Reserved Compressible", "kube reserved", true),
];

const fn part(
    key: &'static str,
    field: &'static str,
    title: &'static str,
    whose: &'static str,
    compressible: bool,
) -> Part {
    Part { key, field, title, whose, compressible }
}

impl Part {
    /// The part that the configuration calls so.
    pub fn of_key(key: &str) -> Option<Part> {
        PARTS.into_iter().find(|part| part.key == key)
    }

    /// Message of the event NodeAllocatableEnforced. `cgroup`: as configured.
    pub fn enforced(&self, cgroup: &str) -> String {
        format!("Updated limits on {} cgroup {cgroup}", self.whose)
    }

    /// Message of the event FailedNodeAllocatableEnforcement, and why upstream ends. `cgroup`: as configured.
    pub fn failed(&self, cgroup: &str, why: &str) -> String {
        format!("Failed to enforce {} Cgroup Limits on {cgroup:?}: {why}", self.title)
    }
}

/// One cgroup's limits, in the units of cgroups. None: not reserved, and the cgroup keeps what it has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Enforcement {
    pub part: Part,
    /// As configured.
    pub cgroup: String,
    /// Nothing at all is reserved, which upstream refuses.
    pub is_empty: bool,
    /// Thousandths of a CPU.
    pub milli_cpu: Option<u64>,
    /// Bytes, above 0.
    pub memory_bytes: Option<i64>,
    /// Bytes that are never taken back (gate MemoryQoS, cgroup v2 alone).
    pub memory_min_bytes: Option<u64>,
    /// Processes, above 0: systemd takes no 0.
    pub pids: Option<i64>,
}

impl Enforcement {
    /// Controllers whose files are written, by their names of cgroup v1.
    pub fn controllers(&self) -> Vec<&'static str> {
        let wanted =
            [("cpu", self.milli_cpu.is_some()), ("memory", self.memory_bytes.is_some()), ("pids", self.pids.is_some())];
        wanted.into_iter().filter(|(_, wanted)| *wanted).map(|(name, _)| name).collect()
    }

    /// What upstream says of a cgroup for which nothing is reserved.
    pub fn nothing_reserved(&self, systemd: bool) -> String {
        let parts = components(&self.cgroup, systemd).iter().map(|part| format!("{part:?}")).collect::<Vec<_>>();
        format!("[{}] cgroup is not configured properly", parts.join(" "))
    }
}

/// Everything that `enforceNodeAllocatable` asks for beside the pods' cgroup, in upstream's order.
pub fn enforcements(config: &KubeletConfiguration) -> Vec<Enforcement> {
    let memory_qos = FeatureGates::from_map(&config.feature_gates).enabled(Feature::MemoryQoS);
    let wanted = PARTS.into_iter().filter(|part| config.enforce_node_allocatable.iter().any(|key| key == part.key));
    let enforcement = |part: Part| {
        let (cgroup, amounts) = match part.field {
            "systemReservedCgroup" => (&config.system_reserved_cgroup, &config.system_reserved),
            _ => (&config.kube_reserved_cgroup, &config.kube_reserved),
        };
        let incompressible = |name| amount(amounts, name).filter(|_| !part.compressible).map(Quantity::value);
        let memory_bytes = incompressible("memory").filter(|bytes| *bytes > 0);
        Enforcement {
            part,
            cgroup: cgroup.clone(),
            is_empty: amounts.is_empty(),
            milli_cpu: amount(amounts, "cpu").and_then(|cpu| u64::try_from(cpu.milli_value()).ok()),
            memory_bytes,
            memory_min_bytes: memory_bytes.filter(|_| memory_qos).and_then(|bytes| u64::try_from(bytes).ok()),
            pids: incompressible("pid").map(|pids| pids.max(1)),
        }
    };
    wanted.map(enforcement).collect()
}

fn amount(amounts: &TextMap, name: &str) -> Option<Quantity> {
    Quantity::parse(amounts.get(name)?).ok()
}

/// The path of a reserved cgroup below the root of the hierarchy, by the driver in use (upstream CgroupName and ToSystemd): a
/// slice of systemd's is known by the last part of what is configured.
pub fn path(cgroup: &str, systemd: bool) -> String {
    let mut path = String::new();
    let mut slice = String::new();
    for component in components(cgroup, systemd) {
        path.push('/');
        if systemd {
            if !slice.is_empty() {
                slice.push('-');
            }
            slice.push_str(&component.replace('-', "_"));
            path.push_str(&slice);
            path.push_str(SLICE);
        } else {
            path.push_str(&component);
        }
    }
    if path.is_empty() { "/".to_owned() } else { path }
}

const SLICE: &str = ".slice";

fn components(cgroup: &str, systemd: bool) -> Vec<String> {
    let mut parts = cgroup.split('/').filter(|part| !part.is_empty());
    if !systemd {
        return parts.map(str::to_owned).collect();
    }
    let name = parts.next_back().unwrap_or_default();
    let levels = name.strip_suffix(SLICE).unwrap_or(name).split('-').filter(|level| !level.is_empty());
    levels.map(|level| level.replace('_', "-")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::defaults::flag_defaults;
    use proptest::prelude::*;

    fn map(pairs: &[(&str, &str)]) -> TextMap {
        pairs.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
    }

    #[test]
    fn what_is_asked_for_in_upstreams_order() {
        let mut config = flag_defaults();
        assert_eq!(enforcements(&config), []);
        config.enforce_node_allocatable =
            ["kube-reserved-compressible", "pods", "system-reserved"].map(str::to_owned).to_vec();
        config.system_reserved =
            map(&[("cpu", "200m"), ("memory", "300Mi"), ("pid", "500"), ("ephemeral-storage", "1Gi")]);
        config.kube_reserved = map(&[("cpu", "100m"), ("memory", "100Mi"), ("pid", "300")]);
        config.system_reserved_cgroup = "/sys".into();
        config.kube_reserved_cgroup = "/kube".into();
        let found = enforcements(&config);
        let shown = |e: &Enforcement| (e.part.key, e.cgroup.clone(), e.milli_cpu, e.memory_bytes, e.pids);
        assert_eq!(
            found.iter().map(shown).collect::<Vec<_>>(),
            [
                ("system-reserved", "/sys".to_owned(), Some(200), Some(300 << 20), Some(500)),
                ("kube-reserved-compressible", "/kube".to_owned(), Some(100), None, None),
            ]
        );
        assert_eq!((found[0].memory_min_bytes, found[0].controllers().join(" ")), (None, "cpu memory pids".to_owned()));
        config.feature_gates.insert("MemoryQoS".into(), true);
        config.system_reserved = map(&[("memory", "300Mi"), ("pid", "0")]);
        let found = enforcements(&config);
        assert_eq!((found[0].milli_cpu, found[0].memory_min_bytes, found[0].pids), (None, Some(300 << 20), Some(1)));
        assert_eq!((found[1].memory_min_bytes, found[1].is_empty), (None, false));
        config.kube_reserved.clear();
        let empty = &enforcements(&config)[1];
        assert!(empty.is_empty && empty.controllers().is_empty());
        assert_eq!(empty.nothing_reserved(false), "[\"kube\"] cgroup is not configured properly");
    }

    #[test]
    fn upstreams_words() {
        let [system, kube, ..] = PARTS;
        assert_eq!(system.enforced("/s"), "Updated limits on system reserved cgroup /s");
        assert_eq!(kube.failed("/k", "x"), "Failed to enforce Kube Reserved Cgroup Limits on \"/k\": x");
        assert_eq!(
            Part::of_key("system-reserved-compressible").unwrap().failed("/s", "x"),
            "Failed to enforce System Reserved Compressible Cgroup Limits on \"/s\": x"
        );
        assert_eq!(Part::of_key("pods"), None);
    }

    #[test]
    fn paths_by_driver() {
        for (configured, systemd, expected) in [
            ("/sys", false, "/sys"),
            ("sys/a.slice", false, "/sys/a.slice"),
            ("/", false, "/"),
            ("/", true, "/"),
            ("/system.slice", true, "/system.slice"),
            ("/kubelet", true, "/kubelet.slice"),
            ("/a.slice/a-b_c.slice", true, "/a.slice/a-b_c.slice"),
            ("/x/a-b", true, "/a.slice/a-b.slice"),
        ] {
            assert_eq!(path(configured, systemd), expected, "{configured} {systemd}");
        }
    }

    proptest! {
        #[test]
        fn a_path_names_itself(text in "(/[a-z_.-]{1,6}){0,4}") {
            for systemd in [true, false] {
                let once = path(&text, systemd);
                prop_assert!(once.starts_with('/'));
                prop_assert_eq!(path(&once, systemd), once);
            }
        }
    }
}
