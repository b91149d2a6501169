//! The pods that the sources want, as the main loop has taken them in.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bulkhead_types::PodUid;
use k8s_openapi::api::core::v1::Pod;

use crate::pod_workers::PodFacts;
use crate::runtime::podspec;

/// One wanted pod.
#[derive(Debug, Clone)]
pub struct Desired {
    pub pod: Arc<Pod>,
    /// "file", "http" or "api".
    pub source: &'static str,
}

/// All wanted pods by uid.
#[derive(Debug, Default)]
pub struct DesiredPods {
    pods: HashMap<PodUid, Desired>,
}

/// `<name>_<namespace>`.
pub fn full_name(pod: &Pod) -> String {
    let text = |t: &Option<String>| t.clone().unwrap_or_default();
    format!("{}_{}", text(&pod.metadata.name), text(&pod.metadata.namespace))
}

/// What the pod workers need to know of it.
pub fn facts(pod: &Pod) -> PodFacts {
    let seconds = |value: Option<i64>| value.and_then(|s| u64::try_from(s).ok());
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
    PodFacts {
        full_name: full_name(pod),
        is_static: podspec::is_static(pod),
        terminal_phase: matches!(phase, Some("Failed" | "Succeeded")),
        deleted: podspec::is_deleted(pod),
        deletion_grace: seconds(pod.metadata.deletion_grace_period_seconds),
        spec_grace: seconds(pod.spec.as_ref().and_then(|s| s.termination_grace_period_seconds)),
    }
}

/// The pod's uid, when it is one; sources let nothing else through.
pub fn uid_of(pod: &Pod) -> Option<PodUid> {
    PodUid::parse(pod.metadata.uid.as_deref()?).ok()
}

impl DesiredPods {
    pub fn insert(&mut self, uid: PodUid, desired: Desired) {
        self.pods.insert(uid, desired);
    }

    pub fn remove(&mut self, uid: &PodUid) -> Option<Desired> {
        self.pods.remove(uid)
    }

    pub fn get(&self, uid: &PodUid) -> Option<&Desired> {
        self.pods.get(uid)
    }

    pub fn uids(&self) -> HashSet<PodUid> {
        self.pods.keys().cloned().collect()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&PodUid, &Desired)> {
        self.pods.iter()
    }

    pub fn len(&self) -> usize {
        self.pods.len()
    }

    pub fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }
}

/// Oldest first, so that pods that were there before a restart come before new ones.
pub fn oldest_first(pods: &mut [Arc<Pod>]) {
    let created = |pod: &Pod| pod.metadata.creation_timestamp.as_ref().map(|t| t.0);
    pods.sort_by_key(|pod| created(pod));
}
