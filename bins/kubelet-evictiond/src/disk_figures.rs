//! What a sample says of disks: of the node's and the runtime's, and of each pod's volumes, logs and writable layers. Pure, but for the
//! clock. They are asked for while the rest is measured, as the runtime takes its time to tell.

use std::collections::HashMap;
use std::sync::Arc;

use bulkhead_ipc::evictiond::{MountedFileSystem, NodeStats, PodStats, VolumeStats};

use crate::disk::{FileSystem, Folder, Volume};
use crate::pods::Pod;
use crate::runtime::RuntimeDisks;
use crate::sample::Sample;
use crate::stats::{self, Moment};

/// Disk figures of one pod.
#[derive(Debug, Clone, Default)]
pub struct PodDisk {
    pub volumes: PodVolumes,
    /// Persistent ones.
    pub persistent: Vec<VolumeStats>,
    pub logs: Option<PodLogs>,
}

/// What a pod's volumes hold.
#[derive(Debug, Clone, Default)]
pub struct PodVolumes {
    /// By name, with whether they count into the pod's ephemeral storage.
    pub all: Vec<(String, Volume, bool)>,
    /// RFC 3339, when that was measured.
    pub time: String,
}

/// What the agent itself keeps for a pod.
#[derive(Debug, Clone, Default)]
pub struct PodLogs {
    /// By container name.
    pub containers: Vec<(String, Folder)>,
    /// What is in the pod's log folder itself, and its /etc/hosts.
    pub other: Folder,
    /// The file system of the log folder.
    pub fs: Option<FileSystem>,
    /// RFC 3339, when that was measured.
    pub time: String,
}

/// Disk figures of the node and of its pods, as far as they are known.
#[derive(Debug, Default)]
pub struct Disks {
    pub node: Option<FileSystem>,
    /// By a folder on each: where the runtime has images and writable layers.
    pub folders: HashMap<String, FileSystem>,
    /// Where the runtime keeps images, when it says nothing more of them.
    pub image_folder: Option<String>,
    pub runtime: Option<Arc<RuntimeDisks>>,
    /// The machine's, with their devices' counters.
    pub mounted: Vec<MountedFileSystem>,
    pub pods: HashMap<String, PodDisk>,
}

impl Disks {
    /// Puts all of it into a sample of these pods, as far as the sample is to hold it.
    pub fn fill(&self, sample: &mut Sample, pods: &[Pod]) {
        if let Some(machine) = sample.cgroups.first_mut() {
            machine.file_systems.clone_from(&self.mounted);
        }
        if !sample.holds.disks {
            return;
        }
        node_disks(&mut sample.node, self, &Moment::now());
        let (pods, nothing): (HashMap<&str, &Pod>, _) =
            (pods.iter().map(|pod| (pod.uid.as_str(), pod)).collect(), PodDisk::default());
        for stats in &mut sample.pods {
            if let Some(pod) = pods.get(stats.uid.as_str()) {
                pod_disks(stats, pod, self.pods.get(&stats.uid).unwrap_or(&nothing), self);
            }
        }
    }
}

fn node_disks(node: &mut NodeStats, disks: &Disks, time: &Moment) {
    node.node_fs = disks.node.map(|fs| stats::whole(fs, &time.text));
    let runtime = disks.runtime.as_deref();
    let told = |usage: Option<&bulkhead_ipc::syncd::DiskUsage>| {
        usage.map(|usage| stats::told(usage, disks.folders.get(&usage.mountpoint).copied()))
    };
    // Without the runtime's word what images use is left out, not guessed.
    let folder = disks.image_folder.as_ref().and_then(|folder| disks.folders.get(folder)).copied();
    let unknown = || {
        let whole = stats::whole(folder?, &time.text);
        Some(bulkhead_ipc::evictiond::FsStats { used_bytes: None, inodes_used: None, ..whole })
    };
    node.image_fs = told(runtime.and_then(|runtime| runtime.images.as_ref())).or_else(unknown);
    let containers = told(runtime.and_then(|runtime| runtime.containers.as_ref()));
    node.container_fs = containers.or_else(|| node.image_fs.clone());
}

/// Volumes, logs, writable layers, and what of them counts into ephemeral storage (upstream `calcEphemeralStorage`).
fn pod_disks(stats: &mut PodStats, pod: &Pod, disk: &PodDisk, disks: &Disks) {
    let logs = disk.logs.as_ref();
    let mut ephemeral = logs.map(|logs| logs.other).unwrap_or_default();
    for (name, volume, counts) in &disk.volumes.all {
        let fs = stats::part(volume.fs, volume.folder, &disk.volumes.time);
        if *counts && !volume.is_mount {
            stats::add(&mut ephemeral, &fs);
        }
        stats.volumes.push(VolumeStats { name: name.clone(), fs: Some(fs), ..VolumeStats::default() });
    }
    stats.volumes.extend(disk.persistent.iter().cloned());
    for one in &mut stats.containers {
        one.logs = logs.and_then(|logs| {
            let (_, folder) = logs.containers.iter().find(|(name, _)| *name == one.name)?;
            Some(stats::part(logs.fs?, *folder, &logs.time))
        });
        let id = pod.containers.iter().find(|container| container.name.as_str() == one.name).map(|found| &found.id);
        let layer = id.and_then(|id| disks.runtime.as_ref()?.layers.get(id));
        one.rootfs = layer.map(|usage| stats::told(usage, disks.folders.get(&usage.mountpoint).copied()));
        for share in one.logs.iter().chain(&one.rootfs) {
            stats::add(&mut ephemeral, share);
        }
    }
    if let Some(logs) = logs {
        stats.ephemeral_storage = disks.node.map(|fs| stats::part(fs, ephemeral, &logs.time));
    }
}
