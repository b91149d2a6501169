//! Volumes of FlexVolume drivers: what kubelet-flexvolume is asked, and what is done with the pod's folder before and after.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bulkhead_ipc::common::flex_request::Act;
use bulkhead_ipc::common::{FlexCapabilities, FlexRequest, FlexVolume as Told};
use bulkhead_types::{FlexDriver, PodUid};
use tonic::{Code, Status};

use super::local::SetUpLocks;
use super::{flex_device, on_the_pool, to_its_end, unexpected};
use crate::flexvolume::FlexError;
use crate::journal::Intent;
use crate::metrics::StorageOperation;
use crate::node::{Locks, Node, PodLock};
use crate::volumes::empty_dir::Group;
use crate::volumes::flex::{self, FlexVolume};
use crate::volumes::teardown::Kept;
use crate::volumes::{FLEX, VolumeError};
use crate::worker::{self, Done, Task};

/// What is wanted of a volume.
#[derive(Debug, Clone)]
pub struct Wanted {
    pub pod: PodUid,
    pub flex: FlexVolume,
    /// What the driver is told.
    pub told: Told,
    /// Unless the driver does that.
    pub group: Option<Group>,
    /// What the Node says of its device: a controller has attached it.
    pub device: Option<String>,
    /// The driver is to have its file system grow.
    pub growth: Option<Growth>,
    /// What is done once a node was done before.
    pub is_mounted_once: bool,
}

/// Sizes in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Growth {
    pub new: i64,
    pub old: i64,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ready {
    pub path: PathBuf,
    pub relabel: bool,
}

pub(super) fn refused(error: &FlexError) -> Status {
    let code = match error {
        FlexError::Ask(_) => Code::Unavailable,
        FlexError::Off | FlexError::NotSupported | FlexError::Failed(_) | FlexError::Late(_) => Code::Aborted,
    };
    Status::new(code, bulkhead_types::chain(error))
}

/// About a volume, without what only some are asked with.
pub(super) fn question(act: Act, flex: &FlexVolume) -> FlexRequest {
    let (driver, volume) = (flex.driver.to_string(), flex.volume.to_string());
    FlexRequest { act: act.into(), driver, volume, ..FlexRequest::default() }
}

fn of_pod(act: Act, pod: &PodUid, flex: &FlexVolume) -> FlexRequest {
    FlexRequest { pod_uid: pod.to_string(), ..question(act, flex) }
}

/// What a driver says it can do.
///
/// # Errors
/// There is none that is run, or it fails.
pub async fn capabilities(node: &Arc<Node>, driver: &FlexDriver) -> Result<FlexCapabilities, Status> {
    let init = FlexRequest { act: Act::Init.into(), driver: driver.to_string(), ..FlexRequest::default() };
    let said = node.flex.ask(&init).await.map_err(|error| refused(&error))?;
    let can = said.capabilities.unwrap_or_default();
    if can.attach && driver.program() == FlexDriver::MOUNTS {
        // Its folder could not be told from that of a driver that is called as its vendor.
        let why = format!("FlexVolume driver {driver} attaches volumes: none of that name can");
        return Err(Status::aborted(why));
    }
    Ok(can)
}

/// As long as a caller waits for a driver that mounts. kubelet-syncd waits longer, and would not tell the pod why.
const MOUNTS: Duration = Duration::from_secs(90);
/// As long as a tear-down waits for a driver that unmounts, for the same reason.
pub(super) const UNMOUNTS: Duration = Duration::from_secs(40);

/// Waits so long for work that goes on in any case, and holds its locks until its end.
pub(super) async fn waits<T>(
    flex: &FlexVolume,
    act: &str,
    patience: Duration,
    work: impl Future<Output = Result<T, Status>>,
) -> Result<T, Status> {
    tokio::time::timeout(patience, work).await.unwrap_or_else(|_| {
        let (driver, volume, seconds) = (&flex.driver, &flex.volume, patience.as_secs());
        Err(Status::aborted(format!(
            "FlexVolume driver {driver} has not ended its {act} of volume {volume} for {seconds} s, and goes on"
        )))
    })
}

/// Sets it up, or does nothing if it is.
///
/// # Errors
/// The verb's own, ABORTED where the driver takes long, or UNAVAILABLE where no worker or kubelet-flexvolume answers.
pub async fn set_up(node: Arc<Node>, locks: SetUpLocks, wanted: Wanted) -> Result<Ready, Status> {
    let flex = wanted.flex.clone();
    let act = if wanted.growth.is_some() { "expandfs" } else { "mount" };
    let work = to_its_end(async move {
        let started = Instant::now();
        let result = mounted(&node, locks, wanted).await;
        node.metrics.storage(FLEX, StorageOperation::Mount, started.elapsed().as_secs_f64(), result.is_ok());
        result
    });
    waits(&flex, act, MOUNTS, work).await
}

/// Has a driver that attaches do what is done once a node, for a pod that does not have the volume yet.
///
/// # Errors
/// As [`set_up`]'s.
pub async fn set_up_device(node: Arc<Node>, wanted: Wanted) -> Result<(), Status> {
    let flex = wanted.flex.clone();
    let work = to_its_end(async move {
        let started = Instant::now();
        let result = mounted_once(&node, &wanted).await;
        if result.is_err() {
            // What succeeds is counted with the pod's part.
            node.metrics.storage(FLEX, StorageOperation::Mount, started.elapsed().as_secs_f64(), false);
        }
        result
    });
    waits(&flex, "mount", MOUNTS, work).await
}

async fn mounted_once(node: &Arc<Node>, wanted: &Wanted) -> Result<(), Status> {
    let Wanted { pod, flex, told, device, .. } = wanted;
    let Some(device) = device else { return Ok(()) };
    if is_there(node, pod, flex).await? {
        return Ok(());
    }
    able(node, wanted).await?;
    let held = flex_device::lock(node, flex).await?;
    flex_device::mount_once(node, flex, told, device, &held).await
}

/// Whether the pod, which has to be known, has the volume mounted.
async fn is_there(node: &Arc<Node>, pod: &PodUid, flex: &FlexVolume) -> Result<bool, Status> {
    let (of, what) = (pod.clone(), flex.clone());
    on_the_pool(node, move |node| flex::is_there(&node.settings, &of, &what)).await
}

/// What the driver can do that is to mount a volume.
async fn able(node: &Arc<Node>, wanted: &Wanted) -> Result<FlexCapabilities, Status> {
    let Wanted { flex, device, .. } = wanted;
    let can = capabilities(node, &flex.driver).await?;
    if can.attach != device.is_some() {
        // It is another one than kubelet-syncd was told of, which asks again for a pod that does not have the volume.
        let does = if can.attach { "attaches volumes, and this one is not attached" } else { "attaches no volumes" };
        return Err(Status::aborted(format!("FlexVolume driver {} {does}", flex.driver)));
    }
    Ok(can)
}

async fn mounted(node: &Arc<Node>, (lock, walk): SetUpLocks, wanted: Wanted) -> Result<Ready, Status> {
    let (lock, walk) = (Arc::new(lock), Arc::new(walk));
    let Wanted { pod, flex, group, growth, device, .. } = &wanted;
    let was_mounted = is_there(node, pod, flex).await?;
    if growth.is_some() && !was_mounted {
        // Who asks for growth tells no secret, without which nothing is mounted.
        return Err(VolumeError::from(flex::FlexError::NotMounted { path: flex.path(&node.settings, pod) }).into());
    }
    let can = if was_mounted { capabilities(node, &flex.driver).await? } else { able(node, &wanted).await? };
    // Until it is the pod's as well, nobody unmounts what is mounted once a node. A lock that is not had leaves nothing to be done again.
    let mut held = None;
    if device.is_some() && (!was_mounted || growth.is_some()) {
        held = Some(flex_device::lock(node, flex).await?);
    }
    let intent = Intent::Mount { plugin: flex.driver.to_string(), volume: flex.volume.clone() };
    let is_begun = !was_mounted || node.journal.of(pod).contains(&intent);
    let mut is_mounted = was_mounted;
    if !was_mounted {
        let (of, what) = (pod.clone(), intent.clone());
        on_the_pool(node, move |node| node.journal.begin(&of, what).map_err(VolumeError::from)).await?;
        let task = Task::PrepareFlex { pod: pod.clone(), flex: flex.clone() };
        is_mounted = match worker::call(&node.workers, &task, None, lock.clone()).await? {
            (Done::Bound(there), _) => there.is_some(),
            (other, _) => return Err(unexpected(&other)),
        };
    }
    if !is_mounted && let Err((status, leaves_nothing)) = mount(node, &lock, &wanted, held.as_ref()).await {
        if leaves_nothing {
            // As upstream: what could not be mounted leaves no folder.
            let task = Task::EndFlex { pod: pod.clone(), flex: flex.clone(), may_unmount: false };
            match worker::call(&node.workers, &task, None, lock.clone()).await {
                Ok(_) => node.journal.end(pod, &intent),
                Err(status) => {
                    tracing::warn!(%pod, volume = %flex.volume, error = status.message(), "failed to remove the folder of a FlexVolume")
                }
            }
        }
        return Err(status);
    }
    if is_begun {
        if let Some(group) = group.filter(|_| can.fs_group) {
            drop(lock);
            let task = Task::GiveFlex { pod: pod.clone(), flex: flex.clone(), group };
            worker::call(&node.workers, &task, None, walk.clone()).await?;
        }
        node.journal.end(pod, &intent);
    }
    if let Some(growth) = growth {
        grow(node, &wanted, *growth, held.as_ref()).await?;
    }
    if !is_mounted {
        tracing::info!(%pod, volume = %flex.volume, driver = %flex.driver, "a FlexVolume driver has mounted a volume");
    }
    drop(walk);
    Ok(Ready { path: flex.path(&node.settings, pod), relabel: can.selinux_relabel })
}

/// The driver mounts it, or leaves that to a bind of what it has mounted once a node. `held`: the lock of that, of a driver that attaches.
///
/// # Errors
/// With whether the folder is as it was.
async fn mount(
    node: &Arc<Node>,
    lock: &Arc<PodLock>,
    wanted: &Wanted,
    held: Option<&Arc<PodLock>>,
) -> Result<(), (Status, bool)> {
    let Wanted { pod, flex, told, device, is_mounted_once, .. } = wanted;
    if let (Some(held), Some(device), false) = (held, device, is_mounted_once) {
        flex_device::mount_once(node, flex, told, device, held).await.map_err(|status| (status, true))?;
    }
    let question = FlexRequest { options: Some(told.clone()), ..of_pod(Act::Mount, pod, flex) };
    match node.flex.ask(&question).await {
        Ok(_) => Ok(()),
        Err(FlexError::NotSupported) if held.is_some() => {
            let task = Task::BindFlex { pod: pod.clone(), flex: flex.clone() };
            let bound = worker::call(&node.workers, &task, None, lock.clone()).await;
            bound.map(|_| ()).map_err(|status| (status, true))
        }
        Err(error) => {
            let leaves_nothing = matches!(error, FlexError::Off | FlexError::NotSupported | FlexError::Failed(_));
            Err((refused(&error), leaves_nothing))
        }
    }
}

/// The driver has the file system grow, or leaves that to kubelet-disks, where a device is mounted once a node (upstream `expander.go`).
async fn grow(
    node: &Arc<Node>,
    wanted: &Wanted,
    Growth { new, old }: Growth,
    held: Option<&Arc<PodLock>>,
) -> Result<(), Status> {
    let Wanted { pod, flex, told, device, .. } = wanted;
    let device = match device {
        Some(device) => flex_device::attached(node, flex, told, device).await?,
        None => String::new(),
    };
    let (new_size, old_size) = (new, old);
    let about = of_pod(Act::ExpandFs, pod, flex);
    let question = FlexRequest { options: Some(flex_device::of_all(told)), device, new_size, old_size, ..about };
    match (node.flex.ask(&question).await, held) {
        (Ok(_), _) => {}
        (Err(FlexError::NotSupported), Some(held)) => flex_device::grow(node, flex, told, held).await?,
        // No device is known of: there is nothing to do.
        (Err(FlexError::NotSupported), None) => {}
        (Err(error), _) => return Err(refused(&error)),
    }
    tracing::info!(%pod, volume = %flex.volume, driver = %flex.driver, new, "a FlexVolume driver's volume has grown");
    Ok(())
}

/// Has drivers unmount what a pod has of them; answers what is left.
pub async fn take_back(node: &Arc<Node>, pod: &PodUid, volumes: Vec<FlexVolume>, locks: &Arc<Locks>) -> Vec<Kept> {
    let mut left = Vec::new();
    for flex in volumes {
        let (on, of, held, volume) = (node.clone(), pod.clone(), locks.clone(), flex.clone());
        let work = to_its_end(async move {
            let started = Instant::now();
            let result = unmounted(&on, &of, &held, &volume).await;
            on.metrics.storage(FLEX, StorageOperation::Unmount, started.elapsed().as_secs_f64(), result.is_ok());
            result
        });
        if let Err(status) = waits(&flex, "unmount", UNMOUNTS, work).await {
            let what = format!("volume {} of FlexVolume driver {}: {}", flex.volume, flex.driver, status.message());
            left.push(Kept { spec: flex.volume.to_string(), what });
        }
    }
    left
}

async fn unmounted(node: &Arc<Node>, pod: &PodUid, lock: &Arc<Locks>, flex: &FlexVolume) -> Result<(), Status> {
    // Binds of its subPaths go first (upstream CleanSubPaths).
    let task = Task::UnbindFlex { pod: pod.clone(), volumes: vec![flex.clone()] };
    worker::call(&node.workers, &task, None, lock.clone()).await?;
    let end = |may_unmount| Task::EndFlex { pod: pod.clone(), flex: flex.clone(), may_unmount };
    match node.flex.ask(&of_pod(Act::Unmount, pod, flex)).await {
        Ok(_) => worker::call(&node.workers, &end(false), None, lock.clone()).await?,
        Err(FlexError::NotSupported) => worker::call(&node.workers, &end(true), None, lock.clone()).await?,
        // An empty folder on which nothing is mounted is no driver's any more, or not yet: most drivers cannot unmount that.
        Err(error @ (FlexError::Off | FlexError::Failed(_))) => {
            let ended = worker::call(&node.workers, &end(false), None, lock.clone()).await;
            ended.map_err(|_| refused(&error))?
        }
        Err(error) => return Err(refused(&error)),
    };
    Ok(())
}
