//! The main loop's passes over everything: housekeeping, garbage collection, and the removal of what belongs to nobody.
//! Decisions are [`crate::housekeeping`]'s and the workers'; here they are put into effect.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::Ordering;
use std::time::Duration;

use bulkhead_types::PodUid;
use tokio::time::Instant;

use super::main_loop::SyncLoop;
use super::resize::Trigger;
use super::{upkeep, view};
use crate::events::{EventSink as _, EventType, NodeEvent};
use crate::housekeeping;
use crate::pod_workers::UpdateType;
use crate::pod_workers::state::Known;

/// Housekeeping while something is left over, and while nothing is.
pub(super) const HOUSEKEEPING_BUSY: Duration = Duration::from_secs(2);
pub(super) const HOUSEKEEPING_IDLE: Duration = Duration::from_secs(60);
/// Container garbage collection of the whole node.
pub(super) const GC_PERIOD: Duration = Duration::from_secs(60);
/// The next one while a pod that nobody wants is about to be forgotten.
const GC_AGAIN: Duration = Duration::from_secs(10);

/// As upstream's list of errors is written.
fn collection_failed(errors: &[String]) -> Option<NodeEvent> {
    let message = match errors {
        [] => return None,
        [one] => one.clone(),
        many => format!("[{}]", many.join(", ")),
    };
    Some(NodeEvent { kind: EventType::Warning, reason: "ContainerGCFailed", message })
}

impl SyncLoop {
    /// Nobody wants a pod that has ended: its dead containers and sandboxes go, and the folders if they were kept. Those of a pod
    /// that its source still names go when it does not any more: until then a prune would spare them.
    pub(super) fn collect_ended(&mut self, uid: PodUid) {
        if self.desired.get(&uid).is_none() {
            self.prune |= self.ended.remove(&uid);
        }
        let node = self.node.clone();
        // Taken here: a pod of the same uid that begins anew must not lose what it makes meanwhile.
        let old = node.cache.get(&uid);
        tokio::spawn(async move { upkeep::collect_ended(&node, &uid, &old).await });
    }

    pub(super) fn check_sources(&mut self) {
        let authority = self.node.volnetd.authority();
        if !authority.sources_ready() && self.sources.all_ready() {
            tracing::info!(pods = self.desired.len(), "all pod sources synced");
            authority.set_sources_ready();
            self.housekeeping_at = Instant::now();
            // What ended while nobody looked need not wait a whole period.
            self.gc_at = self.gc_at.min(Instant::now() + HOUSEKEEPING_BUSY);
            self.retry_resizes(Trigger::PodsAdded, Instant::now());
        }
    }

    pub(super) fn housekeep(&mut self, now: Instant) {
        self.check_sources();
        if !self.node.volnetd.authority().sources_ready() {
            self.housekeeping_at = now + HOUSEKEEPING_BUSY;
            return;
        }
        let wanted = self.desired.uids();
        let (known, actions) = self.workers.sync_known(&wanted, now);
        self.apply(actions, now);
        let unwanted: Vec<PodUid> =
            self.ended.iter().filter(|uid| !known.contains_key(*uid) && !wanted.contains(*uid)).cloned().collect();
        for uid in unwanted {
            self.collect_ended(uid);
        }
        // A wanted pod loses its worker only to begin anew: what it ended as does not count any more.
        for uid in wanted.iter().filter(|uid| !known.contains_key(*uid) && !self.admission_queue.is_not_admitted(uid)) {
            self.node.forget(uid);
        }
        let over: HashSet<PodUid> =
            self.desired.iter().filter(|(uid, d)| self.node.is_over(uid, &d.pod)).map(|(uid, _)| uid.clone()).collect();
        let inside = wanted.iter().filter(|uid| !self.admission_queue.is_not_admitted(uid)).cloned().collect();
        let runtime = self.node.cache.snapshot();
        let plan =
            housekeeping::plan(&known, &inside, &over, &wanted, &runtime, |pod| self.node.ownership.decided(pod));
        for uid in &plan.create {
            tracing::info!(pod_uid = %uid, "pod is wanted again under the same uid, starting it anew");
            self.node.metrics.restarted_pods.with_label_values(&["true"]).inc();
            self.begin_anew(uid, now);
        }
        for uid in &plan.show {
            tracing::info!(pod_uid = %uid, "pod that has ended is there again under the same uid");
            self.begin_anew(uid, now);
        }
        self.node.ownership.learn(plan.ask.clone());
        for (uid, name) in &plan.kill {
            tracing::warn!(pod_uid = %uid, name, "killing orphaned pod");
            self.node.metrics.orphaned_runtime_pods.inc();
            self.prune = true;
            let actions = self.workers.kill_runtime_pod(uid, name, housekeeping::ORPHAN_GRACE, now);
            self.apply(actions, now);
        }
        for state in self.node.hub.list() {
            if let Ok(uid) = PodUid::parse(&state.uid)
                && self.workers.lifecycle(&uid).is_none()
                && !wanted.contains(&uid)
            {
                self.node.forget(&uid);
                self.queue.remove(&uid);
            }
        }
        if !housekeeping::is_settled(&plan, &known) {
            self.housekeeping_at = now + HOUSEKEEPING_BUSY;
        }
        if std::mem::take(&mut self.links) {
            let node = self.node.clone();
            tokio::spawn(async move {
                // The runtime's word on a container that has just been started may still be under way.
                tokio::time::sleep(HOUSEKEEPING_BUSY).await;
                upkeep::link_logs(&node).await;
            });
        }
        self.prune |= self.prune_again.swap(false, Ordering::Relaxed);
        if self.prune {
            self.start_prune(plan.known, &known, now);
        }
        // A sandbox keeps its users to the end, also one that nobody wants any more.
        let in_runtime: HashSet<&PodUid> = runtime.iter().map(|(uid, _)| uid).collect();
        let has_work = |uid: &PodUid| self.workers.lifecycle(uid).is_some();
        self.node.runtime.retain_users(|uid| wanted.contains(uid) || in_runtime.contains(uid) || has_work(uid));
        let mut granted = wanted.clone();
        granted.extend(self.workers.uids().cloned());
        self.node.allocations.retain(&granted);
        self.node.runtime.forget_expired();
        self.node.ownership.retain(&runtime, &wanted);
        let exist = runtime.iter().flat_map(|(_, pod)| pod.containers.iter().map(|c| c.id.clone())).collect();
        self.node.termination_messages.retain(&exist);
        self.node.prober.retain(&exist);
        self.node.runtime.retain_containers(&exist);
        self.count();
    }

    /// A wanted pod without a worker gets one, and is shown again.
    fn begin_anew(&mut self, uid: &PodUid, now: Instant) {
        let Some((pod, source)) = self.desired.get(uid).map(|d| (d.pod.clone(), d.source)) else { return };
        view::introduce(&self.node, uid, &pod, source);
        self.admission_queue.forget(uid);
        self.node.objects.register_pod(&pod);
        self.update_worker(uid, pod, UpdateType::Create, now);
    }

    /// Once nothing of an orphan lives any more, what it left on the disk may go.
    fn start_prune(&mut self, mut keep: HashSet<PodUid>, known: &BTreeMap<PodUid, Known>, now: Instant) {
        keep.extend(self.workers.uids().cloned());
        let node = self.node.clone();
        if node.volnetd.link().state().ready_epoch().is_none() || node.is_pruning() {
            self.housekeeping_at = self.housekeeping_at.min(now + HOUSEKEEPING_BUSY);
            return;
        }
        // An orphan that is still ending keeps its things; another pass follows when it has ended.
        self.prune = known.values().any(|k| k.orphan);
        node.begin_prune(keep.clone());
        let again = self.prune_again.clone();
        tokio::spawn(async move {
            if !upkeep::prune(&node, &keep).await {
                again.store(true, Ordering::Relaxed);
            }
            node.end_prune();
        });
    }

    /// Dead containers and sandboxes of the whole node, and logs of pods that are gone.
    pub(super) fn start_gc(&mut self) {
        if !self.node.volnetd.authority().sources_ready() {
            return;
        }
        let removable: HashSet<PodUid> = self
            .node
            .cache
            .snapshot()
            .into_iter()
            .map(|(uid, _)| uid)
            .filter(|uid| self.workers.content_should_be_removed(uid))
            .collect();
        let looks_at_logs = std::mem::take(&mut self.logs);
        if looks_at_logs && self.workers.uids().any(|uid| self.desired.get(uid).is_none()) {
            // It has not been forgotten yet, so its logs stay this time.
            self.logs = true;
            self.gc_at = self.gc_at.min(Instant::now() + GC_AGAIN);
        }
        let known = looks_at_logs.then(|| {
            let mut known = self.desired.uids();
            known.extend(self.workers.uids().cloned());
            known.extend(self.node.cache.snapshot().into_iter().map(|(uid, _)| uid).filter(|u| !removable.contains(u)));
            known.iter().map(ToString::to_string).collect()
        });
        let (node, again) = (self.node.clone(), self.prune_again.clone());
        tokio::spawn(async move {
            let health = node.health.borrow().clone();
            let mut failed = Vec::new();
            if health.silent {
                // Nobody can say what is there, and nothing can be removed.
                failed.push(health.reason);
            } else {
                upkeep::collect_node(&node, &removable).await;
            }
            if let Some(known) = known
                && let Err(error) = upkeep::prune_logs(&node, known).await
            {
                again.store(true, Ordering::Relaxed);
                failed.extend(error);
            }
            if let Some(event) = collection_failed(&failed) {
                node.reporter.emit_node(event);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_event_for_all_that_failed() {
        let of = |errors: &[&str]| {
            collection_failed(&errors.iter().map(ToString::to_string).collect::<Vec<_>>()).map(|event| event.message)
        };
        assert_eq!(of(&[]), None);
        assert_eq!(of(&["no answer"]).unwrap(), "no answer");
        assert_eq!(of(&["no answer", "no folder"]).unwrap(), "[no answer, no folder]");
    }
}
