//! Pods that the eviction manager takes off the node: asked for one by one, written down, then ended as any other pod is. What is
//! refused, [`crate::evictions::book`] decides.

use std::sync::Arc;

use bulkhead_ipc::syncd::{Candidate, EvictRequest, EvictionInFlight, EvictionOutcome, ReclaimRequest};
use bulkhead_types::PodUid;
use kubelet_model::v1::Pod;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::housekeeping::container_gc;
use super::main_loop::SyncLoop;
use crate::desired;
use crate::evictions::book::{BadRequest, Eviction, EvictionBook, Moment, PodFacts};
use crate::evictions::candidate;
use crate::evictions::grace_period::Kills;
use crate::pod_workers::{Kill, Lifecycle, PodView, UpdateType};
use kubelet_model::events::{EventSink as _, EventType, NodeEvent, PodEvent};
use kubelet_model::pod::spec::{PodIdentity, is_critical};
use kubelet_runtime::status::pod_status::{Fails, TerminationReason};

/// Reason of the event and of the status.
const REASON: &str = "Evicted";
/// What a node can be short of.
const RESOURCES: [&str; 4] = ["memory", "ephemeral-storage", "inodes", "pids"];
/// Questions that wait for the loop's next turn.
const QUEUE: usize = 16;

/// Why a question has no answer.
#[derive(Debug, thiserror::Error)]
pub enum EvictionError {
    #[error("not all pod sources have synced yet")]
    SourcesNotReady,
    #[error(transparent)]
    BadRequest(#[from] BadRequest),
    #[error("the eviction could not be written down, and so is not begun: {0}")]
    NotWritten(std::io::Error),
    #[error("resource: {0:?} is not allowed, memory, ephemeral-storage, inodes and pids are")]
    Resource(String),
}

/// Where an answer goes.
type Reply<T> = oneshot::Sender<Result<T, EvictionError>>;

/// A question to the loop.
#[derive(Debug)]
pub enum Question {
    Candidates {
        /// Those alone with limits of local storage of their own.
        limited_only: bool,
        reply: Reply<Vec<Candidate>>,
    },
    Evict(Box<EvictRequest>, Reply<EvictionOutcome>),
    InFlight(Reply<Vec<EvictionInFlight>>),
    /// The answer comes when the round is over.
    Reclaim(ReclaimRequest, Reply<()>),
}

/// Both ends of the questions' way.
pub fn questions() -> (mpsc::Sender<Question>, mpsc::Receiver<Question>) {
    mpsc::channel(QUEUE)
}

/// What the loop knows of evictions.
#[derive(Debug)]
pub struct Evictions {
    pub(super) book: EvictionBook,
    pub(super) questions: mpsc::Receiver<Question>,
    /// Of pods that this life of the process has evicted; of those before it upstream knows nothing, either.
    pub(super) kills: Kills,
    /// The end of the newest round of container garbage collection that was asked for.
    reclaimed: Option<CancellationToken>,
}

impl Evictions {
    pub fn new(book: EvictionBook, questions: mpsc::Receiver<Question>) -> Self {
        Evictions { book, questions, kills: Kills::default(), reclaimed: None }
    }

    /// The end of the round that runs, and of a new one where none does.
    fn round(&mut self) -> Round {
        match &self.reclaimed {
            Some(over) if !over.is_cancelled() => Round { over: over.clone(), is_new: false },
            _ => {
                let over = CancellationToken::new();
                self.reclaimed = Some(over.clone());
                Round { over, is_new: true }
            }
        }
    }

    /// Forgets pods that are gone.
    pub(super) fn retain(&mut self, is_there: impl Fn(&PodUid) -> bool) {
        self.book.retain(&is_there);
        self.kills.retain(&is_there);
    }
}

/// A round of container garbage collection for the eviction manager.
#[derive(Debug)]
struct Round {
    over: CancellationToken,
    /// Whoever asked for it has it done.
    is_new: bool,
}

impl SyncLoop {
    pub(super) fn on_eviction_question(&mut self, question: Question) {
        let ready = self.node.volnetd.authority().sources_ready();
        // Who asked may have gone away meanwhile: nobody hears the answer, and what was begun goes on.
        match question {
            Question::Candidates { limited_only, reply } if ready => {
                drop(reply.send(Ok(self.candidates(limited_only))))
            }
            Question::Candidates { reply, .. } => drop(reply.send(Err(EvictionError::SourcesNotReady))),
            Question::Evict(request, reply) if ready => drop(reply.send(self.evict(*request))),
            Question::Evict(_, reply) => drop(reply.send(Err(EvictionError::SourcesNotReady))),
            Question::InFlight(reply) if !ready => drop(reply.send(Err(EvictionError::SourcesNotReady))),
            Question::InFlight(reply) => {
                let now = Moment::now(&self.node.config.boot_id);
                let in_flight = self.evictions.book.in_flight(&now, |uid| self.has_finished(uid));
                drop(reply.send(Ok(in_flight)));
            }
            Question::Reclaim(request, reply) if ready => self.reclaim(&request, reply),
            Question::Reclaim(_, reply) => drop(reply.send(Err(EvictionError::SourcesNotReady))),
        }
    }

    /// Pods that use the node and are not on their way off it because of an eviction. One that ends for another reason counts:
    /// it may take its time, and an eviction shortens that.
    fn candidates(&self, limited_only: bool) -> Vec<Candidate> {
        let counts = |uid: &PodUid| self.workers.lifecycle(uid).is_some() && self.evictions.book.get(uid).is_none();
        let active = self.desired.iter().filter(|(uid, d)| counts(uid) && self.is_active(uid, &d.pod));
        let asked = active.filter(|(_, d)| !limited_only || candidate::is_limited(&d.pod));
        asked.filter_map(|(_, d)| candidate::of(&d.pod)).collect()
    }

    fn evict(&mut self, request: EvictRequest) -> Result<EvictionOutcome, EvictionError> {
        let now = Moment::now(&self.node.config.boot_id);
        let Ok(uid) = PodUid::parse(&request.uid) else { return Ok(EvictionOutcome::RefusedUnknown) };
        let eviction = Eviction::of(request, &now)?;
        let pod = self.desired.pod(&uid);
        let facts = PodFacts {
            known: pod.is_some(),
            critical: pod.as_ref().is_some_and(|pod| is_critical(pod)),
            ended: self.workers.lifecycle(&uid).is_none_or(|at| at >= Lifecycle::Terminated),
        };
        let workers = &self.workers;
        let finished = |uid: &PodUid| workers.lifecycle(uid).is_none_or(|at| at == Lifecycle::Finished);
        let outcome = self.evictions.book.accept(&uid, eviction, facts, &now, finished);
        let outcome = outcome.map_err(EvictionError::NotWritten)?;
        if outcome == EvictionOutcome::Accepted
            && let Some(pod) = pod
            && let Some(eviction) = self.evictions.book.get(&uid).cloned()
        {
            tracing::warn!(pod_uid = %uid, signal = eviction.signal, id = eviction.id, "Evicting pod");
            if let Ok(identity) = PodIdentity::of(&pod) {
                let event = PodEvent::pod(&identity, EventType::Warning, REASON, eviction.message.clone());
                self.node.reporter.emit_with(event, eviction.annotations.clone().into_iter().collect());
            }
            let (grace, now) = (eviction.grace_period, Instant::now());
            self.end_evicted(&uid, &pod, eviction, now);
            self.evictions.kills.begin(&uid, grace, now);
        }
        Ok(outcome)
    }

    /// The pod is in the book already, and a source names it (again): it ends, whatever it was doing. False: it is not.
    pub(super) fn resume_eviction(&mut self, uid: &PodUid, pod: &Arc<Pod>, now: Instant) -> bool {
        let Some(eviction) = self.evictions.book.get(uid).cloned() else { return false };
        tracing::info!(pod_uid = %uid, id = eviction.id, "resuming eviction of pod");
        self.end_evicted(uid, pod, eviction, now);
        true
    }

    fn end_evicted(&mut self, uid: &PodUid, pod: &Arc<Pod>, eviction: Eviction, now: Instant) {
        let disruption = eviction.disruption_target.then(|| eviction.message.clone());
        let (reason, fails) = (REASON.to_owned(), Fails::UntilStopped);
        let termination = TerminationReason { reason, message: eviction.message, disruption, fails };
        self.node.pods.terminate_pod(uid, termination);
        let seen = PodView { facts: desired::facts(pod), pod: pod.clone(), runtime_ended: false };
        let kill = Kill { grace: Some(eviction.grace_period), evicted: true, hurried: true };
        let actions = self.workers.update(uid, UpdateType::Kill, seen, Some(&kill), now);
        self.apply(actions, now);
        self.show(uid);
    }

    /// Tells of evicted pods that still run, although their grace period is long over (upstream killPodNow).
    pub(super) fn look_at_kills(&mut self, now: Instant) {
        for uid in self.evictions.kills.take_due(now) {
            let runs = self.workers.lifecycle(&uid).is_some_and(|at| at < Lifecycle::Terminated);
            // It may be another pod by now: a static one that came back.
            if runs && self.evictions.book.get(&uid).is_some() {
                self.exceeded_grace_period(&uid);
            }
        }
    }

    fn has_finished(&self, uid: &PodUid) -> bool {
        self.workers.lifecycle(uid).is_none_or(|at| at == Lifecycle::Finished)
    }

    /// Tells that pods are going to be evicted. Before that dead containers go, those of pods that have ended and are still on
    /// the API server included (upstream `DeleteAllUnusedContainers`). There is one round at a time: a runtime that does not answer
    /// is not asked the same by two.
    fn reclaim(&mut self, request: &ReclaimRequest, reply: Reply<()>) {
        let Some(resource) = RESOURCES.into_iter().find(|known| *known == request.resource) else {
            return drop(reply.send(Err(EvictionError::Resource(request.resource.clone()))));
        };
        self.node.reporter.emit_node(NodeEvent {
            kind: EventType::Warning,
            reason: "EvictionThresholdMet",
            message: format!("Attempting to reclaim {resource}"),
        });
        if !request.dead_containers {
            return drop(reply.send(Ok(())));
        }
        let Round { over, is_new } = self.evictions.round();
        if is_new {
            let pods = self.node.cache.snapshot().into_iter().map(|(uid, _)| uid);
            let removable = pods.filter(|uid| self.workers.runtime_should_be_removed(uid)).collect();
            let (node, spared, over) = (self.node.clone(), self.admission_queue.pending(), over.clone());
            tokio::spawn(async move {
                let _over = over.drop_guard();
                container_gc::collect_node(&node, &removable, &spared).await;
            });
        }
        tokio::spawn(async move {
            over.cancelled().await;
            drop(reply.send(Ok(())));
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evictions::book::{EvictionStore, Saved};

    #[derive(Debug)]
    struct Nowhere;

    impl EvictionStore for Nowhere {
        fn save(&self, _: &Saved) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn who_reclaims_while_a_round_runs_waits_for_that_one() {
        let book = EvictionBook::new(Saved::default(), Box::new(Nowhere));
        let mut evictions = Evictions::new(book, questions().1);
        let first = evictions.round();
        let second = evictions.round();
        assert!(first.is_new && !second.is_new);
        drop(first.over.drop_guard());
        assert!(second.over.is_cancelled(), "both are answered");
        let third = evictions.round();
        assert!(third.is_new && !third.over.is_cancelled());
    }
}
