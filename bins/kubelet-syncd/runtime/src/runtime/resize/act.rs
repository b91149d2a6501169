//! Doing a resize: checks that no memory limit falls below what is used, then step after step. A failure ends it; the next sync
//! takes up from what was noted.

use bulkhead_cri::{Code, CriError, v1};
use bulkhead_types::{ContainerId, SandboxId, go_aggregate};
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use kubelet_model::v1::{Container, Pod};

use super::plan::{ContainerUpdate, Kind, Resize, Size};
use super::steps::{PodLimits, Step, steps};
use crate::allocation::{Gates, PodResources};
use crate::runtime::ports::HostFilesError;
use crate::runtime::result::ActionError;
use crate::runtime::run_options::WithoutQuota;
use kubelet_model::node_facts::NodeFacts;
use kubelet_model::pod::resources::{
    CgroupResources, container_resources, drop_quota, milli_cpu_to_quota, milli_cpu_to_shares, overhead_resources,
    pod_cgroup_resources, pod_overhead, shares_to_milli_cpu,
};
use kubelet_model::pod::spec::{containers, init_containers};

/// What the executor needs of whoever keeps the book of resources.
pub trait Resizer: Send + Sync {
    /// What is known of what the pod's containers have.
    fn actuated(&self) -> Option<PodResources>;
    fn gates(&self) -> Gates;
    /// A container is about to be made with the resources that the spec gives it.
    ///
    /// # Errors
    /// That could not be noted for good.
    fn making(&self, container: &Container) -> std::io::Result<()>;
    /// Carries out a resize of the pod in this sandbox.
    fn resize<'a>(&'a self, resize: &'a Resize, sandbox: &'a SandboxId) -> BoxFuture<'a, Result<(), ActionError>>;
}

/// What a resize needs from outside.
pub trait Ports: Send + Sync {
    fn update_container(
        &self,
        id: &ContainerId,
        resources: v1::LinuxContainerResources,
    ) -> impl Future<Output = Result<(), CriError>> + Send;
    fn update_sandbox(
        &self,
        sandbox: &SandboxId,
        overhead: v1::LinuxContainerResources,
        resources: v1::LinuxContainerResources,
    ) -> impl Future<Output = Result<(), CriError>> + Send;
    /// Memory that a container uses, bytes. None: the runtime does not say.
    fn memory_usage(&self, id: &ContainerId) -> impl Future<Output = Result<Option<u64>, CriError>> + Send;
    /// Writes what is given of the pod's cgroup, and answers what it has then and the memory that it uses. None: pods
    /// have no cgroups.
    fn pod_cgroup(
        &self,
        change: CgroupResources,
    ) -> impl Future<Output = Result<Option<(PodLimits, Option<u64>)>, HostFilesError>> + Send;
    /// The container has this now.
    ///
    /// # Errors
    /// That could not be noted for good.
    fn container_has(&self, name: &str, resources: &ResourceRequirements) -> std::io::Result<()>;
    /// The pod's cgroup has what the spec gives to the pod as a whole.
    ///
    /// # Errors
    /// That could not be noted for good.
    fn pod_has(&self) -> std::io::Result<()>;
}

/// Why a resize is not done yet; the texts are upstream's where a condition shows them.
#[derive(Debug, thiserror::Error)]
pub enum ResizeError {
    #[error("cannot decrease memory limits: {0}")]
    BelowUsage(String),
    #[error("unable to read memory usage: {0}")]
    Usage(#[source] CriError),
    /// Upstream's spelling included.
    #[error(
        "failed to notify runtime for UpdatePodSandboxResources (resource={resource}); resize rejected: \
         updatePodSandboxResources failed for sanboxID \"{sandbox}\": {source}"
    )]
    Sandbox { resource: &'static str, sandbox: SandboxId, source: CriError },
    #[error("{0}")]
    Container(#[source] CriError),
    #[error("{0}")]
    Cgroup(#[source] HostFilesError),
    #[error("what was resized could not be noted: {0}")]
    Note(#[source] std::io::Error),
}

impl ResizeError {
    /// Somebody did not answer: nothing is known to be wrong.
    pub fn is_transient(&self) -> bool {
        match self {
            ResizeError::BelowUsage(_) | ResizeError::Note(_) => false,
            ResizeError::Usage(error) | ResizeError::Sandbox { source: error, .. } | ResizeError::Container(error) => {
                error.is_unavailable()
            }
            ResizeError::Cgroup(error) => error.transient,
        }
    }
}

/// One resize of one pod.
#[derive(Debug)]
pub struct Act<'a, P> {
    pub ports: &'a P,
    /// With the resources that were granted.
    pub pod: &'a Pod,
    pub facts: &'a NodeFacts,
    pub sandbox: &'a SandboxId,
    pub resize: &'a Resize,
    /// What no CFS quota holds, and is to have none after the resize either.
    pub without_quota: &'a WithoutQuota,
}

impl<P: Ports> Act<'_, P> {
    /// What the containers got is noted when the pod's cgroup has its part as well: a process that dies before that does it all
    /// again, and no status says that the pod is resized while its cgroup is not.
    ///
    /// # Errors
    /// See [`ResizeError`]; what was done before stays done and is noted.
    pub async fn run(&self) -> Result<(), ResizeError> {
        let mut sizes: Vec<Size> = self.resize.updates.iter().map(|update| update.from).collect();
        let outcome = self.all_steps(&mut sizes).await;
        let mut changed = self.resize.updates.iter().zip(sizes).filter(|(update, size)| update.from != *size);
        let noted = changed.try_for_each(|(update, size)| self.ports.container_has(&update.name, &requirements(size)));
        // What ended the resize says more than a note that could not be made beside it.
        outcome?;
        noted.map_err(ResizeError::Note)?;
        if self.resize.pod_level { self.ports.pod_has().map_err(ResizeError::Note) } else { Ok(()) }
    }

    /// `sizes`: what each container has, by the update's place.
    async fn all_steps(&self, sizes: &mut [Size]) -> Result<(), ResizeError> {
        let now = self.ports.pod_cgroup(CgroupResources::default()).await.map_err(ResizeError::Cgroup)?;
        let resources = pod_cgroup_resources(self.pod, self.facts, self.without_quota.pod);
        let Some((current, usage)) = now else { return self.containers_alone(sizes).await };
        let wanted = current.wanted(&resources);
        self.check_memory(current, wanted, usage).await?;
        let mut current = current;
        for step in steps(self.resize, current, wanted) {
            match step {
                Step::PodLimit(kind) => {
                    let (change, next) = match kind {
                        Kind::Memory => {
                            let limit = wanted.memory_limit_bytes;
                            let change = CgroupResources { memory_limit_bytes: Some(limit), ..Default::default() };
                            (change, PodLimits { memory_limit_bytes: limit, ..current })
                        }
                        Kind::Cpu => {
                            let (cpu_quota_us, cpu_period_us) = (wanted.cpu_quota_us, wanted.cpu_period_us);
                            let change = CgroupResources {
                                cpu_quota_us: Some(cpu_quota_us),
                                cpu_period_us: Some(cpu_period_us),
                                ..Default::default()
                            };
                            (change, PodLimits { cpu_quota_us, cpu_period_us, ..current })
                        }
                    };
                    current = self.change_pod(kind, change, current, next).await?;
                }
                // No limit: see below.
                Step::PodRequest(Kind::Memory) => {}
                Step::PodRequest(Kind::Cpu) => {
                    let cpu_shares = wanted.cpu_shares;
                    let change = CgroupResources { cpu_shares: Some(cpu_shares), ..Default::default() };
                    current = self.change_pod(Kind::Cpu, change, current, PodLimits { cpu_shares, ..current }).await?;
                }
                Step::Container(kind, index) => {
                    if let (Some(update), Some(size)) = (self.resize.updates.get(index), sizes.get_mut(index)) {
                        *size = self.change_container(kind, update, *size).await?;
                    }
                }
            }
        }
        self.keep_memory(&resources).await
    }

    /// Where pods have no cgroups of their own.
    async fn containers_alone(&self, sizes: &mut [Size]) -> Result<(), ResizeError> {
        for (update, size) in self.resize.updates.iter().zip(sizes) {
            for kind in [Kind::Memory, Kind::Cpu] {
                if update.grows(kind).is_some() {
                    *size = self.change_container(kind, update, *size).await?;
                }
            }
        }
        Ok(())
    }

    /// A limit that falls below what is used would be refused by the kernel half-way, or kill the container.
    async fn check_memory(&self, current: PodLimits, wanted: PodLimits, usage: Option<u64>) -> Result<(), ResizeError> {
        if !self.resize.touches(Kind::Memory) && !self.resize.restarts && !self.resize.pod_level {
            return Ok(());
        }
        let unlimited = |bytes: i64| if bytes < 0 { u64::MAX } else { bytes.unsigned_abs() };
        let mut errors = Vec::new();
        let (old, new) = (unlimited(current.memory_limit_bytes), unlimited(wanted.memory_limit_bytes));
        if new < old {
            match usage {
                None => errors.push("missing pod memory usage".to_owned()),
                Some(usage) if usage >= new => {
                    errors.push(format!("attempting to set pod memory limit ({new}) below current usage ({usage})"))
                }
                Some(_) => {}
            }
        }
        for update in &self.resize.updates {
            let (old, new) = (update.from.memory_limit, update.to.memory_limit);
            if new == 0 || (old != 0 && new >= old) {
                continue;
            }
            let usage = self.ports.memory_usage(&update.id).await.map_err(ResizeError::Usage)?;
            let name = &update.name;
            match usage {
                None => errors.push(format!("missing container {name:?} memory usage")),
                Some(usage) if usage >= new.unsigned_abs() => errors.push(format!(
                    "attempting to set container {name:?} memory limit ({new}) below current usage ({usage})"
                )),
                Some(_) => {}
            }
        }
        go_aggregate(errors).map_or(Ok(()), |errors| Err(ResizeError::BelowUsage(errors)))
    }

    /// The request of memory stands in no cgroup, but with memory QoS as what is kept for the pod (upstream leaves that as it
    /// was when the pod was made).
    async fn keep_memory(&self, pod: &CgroupResources) -> Result<(), ResizeError> {
        let CgroupResources { memory_min_bytes, memory_low_bytes, .. } = *pod;
        let change = CgroupResources { memory_min_bytes, memory_low_bytes, ..Default::default() };
        if change == CgroupResources::default() {
            return Ok(());
        }
        self.ports.pod_cgroup(change).await.map(|_| ()).map_err(ResizeError::Cgroup)
    }

    /// The runtime is told first; what it refuses is not done, and what the kernel refuses is taken back.
    async fn change_pod(
        &self,
        kind: Kind,
        change: CgroupResources,
        before: PodLimits,
        next: PodLimits,
    ) -> Result<PodLimits, ResizeError> {
        let rejected = |source| ResizeError::Sandbox { resource: kind.name(), sandbox: self.sandbox.clone(), source };
        self.tell_sandbox(next).await.map_err(rejected)?;
        if let Err(error) = self.ports.pod_cgroup(change).await {
            if let Err(error) = self.tell_sandbox(before).await {
                tracing::warn!(%error, "failed to revert UpdatePodSandboxResources");
            }
            return Err(ResizeError::Cgroup(error));
        }
        Ok(next)
    }

    async fn tell_sandbox(&self, limits: PodLimits) -> Result<(), CriError> {
        let overhead = overhead_resources(self.pod, self.facts);
        match self.ports.update_sandbox(self.sandbox, overhead, sandbox_resources(self.pod, limits)).await {
            Err(error) if is_unimplemented(&error) => Ok(()),
            answer => answer,
        }
    }

    async fn change_container(&self, kind: Kind, update: &ContainerUpdate, has: Size) -> Result<Size, ResizeError> {
        let next = has.with(kind, update.to);
        let all = containers(self.pod).iter().chain(init_containers(self.pod));
        let Some(container) = all.into_iter().find(|c| c.name == update.name) else { return Ok(has) };
        let sized = Container { resources: Some(requirements(next)), ..container.clone() };
        let mut resources = container_resources(self.pod, &sized, self.facts);
        // Huge pages are none of the resize's business.
        resources.hugepage_limits = container_resources(self.pod, container, self.facts).hugepage_limits;
        if self.without_quota.containers.contains(&container.name) {
            drop_quota(&mut resources, self.facts);
        }
        self.ports.update_container(&update.id, resources).await.map_err(ResizeError::Container)?;
        Ok(next)
    }
}

/// Runtimes that do not have the call: it is the runtime's good right to be told of sandboxes or not.
fn is_unimplemented(error: &CriError) -> bool {
    // containerd 2.2 answers with another code.
    error.is_unimplemented() || (error.code == Code::Unknown && error.message.contains("not implemented"))
}

/// The pod's limits without its overhead, for the runtime.
fn sandbox_resources(pod: &Pod, limits: PodLimits) -> v1::LinuxContainerResources {
    let overhead = pod_overhead(pod);
    let amount = |name: &str| overhead.get(name).copied().unwrap_or_default();
    let period = i64::try_from(limits.cpu_period_us).unwrap_or(i64::MAX);
    let less = |limit: i64, part: i64| if limit < 0 { limit } else { limit.saturating_sub(part).max(0) };
    let shares = match amount("cpu").milli_value() {
        0 => limits.cpu_shares,
        part => milli_cpu_to_shares(shares_to_milli_cpu(limits.cpu_shares).saturating_sub(part)),
    };
    v1::LinuxContainerResources {
        cpu_period: period,
        cpu_quota: less(limits.cpu_quota_us, milli_cpu_to_quota(amount("cpu").milli_value(), period)),
        cpu_shares: i64::try_from(shares).unwrap_or(i64::MAX),
        memory_limit_in_bytes: less(limits.memory_limit_bytes, amount("memory").value()),
        ..Default::default()
    }
}

/// A size as the API writes it; what is 0 is absent.
fn requirements(size: Size) -> ResourceRequirements {
    use bulkhead_types::Quantity;
    let list = |cpu: i64, memory: i64| {
        let all = [("cpu", cpu, Quantity::from_milli(cpu)), ("memory", memory, Quantity::from_bytes(memory))];
        let some = all.into_iter().filter(|(_, amount, _)| *amount != 0);
        Some(some.map(|(name, _, q)| (name.to_owned(), ApiQuantity(q.to_string()))).collect())
    };
    ResourceRequirements {
        limits: list(size.cpu_limit, size.memory_limit),
        requests: list(size.cpu_request, size.memory_request),
        claims: None,
    }
}

#[cfg(test)]
#[path = "act_tests.rs"]
mod tests;
