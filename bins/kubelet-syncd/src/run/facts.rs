//! The node's facts at the start, from the configuration, the machine and the runtime's answers.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use bulkhead_config::{Feature, NodeConfig};
use bulkhead_cri::v1;
use bulkhead_types::Quantity;

use crate::cgroups::{Capacity, Reserved, reserved};
use crate::node_resources::NodeResources;
use crate::sync_loop::runtime_health::RuntimeHealth;
use kubelet_model::node_facts::MemoryQos;
use kubelet_model::node_facts::{HostFacts, NodeFacts, SwapBehavior};
use kubelet_model::pod::memory_qos::QosReserved;

pub fn node_facts(
    config: &NodeConfig,
    host: HostFacts,
    resources: &NodeResources,
    version: &v1::VersionResponse,
    health: &RuntimeHealth,
    host_ips: Vec<IpAddr>,
) -> NodeFacts {
    let kubelet = &config.kubelet;
    let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    let swap_behavior = match kubelet.memory_swap.swap_behavior.as_str() {
        "LimitedSwap" => SwapBehavior::LimitedSwap,
        _ => SwapBehavior::NoSwap,
    };
    let quota_period = kubelet.cpu_cfs_quota_period();
    NodeFacts {
        runtime_name: version.runtime_name.clone(),
        pod_logs_dir: config.paths.pod_logs_dir.clone(),
        pods_dir: config.paths.pods(),
        seccomp_root: config.paths.seccomp_root(),
        seccomp_default: config.seccomp_default(),
        cpu_cfs_quota: kubelet.cpu_cfs_quota(),
        cpu_cfs_quota_period_us: quota_period.as_nanos() / 1000,
        pod_pids_limit: config.pod_pids_limit().map(signed),
        swap_behavior,
        single_process_oom_kill: kubelet.single_process_oom_kill,
        memory_qos: memory_qos(config, &host, resources),
        resolv_conf: config.resolv_conf().map(PathBuf::from).unwrap_or_default(),
        cluster_dns: config.cluster_dns.iter().map(ToString::to_string).collect(),
        cluster_domain: kubelet.cluster_domain.clone(),
        hostname_override: config.feature_gates().enabled(Feature::HostnameOverride),
        env_files: config.feature_gates().enabled(Feature::EnvFiles),
        stop_signals: config.feature_gates().enabled(Feature::ContainerStopSignals),
        image_volume_digests: config.feature_gates().enabled(Feature::ImageVolumeWithDigest),
        pod_level_resize: config.feature_gates().enabled(Feature::InPlacePodLevelResourcesVerticalScaling),
        allocatable: resources.allocatable.clone(),
        node_ips: config.node_ips.clone(),
        host_ips,
        handlers: health.handler_features(),
        ..NodeFacts::new(host)
    }
}

/// What gate QOSReserved has kept from lower QoS classes.
pub(super) fn qos_reserved(config: &NodeConfig, capacity: &Capacity, reserved: &Reserved) -> Option<QosReserved> {
    let percent = config.kubelet.qos_reserved.get("memory")?.strip_suffix('%')?.parse().ok()?;
    let kept = reserved.get("memory").and_then(|amount| u64::try_from(amount.value()).ok()).unwrap_or(0);
    let allocatable = capacity.memory.saturating_sub(kept);
    config.feature_gates().enabled(Feature::QOSReserved).then_some(QosReserved { memory_percent: percent, allocatable })
}

/// Settings of gate MemoryQoS, which needs cgroup v2.
fn memory_qos(config: &NodeConfig, host: &HostFacts, resources: &NodeResources) -> Option<MemoryQos> {
    if !host.cgroup_v2 || !config.feature_gates().enabled(Feature::MemoryQoS) {
        return None;
    }
    let kubelet = &config.kubelet;
    let kept = reserved(&kubelet.kube_reserved, &kubelet.system_reserved);
    let of = |amounts: &BTreeMap<String, Quantity>| amounts.get("memory").map_or(0, |amount| amount.value());
    Some(MemoryQos {
        throttling_factor: kubelet.memory_throttling_factor(),
        tiered: kubelet.memory_reservation_policy == "TieredReservation",
        allocatable: of(&resources.capacity).saturating_sub(of(&kept)).max(0),
        page_size: i64::try_from(bulkhead_sys::page::size()).unwrap_or(4096),
    })
}
