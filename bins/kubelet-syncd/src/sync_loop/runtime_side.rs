//! The runtime side as the main loop's work sees it: one executor for the node, with its ports, and what its results mean
//! for when to look again.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::SystemTime;

use bulkhead_config::{Feature, NodeConfig};
use bulkhead_cri::CriClient;
use bulkhead_types::{ContainerId, PodUid};
use k8s_openapi::api::core::v1::PodStatus;
use kubelet_model::v1::Pod;
use prometheus::IntCounterVec;
use tokio_util::sync::CancellationToken;

use super::events::Reporter;
use super::host_files::VolnetdHostFiles;
use super::node::NodeContext;
use super::pod_images::PodImages;
use super::pod_records::Prepared;
use super::resize_port::PodResizer;
use super::runtime_service::{RateLimitedRuntime, with_take_down, with_turn};
use super::{resize, view};
use crate::cri_metrics::SandboxMetrics;
use crate::metrics::Metrics;
use crate::pod_workers::{Retry, Termination};
use crate::private_state::PrivateState;
use crate::start_latency::StartTimes;
use crate::start_limit::{StartLimiter, StartSlot};
use crate::take_down::{self, TakeDown, TakeDowns};
use kubelet_edges::volnetd::Volnetd;
use kubelet_images::credentials::Keyring;
use kubelet_images::in_use::ImagesInUse;
use kubelet_images::pull_records::Policy;
use kubelet_images::{ImageManager, ImageMetrics, PullLimits};
use kubelet_model::pod::model::RuntimePod;
use kubelet_model::pod::restart::History;
use kubelet_model::pod::spec::{self, ContainerKind, PodIdentity};
use kubelet_pleg::Pleg;
use kubelet_probes::hooks::pre_stop::PreStops;
use kubelet_runtime::runtime::backoff::CrashLoopBackOff;
use kubelet_runtime::runtime::gc::GcPolicy;
use kubelet_runtime::runtime::pod_runtime::handler_features;
use kubelet_runtime::runtime::result::{Action, CRASH_LOOP_BACK_OFF, SyncResult};
use kubelet_runtime::runtime::stop::KillContext;
use kubelet_runtime::runtime::sync::{RuntimeManager, SyncContext};
use kubelet_runtime::runtime::userns::{self, Pool, UserNamespaces};
use kubelet_runtime::status::ended::{self, Course};
use kubelet_runtime::status::ends;
pub use kubelet_runtime::status::next::Stage;
use kubelet_runtime::status::next::{Observation, next};
use kubelet_runtime::status::pod_status::StatusInput;
use kubelet_runtime::status::remembered::remembered;

/// What a sync came to.
#[derive(Debug)]
pub struct Report {
    /// The runtime was changed.
    pub did_something: bool,
    /// When to try again, when it did not all work.
    pub failed: Option<Retry>,
    /// See [`SyncResult::is_broken`].
    pub is_broken: bool,
    /// See [`SyncResult::is_reset`].
    pub is_reset: bool,
}

/// One for the node.
#[derive(Debug)]
pub struct RuntimeSide {
    manager: RuntimeManager<RateLimitedRuntime, VolnetdHostFiles, PodImages>,
    /// For what no start waits for.
    cri: CriClient,
    images: Arc<ImageManager<CriClient>>,
    policy: GcPolicy,
    take_downs: TakeDowns,
    places: StartLimiter,
}

/// What it is put together from.
#[derive(Debug)]
pub struct RuntimeParts {
    pub cri: CriClient,
    pub volnetd: Volnetd,
    pub state: PrivateState,
    pub limiter: StartLimiter,
    /// Of pods that are prepared.
    pub places: StartLimiter,
    pub take_downs: TakeDowns,
    pub pleg: Pleg,
    pub reporter: Arc<Reporter>,
    pub keyring: Arc<Keyring>,
    pub metrics: RuntimeMetrics,
}

/// What is counted on this side alone.
#[derive(Debug)]
pub struct RuntimeMetrics {
    pub images: ImageMetrics,
    pub sandboxes: SandboxMetrics,
    pub starts: Arc<StartTimes>,
}

/// A pod that is prepared.
#[derive(Debug)]
pub struct Ready<'a> {
    pub prepared: &'a Prepared,
    /// Its place among those that are and have not started.
    pub place: Option<StartSlot>,
}

/// While it lives the pod's containers are being brought to what its spec says.
struct InSync<'a> {
    node: &'a NodeContext,
    uid: &'a PodUid,
}

impl<'a> InSync<'a> {
    fn begin(node: &'a NodeContext, uid: &'a PodUid) -> Self {
        node.pods.set_in_sync(uid, true);
        InSync { node, uid }
    }
}

impl Drop for InSync<'_> {
    fn drop(&mut self) {
        self.node.pods.set_in_sync(self.uid, false);
    }
}

impl RuntimeSide {
    pub fn new(config: &NodeConfig, parts: RuntimeParts) -> Self {
        let RuntimeParts { cri, volnetd, state, limiter, places, take_downs, pleg, reporter, keyring, metrics } = parts;
        let kubelet = &config.kubelet;
        let unsigned = |n: i32| u32::try_from(n).unwrap_or(0);
        let limits = PullLimits {
            serialize: kubelet.serialize_image_pulls(),
            parallel_max: kubelet.max_parallel_image_pulls.map(unsigned),
            per_second: unsigned(kubelet.registry_pull_qps()),
            burst: unsigned(kubelet.registry_burst),
        };
        let gate = config.feature_gates().enabled(Feature::KubeletEnsureSecretPulledImages);
        let (policy, allowed) =
            (&kubelet.image_pull_credentials_verification_policy, &kubelet.preloaded_images_verification_allowlist);
        let in_use = ImagesInUse::new(milliseconds_since_boot);
        let images = ImageManager::new(cri.clone(), limits, in_use)
            .with_metrics(metrics.images)
            .with_records(Policy::of(gate, policy, allowed), state.pull_records(), Arc::new(state.clone()))
            .with_back_off(Arc::new(state.clone()), &config.boot_id, state.pull_back_off());
        let images = Arc::new(images);
        let (initial, max) = config.crash_loop_back_off();
        let mut back_off = CrashLoopBackOff::new(initial, max).of_boot(&config.boot_id);
        if let Some(saved) = state.back_off() {
            back_off.restore(&saved);
        }
        let pre_stops = PreStops::new(Arc::new(state.clone()), state.pre_stops().as_deref());
        let manager = RuntimeManager::new(
            RateLimitedRuntime::new(cri.clone(), limiter, take_downs.clone(), pleg, metrics.sandboxes),
            VolnetdHostFiles(volnetd),
            PodImages { manager: images.clone(), keyring, reporter: reporter.clone(), starts: metrics.starts },
            reporter,
            back_off,
            Arc::new(state.clone()),
        )
        .with_pre_stops(pre_stops)
        .with_users(users_of_pods(config, state));
        RuntimeSide { manager, cri, images, policy: gc_policy(config), take_downs, places }
    }

    /// Whether images are there, and who holds them.
    pub fn images(&self) -> &Arc<ImageManager<CriClient>> {
        &self.images
    }

    /// The runtime, for what no start waits for.
    pub fn cri(&self) -> &CriClient {
        &self.cri
    }

    /// Counts requests that were not sent because they granted too much.
    #[must_use]
    pub fn with_refusals(self, counter: IntCounterVec) -> Self {
        RuntimeSide { manager: self.manager.with_refusals(counter), ..self }
    }

    /// Places of pods that are prepared for their start.
    pub fn places(&self) -> &StartLimiter {
        &self.places
    }

    /// Brings the runtime to what the pod's spec says, as far as one pass gets.
    pub async fn sync(
        &self,
        node: &NodeContext,
        uid: &PodUid,
        pod: &Arc<Pod>,
        runtime: &RuntimePod,
        ready: Ready<'_>,
        cancel: &CancellationToken,
    ) -> Report {
        let Ready { prepared, place } = ready;
        let Ok(identity) = PodIdentity::of(pod) else {
            let failed = Some(Retry::Failed { back_off: None });
            return Report { did_something: false, failed, is_broken: true, is_reset: false };
        };
        let facts = node.facts();
        let resizer = PodResizer { node, cri: &self.cri, uid, pod, facts: &facts };
        let sandbox_ready = |_: &_, _: &_| view::sandbox_ready(node, uid);
        let context = SyncContext {
            facts: &facts,
            cgroup_parent: &prepared.cgroup_parent,
            volumes: &prepared.volumes,
            objects: &*node.objects,
            probes: &node.prober.results(uid, runtime),
            past: &History::of(pod, runtime, node.pods.status(uid).as_deref()),
            cancel,
            resizer: &resizer,
            container_manager: &*node.container_manager,
            on_sandbox_ready: &sandbox_ready,
        };
        let _in_sync = InSync::begin(node, uid);
        // Of a sandbox that is replaced, too: for one with a network of its own plugins are called at its end.
        let host_network = spec::host_network(pod) && runtime.sandboxes.iter().all(|sandbox| sandbox.host_network);
        let sync = self.manager.sync_pod(pod, &identity, runtime, &context);
        let result = with_turn(node.pleg.clone(), uid.clone(), host_network, place, sync).await;
        node.pods.synced(uid, &result);
        resize::note_outcome(node, uid, pod, &result);
        count_starts(&node.metrics, pod, &result);
        if let Some(text) = result.error_text() {
            tracing::info!("sync is not complete: {text}");
        }
        Report {
            did_something: result.did_work(),
            failed: retry(&result),
            is_broken: result.is_broken(),
            is_reset: result.is_reset(),
        }
    }

    /// Stops everything of a pod.
    ///
    /// # Errors
    /// With the text of what could not be stopped.
    pub async fn kill(
        &self,
        node: &NodeContext,
        pod: Option<&Arc<Pod>>,
        runtime: &RuntimePod,
        termination: Termination,
        about: Box<dyn take_down::Pod>,
    ) -> Result<(), String> {
        let over = Some(i64::try_from(termination.grace_seconds).unwrap_or(i64::MAX));
        let (running, hurried) = (runtime.running().count(), termination.hurried);
        let take_down = TakeDown::new(self.take_downs.clone(), running, hurried, about);
        let held = take_down.held_back();
        let facts = node.facts();
        let context = KillContext { over, host_ips: &facts.host_ips, held: &held };
        let kill = self.manager.kill_pod(pod.map(|p| &**p), runtime, context);
        match with_take_down(take_down, kill).await.error_text() {
            None => Ok(()),
            Some(text) => Err(text),
        }
    }

    /// Waits until no pod is being taken down.
    pub async fn all_down(&self) {
        self.take_downs.quiet().await;
    }

    /// Whether a pod that has no pod worker yet is over by what the runtime has of it.
    pub fn course(&self, node: &NodeContext, pod: &Pod, runtime: &RuntimePod) -> Course {
        ended::course(pod, &self.manager.shown(runtime), &node.facts())
    }

    /// The pod's status as the API shows it, from the runtime's picture of it; kept as the last one. It is the very object that was
    /// computed last where the same comes out.
    pub fn compute_status(
        &self,
        node: &NodeContext,
        uid: &PodUid,
        pod: &Arc<Pod>,
        runtime: &RuntimePod,
        stage: Stage,
    ) -> Arc<PodStatus> {
        let last = node.pods.status(uid);
        let first = if last.is_none() { remembered(pod, runtime, mirrored(node, uid)) } else { None };
        let termination = node.pods.termination(uid);
        let failures = node.pods.start_failures(uid);
        let facts = node.facts();
        let runtime = &*self.manager.shown(runtime);
        let (actuated, resize) = (node.allocations.actuated(uid), node.allocations.shown(uid));
        let input = StatusInput {
            pod,
            runtime,
            old: last.as_deref().or(first.as_ref()),
            start_failures: &failures,
            messages: &node.termination_messages.of(runtime),
            probes: &node.prober.results(uid, runtime),
            facts: &facts,
            handler: handler_features(pod, &*node.objects, &facts),
            actuated: actuated.as_ref(),
            resize: &resize,
            terminal: stage != Stage::Alive,
            termination: termination.as_ref(),
            now: jiff::Timestamp::now(),
        };
        let observation = Observation {
            last: last.as_deref(),
            stage,
            in_sync: node.pods.is_in_sync(uid),
            newer_sandbox: node.knows_of_newer_sandbox(uid),
        };
        let (mut status, dropped) = next(&input, observation);
        if let Some(statuses) = &mut status.container_statuses {
            node.container_manager.show_health(uid.as_str(), statuses);
        }
        node.claims.show_health(pod, &mut status);
        if let Some(why) = dropped {
            tracing::warn!(pod_uid = %uid, "computed status contradicts the last one and is dropped: {why}");
        }
        for end in ends::since(last.as_deref().or(pod.status.as_ref()), &status) {
            let labels = [end.container_type, &end.exit_code.to_string(), &end.reason];
            node.metrics.starts.terminated_containers.with_label_values(&labels).inc();
        }
        let status = last.filter(|last| **last == status).unwrap_or_else(|| Arc::new(status));
        node.pods.set_status(uid, status.clone());
        node.prober.observe(uid, pod, &status);
        status
    }

    /// What was noted of containers that do not exist any more.
    pub fn retain_containers(&self, exist: &HashSet<ContainerId>) {
        self.manager.retain_hooks(exist);
    }

    /// A pod is wanted again under its uid. `old`: its containers, which are removed now.
    pub fn begins_anew(&self, uid: &PodUid, old: &RuntimePod) {
        self.manager.begins_anew(uid, old);
    }

    /// What was noted of former lives is kept for pods that are wanted.
    pub fn retain_former_lives(&self, wanted: impl Fn(&PodUid) -> bool) {
        self.manager.retain_former_lives(wanted);
    }

    /// Users of pods that are gone are given back.
    pub fn retain_users(&self, keep: impl Fn(&PodUid) -> bool) {
        self.manager.retain_users(keep);
    }

    /// Old back-offs, of containers and of images.
    pub fn forget_expired(&self) {
        self.manager.forget_expired_back_off();
        self.images.collect_garbage();
    }

    /// Removes dead containers beyond what is kept, and sandboxes with nothing in them. Answers whether all of it worked.
    pub async fn collect_garbage(&self, pods: &[RuntimePod], removable: &HashSet<PodUid>) -> bool {
        let failed = self.manager.collect_garbage(pods, self.policy, |uid| removable.contains(uid)).await;
        for (id, error) in &failed {
            tracing::warn!(id, error = error as &dyn std::error::Error, "failed to remove dead container or sandbox");
        }
        failed.is_empty()
    }

    /// The same for one container that has just died.
    pub async fn remove_surplus(&self, pod: &RuntimePod, died: &ContainerId, everything: bool) {
        for (id, error) in self.manager.remove_surplus(pod, died, self.policy, everything).await {
            tracing::warn!(id, error = &error as &dyn std::error::Error, "failed to remove dead container");
        }
    }
}

/// What was tried and what failed. A container that is held back was not tried; one whose image is, as upstream counts it.
fn count_starts(metrics: &Metrics, pod: &Pod, result: &SyncResult) {
    for action in &result.actions {
        match action.action {
            Action::CreatePodSandbox => {
                let failed = u64::from(action.error.is_some());
                metrics.starts.pods.inc();
                metrics.starts.pods_errors.inc_by(failed);
                if pod.spec.as_ref().and_then(|spec| spec.host_users) == Some(false) {
                    metrics.starts.users.inc();
                    // A user namespace mostly fails only when something is to run in it: whatever fails in the sync that
                    // made the sandbox counts, once, as with upstream.
                    metrics.starts.users_errors.inc_by(u64::from(!result.is_ok()));
                }
            }
            Action::StartContainer if action.error.as_ref().is_none_or(|e| e.reason != CRASH_LOOP_BACK_OFF) => {
                let kind = match spec::find_container(pod, &action.target) {
                    Some((ContainerKind::Init, _)) => "init_container",
                    Some((ContainerKind::Ephemeral, _)) => "ephemeral_container",
                    Some((ContainerKind::Regular, _)) | None => "container",
                };
                metrics.starts.containers.with_label_values(&[kind]).inc();
                if let Some(error) = &action.error {
                    metrics.starts.containers_errors.with_label_values(&[kind, error.reason.as_str()]).inc();
                }
            }
            _ => {}
        }
    }
}

/// What the API server has of a static pod.
fn mirrored(node: &NodeContext, uid: &PodUid) -> Option<PodStatus> {
    node.mirror_pods.get(uid).and_then(|api| serde_json::from_slice(&api.status_json).ok())
}

/// When to look again. Pure.
fn retry(result: &SyncResult) -> Option<Retry> {
    if result.is_ok() {
        return None;
    }
    if result.is_transient() {
        return Some(Retry::PeerAway);
    }
    let left = result.back_off_until().map(|until| until.duration_since(SystemTime::now()).unwrap_or_default());
    Some(Retry::after_failure(left, result.only_restarts_wait()))
}

/// Blocks of the machine's users for pods that have their own.
fn users_of_pods(config: &NodeConfig, state: PrivateState) -> UserNamespaces {
    let ids = config.kubelet.user_namespaces.as_ref().and_then(|namespaces| namespaces.ids_per_pod);
    let max_pods = u32::try_from(config.kubelet.max_pods).unwrap_or(0);
    // Without such a file nothing is set aside.
    let file = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let subordinate = userns::subordinate_ids(&file("/etc/subuid"), &file("/etc/subgid"));
    let pool = subordinate.and_then(|range| Pool::of(ids.unwrap_or(userns::UNIT), range, max_pods));
    if let Err(error) = &pool {
        tracing::warn!("user namespaces are not available: {error}");
    }
    UserNamespaces::new(pool, Box::new(state))
}

fn milliseconds_since_boot() -> u64 {
    u64::try_from(bulkhead_sys::clock::since_boot().as_millis()).unwrap_or(u64::MAX)
}

fn gc_policy(config: &NodeConfig) -> GcPolicy {
    // Below zero is no limit, as upstream has it.
    let count = |n: i32| usize::try_from(n).ok();
    GcPolicy {
        min_age: config.flags.minimum_container_ttl_duration.to_std(),
        max_per_container: count(config.flags.maximum_dead_containers_per_container),
        max_total: count(config.flags.maximum_dead_containers),
    }
}
