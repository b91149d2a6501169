//! Stopping: single containers, whole pods in the right order, and the removal of what is dead.

use std::collections::BTreeSet;
use std::net::IpAddr;

use bulkhead_types::{Namespace, PodName, PodUid, SandboxId};
use futures_util::future::join_all;
use kubelet_model::v1::Pod;

use super::actions::{ContainerKill, ContainerReset, KillReason};
use super::end::{self, Ending, Turns, primary_ip};
use super::gc::{self, GcPolicy, surplus_dead_containers};
use super::grace_clock::HeldBack;
use super::kill::{grace, orphan_grace, predecessors};
use super::ports::{HostFiles, Images};
use super::result::{Action, ActionError, SyncResult};
use super::sync::RuntimeManager;
use kubelet_edges::runtime_service::RuntimeService;
use kubelet_model::pod::model::{ContainerStatus, RuntimePod};
use kubelet_model::pod::spec::{ContainerKind, PodIdentity, find_container, has_sidecar};

/// How a pod is stopped.
#[derive(Debug, Clone, Copy)]
pub struct KillContext<'a> {
    /// Replaces every grace period, seconds.
    pub over: Option<i64>,
    /// The node's addresses, primary first: for the hooks of a pod of the host's network.
    pub host_ips: &'a [IpAddr],
    /// Whoever makes the calls may hold signals back, and says here for how long.
    pub held: &'a HeldBack,
}

impl<R: RuntimeService, F: HostFiles, I: Images> RuntimeManager<R, F, I> {
    /// Stops all running containers of the pod at once, sidecars last, then its sandboxes.
    ///
    /// `pod` is None for a pod of which only the runtime knows: then grace periods come from the containers' annotations
    /// (or [`KillContext::over`]), and there are no sidecars.
    pub async fn kill_pod(&self, pod: Option<&Pod>, status: &RuntimePod, context: KillContext<'_>) -> SyncResult {
        let identity = pod.and_then(|p| PodIdentity::of(p).ok()).or_else(|| identity_of(status));
        self.kill_pod_of(pod, identity.as_ref(), status, context).await
    }

    pub(super) async fn kill_pod_of(
        &self,
        pod: Option<&Pod>,
        identity: Option<&PodIdentity>,
        status: &RuntimePod,
        context: KillContext<'_>,
    ) -> SyncResult {
        let mut result = SyncResult::default();
        let running: BTreeSet<String> = status.running().map(|c| c.name.clone()).collect();
        let before = pod.filter(|p| has_sidecar(p)).map(|p| predecessors(p, &running)).unwrap_or_default();
        let turns = Turns::new(before, context.held);
        let ip = primary_ip(pod, status, context.host_ips);
        let stops = status.running().map(|container| async {
            let outcome = self.kill_one(pod, identity, container, context.over, ip, &turns).await;
            (&container.name, outcome)
        });
        for (name, outcome) in join_all(stops).await {
            result.push(Action::KillContainer, name, outcome);
        }
        let mut failure = None;
        for sandbox in &status.sandboxes {
            if let Err(error) = self.stop_sandbox(&sandbox.id).await {
                failure = Some(error);
            }
        }
        if !status.sandboxes.is_empty() {
            let target = status.uid.as_ref().map(ToString::to_string).unwrap_or_default();
            result.push(Action::KillPodSandbox, &target, failure.map_or(Ok(()), Err));
        }
        result
    }

    /// Stops one container with all others of its pod. Upstream refuses to stop what the spec does not name; but it is
    /// running, and the pod has to end.
    async fn kill_one(
        &self,
        pod: Option<&Pod>,
        identity: Option<&PodIdentity>,
        status: &ContainerStatus,
        over: Option<i64>,
        ip: Option<IpAddr>,
        turns: &Turns,
    ) -> Result<(), ActionError> {
        let found = pod.and_then(|p| find_container(p, &status.name).map(|found| (p, found)));
        let (kind, grace, pre_stop) = match &found {
            Some((p, (kind, spec))) => (*kind, grace(p, Some(spec), KillReason::Unknown, over), end::pre_stop(spec)),
            None => {
                let grace = orphan_grace(status, over);
                (ContainerKind::Regular, grace, self.noted_pre_stop(&status.id, grace).await?)
            }
        };
        let (name, id) = (&status.name, &status.id);
        self.end(Ending { identity, kind, name, id, message: "", grace, pre_stop, ip, turns: Some(turns) }).await
    }

    /// Stops one container of a known pod.
    pub(super) async fn kill_container(
        &self,
        pod: &Pod,
        identity: &PodIdentity,
        kill: &ContainerKill,
        over: Option<i64>,
        ip: Option<IpAddr>,
    ) -> Result<(), ActionError> {
        let found = find_container(pod, &kill.name);
        let spec = found.as_ref().map(|(_, container)| &**container);
        let ending = Ending {
            identity: Some(identity),
            kind: found.as_ref().map_or(ContainerKind::Regular, |(kind, _)| *kind),
            name: &kill.name,
            id: &kill.id,
            message: &kill.message,
            grace: grace(pod, spec, kill.reason, over),
            pre_stop: spec.and_then(end::pre_stop),
            ip,
            turns: None,
        };
        self.end(ending).await
    }

    /// Removes an instance for an in-place restart of the pod: no grace, and its log stays.
    pub(super) async fn reset_container(
        &self,
        pod: &Pod,
        identity: &PodIdentity,
        reset: &ContainerReset,
    ) -> Result<(), ActionError> {
        if reset.kill {
            let kill = ContainerKill {
                id: reset.id.clone(),
                name: reset.name.clone(),
                message: "killing".to_owned(),
                reason: KillReason::RestartAllContainers,
            };
            self.kill_container(pod, identity, &kill, Some(0), None).await?;
        }
        self.remove_container_record(&reset.id).await
    }

    async fn stop_sandbox(&self, id: &SandboxId) -> Result<(), ActionError> {
        match self.api.stop_pod_sandbox(id).await {
            Err(error) if !error.is_not_found() => {
                let transient = error.is_unknown_outcome();
                Err(ActionError { transient, ..ActionError::new("KillPodSandboxError", error.to_string()) })
            }
            _ => {
                self.stopped_sandboxes().note(id);
                Ok(())
            }
        }
    }

    /// Removes a sandbox, and stops it before if this process has not: it may hold an address. That it is gone already is success.
    /// A second stop would have the runtime take the network down once more, by the same plugins.
    pub async fn remove_sandbox(&self, id: &SandboxId) -> Result<(), ActionError> {
        if !self.stopped_sandboxes().contains(id) {
            self.stop_sandbox(id).await?;
        }
        match self.api.remove_pod_sandbox(id).await {
            Err(error) if !error.is_not_found() => {
                // Perhaps for something that a stop puts right.
                self.stopped_sandboxes().forget(id);
                let transient = error.is_unknown_outcome();
                Err(ActionError { transient, ..ActionError::new("RemovePodSandboxError", error.to_string()) })
            }
            _ => {
                self.stopped_sandboxes().forget(id);
                Ok(())
            }
        }
    }

    /// One pass of garbage collection: dead containers, then the sandboxes that nothing is left in. Returns what failed, each with
    /// the id; the rest is done nevertheless. `removable`: see [`gc::containers`].
    pub async fn collect_garbage(
        &self,
        pods: &[RuntimePod],
        policy: GcPolicy,
        removable: impl Fn(&PodUid) -> bool,
    ) -> Vec<(String, ActionError)> {
        let mut failed = Vec::new();
        let mut left = pods.to_vec();
        for removal in gc::containers(pods, (self.clock)(), policy, &removable) {
            let Some(pod) = left.iter_mut().find(|pod| pod.uid.as_ref() == Some(&removal.pod)) else { continue };
            let Some(container) = pod.containers.iter().find(|one| one.id == removal.id) else { continue };
            match self.remove_dead(pod, container, removal.kill_first).await {
                Ok(()) => pod.containers.retain(|one| one.id != removal.id),
                Err(error) => failed.push((removal.id.to_string(), error)),
            }
        }
        for removal in gc::sandboxes(&left, &removable) {
            if let Err(error) = self.remove_sandbox(&removal.id).await {
                failed.push((removal.id.to_string(), error));
            }
        }
        failed
    }

    async fn remove_dead(
        &self,
        pod: &RuntimePod,
        container: &ContainerStatus,
        kill_first: bool,
    ) -> Result<(), ActionError> {
        let identity = identity_of(pod);
        if kill_first {
            let grace = orphan_grace(container, None);
            let ending = Ending {
                identity: identity.as_ref(),
                kind: ContainerKind::Regular,
                name: &container.name,
                id: &container.id,
                message: "Container is in unknown state, try killing it before removal",
                grace,
                pre_stop: self.noted_pre_stop(&container.id, grace).await?,
                ip: primary_ip(None, pod, &[]),
                turns: None,
            };
            self.end(ending).await?;
        }
        match identity {
            Some(identity) => self.remove_container(&identity, container, false).await,
            // Without a proper name there is no log of ours to find.
            None => self.remove_container_record(&container.id).await,
        }
    }

    /// After a container died: removes surplus dead instances of it, or all dead ones of the pod when its content is to
    /// go (`everything`).
    pub async fn remove_surplus(
        &self,
        pod: &RuntimePod,
        died: &bulkhead_types::ContainerId,
        policy: GcPolicy,
        everything: bool,
    ) -> Vec<(String, ActionError)> {
        let mut failed = Vec::new();
        for id in surplus_dead_containers(pod, died, policy.max_per_container, everything) {
            let Some(container) = pod.containers.iter().find(|c| c.id == id) else { continue };
            if let Err(error) = self.remove_dead(pod, container, false).await {
                failed.push((id.to_string(), error));
            }
        }
        failed
    }
}

/// Sandboxes that this process has stopped and not removed yet.
#[derive(Debug, Default)]
pub(super) struct StoppedSandboxes(BTreeSet<SandboxId>);

/// Far more than a node has. Above it all are forgotten, and stopped once more.
const STOPPED_MAX: usize = 4096;

impl StoppedSandboxes {
    fn note(&mut self, id: &SandboxId) {
        if self.0.len() >= STOPPED_MAX {
            self.0.clear();
        }
        self.0.insert(id.clone());
    }

    fn contains(&self, id: &SandboxId) -> bool {
        self.0.contains(id)
    }

    fn forget(&mut self, id: &SandboxId) {
        self.0.remove(id);
    }
}

/// Who a pod is by the runtime's own record.
pub fn identity_of(status: &RuntimePod) -> Option<PodIdentity> {
    Some(PodIdentity {
        uid: status.uid.clone()?,
        namespace: Namespace::parse(&status.namespace).ok()?,
        name: PodName::parse(&status.name).ok()?,
    })
}
