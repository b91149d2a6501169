//! One piece of work on one pod: sync, terminate, clean up. Steps as in upstream `pkg/kubelet/kubelet.go` (SyncPod,
//! SyncTerminatingPod, SyncTerminatedPod); what is waited for is said in the pod's `why`.
//!
//! A peer or the runtime being away is waited out, never answered with a failed or killed pod. Cancelling ends waiting
//! at once; calls to the runtime that make something are not interrupted half-way.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bulkhead_ipc::context::CallContext;
use bulkhead_ipc::volnetd as api;
use bulkhead_trace::TraceParent;
use bulkhead_types::{ContainerId, Epoch, PodUid};
use kubelet_model::v1::Pod;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use super::node::NodeContext;
use super::runtime_service::SOON;
use super::runtime_side::{Ready, Stage};
use super::{resize, view};
use crate::pod_workers::{Outcome, Retry, Termination, Work, WorkKind};
use crate::start_limit::{self, StartSlot};
use crate::take_down;
use kubelet_edges::volnetd::VolnetdError;
use kubelet_model::events::{EventSink as _, EventType, PodEvent};
use kubelet_model::pod::model::RuntimePod;
use kubelet_model::pod::spec::{self, PodIdentity};
use kubelet_pleg::CacheError;
use kubelet_runtime::stages::{self, Stage as Named};
use kubelet_runtime::status::next::is_over;
use kubelet_runtime::status::pod_status::{Fails, TerminationReason, is_past_deadline};

/// End of a piece of work, as the main loop hears of it.
#[derive(Debug)]
pub struct Done {
    pub uid: PodUid,
    pub kind: WorkKind,
    pub outcome: Outcome,
    pub took: Duration,
    /// When it had made its last call that changes something at the runtime: a look at the pod that began later shows all of it.
    pub settled: Instant,
    /// For the metric.
    pub operation: &'static str,
}

/// Why a step did not get through.
#[derive(Debug)]
pub(super) enum Stop {
    /// Something newer waits.
    Cancelled,
    Retry(Retry),
    /// The pod may not go on, and its records say why.
    Rejected,
}

pub(super) type Step<T> = Result<T, Stop>;

/// A status is not held up for longer by a runtime that is slow to answer.
const LOOK_MAX: Duration = Duration::from_secs(2);
const PAST_DEADLINE: &str = "Pod was active on the node longer than the specified deadline";

fn deadline_exceeded() -> TerminationReason {
    TerminationReason {
        reason: "DeadlineExceeded".to_owned(),
        message: PAST_DEADLINE.to_owned(),
        disruption: None,
        fails: Fails::ForGood,
    }
}

pub(super) const FAILED: Stop = Stop::Retry(Retry::Failed { back_off: None });

/// What is said of a pod that the runtime could not be asked about (upstream's words). None: it did not answer at all,
/// which is no news of the pod, or this process ends.
fn undetermined(error: &CacheError) -> Option<String> {
    match error {
        CacheError::Inspect { source, .. } if !source.is_unavailable() => {
            Some(format!("error determining status: {source}"))
        }
        CacheError::Inspect { .. } | CacheError::Closed { .. } => None,
    }
}

/// Does the work and says how it ended.
///
/// `stays`: the pod is still wanted when it has ended, so what tells how it ended is kept (containers, logs, messages).
pub async fn run(
    node: Arc<NodeContext>,
    uid: PodUid,
    work: Work<Arc<Pod>>,
    stays: bool,
    cancel: CancellationToken,
) -> Done {
    let began = Instant::now();
    let kind = work.kind;
    let operation = if kind == WorkKind::Terminated { "terminated" } else { work.update.as_str() };
    let context = CallContext::for_pod(&uid);
    let span = tracing::debug_span!("pod", pod_uid = %uid, request_id = &*context.request_id);
    let traced = work_span(&uid, &work, (kind == WorkKind::Sync).then(|| node.pods.cause(&uid)).flatten());
    let times = (kind == WorkKind::Sync && node.pods.is_starting(&uid)).then(|| node.metrics.starts.stages.clone());
    let syncer = PodSyncer { node, uid: uid.clone(), context, cancel, settled: OnceLock::new() };
    let settled = &syncer.settled;
    // On the heap: every wrapper around it would put one more copy of all of it on the stack.
    let work = Box::pin(async {
        let ended = match (kind, &work.pod) {
            (WorkKind::Sync, Some(pod)) => Box::pin(syncer.sync(pod, &work)).await,
            (WorkKind::Terminating, Some(pod)) => Box::pin(syncer.terminating(pod, &work)).await,
            (WorkKind::Terminated, Some(pod)) => Box::pin(syncer.terminated(pod, stays)).await,
            (WorkKind::TerminatingRuntime, _) | (_, None) => {
                Box::pin(syncer.terminating_runtime(work.termination)).await
            }
        };
        match ended {
            Ok(outcome) => outcome,
            Err(Stop::Cancelled) => Outcome::Cancelled,
            Err(Stop::Retry(retry)) => Outcome::Failed(retry),
            Err(Stop::Rejected) => Outcome::Terminal,
        }
    })
    .instrument(span)
    .instrument(traced.clone());
    let outcome = match times {
        Some(times) => stages::of_a_start(times, work).await,
        None => work.await,
    };
    if let Outcome::Failed(retry) = &outcome {
        traced.record(bulkhead_trace::ERROR_FIELD, tracing::field::debug(retry));
    }
    let settled = settled.get().copied().unwrap_or_else(Instant::now);
    Done { uid, kind, outcome, took: began.elapsed(), settled, operation }
}

/// The first span of a trace, or of what belongs to `cause`'s; named as upstream names it, with its attributes. `queued_us`, which
/// upstream has not: the microseconds for which the work waited, for its turn or the end of work before it.
fn work_span(uid: &PodUid, work: &Work<Arc<Pod>>, cause: Option<TraceParent>) -> tracing::Span {
    let name = match work.kind {
        WorkKind::Sync => "syncPod",
        WorkKind::Terminating | WorkKind::TerminatingRuntime => "syncTerminatingPod",
        WorkKind::Terminated => "syncTerminatedPod",
    };
    let identity = work.pod.as_ref().and_then(|pod| PodIdentity::of(pod).ok());
    let text = |of: fn(&PodIdentity) -> String| identity.as_ref().map(of).unwrap_or_default();
    tracing::info_span!(
        target: bulkhead_trace::TARGET,
        "work",
        { bulkhead_trace::NAME_FIELD } = name,
        { bulkhead_trace::PARENT_FIELD } = cause.map(|cause| cause.to_string()),
        k8s.pod.uid = uid.as_str(),
        k8s.pod = text(|identity| format!("{}/{}", identity.namespace, identity.name)),
        k8s.pod.name = text(|identity| identity.name.to_string()),
        k8s.namespace.name = text(|identity| identity.namespace.to_string()),
        k8s.pod.update_type = work.update.as_str(),
        queued_us = u64::try_from(work.since.elapsed().as_micros()).unwrap_or(u64::MAX),
        error = tracing::field::Empty,
    )
}

/// Why a pod is still there whose containers are stopped. `grace`: seconds.
fn is_ending(grace: u64, runtime: &RuntimePod) -> String {
    let running: Vec<&str> = runtime.running().map(|c| c.name.as_str()).collect();
    match running.as_slice() {
        [] => "is ending: its containers have stopped, the sandbox goes".to_owned(),
        [one] => format!("is ending: container {one} still runs, grace period {grace} s"),
        more => format!("is ending: containers {} still run, grace period {grace} s", more.join(", ")),
    }
}

/// A pod that is being stopped, for the turn that it waits for.
struct EndingPod {
    node: Arc<NodeContext>,
    uid: PodUid,
    ending: String,
}

impl take_down::Pod for EndingPod {
    fn runs(&self, container: &ContainerId) -> bool {
        self.node.cache.get(&self.uid).running().any(|one| one.id == *container)
    }

    fn has_host_network(&self) -> bool {
        let known = self.node.cache.get(&self.uid);
        !known.sandboxes.is_empty() && known.sandboxes.iter().all(|sandbox| sandbox.host_network)
    }

    fn held_back(&self, waits: bool) {
        let why = if waits { "is ending: other pods are being stopped first" } else { self.ending.as_str() };
        self.node.hub.why(&self.uid, why);
    }

    fn working(&self) -> Box<dyn Send> {
        Box::new(self.node.pleg.busy(&self.uid))
    }
}

/// Syncs, terminates or cleans up one pod.
pub(super) struct PodSyncer {
    pub(super) node: Arc<NodeContext>,
    pub(super) uid: PodUid,
    pub(super) context: CallContext,
    pub(super) cancel: CancellationToken,
    /// See [`Done`].
    pub(super) settled: OnceLock<Instant>,
}

impl PodSyncer {
    /// Waits for something, unless the work is cancelled.
    pub(super) async fn wait<T>(&self, what: impl Future<Output = T>) -> Step<T> {
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => Err(Stop::Cancelled),
            done = what => Ok(done),
        }
    }

    pub(super) fn why(&self, why: impl Into<String>) {
        self.node.hub.why(&self.uid, why);
    }

    pub(super) fn event(&self, pod: &Pod, kind: EventType, reason: &'static str, message: impl Into<String>) {
        if let Ok(identity) = PodIdentity::of(pod) {
            self.node.reporter.emit(PodEvent::pod(&identity, kind, reason, message));
        }
    }

    /// A runtime that answers, and a picture of the pod that is newer than the end of the last work on it.
    async fn runtime_pod(&self, pod: Option<&Pod>, last_sync: Option<Instant>) -> Step<Arc<RuntimePod>> {
        let mut health = self.node.health.clone();
        if !health.borrow().ready {
            let reason = health.borrow().reason.clone();
            self.why(format!("waits for the container runtime {reason}"));
            let ready = health.wait_for(|health| health.ready);
            if self.wait(async { ready.await.is_err() }).await? {
                return Err(Stop::Cancelled);
            }
        }
        let newer_than = last_sync.unwrap_or(self.node.started);
        match self.wait(self.node.cache.get_newer_than(&self.uid, newer_than)).await? {
            Ok(pod) => {
                self.wait(self.node.termination_messages.learn(&self.uid, &pod)).await?;
                Ok(pod)
            }
            Err(error) => {
                self.why(format!("the runtime could not be asked about the pod, trying again: {error}"));
                tracing::warn!(error = &error as &dyn std::error::Error, "failed to get pod status from the runtime");
                if let (Some(pod), Some(text)) = (pod, undetermined(&error)) {
                    self.event(pod, EventType::Warning, "FailedSync", text);
                }
                Err(FAILED)
            }
        }
    }

    /// A new picture of the pod for its status, if the runtime gives one soon. Nobody is told of it.
    async fn look(&self) -> Step<()> {
        let newer = tokio::time::timeout(LOOK_MAX, self.node.cache.get_newer_than(&self.uid, Instant::now()));
        if let Ok(Ok(pod)) = self.wait(newer).await? {
            self.wait(self.node.termination_messages.learn(&self.uid, &pod)).await?;
        }
        Ok(())
    }

    /// volnetd with the node's cgroups in place.
    pub(super) async fn volnetd(&self) -> Step<Epoch> {
        if let Some(epoch) = self.node.cgroups.epoch() {
            return Ok(epoch);
        }
        self.why("waits for kubelet-volnetd");
        self.wait(self.node.cgroups.wait_ready()).await?.ok_or(Stop::Cancelled)
    }

    pub(super) fn volnetd_failed(&self, doing: &str, error: &VolnetdError) -> Stop {
        self.why(format!("{doing} did not work yet, trying again: {error}"));
        if error.is_transient() {
            tracing::debug!(error = error as &dyn std::error::Error, "{doing}: not now");
            Stop::Retry(Retry::PeerAway)
        } else {
            tracing::warn!(error = error as &dyn std::error::Error, "{doing} failed");
            FAILED
        }
    }

    async fn sync(&self, pod: &Arc<Pod>, work: &Work<Arc<Pod>>) -> Step<Outcome> {
        self.node.pods.first_seen(&self.uid);
        let runtime = stages::during(Named::Inspect, self.runtime_pod(Some(pod), work.last_sync)).await?;
        resize::note_progress(&self.node, &self.uid, pod, &runtime);
        let before = self.node.pods.status(&self.uid);
        let mut status = self.node.runtime.compute_status(&self.node, &self.uid, pod, &runtime, Stage::Alive);
        // Computed once more from the same it would come out the same once more.
        let is_settled = before.is_some_and(|before| Arc::ptr_eq(&before, &status)) && work.last_sync.is_some();
        let is_late = !is_over(&status) && is_past_deadline(pod, &status, jiff::Timestamp::now());
        if is_late && self.node.pods.terminate_pod(&self.uid, deadline_exceeded()) {
            self.event(pod, EventType::Normal, "DeadlineExceeded", PAST_DEADLINE);
            status = self.node.runtime.compute_status(&self.node, &self.uid, pod, &runtime, Stage::Alive);
        }
        view::publish(&self.node, &self.uid, pod, &runtime, &status, Stage::Alive);
        if is_over(&status) {
            return Ok(Outcome::Terminal);
        }
        let network = self.node.health.borrow().clone();
        if !network.network_ready && !spec::host_network(pod) {
            self.why(format!("waits for the network: {}", network.network_reason));
            let message =
                format!("network is not ready: container runtime network not ready: {}", network.network_reason);
            self.event(pod, EventType::Warning, "NetworkNotReady", message);
            return Err(Stop::Retry(Retry::NetworkNotReady));
        }
        let mut place = self.place(pod, &runtime).await?;
        let prepare = start_limit::prepare(&mut place, SOON, self.prepare(pod, &runtime));
        let prepared = match stages::during(Named::Prepare, prepare).await {
            Err(Stop::Rejected) => {
                let status = self.node.runtime.compute_status(&self.node, &self.uid, pod, &runtime, Stage::Alive);
                view::publish(&self.node, &self.uid, pod, &runtime, &status, Stage::Alive);
                return Ok(Outcome::Terminal);
            }
            prepared => prepared?,
        };
        self.node.prober.add_pod(&self.uid, pod);
        let ready = Ready { prepared: &prepared, place };
        let report = self.node.runtime.sync(&self.node, &self.uid, pod, &runtime, ready, &self.cancel).await;
        // Who has changed nothing leaves the picture that it saw as good as it was.
        let is_whole = report.failed.is_none() && !self.cancel.is_cancelled();
        let unchanged = work.last_sync.filter(|_| !report.did_something && is_whole);
        let _ = self.settled.set(unchanged.unwrap_or_else(Instant::now));
        // After a failure the pod waits for its time, or for an event that shows that something has changed: to be told
        // of a look in any case would be to try again at once, for ever.
        let changed = report.did_something && report.failed.is_none();
        if changed {
            self.node.pods.will_cause(&self.uid);
            self.node.pleg.request(&self.uid);
        }
        if self.cancel.is_cancelled() {
            return Err(Stop::Cancelled);
        }
        // What was changed shows with that look. The picture from before it would tell of a container that it has ended,
        // when the pause after that end is over and the next one runs already.
        if !changed {
            if report.did_something && report.failed != Some(Retry::PeerAway) {
                // What failed may have left something: a container that could not be started, or whose hook failed.
                self.look().await?;
            }
            let is_same = is_settled
                && !report.did_something
                && report.failed.is_none()
                && Arc::ptr_eq(&runtime, &self.node.cache.get(&self.uid))
                && self.node.pods.status(&self.uid).is_some_and(|last| Arc::ptr_eq(&last, &status));
            if is_same {
                view::why_it_is_so(&self.node, &self.uid, pod, &status);
            } else {
                view::refresh(&self.node, &self.uid, pod, Stage::Alive);
            }
        }
        if report.is_broken {
            // Perhaps something that was prepared is not there any more.
            self.node.pods.drop_prepared(&self.uid);
        }
        match report.failed {
            None if report.is_reset => Ok(Outcome::Again),
            None => Ok(Outcome::Done),
            Some(retry) => Err(Stop::Retry(retry)),
        }
    }

    /// A pod of which the runtime has nothing yet waits for a place to be prepared; not with the machine's network, because plugins that
    /// others wait for may be such pods.
    async fn place(&self, pod: &Pod, runtime: &RuntimePod) -> Step<Option<StartSlot>> {
        if spec::host_network(pod) || !runtime.sandboxes.is_empty() {
            return Ok(None);
        }
        let places = self.node.runtime.places();
        if let Some(place) = places.try_acquire() {
            return Ok(Some(place));
        }
        self.why("waits for other pods that are being started");
        self.wait(stages::waiting(places.acquire())).await.map(Some)
    }

    async fn terminating(&self, pod: &Arc<Pod>, work: &Work<Arc<Pod>>) -> Step<Outcome> {
        let runtime = self.runtime_pod(Some(pod), work.last_sync).await?;
        let status = self.node.runtime.compute_status(&self.node, &self.uid, pod, &runtime, Stage::Alive);
        view::publish(&self.node, &self.uid, pod, &runtime, &status, Stage::Alive);
        self.why(is_ending(work.termination.grace_seconds, &runtime));
        self.node.prober.stop_liveness_and_startup(&self.uid);
        self.kill(Some(pod), &runtime, work.termination).await?;
        let after = self.stopped(Some(pod)).await?;
        self.node.prober.remove_pod(&self.uid);
        self.unprepare(pod).await?;
        let status = self.node.runtime.compute_status(&self.node, &self.uid, pod, &after, Stage::Stopped);
        view::publish(&self.node, &self.uid, pod, &after, &status, Stage::Stopped);
        Ok(Outcome::Done)
    }

    /// Claims are given back after the containers have stopped and before that is told: others may get their devices then.
    async fn unprepare(&self, pod: &Pod) -> Step<()> {
        if let Err(error) = self.wait(self.node.claims.unprepare(pod)).await? {
            self.why(format!("is ending: its claims could not be given back yet, trying again: {error}"));
            tracing::warn!("{error}");
            return Err(FAILED);
        }
        Ok(())
    }

    async fn terminating_runtime(&self, termination: Termination) -> Step<Outcome> {
        let runtime = self.runtime_pod(None, None).await?;
        self.kill(None, &runtime, termination).await?;
        self.stopped(None).await?;
        Ok(Outcome::Done)
    }

    async fn kill(&self, pod: Option<&Arc<Pod>>, runtime: &RuntimePod, termination: Termination) -> Step<()> {
        let (node, uid) = (self.node.clone(), self.uid.clone());
        let ending = is_ending(termination.grace_seconds, runtime);
        let about = Box::new(EndingPod { node, uid, ending });
        // A shortened grace period drops the call and asks anew: stopping may be asked for at any time.
        let killed = self.wait(self.node.runtime.kill(&self.node, pod, runtime, termination, about)).await?;
        if let Err(error) = killed {
            self.why(format!("could not be stopped yet, trying again: {error}"));
            if let Some(pod) = pod {
                self.event(pod, EventType::Warning, "FailedKillPod", format!("error killing pod: {error}"));
            }
            self.node.pleg.request(&self.uid);
            return Err(FAILED);
        }
        Ok(())
    }

    /// The runtime's own word, after the kill, that nothing runs.
    async fn stopped(&self, pod: Option<&Pod>) -> Step<Arc<RuntimePod>> {
        let after = self.runtime_pod(pod, Some(Instant::now())).await?;
        if let Some(left) = after.running().next() {
            self.why(format!("is ending: container {} still runs after it was stopped, trying again", left.name));
            tracing::warn!(container = left.name, "container still runs after it was stopped");
            return Err(FAILED);
        }
        Ok(after)
    }

    async fn terminated(&self, pod: &Arc<Pod>, stays: bool) -> Step<Outcome> {
        let runtime = self.node.cache.get(&self.uid);
        let status = self.node.runtime.compute_status(&self.node, &self.uid, pod, &runtime, Stage::Gone);
        view::publish(&self.node, &self.uid, pod, &runtime, &status, Stage::Gone);
        self.node.pods.drop_prepared(&self.uid);
        self.volnetd().await?;
        let (what, verb) = if stays {
            ("volumes", "removing the pod's volumes")
        } else {
            ("volumes and folders", "removing the pod's volumes and folders")
        };
        self.why(format!("has ended: {what} are removed"));
        self.take_back_volumes().await?;
        let guard = self.node.volnetd.guard("tear_down_pod").map_err(|error| self.volnetd_failed(verb, &error))?;
        let request =
            api::TearDownPodRequest { pod_uid: self.uid.to_string(), guard: Some(guard), volumes_only: stays };
        match self.node.volnetd.tear_down_pod(&self.context, request).await {
            Ok(reply) if reply.done => {
                self.node.volume_manager.torn_down(&self.uid);
                self.node.hub.modify_known(&self.uid, |state| state.volumes.clear());
            }
            Ok(reply) => {
                self.why(format!("has ended: {} could not be removed yet", reply.left.join(", ")));
                tracing::warn!(left = reply.left.join(", "), "failed to remove volumes or folders of the pod");
                return Err(FAILED);
            }
            Err(error) => return Err(self.volnetd_failed(verb, &error)),
        }
        let verb = "removing the pod's cgroup";
        let guard = self.node.volnetd.guard("remove_pod").map_err(|error| self.volnetd_failed(verb, &error))?;
        let request = api::RemovePodRequest { pod_uid: self.uid.to_string(), guard: Some(guard) };
        match self.node.volnetd.remove_pod(&self.context, request).await {
            Ok(reply) if reply.done => Ok(Outcome::Done),
            Ok(_) => {
                self.why("has ended: its cgroup is not empty yet");
                Err(FAILED)
            }
            Err(error) => Err(self.volnetd_failed(verb, &error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use bulkhead_cri::{Code, CriError};

    use super::*;

    #[test]
    fn the_status_of_a_pod_that_cannot_be_inspected() {
        let uid = PodUid::parse("u").unwrap();
        let failed = |code| CacheError::Inspect {
            uid: uid.clone(),
            source: CriError { code, method: "PodSandboxStatus", message: "no such file".to_owned() },
        };
        assert_eq!(
            undetermined(&failed(Code::Unknown)).unwrap(),
            "error determining status: rpc error: code = Unknown desc = no such file"
        );
        assert_eq!(undetermined(&failed(Code::Unavailable)), None);
        assert_eq!(undetermined(&CacheError::Closed { uid: uid.clone() }), None);
    }
}
