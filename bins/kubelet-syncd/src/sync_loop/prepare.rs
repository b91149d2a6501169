//! What a pod needs before its first container: cgroup, folders, volumes.

use std::sync::Arc;
use std::time::SystemTime;

use bulkhead_ipc::volnetd as api;
use bulkhead_types::QosClass;
use kubelet_model::v1::Pod;

use super::doubts::{Doubt, doubt};
use super::pod_records::Prepared;
use super::view;
use super::work::{FAILED, PodSyncer, Step, Stop};
use crate::pod_workers::Retry;
use crate::volumes::back_off::LONGEST;
use crate::volumes::{self, Maker, VolumeError, VolumeKind, VolumePlan, set_up};
use kubelet_edges::volnetd::Volnetd;
use kubelet_model::events::EventType;
use kubelet_model::node_facts::NodeFacts;
use kubelet_model::objects::named_objects::{self, NamedObjects};
use kubelet_model::pod::model::{RunState, RuntimePod};
use kubelet_model::pod::resources::{CgroupResources, pod_cgroup_resources, qos_class};
use kubelet_runtime::runtime::run_options::ContainerManager as _;

/// Of the volumes whose files come from the API, those of a pod that is prepared are looked at in every sync: that is
/// how a change gets into a running pod.
impl PodSyncer {
    /// cgroup, folders and volumes: asked for all at once, for none needs another's answer.
    pub(super) async fn prepare(&self, pod: &Arc<Pod>, runtime: &RuntimePod) -> Step<Prepared> {
        self.wait(self.node.prune_gate.wait(&self.uid)).await?;
        let epoch = self.volnetd().await?;
        let facts = self.node.facts();
        let resources = pod_cgroup_resources(pod, &facts, self.node.container_manager.without_quota(pod).pod);
        let pod_memory = resources.memory_limit_bytes.and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(u64::MAX);
        let plans = volumes::plan(pod, self.node.allocatable_memory.min(pod_memory));
        let doubt = self.doubt(pod, runtime);
        if doubt == Doubt::Everything {
            self.node.pods.drop_prepared(&self.uid);
        }
        if let Some(prepared) = self.node.pods.prepared(&self.uid, pod, epoch) {
            if let Some(prepared) = self.refresh(pod, &facts, &plans, prepared, doubt == Doubt::Files).await? {
                return Ok(prepared);
            }
            self.node.pods.drop_prepared(&self.uid);
        }
        self.why("prepares cgroup, folders and volumes");
        let (resources, resizes) = self.without_resize(pod, resources);
        let volnetd = &self.node.volnetd;
        let (cgroup, folders, outcomes, ()) = tokio::join!(
            volnetd.ensure_pod(
                &self.context,
                api::EnsurePodRequest {
                    pod_uid: self.uid.to_string(),
                    qos: wire_qos(qos_class(pod)).into(),
                    resources: Some(wire_resources(resources)),
                    without_limits: true,
                },
            ),
            volnetd.prepare_pod(&self.context, api::PreparePodRequest { pod_uid: self.uid.to_string() }),
            async {
                let objects = self.objects_of(pod, &plans).await?;
                Ok::<_, Stop>((self.maker(pod, &facts, &objects).set_up(plans).await, objects.tokens_renew()))
            },
            self.node.volume_manager.add_pod(&self.uid, pod),
        );
        let cgroup = match cgroup {
            Ok(cgroup) => cgroup,
            Err(error) => {
                if !error.is_transient() {
                    let message = format!("unable to ensure pod container exists: {error}");
                    self.event(pod, EventType::Warning, "FailedCreatePodContainer", message);
                }
                return Err(self.volnetd_failed("making the pod's cgroup", &error));
            }
        };
        if !resizes && let Err(error) = self.node.allocations.set_actuated_level(&self.uid, pod) {
            tracing::warn!(%error, "failed to save pod-level resources");
            return Err(FAILED);
        }
        if let Err(error) = folders {
            return Err(self.volnetd_failed("making the pod's folders", &error));
        }
        let (mut outcomes, mut tokens_renew) = outcomes?;
        let stale = self.node.pods.volumes_set_up(&self.uid, &mut outcomes, &mut tokens_renew);
        self.files_stay(pod, &stale);
        self.node.volume_manager.folders_ready(&self.uid);
        view::volumes(&self.node, &self.uid, &outcomes);
        self.node.hub.modify_known(&self.uid, |state| state.cgroup.clone_from(&cgroup.cgroup_parent));
        if outcomes.iter().any(|(_, outcome)| outcome.is_err()) {
            return Err(self.volumes_failed(pod, &outcomes));
        }
        let persistent = self.persistent_volumes(pod, &mut outcomes).await?;
        self.node.pods.volumes_ready(&self.uid);
        let mut volumes = set_up::mounted(&outcomes);
        volumes.extend(persistent);
        let prepared = Prepared {
            epoch,
            pod: pod.clone(),
            cgroup_parent: cgroup.cgroup_parent,
            volumes,
            contents: set_up::hashes(&outcomes),
            tokens_renew,
        };
        // Its limits were left out while a resize is under way. That may end without them: a container that restarts for it has what it
        // was granted, whether the pod's cgroup got its part or not. So the next sync gives them.
        if !resizes {
            self.node.pods.set_prepared(&self.uid, prepared.clone());
        }
        Ok(prepared)
    }

    fn doubt(&self, pod: &Pod, runtime: &RuntimePod) -> Doubt {
        let now = SystemTime::now();
        let until = |container: &str| self.node.pods.back_off_until(&self.uid, container);
        doubt(pod, runtime, |container| until(container).is_some_and(|until| until > now))
    }

    /// While containers that run are being resized, the pod's limits change step by step with theirs and not before. Says
    /// whether that is so.
    fn without_resize(&self, pod: &Pod, resources: CgroupResources) -> (CgroupResources, bool) {
        let runtime = self.node.cache.get(&self.uid);
        let is_running = |name: &str| runtime.newest(name).is_some_and(|c| c.state == RunState::Running);
        let resizes =
            runtime.running().next().is_some() && self.node.allocations.is_in_progress(&self.uid, pod, is_running);
        if !resizes {
            return (resources, false);
        }
        let CgroupResources { pids_limit, hugepage_limits, .. } = resources;
        (CgroupResources { pids_limit, hugepage_limits, ..CgroupResources::default() }, true)
    }

    /// Puts the files that have changed, or `all`. What cannot be had now leaves the pod with what it has. None: a volume is not there
    /// any more, and the pod is to be prepared again.
    async fn refresh(
        &self,
        pod: &Arc<Pod>,
        facts: &NodeFacts,
        plans: &[VolumePlan],
        mut prepared: Prepared,
        all: bool,
    ) -> Step<Option<Prepared>> {
        if plans.iter().any(|plan| matches!(plan.kind, VolumeKind::Managed { .. })) {
            self.node.volume_manager.add_pod(&self.uid, pod).await;
        }
        if prepared.contents.is_empty() {
            return Ok(Some(prepared));
        }
        let objects = self.objects_of(pod, plans).await?;
        let before = (prepared.contents.clone(), prepared.tokens_renew);
        let errors = self.maker(pod, facts, &objects).refresh(plans, &mut prepared.contents, all).await;
        if errors.iter().any(VolumeError::is_not_set_up) {
            tracing::warn!("volumes of the pod are gone: setting them up again");
            return Ok(None);
        }
        // A token that could not be had leaves the time in the past: it is asked for again soon.
        prepared.tokens_renew = objects.tokens_renew().or(prepared.tokens_renew);
        if (&prepared.contents, prepared.tokens_renew) != (&before.0, before.1) {
            self.node.pods.set_prepared(&self.uid, prepared.clone());
        }
        self.files_stay(pod, &errors);
        Ok(Some(prepared))
    }

    /// Says why volumes do not show the newest files.
    fn files_stay(&self, pod: &Pod, errors: &[VolumeError]) {
        for error in errors {
            if error.is_transient() {
                tracing::debug!(
                    error = error as &dyn std::error::Error,
                    "failed to update a volume's files: trying again"
                );
            } else {
                self.event(pod, EventType::Warning, "FailedMount", error.event_message());
            }
        }
    }

    async fn objects_of(&self, pod: &Pod, plans: &[VolumePlan]) -> Step<NamedObjects> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
        self.wait(named_objects::fetch(&*self.node.objects, namespace, set_up::wanted(plans))).await
    }

    fn maker<'a>(&'a self, pod: &'a Pod, facts: &'a NodeFacts, objects: &'a NamedObjects) -> Maker<'a, Volnetd> {
        let (verbs, places) = (&self.node.volnetd, &self.node.files_on_their_way);
        Maker { verbs, context: &self.context, uid: &self.uid, pod, facts, objects, places }
    }

    /// Says what is missing, where that is news, and when to try again.
    fn volumes_failed(&self, pod: &Pod, outcomes: &set_up::Outcomes) -> Stop {
        let failed: Vec<(&VolumePlan, &VolumeError)> =
            outcomes.iter().filter_map(|(plan, outcome)| Some((plan, outcome.as_ref().err()?))).collect();
        let texts: Vec<String> = failed.iter().map(|(_, error)| error.to_string()).collect();
        self.why(format!("waits for its volumes: {}", texts.join("; ")));
        let reasons: Vec<String> =
            failed.iter().filter(|(_, e)| !e.is_transient()).map(|(_, e)| e.event_message()).collect();
        if reasons.is_empty() {
            return Stop::Retry(Retry::PeerAway);
        }
        let Some(retry) = self.node.pods.volumes_failed(&self.uid, &reasons, LONGEST) else { return Stop::Cancelled };
        if retry.say {
            reasons.into_iter().for_each(|reason| self.event(pod, EventType::Warning, "FailedMount", reason));
        }
        Stop::Retry(Retry::Failed { back_off: Some(retry.wait) })
    }
}

pub(super) fn wire_qos(class: QosClass) -> api::Qos {
    match class {
        QosClass::Guaranteed => api::Qos::Guaranteed,
        QosClass::Burstable => api::Qos::Burstable,
        QosClass::BestEffort => api::Qos::BestEffort,
    }
}

pub(super) fn wire_resources(r: CgroupResources) -> api::CgroupResources {
    api::CgroupResources {
        cpu_shares: r.cpu_shares,
        cpu_quota_us: r.cpu_quota_us,
        cpu_period_us: r.cpu_period_us,
        memory_limit_bytes: r.memory_limit_bytes,
        pids_limit: r.pids_limit,
        hugepage_limits: r.hugepage_limits.into_iter().collect(),
        cpus: None,
        memory_min_bytes: r.memory_min_bytes,
        memory_low_bytes: r.memory_low_bytes,
    }
}
