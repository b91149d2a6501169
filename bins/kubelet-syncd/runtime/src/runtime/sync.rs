//! The executor: does the actions of one sync, in upstream's order, one pod at a time.
//!
//! Order (upstream `kuberuntime_manager.go` SyncPod): kill the pod, or single containers, or reset them; prune init
//! containers; resize what runs; create the sandbox and learn its addresses; start ephemeral, init, then regular containers, one after
//! another. A container that fails to start does not keep the others from starting, except that a failed init container
//! ends the sync.
//!
//! From creation to running there are as many CRI calls as it takes and no more: ImageStatus, RunPodSandbox,
//! PodSandboxStatus (for the addresses; not with host network), CreateContainer, StartContainer.

use std::borrow::Cow;
use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use bulkhead_types::{ContainerId, PodUid, SandboxId};
use kubelet_model::v1::{Container, Pod};
use parking_lot::{Mutex, MutexGuard};
use prometheus::IntCounterVec;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::stages::{self, Stage};
use kubelet_model::objects::Objects;
use kubelet_probes::hooks::pre_stop::{self, PreStops};

use super::actions::{self, PodActions};
use super::argument_list::LARGE_AT_A_TIME;
use super::backoff::{BackOffStore, CrashLoopBackOff};
use super::container_config::{MountedVolumes, claimed_paths, volume_groups};
use super::dns::ResolvConf;
use super::end::primary_ip;
use super::former_lives::FormerLives;
use super::grace_clock::HeldBack;
use super::image_volumes;
use super::pod_runtime::PodRuntime;
use super::ports::{HostFiles, Images};
use super::post_start_gate::PostStartGate;
use super::request_check::{self, Refusal, RequestContext};
use super::resize::act::Resizer;
use super::resize::{Resize, plan};
use super::result::{Action, ActionError, SyncResult};
use super::run_options::ContainerManager;
use super::sandbox_config::{SandboxPlan, sandbox_plan};
use super::start::{Start, unless_cancelled};
use super::stop::{KillContext, StoppedSandboxes};
use super::userns::{NoBlockStore, Pool, UNIT, UserNamespaces};
use kubelet_edges::runtime_service::RuntimeService;
use kubelet_model::events::{EventSink, EventType, PodEvent};
use kubelet_model::node_facts::NodeFacts;
use kubelet_model::pod::model::{RunState, RuntimePod};
use kubelet_model::pod::restart::History;
use kubelet_model::pod::spec::{
    ContainerKind, PodIdentity, containers, ephemeral_as_container, ephemeral_containers, host_network,
    init_containers, is_sidecar,
};
use kubelet_probes::prober::results::ProbeResults;

/// What the executor knows about the world around one sync. All of it is borrowed for the length of the call.
pub struct SyncContext<'a> {
    pub facts: &'a NodeFacts,
    /// Full path of the pod's cgroup, from volnetd's EnsurePod. Empty: pods have none.
    pub cgroup_parent: &'a str,
    /// The pod's volumes; all of them are ready.
    pub volumes: &'a MountedVolumes,
    /// What pods name on the API server.
    pub objects: &'a dyn Objects,
    pub probes: &'a ProbeResults,
    /// What was told of the pod and is not in `status` any more.
    pub past: &'a History,
    /// The pod's end has been asked for meanwhile, or this process ends: nothing new is begun, what only waits is left, and
    /// a sandbox that cannot be made is no news.
    pub cancel: &'a CancellationToken,
    /// Who keeps the book of resources.
    pub resizer: &'a dyn Resizer,
    /// Who gives containers what they have beside their spec.
    pub container_manager: &'a dyn ContainerManager,
    /// Called once a new sandbox has its network, before any image is pulled.
    pub on_sandbox_ready: &'a (dyn Fn(&SandboxId, &[IpAddr]) + Send + Sync),
}

impl<'a> SyncContext<'a> {
    /// What requests about the pod are compared with.
    pub(super) fn known(&self, pod: &'a Pod, identity: &'a PodIdentity, runtime: &'a PodRuntime) -> RequestContext<'a> {
        RequestContext { pod, identity, facts: self.facts, cgroup_parent: self.cgroup_parent, runtime }
    }
}

impl std::fmt::Debug for SyncContext<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SyncContext").field("cgroup_parent", &self.cgroup_parent).finish_non_exhaustive()
    }
}

/// Clock of back-off and garbage collection.
pub type Clock = Arc<dyn Fn() -> SystemTime + Send + Sync>;

/// Does to pods what [`super::actions`] decides. One for the node; calls for different pods may overlap.
pub struct RuntimeManager<R, F, I> {
    pub(super) api: R,
    pub(super) files: F,
    pub(super) images: I,
    pub(super) events: Arc<dyn EventSink>,
    back_off: Mutex<CrashLoopBackOff>,
    store: Arc<dyn BackOffStore>,
    pub(super) clock: Clock,
    users: UserNamespaces,
    refused: Option<IntCounterVec>,
    pub(super) pre_stops: Arc<PreStops>,
    pub(super) post_start_gate: PostStartGate,
    stopped_sandboxes: Mutex<StoppedSandboxes>,
    pub(super) former_lives: FormerLives,
    /// Starts with a large environment or command that are under way, of all pods.
    pub(super) large_starts: Semaphore,
}

impl<R, F, I> std::fmt::Debug for RuntimeManager<R, F, I> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RuntimeManager").field("back_off", &self.back_off).finish_non_exhaustive()
    }
}

impl<R: RuntimeService, F: HostFiles, I: Images> RuntimeManager<R, F, I> {
    /// `back_off` may have been restored from what `store` saved before.
    pub fn new(
        api: R,
        files: F,
        images: I,
        events: Arc<dyn EventSink>,
        back_off: CrashLoopBackOff,
        store: Arc<dyn BackOffStore>,
    ) -> Self {
        let clock: Clock = Arc::new(SystemTime::now);
        let users = UserNamespaces::new(Pool::of(UNIT, None, 0), Box::new(NoBlockStore));
        let (pre_stops, post_start_gate) =
            (Arc::new(PreStops::new(Arc::new(pre_stop::NoStore), None)), PostStartGate::default());
        let back_off = Mutex::new(back_off);
        RuntimeManager {
            api,
            files,
            images,
            events,
            back_off,
            store,
            clock,
            users,
            refused: None,
            pre_stops,
            post_start_gate,
            stopped_sandboxes: Mutex::default(),
            former_lives: FormerLives::default(),
            large_starts: Semaphore::new(LARGE_AT_A_TIME),
        }
    }

    pub(super) fn stopped_sandboxes(&self) -> MutexGuard<'_, StoppedSandboxes> {
        // Plain data, valid at every step.
        self.stopped_sandboxes.lock()
    }

    /// preStop hooks that were begun by an earlier life of this process are known.
    #[must_use]
    pub fn with_pre_stops(mut self, pre_stops: PreStops) -> Self {
        self.pre_stops = Arc::new(pre_stops);
        self
    }

    /// A pod is wanted again under its uid, and what is left of its former life goes: its restart counts go on.
    pub fn begins_anew(&self, uid: &PodUid, old: &RuntimePod) {
        self.former_lives.note(uid, old);
    }

    /// What was noted of former lives is kept for pods that are wanted.
    pub fn retain_former_lives(&self, wanted: impl Fn(&PodUid) -> bool) {
        self.former_lives.retain(wanted);
    }

    /// What was noted of hooks is kept for containers that exist.
    pub fn retain_hooks(&self, exist: &HashSet<ContainerId>) {
        self.pre_stops.retain(exist);
    }

    /// The pod as it may be shown: see [`super::post_start_gate`].
    pub fn shown<'a>(&self, pod: &'a RuntimePod) -> Cow<'a, RuntimePod> {
        self.post_start_gate.shown(pod)
    }

    /// Counts requests that were refused, with [`request_check::counter`].
    #[must_use]
    pub fn with_refusals(mut self, counter: IntCounterVec) -> Self {
        self.refused = Some(counter);
        self
    }

    /// A request was not sent, because it granted too much: a mistake of ours, and somebody has to learn of it.
    pub(super) fn refused(&self, call: &'static str, pod: &PodIdentity, refusal: &Refusal) {
        tracing::error!(%pod, call, "{refusal}");
        if let Some(refused) = &self.refused {
            refused.with_label_values(&[call, refusal.field]).inc();
        }
    }

    /// Users for pods that have their own, kept over restarts.
    #[must_use]
    pub fn with_users(mut self, users: UserNamespaces) -> Self {
        self.users = users;
        self
    }

    /// Gives back what pods had that are none of those.
    pub fn retain_users(&self, keep: impl Fn(&PodUid) -> bool) {
        self.users.retain(keep);
    }

    /// Replaces the clock, for tests.
    #[must_use]
    pub fn with_clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    pub(super) fn back_off(&self) -> MutexGuard<'_, CrashLoopBackOff> {
        // The state is plain data and valid at every step; a panic elsewhere does not spoil it.
        self.back_off.lock()
    }

    pub(super) fn save_back_off(&self) {
        let json = self.back_off().to_json();
        self.store.save(&json);
    }

    /// Drops back-off entries that no longer matter (housekeeping).
    pub fn forget_expired_back_off(&self) {
        let now = (self.clock)();
        let changed = self.back_off().forget_expired(now);
        if changed {
            self.save_back_off();
        }
    }

    pub(super) fn event(&self, event: PodEvent) {
        self.events.emit(event);
    }

    /// Brings the pod's sandbox and containers to what its spec says, as far as one pass gets.
    ///
    /// `status` must be newer than the end of the previous sync of this pod. Errors are in the result, by action; events
    /// have been emitted. Not cancellation-safe in the sense that what was begun at the runtime stays begun: the next
    /// sync, with a fresh status, takes it from there.
    pub async fn sync_pod(
        &self,
        pod: &Pod,
        identity: &PodIdentity,
        status: &RuntimePod,
        context: &SyncContext<'_>,
    ) -> SyncResult {
        let mut result = SyncResult::default();
        let mut actions = actions::compute(pod, status, context.probes, context.past);
        plan(pod, status, context.resizer.actuated().as_ref(), context.resizer.gates(), &mut actions);
        if actions.is_empty() && init_containers(pod).is_empty() {
            return result;
        }
        if actions.create_sandbox && actions.sandbox_id.is_some() {
            let message = "Pod sandbox changed, it will be killed and re-created.";
            self.event(PodEvent::pod(identity, EventType::Normal, "SandboxChanged", message));
        }
        // Whoever ends the pod meanwhile takes the kills over, with what grace the end leaves them.
        let killed = tokio::select! {
            biased;
            () = context.cancel.cancelled() => false,
            killed = self.kill_first(pod, identity, status, &actions, &context.facts.host_ips, &mut result) => killed,
        };
        if !killed {
            return result;
        }
        self.prune_init_containers(pod, identity, status).await;
        if let Some(sandbox) = actions.sandbox_id.as_ref().filter(|_| !actions.resize.is_empty()) {
            // Before anything is started: a restarted container may need the room.
            resize(identity, &actions.resize, sandbox, context, &mut result).await;
        }
        if !actions.create_sandbox && !actions.starts_containers() {
            return result;
        }
        if actions.create_sandbox {
            // A driver may take its time: others are prepared meanwhile, and the pod's end does not wait for it. What was begun is
            // taken back then.
            let preparing = self.api.unhurried(context.container_manager.prepare_dynamic_resources(pod));
            let Ok(prepared) = unless_cancelled(context.cancel, preparing).await else { return result };
            if let Err(error) = prepared {
                // As upstream, no error of this sync: the pod is looked at again when its time has come.
                let message = format!("Failed to prepare dynamic resources: prepare dynamic resources: {error}");
                self.event(PodEvent::pod(identity, EventType::Warning, "FailedPrepareDynamicResources", message));
                return result;
            }
        }
        let Some(plan) = self.plan_sandbox(pod, identity, actions.attempt, context, &actions, &mut result) else {
            return result;
        };
        let mut sandbox = actions.sandbox_id.clone();
        let mut ips = self.known_ips(pod, status, context.facts);
        if actions.create_sandbox {
            let making = self.create_sandbox(pod, identity, &plan, context, &mut result);
            let Some((id, new_ips)) = stages::during(Stage::Sandbox, making).await else {
                return result;
            };
            if !host_network(pod) {
                ips = context.facts.sort_pod_ips(&new_ips);
            }
            (context.on_sandbox_ready)(&id, &ips);
            result.new_sandbox = Some((id.clone(), new_ips));
            sandbox = Some(id);
        }
        if let Some(sandbox) = sandbox {
            let pulling = image_volumes::pull(&self.images, pod, identity, &plan.config);
            let Ok(image_volumes) = unless_cancelled(context.cancel, pulling).await else { return result };
            let start = Start {
                manager: self,
                pod,
                identity,
                status,
                context,
                plan: &plan,
                sandbox: &sandbox,
                ips: &ips,
                image_volumes: &image_volumes,
            };
            run_starts(&start, &actions, &mut result).await;
        }
        result
    }

    /// Everything that has to be gone before something new is made. False: the sync ends here.
    async fn kill_first(
        &self,
        pod: &Pod,
        identity: &PodIdentity,
        status: &RuntimePod,
        actions: &PodActions,
        host_ips: &[IpAddr],
        result: &mut SyncResult,
    ) -> bool {
        if actions.kill_pod {
            if !actions.create_sandbox && !status.has_ready_sandbox() && status.running().next().is_none() {
                // As good as done; to do it again would be news, and news is a reason to look at the pod again.
                return false;
            }
            let context = KillContext { over: None, host_ips, held: &HeldBack::default() };
            let killed = self.kill_pod_of(Some(pod), Some(identity), status, context).await;
            let ok = killed.is_ok();
            result.actions.extend(killed.actions);
            if ok && actions.create_sandbox {
                self.remove_init_containers(pod, identity, status, 0, |_| true).await;
            }
            return ok;
        }
        for kill in &actions.containers_to_kill {
            let ip = primary_ip(Some(pod), status, host_ips);
            let outcome = self.kill_container(pod, identity, kill, None, ip).await;
            let ok = outcome.is_ok();
            result.push(Action::KillContainer, &kill.name, outcome);
            if !ok {
                return false;
            }
        }
        for reset in &actions.containers_to_reset {
            let outcome = self.reset_container(pod, identity, reset).await;
            let ok = outcome.is_ok();
            result.push(Action::RemoveContainer, &reset.name, outcome);
            if !ok {
                return false;
            }
        }
        true
    }

    /// Keeps the newest dead instance of each init container.
    async fn prune_init_containers(&self, pod: &Pod, identity: &PodIdentity, status: &RuntimePod) {
        let dead = |state| matches!(state, RunState::Exited | RunState::Unknown);
        self.remove_init_containers(pod, identity, status, 1, dead).await;
    }

    async fn remove_init_containers(
        &self,
        pod: &Pod,
        identity: &PodIdentity,
        status: &RuntimePod,
        keep: usize,
        which: impl Fn(RunState) -> bool,
    ) {
        for container in init_containers(pod) {
            let instances = status.containers.iter().filter(|s| s.name == container.name && which(s.state));
            // The oldest goes first, and what is newer stays where it cannot go: whoever looks meanwhile takes the newest that is
            // left for the last.
            for instance in instances.skip(keep).collect::<Vec<_>>().into_iter().rev() {
                if let Err(error) = self.remove_container(identity, instance, false).await {
                    tracing::warn!(pod = %identity, container = %container.name, %error, "cannot remove init container");
                    break;
                }
            }
        }
    }

    fn plan_sandbox(
        &self,
        pod: &Pod,
        identity: &PodIdentity,
        attempt: u32,
        context: &SyncContext<'_>,
        actions: &PodActions,
        result: &mut SyncResult,
    ) -> Option<SandboxPlan> {
        let target = identity.to_string();
        let (objects, facts, has_sandbox) = (context.objects, context.facts, !actions.create_sandbox);
        let runtime = match PodRuntime::of(pod, identity, objects, facts, &self.users, has_sandbox) {
            Ok(runtime) => Ok(runtime),
            Err(error) if error.is_transient() => {
                let message = format!("Failed to create sandbox for pod {target:?}: {error}");
                let error = ActionError { transient: true, ..ActionError::new("CreatePodSandboxError", message) };
                result.push(Action::CreatePodSandbox, &target, Err(error));
                return None;
            }
            Err(error) => Err(error.to_string()),
        };
        // The file is small and local, and upstream reads it anew for each sandbox, too: an administrator may edit it.
        let planned = runtime.and_then(|mut runtime| {
            runtime.volume_groups = volume_groups(pod, context.volumes);
            runtime.claimed_paths = claimed_paths(pod, context.volumes);
            runtime.without_quota = context.container_manager.without_quota(pod).pod;
            let host = ResolvConf::read(&context.facts.resolv_conf).map_err(|error| error.for_pod())?;
            sandbox_plan(pod, identity, attempt, context.cgroup_parent, &host, context.facts, runtime)
                .map_err(|error| error.to_string())
        });
        match planned {
            Ok(plan) => {
                if actions.create_sandbox {
                    plan.node_events.iter().for_each(|event| self.events.emit_node(event.clone()));
                    plan.events.iter().for_each(|event| self.event(event.clone()));
                }
                Some(plan)
            }
            Err(error) if actions.create_sandbox => {
                let message = format!("Failed to generate sandbox config for pod {target:?}: {error}");
                self.sandbox_failed(identity, &error, ActionError::new("CreatePodSandboxError", message), result);
                None
            }
            Err(error) => {
                let message = format!("GeneratePodSandboxConfig for pod {target:?} failed: {error}");
                result.error = Some(ActionError::new("ConfigPodSandboxError", message));
                None
            }
        }
    }

    fn sandbox_failed(&self, identity: &PodIdentity, text: &str, error: ActionError, result: &mut SyncResult) {
        let message = format!("Failed to create pod sandbox: {text}");
        self.event(PodEvent::pod(identity, EventType::Warning, "FailedCreatePodSandBox", message));
        result.push(Action::CreatePodSandbox, &identity.to_string(), Err(error));
    }

    async fn create_sandbox(
        &self,
        pod: &Pod,
        identity: &PodIdentity,
        plan: &SandboxPlan,
        context: &SyncContext<'_>,
        result: &mut SyncResult,
    ) -> Option<(SandboxId, Vec<IpAddr>)> {
        let target = identity.to_string();
        let known = context.known(pod, identity, &plan.runtime);
        if let Err(refusal) = request_check::sandbox(&known, &plan.config, &plan.runtime.handler) {
            self.refused("RunPodSandbox", identity, &refusal);
            let message = format!("Failed to create sandbox for pod {target:?}: {refusal}");
            let error = ActionError::new("CreatePodSandboxError", message);
            self.sandbox_failed(identity, &refusal.to_string(), error, result);
            return None;
        }
        if let Err(error) = self.files.prepare_log_directory(identity, None).await {
            let message = format!("Failed to create log directory for pod {target:?}: {error}");
            let action =
                ActionError { transient: error.transient, ..ActionError::new("CreatePodSandboxError", message) };
            if error.transient {
                result.push(Action::CreatePodSandbox, &target, Err(action));
            } else {
                self.sandbox_failed(identity, &error.to_string(), action, result);
            }
            return None;
        }
        let id = match self.api.run_pod_sandbox(&plan.config, &plan.runtime.handler).await {
            Ok(id) => id,
            // Its end was asked for while it was being made; whatever failed, failed because of that.
            Err(_) if context.cancel.is_cancelled() => return None,
            Err(error) => {
                let message = format!("Failed to create sandbox for pod {target:?}: {error}");
                let transient = error.is_unavailable();
                let action = ActionError { transient, ..ActionError::new("CreatePodSandboxError", message) };
                self.sandbox_failed(identity, &error.to_string(), action, result);
                return None;
            }
        };
        result.push(Action::CreatePodSandbox, &target, Ok(()));
        if host_network(pod) {
            return Some((id, Vec::new()));
        }
        match self.api.sandbox_ips(&id).await {
            Ok(ips) => Some((id, ips)),
            Err(error) => {
                let message = format!("Unable to get pod sandbox status: {error}");
                self.event(PodEvent::pod(identity, EventType::Warning, "FailedPodSandBoxStatus", message));
                let transient = error.is_unknown_outcome();
                result.error = Some(ActionError { transient, ..ActionError::new("", error.to_string()) });
                result.new_sandbox = Some((id, Vec::new()));
                None
            }
        }
    }

    fn known_ips(&self, pod: &Pod, status: &RuntimePod, facts: &NodeFacts) -> Vec<IpAddr> {
        let ips = if host_network(pod) { &facts.host_ips } else { status.ips() };
        facts.sort_pod_ips(ips)
    }

    /// Removes an instance, and its log unless that is to stay. That it is gone already is success.
    pub async fn remove_container(
        &self,
        identity: &PodIdentity,
        instance: &kubelet_model::pod::model::ContainerStatus,
        keep_log: bool,
    ) -> Result<(), ActionError> {
        let failed =
            |message: String, transient| ActionError { transient, ..ActionError::new("RemoveContainerError", message) };
        if !keep_log {
            let removed =
                self.files.remove_container_log(identity, &instance.name, instance.restart_count, &instance.id).await;
            removed.map_err(|error| failed(error.to_string(), error.transient))?;
        }
        self.remove_container_record(&instance.id).await
    }

    pub(super) async fn remove_container_record(&self, id: &ContainerId) -> Result<(), ActionError> {
        match self.api.remove_container(id).await {
            Err(error) if !error.is_not_found() => {
                let transient = error.is_unknown_outcome();
                Err(ActionError { transient, ..ActionError::new("RemoveContainerError", error.to_string()) })
            }
            _ => Ok(()),
        }
    }
}

/// A resize that does not work keeps nothing from being started.
async fn resize(
    identity: &PodIdentity,
    resize: &Resize,
    sandbox: &SandboxId,
    context: &SyncContext<'_>,
    result: &mut SyncResult,
) {
    let outcome = context.resizer.resize(resize, sandbox).await;
    result.push(Action::ResizePodInPlace, &identity.to_string(), outcome);
}

async fn run_starts<R: RuntimeService, F: HostFiles, I: Images>(
    start: &Start<'_, R, F, I>,
    actions: &PodActions,
    result: &mut SyncResult,
) {
    let one = async |kind: ContainerKind, container: &Container, target: Option<&str>, result: &mut SyncResult| {
        let outcome = match start.context.cancel.is_cancelled() {
            true => Err(ActionError::cancelled()),
            false => start.run(kind, container, target).await,
        };
        let ok = outcome.is_ok();
        result.push(Action::StartContainer, &container.name, outcome);
        ok
    };
    for index in &actions.ephemeral_containers_to_start {
        if let Some(ephemeral) = ephemeral_containers(start.pod).get(*index) {
            let target = ephemeral.target_container_name.as_deref().filter(|t| !t.is_empty());
            one(ContainerKind::Ephemeral, &ephemeral_as_container(ephemeral), target, result).await;
        }
    }
    for index in &actions.init_containers_to_start {
        let Some(container) = init_containers(start.pod).get(*index) else { continue };
        let ok = one(ContainerKind::Init, container, None, result).await;
        if !ok && !is_sidecar(container) {
            return;
        }
    }
    for index in &actions.containers_to_start {
        if let Some(container) = containers(start.pod).get(*index) {
            one(ContainerKind::Regular, container, None, result).await;
        }
    }
}

#[cfg(test)]
#[path = "sync_tests.rs"]
mod tests;
