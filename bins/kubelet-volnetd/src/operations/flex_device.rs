//! What a FlexVolume driver that attaches does once a node (upstream `pkg/volume/flexvolume` attacher.go and detacher.go): it waits until
//! the volume is attached, and mounts it where pods' folders get it from. A controller attaches and detaches.
//!
//! The folder is there from before the mount until it is unmounted, so that after a death it is known what is still to be unmounted. The
//! volume's lock is held during each act.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use bulkhead_ipc::common::flex_request::Act;
use bulkhead_ipc::common::{FlexRequest, FlexVolume as Told};
use tonic::Status;

use super::attached::ATTACH;
use super::flex::{UNMOUNTS, question, refused, waits};
use super::local::{self, DEVICE, FileSystem, detailed, key};
use super::{csi, on_the_pool, to_its_end};
use crate::flexvolume::FlexError;
use crate::metrics::StorageOperation;
use crate::node::{Node, PodLock};
use crate::volumes::csi::references::{self, Once};
use crate::volumes::disk::options::{FsType, Options};
use crate::volumes::disk::{DiskError, Found, global, look};
use crate::volumes::flex::FlexVolume;
use crate::volumes::{FLEX, VolumeError};
use crate::worker::{self, Task};

/// Where it is to be mounted is not known: kubelet-syncd says so in upstream's words.
const PLACE: &[u8] = b"GetDeviceMountPath";

/// The lock of what is mounted once a node.
///
/// # Errors
/// Another verb works on it.
pub async fn lock(node: &Arc<Node>, flex: &FlexVolume) -> Result<Arc<PodLock>, Status> {
    let place = flex.place();
    Ok(Arc::new(node.lock_staged(key(&place), &place.to_string()).await?))
}

/// Without what is of one pod, and its secret.
pub fn of_all(told: &Told) -> Told {
    let Told { fs_type, read_only, options, .. } = told.clone();
    Told { fs_type, read_only, options, ..Told::default() }
}

/// Waits until it is attached. Answers the driver's word for its device, which may be empty.
///
/// # Errors
/// The driver's own.
pub async fn attached(node: &Arc<Node>, flex: &FlexVolume, told: &Told, device: &str) -> Result<String, Status> {
    let (options, device) = (Some(of_all(told)), device.to_owned());
    let wait = FlexRequest { options, device: device.clone(), ..question(Act::WaitForAttach, flex) };
    match node.flex.ask(&wait).await {
        Ok(said) => Ok(said.device),
        Err(FlexError::NotSupported) => Ok(device),
        Err(error) => Err(detailed(&refused(&error), ATTACH)),
    }
}

/// Mounts it, if it is not. `device`: what the Node says of it.
///
/// # Errors
/// The driver's own, or that of the mount where the driver leaves that to us.
pub async fn mount_once(
    node: &Arc<Node>,
    flex: &FlexVolume,
    told: &Told,
    device: &str,
    held: &Arc<PodLock>,
) -> Result<(), Status> {
    let place = flex.place();
    let device = attached(node, flex, told, device).await?;
    let at = place.clone();
    if on_the_pool(node, move |node| global::is_mounted(&node.settings, &at)).await? {
        return Ok(());
    }
    let options = Some(of_all(told));
    let name = FlexRequest { options: options.clone(), ..question(Act::GetVolumeName, flex) };
    match node.flex.ask(&name).await {
        Ok(_) | Err(FlexError::NotSupported) => {}
        Err(error) => {
            let status = refused(&error);
            let text = format!("GetVolumeName failed from getDeviceMountPath: {}", status.message());
            return Err(detailed(&Status::new(status.code(), text), PLACE));
        }
    }
    let at = place.clone();
    let made = on_the_pool(node, move |node| global::make(&node.settings, &at)).await;
    made.map_err(|status| detailed(&status, DEVICE))?;
    let mount = FlexRequest { options, device: device.clone(), ..question(Act::MountDevice, flex) };
    match node.flex.ask(&mount).await {
        Ok(_) => {}
        // As upstream: a driver that names no device may have nothing to mount.
        Err(FlexError::NotSupported) if device.is_empty() => return Ok(()),
        Err(FlexError::NotSupported) => mount_device(node, flex, told, device, held).await?,
        Err(error) => return Err(detailed(&refused(&error), DEVICE)),
    }
    tracing::info!(%place, "MountDevice succeeded");
    Ok(())
}

/// What is at the path that the driver has named is formatted where it is empty, and mounted (upstream `attacher-defaults.go`).
async fn mount_device(
    node: &Arc<Node>,
    flex: &FlexVolume,
    told: &Told,
    path: String,
    held: &Arc<PodLock>,
) -> Result<(), Status> {
    let options = Options::parse(&[], told.read_only)?;
    let file_system = FileSystem { fs_type: FsType::parse(&told.fs_type)?, options };
    if !Path::new(&path).is_absolute() {
        let why = format!("FlexVolume driver {} calls its device {path:?}, which is no absolute path", flex.driver);
        return Err(detailed(&Status::aborted(why), DEVICE));
    }
    let found = on_the_pool(node, move |_| match look::look(Path::new(&path))? {
        Found::Device(device) => Ok(device),
        Found::Folder => Err(VolumeError::from(DiskError::NoDevice { path: path.into() })),
    });
    let device = found.await.map_err(|status| detailed(&status, DEVICE))?;
    local::mount_once(node, file_system, false, &flex.place(), &device, held).await
}

/// The file system that is mounted once a node fills its device. Where none is mounted, there is nothing to do.
///
/// # Errors
/// It is of no kind that grows, or of no device that the kernel has a name for, or cannot.
pub async fn grow(node: &Arc<Node>, flex: &FlexVolume, told: &Told, held: &Arc<PodLock>) -> Result<(), Status> {
    let place = flex.place();
    let at = place.clone();
    let Some((there, device)) = on_the_pool(node, move |node| global::what_is_at(&node.settings, &at)).await? else {
        return Ok(());
    };
    // What it is its mount says: the volume need not name it, nor by a name that we know.
    let (Some(device), Ok(fs_type)) = (device, FsType::parse(&there.fs_type)) else {
        let error = DiskError::NoGrowth { fs_type: there.fs_type, device: there.device.into() };
        return Err(VolumeError::from(error).into());
    };
    let options = Options::parse(&[], told.read_only)?;
    local::mount_once(node, FileSystem { fs_type, options }, true, &place, &device, held).await
}

/// Has the driver unmount what no pod has any more. What is not mounted is unmounted.
///
/// # Errors
/// A pod has it, the driver's own, or ABORTED where it is mounted elsewhere, or takes long.
pub async fn end(node: Arc<Node>, flex: FlexVolume) -> Result<(), Status> {
    let of = flex.clone();
    let work = to_its_end(async move {
        let started = Instant::now();
        let result = unmounted(&node, &of).await;
        node.metrics.storage(FLEX, StorageOperation::Unmount, started.elapsed().as_secs_f64(), result.is_ok());
        result
    });
    waits(&flex, "unmountdevice", UNMOUNTS, work).await
}

async fn unmounted(node: &Arc<Node>, flex: &FlexVolume) -> Result<(), Status> {
    let place = flex.place();
    let held = lock(node, flex).await?;
    let at = place.clone();
    let look = on_the_pool(node, move |node| {
        let is_mounted = global::is_mounted(&node.settings, &at)?;
        global::ensure_free(&node.settings, &at)?;
        let once = Once::Flex(at);
        if is_mounted {
            references::elsewhere(&node.settings, &once).map(|found| Some((once, found)))
        } else {
            Ok(None)
        }
    });
    if let Some((once, found)) = look.await? {
        csi::refuse_if_mounted_elsewhere(node, once, &found).await?;
        match node.flex.ask(&question(Act::UnmountDevice, flex)).await {
            Ok(_) => {}
            Err(FlexError::NotSupported) => {
                let task = Task::UnmountDevice { place: place.clone() };
                worker::call(&node.workers, &task, None, held.clone()).await?;
            }
            Err(error) => return Err(refused(&error)),
        }
    }
    let at = place.clone();
    on_the_pool(node, move |node| global::remove(&node.settings, &at)).await?;
    drop(held);
    tracing::info!(%place, "UnmountDevice succeeded");
    Ok(())
}
