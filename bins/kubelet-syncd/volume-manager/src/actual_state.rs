//! The volumes that are there (upstream ActualStateOfWorld): a cache of what kubelet-volnetd lists, one for each of its lives.

use std::collections::{BTreeMap, BTreeSet};

use bulkhead_ipc::volnetd as api;
use bulkhead_types::PodUid;

use crate::spec::UniqueName;

/// Whether something is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Presence {
    /// It is not.
    #[default]
    No,
    /// It may be: a call has begun, and its end is not known.
    Uncertain,
    /// It is.
    Yes,
}

/// Whether a volume that is larger than its claim says is expanded while its pod runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Expansion {
    /// At once.
    #[default]
    Possible,
    /// The claim's status did not allow it: it is looked at again with the next sync of a pod.
    NextSync,
    /// The driver does not do it while the volume is in use (upstream volumeInUseErrorForExpansion).
    NextMount,
}

/// A volume of one pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Published {
    pub presence: Presence,
    /// What the runtime is given; empty while that is not known.
    pub host_path: String,
    /// The name that its folder has: its PersistentVolume's.
    pub spec_name: String,
    /// Where the driver was told to publish it.
    pub target_path: String,
    /// The node has it for one pod of the cluster.
    pub single_pod: bool,
    /// Of a volume whose `vol_data.json` cannot be read: no driver can be asked to take it back.
    pub unreadable: bool,
}

/// A volume on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActualVolume {
    /// Of a driver; `None` for other kinds, which are taken back with the pod's folder.
    pub device: Option<api::CsiDevice>,
    /// Upstream's plugin and driver, for metrics.
    pub plugin: String,
    pub staged: Presence,
    /// Empty while nothing is staged.
    pub staging_path: String,
    /// Whether a controller attaches it; `None`: found on the disk, and nobody has said.
    pub attachable: Option<bool>,
    pub pods: BTreeMap<PodUid, Published>,
    /// Bytes that the claim has, as far as its status said so.
    pub claim_size: i64,
    pub expansion: Expansion,
    /// The driver has refused one for good, and none has succeeded since.
    pub expansion_failed: bool,
}

impl ActualVolume {
    /// Nothing of it is known to be on this node.
    pub fn is_gone(&self) -> bool {
        self.pods.is_empty() && self.staged == Presence::No
    }
}

/// All volumes.
#[derive(Debug, Clone, Default)]
pub struct ActualState {
    /// The life of kubelet-volnetd that was listed; 0: none was yet.
    pub epoch: u64,
    pub volumes: BTreeMap<UniqueName, ActualVolume>,
}

/// The name of what was found. An inline volume's handle is computed of the pod, so its name is, too.
fn name_of(device: &api::CsiDevice, published: Option<(&str, &api::CsiVolumeData)>) -> UniqueName {
    match published {
        Some((pod, data)) if data.lifecycle_mode == "Ephemeral" => {
            UniqueName(format!("kubernetes.io/csi/{pod}-{}", device.spec_name))
        }
        _ => UniqueName(crate::names::unique(&device.driver, &device.volume_handle)),
    }
}

impl ActualState {
    /// Rebuilt of both lists. `single_pod` and what else was known of volumes that are still there is kept.
    pub fn rebuilt(
        &self,
        epoch: u64,
        staged: Vec<api::StagedVolume>,
        published: Vec<api::PublishedVolume>,
    ) -> ActualState {
        let mut rebuilt = ActualState { epoch, volumes: BTreeMap::new() };
        let presence = |mounted: bool, uncertain: bool, problem: &str| {
            if mounted && !uncertain && problem.is_empty() { Presence::Yes } else { Presence::Uncertain }
        };
        for found in staged {
            let Some(device) = found.device else { continue };
            let name = name_of(&device, None);
            let volume = rebuilt.entry(&name, device);
            // A block volume's staging is a folder or a file of the driver's: nothing need be mounted there.
            let is_there = found.mounted || volume.device.as_ref().is_some_and(|device| device.block);
            volume.staged = presence(is_there, found.uncertain, &found.problem);
            volume.staging_path = found.staging_path;
        }
        for found in published {
            let Some(data) = found.data else { continue };
            let (Some(device), Ok(uid)) = (data.device.clone(), PodUid::parse(&found.pod_uid)) else { continue };
            let name = name_of(&device, Some((&found.pod_uid, &data)));
            let known = Published {
                presence: presence(found.mounted, found.uncertain, &found.problem),
                host_path: String::new(),
                spec_name: device.spec_name.clone(),
                target_path: found.target_path,
                single_pod: false,
                unreadable: !found.problem.is_empty(),
            };
            let volume = rebuilt.entry(&name, device.clone());
            // What is staged of a volume with a file system does not say its name.
            if let Some(known) = volume.device.as_mut().filter(|known| known.spec_name.is_empty()) {
                known.spec_name = device.spec_name;
            }
            volume.pods.insert(uid, known);
        }
        for (name, before) in &self.volumes {
            if before.device.is_none() {
                // Taken back with the pod's folder; it is set up again where it is wanted.
                continue;
            }
            let Some(now) = rebuilt.volumes.get_mut(name) else { continue };
            (now.attachable, now.claim_size) = (before.attachable, before.claim_size);
            (now.expansion, now.expansion_failed) = (before.expansion, before.expansion_failed);
            for (pod, published) in &mut now.pods {
                published.single_pod = before.pods.get(pod).is_some_and(|before| before.single_pod);
            }
        }
        rebuilt
    }

    fn entry(&mut self, name: &UniqueName, device: api::CsiDevice) -> &mut ActualVolume {
        let plugin = format!("kubernetes.io/csi:{}", device.driver);
        self.volumes.entry(name.clone()).or_insert_with(|| ActualVolume {
            device: Some(device),
            plugin,
            staged: Presence::No,
            staging_path: String::new(),
            attachable: None,
            pods: BTreeMap::new(),
            claim_size: 0,
            expansion: Expansion::Possible,
            expansion_failed: false,
        })
    }

    pub fn published(&self, volume: &UniqueName, pod: &PodUid) -> Option<&Published> {
        self.volumes.get(volume)?.pods.get(pod)
    }

    /// Another pod of this node has a volume that only one may have.
    pub fn is_used_by_another(&self, volume: &UniqueName, pod: &PodUid) -> bool {
        self.volumes.get(volume).is_some_and(|volume| volume.pods.iter().any(|(other, _)| other != pod))
    }

    /// Volumes of a pod that are, or may be, there.
    pub fn of_pod<'a>(&'a self, pod: &'a PodUid) -> impl Iterator<Item = &'a UniqueName> {
        self.volumes.iter().filter(move |(_, volume)| volume.pods.contains_key(pod)).map(|(name, _)| name)
    }

    /// Names of what a controller attaches. `node`: what the Node lists already, which says it of what was found on the disk.
    pub fn attachable<'a>(&'a self, node: &'a BTreeSet<String>) -> impl Iterator<Item = &'a UniqueName> {
        let is = |name: &UniqueName, volume: &ActualVolume| volume.attachable.unwrap_or_else(|| node.contains(&name.0));
        self.volumes.iter().filter(move |(name, volume)| is(name, volume)).map(|(name, _)| name)
    }
}

#[cfg(test)]
#[path = "actual_state_tests.rs"]
mod tests;
