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
use crate::node::{Locks, Node, WalkLock};
use crate::volumes::VolumeError;
use crate::volumes::csi::data::VolData;
use crate::volumes::csi::paths::{Nameless, PLUGIN, Published, Staged};
use crate::volumes::csi::publish::Giving;
use crate::volumes::csi::references::Once;
use crate::volumes::csi::{CsiError, Prepared};
use crate::worker::{self, Asked, Done, Task};

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

/// Locks the pod's volume and the pod, and of a block volume, whose folders pods share, the staged one.
///
/// # Errors
/// Another verb works on one of them.
pub async fn lock_published(node: &Arc<Node>, published: &Published) -> Result<Locks, Status> {
    let volume = node.lock_volume(&published.pod, PLUGIN, &published.spec).await?;
    let mut locks = lock_pod(node, published).await?;
    locks.push(volume);
    Ok(locks)
}

/// The same for CommitPublish: what is held until its end, and what until the pod's part is done.
///
/// # Errors
/// Another verb works on one of them.
pub async fn lock_to_commit(node: &Arc<Node>, published: &Published) -> Result<(WalkLock, Locks), Status> {
    let walk = node.lock_walk(&published.pod, PLUGIN, &published.spec).await?;
    Ok((walk, lock_pod(node, published).await?))
}

async fn lock_pod(node: &Arc<Node>, published: &Published) -> Result<Locks, Status> {
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
        let locks = Arc::new(locks);
        let (done, _) = worker::call(&node.workers, &task, None, locks.clone()).await?;
        noted.end(&node);
        drop(locks);
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
/// INTERNAL: it is dead; UNAVAILABLE: nobody could ask it.
pub async fn ask_published(node: &Node, published: &Published) -> Result<(), Status> {
    match worker::ask(&node.workers, &Task::AskPublished { published: published.clone() }).await {
        Asked::Answered(answer) => answer.map(drop),
        Asked::Silent(error) => {
            tracing::info!(error, "whether a mount that was found is served is not known, and it is taken as it is");
            Ok(())
        }
        Asked::Unasked(why) => Err(Status::unavailable(why)),
    }
}

/// Refuses to take back what has `references` elsewhere on the machine, unless nobody serves it any more. Who asks that holds no lock:
/// what does not answer may do so for long.
///
/// # Errors
/// ABORTED: it is mounted elsewhere; UNAVAILABLE: nobody could ask it.
pub async fn refuse_if_mounted_elsewhere(node: &Node, once: Once, references: &[String]) -> Result<(), Status> {
    if references.is_empty() {
        return Ok(());
    }
    let refusal = once.refusal(&node.settings, references);
    match worker::ask(&node.workers, &Task::AskOnce { once }).await {
        Asked::Answered(Ok(Done::Dead(true))) => Ok(()),
        Asked::Answered(Ok(Done::Dead(false))) | Asked::Silent(_) => Err(refusal.into()),
        Asked::Answered(answer) => Err(answer.map_or_else(|status| status, |other| unexpected(&other))),
        Asked::Unasked(why) => Err(Status::unavailable(why)),
    }
}

/// Answers what the runtime mounts. While the volume is given to its group the pod is not locked, and the intent stands.
///
/// # Errors
/// The verb's own, or UNAVAILABLE where no worker answers.
pub async fn commit_publish(
    node: Arc<Node>,
    (walk, locks): (WalkLock, Locks),
    published: Published,
    giving: Option<Giving>,
) -> Result<PathBuf, Status> {
    let noted = Noted::Published(published.clone());
    to_its_end(async move {
        let (walk, locks) = (Arc::new(walk), Arc::new(locks));
        let giving = giving.filter(|_| !published.block);
        let task = Task::CommitPublish { published: published.clone(), has_group: giving.is_some() };
        let path = match worker::call(&node.workers, &task, None, locks.clone()).await? {
            (Done::Path(path), _) => path,
            (other, _) => return Err(unexpected(&other)),
        };
        if let Some(giving) = giving {
            drop(locks);
            worker::call(&node.workers, &Task::GivePublished { published, giving }, None, walk.clone()).await?;
        }
        noted.end(&node);
        drop(walk);
        Ok(path)
    })
    .await
}

/// Notes the intent first; with `ends` it goes when the work is done.
async fn take_back(node: Arc<Node>, locks: Locks, noted: Noted, task: Task, ends: bool) -> Result<(), Status> {
    to_its_end(async move {
        noted.begin(&node).await?;
        let locks = Arc::new(locks);
        worker::call(&node.workers, &task, None, locks.clone()).await?;
        if ends {
            noted.end(&node);
        }
        drop(locks);
        Ok(())
    })
    .await
}

/// Refuses a block volume that a driver may be publishing to a pod: nothing on the disk shows that.
fn refuse_if_being_published(
    node: &Node,
    spec: Option<&VolumeName>,
    what: impl FnOnce() -> String,
) -> Result<(), Status> {
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
/// A pod has it; ABORTED where it is mounted elsewhere; UNAVAILABLE where no worker answers.
pub async fn begin_unstage(node: Arc<Node>, locks: Locks, staged: Staged) -> Result<(), Status> {
    to_its_end(async move {
        refuse_if_being_published(&node, staged.block.as_ref(), || staged.what())?;
        let noted = Noted::of_staged(&staged);
        let (locks, once) = (Arc::new(locks), Once::Csi(staged.clone()));
        match worker::call(&node.workers, &Task::BeginUnstage { staged }, None, locks.clone()).await? {
            (Done::Elsewhere(references), _) => refuse_if_mounted_elsewhere(&node, once, &references).await?,
            (other, _) => return Err(unexpected(&other)),
        }
        noted.begin(&node).await?;
        drop(locks);
        Ok(())
    })
    .await
}

/// # Errors
/// The verb's own, or UNAVAILABLE where no worker answers.
pub async fn end_stage(node: Arc<Node>, locks: Locks, staged: Staged) -> Result<(), Status> {
    refuse_if_being_published(&node, staged.block.as_ref(), || staged.what())?;
    let noted = Noted::of_staged(&staged);
    take_back(node, locks, noted, Task::EndStage { staged }, true).await
}

/// By its path: what is mounted there is unmounted.
///
/// # Errors
/// The verb's own, or UNAVAILABLE where no worker answers.
pub async fn end_nameless(node: Arc<Node>, locks: Locks, nameless: Nameless) -> Result<(), Status> {
    refuse_if_being_published(&node, nameless.block(), || nameless.what())?;
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
