//! Probes: startup, readiness and liveness of containers (upstream `pkg/kubelet/prober`).
//!
//! One task makes all of them: it sleeps until the first is due, gives it its beat and waits for its answer beside all
//! others, so none holds up another. What comes of them is published by container id: a change is written to the private
//! state first, then the main loop is told, which shows it in the pod's status and acts on it. A disk that hangs is not waited for.
//!
//! | module | decides |
//! |---|---|
//! | [`worker`] | when one probe is made, and what its results come to |
//! | [`schedule`] | who is due when |
//! | [`slots`] | how many are made at a time, and whose turn it is |
//! | [`table`] | all of them together, what of their pods they see, what has changed |
//! | [`spec`] | what a probe of a spec asks for |
//! | [`act`], [`grpc`] | how it is made, and in which words it fails |
//! | [`leftover`] | what a command began, when its time is up |
//! | [`journal`] | what outlives this process |
//! | [`saving`] | who hears when of what is written |
//! | [`metrics`] | what is counted |
//!
//! A container is watched by the pod's status, as upstream does it: so a probe sees what callers see.

pub mod act;
pub mod grpc;
pub mod journal;
pub mod leftover;
pub mod metrics;
pub mod results;
pub mod saving;
pub mod schedule;
pub mod slots;
pub mod spec;
pub mod table;
pub mod worker;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bulkhead_apiclient::random_fraction;
use bulkhead_cri::CriClient;
use bulkhead_types::{ContainerId, PodUid};
use futures_util::FutureExt as _;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use k8s_openapi::api::core::v1::PodStatus;
use kubelet_model::v1::Pod;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio::time::Instant;

use act::{Attempt, Outcome};
use journal::{ProbeStore, Restored};
use leftover::Leftovers;
use metrics::ProbeMetrics;
use saving::Saving;
use schedule::WorkerId;
use slots::Slots;
use table::{Started, Table};

use crate::prober::results::ProbeResults;
use kubelet_model::events::EventSink;
use kubelet_model::pod::model::RuntimePod;
use spec::Action;

/// Connections of probes at a time; who comes later waits, its own time has not begun.
const CONNECTIONS: usize = 512;
/// Commands of probes at a time: each is a process that the runtime starts. Twice the pods that a node has by default, so
/// that one of each pod always finds room.
const COMMANDS: usize = 256;
/// Counts below a threshold are written at most this often.
const COUNTS_EVERY: Duration = Duration::from_secs(1);
/// With nothing due the task sleeps for this long.
const LONG: Duration = Duration::from_secs(3600);

/// What others ask of the prober. Every call is over at once.
pub struct Prober {
    table: Mutex<Table>,
    /// Somebody is due sooner than the task thinks.
    wake: Notify,
    /// Pods with results that are new to the main loop.
    changed: Mutex<HashSet<PodUid>>,
    news: Notify,
}

impl std::fmt::Debug for Prober {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prober").field("probes", &self.table().len()).finish_non_exhaustive()
    }
}

impl Prober {
    /// With what an earlier process left behind.
    pub fn new(began: Started, metrics: ProbeMetrics, store: &dyn ProbeStore) -> Self {
        let restored = store.load().map(|json| Restored::from_json(&json)).unwrap_or_default();
        Prober {
            table: Mutex::new(Table::new(began, metrics, restored)),
            wake: Notify::new(),
            changed: Mutex::default(),
            news: Notify::new(),
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // No method panics between two writes.
        self.table.lock()
    }

    /// The pod's volumes are there: its probes begin, those that have begun go on.
    pub fn add_pod(&self, uid: &PodUid, pod: &Pod) {
        if self.table().add(uid, pod, Instant::now(), random_fraction) {
            self.wake.notify_one();
        }
    }

    /// The pod is about to be stopped: no probe ends a regular container any more; readiness goes on.
    pub fn stop_liveness_and_startup(&self, uid: &PodUid) {
        self.table().stop_liveness_and_startup(uid);
    }

    /// The pod's containers have stopped.
    pub fn remove_pod(&self, uid: &PodUid) {
        self.table().remove(uid);
    }

    /// Nothing of the pod is left.
    pub fn forget(&self, uid: &PodUid) {
        self.table().forget(uid);
    }

    /// Drops what was known of containers that are gone.
    pub fn retain(&self, exist: &HashSet<ContainerId>) {
        self.table().retain(exist);
    }

    /// The pod's status was computed anew.
    pub fn observe(&self, uid: &PodUid, pod: &Pod, status: &PodStatus) {
        if self.table().observe(uid, pod, status, Instant::now()) {
            self.wake.notify_one();
        }
    }

    /// What is published of the pod's containers.
    pub fn results(&self, uid: &PodUid, runtime: &RuntimePod) -> ProbeResults {
        self.table().results(uid, runtime)
    }

    /// Waits until some pod's results have changed.
    pub async fn changed(&self) {
        self.news.notified().await;
    }

    /// The pods whose results have changed since the last call.
    pub fn take_changed(&self) -> HashSet<PodUid> {
        std::mem::take(&mut *self.changed.lock())
    }

    fn tell(&self, pods: HashSet<PodUid>) {
        if !pods.is_empty() {
            self.changed.lock().extend(pods);
            self.news.notify_one();
        }
    }
}

/// A probe that has been made.
struct Made {
    worker: WorkerId,
    outcome: Outcome,
    took: Duration,
}

/// What bounds the probes that are made at a time.
struct Bounds {
    connections: Slots,
    commands: Slots,
}

async fn make(ports: (&CriClient, &Leftovers), bounds: &Bounds, worker: WorkerId, attempt: Attempt) -> Made {
    let (cri, leftovers) = ports;
    let slots = if matches!(attempt.spec.action, Action::Exec { .. }) { &bounds.commands } else { &bounds.connections };
    let _slot = slots.take(&attempt.pod).await;
    // Waiting for its turn is no time of the probe's.
    let began = Instant::now();
    let outcome = act::probe(cri, leftovers, &attempt).await;
    Made { worker, outcome, took: began.elapsed() }
}

/// Makes the probes until the process ends.
pub async fn run(
    prober: Arc<Prober>,
    cri: CriClient,
    leftovers: Leftovers,
    events: Arc<dyn EventSink>,
    store: Arc<dyn ProbeStore>,
) {
    let bounds = Bounds { connections: Slots::new(CONNECTIONS), commands: Slots::new(COMMANDS) };
    let mut made = FuturesUnordered::new();
    let mut saving = Saving::default();
    let mut counts_at = Instant::now();
    let mut sleep = Box::pin(tokio::time::sleep(LONG));
    loop {
        let now = Instant::now();
        let (due, late, next) = {
            let mut table = prober.table();
            if saving.is_idle()
                && let Some((json, pods)) = table.to_save(now >= counts_at)
            {
                counts_at = now + COUNTS_EVERY;
                let store = store.clone();
                saving.begin(pods, now, move || store.save(&json));
            }
            let mut late = saving.late(now);
            if let Some(late) = &mut late {
                late.extend(table.take_untold());
            }
            let due = table.due(now, SystemTime::now());
            let counts = (saving.is_idle() && table.has_new_counts()).then_some(counts_at);
            let patience = saving.late_at().filter(|at| *at > now);
            let next = [table.next(), counts, patience].into_iter().flatten().min();
            (due, late, next.unwrap_or(now + LONG))
        };
        prober.tell(late.unwrap_or_default());
        for (worker, attempt) in due {
            made.push(make((&cri, &leftovers), &bounds, worker, attempt));
        }
        if sleep.deadline() != next {
            sleep.as_mut().reset(next);
        }
        tokio::select! {
            biased;
            pods = saving.done() => prober.tell(pods),
            Some(first) = made.next() => {
                take(&prober, &*events, first);
                // What else is there by now goes along: one look at the queue, one write.
                while let Some(Some(one)) = made.next().now_or_never() {
                    take(&prober, &*events, one);
                }
            }
            () = prober.wake.notified() => {}
            () = sleep.as_mut() => {}
        }
    }
}

fn take(prober: &Prober, events: &dyn EventSink, made: Made) {
    let Made { worker, outcome, took } = made;
    let event = prober.table().done(worker, outcome, took, Instant::now());
    if let Some(event) = event {
        events.emit(event);
    }
}
