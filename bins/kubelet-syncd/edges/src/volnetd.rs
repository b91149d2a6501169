//! The verbs of `kubelet-volnetd` as this daemon uses them: one method each, a deadline each, and an error that keeps
//! "refused" apart from "not answered".
//!
//! volnetd may restart at any time; then nothing is known, nothing has failed, and the caller tries again. Destructive
//! verbs carry a [`DestructiveGuard`], which exists only once all pod sources have synced and volnetd's epoch is known.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bulkhead_ipc::MAX_MESSAGE_BYTES;
use bulkhead_ipc::broker::{BrokerClient, BrokerError};
use bulkhead_ipc::client::{Link, PeerState, is_unknown};
use bulkhead_ipc::common::DestructiveGuard;
use bulkhead_ipc::context::CallContext;
use bulkhead_ipc::volnetd as api;
use bulkhead_ipc::volnetd::cgroups_client::CgroupsClient;
use bulkhead_ipc::volnetd::csi_client::CsiClient;
use bulkhead_ipc::volnetd::files_client::FilesClient;
use bulkhead_ipc::volnetd::open_request::Kind;
use bulkhead_ipc::volnetd::shutdown_client::ShutdownClient;
use bulkhead_ipc::volnetd::volumes_client::VolumesClient;
use bulkhead_sys::memfd;
use bulkhead_types::{Epoch, PodUid};
use tonic::transport::Channel;

/// As volnetd bounds it.
const MAX_ENV_FILE: u64 = 1 << 20;

/// A verb that touches a few files.
const QUICK: Duration = Duration::from_secs(10);
/// A verb that unmounts or removes trees.
const SLOW: Duration = Duration::from_secs(60);
/// A verb in which disks are attached or detached, or a driver has been at work.
const ATTACHES: Duration = Duration::from_secs(115);
/// The same where the volume is given to the pod's group, which takes as long as it takes: longer than volnetd goes on with that.
const GIVES: Duration = bulkhead_ipc::limits::GIVING.saturating_add(Duration::from_secs(30));

/// How long a verb is waited for.
trait Deadline<R> {
    fn of(&self, request: &R) -> Duration;
}

impl<R> Deadline<R> for Duration {
    fn of(&self, _: &R) -> Duration {
        *self
    }
}

/// [`GIVES`] where the request names a group, else [`ATTACHES`].
struct ByGroup;

macro_rules! by_group {
    ($($request:ident;)*) => {$(
        impl Deadline<api::$request> for ByGroup {
            fn of(&self, request: &api::$request) -> Duration {
                if request.fs_group.is_some() { GIVES } else { ATTACHES }
            }
        }
    )*};
}

by_group! {
    SetUpLocalRequest;
    SetUpFcRequest;
    SetUpIscsiRequest;
    CommitPublishRequest;
}

impl Deadline<api::SetUpFlexRequest> for ByGroup {
    fn of(&self, request: &api::SetUpFlexRequest) -> Duration {
        if request.options.as_ref().is_some_and(|options| options.fs_group.is_some()) { GIVES } else { ATTACHES }
    }
}

/// Why a verb has no result.
#[derive(Debug, thiserror::Error)]
pub enum VolnetdError {
    /// It restarts or is stuck. Whether the verb took effect is unknown; all verbs may be repeated.
    #[error("{verb}: {}", why_unknown(source))]
    Away { verb: &'static str, source: tonic::Status },
    /// A destructive verb cannot even be asked yet.
    #[error("{verb}: {why}")]
    NotYet { verb: &'static str, why: &'static str },
    /// It answered no.
    #[error("{verb}: {}", source.message())]
    Refused { verb: &'static str, source: tonic::Status },
}

/// Its own word, where it says what it waits for (a file system that does not answer); what the transport says of a process
/// that is not there helps nobody.
fn why_unknown(status: &tonic::Status) -> &str {
    let its_own = status.code() == tonic::Code::Unavailable && std::error::Error::source(status).is_none();
    if its_own && !status.message().is_empty() { status.message() } else { "kubelet-volnetd does not answer" }
}

impl VolnetdError {
    /// Waiting is the answer, not failing.
    pub fn is_transient(&self) -> bool {
        match self {
            VolnetdError::Away { .. } | VolnetdError::NotYet { .. } => true,
            // The epoch changed between reading it and the call.
            VolnetdError::Refused { source, .. } => source.code() == tonic::Code::FailedPrecondition,
        }
    }

    fn from(verb: &'static str, source: tonic::Status) -> Self {
        if is_unknown(&source) { VolnetdError::Away { verb, source } } else { VolnetdError::Refused { verb, source } }
    }
}

/// What a destructive verb must prove: facts that the main loop keeps up to date.
#[derive(Debug)]
pub struct Authority {
    epoch: Epoch,
    generation: AtomicU64,
    sources_ready: AtomicBool,
}

impl Authority {
    pub fn new(epoch: Epoch) -> Self {
        Authority { epoch, generation: AtomicU64::new(1), sources_ready: AtomicBool::new(false) }
    }

    /// The set of desired pods has changed.
    pub fn next_generation(&self) {
        self.generation.fetch_add(1, Ordering::Relaxed);
    }

    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Every source has delivered, and what it delivered has been taken in. It stays so.
    pub fn set_sources_ready(&self) {
        self.sources_ready.store(true, Ordering::Relaxed);
    }

    pub fn sources_ready(&self) -> bool {
        self.sources_ready.load(Ordering::Relaxed)
    }
}

/// The other end.
#[derive(Debug, Clone)]
pub struct Volnetd {
    link: Link,
    broker: BrokerClient,
    authority: Arc<Authority>,
}

macro_rules! verbs {
    ($($(#[$doc:meta])* $name:ident($client:ident, $request:ident) -> $reply:ident, $deadline:expr;)*) => {
        impl Volnetd {$(
            $(#[$doc])*
            ///
            /// # Errors
            /// See [`VolnetdError`].
            pub async fn $name(&self, context: &CallContext, request: api::$request) -> Result<api::$reply, VolnetdError> {
                let mut client = $client::<Channel>::new(self.link.channel()).max_decoding_message_size(MAX_MESSAGE_BYTES);
                let deadline = $deadline.of(&request);
                let call = client.$name(context.request(request, deadline));
                match tokio::time::timeout(deadline, call).await {
                    Ok(Ok(reply)) => Ok(reply.into_inner()),
                    Ok(Err(status)) => Err(VolnetdError::from(stringify!($name), status)),
                    Err(_) => Err(VolnetdError::from(stringify!($name), tonic::Status::deadline_exceeded("no answer in time"))),
                }
            }
        )*}
    };
}

verbs! {
    prepare_pod(VolumesClient, PreparePodRequest) -> PreparePodReply, QUICK;
    set_up_empty_dir(VolumesClient, SetUpEmptyDirRequest) -> SetUpVolumeReply, QUICK;
    check_host_path(VolumesClient, CheckHostPathRequest) -> SetUpVolumeReply, QUICK;
    set_up_content(VolumesClient, SetUpContentRequest) -> SetUpVolumeReply, QUICK;
    set_up_local(VolumesClient, SetUpLocalRequest) -> SetUpVolumeReply, ByGroup;
    set_up_nfs(VolumesClient, SetUpNfsRequest) -> SetUpVolumeReply, SLOW;
    set_up_fc(VolumesClient, SetUpFcRequest) -> SetUpVolumeReply, ByGroup;
    set_up_iscsi(VolumesClient, SetUpIscsiRequest) -> SetUpVolumeReply, ByGroup;
    /// A driver has half a minute to say it.
    ask_flex_driver(VolumesClient, AskFlexDriverRequest) -> AskFlexDriverReply, SLOW;
    set_up_flex(VolumesClient, SetUpFlexRequest) -> SetUpFlexReply, ByGroup;
    end_disk(VolumesClient, EndDiskRequest) -> EndDiskReply, ATTACHES;
    prepare_sub_path(VolumesClient, PrepareSubPathRequest) -> SetUpVolumeReply, QUICK;
    tear_down_pod(VolumesClient, TearDownPodRequest) -> TearDownPodReply, SLOW;
    write_etc_hosts(FilesClient, WriteEtcHostsRequest) -> HostFileReply, QUICK;
    create_termination_file(FilesClient, CreateTerminationFileRequest) -> HostFileReply, QUICK;
    prepare_log_directory(FilesClient, PrepareLogDirectoryRequest) -> PrepareLogDirectoryReply, QUICK;
    link_container_log(FilesClient, LinkContainerLogRequest) -> LinkContainerLogReply, QUICK;
    remove_container_log(FilesClient, RemoveContainerLogRequest) -> RemoveContainerLogReply, QUICK;
    rotate_container_log(FilesClient, RotateContainerLogRequest) -> RotateContainerLogReply, QUICK;
    restore_container_log(FilesClient, RestoreContainerLogRequest) -> RestoreContainerLogReply, QUICK;
    remove_rotated_logs(FilesClient, RemoveRotatedLogsRequest) -> RemoveRotatedLogsReply, QUICK;
    prune_logs(FilesClient, PruneLogsRequest) -> PruneLogsReply, SLOW;
    ensure_node(CgroupsClient, EnsureNodeRequest) -> EnsureNodeReply, QUICK;
    enforce_reserved(CgroupsClient, EnforceReservedRequest) -> EnforceReservedReply, QUICK;
    ensure_pod(CgroupsClient, EnsurePodRequest) -> EnsurePodReply, QUICK;
    set_qos(CgroupsClient, SetQosRequest) -> SetQosReply, QUICK;
    remove_pod(CgroupsClient, RemovePodRequest) -> RemovePodReply, SLOW;
    end_session(CgroupsClient, EndSessionRequest) -> EndSessionReply, QUICK;
    release(ShutdownClient, ReleaseShutdownRequest) -> ReleaseShutdownReply, QUICK;
    prepare_stage(CsiClient, PrepareStageRequest) -> PrepareStageReply, SLOW;
    commit_stage(CsiClient, CsiDevice) -> CommitStageReply, SLOW;
    begin_unstage(CsiClient, EndStageRequest) -> EndStageReply, SLOW;
    end_stage(CsiClient, EndStageRequest) -> EndStageReply, SLOW;
    prepare_publish(CsiClient, PreparePublishRequest) -> PreparePublishReply, SLOW;
    commit_publish(CsiClient, CommitPublishRequest) -> CommitPublishReply, ByGroup;
    begin_unpublish(CsiClient, EndPublishRequest) -> EndPublishReply, SLOW;
    end_publish(CsiClient, EndPublishRequest) -> EndPublishReply, SLOW;
}

macro_rules! lists {
    ($($(#[$doc:meta])* $name:ident($client:ident, $request:ident) -> $item:ident;)*) => {
        impl Volnetd {$(
            $(#[$doc])*
            ///
            /// # Errors
            /// See [`VolnetdError`].
            pub async fn $name(&self, context: &CallContext, request: api::$request) -> Result<Vec<api::$item>, VolnetdError> {
                let work = async {
                    let mut client = $client::<Channel>::new(self.link.channel()).max_decoding_message_size(MAX_MESSAGE_BYTES);
                    let mut stream = client.$name(context.request(request, QUICK)).await?.into_inner();
                    let mut items = Vec::new();
                    while let Some(item) = stream.message().await? {
                        items.push(item);
                    }
                    Ok(items)
                };
                match tokio::time::timeout(QUICK, work).await {
                    Ok(Ok(items)) => Ok(items),
                    Ok(Err(status)) => Err(VolnetdError::from(stringify!($name), status)),
                    Err(_) => Err(VolnetdError::from(stringify!($name), tonic::Status::deadline_exceeded("no answer in time"))),
                }
            }
        )*}
    };
}

lists! {
    /// What is staged on this node, or may be.
    list_staged(CsiClient, ListStagedRequest) -> StagedVolume;
    /// What is published to pods, or may be.
    list_published(CsiClient, ListPublishedRequest) -> PublishedVolume;
    /// Disks that are attached, or may be.
    list_disks(VolumesClient, ListDisksRequest) -> DiskState;
    /// Volumes of all kinds below pods' folders.
    list_volumes(VolumesClient, ListVolumesRequest) -> VolumeState;
}

/// volnetd's own words where there are some.
fn refusal(error: BrokerError) -> String {
    match error {
        BrokerError::Refused { message, .. } => message,
        error => error.to_string(),
    }
}

impl Volnetd {
    pub fn new(link: Link, broker: BrokerClient, authority: Arc<Authority>) -> Self {
        Volnetd { link, broker, authority }
    }

    pub fn link(&self) -> &Link {
        &self.link
    }

    pub fn authority(&self) -> &Arc<Authority> {
        &self.authority
    }

    /// What a destructive verb must carry.
    ///
    /// # Errors
    /// [`VolnetdError::NotYet`] while a pod source has not synced or volnetd's epoch is not known.
    pub fn guard(&self, verb: &'static str) -> Result<DestructiveGuard, VolnetdError> {
        if !self.authority.sources_ready() {
            return Err(VolnetdError::NotYet { verb, why: "not all pod sources have synced yet" });
        }
        let PeerState::Known { epoch, ready: true } = self.link.state() else {
            return Err(VolnetdError::NotYet { verb, why: "kubelet-volnetd is starting" });
        };
        Ok(DestructiveGuard {
            volnetd_epoch: epoch.get(),
            syncd_epoch: self.authority.epoch.get(),
            generation: self.authority.generation(),
            sources_ready: true,
        })
    }

    /// Replaces all files of a volume that `set_up_content` made. `content`: an encoded `VolumeContent`.
    ///
    /// # Errors
    /// See [`VolnetdError`].
    pub async fn put_content(&self, volume: api::PutContent, content: &[u8]) -> Result<(), VolnetdError> {
        const VERB: &str = "put_content";
        let memfd = memfd::sealed("volume", content).map_err(|error| {
            VolnetdError::from(VERB, tonic::Status::unavailable(format!("no memory file could be made: {error}")))
        })?;
        self.broker
            .put_content(volume, memfd)
            .await
            .map_err(|error| VolnetdError::from(VERB, tonic::Status::new(error.code(), refusal(error))))
    }

    /// The lock that delays a shutdown of the machine, of which kubelet-volnetd keeps a copy.
    ///
    /// # Errors
    /// See [`VolnetdError`].
    pub async fn inhibit_shutdown(&self) -> Result<OwnedFd, VolnetdError> {
        let lock = self.broker.open(Kind::ShutdownInhibitor(api::ShutdownInhibitor {})).await;
        lock.map_err(|error| VolnetdError::from("inhibit_shutdown", tonic::Status::new(error.code(), refusal(error))))
    }

    /// What a file of an emptyDir says at this moment.
    ///
    /// # Errors
    /// See [`VolnetdError`].
    pub async fn read_env_file(&self, file: api::EnvFile) -> Result<Vec<u8>, VolnetdError> {
        const VERB: &str = "read_env_file";
        let failed = |status| VolnetdError::from(VERB, status);
        let copy = self.broker.open(Kind::EnvFile(file)).await;
        let copy = copy.map_err(|error| failed(tonic::Status::new(error.code(), refusal(error))))?;
        memfd::read_sealed(copy, MAX_ENV_FILE).map_err(|error| failed(tonic::Status::internal(error.to_string())))
    }

    /// Removes what belongs to pods that are not named. Answers the steps taken.
    ///
    /// # Errors
    /// See [`VolnetdError`].
    pub async fn prune(&self, known: Vec<String>) -> Result<Vec<api::PruneStep>, VolnetdError> {
        const VERB: &str = "prune";
        let request = api::PruneRequest { known_pod_uids: known, guard: Some(self.guard(VERB)?) };
        let work = async {
            let mut client = VolumesClient::new(self.link.channel()).max_decoding_message_size(MAX_MESSAGE_BYTES);
            let mut stream = client.prune(CallContext::new().request(request, SLOW)).await?.into_inner();
            let mut steps = Vec::new();
            while let Some(step) = stream.message().await? {
                steps.push(step);
            }
            Ok(steps)
        };
        match tokio::time::timeout(SLOW, work).await {
            Ok(Ok(steps)) => Ok(steps),
            Ok(Err(status)) => Err(VolnetdError::from(VERB, status)),
            Err(_) => Err(VolnetdError::from(VERB, tonic::Status::deadline_exceeded("no answer in time"))),
        }
    }

    /// Pods that have a cgroup of ours.
    ///
    /// # Errors
    /// See [`VolnetdError`].
    pub async fn list_pod_cgroups(&self) -> Result<Vec<PodUid>, VolnetdError> {
        const VERB: &str = "list";
        let work = async {
            let mut client = CgroupsClient::new(self.link.channel()).max_decoding_message_size(MAX_MESSAGE_BYTES);
            let request = CallContext::new().request(api::ListCgroupsRequest {}, QUICK);
            let mut stream = client.list(request).await?.into_inner();
            let mut pods = Vec::new();
            while let Some(cgroup) = stream.message().await? {
                pods.extend(PodUid::parse(&cgroup.pod_uid).ok());
            }
            Ok(pods)
        };
        match tokio::time::timeout(QUICK, work).await {
            Ok(Ok(pods)) => Ok(pods),
            Ok(Err(status)) => Err(VolnetdError::from(VERB, status)),
            Err(_) => Err(VolnetdError::from(VERB, tonic::Status::deadline_exceeded("no answer in time"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_is_given_to_its_group_for_as_long_as_it_takes() {
        let of = |fs_group| ByGroup.of(&api::CommitPublishRequest { fs_group, ..Default::default() });
        assert_eq!((of(None), of(Some(0))), (ATTACHES, GIVES));
        let options = |fs_group| bulkhead_ipc::common::FlexVolume { fs_group, ..Default::default() };
        let of = |options| ByGroup.of(&api::SetUpFlexRequest { options, ..Default::default() });
        assert_eq!((of(None), of(Some(options(None))), of(Some(options(Some(1))))), (ATTACHES, ATTACHES, GIVES));
        assert!(GIVES > bulkhead_ipc::limits::GIVING);
    }
}
