//! The main loop's side of admission: which pods count, what is done with a pod that is refused, and who waits at the
//! door because room is being made or because the node's labels may just be changing. Decisions are
//! [`crate::admission`]'s.
//!
//! A refused pod has no worker. It is remembered until nobody wants it any more; so is who waits.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bulkhead_types::{PodUid, Quantity};
use k8s_openapi::api::core::v1::Pod;
use tokio::time::Instant;

use super::main_loop::Engine;
use super::view;
use crate::admission::{self, Circumstances, Decision, NodeInfo, Rejection, Settings, preemption};
use crate::desired;
use crate::housekeeping::ORPHAN_GRACE;
use crate::pod_workers::{Kill, Lifecycle, Seen, UpdateType};
use crate::runtime::events::{EventSink as _, EventType, PodEvent};
use crate::runtime::podspec::PodIdentity;
use crate::runtime::resources::Amounts;
use crate::sources::SourceKind;
use crate::sources::static_pod::CONFIG_SOURCE;
use crate::status::pod_status::{self, Verdict};

/// A pod that only the node's labels keep out waits so long for their newest state: the pod and the node come by two
/// watches, and the one may be ahead of the other (upstream asks the API server once more).
const LABELS: Duration = Duration::from_secs(1);
/// The same while the node has not been seen at all.
const LABELS_UNKNOWN: Duration = Duration::from_secs(10);
/// Victims of a preemption are waited for at least so long.
const ROOM_MIN: Duration = Duration::from_secs(10);

/// Why a pod waits at the door, and until when.
#[derive(Debug)]
enum Waits {
    /// Victims that still run.
    Room {
        victims: Vec<PodUid>,
        until: Instant,
    },
    Labels {
        until: Instant,
    },
}

impl Waits {
    fn until(&self) -> Instant {
        match self {
            Waits::Room { until, .. } | Waits::Labels { until, .. } => *until,
        }
    }
}

/// Who is not in.
#[derive(Debug)]
pub(super) struct Entrance {
    settings: Settings,
    refused: HashSet<PodUid>,
    waiting: HashMap<PodUid, Waits>,
    /// They make room: what they hold counts as free.
    leaving: HashSet<PodUid>,
}

impl Entrance {
    pub(super) fn new(settings: Settings) -> Self {
        Entrance { settings, refused: HashSet::new(), waiting: HashMap::new(), leaving: HashSet::new() }
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The pod has no worker and is not to get one: it was refused, or waits until others have made room.
    pub(super) fn is_out(&self, uid: &PodUid) -> bool {
        self.refused.contains(uid) || self.waiting.contains_key(uid)
    }

    /// Nobody wants the pod any more. True when it was not in.
    pub(super) fn forget(&mut self, uid: &PodUid) -> bool {
        self.leaving.remove(uid);
        self.refused.remove(uid) | self.waiting.remove(uid).is_some()
    }

    /// When somebody has waited long enough.
    pub(super) fn next(&self) -> Option<Instant> {
        self.waiting.values().map(Waits::until).min()
    }
}

fn is_api(pod: &Pod) -> bool {
    let source = pod.metadata.annotations.as_ref().and_then(|annotations| annotations.get(CONFIG_SOURCE));
    source.is_none_or(|source| source == SourceKind::Api.as_str())
}

impl Engine {
    /// A pod that a source has added: it gets in, or waits, or is refused.
    pub(super) fn let_in(&mut self, uid: &PodUid, pod: &Arc<Pod>, now: Instant) {
        // A new life of the same uid.
        self.entrance.forget(uid);
        // What ends is not asked; its end is the worker's business.
        if self.workers.termination_requested(uid) || desired::facts(pod).terminal_phase {
            return self.take_in(uid, now);
        }
        self.decide(uid, pod, now);
    }

    fn decide(&mut self, uid: &PodUid, pod: &Arc<Pod>, now: Instant) {
        let others = self.occupants(uid);
        let node = self.node_info();
        match admission::admit(pod, &others, &node, &self.entrance.settings, Circumstances::default()) {
            Decision::Admit => self.take_in(uid, now),
            Decision::Preempt { victims, resource } => self.make_room(uid, victims, &resource, now),
            Decision::Reject(rejection) => self.refuse(uid, pod, &rejection, now),
            Decision::RejectByLabels(rejection) => {
                let wait = match (self.node.config.is_standalone(), self.entrance.waiting.get(uid)) {
                    (true, _) => now,
                    // A refusal is for good, and cannot be based on labels that nobody has seen. A static pod names
                    // what its own manifest knows.
                    (false, waits) if self.node_labels.borrow().is_none() && (waits.is_none() || is_api(pod)) => {
                        now + LABELS_UNKNOWN
                    }
                    (false, Some(waits)) => waits.until(),
                    (false, None) => now + LABELS,
                };
                if wait <= now {
                    return self.refuse(uid, pod, &rejection, now);
                }
                self.node.hub.why(uid, format!("waits for the node's newest labels: {}", rejection.message));
                self.entrance.waiting.insert(uid.clone(), Waits::Labels { until: wait });
            }
        }
    }

    /// The pod gets its worker.
    fn take_in(&mut self, uid: &PodUid, now: Instant) {
        self.entrance.waiting.remove(uid);
        let Some(pod) = self.desired.get(uid).map(|d| d.pod.clone()) else { return };
        self.node.allocations.allocate(uid, &pod);
        self.node.objects.register_pod(&pod);
        self.update_worker(uid, pod, UpdateType::Create, now);
    }

    /// Pods that use the node, without this one: wanted, not stopped, not over, not on their way out for another's sake
    /// (upstream `GetActivePods`).
    pub(super) fn occupants(&self, uid: &PodUid) -> Vec<Arc<Pod>> {
        let counts = |other: &PodUid, pod: &Pod| {
            let stopped = self.workers.lifecycle(other).is_some_and(|at| at >= Lifecycle::Terminated);
            let over = self.node.is_over(other, pod) && !self.workers.termination_requested(other);
            let before_the_door = matches!(self.entrance.waiting.get(other), Some(Waits::Labels { .. }));
            other != uid && !stopped && !over && !before_the_door && !self.entrance.leaving.contains(other)
        };
        self.desired.iter().filter(|(other, d)| counts(other, &d.pod)).map(|(_, d)| d.pod.clone()).collect()
    }

    pub(super) fn node_info(&self) -> NodeInfo {
        let (config, capacity) = (&self.node.config, &self.node.capacity);
        let amount = |n: u64| Quantity::from_bytes(i64::try_from(n).unwrap_or(i64::MAX));
        let pages = capacity.huge_pages.iter().map(|(size, total)| (huge_page_resource(*size), amount(*total)));
        let mut own: Amounts = pages.collect();
        own.extend(self.node.facts().allocatable.clone());
        own.insert("pods".to_owned(), Quantity::from_i64(config.pod_capacity(capacity.cpus)));
        let node = self.node_labels.borrow().clone();
        let labels = &config.flags.node_labels;
        let mut info = NodeInfo::of(config.node_name.as_str(), &config.hostname, labels, node.as_deref(), own);
        let health = self.node.health.borrow();
        if health.known {
            info.supplemental_groups_policy = Some(health.supplemental_groups_policy.unwrap_or_default());
        }
        drop(health);
        info
    }

    fn refuse(&mut self, uid: &PodUid, pod: &Arc<Pod>, rejection: &Rejection, now: Instant) {
        self.entrance.waiting.remove(uid);
        let Rejection { reason, message } = rejection;
        self.node.metrics.admission_rejections.with_label_values(&[admission::metric_label(reason)]).inc();
        if let Ok(identity) = PodIdentity::of(pod) {
            let event = PodEvent::pod(&identity, EventType::Warning, reason.clone(), message.clone());
            self.node.reporter.emit(event);
        }
        let status = pod_status::rejected(pod, reason, message, jiff::Timestamp::now());
        let runtime = self.node.cache.get(uid);
        if runtime.sandboxes.is_empty() && runtime.containers.is_empty() && self.workers.lifecycle(uid).is_none() {
            self.entrance.refused.insert(uid.clone());
            self.node.set_status(uid, status.clone());
            return view::rejected(&self.node, uid, pod, &status);
        }
        // It ran before this process started, and may not any longer.
        self.node.set_status(uid, pod_status::rejected_while_it_runs(pod, status));
        let facts = desired::facts(pod);
        let actions = if facts.is_static && self.workers.lifecycle(uid).is_none() {
            // A static pod that was never started here would count as ended.
            self.workers.kill_runtime_pod(uid, &facts.full_name, ORPHAN_GRACE, now)
        } else {
            let seen = Seen { pod: pod.clone(), facts, runtime_ended: false };
            self.workers.update(uid, UpdateType::Kill, seen, Some(&Kill::default()), now)
        };
        self.apply(actions, now);
        self.show(uid);
    }

    /// Ends pods for the sake of a critical one, which waits for them.
    fn make_room(&mut self, uid: &PodUid, victims: Vec<PodUid>, resource: &str, now: Instant) {
        let wait = self.push_off(&victims, resource, now);
        let names: Vec<&str> = victims.iter().map(PodUid::as_str).collect();
        self.node.hub.why(uid, format!("waits for pods to make room: {}", names.join(", ")));
        self.entrance.waiting.insert(uid.clone(), Waits::Room { victims, until: now + wait });
    }

    /// Ends pods because a critical one needs what they have. Answers how long that may take.
    pub(super) fn push_off(&mut self, victims: &[PodUid], resource: &str, now: Instant) -> Duration {
        let mut wait = ROOM_MIN;
        for victim in victims {
            let Some(pod) = self.desired.get(victim).map(|d| d.pod.clone()) else { continue };
            if let Ok(identity) = PodIdentity::of(&pod) {
                let event = PodEvent::pod(&identity, EventType::Warning, preemption::REASON, preemption::MESSAGE);
                self.node.reporter.emit(event);
            }
            self.node.metrics.preemptions.with_label_values(&[resource]).inc();
            self.entrance.leaving.insert(victim.clone());
            if self.entrance.waiting.contains_key(victim) {
                let gone = Rejection::new(preemption::REASON, preemption::MESSAGE);
                self.refuse(victim, &pod, &gone, now);
                continue;
            }
            let verdict = Verdict {
                reason: preemption::REASON.to_owned(),
                message: preemption::MESSAGE.to_owned(),
                disruption: Some(preemption::DISRUPTION.to_owned()),
            };
            self.node.condemn(victim, verdict);
            let seen = Seen { facts: desired::facts(&pod), pod, runtime_ended: false };
            let kill = Kill { grace: None, evicted: true };
            let actions = self.workers.update(victim, UpdateType::Kill, seen, Some(&kill), now);
            self.apply(actions, now);
            self.show(victim);
            let grace = self.workers.grace(victim).unwrap_or(0);
            wait = wait.max(Duration::from_secs(grace.saturating_add(grace / 2)));
        }
        wait
    }

    /// Looks after who waits: at each end of work, when the node has changed, and when a wait is over.
    pub(super) fn attend_the_door(&mut self, now: Instant) {
        let (mut ready, mut asked) = (Vec::new(), Vec::new());
        for (uid, waits) in &self.entrance.waiting {
            let over = waits.until() <= now;
            match waits {
                Waits::Room { victims, .. } => {
                    let runs =
                        |victim: &&PodUid| self.workers.lifecycle(victim).is_some_and(|at| at < Lifecycle::Terminated);
                    let late: Vec<PodUid> = victims.iter().filter(runs).cloned().collect();
                    if late.is_empty() || over {
                        ready.push((uid.clone(), late));
                    }
                }
                Waits::Labels { .. } if over => asked.push(uid.clone()),
                Waits::Labels { .. } => {}
            }
        }
        for (uid, late) in ready {
            if self.desired.get(&uid).is_none() {
                self.entrance.forget(&uid);
                continue;
            }
            for victim in late {
                self.was_too_slow(&victim);
            }
            // As upstream: once its victims have been asked to go, a critical pod is in.
            self.take_in(&uid, now);
        }
        // Asked once more, and not simply refused: while nobody has seen the labels, the wait goes on.
        for uid in asked {
            match self.desired.get(&uid).map(|d| d.pod.clone()) {
                Some(pod) => self.decide(&uid, &pod, now),
                None => drop(self.entrance.forget(&uid)),
            }
        }
    }

    fn was_too_slow(&self, victim: &PodUid) {
        let Some(pod) = self.desired.get(victim) else { return };
        if let Ok(identity) = PodIdentity::of(&pod.pod) {
            let message = "Container runtime did not kill the pod within specified grace period.";
            self.node.reporter.emit(PodEvent::pod(&identity, EventType::Warning, "ExceededGracePeriod", message));
        }
    }

    /// The node has changed: labels may fit now.
    pub(super) fn on_node(&mut self) {
        self.node_labels.borrow_and_update();
        let now = Instant::now();
        let by_labels = self.entrance.waiting.iter().filter(|(_, w)| matches!(w, Waits::Labels { .. }));
        let waiting: Vec<PodUid> = by_labels.map(|(uid, _)| uid.clone()).collect();
        for uid in waiting {
            if let Some(pod) = self.desired.get(&uid).map(|d| d.pod.clone()) {
                self.decide(&uid, &pod, now);
            }
        }
    }

    /// A change of a pod that is not in. Nothing for one that was refused; one that waits and is being deleted gets a
    /// worker, which ends it.
    pub(super) fn changed_outside(&mut self, uid: &PodUid, pod: &Arc<Pod>, now: Instant) {
        let facts = desired::facts(pod);
        if self.entrance.waiting.contains_key(uid) && (facts.deleted || facts.terminal_phase) {
            self.entrance.waiting.remove(uid);
            self.update_worker(uid, pod.clone(), UpdateType::Update, now);
        }
    }
}

/// `hugepages-2Mi`.
fn huge_page_resource(bytes: u64) -> String {
    format!("hugepages-{}", Quantity::from_bytes(i64::try_from(bytes).unwrap_or(i64::MAX)))
}
