//! The volumes that pods want (upstream DesiredStateOfWorld).

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bulkhead_types::PodUid;

use crate::pod_facts::PodFacts;
use crate::populator::Unresolved;
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

/// What came of a look at one of a pod's volumes.
#[derive(Debug, Clone, PartialEq)]
pub enum Found {
    Volume(UniqueName, DesiredVolume),
    /// It could not be looked at: what was known of it stays.
    Unknown(Unresolved),
    /// It was, and the pod may not have it.
    Refused(Unresolved),
}

impl Found {
    /// Which volume it is, where it is known.
    pub fn unique(&self) -> Option<&UniqueName> {
        match self {
            Found::Volume(unique, _) => Some(unique),
            Found::Unknown(_) | Found::Refused(_) => None,
        }
    }
}

impl DesiredPod {
    /// What the pod wants from now on. `found`: its volumes by their names in the pod. `before`: what it has wanted until now.
    pub fn update(before: Option<&DesiredPod>, facts: Arc<PodFacts>, found: Vec<(String, Found)>) -> Self {
        let mut wanted = DesiredPod {
            facts,
            prepared: before.is_some_and(|before| before.prepared),
            volumes: BTreeMap::new(),
            unresolved: BTreeMap::new(),
        };
        for (name, found) in found {
            match found {
                Found::Volume(unique, volume) => match wanted.volumes.entry(unique) {
                    Entry::Occupied(mut other) => other.get_mut().names.extend(volume.names),
                    Entry::Vacant(place) => {
                        let known = before.and_then(|before| before.volumes.get(place.key()));
                        let known = known.filter(|known| known.spec == volume.spec);
                        // One specification is kept, and not one of each sync.
                        let spec = known.map_or(volume.spec, |known| known.spec.clone());
                        place.insert(DesiredVolume { spec, ..volume });
                    }
                },
                Found::Unknown(error) => match before.and_then(|before| before.named(&name)) {
                    // The volume is used already, or soon will be.
                    Some((unique, volume)) => {
                        wanted.volumes.insert(unique.clone(), volume.clone());
                    }
                    None => {
                        wanted.unresolved.insert(name, error);
                    }
                },
                Found::Refused(error) => {
                    wanted.unresolved.insert(name, error);
                }
            }
        }
        wanted
    }

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

#[cfg(test)]
#[path = "desired_state_tests.rs"]
mod tests;
