//! What operations share: the state behind one lock that is never held across a wait, and whom they ask.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use bulkhead_types::PodUid;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kubelet_model::events::{EventSink, EventType, InvolvedObject, ObjectEvent, PodEvent};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};

use crate::actual_state::ActualState;
use crate::back_off::{BackOffs, Key};
use crate::desired_state::DesiredState;
use crate::metrics::OperationMetrics;
use crate::pending_operations::PendingOperations;
use crate::pod_facts::PodFacts;
use crate::ports::{ClaimWriter, ClusterReader, Drivers, VolumeVerbs};
use crate::reconciler::{Attacher, NodeVolumes, PODS_AT_ONCE, Populating};
use crate::selinux::SeLinuxMount;

/// Operations of one driver at a time: one that hangs uses up its own. One volume takes a part of them at most
/// ([`PODS_AT_ONCE`]).
const PLACES: usize = 16;
const _: () = assert!(PODS_AT_ONCE * 4 <= PLACES, "one volume takes the places of all others");

/// Whom the volume manager asks and tells.
#[derive(Clone)]
pub struct Ports {
    pub drivers: Arc<dyn Drivers>,
    pub verbs: Arc<dyn VolumeVerbs>,
    pub reader: Arc<dyn ClusterReader>,
    pub events: Arc<dyn EventSink>,
    pub claims: Arc<dyn ClaimWriter>,
    pub metrics: OperationMetrics,
    pub node_name: String,
    /// enableControllerAttachDetach: a controller attaches volumes to this node, and tells by the Node's status.
    pub controller_attaches: bool,
    /// `None`: SELinux is off, and no volume has a label.
    pub selinux: Option<SeLinuxMount>,
}

impl fmt::Debug for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ports").field("node_name", &self.node_name).finish_non_exhaustive()
    }
}

/// Both states, and what is being done.
#[derive(Debug, Default)]
pub struct State {
    pub desired: DesiredState,
    pub actual: ActualState,
    /// Operations that run.
    pub busy: PendingOperations,
    pub ended: BTreeSet<PodUid>,
    pub back_offs: BackOffs,
    pub node: NodeVolumes,
    pub populating: Populating,
    pub attacher: Attacher,
    /// Why operations failed last.
    pub errors: HashMap<Key, String>,
}

/// Shared by the reconciler and all operations.
#[derive(Debug)]
pub struct Context {
    pub ports: Ports,
    state: Mutex<State>,
    /// Counts changes of the state.
    pub changed: watch::Sender<u64>,
    /// Wakes the reconciler.
    pub wake: Notify,
    places: Mutex<HashMap<String, Arc<Semaphore>>>,
}

impl Context {
    pub fn new(ports: Ports) -> Self {
        let attacher = if ports.controller_attaches { Attacher::Controller } else { Attacher::Node(BTreeSet::new()) };
        Context {
            ports,
            state: Mutex::new(State { attacher, ..State::default() }),
            changed: watch::Sender::new(0),
            wake: Notify::new(),
            places: Mutex::default(),
        }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics between two writes.
        self.state.lock()
    }

    /// Something of the state has changed.
    pub fn touch(&self) {
        self.changed.send_modify(|count| *count += 1);
        self.wake.notify_one();
    }

    /// Waits for one of the driver's places.
    pub async fn place(&self, driver: &str) -> Option<OwnedSemaphorePermit> {
        let semaphore = {
            let mut places = self.places.lock();
            places.entry(driver.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(PLACES))).clone()
        };
        semaphore.acquire_owned().await.ok()
    }

    /// About another object than a pod.
    pub fn event_of(
        &self,
        object_kind: &'static str,
        object: &ObjectMeta,
        kind: EventType,
        reason: &'static str,
        message: impl Into<String>,
    ) {
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        self.ports.events.emit_object(ObjectEvent {
            object: InvolvedObject {
                kind: object_kind,
                namespace: text(&object.namespace),
                name: text(&object.name),
                uid: text(&object.uid),
                resource_version: text(&object.resource_version),
            },
            kind,
            reason,
            message: message.into(),
        });
    }

    pub fn event(&self, pod: &PodFacts, kind: EventType, reason: &'static str, message: impl Into<String>) {
        if let Some(identity) = &pod.identity {
            self.ports.events.emit(PodEvent::pod(identity, kind, reason, message));
        }
    }
}
