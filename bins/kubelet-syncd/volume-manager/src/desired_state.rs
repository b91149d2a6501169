//! The volumes that pods want (upstream DesiredStateOfWorld).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bulkhead_types::PodUid;

use crate::pod_facts::PodFacts;
use crate::selinux::Label;
use crate::spec::{UniqueName, VolumeSpec};

/// One volume that a pod wants.
#[derive(Debug, Clone, PartialEq)]
pub struct DesiredVolume {
    pub spec: Arc<VolumeSpec>,
    /// Its names in the pod: two of the pod's volumes may be one claim.
    pub names: BTreeSet<String>,
    /// A controller attaches it to the node.
    pub attachable: bool,
    /// The driver is to be called again although the volume is mounted.
    pub remount: bool,
    pub label: Label,
}

/// One pod.
#[derive(Debug, Clone)]
pub struct DesiredPod {
    pub facts: Arc<PodFacts>,
    /// kubelet-volnetd has made its folders.
    pub prepared: bool,
    pub volumes: BTreeMap<UniqueName, DesiredVolume>,
    /// Volumes of which it is not known yet what they are, by their names in the pod.
    pub unresolved: BTreeMap<String, Unresolved>,
}

/// See [`crate::populator::Unresolved`].
pub type Unresolved = crate::populator::Unresolved;

impl DesiredPod {
    /// Nothing else is wanted than before, and no driver is to be called again.
    pub fn wants_as_before(&self, before: &DesiredPod) -> bool {
        self.prepared == before.prepared
            && self.volumes == before.volumes
            && self.unresolved == before.unresolved
            && !self.volumes.values().any(|volume| volume.remount)
    }

    /// What the pod's volume of this name is, as far as it is known.
    pub fn named(&self, name: &str) -> Option<(&UniqueName, &DesiredVolume)> {
        self.volumes.iter().find(|(_, volume)| volume.names.contains(name))
    }

    /// All names of volumes that the pod waits for.
    pub fn names(&self) -> BTreeSet<String> {
        let resolved = self.volumes.values().flat_map(|volume| volume.names.iter().cloned());
        resolved.chain(self.unresolved.keys().cloned()).collect()
    }
}

/// All pods that want volumes of this manager's.
#[derive(Debug, Clone, Default)]
pub struct DesiredState {
    pub pods: BTreeMap<PodUid, DesiredPod>,
}

impl DesiredState {
    pub fn volume(&self, pod: &PodUid, volume: &UniqueName) -> Option<&DesiredVolume> {
        self.pods.get(pod)?.volumes.get(volume)
    }

    /// Some pod wants it.
    pub fn wants(&self, volume: &UniqueName) -> bool {
        self.pods.values().any(|pod| pod.volumes.contains_key(volume))
    }

    /// Some pod wants it with this SELinux label.
    pub fn wants_with(&self, volume: &UniqueName, label: &str) -> bool {
        self.pods.values().any(|pod| pod.volumes.get(volume).is_some_and(|wanted| wanted.label.mount == label))
    }

    /// The SELinux label with which pods want it.
    pub fn label(&self, volume: &UniqueName) -> Option<&Label> {
        self.pods.values().find_map(|pod| Some(&pod.volumes.get(volume)?.label))
    }

    /// Names of what a controller attaches.
    pub fn attachable(&self) -> impl Iterator<Item = &UniqueName> {
        let volumes = self.pods.values().flat_map(|pod| pod.volumes.iter());
        volumes.filter(|(_, volume)| volume.attachable).map(|(name, _)| name)
    }
}
