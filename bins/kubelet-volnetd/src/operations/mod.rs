//! Volumes made and taken away by workers, with what stays in this process: the journal's intents, the
//! locks of pods and of their volumes, metrics.
//!
//! An operation goes to its end once it has begun, whether its caller waits or not: a mount that was made has its intent
//! taken out of the journal.

pub mod attached;
pub mod csi;
pub mod flex;
pub mod flex_device;
pub mod local;
pub mod prune;

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use bulkhead_sys::open;
use bulkhead_types::PodUid;
use rustix::fd::AsFd as _;
use tonic::Status;

use crate::journal::Intent;
use crate::metrics::StorageOperation;
use crate::node::{Locks, Node, PodLock, WalkLock};
use crate::volumes::csi::list;
use crate::volumes::teardown::{Kept, Mounted, Outcome, Scope};
use crate::volumes::{self, SetUp, VolumeError};
use crate::worker::{self, Done, Task};

/// A worker's answer to another question: a bug.
pub fn unexpected(done: &Done) -> Status {
    Status::internal(format!("a worker answered {done:?}"))
}

/// Goes on without the caller.
async fn to_its_end<T: Send + 'static>(
    operation: impl Future<Output = Result<T, Status>> + Send + 'static,
) -> Result<T, Status> {
    match tokio::spawn(operation).await {
        Ok(result) => result,
        Err(error) => Err(Status::internal(format!("the verb ended unexpectedly: {error}"))),
    }
}

/// Blocking work on the disk of this process's own files.
async fn on_the_pool<T: Send + 'static, E: Send + 'static>(
    node: &Arc<Node>,
    work: impl FnOnce(&Node) -> Result<T, E> + Send + 'static,
) -> Result<T, Status>
where
    Status: From<E>,
{
    let node = node.clone();
    match tokio::task::spawn_blocking(move || work(&node)).await {
        Ok(result) => Ok(result?),
        Err(error) => Err(Status::internal(format!("the verb ended unexpectedly: {error}"))),
    }
}

/// How a volume is set up: what the worker does without and with a mount, and what the journal has of the mount until all is done.
#[derive(Debug)]
pub struct VolumeSetUp {
    pub pod: PodUid,
    pub plugin: &'static str,
    pub intent: Intent,
    pub look: Task,
    pub mount: Task,
    /// Gives what is mounted to its group, with what is held for that alone.
    pub give: Option<(Task, WalkLock)>,
}

/// Sets a volume up and answers its path. A mount is in the journal before it is made. The pod's lock is held until it is made, and not
/// while it is given to a group.
///
/// # Errors
/// The verb's own, or UNAVAILABLE where no worker answers.
pub async fn set_up(node: Arc<Node>, lock: PodLock, volume: VolumeSetUp) -> Result<PathBuf, Status> {
    let VolumeSetUp { pod, plugin, intent, look, mount, give } = volume;
    measured(node.clone(), plugin, async move {
        let lock = Arc::new(lock);
        match worker::call(&node.workers, &look, None, lock.clone()).await? {
            (Done::Volume(SetUp::Done(path)), _) => return Ok(path),
            (Done::Volume(SetUp::NeedsMount), _) => {}
            (other, _) => return Err(unexpected(&other)),
        }
        let (of, what) = (pod.clone(), intent.clone());
        on_the_pool(&node, move |node| node.journal.begin(&of, what).map_err(VolumeError::from)).await?;
        let path = match worker::call(&node.workers, &mount, None, lock.clone()).await? {
            (Done::Volume(SetUp::Done(path)), _) => path,
            (other, _) => return Err(unexpected(&other)),
        };
        let Some((give, held)) = give else {
            node.journal.end(&pod, &intent);
            return Ok(path);
        };
        drop(lock);
        let held = Arc::new(held);
        worker::call(&node.workers, &give, None, held.clone()).await?;
        node.journal.end(&pod, &intent);
        drop(held);
        Ok(path)
    })
    .await
}

/// The same of a volume whose marker and mount tell at any moment how far it has come: nothing is in the journal of it.
///
/// # Errors
/// The verb's own, or UNAVAILABLE where no worker answers.
pub async fn set_up_marked(
    node: Arc<Node>,
    lock: PodLock,
    plugin: &'static str,
    task: Task,
) -> Result<PathBuf, Status> {
    measured(node.clone(), plugin, async move {
        match worker::call(&node.workers, &task, None, lock).await? {
            (Done::Path(path), _) => Ok(path),
            (other, _) => Err(unexpected(&other)),
        }
    })
    .await
}

/// Goes on without the caller, and counts as an operation of this kind of volume.
async fn measured(
    node: Arc<Node>,
    plugin: &'static str,
    work: impl Future<Output = Result<PathBuf, Status>> + Send + 'static,
) -> Result<PathBuf, Status> {
    to_its_end(async move {
        let started = Instant::now();
        let result = work.await;
        node.metrics.storage(plugin, StorageOperation::Mount, started.elapsed().as_secs_f64(), result.is_ok());
        result
    })
    .await
}

/// Tears a pod down as far as possible. A pod that is not there is down.
///
/// # Errors
/// The verb's own, or UNAVAILABLE where no worker answers.
pub async fn tear_down(node: Arc<Node>, locks: Locks, pod: PodUid, scope: Scope) -> Result<Outcome, Status> {
    to_its_end(async move {
        let locks = Arc::new(locks);
        let of = pod.clone();
        let (kept, there, of_flex, mounted) = on_the_pool(&node, move |node| {
            let kept = list::published(node, Some(&of))?;
            // The directory is ours; what is mounted in it is not looked at.
            let error = |source| VolumeError::PodDir { pod: of.clone(), source };
            let pods = node.settings.pods_dir().map_err(error)?;
            match open::dir_beneath(pods.as_fd(), of.as_str()) {
                Ok(_) => {}
                Err(err) if err.is_not_found() => return Ok((kept, false, Vec::new(), None)),
                Err(err) => return Err(error(err)),
            }
            let of_flex = volumes::flex::of_pod(&node.settings, &of)?;
            // What drivers unmount now is not there any more when the pod is torn down.
            let mounted = if of_flex.is_empty() { Mounted::look(&node.settings, &of)? } else { None };
            Ok((kept, true, of_flex, mounted))
        })
        .await?;
        if !there {
            // What is published of a block volume lies elsewhere.
            let left: Vec<String> = kept.iter().map(list::PublishedVolume::what).collect();
            if left.is_empty() {
                node.journal.end_all(&pod);
            }
            return Ok(Outcome { left, ..Outcome::default() });
        }
        let mut kept: Vec<Kept> =
            kept.into_iter().map(|volume| Kept { what: volume.what(), spec: volume.spec }).collect();
        kept.extend(flex::take_back(&node, &pod, of_flex, &locks).await);
        let task = Task::TearDownPod { pod: pod.clone(), scope, kept, mounted };
        let outcome = match worker::call(&node.workers, &task, None, locks).await? {
            (Done::TornDown(outcome), _) => outcome,
            (other, _) => return Err(unexpected(&other)),
        };
        for volume in &outcome.volumes {
            node.metrics.storage(&volume.plugin, StorageOperation::Unmount, volume.seconds, volume.worked);
        }
        if outcome.left.is_empty() {
            node.journal.end_all(&pod);
        }
        local::end_unused(&node).await;
        Ok(outcome)
    })
    .await
}
