//! What a manager would like (a hint), the interface of managers that give hints, and why a pod is refused.

use std::collections::BTreeMap;

use super::mask::NumaMask;
use crate::request::{ContainerRequest, PodRequest};

/// NUMA nodes for a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hint {
    /// None: any.
    pub affinity: Option<NumaMask>,
    /// As narrow as the machine allows.
    pub preferred: bool,
}

impl Hint {
    pub const ANY: Hint = Hint { affinity: None, preferred: true };

    pub fn new(affinity: NumaMask, preferred: bool) -> Self {
        Hint { affinity: Some(affinity), preferred }
    }
}

/// Resource to hints. None: no preference; an empty list: it cannot be had anywhere.
pub type ResourceHints = BTreeMap<String, Option<Vec<Hint>>>;

/// Why a pod is refused: `status.reason`, and the message as upstream words it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    pub reason: &'static str,
    pub message: String,
}

impl Refusal {
    /// Not aligned (upstream `TopologyAffinityError`).
    pub fn topology() -> Self {
        let message = "Resources cannot be allocated with Topology locality".to_owned();
        Refusal { reason: "TopologyAffinityError", message }
    }

    /// The same of a pod with resources of its own.
    pub fn pod_topology(message: &str) -> Self {
        Refusal { reason: "TopologyAffinityError", message: format!("Pod Scope {message}") }
    }

    /// A manager that has no reason of its own.
    pub fn unexpected(error: impl std::fmt::Display) -> Self {
        let message = format!("Allocate failed due to {error}, which is unexpected");
        Refusal { reason: "UnexpectedAdmissionError", message }
    }

    pub fn empty_shared_pool(message: String) -> Self {
        Refusal { reason: "EmptyPodSharedPoolError", message }
    }
}

/// What a manager was asked to give of one source, and what it gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Given {
    pub requests: u64,
    pub errors: u64,
    pub allocations: u64,
    /// Containers that have some for themselves.
    pub exclusive: u64,
    /// Containers that have some together with others of their pod.
    pub shared: u64,
}

/// The same since the manager's start, as upstream counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// To containers, of what the node has.
    pub node: Given,
    /// To containers, of what their pods have of their own.
    pub pod: Given,
    /// Of what the node gave: CPUs that share one last-level cache.
    pub uncore_aligned: u64,
}

impl Counts {
    pub fn requests(&self) -> u64 {
        self.node.requests + self.pod.requests
    }

    pub fn errors(&self) -> u64 {
        self.node.errors + self.pod.errors
    }
}

/// A manager that gives hints and then resources (upstream `topologymanager.HintProvider`).
pub trait HintProvider {
    fn hints(&self, pod: &PodRequest, container: &ContainerRequest) -> ResourceHints;

    fn pod_hints(&self, pod: &PodRequest) -> ResourceHints;

    /// Gives a container what it asks for; what it has already stays.
    ///
    /// # Errors
    /// It cannot be had.
    fn allocate(&mut self, pod: &PodRequest, container: &ContainerRequest, best: Hint) -> Result<(), Refusal>;

    /// Gives a pod with resources of its own what it asks for, and shares that out among its containers.
    ///
    /// # Errors
    /// It cannot be had.
    fn allocate_pod(&mut self, pod: &PodRequest, best: Hint) -> Result<(), Refusal>;
}
