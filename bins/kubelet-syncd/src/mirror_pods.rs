//! What the API server has of static pods: their mirror pods, by the static pod that each one shows. Written by the watch of pods,
//! which finds out which mirror belongs to which static pod ([`crate::api::mirrors`]).

use std::collections::HashMap;
use std::sync::Arc;

use bulkhead_ipc::syncd::ApiObject;
use bulkhead_types::PodUid;
use parking_lot::{Mutex, MutexGuard};

/// Shared by the watch, the pods' tasks and the service.
#[derive(Debug, Default)]
pub struct MirrorPods {
    by_static_pod: Mutex<HashMap<PodUid, Arc<ApiObject>>>,
}

impl MirrorPods {
    fn by_static_pod(&self) -> MutexGuard<'_, HashMap<PodUid, Arc<ApiObject>>> {
        // No method panics between two writes.
        self.by_static_pod.lock()
    }

    /// The mirror of a static pod is this from now on; `None`: there is none.
    pub fn set(&self, static_pod: &PodUid, mirror: Option<ApiObject>) {
        match mirror {
            Some(mirror) => self.by_static_pod().insert(static_pod.clone(), Arc::new(mirror)),
            None => self.by_static_pod().remove(static_pod),
        };
    }

    /// The mirror of a static pod, as the watch saw it last.
    pub fn get(&self, static_pod: &PodUid) -> Option<Arc<ApiObject>> {
        self.by_static_pod().get(static_pod).cloned()
    }
}
