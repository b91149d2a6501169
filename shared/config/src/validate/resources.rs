//! Limits of cgroups, CPU and memory managers, topology and reservations.

use bulkhead_types::resource_name::huge_page_size;
use bulkhead_types::{GoDuration, Quantity};

use super::{Limits, quoted};
use crate::cpu_set::CpuSet;
use crate::gates::Feature;
use crate::kubelet::TextMap;

/// Options of the static CPU policy: name, the gate that an option not yet stable needs.
const CPU_OPTIONS: &[(&str, Option<Feature>)] = &[
    ("full-pcpus-only", None),
    ("strict-cpu-reservation", None),
    ("prefer-align-cpus-by-uncorecache", None),
    ("distribute-cpus-across-numa", Some(Feature::CPUManagerPolicyBetaOptions)),
    ("align-by-socket", Some(Feature::CPUManagerPolicyAlphaOptions)),
    ("distribute-cpus-across-cores", Some(Feature::CPUManagerPolicyAlphaOptions)),
];

/// Pairs that cannot both be on.
const CPU_OPTION_CONFLICTS: &[(&str, &str)] = &[
    ("distribute-cpus-across-cores", "full-pcpus-only"),
    ("distribute-cpus-across-cores", "distribute-cpus-across-numa"),
    ("distribute-cpus-across-cores", "prefer-align-cpus-by-uncorecache"),
    ("prefer-align-cpus-by-uncorecache", "distribute-cpus-across-numa"),
];

const ENFORCEMENTS: &[&str] =
    &["pods", "system-reserved", "system-reserved-compressible", "kube-reserved", "kube-reserved-compressible", "none"];

/// Go's strconv.ParseBool.
pub(crate) fn go_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}

impl Limits<'_> {
    pub(super) fn cgroups(&mut self) {
        let config = self.config;
        self.one_of("cgroupDriver", &config.cgroup_driver, &["cgroupfs", "systemd"]);
        self.check(
            config.system_cgroups.is_empty() || !config.cgroup_root.is_empty(),
            "systemCgroups",
            quoted(&config.system_cgroups),
            "needs cgroupRoot",
        );
        self.range("oomScoreAdj", config.oom_score_adj().into(), -1000, 1000);
        self.range("maxOpenFiles", config.max_open_files, 0, i64::MAX);
        self.one_of("memorySwap.swapBehavior", &config.memory_swap.swap_behavior, &["", "NoSwap", "LimitedSwap"]);
        let period = config.cpu_cfs_quota_period();
        let (holds, why) = if self.gates.enabled(Feature::CustomCPUCFSQuotaPeriod) {
            let allowed = GoDuration::from_millis(1)..=GoDuration::from_secs(1);
            (allowed.contains(&period), "must be from 1ms to 1s")
        } else {
            (period == GoDuration::from_millis(100), "requires feature gate CustomCPUCFSQuotaPeriod")
        };
        self.check(holds, "cpuCFSQuotaPeriod", period, why);
        self.enforcement();
    }

    fn enforcement(&mut self) {
        let config = self.config;
        let list = &config.enforce_node_allocatable;
        let has = |item: &str| list.iter().any(|entry| entry == item);
        for (index, item) in list.iter().enumerate() {
            let path = format!("enforceNodeAllocatable[{index}]");
            self.one_of(&path, item, ENFORCEMENTS);
            self.check(!list[..index].contains(item), &path, quoted(item), "must not be listed twice");
            let cgroup = match item.as_str() {
                "system-reserved" | "system-reserved-compressible" => {
                    Some(("systemReservedCgroup", &config.system_reserved_cgroup))
                }
                "kube-reserved" | "kube-reserved-compressible" => {
                    Some(("kubeReservedCgroup", &config.kube_reserved_cgroup))
                }
                _ => None,
            };
            if let Some((field, _)) = cgroup.filter(|(_, value)| value.is_empty()) {
                self.refuse(path, quoted(item), format!("needs {field}"));
            }
        }
        let path = "enforceNodeAllocatable";
        let shown = format!("{list:?}");
        self.check(!has("none") || list.len() == 1, path, &shown, "\"none\" must stand alone");
        for kind in ["system-reserved", "kube-reserved"] {
            let compressible = format!("{kind}-compressible");
            self.check(
                !(has(kind) && has(&compressible)),
                path,
                &shown,
                &format!("must not have both {kind:?} and {compressible:?}"),
            );
        }
        let enforces = list.iter().any(|item| item != "none");
        self.check(
            config.cgroups_per_qos() || !enforces,
            "cgroupsPerQOS",
            false,
            "must be true unless enforceNodeAllocatable is [] or [none]",
        );
    }

    pub(super) fn cpu_and_memory(&mut self) {
        let config = self.config;
        self.one_of("cpuManagerPolicy", &config.cpu_manager_policy, &["none", "static"]);
        self.cpu_options();
        self.one_of("memoryManagerPolicy", &config.memory_manager_policy, &["None", "Static"]);
        self.one_of(
            "topologyManagerPolicy",
            &config.topology_manager_policy,
            &["none", "best-effort", "restricted", "single-numa-node"],
        );
        self.one_of("topologyManagerScope", &config.topology_manager_scope, &["container", "pod"]);
        for (name, value) in &config.topology_manager_policy_options {
            let path = format!("topologyManagerPolicyOptions[{name}]");
            match name.as_str() {
                "prefer-closest-numa-nodes" => {
                    self.check(go_bool(value).is_some(), &path, quoted(value), "must be true or false");
                }
                "max-allowable-numa-nodes" => {
                    let enough = value.parse::<i64>().is_ok_and(|nodes| nodes >= 8);
                    self.check(enough, &path, quoted(value), "must be a whole number of 8 or more");
                }
                _ => self.refuse(
                    path,
                    quoted(value),
                    "must be an option among prefer-closest-numa-nodes, max-allowable-numa-nodes",
                ),
            }
        }
        for (name, value) in &config.qos_reserved {
            let path = format!("qosReserved[{name}]");
            self.needs_gate(true, &path, quoted(value), Feature::QOSReserved);
            self.check(name == "memory", &path, quoted(value), "only memory can be reserved");
            let percent = value.strip_suffix('%').and_then(|number| number.parse::<i64>().ok());
            self.check(
                percent.is_some_and(|p| (0..=100).contains(&p)),
                &path,
                quoted(value),
                "must be a percentage from 0% to 100%",
            );
        }
        let factor = config.memory_throttling_factor();
        self.check(factor > 0.0 && factor <= 1.0, "memoryThrottlingFactor", factor, "must be above 0 and at most 1.0");
        let policy = config.memory_reservation_policy.as_str();
        self.one_of("memoryReservationPolicy", policy, &["None", "TieredReservation"]);
        self.needs_gate(policy == "TieredReservation", "memoryReservationPolicy", quoted(policy), Feature::MemoryQoS);
        self.reserved_memory();
    }

    fn cpu_options(&mut self) {
        let config = self.config;
        let options = &config.cpu_manager_policy_options;
        let is_on = |name: &str| options.get(name).is_some_and(|value| go_bool(value) == Some(true));
        for (name, value) in options {
            let path = format!("cpuManagerPolicyOptions[{name}]");
            match CPU_OPTIONS.iter().find(|(known, _)| known == name) {
                None => {
                    let known: Vec<&str> = CPU_OPTIONS.iter().map(|(known, _)| *known).collect();
                    self.refuse(path, quoted(value), format!("must be an option among {}", known.join(", ")));
                }
                Some((_, gate)) => {
                    self.check(go_bool(value).is_some(), &path, quoted(value), "must be true or false");
                    if let Some(gate) = *gate {
                        self.needs_gate(true, &path, quoted(value), gate);
                    }
                }
            }
        }
        self.check(
            options.is_empty() || config.cpu_manager_policy == "static",
            "cpuManagerPolicyOptions",
            format!("({} options)", options.len()),
            "needs cpuManagerPolicy: static",
        );
        for (one, other) in CPU_OPTION_CONFLICTS {
            self.check(
                !(is_on(one) && is_on(other)),
                &format!("cpuManagerPolicyOptions[{one}]"),
                true,
                &format!("cannot be combined with {other}"),
            );
        }
        self.check(
            !(is_on("align-by-socket") && config.topology_manager_policy == "single-numa-node"),
            "cpuManagerPolicyOptions[align-by-socket]",
            true,
            "cannot be combined with topologyManagerPolicy: single-numa-node",
        );
        if config.cpu_manager_policy == "static" {
            let cpu = |map: &TextMap| map.get("cpu").and_then(|text| Quantity::parse(text).ok()).unwrap_or_default();
            let explicit = CpuSet::parse(&config.reserved_system_cpus).is_ok_and(|set| !set.is_empty());
            let reserved = cpu(&config.kube_reserved) + cpu(&config.system_reserved);
            self.check(
                explicit || reserved > Quantity::ZERO,
                "cpuManagerPolicy",
                "\"static\"",
                "needs reserved CPU above 0: set kubeReserved, systemReserved or reservedSystemCPUs",
            );
        }
    }

    fn reserved_memory(&mut self) {
        let config = self.config;
        let mut seen = Vec::new();
        for (index, reservation) in config.reserved_memory.iter().enumerate() {
            self.range(&format!("reservedMemory[{index}].numaNode"), reservation.numa_node.into(), 0, i64::MAX);
            for (kind, amount) in &reservation.limits {
                let path = format!("reservedMemory[{index}].limits[{kind}]");
                let huge = huge_page_size(kind).is_some();
                self.check(kind == "memory" || huge, &path, amount, "only memory and hugepages-<size> can be reserved");
                self.check(*amount > Quantity::ZERO, &path, amount, "must be above 0");
                let key = (reservation.numa_node, kind.as_str());
                self.check(!seen.contains(&key), &path, amount, "must not be reserved twice on one NUMA node");
                seen.push(key);
            }
        }
    }

    pub(super) fn reservations(&mut self) {
        let config = self.config;
        for (field, map) in [("kubeReserved", &config.kube_reserved), ("systemReserved", &config.system_reserved)] {
            for (name, text) in map {
                let path = format!("{field}[{name}]");
                if !matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage" | "pid") {
                    self.refuse(
                        path,
                        quoted(text),
                        format!("cannot reserve {name:?} resource: must be cpu, memory, ephemeral-storage or pid"),
                    );
                    continue;
                }
                match Quantity::parse(text) {
                    Ok(quantity) => self.check(!quantity.is_negative(), &path, quoted(text), "must be 0 or more"),
                    Err(_) => self.refuse(path, quoted(text), "must be a quantity such as 100m or 1Gi"),
                }
            }
        }
        let cpus = &config.reserved_system_cpus;
        if let Err(error) = CpuSet::parse(cpus) {
            self.refuse("reservedSystemCPUs", quoted(cpus), error.to_string());
        }
        self.check(
            cpus.is_empty() || config.system_reserved_cgroup.is_empty() && config.kube_reserved_cgroup.is_empty(),
            "reservedSystemCPUs",
            quoted(cpus),
            "cannot be combined with systemReservedCgroup or kubeReservedCgroup",
        );
    }
}
