//! The main loop's side of resizes: who waits for one, when that is looked at again, what is told of it. Decisions are
//! [`kubelet_runtime::allocation`]'s and [`crate::admission`]'s.

use std::sync::Arc;
use std::time::Duration;

use bulkhead_types::{PodUid, Quantity};
use k8s_openapi::api::core::v1::ResourceRequirements;
use kubelet_model::v1::Pod;
use tokio::time::Instant;

use super::main_loop::SyncLoop;
use super::node::NodeContext;
use crate::admission::features::missing_for_update;
use crate::admission::{self, Context, Decision, Rejection};
use crate::desired::{self, Desired};
use crate::pod_workers::UpdateType;
use kubelet_model::events::{EventSink as _, EventType, PodEvent};
use kubelet_model::pod::model::{RunState, RuntimePod};
use kubelet_model::pod::resources::{Amounts, amounts};
use kubelet_model::pod::spec::PodIdentity;
use kubelet_runtime::allocation::feasibility::{self, StaticManagers};
use kubelet_runtime::allocation::messages::{self, ResizeEvent};
use kubelet_runtime::allocation::pending::{Candidate, in_order};
use kubelet_runtime::allocation::record::same_level;
use kubelet_runtime::runtime::result::{Action, SyncResult};

/// Resizes that wait are tried again after so long, if nothing else has changed (upstream's numbers).
const RETRY: Duration = Duration::from_secs(180);
/// The same while not every source has delivered.
const RETRY_EARLY: Duration = Duration::from_secs(30);

/// Why resizes are tried; the metric's label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trigger {
    PodsAdded,
    PodUpdated,
    PodsRemoved,
    PodTerminated,
    PodResized,
    Periodic,
}

impl Trigger {
    const fn as_str(self) -> &'static str {
        match self {
            Trigger::PodsAdded => "pods_added",
            Trigger::PodUpdated => "pod_updated",
            Trigger::PodsRemoved => "pods_removed",
            Trigger::PodTerminated => "pod_terminated",
            Trigger::PodResized => "pod_resized",
            Trigger::Periodic => "periodic_retry",
        }
    }
}

/// Who waits for a resize.
#[derive(Debug)]
pub(super) struct Resizes {
    waiting: Vec<PodUid>,
    retry_at: Instant,
    /// The book could not be written, and that was said.
    unwritten: bool,
}

impl Resizes {
    pub(super) fn new(now: Instant) -> Self {
        Resizes { waiting: Vec::new(), retry_at: now + RETRY_EARLY, unwritten: false }
    }

    /// When those who wait are to be looked at. None: nobody waits.
    pub(super) fn next(&self) -> Option<Instant> {
        (!self.waiting.is_empty()).then_some(self.retry_at)
    }
}

/// What came of one try.
enum Tried {
    Granted,
    /// It is tried again later.
    Waits,
    /// Not with this wish.
    Never,
}

fn generation(pod: &Pod) -> i64 {
    pod.metadata.generation.unwrap_or(0)
}

fn tell(node: &NodeContext, pod: &Pod, generation: i64, told: ResizeEvent<'_>) {
    let kind = match told {
        ResizeEvent::Started | ResizeEvent::Completed => EventType::Normal,
        ResizeEvent::Error(_) | ResizeEvent::Deferred(..) | ResizeEvent::Infeasible(_) => EventType::Warning,
    };
    if let Ok(identity) = PodIdentity::of(pod) {
        node.reporter.emit(PodEvent::pod(&identity, kind, told.reason(), messages::message(pod, generation, told)));
    }
}

impl SyncLoop {
    /// A source has another version of a pod: does it ask for other resources?
    pub(super) fn resize_if_asked(&mut self, uid: &PodUid, before: &Pod, now: Instant) {
        let Some(desired) = self.desired.get(uid) else { return };
        let gates = self.node.allocations.gates();
        let level = |pod: &Pod| pod.spec.as_ref().and_then(|s| s.resources.clone()).filter(|_| gates.pod_level);
        let mut asked = !same_level(level(before).as_ref(), level(&desired.asked).as_ref());
        for new in gates.resizable(&desired.asked) {
            let Some(old) = gates.resizable(before).find(|c| c.name == new.name) else { continue };
            for (resource, requirement, operation) in changes(old.resources.as_ref(), new.resources.as_ref()) {
                asked = true;
                self.node.metrics.resizes.requested.with_label_values(&[resource, requirement, operation]).inc();
            }
        }
        if !asked {
            return;
        }
        if Arc::ptr_eq(&desired.asked, &desired.pod) {
            // It asks for what it has.
            self.node.allocations.change(uid, |conditions| conditions.clear_pending());
            return;
        }
        self.wait_for_resize(uid);
        self.retry_resizes(Trigger::PodUpdated, now);
    }

    /// A change that asks for what this node does not declare is told to whoever made it (upstream HandlePodUpdates).
    pub(super) fn say_missing_features(&self, before: &Pod, after: &Pod) {
        if !self.admission_queue.settings().features.declared {
            return;
        }
        let missing = missing_for_update(before, after, self.node.allocations.gates());
        if !missing.is_empty()
            && let Ok(identity) = PodIdentity::of(after)
        {
            let message = format!("Pod requires node features that are not available: {}", missing.join(", "));
            let reason = "FailedNodeDeclaredFeaturesCheck";
            self.node.reporter.emit(PodEvent::pod(&identity, EventType::Warning, reason, message));
        }
    }

    /// What these pods still have beyond what they were granted: nobody else can have it before their resizes are carried out
    /// (upstream NewNodeInfo, which counts what statuses show as well).
    pub(super) fn still_held(&self, pods: &[Arc<Pod>]) -> Amounts {
        let deviating = self.node.allocations.deviating();
        let mut held = Amounts::new();
        if deviating.is_empty() {
            return held;
        }
        for pod in pods {
            let Some((uid, real)) = desired::uid_of(pod).and_then(|uid| deviating.get_key_value(&uid)) else {
                continue;
            };
            let runtime = self.node.cache.get(uid);
            let is_known = self.node.cache.is_certain(uid);
            let runs = |name: &str| !is_known || runtime.newest(name).is_some_and(|c| c.state == RunState::Running);
            for (resource, amount) in real.held_beyond(pod, runs) {
                *held.entry(resource).or_default() += amount;
            }
        }
        held
    }

    /// What was granted in this turn is on disk before anything comes of it.
    pub(super) fn keep_allocations(&mut self) {
        let written = self.node.allocations.flush();
        if let Err(error) = &written
            && !self.resizes.unwritten
        {
            tracing::warn!(%error, "failed to save the allocated resources of pods");
        }
        self.resizes.unwritten = written.is_err();
    }

    fn wait_for_resize(&mut self, uid: &PodUid) {
        if !self.resizes.waiting.contains(uid) {
            self.resizes.waiting.push(uid.clone());
        }
    }

    /// Pods have been added, all of them: those that ask for something else than they have wait from now on.
    pub(super) fn resize_added(&mut self, added: &[PodUid], now: Instant) {
        let asks = |uid: &&PodUid| {
            self.desired.get(uid).is_some_and(|d| !Arc::ptr_eq(&d.asked, &d.pod))
                && !self.admission_queue.is_not_admitted(uid)
        };
        let asking: Vec<PodUid> = added.iter().filter(asks).cloned().collect();
        if asking.is_empty() {
            return;
        }
        asking.iter().for_each(|uid| self.wait_for_resize(uid));
        self.retry_resizes(Trigger::PodsAdded, now);
    }

    /// Tries every resize that waits.
    pub(super) fn retry_resizes(&mut self, trigger: Trigger, now: Instant) {
        if self.resizes.waiting.is_empty() {
            return;
        }
        if !self.node.volnetd.authority().sources_ready() {
            // Who else has what is not known yet.
            self.resizes.retry_at = now + RETRY_EARLY;
            return;
        }
        self.resizes.retry_at = now + RETRY;
        let waiting = std::mem::take(&mut self.resizes.waiting).into_iter();
        let candidates = waiting.filter_map(|uid| {
            let desired = self.desired.get(&uid)?;
            let since = self.node.allocations.conditions(&uid).pending_since();
            Some(Candidate::new(uid, &desired.asked, &desired.pod, since))
        });
        for uid in in_order(candidates.collect()) {
            let before = self.node.allocations.conditions(&uid);
            let tried = self.try_resize(&uid, now);
            match tried {
                Tried::Granted if before.is_deferred() => {
                    self.node.metrics.resizes.deferred_accepted.with_label_values(&[trigger.as_str()]).inc();
                }
                Tried::Waits => self.wait_for_resize(&uid),
                Tried::Granted | Tried::Never => {}
            }
            let news = matches!(tried, Tried::Granted) || self.node.allocations.conditions(&uid) != before;
            if let Some(pod) = self.desired.pod(&uid).filter(|_| news) {
                self.update_worker(&uid, pod, UpdateType::Sync, now);
            }
        }
    }

    fn try_resize(&mut self, uid: &PodUid, now: Instant) -> Tried {
        let Some(Desired { pod, asked, .. }) = self.desired.get(uid).cloned() else { return Tried::Never };
        if Arc::ptr_eq(&asked, &pod)
            || self.admission_queue.is_not_admitted(uid)
            || self.workers.termination_requested(uid)
        {
            self.node.allocations.change(uid, |conditions| conditions.clear_pending());
            return Tried::Never;
        }
        let kubelet = &self.node.config.kubelet;
        let managers = StaticManagers {
            cpu: kubelet.cpu_manager_policy == "static",
            memory: kubelet.memory_manager_policy == "Static",
        };
        let gates = self.node.allocations.gates();
        if let Some(never) = feasibility::infeasible(&asked, &pod, gates, &self.node.facts(), managers) {
            self.node.metrics.resizes.infeasible.with_label_values(&[never.detail]).inc();
            self.postpone(uid, &asked, true, ResizeEvent::Infeasible(&never.message), &never.message);
            return Tried::Never;
        }
        let (others, mut node) = (self.active_pods(uid), self.node_info());
        node.held = self.still_held(&others);
        let context = Context { pressure: self.node.pressure.last(), ..Context::default() };
        match admission::admit(&asked, &others, &node, self.admission_queue.settings(), context) {
            Decision::Admit => self.grant(uid, &asked, &pod, now),
            Decision::Preempt { victims, resource } => {
                self.kill_victims(&victims, &resource, now);
                Tried::Waits
            }
            Decision::Reject(Rejection { reason, message })
            | Decision::RejectByLabels(Rejection { reason, message }) => {
                self.postpone(uid, &asked, false, ResizeEvent::Deferred(&reason, &message), &message);
                Tried::Waits
            }
        }
    }

    fn postpone(&self, uid: &PodUid, asked: &Pod, infeasible: bool, told: ResizeEvent<'_>, message: &str) {
        let generation = generation(asked);
        let since = jiff::Timestamp::now();
        let set = |c: &mut kubelet_runtime::allocation::ResizeConditions| {
            c.set_pending(infeasible, message, generation, since)
        };
        if self.node.allocations.change(uid, set).0 {
            tell(&self.node, asked, generation, told);
        }
    }

    fn grant(&mut self, uid: &PodUid, asked: &Arc<Pod>, pod: &Arc<Pod>, now: Instant) -> Tried {
        let allocations = &self.node.allocations;
        allocations.allocate(uid, asked);
        if let Err(error) = allocations.flush() {
            tracing::warn!(pod_uid = %uid, %error, "failed to save the allocated resources: the resize is not granted");
            allocations.allocate(uid, pod);
            return Tried::Waits;
        }
        allocations.start(uid, generation(asked), jiff::Timestamp::now());
        tell(&self.node, asked, generation(asked), ResizeEvent::Started);
        self.desired.grant(uid);
        self.qos_soon(now);
        Tried::Granted
    }
}

/// Amounts that differ: resource, `requests` or `limits`, and what is done to it, as the metric has it.
fn changes(
    old: Option<&ResourceRequirements>,
    new: Option<&ResourceRequirements>,
) -> Vec<(&'static str, &'static str, &'static str)> {
    let mut changes = Vec::new();
    for requirement in ["requests", "limits"] {
        let list = |r: Option<&ResourceRequirements>| {
            amounts(r.and_then(|r| if requirement == "requests" { r.requests.as_ref() } else { r.limits.as_ref() }))
        };
        let (before, after) = (list(old), list(new));
        for resource in ["memory", "cpu"] {
            let amount =
                |list: &std::collections::BTreeMap<String, Quantity>| list.get(resource).copied().unwrap_or_default();
            let (before, after) = (amount(&before), amount(&after));
            let operation = match () {
                () if before == after => continue,
                () if after.is_zero() => "remove",
                () if before.is_zero() => "add",
                () if after < before => "decrease",
                () => "increase",
            };
            changes.push((resource, requirement, operation));
        }
    }
    changes
}

/// Before a pod's status is computed in its own work: is the resize that was granted still under way?
pub(super) fn note_progress(node: &NodeContext, uid: &PodUid, pod: &Pod, runtime: &RuntimePod) {
    let is_running = |name: &str| runtime.newest(name).is_some_and(|c| c.state == RunState::Running);
    if node.allocations.is_in_progress(uid, pod, is_running) {
        node.allocations.change(uid, |c| c.go_on(generation(pod), jiff::Timestamp::now()));
    } else if let (Some(generation), _) = node.allocations.change(uid, |c| c.complete()) {
        tell(node, pod, generation, ResizeEvent::Completed);
    }
}

/// After a sync: what of a resize did not work is told.
pub(super) fn note_outcome(node: &NodeContext, uid: &PodUid, pod: &Pod, result: &SyncResult) {
    let resizes = result.actions.iter().filter(|a| a.action == Action::ResizePodInPlace);
    for error in resizes.filter_map(|a| a.error.as_ref()).filter(|error| !error.transient) {
        let fail = |c: &mut kubelet_runtime::allocation::ResizeConditions| {
            c.fail(&error.message, generation(pod), jiff::Timestamp::now())
        };
        if let (Some(generation), _) = node.allocations.change(uid, fail) {
            tell(node, pod, generation, ResizeEvent::Error(&error.message));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_done_to_an_amount() {
        let list = |value| serde_json::from_value::<ResourceRequirements>(value).unwrap();
        let old = list(serde_json::json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "2"}}));
        let new = list(serde_json::json!({"requests": {"cpu": "1000m", "memory": "2Gi"}, "limits": {"memory": "4Gi"}}));
        let expected = [("memory", "requests", "increase"), ("memory", "limits", "add"), ("cpu", "limits", "remove")];
        assert_eq!(changes(Some(&old), Some(&new)), expected);
        assert_eq!(changes(Some(&new), Some(&old))[0], ("memory", "requests", "decrease"));
        assert!(changes(None, None).is_empty());
    }
}
