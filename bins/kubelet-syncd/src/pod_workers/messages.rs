//! What goes into the pod workers' state machine and what comes out of it.

use bulkhead_types::PodUid;
use tokio::time::Instant;

use super::requeue::Retry;

/// Why a pod is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum UpdateType {
    Sync,
    Update,
    Create,
    Kill,
}

impl UpdateType {
    /// As in the label `operation_type` of `kubelet_pod_worker_duration_seconds`.
    pub const fn as_str(self) -> &'static str {
        match self {
            UpdateType::Sync => "sync",
            UpdateType::Update => "update",
            UpdateType::Create => "create",
            UpdateType::Kill => "kill",
        }
    }
}

/// What the machine needs to know of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodFacts {
    /// `<name>_<namespace>`.
    pub full_name: String,
    pub is_static: bool,
    /// The configuration's own copy says Failed or Succeeded.
    pub terminal_phase: bool,
    /// `metadata.deletionTimestamp` is set.
    pub deleted: bool,
    /// `metadata.deletionGracePeriodSeconds`.
    pub deletion_grace: Option<u64>,
    /// `spec.terminationGracePeriodSeconds`.
    pub spec_grace: Option<u64>,
}

/// A pod as its source and the runtime show it.
#[derive(Debug, Clone)]
pub struct PodView<P> {
    pub pod: P,
    pub facts: PodFacts,
    /// The runtime shows no running container and no ready sandbox of it. Counts only for a pod that is seen for the
    /// first time, in a terminal phase.
    pub runtime_ended: bool,
}

/// A request to end a pod for another reason than its own end or its removal.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Kill {
    /// Seconds; can only shorten.
    pub grace: Option<u64>,
    pub evicted: bool,
    /// Its signals are not held back for other pods, as those of an evicted pod never are.
    pub hurried: bool,
}

/// Where a pod is. The order is the only direction of travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lifecycle {
    /// Known, not started: its namesake has not ended yet.
    Waiting,
    Sync,
    Terminating,
    Terminated,
    Finished,
}

/// What a piece of work does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WorkKind {
    /// Make the runtime agree with the pod.
    Sync,
    /// Stop all of the pod's containers, then its sandbox.
    Terminating,
    /// The same for a pod of which only the runtime knows.
    TerminatingRuntime,
    /// Containers are stopped: volumes, cgroup and directories go.
    Terminated,
}

/// How a pod's containers are stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Termination {
    pub grace_seconds: u64,
    /// Signals are not held back for other pods: it is evicted, the machine goes down, or its grace period was shortened.
    pub hurried: bool,
}

/// A piece of work, to be answered with [`Workers::done`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Work<P> {
    pub kind: WorkKind,
    pub update: UpdateType,
    /// Absent for `TerminatingRuntime` only.
    pub pod: Option<P>,
    /// Meaningful while terminating.
    pub termination: Termination,
    pub evicted: bool,
    /// When the previous piece of work had changed what it changes: the runtime's state must be newer.
    pub last_sync: Option<Instant>,
    /// When the oldest update in it came.
    pub since: Instant,
}

/// How a piece of work ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It did all that it is for.
    Done,
    /// It did its part without an error, and the rest is for work that follows at once.
    Again,
    /// A `Sync` found that the pod has ended by itself.
    Terminal,
    /// It was cancelled because something newer is waiting.
    Cancelled,
    Failed(Retry),
}

/// What follows from a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action<P> {
    Run {
        uid: PodUid,
        work: Box<Work<P>>,
    },
    /// Interrupt the work in progress: it is for a state that is over.
    Cancel {
        uid: PodUid,
    },
    /// Look at the pod again later.
    Requeue {
        uid: PodUid,
        retry: Retry,
    },
    /// Nothing is left to do for the pod.
    Finished {
        uid: PodUid,
    },
}
