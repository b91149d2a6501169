//! What is configured, and the start from it: the same for the launcher, which refuses what does not fit, and for kubelet-syncd.

use std::path::{Path, PathBuf};

use bulkhead_config::cpu_set::CpuSet;
use bulkhead_config::eviction::{self, Signal};
use bulkhead_config::{Feature, NodeConfig};
use bulkhead_types::Quantity;
use kubelet_model::pod::resources::Amounts;

use crate::checkpoint::cpu::InitialContainers;
use crate::cpu::policy::Reservation;
use crate::manager::{ContainerManager, Found, Settings, StartError};
use crate::request::Gates;
use crate::topology::{Machine, sysfs};

/// Where a machine tells of itself.
pub const SYSTEM: &str = "/sys/devices/system";

impl Settings {
    /// `memory`: bytes that the machine has.
    pub fn of(config: &NodeConfig, memory: u64) -> Self {
        let (kubelet, gates) = (&config.kubelet, config.feature_gates());
        let kept = kept(config, memory);
        let reserved = kubelet.reserved_memory.iter().map(|node| {
            // The configuration's check has refused what is below zero.
            (u32::try_from(node.numa_node).unwrap_or(u32::MAX), node.limits.clone())
        });
        Settings {
            cpu_policy: kubelet.cpu_manager_policy.clone(),
            cpu_options: kubelet.cpu_manager_policy_options.clone(),
            cpu_reservation: Reservation {
                cpus: CpuSet::parse(&kubelet.reserved_system_cpus).unwrap_or_default(),
                amount: kept.get("cpu").copied(),
            },
            memory_policy: kubelet.memory_manager_policy.clone(),
            reserved_memory: reserved.collect(),
            memory_reservation: kept,
            topology_policy: kubelet.topology_manager_policy.clone(),
            topology_scope: kubelet.topology_manager_scope.clone(),
            topology_options: kubelet.topology_manager_policy_options.clone(),
            gates: Gates {
                cpu_alpha_options: gates.enabled(Feature::CPUManagerPolicyAlphaOptions),
                cpu_beta_options: gates.enabled(Feature::CPUManagerPolicyBetaOptions),
                pod_level: gates.enabled(Feature::PodLevelResources)
                    && gates.enabled(Feature::PodLevelResourceManagers),
                no_quota: gates.enabled(Feature::DisableCPUQuotaWithExclusiveCPUs),
                extended_by_claims: gates.enabled(Feature::DRAExtendedResource),
            },
            root: config.paths.root_dir.clone(),
        }
    }

    /// What the machine is matters. Where nobody gets anything for himself, it need not even tell.
    fn needs_machine(&self) -> bool {
        (self.cpu_policy.as_str(), self.memory_policy.as_str(), self.topology_policy.as_str())
            != ("none", "None", "none")
    }
}

/// What node allocatable lays aside of CPU and memory (upstream `cm/node_container_manager_linux.go`, GetNodeAllocatableReservation).
/// What is zero is left out.
fn kept(config: &NodeConfig, memory: u64) -> Amounts {
    let kubelet = &config.kubelet;
    let mut kept = Amounts::new();
    for (name, text) in kubelet.kube_reserved.iter().chain(&kubelet.system_reserved) {
        if let Ok(amount) = Quantity::parse(text) {
            *kept.entry(name.clone()).or_insert(Quantity::ZERO) += amount;
        }
    }
    let thresholds = eviction::parse_all(kubelet).unwrap_or_default();
    let hard = thresholds.iter().find(|t| t.is_hard() && t.signal == Signal::MemoryAvailable);
    if let Some(hard) = hard.filter(|_| !config.flags.experimental_allocatable_ignore_eviction) {
        let limit = match hard.limit {
            eviction::Limit::Quantity(quantity) => quantity,
            limit => Quantity::from_bytes(limit.absolute(i64::try_from(memory).unwrap_or(i64::MAX))),
        };
        *kept.entry("memory".to_owned()).or_insert(Quantity::ZERO) += limit;
    }
    kept.retain(|_, amount| !amount.is_zero());
    kept
}

/// Starts the managers. `system`: [`SYSTEM`]; `memory`: bytes that the machine has; `found`: the state files; `initial`: containers of
/// the runtime.
///
/// # Errors
/// Settings, machine and files do not fit together.
pub fn start(
    config: &NodeConfig,
    system: &Path,
    memory: u64,
    found: &Found,
    initial: &InitialContainers,
) -> Result<ContainerManager, StartError> {
    let settings = Settings::of(config, memory);
    let machine = match settings.needs_machine() {
        true => {
            let tree = sysfs::read(system)
                .map_err(|error| StartError::Unreadable { path: PathBuf::from(system), error: error.to_string() })?;
            sysfs::machine(&tree)?
        }
        false => Machine::default(),
    };
    ContainerManager::start(&settings, &machine, found, initial)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(change: impl FnOnce(&mut NodeConfig)) -> NodeConfig {
        let mut config = NodeConfig::for_tests(Path::new("/nowhere"));
        config.kubelet.eviction_hard.clear();
        change(&mut config);
        config
    }

    fn shown(amounts: &Amounts) -> String {
        amounts.iter().map(|(name, amount)| format!("{name}={amount}")).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn what_is_laid_aside() {
        let kept = |change: fn(&mut NodeConfig)| shown(&kept(&config(change), 1000 << 20));
        assert_eq!(kept(|_| ()), "");
        assert_eq!(
            kept(|c| {
                c.kubelet.kube_reserved =
                    [("cpu".to_owned(), "500m".to_owned()), ("pid".to_owned(), "0".to_owned())].into();
                c.kubelet.system_reserved =
                    [("cpu".to_owned(), "700m".to_owned()), ("memory".to_owned(), "1Gi".to_owned())].into();
                c.kubelet.eviction_hard = [("memory.available".to_owned(), "100Mi".to_owned())].into();
            }),
            "cpu=1200m memory=1124Mi"
        );
        fn percent(c: &mut NodeConfig) {
            c.kubelet.eviction_hard = [("memory.available".to_owned(), "50%".to_owned())].into();
        }
        assert_eq!(kept(percent), "memory=500Mi");
        assert_eq!(
            kept(|c| {
                percent(c);
                c.flags.experimental_allocatable_ignore_eviction = true;
            }),
            ""
        );
    }

    #[test]
    fn gates() {
        let gates = |set: &[(&str, bool)]| {
            let config =
                config(|c| c.kubelet.feature_gates.extend(set.iter().map(|(gate, on)| ((*gate).to_owned(), *on))));
            Settings::of(&config, 0).gates
        };
        let unset = Gates { cpu_beta_options: true, no_quota: true, extended_by_claims: true, ..Gates::default() };
        assert_eq!(gates(&[]), unset);
        assert!(gates(&[("CPUManagerPolicyAlphaOptions", true)]).cpu_alpha_options);
        assert!(gates(&[("PodLevelResourceManagers", true)]).pod_level);
        assert!(!gates(&[("DRAExtendedResource", false)]).extended_by_claims);
    }

    #[test]
    fn the_machine_is_asked_where_it_matters() {
        let start = |change: fn(&mut NodeConfig)| {
            let missing = Path::new("/nowhere/system");
            start(&config(change), missing, 0, &Found::default(), &InitialContainers::new())
        };
        assert!(start(|_| ()).is_ok());
        let error = start(|c| c.kubelet.topology_manager_policy = "restricted".to_owned()).unwrap_err();
        assert!(
            error.to_string().starts_with("could not detect the topology of this machine: /nowhere/system"),
            "{error}"
        );
    }
}
