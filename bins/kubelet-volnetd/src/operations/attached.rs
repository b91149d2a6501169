//! Disks behind Fibre Channel and of iSCSI targets: attached by kubelet-disks, then made ready, mounted once a node and bound, or
//! mapped, as devices of local volumes are; and detached once no pod has them.
//!
//! A disk's folder is there from its mount until it is detached, so that after a death it is known what is still to be detached.

use std::sync::Arc;

use bulkhead_ipc::common::IscsiChap;
use tonic::Status;

use super::local::{DEVICE, Ready, SetUpLocks, Wanted, detailed, key, mount_once, refused};
use super::{VolumeSetUp, on_the_pool, to_its_end, unexpected};
use crate::disks::Named;
use crate::journal::Intent;
use crate::node::Node;
use crate::validate::{self, InvalidRequest};
use crate::volumes::VolumeError;
use crate::volumes::disk::place::{DiskPlace, Plugin};
use crate::volumes::disk::{Device, DiskError, Found, fc, global, iscsi, look, map};
use crate::worker::{self, Done, Task};

/// The disk is not there: kubelet-syncd says so in upstream's words.
pub(super) const ATTACH: &[u8] = b"WaitForAttach";

/// One that is attached.
#[derive(Debug, Clone)]
pub enum Disk {
    Fc(fc::Disk),
    Iscsi(iscsi::Disk, Option<IscsiChap>),
}

impl Disk {
    pub fn place(&self) -> DiskPlace {
        match self {
            Disk::Fc(disk) => DiskPlace::fc(disk),
            Disk::Iscsi(disk, _) => DiskPlace::iscsi(disk),
        }
    }

    /// # Errors
    /// Its folder's name is none, or it is not attached by us.
    pub fn of_place(place: &DiskPlace) -> Result<Self, InvalidRequest> {
        match place.plugin {
            Plugin::Iscsi => iscsi::Disk::of_folder(&place.name).map(|disk| Disk::Iscsi(disk, None)),
            Plugin::Fc => fc::Disk::of_folder(&place.name).map(Disk::Fc),
            Plugin::Local | Plugin::Flex => {
                Err(validate::bad("plugin", place.plugin.name(), "kubernetes.io/fc or kubernetes.io/iscsi"))
            }
        }
    }

    fn named(self) -> Named {
        match self {
            Disk::Fc(disk) => Named::Fc(disk.to_wire()),
            Disk::Iscsi(disk, chap) => Named::Iscsi(bulkhead_ipc::common::IscsiDisk { chap, ..disk.to_wire() }),
        }
    }
}

/// Sets it up, or does nothing if it is.
///
/// # Errors
/// The verb's own, or UNAVAILABLE where no worker or kubelet-disks answers.
pub async fn set_up(node: Arc<Node>, (lock, walk): SetUpLocks, wanted: Wanted, disk: Disk) -> Result<Ready, Status> {
    to_its_end(async move {
        let (pod, volume) = (wanted.pod.clone(), wanted.local.volume.clone());
        let place = disk.place();
        let plugin = place.plugin.name();
        let intent = Intent::Mount { plugin: plugin.to_owned(), volume: volume.clone() };
        let again = node.journal.of(&pod).contains(&intent);
        let task = Task::LookBound { pod: pod.clone(), local: wanted.local.clone() };
        match worker::call(&node.workers, &task, None, ()).await? {
            (Done::Bound(Some(path)), _) if !again && !wanted.block => return Ok(Ready { path, other_group: None }),
            (Done::Bound(_), _) => {}
            (other, _) => return Err(unexpected(&other)),
        }
        let held = Arc::new(node.lock_staged(key(&place), &place.to_string()).await?);
        let device = device(&node, &place, &wanted, disk).await?;
        if wanted.block {
            let task = Task::MapDisk { pod, place, volume, device };
            return match worker::call(&node.workers, &task, None, (lock, held)).await? {
                (Done::Path(path), _) => Ok(Ready { path, other_group: None }),
                (other, _) => Err(unexpected(&other)),
            };
        }
        mount_once(&node, wanted.file_system.clone()?, wanted.grow, &place, &device, &held).await?;
        let give = wanted.give().map(|task| (task, walk));
        let mut local = wanted.local;
        local.path = place.point(&node.settings);
        let task = |may_mount| Task::SetUpLocal { pod: pod.clone(), local: local.clone(), again, may_mount };
        let (look, mount) = (task(false), task(true));
        let set_up = VolumeSetUp { pod: pod.clone(), plugin, intent, look, mount, give };
        let path = super::set_up(node.clone(), lock, set_up).await?;
        drop(held);
        Ok(Ready { path, other_group: None })
    })
    .await
}

/// The one that is mounted already; else the disk is attached, and what is needed to detach it is written down.
async fn device(node: &Arc<Node>, place: &DiskPlace, wanted: &Wanted, disk: Disk) -> Result<Device, Status> {
    let at = place.clone();
    let there = on_the_pool(node, move |node| global::device_at(&node.settings, &at)).await;
    if let Some(device) = there.map_err(|status| detailed(&status, DEVICE))? {
        return Ok(device);
    }
    let written = match &disk {
        Disk::Fc(_) => None,
        Disk::Iscsi(disk, _) => Some(disk.written(wanted.local.volume.as_str())),
    };
    let (path, major, minor) = node.disks.attach(disk.named()).await.map_err(|error| refused(&error, ATTACH))?;
    if let Some(text) = written {
        let folder = if wanted.block { place.map() } else { place.mount() };
        on_the_pool(node, move |node| global::write_down(&node.settings, &folder, &text)).await?;
    }
    let found = on_the_pool(node, move |_| look::look(path.as_ref()).map_err(VolumeError::from)).await?;
    match found {
        Found::Device(device) if (device.major, device.minor) == (major, minor) => Ok(device),
        _ => Err(detailed(&Status::aborted(format!("device {major}:{minor} does not exist")), ATTACH)),
    }
}

/// Unmounts and detaches a disk that no pod has. One that is not there is detached.
///
/// # Errors
/// A pod has it, something holds it, or kubelet-disks does not answer.
pub async fn end(node: Arc<Node>, place: DiskPlace, block: bool) -> Result<(), Status> {
    to_its_end(async move {
        let mut disk = Disk::of_place(&place)?;
        let held = Arc::new(node.lock_staged(key(&place), &place.to_string()).await?);
        let mut device = None;
        let folder = if block {
            let at = place.clone();
            let pods = on_the_pool(&node, move |node| map::pods(&node.settings, &at)).await?;
            if let Some(pod) = pods.into_iter().next() {
                return Err(VolumeError::from(DiskError::InUse { place, pod }).into());
            }
            place.map()
        } else {
            let at = place.clone();
            device = on_the_pool(&node, move |node| global::device_at(&node.settings, &at)).await?;
            let task = Task::UnmountDevice { place: place.clone() };
            worker::call(&node.workers, &task, None, held.clone()).await?;
            place.mount()
        };
        let device = device.map(|found| (found.path.to_string_lossy().into_owned(), found.major, found.minor));
        let mut log_out = false;
        if let Disk::Iscsi(target, _) = disk {
            let (at, begins, itself) = (folder.clone(), target.begins(), (place.name.clone(), block));
            let (text, others) = on_the_pool(&node, move |node| {
                let text = global::written_down(&node.settings, &at)?;
                let (mounts, maps) = map::folders(&node.settings, Plugin::Iscsi)?;
                let all = mounts.into_iter().map(|name| (name, false)).chain(maps.into_iter().map(|name| (name, true)));
                let of_target =
                    |(name, _): &(String, bool)| name.split('/').nth(1).is_some_and(|n| n.starts_with(&begins));
                Ok::<_, VolumeError>((text, all.filter(|one| *one != itself).any(|one| of_target(&one))))
            })
            .await?;
            log_out = !others;
            disk = Disk::Iscsi(target.with_written(&text), None);
        }
        let detached = node.disks.detach(device, disk.named(), log_out).await;
        detached.map_err(|error| {
            let kind = place.plugin.name().rsplit('/').next().unwrap_or_default();
            let status = refused(&error, b"");
            Status::new(status.code(), format!("{kind}: failed to detach disk: {place}: {}", status.message()))
        })?;
        on_the_pool(&node, move |node| global::forget(&node.settings, &folder)).await?;
        tracing::info!(%place, "UnmountDevice succeeded");
        Ok(())
    })
    .await
}

/// A disk that was attached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attached {
    pub place: DiskPlace,
    /// It is a block volume's.
    pub block: bool,
    /// It is mounted, or mapped into a pod.
    pub in_use: bool,
}

/// All of them, as their folders show them.
///
/// # Errors
/// A folder cannot be listed.
pub async fn list(node: &Arc<Node>) -> Result<Vec<Attached>, Status> {
    on_the_pool(node, |node| {
        let settings = &node.settings;
        let mut all = Vec::new();
        for plugin in Plugin::ATTACHED {
            let (mounts, maps) = map::folders(settings, plugin)?;
            for name in mounts {
                let place = DiskPlace { plugin, name };
                let in_use = global::is_mounted(settings, &place)?;
                all.push(Attached { place, block: false, in_use });
            }
            for name in maps {
                let place = DiskPlace { plugin, name };
                let in_use = !map::pods(settings, &place)?.is_empty();
                all.push(Attached { place, block: true, in_use });
            }
        }
        Ok::<_, VolumeError>(all)
    })
    .await
}
