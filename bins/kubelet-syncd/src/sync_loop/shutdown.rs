//! The sync loop's side of a shutdown of the machine: which pods have not ended, and how they are ended. Whose turn it is,
//! [`crate::node_shutdown::course`] decides.

use std::sync::Arc;
use std::time::Duration;

use bulkhead_config::kubelet::ShutdownGracePeriodByPodPriority;
use bulkhead_types::PodUid;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kubelet_model::v1::Pod;
use tokio::time::Instant;

use super::main_loop::SyncLoop;
use crate::admission;
use crate::desired;
use crate::node_shutdown::course::{Act, Course, LivePod, View};
use crate::node_shutdown::logind::{Preparing, Release};
use crate::node_shutdown::record::Record;
use crate::pod_workers::{Kill, Lifecycle, PodView, UpdateType};
use kubelet_model::events::{EventSink as _, EventType, NodeEvent};
use kubelet_model::pod::spec::is_phase_terminal;
use kubelet_runtime::status::pod_status::{Fails, TerminationReason};

/// Of a pod's status, and of its condition DisruptionTarget.
const REASON: &str = "Terminated";
const MESSAGE: &str = "Pod was terminated in response to imminent node shutdown.";

/// What the loop knows of shutdowns.
#[derive(Debug)]
pub struct Shutdowns {
    /// Lowest priority first; empty: pods are not ended at a shutdown.
    pub groups: Vec<ShutdownGracePeriodByPodPriority>,
    pub preparing: Preparing,
    pub release: Release,
    pub record: Record,
    /// A shutdown began so long before this process took it up.
    pub elapsed: Option<Duration>,
}

/// The shutdown of this moment.
#[derive(Debug)]
pub(super) struct UnderWay {
    course: Course,
    start: Timestamp,
    /// Pods of the API server that were ended for it.
    killed: Vec<PodUid>,
}

impl UnderWay {
    pub(super) fn next(&self) -> Option<Instant> {
        self.course.next()
    }
}

impl SyncLoop {
    /// A shutdown begins, or was called off.
    pub(super) fn on_shutdown(&mut self) {
        let preparing = *self.shutdowns.preparing.borrow_and_update() == Some(true);
        match (preparing, self.shutdown.is_some()) {
            (true, false) => self.begin_shutdown(),
            (false, true) => self.cancel_shutdown(),
            _ => {}
        }
    }

    fn begin_shutdown(&mut self) {
        let now = Instant::now();
        let resumed = self.shutdowns.elapsed.take();
        let elapsed = resumed.unwrap_or_default();
        let start = Timestamp::now().checked_sub(elapsed).unwrap_or(Timestamp::UNIX_EPOCH);
        tracing::info!(elapsed = elapsed.as_secs(), "Shutdown manager processing shutdown event");
        if resumed.is_none() {
            self.tell_shutdown("Shutdown manager detected shutdown event");
            let record = self.shutdowns.record.clone();
            tokio::spawn(async move { record.begin(start).await });
        }
        let course = Course::new(self.shutdowns.groups.clone(), now, elapsed);
        self.shutdown = Some(UnderWay { course, start, killed: Vec::new() });
        self.reject_pending(&admission::shutdown(), now);
    }

    /// What was begun is not taken back: pods that were ended stay so.
    fn cancel_shutdown(&mut self) {
        let Some(under_way) = self.shutdown.take() else { return };
        self.tell_shutdown("Shutdown manager detected shutdown cancellation");
        let record = self.shutdowns.record.clone();
        tokio::spawn(async move { record.end(under_way.start).await });
    }

    fn tell_shutdown(&self, message: &str) {
        let message = message.to_owned();
        self.node.reporter.emit_node(NodeEvent { kind: EventType::Normal, reason: "Shutdown", message });
    }

    /// Does what is due of the shutdown.
    pub(super) fn turn_shutdown(&mut self, now: Instant) {
        let Some(mut under_way) = self.shutdown.take() else { return };
        let view = View {
            pods: &self.live_pods(),
            sources_ready: self.node.volnetd.authority().sources_ready(),
            announced: self.node.config.is_standalone() || self.node_labels.borrow().as_deref().is_some_and(not_ready),
            settled: under_way.killed.iter().all(|uid| self.is_written(uid)),
        };
        for act in under_way.course.turn(now, &view) {
            match act {
                Act::Kill { uid, grace } => {
                    tracing::info!(pod_uid = %uid, grace_period = grace, "Shutdown manager killing pod with gracePeriod");
                    self.end_for_shutdown(&uid, grace, now);
                    under_way.killed.push(uid);
                }
                Act::Ended { priority, period } => {
                    let grace_period = period;
                    tracing::info!(grace_period, priority, "Done waiting for all pods in group to terminate");
                }
                Act::TimedOut { priority, period } => {
                    let grace_period = period;
                    tracing::warn!(grace_period, priority, "Shutdown manager pod killing time out");
                }
                Act::Release => self.release_machine(under_way.start),
            }
        }
        self.shutdown = Some(under_way);
    }

    fn release_machine(&self, start: Timestamp) {
        let (record, release) = (self.shutdowns.record.clone(), self.shutdowns.release.clone());
        tokio::spawn(async move {
            record.end(start).await;
            tracing::info!("Shutdown manager completed processing shutdown event, node will shutdown shortly");
            release.release().await;
        });
    }

    /// Pods with a worker that has something left to do: until it has ended, a container may run, and a volume may be mounted.
    fn live_pods(&self) -> Vec<LivePod> {
        let lives = |uid: &PodUid| self.workers.lifecycle(uid).is_some_and(|at| at < Lifecycle::Finished);
        let live = self.desired.iter().filter(|(uid, _)| lives(uid));
        let of = |uid: &PodUid, pod: &Pod| LivePod {
            uid: uid.clone(),
            priority: pod.spec.as_ref().and_then(|spec| spec.priority).unwrap_or(0),
            grace: desired::facts(pod).spec_grace,
        };
        live.map(|(uid, desired)| of(uid, &desired.pod)).collect()
    }

    fn end_for_shutdown(&mut self, uid: &PodUid, grace: u64, now: Instant) {
        let Some(pod) = self.desired.pod(uid) else { return };
        let termination = TerminationReason {
            reason: REASON.to_owned(),
            message: MESSAGE.to_owned(),
            disruption: Some(MESSAGE.to_owned()),
            fails: Fails::UntilStopped,
        };
        self.node.pods.terminate_pod(uid, termination);
        let seen = PodView { facts: desired::facts(&pod), pod, runtime_ended: false };
        let kill = Kill { grace: Some(grace), evicted: false, hurried: true };
        let actions = self.workers.update(uid, UpdateType::Kill, seen, Some(&kill), now);
        self.apply(actions, now);
        self.show(uid);
    }

    /// The API server shows how the pod has ended. Nobody waits for mirrors of static pods, nor for pods that are gone.
    fn is_written(&self, uid: &PodUid) -> bool {
        let written = |asked: &Arc<Pod>| asked.status.as_ref().is_some_and(is_phase_terminal);
        self.desired.get(uid).is_none_or(|desired| desired.source.is_static() || written(&desired.asked))
    }
}

fn not_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.is_some_and(|all| all.iter().any(|one| one.type_ == "Ready" && one.status != "True"))
}
