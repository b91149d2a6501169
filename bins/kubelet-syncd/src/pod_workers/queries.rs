//! What others ask about pods of the workers' state machine (upstream `PodWorkers`' and `podStateProvider`'s methods).

use bulkhead_types::PodUid;

use super::messages::Lifecycle;
use super::state::{PodWorkerSync, Worker, Workers};

impl<P: Clone> Workers<P> {
    pub fn lifecycle(&self, uid: &PodUid) -> Option<Lifecycle> {
        self.pods.get(uid).map(Worker::lifecycle)
    }

    /// The pod whose start this static pod waits for.
    pub fn waits_for(&self, uid: &PodUid) -> Option<&PodUid> {
        let worker = self.pods.get(uid).filter(|w| !w.started && w.is_static)?;
        self.started_static.get(&worker.full_name).filter(|other| *other != uid)
    }

    pub fn is_working(&self, uid: &PodUid) -> bool {
        self.pods.get(uid).is_some_and(|w| w.working)
    }

    /// Grace period in force, seconds, while terminating.
    pub fn grace(&self, uid: &PodUid) -> Option<u64> {
        self.pods.get(uid).filter(|w| w.terminating).map(|w| w.grace)
    }

    pub fn uids(&self) -> impl Iterator<Item = &PodUid> {
        self.pods.keys()
    }

    /// Each worker's place, for metrics, as [`Workers::sync_known`] says it: a pod that is being deleted is no orphan, because it is
    /// desired until its object is gone.
    pub fn snapshot(&self, is_desired: impl Fn(&PodUid) -> bool) -> impl Iterator<Item = (&PodUid, PodWorkerSync)> {
        self.pods.iter().map(move |(uid, w)| {
            let known = PodWorkerSync {
                lifecycle: w.lifecycle(),
                orphan: !is_desired(uid),
                has_config: w.has_config,
                is_static: w.is_static,
            };
            (uid, known)
        })
    }

    /// The pod has, or is to have, something of the node: it has not been terminated, and is in no terminal phase unless it is just
    /// being terminated (upstream `kubelet_pods.go` isPodInactive). `is_over`, which costs more, answers for its phase.
    pub fn is_active(&self, uid: &PodUid, is_over: impl FnOnce() -> bool) -> bool {
        match self.lifecycle(uid) {
            Some(Lifecycle::Terminated | Lifecycle::Finished) => false,
            Some(Lifecycle::Terminating) => true,
            Some(Lifecycle::Waiting | Lifecycle::Sync) | None => !is_over(),
        }
    }

    // The queries below are upstream's; each says what an unknown pod counts as before and after the first housekeeping.

    pub fn termination_requested(&self, uid: &PodUid) -> bool {
        self.pods.get(uid).is_some_and(|w| w.terminating)
    }

    pub fn runtime_should_be_removed(&self, uid: &PodUid) -> bool {
        self.pods.get(uid).map_or(self.synced, |w| w.terminated)
    }

    /// The pod was wanted again while it was ending: once it is over it begins anew, with nothing of its former life.
    pub fn restart_requested(&self, uid: &PodUid) -> bool {
        self.pods.get(uid).is_some_and(|w| w.restart_requested)
    }

    /// Another life of the pod may begin under its uid: it was asked for, or the pod is a static one, whose manifest may be written again,
    /// or what it is no source has told.
    pub fn may_come_back(&self, uid: &PodUid) -> bool {
        self.pods.get(uid).is_none_or(|w| w.restart_requested || w.is_static || !w.has_config)
    }

    /// Unlike upstream's, an evicted pod's content stays until its containers have stopped and that was read: the minute's garbage
    /// collection would else remove what an exit code is about to be read from.
    pub fn content_should_be_removed(&self, uid: &PodUid) -> bool {
        self.pods.get(uid).map_or(self.synced, |w| (w.evicted || w.deleted) && w.terminated)
    }
}
