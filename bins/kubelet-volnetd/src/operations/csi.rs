//! Verbs around the calls that kubelet-syncd makes of CSI drivers: an intent is in the journal before a driver is asked, and goes
//! when it is known what came of it.
//!
//! | | intent before | intent after |
//! |---|---|---|
//! | Prepare | written, unless all of it was there and certain | stays; goes where the Prepare failed and had written it |
//! | Commit | | goes |
//! | Begin of the end | written | stays |
//! | End | written | goes |

use std::path::PathBuf;
use std::sync::Arc;

use bulkhead_types::VolumeName;
use tonic::Status;

use super::{on_the_pool, to_its_end, unexpected};
use crate::journal::{Intent, StagedKey, StagingIntent};
use crate::node::{Node, PodLock};
use crate::volumes::VolumeError;
use crate::volumes::csi::data::VolData;
use crate::volumes::csi::paths::{Nameless, Published, Staged};
use crate::volumes::csi::publish::Giving;
use crate::volumes::csi::{CsiError, Prepared};
use crate::worker::{self, Done, Task};

/// Where an intent is.
#[derive(Debug, Clone)]
enum Noted {
    Staged(StagedKey, StagingIntent),
    Published(Published),
}

impl Noted {
    fn of_staged(staged: &Staged) -> Self {
        Self::of_folder(staged.data_folder())
    }

    fn of_folder(folder: PathBuf) -> Self {
        Noted::Staged(StagedKey::of(&folder), StagingIntent::Stage { folder })
    }

    fn intent(published: &Published) -> Intent {
        Intent::Publish { spec: published.spec.clone(), block: published.block }
    }

    fn is_there(&self, node: &Node) -> bool {
        match self {
            Noted::Staged(key, intent) => node.staging.of(key).contains(intent),
            Noted::Published(published) => node.journal.of(&published.pod).contains(&Self::intent(published)),
        }
    }

    /// On return it is on the disk.
    async fn begin(&self, node: &Arc<Node>) -> Result<(), Status> {
        let noted = self.clone();
        on_the_pool(node, move |node| {
            match noted {
                Noted::Staged(key, intent) => node.staging.begin(&key, intent),
                Noted::Published(published) => node.journal.begin(&published.pod, Self::intent(&published)),
            }
            .map_err(VolumeError::from)
        })
        .await
    }

    fn end(&self, node: &Node) {
        match self {
            Noted::Staged(key, intent) => node.staging.end(key, intent),
            Noted::Published(published) => node.journal.end(&published.pod, &Self::intent(published)),
        }
    }
}

/// The locks that a verb holds, in this order: the pod's, the staged volume's.
pub type Locks = Vec<PodLock>;

/// Locks what is staged.
///
/// # Errors
/// Another verb works on it.
pub async fn lock_staged(node: &Arc<Node>, staged: &Staged) -> Result<Locks, Status> {
    Ok(vec![node.lock_staged(StagedKey::of(&staged.data_folder()), &staged.what()).await?])
}

/// The same of what nobody knows the volume of.
///
/// # Errors
/// Another verb works on it.
pub async fn lock_nameless(node: &Arc<Node>, nameless: &Nameless) -> Result<Locks, Status> {
    Ok(vec![node.lock_staged(StagedKey::of(&nameless.data_folder()), &nameless.what()).await?])
}

/// Locks the pod, and of a block volume, whose folders pods share, the volume.
///
/// # Errors
/// Another verb works on one of them.
pub async fn lock_published(node: &Arc<Node>, published: &Published) -> Result<Locks, Status> {
    let mut locks = vec![node.lock_pod(&published.pod).await?];
    if published.block {
        let folder = crate::volumes::csi::paths::block_data(&published.spec);
        locks.push(node.lock_staged(StagedKey::of(&folder), &published.what()).await?);
    }
    Ok(locks)
}

/// Whether it was there before, and where.
pub type Made = (PathBuf, bool);

async fn prepare(
    node: Arc<Node>,
    locks: Locks,
    noted: Noted,
    task: impl Fn(bool) -> Task + Send + 'static,
) -> Result<Made, Status> {
    to_its_end(async move {
        let locks = Arc::new(locks);
        let was_noted = noted.is_there(&node);
        if !was_noted {
            match worker::call(&node.workers, &task(false), None, locks.clone()).await? {
                (Done::Prepared(Prepared::Before(path)), _) => return Ok((path, true)),
                (Done::Prepared(Prepared::Needed), _) => {}
                (other, _) => return Err(unexpected(&other)),
            }
            noted.begin(&node).await?;
        }
        match worker::call(&node.workers, &task(true), None, locks).await {
            Ok((Done::Prepared(Prepared::Now(path)), _)) => Ok((path, false)),
            Ok((other, _)) => Err(unexpected(&other)),
            Err(status) => {
                // A worker that does not answer may have made it, or make it yet.
                if !was_noted && status.code() != tonic::Code::Unavailable {
                    noted.end(&node);
                }
                Err(status)
            }
        }
    })
    .await
}

/// # Errors
/// The verb's own, or UNAVAILABLE where no worker answers.
pub async fn prepare_stage(node: Arc<Node>, locks: Locks, staged: Staged, data: VolData) -> Result<Made, Status> {
    let noted = Noted::of_staged(&staged);
    let task = move |may_make| Task::PrepareStage { staged: staged.clone(), data: data.clone(), may_make };
    prepare(node, locks, noted, task).await
}

/// # Errors
/// The verb's own, or UNAVAILABLE where no worker answers.
pub async fn prepare_publish(
    node: Arc<Node>,
    locks: Locks,
    published: Published,
    data: VolData,
) -> Result<Made, Status> {
    let noted = Noted::Published(published.clone());
    let task = move |may_make| Task::PreparePublish { published: published.clone(), data: data.clone(), may_make };
    prepare(node, locks, noted, task).await
}

/// Does it, and drops the intent where it worked.
async fn settle(node: Arc<Node>, locks: Locks, noted: Noted, task: Task) -> Result<Done, Status> {
    to_its_end(async move {
        let (done, _) = worker::call(&node.workers, &task, None, Arc::new(locks)).await?;
        noted.end(&node);
        Ok(done)
    })
    .await
}

/// # Errors
/// The verb's own, or UNAVAILABLE where no worker answers.
pub async fn commit_stage(node: Arc<Node>, locks: Locks, staged: Staged) -> Result<(), Status> {
    let noted = Noted::of_staged(&staged);
    settle(node, locks, noted, Task::CommitStage { staged }).await.map(|_| ())
}

/// Whether what was found mounted is served by somebody. One that does not answer may yet: a sidecar of the pod that has not started
/// (GCS FUSE) is waited for by nobody here, so no lock is held.
///
/// # Errors
/// INTERNAL: it is dead.
pub async fn ask_published(node: &Node, published: &Published) -> Result<(), Status> {
    let task = Task::AskPublished { published: published.clone() };
    match worker::call(&node.workers, &task, None, ()).await {
        Err(status) if status.code() == tonic::Code::Unavailable => {
            tracing::info!(error = status.message(), "a mount that was found does not answer, and is taken as it is");
            Ok(())
        }
        looked => looked.map(|_| ()),
    }
}

/// Gives what the runtime mounts.
///
/// # Errors
/// The verb's own, or UNAVAILABLE where no worker answers.
pub async fn commit_publish(
    node: Arc<Node>,
    locks: Locks,
    published: Published,
    giving: Option<Giving>,
) -> Result<PathBuf, Status> {
    let noted = Noted::Published(published.clone());
    match settle(node, locks, noted, Task::CommitPublish { published, giving }).await? {
        Done::Path(path) => Ok(path),
        other => Err(unexpected(&other)),
    }
}

/// Notes the intent first; with `ends` it goes when the work is done.
async fn take_back(node: Arc<Node>, locks: Locks, noted: Noted, task: Task, ends: bool) -> Result<(), Status> {
    to_its_end(async move {
        noted.begin(&node).await?;
        worker::call(&node.workers, &task, None, Arc::new(locks)).await?;
        if ends {
            noted.end(&node);
        }
        Ok(())
    })
    .await
}

/// Refuses a block volume that a driver may be publishing to a pod: nothing on the disk shows that.
fn may_end(node: &Node, spec: Option<&VolumeName>, what: impl FnOnce() -> String) -> Result<(), Status> {
    let Some(spec) = spec else { return Ok(()) };
    let intent = Intent::Publish { spec: spec.clone(), block: true };
    let pods = node.journal.all().into_iter().filter(|(_, intents)| intents.contains(&intent));
    let pods: Vec<String> = pods.map(|(pod, _)| format!("pod {pod}")).collect();
    if pods.is_empty() {
        return Ok(());
    }
    Err(VolumeError::from(CsiError::StillPublished { what: what(), pods: pods.join(", ") }).into())
}

/// # Errors
/// A pod has it; UNAVAILABLE where no worker answers.
pub async fn begin_unstage(node: Arc<Node>, locks: Locks, staged: Staged) -> Result<(), Status> {
    to_its_end(async move {
        may_end(&node, staged.block.as_ref(), || staged.what())?;
        let noted = Noted::of_staged(&staged);
        worker::call(&node.workers, &Task::BeginUnstage { staged }, None, Arc::new(locks)).await?;
        noted.begin(&node).await
    })
    .await
}

/// # Errors
/// The verb's own, or UNAVAILABLE where no worker answers.
pub async fn end_stage(node: Arc<Node>, locks: Locks, staged: Staged) -> Result<(), Status> {
    may_end(&node, staged.block.as_ref(), || staged.what())?;
    let noted = Noted::of_staged(&staged);
    take_back(node, locks, noted, Task::EndStage { staged }, true).await
}

/// By its path: what is mounted there is unmounted.
///
/// # Errors
/// The verb's own, or UNAVAILABLE where no worker answers.
pub async fn end_nameless(node: Arc<Node>, locks: Locks, nameless: Nameless) -> Result<(), Status> {
    may_end(&node, nameless.block(), || nameless.what())?;
    let noted = Noted::of_folder(nameless.data_folder());
    take_back(node, locks, noted, Task::EndNameless { nameless }, true).await
}

/// # Errors
/// The verb's own, or UNAVAILABLE where no worker answers.
pub async fn begin_unpublish(node: Arc<Node>, locks: Locks, published: Published) -> Result<(), Status> {
    let noted = Noted::Published(published.clone());
    take_back(node, locks, noted, Task::BeginUnpublish { published }, false).await
}

/// # Errors
/// The verb's own, or UNAVAILABLE where no worker answers.
pub async fn end_publish(node: Arc<Node>, locks: Locks, published: Published) -> Result<(), Status> {
    let noted = Noted::Published(published.clone());
    take_back(node, locks, noted, Task::EndPublish { published }, true).await
}
