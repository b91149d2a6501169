//! Local volumes: a folder is bound; a block device is prepared, mounted once a node and bound from there, or mapped.
//!
//! The volume's lock is held from the look at what is mounted to the bind into the pod, and by whoever unmounts what no pod has: so
//! a device that is about to be bound is not taken away.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bulkhead_ipc::common::disk_request::Act;
use bulkhead_ipc::helper::AskError;
use bulkhead_types::PodUid;
use tonic::{Code, Status};

use super::{VolumeSetUp, on_the_pool, to_its_end, unexpected};
use crate::disks::DisksError;
use crate::journal::{Intent, StagedKey};
use crate::node::{Busy, Node, PodLock, WalkLock};
use crate::validate::InvalidRequest;
use crate::volumes::disk::global::{self, Mounted};
use crate::volumes::disk::options::{FsType, Options};
use crate::volumes::disk::place::DiskPlace;
use crate::volumes::disk::{Device, DiskError, Found};
use crate::volumes::local::Local;
use crate::volumes::{LOCAL, VolumeError};
use crate::worker::{self, Done, Task};

/// What is wanted of a volume.
#[derive(Debug, Clone)]
pub struct Wanted {
    pub pod: PodUid,
    pub local: Local,
    /// Of a device; why there can be none.
    pub file_system: Result<FileSystem, InvalidRequest>,
    /// volumeMode Block.
    pub block: bool,
    /// The file system is to fill its device.
    pub grow: bool,
}

/// What a verb holds that sets a volume up: its pod, and what is held for giving it to a group.
pub type SetUpLocks = (PodLock, WalkLock);

impl Wanted {
    /// # Errors
    /// Another verb works on the pod or the volume.
    pub async fn lock(&self, node: &Node) -> Result<SetUpLocks, Busy> {
        let walk = node.lock_walk(&self.pod, self.local.plugin.name(), &self.local.volume).await?;
        Ok((node.lock_pod(&self.pod).await?, walk))
    }

    /// What gives it to its group, if it has one.
    pub(super) fn give(&self) -> Option<Task> {
        let (pod, local) = (self.pod.clone(), self.local.clone());
        local.group.filter(|_| !local.read_only).map(|group| Task::GiveLocal { pod, local, group })
    }
}

/// What a device is formatted with, and how it is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileSystem {
    pub fs_type: FsType,
    pub options: Options,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ready {
    pub path: PathBuf,
    /// The group that the volume has been given to for another pod, where this one asks for another.
    pub other_group: Option<u32>,
}

/// What is done once a node failed: kubelet-syncd says so in upstream's words.
pub(super) const DEVICE: &[u8] = b"MountDevice";
/// The same, of a device that holds something else than was asked for.
const MISMATCH: &[u8] = b"FilesystemMismatch";

fn of_device(status: &Status) -> Status {
    detailed(status, DEVICE)
}

pub(super) fn detailed(status: &Status, details: &'static [u8]) -> Status {
    Status::with_details(status.code(), status.message(), details.into())
}

pub(super) fn refused(error: &DisksError, details: &'static [u8]) -> Status {
    let code = match error {
        // Nobody ever will answer.
        DisksError::Ask(AskError::NoHelper) | DisksError::Failed(_) => Code::Aborted,
        DisksError::Ask(AskError::Io(error)) if error.kind() == std::io::ErrorKind::NotFound => Code::Aborted,
        DisksError::Ask(_) => Code::Unavailable,
    };
    detailed(&Status::new(code, bulkhead_types::chain(error)), details)
}

/// Of what is done once a node.
pub(super) fn key(place: &DiskPlace) -> StagedKey {
    StagedKey::of(&Path::new(place.plugin.name()).join(&place.name))
}

/// Sets it up, or does nothing if it is.
///
/// # Errors
/// The verb's own, or UNAVAILABLE where no worker or kubelet-disks answers.
pub async fn set_up(node: Arc<Node>, (lock, walk): SetUpLocks, wanted: Wanted) -> Result<Ready, Status> {
    to_its_end(async move {
        let (pod, volume) = (wanted.pod.clone(), wanted.local.volume.clone());
        let intent = Intent::Mount { plugin: LOCAL.to_owned(), volume: volume.clone() };
        let again = node.journal.of(&pod).contains(&intent);
        let is_needed = again || wanted.grow || wanted.block;
        let task = Task::LookLocal { pod: pod.clone(), local: wanted.local.clone(), is_needed };
        let found = match worker::call(&node.workers, &task, None, ()).await? {
            (Done::Path(path), _) => return Ok(Ready { path, other_group: None }),
            (Done::Found(found), _) => found,
            (other, _) => return Err(unexpected(&other)),
        };
        let place = DiskPlace::local(&volume);
        let what = format!("local volume {volume}");
        let mut local = wanted.local.clone();
        let _of_the_volume = match found {
            Found::Folder if wanted.block => {
                return Err(VolumeError::from(DiskError::NoDevice { path: local.path }).into());
            }
            Found::Folder => None,
            Found::Device(device) if wanted.block => {
                let held = node.lock_staged(key(&place), &what).await?;
                let task = Task::MapDisk { pod, place, volume, device };
                return match worker::call(&node.workers, &task, None, (lock, held)).await? {
                    (Done::Path(path), _) => Ok(Ready { path, other_group: None }),
                    (other, _) => Err(unexpected(&other)),
                };
            }
            Found::Device(device) => {
                let held = Arc::new(node.lock_staged(key(&place), &what).await?);
                mount_once(&node, wanted.file_system.clone()?, wanted.grow, &place, &device, &held).await?;
                local.path = place.point(&node.settings);
                Some(held)
            }
        };
        let task = |may_mount| Task::SetUpLocal { pod: pod.clone(), local: local.clone(), again, may_mount };
        let (look, mount) = (task(false), task(true));
        let give = wanted.give().map(|task| (task, walk));
        let set_up = VolumeSetUp { pod: pod.clone(), plugin: LOCAL, intent, look, mount, give };
        let path = super::set_up(node.clone(), lock, set_up).await?;
        let other_group = other_group(&node, &pod, &local).await?;
        Ok(Ready { path, other_group })
    })
    .await
}

async fn other_group(node: &Arc<Node>, pod: &PodUid, local: &Local) -> Result<Option<u32>, Status> {
    if local.group.is_none() || local.read_only {
        return Ok(None);
    }
    let task = Task::OtherGroup { pod: pod.clone(), local: local.clone() };
    match worker::call(&node.workers, &task, None, ()).await? {
        (Done::Group(group), _) => Ok(group),
        (other, _) => Err(unexpected(&other)),
    }
}

/// The device is mounted at its place, and fills it where that is wanted. The volume's lock is held.
pub(super) async fn mount_once(
    node: &Arc<Node>,
    file_system: FileSystem,
    grows: bool,
    place: &DiskPlace,
    device: &Device,
    held: &Arc<PodLock>,
) -> Result<(), Status> {
    let FileSystem { fs_type, options } = file_system;
    let (at, of) = (place.clone(), device.clone());
    let there = on_the_pool(node, move |node| global::mounted(&node.settings, &at, &of)).await;
    let there = there.map_err(|status| of_device(&status))?;
    let ask = |act| {
        let text = (device.path.to_string_lossy().into_owned(), device.major, device.minor);
        node.disks.ask(act, text, fs_type.to_wire(), options.read_only)
    };
    let place = place.clone();
    if let Some(there) = there {
        if grows && !options.read_only {
            grow(node, place, device, &there, ask(Act::Grow)).await?;
        }
        return Ok(());
    }
    let act = if grows { Act::PrepareAndGrow } else { Act::Prepare };
    let found = ask(act).await.map_err(|error| refused(&error, DEVICE))?;
    let of = device.clone();
    let read_only = options.read_only;
    let details = if found.is_empty() || found == fs_type.name() { DEVICE } else { MISMATCH };
    let task = Task::MountDevice { place: place.clone(), device: of, fs_type, options, found };
    // A worker that does not answer keeps the volume's lock.
    worker::call(&node.workers, &task, None, held.clone()).await.map_err(|status| detailed(&status, details))?;
    tracing::info!(%place, device = %device.path.display(), "MountDevice succeeded");
    if grows && !read_only && fs_type == FsType::Xfs {
        let task = Task::GrowXfs { place, device: device.clone() };
        worker::call(&node.workers, &task, None, ()).await.map_err(|status| of_device(&status))?;
    }
    Ok(())
}

async fn grow(
    node: &Arc<Node>,
    place: DiskPlace,
    device: &Device,
    there: &Mounted,
    ask: impl Future<Output = Result<String, DisksError>>,
) -> Result<(), Status> {
    match there.fs_type.as_str() {
        "xfs" => {
            let task = Task::GrowXfs { place, device: device.clone() };
            worker::call(&node.workers, &task, None, ()).await.map(|_| ())
        }
        "ext2" | "ext3" | "ext4" => ask.await.map(|_| ()).map_err(|error| refused(&error, DEVICE)),
        other => {
            let error = DiskError::NoGrowth { fs_type: other.to_owned(), device: device.path.clone() };
            Err(VolumeError::from(error).into())
        }
    }
}

/// Unmounts devices that no pod has any more. What is busy is tried again with the next pod that goes.
pub async fn end_unused(node: &Arc<Node>) {
    let unused = match on_the_pool(node, |node| global::unused(&node.settings)).await {
        Ok(unused) => unused,
        Err(status) => return tracing::warn!(error = status.message(), "failed to list mounted devices"),
    };
    for volume in unused {
        // Another verb works on it: it is about to be bound, or goes already.
        let Some(held) = node.try_lock_staged(&key(&DiskPlace::local(&volume))) else { continue };
        match worker::call(&node.workers, &Task::EndDevice { volume: volume.clone() }, None, held).await {
            Ok(_) => tracing::info!(%volume, "UnmountDevice succeeded"),
            Err(status) => tracing::warn!(%volume, error = status.message(), "UnmountDevice failed"),
        }
    }
}
