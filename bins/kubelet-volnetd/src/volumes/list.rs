//! What there is: volumes as the disk and mountinfo show them, marked uncertain where an intent was never confirmed.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use bulkhead_sys::mountinfo::MountInfo;
use bulkhead_sys::{open, tree};
use bulkhead_types::{FlexDriver, PodUid, VolumeName};

use super::{FC, HOST_PATH, ISCSI, LOCAL, VolumeError, csi, sub_path};
use crate::journal::Intent;
use crate::node::Node;

const MAX_ENTRIES: usize = 100_000;

/// One volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    pub pod: PodUid,
    /// As on disk: not every plugin's folder names are ours.
    pub volume: String,
    /// Not escaped: "kubernetes.io/empty-dir".
    pub plugin: String,
    pub path: PathBuf,
    /// File system type, when something is mounted there.
    pub fs_type: Option<String>,
    pub uncertain: bool,
    /// subPaths that are bound, "<container>/<index>".
    pub sub_paths: Vec<String>,
}

/// Pods that have a directory. Names that are no pod uid are left out.
pub fn pods_on_disk(node: &Node) -> Result<Vec<PodUid>, VolumeError> {
    let path = node.settings.paths.pods();
    let pods = open::base_dir(&path)
        .map_err(|e| VolumeError::List { path: path.clone(), source: std::io::Error::other(e) })?;
    let entries = tree::list(pods.as_fd(), MAX_ENTRIES).map_err(|source| VolumeError::List { path, source })?;
    let mut pods: Vec<PodUid> =
        entries.iter().filter(|e| e.is_dir).filter_map(|e| PodUid::parse(e.name.to_str()?).ok()).collect();
    pods.sort();
    Ok(pods)
}

/// All volumes, of one pod or of all.
pub fn list(node: &Node, pod: Option<&PodUid>) -> Result<Vec<Volume>, VolumeError> {
    drop_contradicted(node);
    let pods = match pod {
        Some(pod) => vec![pod.clone()],
        None => pods_on_disk(node)?,
    };
    let mounts = mounts_below(&node.settings.paths.pods())?;
    let mut binds = sub_path::among(&node.settings.paths.pods(), mounts.keys().map(PathBuf::as_path));
    let base = node
        .settings
        .pods_dir()
        .map_err(|e| VolumeError::List { path: node.settings.paths.pods(), source: std::io::Error::other(e) })?;
    let mut volumes = Vec::new();
    for pod in pods {
        let intents = node.journal.of(&pod);
        let mut binds = binds.remove(pod.as_str()).unwrap_or_default();
        // A pod that goes away while we look has no volumes.
        let Ok(dir) = open::dir_beneath(base.as_fd(), Path::new(pod.as_str()).join("volumes")) else { continue };
        for plugin in tree::list(dir.as_fd(), MAX_ENTRIES).unwrap_or_default() {
            let Ok(plugin_dir) = open::dir_beneath(dir.as_fd(), &plugin.name) else { continue };
            let plugin = plugin.name.to_string_lossy().replace('~', "/");
            for volume in tree::list(plugin_dir.as_fd(), MAX_ENTRIES).unwrap_or_default() {
                let name = volume.name.to_string_lossy().into_owned();
                let path =
                    node.settings.paths.volumes(&pod).join(bulkhead_types::escape_qualified_name(&plugin)).join(&name);
                // CSI mounts one level further down.
                let fs_type = mounts.get(&path).or_else(|| mounts.get(&path.join("mount"))).cloned();
                let uncertain = intents.iter().any(|intent| match intent {
                    Intent::TearDown => true,
                    Intent::Mount { plugin: p, volume: v } => *p == plugin && v.as_str() == name,
                    Intent::Publish { spec, .. } => plugin == csi::paths::PLUGIN && spec.as_str() == name,
                });
                // Names of volumes are the pod's and stand once.
                let sub_paths = binds.remove(&name).unwrap_or_default().into_iter().collect();
                volumes.push(Volume {
                    pod: pod.clone(),
                    volume: name,
                    plugin: plugin.clone(),
                    path,
                    fs_type,
                    uncertain,
                    sub_paths,
                });
            }
        }
        // Nothing of a hostPath is on our disk but the binds of its subPaths.
        volumes.extend(binds.into_iter().map(|(volume, sub_paths)| Volume {
            pod: pod.clone(),
            volume,
            plugin: HOST_PATH.to_owned(),
            path: PathBuf::new(),
            fs_type: None,
            uncertain: false,
            sub_paths: sub_paths.into_iter().collect(),
        }));
    }
    Ok(volumes)
}

fn mounts_below(base: &Path) -> Result<HashMap<PathBuf, String>, VolumeError> {
    let mut info = MountInfo::new();
    let mounts = info.read().map_err(VolumeError::Mounts)?;
    Ok(mounts
        .filter(|m| m.mount_point.starts_with(base))
        .map(|m| (m.mount_point.into_owned(), m.fs_type.into_owned()))
        .collect())
}

/// Drops intents that the disk and the mounts contradict: of a pod without directory, or for a mount whose directory
/// is gone or that is complete. One whose volume is there without a mount stays: the next set-up or tear-down settles it.
/// A mount that is followed by giving the volume to its group is complete only when its verb says so.
pub fn drop_contradicted(node: &Node) {
    csi::list::drop_contradicted(node);
    if node.journal.all().is_empty() {
        return;
    }
    let below = node.settings.paths.pods();
    let mounts = csi::way::Mounts::when_asked(&below);
    let Ok(pods) = node.settings.pods_dir() else { return };
    let lock = |pod: &PodUid| node.try_lock_pod(pod);
    node.journal.retain(lock, |pod, intent| {
        if let Intent::Publish { spec, block } = intent {
            return csi::list::bears_out(node, pod, spec, *block);
        }
        let Ok(dir) = open::dir_beneath(pods.as_fd(), pod.as_str()) else { return false };
        match intent {
            Intent::TearDown | Intent::Publish { .. } => true,
            Intent::Mount { plugin, volume } => {
                let path = volume_path(node, pod, plugin, volume);
                let Ok(mounts) = mounts.get() else { return true };
                // What is mounted is not looked at: it may never answer.
                if mounts.at(&path) {
                    return [LOCAL, FC, ISCSI].contains(&plugin.as_str()) || FlexDriver::parse(plugin).is_ok();
                }
                let relative = path.strip_prefix(node.settings.paths.pod(pod)).unwrap_or(&path);
                // One that was mounted since the list was read is not entered either.
                let there = open::beneath_same_mount(dir.as_fd(), relative, rustix::fs::OFlags::PATH);
                !there.is_err_and(|error| error.is_not_found())
            }
        }
    });
}

fn volume_path(node: &Node, pod: &PodUid, plugin: &str, volume: &VolumeName) -> PathBuf {
    node.settings.paths.volume(pod, plugin, volume)
}
