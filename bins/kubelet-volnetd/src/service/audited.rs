//! The verbs with their records: each call goes on to [`Verbs`], and leaves one in the [`crate::audit`] log. Read-only calls leave
//! none.

use bulkhead_ipc::context::REQUEST_ID;
use bulkhead_ipc::peers::Role;
use bulkhead_ipc::volnetd::cgroups_server::Cgroups;
use bulkhead_ipc::volnetd::csi_server::Csi;
use bulkhead_ipc::volnetd::files_server::Files;
use bulkhead_ipc::volnetd::shutdown_server::Shutdown;
use bulkhead_ipc::volnetd::volumes_server::Volumes;
use bulkhead_ipc::volnetd::*;
use tonic::{Request, Response, Status};

use super::Verbs;
use crate::audit::{Act, Begun};

/// What a request says of its act: the pod's uid, and what of it.
pub(super) trait Subject {
    fn subject(&self) -> (&str, String);
}

/// What an answer says of it.
pub(super) trait Target {
    fn target(&self) -> String {
        String::new()
    }
}

macro_rules! subjects {
    ($($request:ty: |$r:ident| $pod:expr, $object:expr;)*) => {$(
        impl Subject for $request {
            fn subject(&self) -> (&str, String) {
                let $r = self;
                ($pod, $object)
            }
        }
    )*};
}

fn log_pod(pod: Option<&PodLogId>) -> &str {
    pod.map_or("", |pod| pod.uid.as_str())
}

/// Cgroups with limits, and those that could not have them.
fn reserved(cgroups: &[ReservedCgroup]) -> String {
    let shown = cgroups.iter().map(|c| format!("{}{}", c.cgroup, if c.error.is_empty() { "" } else { " failed" }));
    shown.collect::<Vec<_>>().join(", ")
}

/// A disk by its targets, or its own names.
fn fc_disk(disk: &bulkhead_ipc::common::FcDisk) -> String {
    if disk.target_wwns.is_empty() {
        return disk.wwids.join(",");
    }
    format!("{} lun {}", disk.target_wwns.join(","), disk.lun)
}

fn iscsi_disk(disk: &bulkhead_ipc::common::IscsiDisk) -> String {
    format!("{} {} lun {}", disk.portals.join(","), disk.iqn, disk.lun)
}

/// A volume by its specification's name, driver and handle.
fn device(device: Option<&CsiDevice>) -> String {
    let Some(device) = device else { return String::new() };
    format!("{} {}^{}", device.spec_name, device.driver, device.volume_handle).trim_start().to_owned()
}

subjects! {
    PreparePodRequest: |r| &r.pod_uid, String::new();
    SetUpEmptyDirRequest: |r| &r.pod_uid, r.volume.clone();
    CheckHostPathRequest: |r| &r.pod_uid, format!("{} {}", r.volume, r.path);
    SetUpContentRequest: |r| &r.pod_uid, r.volume.clone();
    PrepareSubPathRequest: |r| &r.pod_uid, format!("{} {}/{} {}", r.volume, r.container, r.index, r.sub_path);
    TearDownPodRequest: |r| &r.pod_uid, if r.volumes_only { "volumes alone".into() } else { String::new() };
    PruneRequest: |r| "", format!("all but {} pods", r.known_pod_uids.len());
    SetUpLocalRequest: |r| &r.pod_uid, format!("{} {}", r.volume, r.path);
    SetUpNfsRequest: |r| &r.pod_uid, format!("{} {}:{}", r.volume, r.server, r.path);
    SetUpFcRequest: |r| &r.pod_uid, format!("{} {}", r.volume, r.disk.as_ref().map(fc_disk).unwrap_or_default());
    SetUpIscsiRequest: |r| &r.pod_uid, format!("{} {}", r.volume, r.disk.as_ref().map(iscsi_disk).unwrap_or_default());
    AskFlexDriverRequest: |r| "", r.driver.clone();
    SetUpFlexRequest: |r| &r.pod_uid, format!("{} {}", r.volume, r.driver);
    EndDiskRequest: |r| "", r.place.as_ref().map(|place| format!("{}/{}", place.plugin, place.name)).unwrap_or_default();
    PrepareStageRequest: |r| "", device(r.device.as_ref());
    CsiDevice: |r| "", device(Some(r));
    EndStageRequest: |r| "", format!("{}{}", device(r.device.as_ref()), r.folder);
    PreparePublishRequest: |r| &r.pod_uid, device(r.data.as_ref().and_then(|data| data.device.as_ref()));
    CommitPublishRequest: |r| &r.pod_uid, device(r.device.as_ref());
    EndPublishRequest: |r| &r.pod_uid, device(r.device.as_ref());
    WriteEtcHostsRequest: |r| &r.pod_uid, String::new();
    CreateTerminationFileRequest: |r| &r.pod_uid, r.container.clone();
    PrepareLogDirectoryRequest: |r| log_pod(r.pod.as_ref()), r.container.clone();
    LinkContainerLogRequest: |r| log_pod(r.pod.as_ref()), format!("{}/{}", r.container, r.restart_count);
    RemoveContainerLogRequest: |r| log_pod(r.pod.as_ref()), format!("{}/{}", r.container, r.restart_count);
    PruneLogsRequest: |r| "", format!("all but {} pods", r.known_pod_uids.len());
    RotateContainerLogRequest: |r| log_pod(r.pod.as_ref()), format!("{}/{}", r.container, r.restart_count);
    RestoreContainerLogRequest: |r| log_pod(r.pod.as_ref()), format!("{}/{} {}", r.container, r.restart_count, r.stamp);
    RemoveRotatedLogsRequest: |r| log_pod(r.pod.as_ref()), format!("{}/{}: {} files", r.container, r.restart_count, r.files.len());
    EnsureNodeRequest: |r| "", r.driver.clone();
    EnforceReservedRequest: |_r| "", String::new();
    EnsurePodRequest: |r| &r.pod_uid, String::new();
    SetQosRequest: |_r| "", String::new();
    RemovePodRequest: |r| &r.pod_uid, String::new();
    ReleaseShutdownRequest: |_r| "", String::new();
    EndSessionRequest: |r| &r.pod_uid, format!("{} session {}", r.container_id, r.session);
}

macro_rules! targets {
    ($($reply:ty: |$r:ident| $target:expr;)*) => {$(
        impl Target for $reply {
            fn target(&self) -> String {
                let $r = self;
                $target
            }
        }
    )*};
}

targets! {
    PreparePodReply: |r| r.pod_dir.clone();
    SetUpVolumeReply: |r| r.host_path.clone();
    AskFlexDriverReply: |_r| String::new();
    SetUpFlexReply: |r| r.host_path.clone();
    TearDownPodReply: |r| if r.done { String::new() } else { format!("left: {}", r.left.join("; ")) };
    PrepareStageReply: |r| r.staging_path.clone();
    EndDiskReply: |_r| String::new();
    CommitStageReply: |_r| String::new();
    EndStageReply: |_r| String::new();
    PreparePublishReply: |r| r.target_path.clone();
    CommitPublishReply: |r| r.host_path.clone();
    EndPublishReply: |_r| String::new();
    HostFileReply: |r| r.host_path.clone();
    PrepareLogDirectoryReply: |r| r.pod_log_dir.clone();
    LinkContainerLogReply: |r| r.link.clone();
    RemoveContainerLogReply: |_r| String::new();
    PruneLogsReply: |r| format!("{} removed", r.removed.len());
    RotateContainerLogReply: |r| r.stamp.clone();
    RestoreContainerLogReply: |r| if r.restored { "restored".into() } else { "left as it is".into() };
    RemoveRotatedLogsReply: |_r| String::new();
    EnsureNodeReply: |r| format!("cgroup v{}, {}", r.version, r.driver);
    EnforceReservedReply: |r| reserved(&r.cgroups);
    EnsurePodReply: |r| r.cgroup_parent.clone();
    SetQosReply: |_r| String::new();
    RemovePodReply: |r| if r.done { String::new() } else { "left".into() };
    ReleaseShutdownReply: |r| if r.released { "released".into() } else { "none was held".into() };
    EndSessionReply: |r| format!("{} processes", r.ended);
}

/// See the module.
#[derive(Debug, Clone)]
pub(super) struct Audited(pub(super) Verbs);

impl Audited {
    fn begin<R: Subject>(&self, verb: &'static str, request: &Request<R>) -> Begun {
        let id = request.metadata().get(REQUEST_ID).and_then(|id| id.to_str().ok()).unwrap_or_default();
        let (pod_uid, object) = request.get_ref().subject();
        self.0.node.audit.begin(Act {
            peer: request.extensions().get::<Role>().copied(),
            verb: verb.to_owned(),
            pod_uid: pod_uid.to_owned(),
            object,
            request_id: id.to_owned(),
        })
    }
}

fn end<T: Target>(begun: Begun, result: Result<Response<T>, Status>) -> Result<Response<T>, Status> {
    begun.ended(match &result {
        Ok(reply) => Ok(reply.get_ref().target()),
        Err(status) => Err(status),
    });
    result
}

/// Methods of a service that go on to the same method of [`Verbs`], and are recorded.
macro_rules! recorded {
    ($service:ident: $($method:ident($request:ty) -> $reply:ty = $verb:literal;)*) => {$(
        fn $method<'life, 'async_trait>(
            &'life self,
            request: Request<$request>,
        ) -> std::pin::Pin<Box<dyn Future<Output = Result<Response<$reply>, Status>> + Send + 'async_trait>>
        where
            'life: 'async_trait,
            Self: 'async_trait,
        {
            Box::pin(async move {
                let begun = self.begin(concat!(stringify!($service), "/", $verb), &request);
                end(begun, $service::$method(&self.0, request).await)
            })
        }
    )*};
}

#[tonic::async_trait]
impl Volumes for Audited {
    recorded! { Volumes:
        prepare_pod(PreparePodRequest) -> PreparePodReply = "PreparePod";
        set_up_empty_dir(SetUpEmptyDirRequest) -> SetUpVolumeReply = "SetUpEmptyDir";
        set_up_local(SetUpLocalRequest) -> SetUpVolumeReply = "SetUpLocal";
        set_up_nfs(SetUpNfsRequest) -> SetUpVolumeReply = "SetUpNfs";
        set_up_fc(SetUpFcRequest) -> SetUpVolumeReply = "SetUpFc";
        set_up_iscsi(SetUpIscsiRequest) -> SetUpVolumeReply = "SetUpIscsi";
        ask_flex_driver(AskFlexDriverRequest) -> AskFlexDriverReply = "AskFlexDriver";
        set_up_flex(SetUpFlexRequest) -> SetUpFlexReply = "SetUpFlex";
        end_disk(EndDiskRequest) -> EndDiskReply = "EndDisk";
        check_host_path(CheckHostPathRequest) -> SetUpVolumeReply = "CheckHostPath";
        set_up_content(SetUpContentRequest) -> SetUpVolumeReply = "SetUpContent";
        prepare_sub_path(PrepareSubPathRequest) -> SetUpVolumeReply = "PrepareSubPath";
        tear_down_pod(TearDownPodRequest) -> TearDownPodReply = "TearDownPod";
    }

    type ListDisksStream = <Verbs as Volumes>::ListDisksStream;

    async fn list_disks(&self, request: Request<ListDisksRequest>) -> Result<Response<Self::ListDisksStream>, Status> {
        Volumes::list_disks(&self.0, request).await
    }

    type ListVolumesStream = <Verbs as Volumes>::ListVolumesStream;

    async fn list_volumes(
        &self,
        request: Request<ListVolumesRequest>,
    ) -> Result<Response<Self::ListVolumesStream>, Status> {
        Volumes::list_volumes(&self.0, request).await
    }

    type PruneStream = <Verbs as Volumes>::PruneStream;

    /// Recorded when it begins; its steps are in the log.
    async fn prune(&self, request: Request<PruneRequest>) -> Result<Response<Self::PruneStream>, Status> {
        let begun = self.begin("Volumes/Prune", &request);
        let result = Volumes::prune(&self.0, request).await;
        begun.ended(match &result {
            Ok(_) => Ok("begun".to_owned()),
            Err(status) => Err(status),
        });
        result
    }
}

#[tonic::async_trait]
impl Csi for Audited {
    recorded! { Csi:
        prepare_stage(PrepareStageRequest) -> PrepareStageReply = "PrepareStage";
        commit_stage(CsiDevice) -> CommitStageReply = "CommitStage";
        begin_unstage(EndStageRequest) -> EndStageReply = "BeginUnstage";
        end_stage(EndStageRequest) -> EndStageReply = "EndStage";
        prepare_publish(PreparePublishRequest) -> PreparePublishReply = "PreparePublish";
        commit_publish(CommitPublishRequest) -> CommitPublishReply = "CommitPublish";
        begin_unpublish(EndPublishRequest) -> EndPublishReply = "BeginUnpublish";
        end_publish(EndPublishRequest) -> EndPublishReply = "EndPublish";
    }

    type ListStagedStream = <Verbs as Csi>::ListStagedStream;

    async fn list_staged(
        &self,
        request: Request<ListStagedRequest>,
    ) -> Result<Response<Self::ListStagedStream>, Status> {
        Csi::list_staged(&self.0, request).await
    }

    type ListPublishedStream = <Verbs as Csi>::ListPublishedStream;

    async fn list_published(
        &self,
        request: Request<ListPublishedRequest>,
    ) -> Result<Response<Self::ListPublishedStream>, Status> {
        Csi::list_published(&self.0, request).await
    }
}

#[tonic::async_trait]
impl Files for Audited {
    recorded! { Files:
        write_etc_hosts(WriteEtcHostsRequest) -> HostFileReply = "WriteEtcHosts";
        create_termination_file(CreateTerminationFileRequest) -> HostFileReply = "CreateTerminationFile";
        prepare_log_directory(PrepareLogDirectoryRequest) -> PrepareLogDirectoryReply = "PrepareLogDirectory";
        link_container_log(LinkContainerLogRequest) -> LinkContainerLogReply = "LinkContainerLog";
        remove_container_log(RemoveContainerLogRequest) -> RemoveContainerLogReply = "RemoveContainerLog";
        prune_logs(PruneLogsRequest) -> PruneLogsReply = "PruneLogs";
        rotate_container_log(RotateContainerLogRequest) -> RotateContainerLogReply = "RotateContainerLog";
        restore_container_log(RestoreContainerLogRequest) -> RestoreContainerLogReply = "RestoreContainerLog";
        remove_rotated_logs(RemoveRotatedLogsRequest) -> RemoveRotatedLogsReply = "RemoveRotatedLogs";
    }
}

#[tonic::async_trait]
impl Shutdown for Audited {
    recorded! { Shutdown:
        release(ReleaseShutdownRequest) -> ReleaseShutdownReply = "Release";
    }
}

#[tonic::async_trait]
impl Cgroups for Audited {
    recorded! { Cgroups:
        ensure_node(EnsureNodeRequest) -> EnsureNodeReply = "EnsureNode";
        enforce_reserved(EnforceReservedRequest) -> EnforceReservedReply = "EnforceReserved";
        ensure_pod(EnsurePodRequest) -> EnsurePodReply = "EnsurePod";
        set_qos(SetQosRequest) -> SetQosReply = "SetQos";
        remove_pod(RemovePodRequest) -> RemovePodReply = "RemovePod";
        end_session(EndSessionRequest) -> EndSessionReply = "EndSession";
    }

    type ListStream = <Verbs as Cgroups>::ListStream;

    async fn list(&self, request: Request<ListCgroupsRequest>) -> Result<Response<Self::ListStream>, Status> {
        Cgroups::list(&self.0, request).await
    }
}
