//! What is done in a worker process and not here: every verb that enters a volume, or a path of the host that a pod names. What
//! is mounted there may never answer, and the kernel ends nobody who waits for it (`bulkhead_worker`).
//!
//! A worker is forked from this program before it has a thread, a lock or a socket: same user, capabilities and filter, and
//! one descriptor. It keeps no state: the journal's intents and the locks of pods and of their volumes stay here.

mod party;

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use bulkhead_config::NodeConfig;
use bulkhead_sys::program::Title;
use bulkhead_sys::{fork, scm};
use bulkhead_types::{PodUid, VolumeName};
use bulkhead_worker::fork_server::{WORKERS_MAX, Watch};
use bulkhead_worker::{Connections, Limits, Message, Share, Shares, WorkerError, WorkerPool, serve};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::Status;

use crate::files::{env_file, node_log};
use crate::node::Settings;
use crate::settings;
use crate::volumes::content::{self, FilePath, Plugin, PutContentError};
use crate::volumes::csi::data::VolData;
use crate::volumes::csi::paths::{Nameless, Published, Staged};
use crate::volumes::csi::publish::{self, Giving};
use crate::volumes::csi::references::{self, Once};
use crate::volumes::csi::{Prepared, stage, way};
use crate::volumes::disk::options::{FsType, Options};
use crate::volumes::disk::place::DiskPlace;
use crate::volumes::disk::{Device, Found, global, look, map};
use crate::volumes::empty_dir::{self, Group, Medium, Place};
use crate::volumes::flex::{self, FlexVolume};
use crate::volumes::host_path::{self, HostPathType};
use crate::volumes::local::{self, Local};
use crate::volumes::nfs::{self, Nfs};
use crate::volumes::sub_path::{self, SubPath};
use crate::volumes::teardown::{self, Kept, Mounted, Outcome, Scope};
use crate::volumes::{SetUp, VolumeError, ownership, pod_dir};

/// A pod has one verb in work, under its lock, and one beside it that takes none. What stays on this machine goes on however many
/// servers of pods are silent; a verb of it that takes long, as the removal of a large emptyDir, counts as one that hangs.
pub const LIMITS: Limits = Limits {
    shares: Shares {
        node: Share { places: 4, at_once: 4, of_one: 4 },
        local: Share { places: 64, at_once: 8, of_one: 2 },
        foreign: Share { places: 64, at_once: 8, of_one: 2 },
        // One of a volume: a second one would tell nothing else.
        questions: Share { places: 16, at_once: 8, of_one: 1 },
        // With those that wait half of the calls that a peer may have in work.
        walks: Share { places: 64, at_once: 64, of_one: 2 },
    },
    hangs_after: Limits::HANGS_AFTER,
};
const _: () = assert!(LIMITS.workers() <= WORKERS_MAX, "the fork server has fewer");

/// How long a caller waits for what gives a volume to its group: longer than that goes on.
const GIVES: Duration = ownership::PATIENCE.saturating_add(Duration::from_secs(10));

/// How long a caller waits for anything else.
const PATIENCE: Duration = Duration::from_secs(15);
/// How long a question to whoever serves a mount is waited for, once a worker asks it: the worker ends before ([`way::ask`]), if the
/// kernel lets it.
const ANSWERS: Duration = Duration::from_secs(way::PATIENCE_S as u64 + 1);

/// One act in a worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Task {
    SetUpEmptyDir {
        pod: PodUid,
        volume: VolumeName,
        medium: Medium,
        group: Option<Group>,
    },
    SetUpContent {
        pod: PodUid,
        volume: VolumeName,
        plugin: Plugin,
        size_limit: Option<u64>,
        mount_points: Vec<FilePath>,
    },
    /// The files come as a sealed memfd.
    PutContent {
        pod: PodUid,
        volume: VolumeName,
        plugin: Plugin,
    },
    PrepareSubPath {
        pod: PodUid,
        wanted: SubPath,
    },
    CheckHostPath {
        pod: PodUid,
        volume: VolumeName,
        path: PathBuf,
        wanted: HostPathType,
    },
    SetUpLocal {
        pod: PodUid,
        local: Local,
        again: bool,
        may_mount: bool,
    },
    SetUpNfs {
        pod: PodUid,
        nfs: Nfs,
        may_mount: bool,
    },
    /// What is at a local volume's path; the volume's own path where it is bound and nothing else is needed.
    LookLocal {
        pod: PodUid,
        local: Local,
        is_needed: bool,
    },
    /// Where a volume is bound already.
    LookBound {
        pod: PodUid,
        local: Local,
    },
    /// Once a node.
    MountDevice {
        place: DiskPlace,
        device: Device,
        fs_type: FsType,
        options: Options,
        found: String,
    },
    GrowXfs {
        place: DiskPlace,
        device: Device,
    },
    MapDisk {
        pod: PodUid,
        place: DiskPlace,
        volume: VolumeName,
        device: Device,
    },
    /// All its files.
    GiveLocal {
        pod: PodUid,
        local: Local,
        group: Group,
    },
    OtherGroup {
        pod: PodUid,
        local: Local,
    },
    /// Unmounts it, unless a pod has it.
    EndDevice {
        volume: VolumeName,
    },
    /// The same of one that was attached; its folder stays.
    UnmountDevice {
        place: DiskPlace,
    },
    /// The folder of a FlexVolume driver's volume; answers its path where something is mounted there.
    PrepareFlex {
        pod: PodUid,
        flex: FlexVolume,
    },
    /// What is mounted once a node, into that folder.
    BindFlex {
        pod: PodUid,
        flex: FlexVolume,
    },
    /// All its files.
    GiveFlex {
        pod: PodUid,
        flex: FlexVolume,
        group: Group,
    },
    /// Binds of subPaths.
    UnbindFlex {
        pod: PodUid,
        volumes: Vec<FlexVolume>,
    },
    EndFlex {
        pod: PodUid,
        flex: FlexVolume,
        may_unmount: bool,
    },
    TearDownPod {
        pod: PodUid,
        scope: Scope,
        kept: Vec<Kept>,
        /// What the caller saw in the pod's folder, if it looked and nothing is unmounted since.
        mounted: Option<Mounted>,
    },
    /// Whether all of it is there, or, where it may be made, that it is made.
    PrepareStage {
        staged: Staged,
        data: VolData,
        may_make: bool,
    },
    CommitStage {
        staged: Staged,
    },
    /// Whether it may be taken back; answers where else it is mounted.
    BeginUnstage {
        staged: Staged,
    },
    /// Whether nobody serves it any more.
    AskOnce {
        once: Once,
    },
    EndStage {
        staged: Staged,
    },
    /// The same of what nobody knows the volume of.
    EndNameless {
        nameless: Nameless,
    },
    PreparePublish {
        published: Published,
        data: VolData,
        may_make: bool,
    },
    AskPublished {
        published: Published,
    },
    /// `has_group`: it is to be given to a group when this is done.
    CommitPublish {
        published: Published,
        has_group: bool,
    },
    /// What CommitPublish has found there: all its files.
    GivePublished {
        published: Published,
        giving: Giving,
    },
    BeginUnpublish {
        published: Published,
    },
    EndPublish {
        published: Published,
    },
    /// The answer is a descriptor.
    OpenEnvFile {
        pod: PodUid,
        volume: VolumeName,
        path: PathBuf,
    },
    /// Below /var/log; the folder itself where there is no path. The answer is a descriptor.
    OpenNodeLog {
        relative: Option<PathBuf>,
    },
}

/// What came of it.
#[derive(Debug, Serialize, Deserialize)]
pub enum Done {
    Nothing,
    Volume(SetUp),
    Path(PathBuf),
    TornDown(Outcome),
    Prepared(Prepared),
    Found(Found),
    Bound(Option<PathBuf>),
    Group(Option<u32>),
    Elsewhere(Vec<String>),
    Dead(bool),
}

#[derive(Serialize, Deserialize)]
struct Refusal {
    code: i32,
    message: String,
}

impl Task {
    /// In words, for the log and for whoever waits: the verb and whose volume it is about.
    pub fn what(&self) -> String {
        match self {
            Task::SetUpEmptyDir { pod, volume, .. } => format!("SetUpEmptyDir of volume {volume} of pod {pod}"),
            Task::SetUpContent { pod, volume, .. } => format!("SetUpContent of volume {volume} of pod {pod}"),
            Task::PutContent { pod, volume, .. } => format!("PutContent of volume {volume} of pod {pod}"),
            Task::PrepareSubPath { pod, wanted } => format!("PrepareSubPath of volume {} of pod {pod}", wanted.volume),
            Task::CheckHostPath { pod, path, .. } => format!("CheckHostPath of {} of pod {pod}", path.display()),
            Task::SetUpLocal { pod, local, .. } => format!("SetUpLocal of volume {} of pod {pod}", local.volume),
            Task::SetUpNfs { pod, nfs, .. } => format!("SetUpNfs of volume {} of pod {pod}", nfs.volume),
            Task::LookLocal { pod, local, .. } => format!("LookLocal of volume {} of pod {pod}", local.volume),
            Task::LookBound { pod, local } => format!("LookBound of volume {} of pod {pod}", local.volume),
            Task::MountDevice { place, .. } => format!("MountDevice of {place}"),
            Task::GrowXfs { place, .. } => format!("GrowXfs of {place}"),
            Task::MapDisk { pod, volume, .. } => format!("MapDisk of volume {volume} of pod {pod}"),
            Task::GiveLocal { pod, local, .. } => format!("GiveLocal of volume {} of pod {pod}", local.volume),
            Task::OtherGroup { pod, local } => format!("OtherGroup of volume {} of pod {pod}", local.volume),
            Task::EndDevice { volume } => format!("EndDevice of local volume {volume}"),
            Task::UnmountDevice { place } => format!("UnmountDevice of {place}"),
            Task::PrepareFlex { pod, flex } => format!("PrepareFlex of volume {} of pod {pod}", flex.volume),
            Task::BindFlex { pod, flex } => format!("BindFlex of volume {} of pod {pod}", flex.volume),
            Task::GiveFlex { pod, flex, .. } => format!("GiveFlex of volume {} of pod {pod}", flex.volume),
            Task::UnbindFlex { pod, .. } => format!("UnbindFlex of pod {pod}"),
            Task::EndFlex { pod, flex, .. } => format!("EndFlex of volume {} of pod {pod}", flex.volume),
            Task::TearDownPod { pod, .. } => format!("TearDownPod of pod {pod}"),
            Task::PrepareStage { staged, .. } => format!("PrepareStage of {}", staged.what()),
            Task::CommitStage { staged } => format!("CommitStage of {}", staged.what()),
            Task::BeginUnstage { staged } => format!("BeginUnstage of {}", staged.what()),
            Task::AskOnce { once } => format!("AskOnce of {}", once.what()),
            Task::EndStage { staged } => format!("EndStage of {}", staged.what()),
            Task::EndNameless { nameless } => format!("EndStage of {}", nameless.what()),
            Task::PreparePublish { published, .. } => format!("PreparePublish of {}", published.what()),
            Task::AskPublished { published } => format!("AskPublished of {}", published.what()),
            Task::CommitPublish { published, .. } => format!("CommitPublish of {}", published.what()),
            Task::GivePublished { published, .. } => format!("GivePublished of {}", published.what()),
            Task::BeginUnpublish { published } => format!("BeginUnpublish of {}", published.what()),
            Task::EndPublish { published } => format!("EndPublish of {}", published.what()),
            Task::OpenEnvFile { pod, volume, .. } => format!("EnvFile in volume {volume} of pod {pod}"),
            Task::OpenNodeLog { relative } => {
                format!("NodeLog of {}", relative.as_deref().unwrap_or(std::path::Path::new(".")).display())
            }
        }
    }

    /// How long a caller waits before it gets to know what hangs. The work goes on, and whoever asks again finds it done. What
    /// gives a volume to its group is waited for as long as that may take: it goes on while it is named as what takes long.
    const fn patience(&self) -> Duration {
        match self {
            Task::GivePublished { .. } | Task::GiveLocal { .. } | Task::GiveFlex { .. } => GIVES,
            Task::SetUpNfs { may_mount: true, .. } => nfs::LONGEST_MOUNT,
            _ => PATIENCE,
        }
    }
}

/// Forks the process that forks workers; answers the socket that asks it for one. To be called while there is one thread.
///
/// # Errors
/// The configuration cannot be worked with, or the kernel makes no process.
pub fn fork_server(config: &NodeConfig) -> std::io::Result<OwnedFd> {
    let settings = settings::from_config(config).map_err(std::io::Error::other)?;
    let (theirs, ours) = scm::pair()?;
    let title = Title::find();
    let watch = Watch { title: title.map(|title| (title, "kubelet-volnetd: worker")), idle: None, each: None };
    fork::apart(theirs, title.map(|title| (title, "kubelet-volnetd: fork server")), |socket| {
        match serve(&Connections::Passed(socket), &watch, &|request| perform(&settings, request)) {
            Ok(()) => 0,
            Err(error) => {
                tracing::error!(%error, "fork server failed");
                1
            }
        }
    })?;
    Ok(ours)
}

/// Has a worker do it. `held` is let go of when it is done, and not when the caller goes away.
///
/// # Errors
/// The verb's own, or UNAVAILABLE where no worker answers in time, with what it hangs in.
pub async fn call<H: Send + 'static>(
    workers: &WorkerPool,
    task: &Task,
    fd: Option<OwnedFd>,
    held: H,
) -> Result<(Done, Option<OwnedFd>), Status> {
    let bytes = serde_json::to_vec(task).map_err(|error| Status::internal(format!("{}: {error}", task.what())))?;
    let request = Message { bytes, fds: fd.into_iter().collect() };
    let what = task.what();
    let asked = async { workers.call(party::of(task).await, what.clone(), request, held).await };
    let answered = tokio::time::timeout(task.patience(), asked).await;
    read(&what, answered.map_err(|_| hangs(workers, &what))?.map_err(unavailable)?)
}

fn read(what: &str, mut answer: Message) -> Result<(Done, Option<OwnedFd>), Status> {
    let result: Result<Done, Refusal> = serde_json::from_slice(&answer.bytes)
        .map_err(|error| Status::internal(format!("a worker's answer to {what} is none: {error}")))?;
    let fd = answer.fds.pop();
    result.map(|done| (done, fd)).map_err(|refusal| Status::new(refusal.code.into(), refusal.message))
}

/// What came of a question to whoever serves a mount.
#[derive(Debug)]
pub enum Asked {
    Answered(Result<Done, Status>),
    /// It was asked, now or before, and does not answer; or so many others do not that it cannot be asked. What waits for their servers
    /// may do so for ever: it is not to keep this one's volume from its pod.
    Silent(String),
    /// No worker could ask, or one was ended by something else: nothing is known.
    Unasked(String),
}

/// Has a worker ask whoever serves a mount. While it waits it holds nothing of the caller's.
pub async fn ask(workers: &WorkerPool, task: &Task) -> Asked {
    let what = task.what();
    let request = match serde_json::to_vec(task) {
        Ok(bytes) => Message::of(bytes),
        Err(error) => return Asked::Unasked(format!("{what}: {error}")),
    };
    let (begun, begins) = watch::channel(None);
    let begun = move || {
        begun.send_replace(Some(Instant::now()));
    };
    let asked = workers.call_telling(party::of(task).await, what.clone(), request, (), begun);
    let mut waits = begins.clone();
    let late = async move {
        let begun = tokio::time::timeout(PATIENCE, waits.wait_for(Option::is_some)).await;
        match begun.map(|begun| begun.is_ok()) {
            Ok(true) => tokio::time::sleep(ANSWERS).await,
            // No worker can have it, which the call itself says.
            Ok(false) => std::future::pending().await,
            Err(_) => {}
        }
    };
    let answer = tokio::select! { biased; answer = asked => Some(answer), () = late => None };
    let since = begins.borrow().map(|begun| begun.elapsed());
    let error = match answer {
        Some(Ok(answer)) => return Asked::Answered(read(&what, answer).map(|(done, _)| done)),
        Some(Err(error)) => Some(error),
        None => None,
    };
    let hangs_already = workers.hanging().iter().any(|hanging| hanging.what == what);
    let why = error.as_ref().map_or_else(|| hangs(workers, &what).message().to_owned(), |e| bulkhead_types::chain(e));
    if is_silent(error.as_ref(), since, hangs_already) { Asked::Silent(why) } else { Asked::Unasked(why) }
}

/// Whether a question without an answer was asked, or cannot be for others that hang. `error`: the pool's, none where
/// the time was over; `since`: how long a worker had it, if one did; `hangs_already`: a worker hangs in the very same
/// question, asked now or before. Pure.
fn is_silent(error: Option<&WorkerError>, since: Option<Duration>, hangs_already: bool) -> bool {
    let ended_by_its_alarm = |since: Duration| since >= Duration::from_secs(way::PATIENCE_S.into()) / 2;
    hangs_already
        || match error {
            None => since.is_some(),
            Some(WorkerError::Ended { .. }) => since.is_some_and(ended_by_its_alarm),
            Some(WorkerError::TooMany { .. }) => true,
            Some(WorkerError::Start(_) | WorkerError::Queue { .. } | WorkerError::Io { .. }) => false,
        }
}

fn hangs(workers: &WorkerPool, what: &str) -> Status {
    match workers.hanging().into_iter().find(|hanging| hanging.what == what) {
        Some(hanging) => Status::unavailable(format!("{hanging}: a file system that does not answer?")),
        None => Status::unavailable(format!("{what} waits for a worker process")),
    }
}

/// Nothing is known of what was done: it may be asked for again.
fn unavailable(error: WorkerError) -> Status {
    Status::unavailable(bulkhead_types::chain(&error))
}

/// The body of a worker: one request.
pub fn perform(settings: &Settings, mut request: Message) -> Message {
    let fd = request.fds.pop();
    let result = match serde_json::from_slice::<Task>(&request.bytes) {
        Ok(task) => act(settings, task, fd),
        Err(error) => Err(Status::internal(format!("a worker's request is none: {error}"))),
    };
    let (result, fd) = match result {
        Ok((done, fd)) => (Ok(done), fd),
        Err(status) => (Err(Refusal { code: status.code().into(), message: status.message().to_owned() }), None),
    };
    let bytes = serde_json::to_vec::<Result<Done, Refusal>>(&result).unwrap_or_default();
    Message { bytes, fds: fd.into_iter().collect() }
}

fn act(settings: &Settings, task: Task, fd: Option<OwnedFd>) -> Result<(Done, Option<OwnedFd>), Status> {
    let done = match task {
        Task::SetUpEmptyDir { pod, volume, medium, group } => {
            Done::Path(empty_dir::set_up(settings, &pod, Place::of(&volume), medium, group)?)
        }
        Task::SetUpContent { pod, volume, plugin, size_limit, mount_points } => {
            Done::Path(content::set_up(settings, &pod, &volume, plugin, size_limit, &mount_points)?)
        }
        Task::PutContent { pod, volume, plugin } => {
            let files = fd.ok_or_else(|| Status::internal("no files came with the request"))?;
            let files = content::receive(&files).map_err(PutContentError::from)?;
            content::put(settings, &pod, &volume, plugin, &files)?;
            Done::Nothing
        }
        Task::PrepareSubPath { pod, wanted } => Done::Path(sub_path::prepare(settings, &pod, &wanted)?),
        Task::CheckHostPath { pod, volume, path, wanted } => {
            pod_dir(settings, &pod)?;
            for created in host_path::check(&path, wanted).map_err(VolumeError::from)? {
                // Root made it on the host because a pod's spec, as kubelet-syncd has it, said so; nobody removes it. Said
                // here, where it was made: who asked may not wait any more.
                tracing::info!(%pod, %volume, path = %created.display(), "created a hostPath");
            }
            Done::Nothing
        }
        Task::SetUpLocal { pod, local, again, may_mount } => {
            Done::Volume(local::set_up(settings, &pod, &local, again, may_mount)?)
        }
        Task::SetUpNfs { pod, nfs, may_mount } => Done::Volume(nfs::set_up(settings, &pod, &nfs, may_mount)?),
        Task::LookLocal { pod, local, is_needed } => match local::bound(settings, &pod, &local)? {
            Some(path) if !is_needed => Done::Path(path),
            _ => Done::Found(look::look(&local.path).map_err(VolumeError::from)?),
        },
        Task::LookBound { pod, local } => Done::Bound(local::bound(settings, &pod, &local)?),
        Task::MountDevice { place, device, fs_type, options, found } => {
            global::mount(settings, &place, &device, fs_type, &options, &found)?;
            Done::Nothing
        }
        Task::GrowXfs { place, device } => {
            global::grow_xfs(settings, &place, &device)?;
            Done::Nothing
        }
        Task::MapDisk { pod, place, volume, device } => Done::Path(map::map(settings, &pod, &place, &volume, &device)?),
        Task::GiveLocal { pod, local, group } => {
            local::give(settings, &pod, &local, group)?;
            Done::Nothing
        }
        Task::OtherGroup { pod, local } => Done::Group(local::other_group(settings, &pod, &local)?),
        Task::EndDevice { volume } => {
            global::end(settings, &volume)?;
            Done::Nothing
        }
        Task::UnmountDevice { place } => {
            global::unmount(settings, &place)?;
            Done::Nothing
        }
        Task::PrepareFlex { pod, flex } => Done::Bound(flex::prepare(settings, &pod, &flex)?),
        Task::BindFlex { pod, flex } => {
            flex::bind(settings, &pod, &flex)?;
            Done::Nothing
        }
        Task::GiveFlex { pod, flex, group } => {
            flex::give(settings, &pod, &flex, group)?;
            Done::Nothing
        }
        Task::UnbindFlex { pod, volumes } => {
            flex::unbind(settings, &pod, &volumes)?;
            Done::Nothing
        }
        Task::EndFlex { pod, flex, may_unmount } => {
            flex::end(settings, &pod, &flex, may_unmount)?;
            Done::Nothing
        }
        Task::TearDownPod { pod, scope, kept, mounted } => {
            Done::TornDown(teardown::tear_down(settings, &pod, scope, &kept, mounted)?)
        }
        Task::PrepareStage { staged, data, may_make } => {
            let make = if may_make { stage::prepare } else { stage::look };
            Done::Prepared(make(settings, &staged, &data)?)
        }
        Task::CommitStage { staged } => {
            stage::commit(settings, &staged)?;
            Done::Nothing
        }
        Task::BeginUnstage { staged } => Done::Elsewhere(stage::begin_end(settings, &staged)?),
        Task::AskOnce { once } => Done::Dead(references::is_dead(settings, &once)),
        Task::EndStage { staged } => {
            stage::end(settings, &staged)?;
            Done::Nothing
        }
        Task::EndNameless { nameless } => {
            stage::end_nameless(settings, &nameless)?;
            Done::Nothing
        }
        Task::PreparePublish { published, data, may_make } => {
            let make = if may_make { publish::prepare } else { publish::look };
            Done::Prepared(make(settings, &published, &data)?)
        }
        Task::AskPublished { published } => {
            publish::ask(settings, &published)?;
            Done::Nothing
        }
        Task::CommitPublish { published, has_group } => Done::Path(publish::commit(settings, &published, has_group)?),
        Task::GivePublished { published, giving } => {
            publish::give(settings, &published, giving)?;
            Done::Nothing
        }
        Task::BeginUnpublish { published } => {
            publish::begin_end(settings, &published)?;
            Done::Nothing
        }
        Task::EndPublish { published } => {
            publish::end(settings, &published)?;
            Done::Nothing
        }
        Task::OpenEnvFile { pod, volume, path } => {
            let copy = env_file::open(settings, &pod, &volume, &path)?;
            return Ok((Done::Nothing, Some(copy)));
        }
        Task::OpenNodeLog { relative } => {
            return Ok((Done::Nothing, Some(node_log::open(settings, relative.as_deref())?)));
        }
    };
    Ok((done, None))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bulkhead_ipc::volnetd::CsiDevice;

    #[test]
    fn what_was_asked_and_has_not_answered_is_silent() {
        let ended = || WorkerError::Ended { pid: 1, what: "a question".into() };
        let too_many = || WorkerError::TooMany { count: 2, whom: "a pod".into(), names: String::new() };
        let no_fork = || WorkerError::Start(std::io::ErrorKind::OutOfMemory.into());
        let [soon, late] = [Some(Duration::from_millis(3)), Some(Duration::from_secs(1))];
        for (error, since, hangs_already, silent) in [
            (None, late, false, true),
            (None, None, false, false),
            (None, None, true, true),
            (Some(ended()), late, false, true),
            (Some(ended()), soon, false, false),
            (Some(too_many()), None, false, true),
            (Some(too_many()), None, true, true),
            (Some(no_fork()), None, false, false),
        ] {
            assert_eq!(is_silent(error.as_ref(), since, hangs_already), silent, "{error:?} {since:?} {hangs_already}");
        }
    }

    /// Silent mounts, two of one pod among them, however many: nobody is kept from other volumes of the pod, and nobody's verbs wait.
    #[tokio::test]
    async fn questions_that_hang_stand_in_no_other_volume_s_way() {
        let (release, held) = std::sync::mpsc::channel::<()>();
        let held = parking_lot::Mutex::new(held);
        let work = move |request: Message| {
            if !String::from_utf8_lossy(&request.bytes).contains("well") {
                let _ = held.lock().recv();
            }
            Message::of(serde_json::to_vec::<Result<Done, Refusal>>(&Ok(Done::Nothing)).unwrap())
        };
        let workers = WorkerPool::here(Limits { hangs_after: Duration::from_millis(10), ..LIMITS }, work);
        let volume = |spec: &str| {
            let (driver, volume_handle) = ("d".into(), spec.into());
            let device = CsiDevice { driver, volume_handle, spec_name: spec.into(), block: false };
            Published::from_wire("p", Some(&device), false).unwrap()
        };
        let question = |spec: &str| Task::AskPublished { published: volume(spec) };
        let hang = async |spec: &str, count: usize| {
            let (silent, asking) = (question(spec), workers.clone());
            tokio::spawn(async move { ask(&asking, &silent).await });
            while workers.hanging().len() < count {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        for count in 1..=2 {
            hang(&format!("silent-{count}"), count).await;
        }
        let again = ask(&workers, &question("silent-1")).await;
        assert!(matches!(&again, Asked::Silent(why) if why.contains("volume silent-1 of pod p")), "{again:?}");
        let third = ask(&workers, &question("well")).await;
        assert!(matches!(third, Asked::Answered(Ok(Done::Nothing))), "{third:?}");
        // As many as there may be: who cannot be asked is left as it is, and is taken back.
        for count in 3..=LIMITS.shares.questions.places {
            hang(&format!("silent-{count}"), count).await;
        }
        let another = ask(&workers, &question("well")).await;
        assert!(matches!(&another, Asked::Silent(why) if why.contains("as many as there may be")), "{another:?}");
        let begin = Task::BeginUnpublish { published: volume("well") };
        assert!(matches!(call(&workers, &begin, None, ()).await, Ok((Done::Nothing, None))));
        drop(release);
    }
}
