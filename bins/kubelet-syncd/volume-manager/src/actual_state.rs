//! The volumes that are there (upstream ActualStateOfWorld): a cache of what kubelet-volnetd lists, one for each of its lives.

use std::collections::{BTreeMap, BTreeSet};

use bulkhead_ipc::volnetd as api;
use bulkhead_types::PodUid;

use crate::desired_state::DesiredVolume;
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
    /// The driver does not do it while the volume is in use (upstream volumeInUseErrorForExpansion), or it is not mounted just then.
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
    /// Of a volume whose `vol_data.json` cannot be read or is another one's: no driver can be asked, and it is taken back by its
    /// path.
    pub unreadable: bool,
    /// Where SELinux is on, the runtime labels its files.
    pub relabel: bool,
    /// It was found on the node (upstream's reconstructed volumes): until a call has succeeded, no refusal of the driver says that it
    /// is not there.
    pub found: bool,
}

/// A volume on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActualVolume {
    /// Of a driver; `None` for other kinds, which are taken back with the pod's folder.
    pub device: Option<api::CsiDevice>,
    /// A disk that is attached for pods: their part of it goes with their folders, and the disk itself after them.
    pub disk: Option<api::DiskPlace>,
    /// Upstream's plugin and driver, for metrics.
    pub plugin: String,
    pub staged: Presence,
    /// Empty while nothing is staged.
    pub staging_path: String,
    /// Whether a controller attaches it; `None`: found on the disk, and nobody has said.
    pub attachable: Option<bool>,
    pub pods: BTreeMap<PodUid, Published>,
    /// The SELinux label that it is mounted with, for all of its pods; empty: with none.
    pub label: String,
    /// Bytes that the claim has, as far as its status said so.
    pub claim_size: i64,
    pub expansion: Expansion,
    /// The driver has refused one for good, and none has succeeded since.
    pub expansion_failed: bool,
    /// What is staged of it was found: see [`Published::found`].
    pub found: bool,
}

impl ActualVolume {
    /// Nothing of it is there yet, and nobody has said what it is. `plugin`: see the field.
    pub fn new(plugin: String) -> Self {
        ActualVolume {
            device: None,
            disk: None,
            plugin,
            staged: Presence::No,
            staging_path: String::new(),
            attachable: None,
            pods: BTreeMap::new(),
            label: String::new(),
            claim_size: 0,
            expansion: Expansion::Possible,
            expansion_failed: false,
            found: false,
        }
    }

    /// What is staged, and nobody knows which volume it is: the name of its folder, or a block volume's name.
    pub fn nameless(&self) -> Option<Nameless<'_>> {
        let device = self.device.as_ref().filter(|device| device.volume_handle.is_empty())?;
        if self.staged == Presence::No {
            return None;
        }
        if device.block {
            return Some(Nameless::Block(&device.spec_name));
        }
        let folder = self.staging_path.rsplit('/').nth(1).unwrap_or_default();
        Some(Nameless::FileSystem { driver: &device.driver, folder })
    }

    /// It has, or may have, another SELinux label than a further pod wants: it is taken from the node first.
    pub fn is_labelled_otherwise(&self, pod: &PodUid, label: &str) -> bool {
        !self.is_gone() && !self.pods.contains_key(pod) && self.label != label
    }

    /// A pod that wants it was synced. Answers whether there may be something to do.
    pub fn follow(&mut self, wanted: &DesiredVolume) -> bool {
        let mut changed = self.attachable.replace(wanted.attachable) != Some(wanted.attachable);
        if self.claim_size == 0 {
            self.claim_size = wanted.spec.claim.as_ref().map_or(0, |claim| claim.capacity);
            changed |= self.claim_size != 0;
        }
        if self.expansion == Expansion::NextSync {
            self.expansion = Expansion::Possible;
            changed = true;
        }
        changed
    }

    /// Nothing of it is known to be on this node.
    pub fn is_gone(&self) -> bool {
        self.pods.is_empty() && self.staged == Presence::No
    }
}

/// See [`ActualVolume::nameless`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nameless<'a> {
    /// `folder` is the SHA-256 of the handle.
    FileSystem {
        driver: &'a str,
        folder: &'a str,
    },
    Block(&'a str),
}

impl Nameless<'_> {
    /// Whether it is the volume that is known by this name.
    pub fn is(self, driver: &str, handle: &str, block: bool, spec_name: &str) -> bool {
        match self {
            Nameless::FileSystem { driver: its, folder } => {
                !block && its == driver && folder == crate::names::folder(handle)
            }
            Nameless::Block(name) => block && name == spec_name,
        }
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

/// The name of a disk by its folder (upstream ConstructVolumeSpec of the plugin).
fn disk_name(place: &api::DiskPlace) -> UniqueName {
    if place.plugin == crate::spec::FLEX {
        return UniqueName(place.name.clone());
    }
    if place.plugin == crate::spec::ISCSI {
        let disk = place.name.split_once('/').map_or(place.name.as_str(), |(_, disk)| disk);
        // A portal's name may have a dash, and a target's begins with its kind.
        let kind = ["-iqn.", "-eui.", "-naa."].iter().find_map(|kind| disk.find(kind));
        let (portal, rest) = kind.map_or((disk, ""), |at| (&disk[..at], &disk[at + 1..]));
        let (iqn, lun) = rest.rsplit_once("-lun-").unwrap_or((rest, ""));
        return UniqueName(format!("{}/{portal}:{iqn}:{lun}", place.plugin));
    }
    let parts: Vec<&str> = place.name.split('-').collect();
    UniqueName(match parts.as_slice() {
        [wwns @ .., "lun", lun] => format!("{}/[{}]:{lun}", place.plugin, wwns.join(" ")),
        wwids => format!("{}/[{}]", place.plugin, wwids.join(" ")),
    })
}

/// Of a FlexVolume driver it is the driver itself.
fn disk_plugin(place: &api::DiskPlace) -> String {
    let driver = place.name.rsplit_once('/').filter(|_| place.plugin == crate::spec::FLEX);
    driver.map_or(place.plugin.as_str(), |(driver, _)| driver).to_owned()
}

/// The name of a pod's volume of which nobody knows more than where it is.
fn by_path(pod: &str, device: &api::CsiDevice) -> UniqueName {
    UniqueName(format!("kubernetes.io/csi/{pod}-{}", device.spec_name))
}

impl ActualState {
    /// Rebuilt of both lists. What else was known of volumes that are still there is kept.
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
        let (staged, nameless): (Vec<_>, Vec<_>) = staged.into_iter().partition(|found| found.problem.is_empty());
        for found in staged {
            let Some(device) = found.device else { continue };
            let name = name_of(&device, None);
            let volume = rebuilt.entry(&name, device);
            // A block volume's staging is a folder or a file of the driver's: nothing need be mounted there.
            let is_there = found.mounted || volume.device.as_ref().is_some_and(|device| device.block);
            volume.staged = presence(is_there, found.uncertain, &found.problem);
            volume.found = true;
            volume.staging_path = found.staging_path;
            volume.label = found.selinux_mount_context;
        }
        for found in published {
            let Some(data) = found.data else { continue };
            let (Some(device), Ok(uid)) = (data.device.clone(), PodUid::parse(&found.pod_uid)) else { continue };
            let is_known = found.problem.is_empty();
            let name = if is_known {
                name_of(&device, Some((&found.pod_uid, &data)))
            } else {
                by_path(&found.pod_uid, &device)
            };
            let known = Published {
                presence: presence(found.mounted, found.uncertain, &found.problem),
                host_path: String::new(),
                spec_name: device.spec_name.clone(),
                target_path: found.target_path,
                unreadable: !found.problem.is_empty(),
                relabel: false,
                found: true,
            };
            let volume = rebuilt.entry(&name, device.clone());
            if volume.label.is_empty() {
                volume.label = data.selinux_mount_context;
            }
            // What is staged of a volume with a file system does not say its name.
            if let Some(known) = volume.device.as_mut().filter(|known| known.spec_name.is_empty()) {
                known.spec_name = device.spec_name;
            }
            volume.pods.insert(uid, known);
        }
        for found in nameless {
            rebuilt.add_nameless(found);
        }
        for (name, before) in &self.volumes {
            if before.device.is_none() {
                // Taken back with the pod's folder; it is set up again where it is wanted.
                continue;
            }
            let Some(now) = rebuilt.volumes.get_mut(name) else { continue };
            (now.attachable, now.claim_size) = (before.attachable, before.claim_size);
            (now.expansion, now.expansion_failed) = (before.expansion, before.expansion_failed);
        }
        rebuilt
    }

    /// Of a volume that is published to a pod the handle is known, and so the folder's name says which one it is. Any other one
    /// is known by its folder.
    fn add_nameless(&mut self, found: api::StagedVolume) {
        let Some(device) = found.device else { return };
        let is_it = |volume: &ActualVolume| {
            let known = volume.device.as_ref().filter(|known| !known.volume_handle.is_empty() && !known.block);
            let folder = Nameless::FileSystem { driver: &device.driver, folder: &found.folder };
            known.is_some_and(|known| folder.is(&known.driver, &known.volume_handle, device.block, ""))
        };
        if let Some(volume) = self.volumes.values_mut().find(|volume| is_it(volume)) {
            (volume.staged, volume.staging_path, volume.found) = (Presence::Uncertain, found.staging_path, true);
            return;
        }
        let folder = match (device.block, found.folder.is_empty()) {
            (true, _) => format!("volumeDevices/{}", device.spec_name),
            (false, false) => format!("{}/{}", device.driver, found.folder),
            (false, true) => {
                // Of no form that any kubelet of today makes: whose it is, is for an operator to say.
                tracing::warn!(path = found.staging_path, "a folder of no volume is left alone: {}", found.problem);
                return;
            }
        };
        let volume = self.entry(&UniqueName(format!("kubernetes.io/csi/{folder}")), device);
        (volume.staged, volume.staging_path, volume.found) = (Presence::Uncertain, found.staging_path, true);
    }

    /// kubelet-volnetd has written what volume it is: what stood for it while nobody knew that is no more, and the volume itself is one
    /// that was found.
    pub fn is_named(&mut self, name: &UniqueName, device: &api::CsiDevice, pod: Option<&PodUid>) {
        let mut stood = false;
        for (other, volume) in &mut self.volumes {
            if other == name {
                continue;
            }
            if let Some(pod) = pod
                && volume.pods.get(pod).is_some_and(|it| it.unreadable && it.spec_name == device.spec_name)
            {
                volume.pods.remove(pod);
                stood = true;
            }
            let is_it =
                |it: Nameless<'_>| it.is(&device.driver, &device.volume_handle, device.block, &device.spec_name);
            if pod.is_none() && volume.nameless().is_some_and(is_it) {
                volume.staged = Presence::No;
                stood = true;
            }
        }
        if !stood {
            return;
        }
        let Some(volume) = self.volumes.get_mut(name) else { return };
        match pod.map(|pod| volume.pods.get_mut(pod)) {
            None => volume.found = true,
            Some(Some(published)) => published.found = true,
            Some(None) => {}
        }
    }

    fn entry(&mut self, name: &UniqueName, device: api::CsiDevice) -> &mut ActualVolume {
        let driver = Some(device.driver.as_str()).filter(|driver| !driver.is_empty());
        let plugin = driver.map_or("kubernetes.io/csi".to_owned(), |driver| format!("kubernetes.io/csi:{driver}"));
        let volume = || ActualVolume { device: Some(device), ..ActualVolume::new(plugin) };
        self.volumes.entry(name.clone()).or_insert_with(volume)
    }

    pub fn published(&self, volume: &UniqueName, pod: &PodUid) -> Option<&Published> {
        self.volumes.get(volume)?.pods.get(pod)
    }

    /// A pod has ended: those of its volumes that no driver takes back go with its folder. A disk stays in use until that has gone.
    pub fn forget_folders(&mut self, pod: &PodUid) {
        let of_folder = |volume: &&mut ActualVolume| volume.device.is_none() && volume.disk.is_none();
        for volume in self.volumes.values_mut().filter(of_folder) {
            volume.pods.remove(pod);
        }
    }

    /// The pod's folder has gone, and what was bound or mapped of disks with it.
    pub fn folder_gone(&mut self, pod: &PodUid) {
        for volume in self.volumes.values_mut().filter(|volume| volume.device.is_none()) {
            volume.pods.remove(pod);
        }
    }

    /// Disks that kubelet-volnetd has found attached. Who uses them is known once they are set up again.
    pub fn with_disks(mut self, disks: Vec<api::DiskState>) -> Self {
        for place in disks.into_iter().filter_map(|found| found.place) {
            // It has no label: those are of CSI drivers' volumes alone.
            let volume = ActualVolume {
                disk: Some(place.clone()),
                staged: Presence::Uncertain,
                found: true,
                ..ActualVolume::new(disk_plugin(&place))
            };
            self.volumes.insert(disk_name(&place), volume);
        }
        self
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
