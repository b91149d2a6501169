//! Volumes of FlexVolume drivers: what kubelet-flexvolume is asked, and what is done with the folder before and after.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bulkhead_ipc::common::flex_request::Act;
use bulkhead_ipc::common::{FlexRequest, FlexVolume as Told};
use bulkhead_types::PodUid;
use tonic::{Code, Status};

use super::{on_the_pool, to_its_end, unexpected};
use crate::flexvolume::FlexError;
use crate::journal::Intent;
use crate::metrics::StorageOperation;
use crate::node::{Node, PodLock};
use crate::volumes::VolumeError;
use crate::volumes::empty_dir::Group;
use crate::volumes::flex::{self, FLEX, FlexVolume};
use crate::volumes::teardown::Kept;
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
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ready {
    pub path: PathBuf,
    pub relabel: bool,
}

fn refused(error: &FlexError) -> Status {
    let code = match error {
        FlexError::Ask(_) => Code::Unavailable,
        FlexError::Off | FlexError::NotSupported | FlexError::Failed(_) | FlexError::Late(_) => Code::Aborted,
    };
    Status::new(code, bulkhead_types::chain(error))
}

fn question(act: Act, pod: &PodUid, flex: &FlexVolume, options: Option<Told>) -> FlexRequest {
    FlexRequest {
        act: act.into(),
        driver: flex.driver.to_string(),
        pod_uid: pod.to_string(),
        volume: flex.volume.to_string(),
        options,
    }
}

/// As long as a caller waits for a driver that mounts. kubelet-syncd waits longer, and would not tell the pod why.
const MOUNTS: Duration = Duration::from_secs(90);
/// As long as a tear-down waits for a driver that unmounts, for the same reason.
const UNMOUNTS: Duration = Duration::from_secs(40);

/// Waits so long for work that goes on in any case, and holds the pod's lock until its end.
async fn waits<T>(
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
pub async fn set_up(node: Arc<Node>, lock: PodLock, wanted: Wanted) -> Result<Ready, Status> {
    let flex = wanted.flex.clone();
    let work = to_its_end(async move {
        let started = Instant::now();
        let result = mounted(&node, &Arc::new(lock), wanted).await;
        node.metrics.storage(FLEX, StorageOperation::Mount, started.elapsed().as_secs_f64(), result.is_ok());
        result
    });
    waits(&flex, "mount", MOUNTS, work).await
}

async fn mounted(node: &Arc<Node>, lock: &Arc<PodLock>, wanted: Wanted) -> Result<Ready, Status> {
    let Wanted { pod, flex, told, group } = wanted;
    let init = question(Act::Init, &pod, &flex, None);
    let can = node.flex.ask(&init).await.map_err(|error| refused(&error))?;
    if can.attach {
        let driver = &flex.driver;
        return Err(Status::aborted(format!(
            "FlexVolume driver {driver} attaches volumes (its answer to init does not say \"attach\": false), which this node does not do"
        )));
    }
    let intent = Intent::Mount { plugin: flex.driver.to_string(), volume: flex.volume.clone() };
    let again = node.journal.of(&pod).contains(&intent);
    let (of, what) = (pod.clone(), intent.clone());
    on_the_pool(node, move |node| node.journal.begin(&of, what).map_err(VolumeError::from)).await?;
    let task = Task::PrepareFlex { pod: pod.clone(), flex: flex.clone() };
    let is_mounted = match worker::call(&node.workers, &task, None, lock.clone()).await? {
        (Done::Bound(there), _) => there.is_some(),
        (other, _) => return Err(unexpected(&other)),
    };
    let ready = Ready { path: flex.path(&node.settings, &pod), relabel: can.selinux_relabel };
    if is_mounted && !again {
        node.journal.end(&pod, &intent);
        return Ok(ready);
    }
    if !is_mounted && let Err(error) = node.flex.ask(&question(Act::Mount, &pod, &flex, Some(told))).await {
        if matches!(error, FlexError::Off | FlexError::NotSupported | FlexError::Failed(_)) {
            // As upstream: what could not be mounted leaves no folder.
            let task = Task::EndFlex { pod: pod.clone(), flex: flex.clone(), may_unmount: false };
            match worker::call(&node.workers, &task, None, lock.clone()).await {
                Ok(_) => node.journal.end(&pod, &intent),
                Err(status) => {
                    tracing::warn!(%pod, volume = %flex.volume, error = status.message(), "its folder stays")
                }
            }
        }
        return Err(refused(&error));
    }
    if let Some(group) = group.filter(|_| can.fs_group) {
        let task = Task::GiveFlex { pod: pod.clone(), flex: flex.clone(), group };
        worker::call(&node.workers, &task, None, lock.clone()).await?;
    }
    node.journal.end(&pod, &intent);
    tracing::info!(%pod, volume = %flex.volume, driver = %flex.driver, "a FlexVolume driver has mounted a volume");
    Ok(ready)
}

/// Has drivers unmount what a pod has of them; answers what is left.
///
/// # Errors
/// What there is cannot be listed.
pub async fn take_back(node: &Arc<Node>, pod: &PodUid, lock: &Arc<PodLock>) -> Result<Vec<Kept>, Status> {
    let of = pod.clone();
    let volumes = on_the_pool(node, move |node| flex::of_pod(&node.settings, &of)).await?;
    if volumes.is_empty() {
        return Ok(Vec::new());
    }
    let mut left = Vec::new();
    for flex in volumes {
        let (on, of, held, volume) = (node.clone(), pod.clone(), lock.clone(), flex.clone());
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
    Ok(left)
}

async fn unmounted(node: &Arc<Node>, pod: &PodUid, lock: &Arc<PodLock>, flex: &FlexVolume) -> Result<(), Status> {
    // Binds of its subPaths go first (upstream CleanSubPaths).
    let task = Task::UnbindFlex { pod: pod.clone(), volumes: vec![flex.clone()] };
    worker::call(&node.workers, &task, None, lock.clone()).await?;
    let end = |may_unmount| Task::EndFlex { pod: pod.clone(), flex: flex.clone(), may_unmount };
    match node.flex.ask(&question(Act::Unmount, pod, flex, None)).await {
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
