//! `kubelet.volnetd.v1.Csi`.

use std::path::Path;

use bulkhead_ipc::volnetd::csi_server::Csi;
use bulkhead_ipc::volnetd::{self as wire, *};
use bulkhead_sys::mountinfo::MountInfo;
use tonic::{Request, Response, Status};

use super::{Streamed, Verbs};
use crate::operations::csi as operations;
use crate::validate;
use crate::volumes::csi::data::VolData;
use crate::volumes::csi::list;
use crate::volumes::csi::paths;
use crate::volumes::csi::paths::{Nameless, Published, Staged};
use crate::volumes::csi::publish::Giving;
use crate::volumes::empty_dir::Group;

/// Of a request to take a volume back; where `vol_data.json` cannot be read nobody knows whose it is.
fn to_take_back(request: &EndPublishRequest) -> Result<Published, Status> {
    Ok(Published::from_wire(&request.pod_uid, request.device.as_ref(), true)?)
}

/// Whether the volume is not known: it is named by its folder, or, a block volume, by its name alone.
fn is_nameless(request: &EndStageRequest) -> bool {
    let device = request.device.as_ref();
    let is_block = device.is_some_and(|one| one.block && one.driver.is_empty() && one.volume_handle.is_empty());
    !request.folder.is_empty() || is_block
}

/// Whether files of the file system that is there can be given SELinux labels of their own (upstream GetSELinuxSupport).
fn takes_labels(path: &Path) -> bool {
    // Without SELinux no file system does.
    if !Path::new("/sys/fs/selinux/enforce").exists() {
        return false;
    }
    let mut mounts = MountInfo::new();
    let mount = mounts.containing(path).ok().flatten();
    mount.is_some_and(|mount| mount.super_options.split(',').any(|option| option == "seclabel"))
}

#[tonic::async_trait]
impl Csi for Verbs {
    async fn prepare_stage(
        &self,
        request: Request<PrepareStageRequest>,
    ) -> Result<Response<PrepareStageReply>, Status> {
        let request = request.into_inner();
        let staged = Staged::from_wire(request.device.as_ref())?;
        let data = VolData::staged(&staged, &request)?;
        let locks = operations::lock_staged(&self.node, &staged).await?;
        let (path, before) = operations::prepare_stage(self.node.clone(), locks, staged, data).await?;
        Ok(Response::new(PrepareStageReply { staging_path: self.told(&path), committed_before: before }))
    }

    async fn commit_stage(&self, request: Request<CsiDevice>) -> Result<Response<CommitStageReply>, Status> {
        let staged = Staged::from_wire(Some(&request.into_inner()))?;
        let locks = operations::lock_staged(&self.node, &staged).await?;
        operations::commit_stage(self.node.clone(), locks, staged).await?;
        Ok(Response::new(CommitStageReply {}))
    }

    async fn begin_unstage(&self, request: Request<EndStageRequest>) -> Result<Response<EndStageReply>, Status> {
        let request = request.into_inner();
        let staged = Staged::from_wire(request.device.as_ref())?;
        self.guard(request.guard.as_ref())?;
        let locks = operations::lock_staged(&self.node, &staged).await?;
        operations::begin_unstage(self.node.clone(), locks, staged).await?;
        Ok(Response::new(EndStageReply {}))
    }

    async fn end_stage(&self, request: Request<EndStageRequest>) -> Result<Response<EndStageReply>, Status> {
        let request = request.into_inner();
        if is_nameless(&request) {
            let nameless = Nameless::from_wire(request.device.as_ref(), &request.folder)?;
            self.guard(request.guard.as_ref())?;
            let locks = operations::lock_nameless(&self.node, &nameless).await?;
            operations::end_nameless(self.node.clone(), locks, nameless).await?;
            return Ok(Response::new(EndStageReply {}));
        }
        let staged = Staged::from_wire(request.device.as_ref())?;
        self.guard(request.guard.as_ref())?;
        let locks = operations::lock_staged(&self.node, &staged).await?;
        operations::end_stage(self.node.clone(), locks, staged).await?;
        Ok(Response::new(EndStageReply {}))
    }

    async fn prepare_publish(
        &self,
        request: Request<PreparePublishRequest>,
    ) -> Result<Response<PreparePublishReply>, Status> {
        let request = request.into_inner();
        let data = request.data.ok_or(validate::InvalidRequest::Missing { field: "data" })?;
        let published = Published::from_wire(&request.pod_uid, data.device.as_ref(), false)?;
        let data = VolData::published(&published, &data)?;
        let locks = operations::lock_published(&self.node, &published).await?;
        let (path, before) = operations::prepare_publish(self.node.clone(), locks, published, data).await?;
        Ok(Response::new(PreparePublishReply { target_path: self.told(&path), committed_before: before }))
    }

    async fn commit_publish(
        &self,
        request: Request<CommitPublishRequest>,
    ) -> Result<Response<CommitPublishReply>, Status> {
        let request = request.into_inner();
        let published = Published::from_wire(&request.pod_uid, request.device.as_ref(), false)?;
        let group = request.fs_group.map(|group| validate::id("fs_group", group)).transpose()?;
        let giving = group.map(|id| Giving {
            group: Group { id, on_root_mismatch: request.fs_group_on_root_mismatch },
            read_only: request.read_only,
        });
        if request.found && !published.block {
            operations::ask_published(&self.node, &published).await?;
        }
        let locks = operations::lock_to_commit(&self.node, &published).await?;
        let path = operations::commit_publish(self.node.clone(), locks, published, giving).await?;
        let shown = path.clone();
        let takes_no_labels = self.run(None, move |_| Ok::<_, Status>(!takes_labels(&shown))).await?;
        Ok(Response::new(CommitPublishReply { host_path: self.told(&path), takes_no_labels }))
    }

    async fn begin_unpublish(&self, request: Request<EndPublishRequest>) -> Result<Response<EndPublishReply>, Status> {
        let request = request.into_inner();
        let published = to_take_back(&request)?;
        self.guard(request.guard.as_ref())?;
        let locks = operations::lock_published(&self.node, &published).await?;
        operations::begin_unpublish(self.node.clone(), locks, published).await?;
        Ok(Response::new(EndPublishReply {}))
    }

    async fn end_publish(&self, request: Request<EndPublishRequest>) -> Result<Response<EndPublishReply>, Status> {
        let request = request.into_inner();
        let published = to_take_back(&request)?;
        self.guard(request.guard.as_ref())?;
        let locks = operations::lock_published(&self.node, &published).await?;
        operations::end_publish(self.node.clone(), locks, published).await?;
        Ok(Response::new(EndPublishReply {}))
    }

    type ListStagedStream = Streamed<StagedVolume>;

    async fn list_staged(&self, _: Request<ListStagedRequest>) -> Result<Response<Self::ListStagedStream>, Status> {
        let volumes = self.run(None, list::staged).await?;
        let verbs = self.clone();
        let states = volumes.into_iter().map(move |volume| {
            let spec = volume.block.clone().unwrap_or_default();
            // A volume of a folder of another form is shown and not taken back.
            let folder = volume.folder.file_name().and_then(|name| name.to_str()).filter(|name| paths::is_hash(name));
            let folder = folder.filter(|_| volume.block.is_none()).unwrap_or_default().to_owned();
            let known = volume.data.as_ref().and_then(|data| data.to_wire(volume.block.is_some(), &spec).device);
            let device = known.unwrap_or_else(|| wire::CsiDevice {
                driver: volume.driver,
                block: volume.block.is_some(),
                spec_name: spec,
                ..Default::default()
            });
            Ok(StagedVolume {
                device: Some(device),
                staging_path: verbs.told(&volume.target),
                mounted: volume.mounted,
                uncertain: volume.uncertain,
                selinux_mount_context: volume.data.map(|data| data.selinux_mount_context()).unwrap_or_default(),
                problem: volume.problem,
                folder,
            })
        });
        Ok(Response::new(Box::pin(tokio_stream::iter(states))))
    }

    type ListPublishedStream = Streamed<PublishedVolume>;

    async fn list_published(
        &self,
        request: Request<ListPublishedRequest>,
    ) -> Result<Response<Self::ListPublishedStream>, Status> {
        let pod_uid = request.into_inner().pod_uid;
        let pod = if pod_uid.is_empty() { None } else { Some(validate::pod_uid(&pod_uid)?) };
        let volumes = self.run(None, move |node| list::published(node, pod.as_ref())).await?;
        let verbs = self.clone();
        let states = volumes.into_iter().map(move |volume| {
            let unknown = || wire::CsiVolumeData {
                device: Some(wire::CsiDevice {
                    block: volume.block,
                    spec_name: volume.spec.clone(),
                    ..Default::default()
                }),
                ..Default::default()
            };
            let data = match &volume.data {
                Some(data) => data.to_wire(volume.block, &volume.spec),
                None => unknown(),
            };
            Ok(PublishedVolume {
                pod_uid: volume.pod.to_string(),
                data: Some(data),
                target_path: verbs.told(&volume.target),
                mounted: volume.mounted,
                uncertain: volume.uncertain,
                problem: volume.problem,
            })
        });
        Ok(Response::new(Box::pin(tokio_stream::iter(states))))
    }
}
