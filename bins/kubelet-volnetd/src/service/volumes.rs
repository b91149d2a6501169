//! `kubelet.volnetd.v1.Volumes`.

use std::time::Instant;

use bulkhead_ipc::volnetd::volumes_server::Volumes;
use bulkhead_ipc::volnetd::{self as wire, *};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::used::Used;
use super::{Streamed, Verbs};
use crate::metrics::StorageOperation;
use crate::operations::local;
use crate::operations::prune::{self, Action};
use crate::operations::{self, unexpected};
use crate::validate;
use crate::volumes::disk::place::Plugin;
use crate::volumes::empty_dir::{Group, Medium};
use crate::volumes::host_path::HostPathType;
use crate::volumes::sub_path::{self, Root, SubPath};
use crate::volumes::teardown::Scope;
use crate::volumes::{EMPTY_DIR, HOST_PATH, content, list, prepare_pod};
use crate::worker::{Done, Task};

/// Steps on their way to the reader: three or four for each orphan, so more than a thousand orphans. What is beyond is
/// in the log alone; a reader that has stopped reading must not hold up the work, or the pods' locks.
const STREAM_BUFFER: usize = 4096;

#[tonic::async_trait]
impl Volumes for Verbs {
    async fn prepare_pod(&self, request: Request<PreparePodRequest>) -> Result<Response<PreparePodReply>, Status> {
        let pod = validate::pod_uid(&request.into_inner().pod_uid)?;
        let lock = self.node.lock_pod(&pod).await?;
        let path = self.run(Some(lock), move |node| prepare_pod(&node.settings, &pod)).await?;
        Ok(Response::new(PreparePodReply { pod_dir: self.told(&path) }))
    }

    async fn set_up_content(
        &self,
        request: Request<SetUpContentRequest>,
    ) -> Result<Response<SetUpVolumeReply>, Status> {
        let request = request.into_inner();
        let pod = validate::pod_uid(&request.pod_uid)?;
        let volume = validate::volume(&request.volume)?;
        let plugin = content::Plugin::from_wire(request.plugin)?;
        let mount_points = content::mount_points(&request.mount_points)?;
        let size_limit = (request.size_limit_bytes != 0).then_some(request.size_limit_bytes);
        let lock = self.node.lock_pod(&pod).await?;
        let task = Task::SetUpContent { pod, volume, plugin, size_limit, mount_points };
        let path = operations::set_up_marked(self.node.clone(), lock, plugin.name(), task).await?;
        Ok(Response::new(SetUpVolumeReply { host_path: self.told(&path), ..Default::default() }))
    }

    async fn set_up_local(&self, request: Request<SetUpLocalRequest>) -> Result<Response<SetUpVolumeReply>, Status> {
        let request = request.into_inner();
        let path = validate::host_path(&request.path)?;
        let used = Used {
            pod_uid: request.pod_uid,
            volume: request.volume,
            read_only: request.read_only,
            fs_group: request.fs_group,
            on_root_mismatch: request.fs_group_on_root_mismatch,
            fs_type: request.fs_type,
            mount_options: request.mount_options,
            block: request.block,
        };
        let wanted = used.wanted(Plugin::Local, path, request.grow)?;
        let locks = wanted.lock(&self.node).await?;
        let ready = local::set_up(self.node.clone(), locks, wanted).await?;
        Ok(Response::new(SetUpVolumeReply {
            host_path: self.told(&ready.path),
            other_group: ready.other_group.map(i64::from),
        }))
    }

    async fn set_up_nfs(&self, request: Request<SetUpNfsRequest>) -> Result<Response<SetUpVolumeReply>, Status> {
        let path = super::nfs::set_up(self, request.into_inner()).await?;
        Ok(Response::new(SetUpVolumeReply { host_path: self.told(&path), ..Default::default() }))
    }

    async fn set_up_fc(&self, request: Request<SetUpFcRequest>) -> Result<Response<SetUpVolumeReply>, Status> {
        let ready = super::attached::set_up_fc(self, request.into_inner()).await?;
        Ok(Response::new(SetUpVolumeReply { host_path: self.told(&ready.path), ..Default::default() }))
    }

    async fn set_up_iscsi(&self, request: Request<SetUpIscsiRequest>) -> Result<Response<SetUpVolumeReply>, Status> {
        let ready = super::attached::set_up_iscsi(self, request.into_inner()).await?;
        Ok(Response::new(SetUpVolumeReply { host_path: self.told(&ready.path), ..Default::default() }))
    }

    async fn ask_flex_driver(
        &self,
        request: Request<AskFlexDriverRequest>,
    ) -> Result<Response<AskFlexDriverReply>, Status> {
        super::flex::ask(self, request.into_inner()).await.map(Response::new)
    }

    async fn set_up_flex(&self, request: Request<SetUpFlexRequest>) -> Result<Response<SetUpFlexReply>, Status> {
        super::flex::set_up(self, request.into_inner()).await.map(Response::new)
    }

    async fn end_disk(&self, request: Request<EndDiskRequest>) -> Result<Response<EndDiskReply>, Status> {
        super::attached::end(self, request.into_inner()).await?;
        Ok(Response::new(EndDiskReply {}))
    }

    type ListDisksStream = Streamed<DiskState>;

    async fn list_disks(&self, _: Request<ListDisksRequest>) -> Result<Response<Self::ListDisksStream>, Status> {
        let all = super::attached::list(self).await?;
        Ok(Response::new(Box::pin(tokio_stream::iter(all.into_iter().map(Ok)))))
    }

    async fn prepare_sub_path(
        &self,
        request: Request<PrepareSubPathRequest>,
    ) -> Result<Response<SetUpVolumeReply>, Status> {
        let request = request.into_inner();
        let pod = validate::pod_uid(&request.pod_uid)?;
        let root = match request.root {
            Some(prepare_sub_path_request::Root::Plugin(plugin)) => sub_path::plugin(&plugin)?,
            Some(prepare_sub_path_request::Root::HostPath(path)) => Root::HostPath(validate::host_path(&path)?),
            None => return Err(validate::InvalidRequest::Missing { field: "root" }.into()),
        };
        let wanted = SubPath {
            volume: validate::volume(&request.volume)?,
            container: validate::container(&request.container)?,
            index: request.index,
            path: validate::sub_path(&request.sub_path)?,
            root,
            create: !request.read_only,
        };
        let lock = self.node.lock_pod(&pod).await?;
        match self.work(Task::PrepareSubPath { pod, wanted }, lock).await? {
            Done::Path(path) => {
                Ok(Response::new(SetUpVolumeReply { host_path: self.told(&path), ..Default::default() }))
            }
            other => Err(unexpected(&other)),
        }
    }

    async fn set_up_empty_dir(
        &self,
        request: Request<SetUpEmptyDirRequest>,
    ) -> Result<Response<SetUpVolumeReply>, Status> {
        let request = request.into_inner();
        let pod = validate::pod_uid(&request.pod_uid)?;
        let volume = validate::volume(&request.volume)?;
        let not_zero = |bytes: u64| (bytes != 0).then_some(bytes);
        let medium = match request.medium() {
            wire::Medium::Disk => Medium::Disk,
            wire::Medium::Memory => Medium::Memory { size_limit: not_zero(request.size_limit_bytes) },
            wire::Medium::HugePages => Medium::HugePages { page_bytes: not_zero(request.huge_page_bytes) },
            wire::Medium::Unspecified => {
                return Err(validate::bad("medium", &request.medium.to_string(), "DISK, MEMORY or HUGE_PAGES").into());
            }
        };
        let on_root_mismatch = request.fs_group_on_root_mismatch;
        let group = request.fs_group.map(|group| validate::id("fs_group", group)).transpose()?;
        let group = group.map(|id| Group { id, on_root_mismatch });
        let lock = self.node.lock_pod(&pod).await?;
        let task = Task::SetUpEmptyDir { pod, volume, medium, group };
        let path = operations::set_up_marked(self.node.clone(), lock, EMPTY_DIR, task).await?;
        Ok(Response::new(SetUpVolumeReply { host_path: self.told(&path), ..Default::default() }))
    }

    async fn check_host_path(
        &self,
        request: Request<CheckHostPathRequest>,
    ) -> Result<Response<SetUpVolumeReply>, Status> {
        let request = request.into_inner();
        let pod = validate::pod_uid(&request.pod_uid)?;
        let volume = validate::volume(&request.volume)?;
        let path = validate::host_path(&request.path)?;
        let wanted = match wire::HostPathType::try_from(request.r#type) {
            Ok(wire::HostPathType::Unspecified) => HostPathType::Unset,
            Ok(wire::HostPathType::DirectoryOrCreate) => HostPathType::DirectoryOrCreate,
            Ok(wire::HostPathType::Directory) => HostPathType::Directory,
            Ok(wire::HostPathType::FileOrCreate) => HostPathType::FileOrCreate,
            Ok(wire::HostPathType::File) => HostPathType::File,
            Ok(wire::HostPathType::Socket) => HostPathType::Socket,
            Ok(wire::HostPathType::CharDevice) => HostPathType::CharDevice,
            Ok(wire::HostPathType::BlockDevice) => HostPathType::BlockDevice,
            Err(_) => return Err(validate::bad("type", &request.r#type.to_string(), "a hostPath type").into()),
        };
        let host_path = request.path;
        let lock = self.node.lock_pod(&pod).await?;
        let started = Instant::now();
        let done = self.work(Task::CheckHostPath { pod, volume, path, wanted }, lock).await;
        self.node.metrics.storage(HOST_PATH, StorageOperation::Mount, started.elapsed().as_secs_f64(), done.is_ok());
        match done? {
            Done::Nothing => Ok(Response::new(SetUpVolumeReply { host_path, ..Default::default() })),
            other => Err(unexpected(&other)),
        }
    }

    async fn tear_down_pod(&self, request: Request<TearDownPodRequest>) -> Result<Response<TearDownPodReply>, Status> {
        let request = request.into_inner();
        let pod = validate::pod_uid(&request.pod_uid)?;
        self.guard(request.guard.as_ref())?;
        let locks = self.node.lock_whole_pod(&pod).await?;
        let scope = if request.volumes_only { Scope::Volumes } else { Scope::Everything };
        let outcome = operations::tear_down(self.node.clone(), locks, pod, scope).await?;
        Ok(Response::new(TearDownPodReply { done: outcome.left.is_empty(), left: outcome.left }))
    }

    type ListVolumesStream = Streamed<VolumeState>;

    async fn list_volumes(
        &self,
        request: Request<ListVolumesRequest>,
    ) -> Result<Response<Self::ListVolumesStream>, Status> {
        let pod_uid = request.into_inner().pod_uid;
        let pod = if pod_uid.is_empty() { None } else { Some(validate::pod_uid(&pod_uid)?) };
        let volumes = self.run(None, move |node| list::list(node, pod.as_ref())).await?;
        let verbs = self.clone();
        let states = volumes.into_iter().map(move |volume| {
            Ok(VolumeState {
                pod_uid: volume.pod.to_string(),
                volume: volume.volume,
                plugin: volume.plugin,
                host_path: verbs.told(&volume.path),
                mounted: volume.fs_type.is_some(),
                fs_type: volume.fs_type.unwrap_or_default(),
                uncertain: volume.uncertain,
                sub_paths: volume.sub_paths,
            })
        });
        Ok(Response::new(Box::pin(tokio_stream::iter(states))))
    }

    type PruneStream = Streamed<PruneStep>;

    async fn prune(&self, request: Request<PruneRequest>) -> Result<Response<Self::PruneStream>, Status> {
        let request = request.into_inner();
        let known = validate::known_pods(&request.known_pod_uids)?;
        self.guard(request.guard.as_ref())?;
        let (sender, receiver) = mpsc::channel(STREAM_BUFFER);
        let node = self.node.clone();
        // The pod that it is at is finished when the reader goes away: what is begun is better finished.
        tokio::spawn(async move {
            let tell = sender.clone();
            let reader = sender.clone();
            let is_asked = move || !reader.is_closed();
            let (mut cleaned, mut not_cleaned) = (0, 0);
            let result = prune::prune(&node, known.into(), is_asked, |step| {
                match step.action {
                    Action::RemovedDirectory => cleaned += 1,
                    Action::Kept => not_cleaned += 1,
                    Action::Unmounted | Action::RemovedCgroup => {}
                }
                if step.action == Action::Kept {
                    tracing::warn!(pod = %step.pod, what = step.what, error = step.error, "failed to clean up orphaned pod");
                } else {
                    tracing::info!(pod = %step.pod, what = step.what, "{}", step.action.as_str());
                }
                let _ = tell.try_send(Ok(PruneStep {
                    action: step.action.as_str().to_owned(),
                    pod_uid: step.pod.to_string(),
                    what: step.what,
                    error: step.error,
                }));
            })
            .await;
            node.metrics.orphans(cleaned, not_cleaned);
            if let Err(status) = result {
                let _ = sender.send(Err(status)).await;
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }
}
