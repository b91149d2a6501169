//! Stopping: single containers, whole pods in the right order, and the removal of what is dead.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bulkhead_types::{Namespace, PodName, PodUid, SandboxId};
use futures_util::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use tokio::sync::watch;
use tokio::time::Instant;

use super::actions::{ContainerKill, ContainerReset, KillReason};
use super::events::{EventType, PodEvent};
use super::gc::{GcPlan, GcPolicy, plan, surplus_dead_containers};
use super::kill::{grace, orphan_grace, predecessors, with_floor};
use super::model::{ContainerStatus, RuntimePod};
use super::podspec::{ContainerKind, PodIdentity, find_container, has_sidecar};
use super::ports::{HostFiles, Images, RuntimeApi};
use super::result::{Action, ActionError, SyncResult};
use super::sync::RuntimeManager;

/// One stop, ready to be done.
struct Stop<'a> {
    status: &'a ContainerStatus,
    kind: ContainerKind,
    message: String,
    /// Seconds.
    grace: i64,
}

/// Who has ended, for those that wait for it.
struct Turns {
    before: BTreeMap<String, BTreeSet<String>>,
    ended: watch::Sender<BTreeSet<String>>,
}

impl Turns {
    /// Waits until all that have to end first have ended, at most for the grace period. Whole seconds waited.
    async fn wait(&self, name: &str, grace: i64) -> i64 {
        let Some(before) = self.before.get(name) else { return 0 };
        let limit = Duration::from_secs(u64::try_from(grace).unwrap_or(0));
        let begun = Instant::now();
        let mut ended = self.ended.subscribe();
        // The sender lives in self, so waiting only ends by success or by the limit.
        let _ = tokio::time::timeout(limit, ended.wait_for(|ended| before.is_subset(ended))).await;
        i64::try_from(begun.elapsed().as_secs()).unwrap_or(i64::MAX)
    }

    fn done(&self, name: &str) {
        self.ended.send_modify(|ended| {
            ended.insert(name.to_owned());
        });
    }
}

impl<R: RuntimeApi, F: HostFiles, I: Images> RuntimeManager<R, F, I> {
    /// Stops all running containers of the pod at once, sidecars last, then its sandboxes.
    ///
    /// `pod` is None for a pod of which only the runtime knows: then grace periods come from the containers' annotations
    /// (or `over`), and there are no sidecars. `over` replaces every grace period, seconds.
    pub async fn kill_pod(&self, pod: Option<&Pod>, status: &RuntimePod, over: Option<i64>) -> SyncResult {
        let identity = pod.and_then(|p| PodIdentity::of(p).ok()).or_else(|| identity_of(status));
        self.kill_pod_of(pod, identity.as_ref(), status, over).await
    }

    pub(super) async fn kill_pod_of(
        &self,
        pod: Option<&Pod>,
        identity: Option<&PodIdentity>,
        status: &RuntimePod,
        over: Option<i64>,
    ) -> SyncResult {
        let mut result = SyncResult::default();
        let running: BTreeSet<String> = status.running().map(|c| c.name.clone()).collect();
        let before = pod.filter(|p| has_sidecar(p)).map(|p| predecessors(p, &running)).unwrap_or_default();
        let turns = Turns { before, ended: watch::Sender::new(BTreeSet::new()) };
        let stops = status.running().map(|container| {
            let found = pod.and_then(|p| find_container(p, &container.name).map(|found| (p, found)));
            let stop = match &found {
                Some((p, (kind, spec))) => Stop {
                    status: container,
                    kind: *kind,
                    message: String::new(),
                    grace: grace(p, Some(spec), KillReason::Unknown, over),
                },
                // Upstream refuses to stop what the spec does not name; but it is running, and the pod has to end.
                None => Stop {
                    status: container,
                    kind: ContainerKind::Regular,
                    message: String::new(),
                    grace: orphan_grace(container, over),
                },
            };
            self.stop(identity, stop, &turns)
        });
        for (name, outcome) in join_all(stops).await {
            result.push(Action::KillContainer, &name, outcome);
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

    async fn stop(
        &self,
        identity: Option<&PodIdentity>,
        stop: Stop<'_>,
        turns: &Turns,
    ) -> (String, Result<(), ActionError>) {
        let name = stop.status.name.clone();
        if let Some(identity) = identity {
            let message = if stop.message.is_empty() { format!("Stopping container {name}") } else { stop.message };
            let message = message.replace(stop.status.id.as_str(), &name);
            let container = (stop.kind, name.as_str());
            self.event(PodEvent::container(identity, container, EventType::Normal, "Killing", message));
        }
        let waited = if stop.grace > 0 { turns.wait(&name, stop.grace).await } else { 0 };
        let outcome = match self.api.stop_container(&stop.status.id, with_floor(stop.grace - waited)).await {
            Err(error) if !error.is_not_found() => {
                let transient = error.is_unknown_outcome();
                Err(ActionError { transient, ..ActionError::new("KillContainerError", error.to_string()) })
            }
            _ => {
                turns.done(&name);
                Ok(())
            }
        };
        (name, outcome)
    }

    /// Stops one container of a known pod.
    pub(super) async fn kill_container(
        &self,
        pod: &Pod,
        identity: &PodIdentity,
        kill: &ContainerKill,
        over: Option<i64>,
    ) -> Result<(), ActionError> {
        let found = find_container(pod, &kill.name);
        let kind = found.as_ref().map_or(ContainerKind::Regular, |(kind, _)| *kind);
        let grace = grace(pod, found.as_ref().map(|(_, c)| &**c), kill.reason, over);
        let message =
            if kill.message.is_empty() { format!("Stopping container {}", kill.name) } else { kill.message.clone() };
        let message = message.replace(kill.id.as_str(), &kill.name);
        self.event(PodEvent::container(identity, (kind, &kill.name), EventType::Normal, "Killing", message));
        match self.api.stop_container(&kill.id, with_floor(grace)).await {
            Err(error) if !error.is_not_found() => {
                let transient = error.is_unknown_outcome();
                Err(ActionError { transient, ..ActionError::new("KillContainerError", error.to_string()) })
            }
            _ => Ok(()),
        }
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
            self.kill_container(pod, identity, &kill, Some(0)).await?;
        }
        self.remove_container_record(&reset.id).await
    }

    async fn stop_sandbox(&self, id: &SandboxId) -> Result<(), ActionError> {
        match self.api.stop_pod_sandbox(id).await {
            Err(error) if !error.is_not_found() => {
                let transient = error.is_unknown_outcome();
                Err(ActionError { transient, ..ActionError::new("KillPodSandboxError", error.to_string()) })
            }
            _ => Ok(()),
        }
    }

    /// Stops the sandbox once more (it may hold an address) and removes it. That it is gone already is success.
    pub async fn remove_sandbox(&self, id: &SandboxId) -> Result<(), ActionError> {
        self.stop_sandbox(id).await?;
        match self.api.remove_pod_sandbox(id).await {
            Err(error) if !error.is_not_found() => {
                let transient = error.is_unknown_outcome();
                Err(ActionError { transient, ..ActionError::new("RemovePodSandboxError", error.to_string()) })
            }
            _ => Ok(()),
        }
    }

    /// One pass of container garbage collection. Returns what failed, each with the id; the rest is done nevertheless.
    /// `removable`: see [`plan`].
    pub async fn collect_garbage(
        &self,
        pods: &[RuntimePod],
        policy: GcPolicy,
        removable: impl Fn(&PodUid) -> bool,
    ) -> Vec<(String, ActionError)> {
        let plan = plan(pods, (self.clock)(), policy, removable);
        self.run_gc(pods, &plan).await
    }

    async fn run_gc(&self, pods: &[RuntimePod], plan: &GcPlan) -> Vec<(String, ActionError)> {
        let mut failed = Vec::new();
        for removal in &plan.containers {
            let found = pods
                .iter()
                .filter(|p| p.uid.as_ref() == Some(&removal.pod))
                .find_map(|p| p.containers.iter().find(|c| c.id == removal.id).map(|c| (p, c)));
            let Some((pod, container)) = found else { continue };
            if let Err(error) = self.remove_dead(pod, container, removal.kill_first).await {
                failed.push((removal.id.to_string(), error));
            }
        }
        for removal in &plan.sandboxes {
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
        if kill_first
            && let Err(error) = self.api.stop_container(&container.id, with_floor(orphan_grace(container, None))).await
            && !error.is_not_found()
        {
            return Err(ActionError::new("KillContainerError", error.to_string()));
        }
        match identity_of(pod) {
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

/// Who a pod is by the runtime's own record.
pub fn identity_of(status: &RuntimePod) -> Option<PodIdentity> {
    Some(PodIdentity {
        uid: status.uid.clone()?,
        namespace: Namespace::parse(&status.namespace).ok()?,
        name: PodName::parse(&status.name).ok()?,
    })
}
