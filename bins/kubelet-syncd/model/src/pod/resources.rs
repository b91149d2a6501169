//! Requests and limits turned into numbers: sums over a pod, its QoS class, and what its cgroup, its sandbox and each
//! container get. Formulas are upstream's (`component-helpers/resource`, `pkg/apis/core/v1/helper/qos`,
//! `pkg/kubelet/cm/helpers_linux.go`, `pkg/kubelet/qos/policy.go`).

use std::collections::BTreeMap;

use crate::v1::{Container, Pod};
use bulkhead_cri::v1;
use bulkhead_types::resource_name::{huge_page_size, is_pod_level};
use bulkhead_types::{QosClass, Quantity, cpu};
use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

use super::spec::{self, containers, init_containers, is_sidecar};
use crate::node_facts::{NodeFacts, SwapBehavior, hugepage_size_name};

/// Resource name to amount.
pub type Amounts = BTreeMap<String, Quantity>;

const GUARANTEED_OOM_SCORE: i64 = -997;
const BEST_EFFORT_OOM_SCORE: i64 = 1000;

/// A list of the API as numbers; an amount that does not parse is left out (validation has refused such pods).
pub fn amounts(list: Option<&BTreeMap<String, ApiQuantity>>) -> Amounts {
    list.into_iter().flatten().filter_map(|(name, q)| Some((name.clone(), Quantity::parse(&q.0).ok()?))).collect()
}

/// One of them alone: a list may have thousands.
pub fn amount(list: Option<&BTreeMap<String, ApiQuantity>>, name: &str) -> Option<Quantity> {
    Quantity::parse(&list?.get(name)?.0).ok()
}

/// What they request.
pub fn requests(r: Option<&ResourceRequirements>) -> Amounts {
    amounts(r.and_then(|r| r.requests.as_ref()))
}

fn limits(r: Option<&ResourceRequirements>) -> Amounts {
    amounts(r.and_then(|r| r.limits.as_ref()))
}

/// Amounts as the API writes them.
pub fn to_api(amounts: &Amounts) -> BTreeMap<String, ApiQuantity> {
    amounts.iter().map(|(name, q)| (name.clone(), ApiQuantity(q.to_string()))).collect()
}

fn get(amounts: &Amounts, name: &str) -> Quantity {
    amounts.get(name).copied().unwrap_or(Quantity::ZERO)
}

fn add(sum: &mut Amounts, more: &Amounts) {
    for (name, q) in more {
        match sum.get_mut(name) {
            Some(have) => *have += *q,
            None => {
                sum.insert(name.clone(), *q);
            }
        }
    }
}

/// The larger of both, by name.
pub fn raise(max: &mut Amounts, other: &Amounts) {
    for (name, q) in other {
        match max.get_mut(name) {
            Some(have) if *have >= *q => {}
            _ => {
                max.insert(name.clone(), *q);
            }
        }
    }
}

/// The resources of the pod as a whole.
pub fn pod_level(pod: &Pod) -> Option<&ResourceRequirements> {
    pod.spec.as_ref()?.resources.as_ref()
}

fn pod_level_amounts(list: Amounts) -> Amounts {
    list.into_iter().filter(|(name, _)| is_pod_level(name)).collect()
}

/// Requests or limits are set for the pod as a whole.
pub fn has_pod_level(pod: &Pod) -> bool {
    let level = pod_level(pod);
    !pod_level_amounts(requests(level)).is_empty() || !pod_level_amounts(limits(level)).is_empty()
}

/// Containers side by side, init containers one after another on top of the sidecars started before them.
fn aggregate(pod: &Pod, of: impl Fn(&Container) -> Amounts) -> Amounts {
    let mut sum = Amounts::new();
    for container in containers(pod) {
        add(&mut sum, &of(container));
    }
    let (mut sidecars, mut init_peak) = (Amounts::new(), Amounts::new());
    for container in init_containers(pod) {
        let own = of(container);
        // Of the others the peak is that of the sidecars already. There may be thousands of both containers and names.
        let mut during: Amounts = own.keys().filter_map(|name| Some((name.clone(), *sidecars.get(name)?))).collect();
        add(&mut during, &own);
        raise(&mut init_peak, &during);
        if is_sidecar(container) {
            add(&mut sum, &own);
            add(&mut sidecars, &own);
        }
    }
    raise(&mut sum, &init_peak);
    sum
}

/// What the pod's runtime takes on top of its containers.
pub fn pod_overhead(pod: &Pod) -> Amounts {
    amounts(pod.spec.as_ref().and_then(|s| s.overhead.as_ref()))
}

/// What the pod requests: containers, init containers, pod-level values, overhead if wanted.
pub fn pod_requests(pod: &Pod, with_overhead: bool) -> Amounts {
    let mut sum = requests_of(pod, |c| requests(c.resources.as_ref()), requests(pod_level(pod)));
    if with_overhead {
        add(&mut sum, &pod_overhead(pod));
    }
    sum
}

/// What the pod requests without its overhead where each container requests `own`, and the pod as a whole `level`.
pub fn requests_of(pod: &Pod, own: impl Fn(&Container) -> Amounts, level: Amounts) -> Amounts {
    let mut sum = aggregate(pod, own);
    sum.extend(pod_level_amounts(level));
    sum
}

/// The pod's limits. Overhead counts only where there is a limit at all, and zero is none (upstream PodLimits).
pub fn pod_limits(pod: &Pod, with_overhead: bool) -> Amounts {
    let mut sum = aggregate(pod, |c| limits(c.resources.as_ref()));
    sum.extend(pod_level_amounts(limits(pod_level(pod))));
    if with_overhead {
        for (name, q) in pod_overhead(pod) {
            if let Some(have) = sum.get_mut(&name).filter(|limit| !limit.is_zero()) {
                *have += q;
            }
        }
    }
    sum
}

/// QoS class from the spec.
pub fn qos_class(pod: &Pod) -> QosClass {
    let relevant = |list: Amounts| -> Amounts {
        list.into_iter().filter(|(n, q)| (n == "cpu" || n == "memory") && *q > Quantity::ZERO).collect()
    };
    let (mut want, mut cap, mut guaranteed) = (Amounts::new(), Amounts::new(), true);
    if has_pod_level(pod) {
        want = relevant(requests(pod_level(pod)));
        cap = relevant(limits(pod_level(pod)));
        guaranteed = cap.len() == 2;
    } else {
        for container in containers(pod).iter().chain(init_containers(pod)) {
            add(&mut want, &relevant(requests(container.resources.as_ref())));
            let own = relevant(limits(container.resources.as_ref()));
            guaranteed &= own.len() == 2;
            add(&mut cap, &own);
        }
    }
    if want.is_empty() && cap.is_empty() {
        return QosClass::BestEffort;
    }
    if guaranteed && want.len() == cap.len() && want.iter().all(|(name, q)| cap.get(name) == Some(q)) {
        return QosClass::Guaranteed;
    }
    QosClass::Burstable
}

/// CPU shares for thousandths of a core.
pub fn milli_cpu_to_shares(milli: i64) -> u64 {
    cpu::milli_cpu_to_shares(u64::try_from(milli).unwrap_or(0))
}

/// CFS quota in microseconds for thousandths of a core; 0 is no limit.
pub fn milli_cpu_to_quota(milli: i64, period_us: i64) -> i64 {
    let (milli, period_us) = (u64::try_from(milli).unwrap_or(0), u64::try_from(period_us).unwrap_or(0));
    cpu::milli_cpu_to_quota(milli, period_us).map_or(0, |quota| i64::try_from(quota).unwrap_or(i64::MAX))
}

/// Thousandths of a core for CPU shares, rounded up (upstream SharesToMilliCPU).
pub fn shares_to_milli_cpu(shares: u64) -> i64 {
    i64::try_from(shares.saturating_mul(1000).div_ceil(1024)).unwrap_or(i64::MAX)
}

/// Thousandths of a core for a CFS quota; None: no limit.
pub fn quota_to_milli_cpu(quota_us: i64, period_us: i64) -> Option<i64> {
    (quota_us > 0 && period_us > 0).then(|| quota_us.saturating_mul(1000) / period_us).filter(|milli| *milli > 0)
}

/// Values of a pod's cgroup; None leaves a value as it is. Same meaning as volnetd's `CgroupResources`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CgroupResources {
    pub cpu_shares: Option<u64>,
    /// Microseconds; -1 is no limit.
    pub cpu_quota_us: Option<i64>,
    pub cpu_period_us: Option<u64>,
    /// Bytes.
    pub memory_limit_bytes: Option<i64>,
    pub pids_limit: Option<i64>,
    /// Page size as the kernel names it to bytes; sizes that the pod does not ask for are 0.
    pub hugepage_limits: BTreeMap<String, u64>,
    /// Bytes that are never taken back, and bytes that are taken back last; cgroup v2 alone.
    pub memory_min_bytes: Option<u64>,
    pub memory_low_bytes: Option<u64>,
}

/// Whether the pod's limit of a resource holds it as a whole: the pod has one, or each of its containers. What counts of an init
/// container is what may be used during its turn, by it and by the sidecars up to then (upstream `AggregateContainerLimits`, which
/// hands these sums to its `ContainerFn`).
fn declared(pod: &Pod, name: &str) -> bool {
    let limit = |resources: Option<&ResourceRequirements>| {
        amount(resources.and_then(|r| r.limits.as_ref()), name).unwrap_or(Quantity::ZERO)
    };
    let mut sidecars = Quantity::ZERO;
    let mut during = |container: &Container| {
        let sum = sidecars + limit(container.resources.as_ref());
        if is_sidecar(container) {
            sidecars = sum;
        }
        sum
    };
    limit(pod_level(pod)) > Quantity::ZERO
        || (containers(pod).iter().all(|c| limit(c.resources.as_ref()) > Quantity::ZERO)
            && init_containers(pod).iter().all(|c| during(c) > Quantity::ZERO))
}

/// What the pod's cgroup gets (upstream ResourceConfigForPod). `without_quota`: it has CPUs that nobody else has, and no CFS
/// quota holds it.
pub fn pod_cgroup_resources(pod: &Pod, facts: &NodeFacts, without_quota: bool) -> CgroupResources {
    let (want, cap) = (pod_requests(pod, true), pod_limits(pod, true));
    let period = facts.cpu_cfs_quota_period_us;
    let has_quota = facts.cpu_cfs_quota && !without_quota;
    let quota = if has_quota { milli_cpu_to_quota(get(&cap, "cpu").milli_value(), period) } else { -1 };
    let mut resources = CgroupResources {
        cpu_shares: Some(milli_cpu_to_shares(get(&want, "cpu").milli_value())),
        pids_limit: facts.pod_pids_limit,
        hugepage_limits: hugepage_limits(facts, [&want]).into_iter().collect(),
        ..CgroupResources::default()
    };
    let class = qos_class(pod);
    let (limit_cpu, limit_memory) = match class {
        QosClass::Guaranteed => (true, true),
        QosClass::Burstable => (declared(pod, "cpu"), declared(pod, "memory")),
        QosClass::BestEffort => {
            resources.cpu_shares = Some(cpu::MIN_SHARES);
            (false, false)
        }
    };
    if limit_cpu {
        resources.cpu_quota_us = Some(quota);
        resources.cpu_period_us = u64::try_from(period).ok();
    }
    let memory = get(&cap, "memory").value();
    if limit_memory && memory > 0 {
        resources.memory_limit_bytes = Some(memory);
    }
    if let Some(qos) = &facts.memory_qos {
        (resources.memory_min_bytes, resources.memory_low_bytes) = qos.of_pod(class, &want);
    }
    resources
}

/// CPU shares of the Burstable level: the sum of what its active pods request (upstream `qos_container_manager_linux.go`).
pub fn burstable_cpu_shares<'a>(pods: impl IntoIterator<Item = &'a Pod>) -> u64 {
    let milli = pods
        .into_iter()
        .filter(|pod| qos_class(pod) == QosClass::Burstable)
        .map(|pod| get(&pod_requests(pod, true), "cpu").milli_value())
        .fold(0i64, i64::saturating_add);
    milli_cpu_to_shares(milli)
}

/// Limit of each page size of the node; later lists win over earlier ones.
fn hugepage_limits<'a>(facts: &NodeFacts, lists: impl IntoIterator<Item = &'a Amounts>) -> Vec<(String, u64)> {
    let mut wanted = BTreeMap::new();
    for list in lists {
        for (name, amount) in list {
            let size = huge_page_size(name);
            if let Some(bytes) = size.and_then(|q| u64::try_from(q.value()).ok()) {
                wanted.insert(hugepage_size_name(bytes), u64::try_from(amount.value()).unwrap_or(0));
            }
        }
    }
    facts.host.hugepage_sizes.iter().map(|size| (size.clone(), wanted.get(size).copied().unwrap_or(0))).collect()
}

/// CPU and memory part, the same for sandboxes, overhead and containers.
fn linux_resources(
    facts: &NodeFacts,
    cpu_request: Option<Quantity>,
    cpu_limit: Quantity,
    memory_limit: Quantity,
) -> v1::LinuxContainerResources {
    // A limit without a request counts as the request; the API defaults so, files may not have.
    let shares_of = cpu_request.unwrap_or(cpu_limit);
    let shares = milli_cpu_to_shares(shares_of.milli_value());
    let mut resources = v1::LinuxContainerResources {
        cpu_shares: i64::try_from(shares).unwrap_or(i64::MAX),
        memory_limit_in_bytes: memory_limit.value(),
        ..Default::default()
    };
    if facts.cpu_cfs_quota {
        resources.cpu_period = facts.cpu_cfs_quota_period_us;
        resources.cpu_quota = milli_cpu_to_quota(cpu_limit.milli_value(), facts.cpu_cfs_quota_period_us);
    }
    // All processes of a container or none, unless the configuration says otherwise (upstream `kubelet.go`).
    if facts.host.cgroup_v2 && facts.single_process_oom_kill != Some(true) {
        resources.unified.insert("memory.oom.group".to_owned(), "1".to_owned());
    }
    resources
}

/// CRI's `linux.resources` of a sandbox: the pod without its overhead (upstream calculateSandboxResources). `without_quota`: no
/// CFS quota holds the pod.
pub fn sandbox_resources(pod: &Pod, facts: &NodeFacts, without_quota: bool) -> v1::LinuxContainerResources {
    let (want, cap) = (pod_requests(pod, false), pod_limits(pod, false));
    let mut resources = linux_resources(facts, want.get("cpu").copied(), get(&cap, "cpu"), get(&cap, "memory"));
    if without_quota {
        drop_quota(&mut resources, facts);
    }
    resources
}

/// Takes the CFS quota from what has CPUs that nobody else has (gate DisableCPUQuotaWithExclusiveCPUs). A node that sets no
/// quotas leaves that of the runtime as it is.
pub fn drop_quota(resources: &mut v1::LinuxContainerResources, facts: &NodeFacts) {
    if facts.cpu_cfs_quota {
        resources.cpu_quota = -1;
    }
}

/// CRI's `linux.overhead` of a sandbox; empty when the pod has none.
pub fn overhead_resources(pod: &Pod, facts: &NodeFacts) -> v1::LinuxContainerResources {
    if pod.spec.as_ref().is_none_or(|s| s.overhead.is_none()) {
        return v1::LinuxContainerResources::default();
    }
    let overhead = pod_overhead(pod);
    let cpu = get(&overhead, "cpu");
    linux_resources(facts, Some(cpu), cpu, get(&overhead, "memory"))
}

/// CRI's `linux.resources` of a container.
pub fn container_resources(pod: &Pod, container: &Container, facts: &NodeFacts) -> v1::LinuxContainerResources {
    let want = requests(container.resources.as_ref());
    let cap = limits(container.resources.as_ref());
    let level = limits(pod_level(pod));
    // The pod's limit stands in for a container's own.
    let limit = |name: &str| if get(&cap, name).is_zero() { get(&level, name) } else { get(&cap, name) };
    let mut resources = linux_resources(facts, want.get("cpu").copied(), limit("cpu"), limit("memory"));
    resources.oom_score_adj = oom_score_adj(pod, container, facts.host.memory_capacity);
    resources.hugepage_limits = hugepage_limits(facts, [&level, &cap])
        .into_iter()
        .map(|(page_size, limit)| v1::HugepageLimit { page_size, limit })
        .collect();
    configure_swap(&mut resources, pod, &want, &cap, facts);
    if let Some(qos) = &facts.memory_qos {
        resources.unified.extend(qos.of_container(qos_class(pod), &want, &cap));
    }
    resources
}

/// `oom_score_adj` of a container's processes.
pub fn oom_score_adj(pod: &Pod, container: &Container, memory_capacity: u64) -> i64 {
    if spec::is_node_critical(pod) {
        return GUARANTEED_OOM_SCORE;
    }
    match qos_class(pod) {
        QosClass::Guaranteed => return GUARANTEED_OOM_SCORE,
        QosClass::BestEffort => return BEST_EFFORT_OOM_SCORE,
        QosClass::Burstable => {}
    }
    let memory_request = |c: &Container| get(&requests(c.resources.as_ref()), "memory").value();
    let capacity = i64::try_from(memory_capacity).unwrap_or(i64::MAX).max(1);
    let score = |bytes: i64| 1000 - i64::try_from(i128::from(bytes) * 1000 / i128::from(capacity)).unwrap_or(i64::MAX);
    // What the pod requests beyond its containers is shared out among them.
    let level_requests = pod_level_amounts(requests(pod_level(pod)));
    let share = if level_requests.is_empty() { 0 } else { unassigned_memory_share(pod, &level_requests) };
    let mut adjust = score(memory_request(container).saturating_add(share));
    let is_own_sidecar = is_sidecar(container) && init_containers(pod).iter().any(|c| c.name == container.name);
    if is_own_sidecar && let Some(least) = containers(pod).iter().map(memory_request).min() {
        adjust = adjust.min(score(least.saturating_add(share)));
    }
    match adjust {
        a if a < 1000 + GUARANTEED_OOM_SCORE => 1000 + GUARANTEED_OOM_SCORE,
        BEST_EFFORT_OOM_SCORE => BEST_EFFORT_OOM_SCORE - 1,
        a => a,
    }
}

fn unassigned_memory_share(pod: &Pod, level_requests: &Amounts) -> i64 {
    let assigned = aggregate(pod, |c| requests(c.resources.as_ref()));
    let count = i64::try_from(containers(pod).len() + init_containers(pod).len()).unwrap_or(1).max(1);
    (get(level_requests, "memory").value() - get(&assigned, "memory").value()).max(0) / count
}

fn configure_swap(
    resources: &mut v1::LinuxContainerResources,
    pod: &Pod,
    want: &Amounts,
    cap: &Amounts,
    facts: &NodeFacts,
) {
    if !facts.host.swap_controller {
        return;
    }
    if !facts.host.cgroup_v2 {
        // Memory plus swap; equal to the memory limit means no swap on top of it.
        resources.memory_swap_limit_in_bytes = resources.memory_limit_in_bytes;
        return;
    }
    let request = get(want, "memory");
    let limited = facts.swap_behavior == SwapBehavior::LimitedSwap
        && !spec::is_critical(pod)
        && qos_class(pod) == QosClass::Burstable
        && !(request.is_zero() && get(cap, "memory").is_zero())
        && request != get(cap, "memory");
    let request = u64::try_from(request.value()).unwrap_or(0);
    let capacity = facts.host.memory_capacity;
    let swap = if limited && capacity > 0 && request <= capacity {
        (request as f64 / capacity as f64 * facts.host.swap_capacity as f64) as u64
    } else {
        0
    };
    resources.unified.insert("memory.swap.max".to_owned(), swap.to_string());
}

#[cfg(test)]
#[path = "resources_tests.rs"]
mod tests;
