//! What all work on pods shares: facts that never change, clients of other processes and of the runtime, and the table of pods'
//! records.

use std::sync::Arc;

use bulkhead_config::NodeConfig;
use bulkhead_types::PodUid;
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

use super::events::Reporter;
use super::loop_monitor::LoopMonitor;
use super::node_cgroups::NodeCgroups;
use super::pod_table::PodTable;
use super::prune_gate::PruneGate;
use super::runtime_health::RuntimeHealth;
use super::termination_messages::TerminationMessages;
use crate::container_manager::ContainerManager;
use crate::container_manager::dra::DraManager;
use crate::evictions::pressure::PressureReports;
use crate::hub::PodHub;
use crate::logs::place::SparedLogs;
use crate::metrics::Metrics;
use crate::mirror_pods::MirrorPods;
use crate::ownership::Ownership;
use kubelet_edges::volnetd::Volnetd;
use kubelet_model::node_facts::{NodeFacts, SharedFacts};
use kubelet_model::objects::Objects;
use kubelet_pleg::{Pleg, PodCache};
use kubelet_probes::prober::Prober;
use kubelet_runtime::allocation::Allocations;
use kubelet_volume_manager::VolumeManager;

/// Shared by the main loop and all tasks.
#[derive(Debug)]
pub struct NodeContext {
    pub config: Arc<NodeConfig>,
    pub shared_facts: SharedFacts,
    /// Memory that pods may have in sum, bytes.
    pub allocatable_memory: u64,
    /// Start of the process: what the cache says from then on may be relied on.
    pub started: Instant,

    pub volnetd: Volnetd,
    /// A place for each volume whose files are on their way to volnetd.
    pub files_on_their_way: Semaphore,
    /// Claims and volumes of CSI drivers.
    pub volume_manager: Arc<VolumeManager>,
    /// What pods name on the API server.
    pub objects: Arc<dyn Objects>,
    /// What the API server has of static pods.
    pub mirror_pods: Arc<MirrorPods>,
    pub pleg: Pleg,
    pub cache: Arc<PodCache>,
    pub health: watch::Receiver<RuntimeHealth>,
    pub hub: Arc<PodHub>,
    /// Logs of pods that are left alone, which are in no hub.
    pub spared_logs: Arc<SparedLogs>,
    pub reporter: Arc<Reporter>,
    pub metrics: Metrics,
    pub runtime: super::RuntimeSide,
    pub prober: Arc<Prober>,
    pub termination_messages: TerminationMessages,
    pub ownership: Arc<Ownership>,
    /// What pods were granted, and what they have.
    pub allocations: Arc<Allocations>,
    /// Devices, claims, CPUs and memory that containers have for themselves.
    pub container_manager: Arc<ContainerManager>,
    /// Claims of drivers; one of the container manager's.
    pub claims: Arc<DraManager>,

    pub pods: PodTable,
    pub cgroups: NodeCgroups,
    /// The node's conditions, as the eviction manager reported them last.
    pub pressure: Arc<PressureReports>,
    pub prune_gate: PruneGate,
    pub loop_monitor: LoopMonitor,
}

impl NodeContext {
    /// The facts as they are now.
    pub fn facts(&self) -> Arc<NodeFacts> {
        self.shared_facts.get()
    }

    /// Whether the runtime's picture of the pod may be from before its sandbox stood.
    pub fn knows_of_newer_sandbox(&self, uid: &PodUid) -> bool {
        self.pods.newest_sandbox(uid).is_some_and(|made| !self.cache.is_since(uid, made))
    }

    /// The pod was seen running, for `kubelet_pod_start_duration_seconds`.
    pub fn started_running(&self, uid: &PodUid) {
        if let Some(seen) = self.pods.take_first_seen(uid) {
            self.metrics.starts.duration.observe(seen.elapsed().as_secs_f64());
        }
    }

    /// Nothing of the pod is left: callers are told, and its uid may come back as a new pod.
    pub fn forget(&self, uid: &PodUid) {
        self.pods.forget(uid);
        self.objects.unregister_pod(uid);
        self.allocations.forget(uid);
        self.container_manager.forget(uid);
        self.prober.forget(uid);
        self.hub.remove(uid);
    }
}
