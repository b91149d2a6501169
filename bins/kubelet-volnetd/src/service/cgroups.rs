//! `kubelet.volnetd.v1.Cgroups`.

use std::pin::Pin;
use std::time::{Duration, Instant};

use bulkhead_config::reserved::Enforcement;
use bulkhead_ipc::volnetd::cgroups_server::Cgroups;
use bulkhead_ipc::volnetd::{self as wire, *};
use bulkhead_sys::cgroup::{Resources, Version};
use bulkhead_types::{PodUid, QosClass, chain};
use tokio_stream::Stream;
use tonic::{Request, Response, Status};

use super::Verbs;
use crate::cgroups::{Driver, PodsTreeError};
use crate::metrics::CgroupOperation;
use crate::node::Node;
use crate::validate;

#[tonic::async_trait]
impl Cgroups for Verbs {
    async fn ensure_node(&self, request: Request<EnsureNodeRequest>) -> Result<Response<EnsureNodeReply>, Status> {
        let request = request.into_inner();
        let resources = validate::resources(request.kubepods.as_ref())?;
        let configured = self.node.settings.cgroup_driver;
        let driver = match request.driver.as_str() {
            "" => configured,
            name => Driver::parse(name)
                .ok_or_else(|| Status::invalid_argument("driver: must be empty, cgroupfs or systemd"))?,
        };
        if driver != configured && driver != self.node.cgroups.driver() {
            tracing::warn!(
                configured = configured.as_str(),
                runtime = driver.as_str(),
                "cgroupDriver is not the runtime's, which is used"
            );
        }
        self.node.cgroups.use_driver(driver);
        let limits = self.run(None, move |node| node.cgroups.ensure_node(&resources)).await?;
        let limits_error = limits.err().map_or_else(String::new, |error| chain(&error));
        let version = match self.node.cgroups.hierarchies().version() {
            Version::V1 => 1,
            Version::V2 => 2,
        };
        let driver = self.node.cgroups.driver().as_str().to_owned();
        let tmpfs_without_noswap = !bulkhead_sys::mount::is_noswap_supported();
        Ok(Response::new(EnsureNodeReply { driver, version, limits_error, tmpfs_without_noswap }))
    }

    async fn enforce_reserved(
        &self,
        _request: Request<EnforceReservedRequest>,
    ) -> Result<Response<EnforceReservedReply>, Status> {
        let enforce = |node: &Node| {
            let enforce = |enforcement: &Enforcement| {
                let started = Instant::now();
                let result = node.cgroups.enforce_reserved(enforcement);
                node.metrics.cgroup(CgroupOperation::Update, started);
                wire::ReservedCgroup {
                    enforcement: enforcement.part.key.to_owned(),
                    cgroup: enforcement.cgroup.clone(),
                    error: result.err().map_or_else(String::new, |error| chain(&error)),
                }
            };
            Ok::<_, PodsTreeError>(node.settings.reserved.iter().map(enforce).collect())
        };
        Ok(Response::new(EnforceReservedReply { cgroups: self.run(None, enforce).await? }))
    }

    async fn ensure_pod(&self, request: Request<EnsurePodRequest>) -> Result<Response<EnsurePodReply>, Status> {
        let request = request.into_inner();
        let pod = validate::pod_uid(&request.pod_uid)?;
        let qos = validate::qos(request.qos)?;
        let resources = validate::resources(request.resources.as_ref())?;
        let without_limits = request.without_limits;
        let lock = self.node.lock_pod(&pod).await?;
        let ensure = move |node: &Node| {
            let started = Instant::now();
            let made = node.cgroups.ensure_pod(&pod, qos, &resources);
            let created = made.as_ref().map_or(true, |(_, created)| *created);
            let operation = if created { CgroupOperation::Create } else { CgroupOperation::Update };
            node.metrics.cgroup(operation, started);
            let (path, created) = made?;
            let now = if without_limits { None } else { node.cgroups.pod_limits(&pod, qos)? };
            Ok::<_, PodsTreeError>((path, created, now))
        };
        let (path, created, now) = self.run(Some(lock), ensure).await?;
        let (current, memory_usage_bytes) = now.map_or((None, None), |(limits, usage)| (Some(to_wire(limits)), usage));
        let cgroup_parent = path.map_or_else(String::new, |path| path.to_string());
        Ok(Response::new(EnsurePodReply { cgroup_parent, created, current, memory_usage_bytes }))
    }

    async fn set_qos(&self, request: Request<SetQosRequest>) -> Result<Response<SetQosReply>, Status> {
        let request = request.into_inner();
        let levels = validate::qos_levels(&request)?;
        let set = move |node: &Node| {
            let started = Instant::now();
            let result = node.cgroups.set_qos(&levels);
            node.metrics.cgroup(CgroupOperation::Update, started);
            result
        };
        self.run(None, set).await?;
        Ok(Response::new(SetQosReply {}))
    }

    async fn remove_pod(&self, request: Request<RemovePodRequest>) -> Result<Response<RemovePodReply>, Status> {
        let request = request.into_inner();
        let pod = validate::pod_uid(&request.pod_uid)?;
        self.guard(request.guard.as_ref())?;
        let lock = self.node.lock_pod(&pod).await?;
        let done = self
            .run(Some(lock), move |node| match timed_remove(node, &pod) {
                Ok(()) => Ok(true),
                // Still dying: the caller asks again.
                Err(PodsTreeError::Cgroup(bulkhead_sys::cgroup::CgroupError::Busy { path, pids })) => {
                    tracing::info!(%pod, cgroup = path, ?pids, "processes of a removed pod are still ending");
                    Ok(false)
                }
                Err(error) => Err(error),
            })
            .await?;
        Ok(Response::new(RemovePodReply { done }))
    }

    async fn end_session(&self, request: Request<EndSessionRequest>) -> Result<Response<EndSessionReply>, Status> {
        let request = request.into_inner();
        let pod = validate::pod_uid(&request.pod_uid)?;
        let container = validate::container_id(&request.container_id)?;
        self.guard(request.guard.as_ref())?;
        let not_before = Duration::from_nanos(request.not_before);
        // The pod's lock is not needed: no file or cgroup changes, and a probe must not wait for a volume.
        let end = move |node: &Node| node.cgroups.end_session(&pod, &container, request.session, not_before);
        let ended = self.run(None, end).await?;
        Ok(Response::new(EndSessionReply { ended: u32::try_from(ended).unwrap_or(u32::MAX) }))
    }

    type ListStream = Pin<Box<dyn Stream<Item = Result<PodCgroup, Status>> + Send>>;

    async fn list(&self, _request: Request<ListCgroupsRequest>) -> Result<Response<Self::ListStream>, Status> {
        let found = self.run(None, |node| node.cgroups.list()).await?;
        let pods = found.into_iter().map(|found| {
            let qos = match found.qos {
                QosClass::Guaranteed => Qos::Guaranteed,
                QosClass::Burstable => Qos::Burstable,
                QosClass::BestEffort => Qos::BestEffort,
            };
            Ok(PodCgroup { pod_uid: found.pod.to_string(), qos: qos.into(), cgroup: found.path.to_string() })
        });
        Ok(Response::new(Box::pin(tokio_stream::iter(pods))))
    }
}

fn to_wire(limits: Resources) -> wire::CgroupResources {
    wire::CgroupResources {
        cpu_shares: limits.cpu_shares,
        cpu_quota_us: limits.cpu_quota_us,
        cpu_period_us: limits.cpu_period_us,
        memory_limit_bytes: limits.memory_limit_bytes,
        pids_limit: limits.pids_limit,
        hugepage_limits: limits.hugepage_limits.into_iter().collect(),
        cpus: limits.cpus,
        memory_min_bytes: limits.memory_min_bytes,
        memory_low_bytes: limits.memory_low_bytes,
    }
}

fn timed_remove(node: &Node, pod: &PodUid) -> Result<(), PodsTreeError> {
    let started = Instant::now();
    let result = node.cgroups.remove(pod);
    node.metrics.cgroup(CgroupOperation::Destroy, started);
    result
}
