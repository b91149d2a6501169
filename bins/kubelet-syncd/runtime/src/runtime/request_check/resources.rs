//! Limits: where the spec has one, the request has one that is not larger, and nobody is favoured by the out-of-memory
//! killer who is not guaranteed.

use std::collections::BTreeMap;

use bulkhead_cri::v1;
use bulkhead_types::Quantity;
use bulkhead_types::resource_name::huge_page_size;
use k8s_openapi::api::core::v1::ResourceRequirements;
use kubelet_model::v1::Container;

use super::{Checked, RequestContext, Starting, must};

/// The smallest quota that the kernel takes, microseconds.
const LEAST_QUOTA: i64 = 1000;

fn limit(resources: Option<&ResourceRequirements>, name: &str) -> Option<Quantity> {
    let text = &resources?.limits.as_ref()?.get(name)?.0;
    Quantity::parse(text).ok().filter(|amount| !amount.is_zero())
}

pub(super) fn container(
    known: &RequestContext<'_>,
    starting: &Starting<'_>,
    asked: &v1::LinuxContainerResources,
) -> Checked {
    let own = starting.container.resources.as_ref();
    let pod = known.pod.spec.as_ref().and_then(|spec| spec.resources.as_ref());
    let of = |name: &str| limit(own, name).or_else(|| limit(pod, name));
    if let Some(bytes) = of("memory").map(|amount| amount.value()) {
        let memory = asked.memory_limit_in_bytes;
        must((1..=bytes).contains(&memory), "memory_limit_in_bytes", memory, format!("{bytes} at most"))?;
    }
    swap(known, asked)?;
    if let Some(cpu) = of("cpu").filter(|_| known.facts.cpu_cfs_quota) {
        let period = asked.cpu_period.max(1);
        let most = (cpu.milli_value().saturating_mul(period) / 1000).max(LEAST_QUOTA);
        // CPUs that nobody else has need no quota.
        let without =
            starting.options.without_quota && !starting.options.cpuset_cpus.is_empty() && asked.cpu_quota == -1;
        let within = without || (1..=most).contains(&asked.cpu_quota);
        must(within, "cpu_quota", asked.cpu_quota, format!("{most} of {period}"))?;
    }
    cpus_and_nodes(starting, asked)?;
    pages(asked, &[own, pod])?;
    let unknown = asked.unified.keys().find(|key| !matches!(key.split('.').next(), Some("memory")));
    must(unknown.is_none(), "unified", unknown, "memory's")?;
    // What is kept for one container is kept from all others: no more than it requests.
    let requests = own.and_then(|own| own.requests.as_ref()?.get("memory"));
    let request = requests.and_then(|amount| Quantity::parse(&amount.0).ok()).map_or(0, |amount| amount.value());
    for key in ["memory.min", "memory.low"] {
        let kept = asked.unified.get(key).map_or(Some(0), |kept| kept.parse::<i64>().ok());
        must(
            kept.is_some_and(|kept| (0..=request.max(0)).contains(&kept)),
            "unified",
            key,
            format!("{request} bytes at most"),
        )?;
    }
    // Lower than the least of a pod is what the node's own processes have.
    let least = if may_be_favoured(known) { -997 } else { 2 };
    must(asked.oom_score_adj >= least, "oom_score_adj", asked.oom_score_adj, format!("{least} at least"))
}

/// CPUs and NUMA nodes are those of the allocation record.
fn cpus_and_nodes(starting: &Starting<'_>, asked: &v1::LinuxContainerResources) -> Checked {
    let given = starting.options;
    must(asked.cpuset_cpus == given.cpuset_cpus, "cpuset_cpus", &asked.cpuset_cpus, given.cpuset_cpus.as_str())?;
    must(asked.cpuset_mems == given.cpuset_mems, "cpuset_mems", &asked.cpuset_mems, given.cpuset_mems.as_str())
}

/// Memory and swap together (cgroup v1), or swap alone (v2).
fn swap(known: &RequestContext<'_>, asked: &v1::LinuxContainerResources) -> Checked {
    let (both, memory) = (asked.memory_swap_limit_in_bytes, asked.memory_limit_in_bytes);
    must(both >= 0 && both <= memory.max(0), "memory_swap_limit_in_bytes", both, memory.to_string())?;
    let unlimited = asked.unified.get("memory.swap.max").is_some_and(|most| most.parse::<u64>().is_err());
    must(!unlimited, "unified", "memory.swap.max", "a number")?;
    let capacity = known.facts.host.swap_capacity;
    let most = asked.unified.get("memory.swap.max").and_then(|most| most.parse::<u64>().ok()).unwrap_or(0);
    must(most <= capacity, "unified", most, format!("{capacity} bytes of swap"))
}

/// Huge pages are nobody's who does not ask for them.
fn pages(asked: &v1::LinuxContainerResources, lists: &[Option<&ResourceRequirements>]) -> Checked {
    let mut allowed: BTreeMap<u64, i64> = BTreeMap::new();
    for (name, amount) in lists.iter().flatten().flat_map(|list| list.limits.iter().flatten()) {
        let size = huge_page_size(name);
        if let (Some(size), Ok(amount)) = (size, Quantity::parse(&amount.0)) {
            let most = allowed.entry(size.value().unsigned_abs()).or_default();
            *most = amount.value().max(*most);
        }
    }
    for page in &asked.hugepage_limits {
        let size = kernel_size(&page.page_size).unwrap_or_default();
        let most = allowed.get(&size).copied().unwrap_or(0).unsigned_abs();
        must(page.limit <= most, "hugepage_limits", (&page.page_size, page.limit), most.to_string())?;
    }
    Ok(())
}

/// `2MB` as the kernel writes it, in units of 1024.
fn kernel_size(text: &str) -> Option<u64> {
    let text = text.strip_suffix('B')?;
    let shift = match text.chars().last()? {
        'K' => 10,
        'M' => 20,
        'G' => 30,
        'T' => 40,
        _ => 0,
    };
    text.trim_end_matches(|c: char| c.is_ascii_uppercase()).parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// Every container has limits for both resources, or the pod has as a whole, or the node cannot do without the pod.
fn may_be_favoured(known: &RequestContext<'_>) -> bool {
    let Some(spec) = &known.pod.spec else { return false };
    let both = |r: Option<&ResourceRequirements>| limit(r, "cpu").is_some() && limit(r, "memory").is_some();
    let limited = |c: &Container| both(c.resources.as_ref());
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let node_critical = spec.priority_class_name.as_deref() == Some("system-node-critical");
    node_critical || both(spec.resources.as_ref()) || containers.into_iter().all(limited)
}
