//! What a pod asks of the resource managers, read once: numbers in place of quantities, and per container whether it may have CPUs
//! and memory for itself (upstream `guaranteedCPUs` of `cpumanager/policy_static.go`, `getContainerRequestedResources` of
//! `memorymanager/policy_static.go`, `cm/qos/helpers.go`).

use std::collections::BTreeMap;

use bulkhead_types::resource_name::is_memory;
use bulkhead_types::{QosClass, Quantity};
use kubelet_model::pod::resources::{Amounts, amounts, has_pod_level, qos_class};
use kubelet_model::pod::spec::{containers, init_containers, is_sidecar};
use kubelet_model::v1::{Container, Pod};

/// Resource name (`memory`, `hugepages-2Mi`) to bytes.
pub type Memory = BTreeMap<String, u64>;

/// A quantity that is no whole number of bytes: the memory manager's refusal says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("[memorymanager] failed to represent quantity as int64")]
pub struct NoWholeNumber;

/// Feature gates that change what is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Gates {
    /// `CPUManagerPolicyAlphaOptions` (off by default).
    pub cpu_alpha_options: bool,
    /// `CPUManagerPolicyBetaOptions` (on by default).
    pub cpu_beta_options: bool,
    /// `PodLevelResources` and `PodLevelResourceManagers` (the latter alpha, off by default).
    pub pod_level: bool,
    /// `DisableCPUQuotaWithExclusiveCPUs` (on by default).
    pub no_quota: bool,
    /// `DRAExtendedResource` (on by default).
    pub extended_by_claims: bool,
}

/// When a container runs, beside which others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Runs to its end before the next starts.
    Init,
    /// An init container that goes on running.
    Sidecar,
    App,
}

/// What one container asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerRequest {
    pub name: String,
    pub kind: Kind,
    /// Whole CPUs that it is to have for itself; 0: it runs on the shared ones.
    pub cpus: u32,
    /// Memory and huge pages that it is to have for itself.
    pub memory: Result<Memory, NoWholeNumber>,
    /// Its limits, of which the extended resources are the device manager's; those that a claim gives are left out (gate
    /// DRAExtendedResource).
    pub limits: Amounts,
}

/// What a pod asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodRequest {
    pub uid: String,
    pub guaranteed: bool,
    /// Requests or limits are set for the pod as a whole.
    pub pod_level: bool,
    /// Managers heed it: false where the pod has requests of its own and the gate for that is off.
    pub managed: bool,
    /// Whole CPUs that the pod needs at a time.
    pub cpus: u32,
    /// Memory that it needs at a time.
    pub memory: Result<Memory, NoWholeNumber>,
    /// Init containers, then the others, each in the spec's order.
    pub containers: Vec<ContainerRequest>,
}

impl PodRequest {
    pub fn of(pod: &Pod, gates: Gates) -> Self {
        let guaranteed = qos_class(pod) == QosClass::Guaranteed;
        let pod_level = has_pod_level(pod);
        let by_pod = pod_level && gates.pod_level;
        let read = |container: &Container, kind| {
            let resources = container.resources.as_ref();
            let requests = amounts(resources.and_then(|r| r.requests.as_ref()));
            let mut limits = amounts(resources.and_then(|r| r.limits.as_ref()));
            let shares = !guaranteed || (by_pod && !alike(&requests, &limits));
            if gates.extended_by_claims {
                limits.retain(|resource, _| !is_of_claim(pod, &container.name, resource));
            }
            ContainerRequest {
                name: container.name.clone(),
                kind,
                cpus: if shares { 0 } else { whole_cpus(requests.get("cpu")) },
                memory: if by_pod && shares { Ok(Memory::new()) } else { memory(&requests) },
                limits,
            }
        };
        let kind_of = |c: &Container| if is_sidecar(c) { Kind::Sidecar } else { Kind::Init };
        let init = init_containers(pod).iter().map(|container| read(container, kind_of(container)));
        let containers: Vec<_> = init.chain(containers(pod).iter().map(|c| read(c, Kind::App))).collect();
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let (cpus, memory) = if by_pod {
            let level = pod.spec.as_ref().and_then(|s| s.resources.as_ref());
            let requests = amounts(level.and_then(|r| r.requests.as_ref()));
            let cpus = if guaranteed { whole_cpus(requests.get("cpu")) } else { 0 };
            let memory = memory(&requests).map(|mut m| {
                m.retain(|_, bytes| *bytes > 0);
                m
            });
            (cpus, memory)
        } else {
            (cpus_at_a_time(&containers), memory_at_a_time(&containers))
        };
        let managed = !pod_level || gates.pod_level;
        PodRequest { uid, guaranteed, pod_level, managed, cpus, memory, containers }
    }

    /// The pod's CPUs and memory are given to it as a whole.
    pub fn by_pod(&self) -> bool {
        self.pod_level && self.managed
    }

    pub fn container(&self, name: &str) -> Option<&ContainerRequest> {
        self.containers.iter().find(|c| c.name == name)
    }

    /// Init containers that end before this container starts, in their order.
    pub fn ended_before<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a ContainerRequest> {
        self.containers.iter().take_while(move |c| c.name != name).filter(|c| c.kind == Kind::Init)
    }
}

/// A driver's claim gives the container this resource, and no device plugin.
fn is_of_claim(pod: &Pod, container: &str, resource: &str) -> bool {
    let claims = pod.status.as_ref().and_then(|status| status.extended_resource_claim_status.as_ref());
    claims.is_some_and(|claims| {
        claims.request_mappings.iter().any(|of| of.container_name == container && of.resource_name == resource)
    })
}

/// CPU and memory are requested, and as much as the limits are.
fn alike(requests: &Amounts, limits: &Amounts) -> bool {
    ["cpu", "memory"].iter().all(|name| {
        let of = |list: &Amounts| list.get(*name).copied().unwrap_or_default();
        !of(requests).is_zero() && of(requests) == of(limits)
    })
}

/// The quantity if it is a whole number of CPUs (to a thousandth, as upstream looks), else 0.
fn whole_cpus(quantity: Option<&Quantity>) -> u32 {
    let quantity = quantity.copied().unwrap_or_default();
    let whole = quantity.value().saturating_mul(1000) == quantity.milli_value();
    if whole { u32::try_from(quantity.value()).unwrap_or(0) } else { 0 }
}

fn memory(requests: &Amounts) -> Result<Memory, NoWholeNumber> {
    let of = requests.iter().filter(|(name, _)| is_memory(name));
    of.map(|(name, quantity)| {
        let bytes = u64::try_from(quantity.value()).ok().filter(|_| quantity.is_integer());
        Ok((name.clone(), bytes.ok_or(NoWholeNumber)?))
    })
    .collect()
}

/// The most that runs at a time: sidecars and app containers together, or an init container beside the sidecars before it.
fn cpus_at_a_time(containers: &[ContainerRequest]) -> u32 {
    let (mut sidecars, mut apps, mut init) = (0_u32, 0_u32, 0_u32);
    for container in containers {
        match container.kind {
            Kind::Sidecar => sidecars = sidecars.saturating_add(container.cpus),
            Kind::Init => init = init.max(sidecars.saturating_add(container.cpus)),
            Kind::App => apps = apps.saturating_add(container.cpus),
        }
    }
    init.max(apps.saturating_add(sidecars))
}

/// The same for each kind of memory that an app container asks for.
fn memory_at_a_time(containers: &[ContainerRequest]) -> Result<Memory, NoWholeNumber> {
    let (mut sidecars, mut apps, mut init) = (Memory::new(), Memory::new(), Memory::new());
    for container in containers {
        for (name, bytes) in container.memory.as_ref().map_err(|e| *e)? {
            let beside = sidecars.get(name).copied().unwrap_or(0);
            match container.kind {
                Kind::Sidecar => _ = sidecars.insert(name.clone(), beside.saturating_add(*bytes)),
                Kind::Init => {
                    let most = init.entry(name.clone()).or_default();
                    *most = (*most).max(beside.saturating_add(*bytes));
                }
                Kind::App => {
                    let sum = apps.entry(name.clone()).or_default();
                    *sum = sum.saturating_add(*bytes);
                }
            }
        }
    }
    let of = |list: &Memory, name: &str| list.get(name).copied().unwrap_or(0);
    Ok(apps.iter().map(|(n, b)| (n.clone(), b.saturating_add(of(&sidecars, n)).max(of(&init, n)))).collect())
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
