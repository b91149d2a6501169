//! kubelet-volnetd's verbs around the calls of a CSI driver: folders with `vol_data.json` are entries in the world, each with its intent in
//! the journal (`bins/kubelet-volnetd/src/operations/csi.rs`); what is mounted is for the driver's tables to say.

use bulkhead_ipc::volnetd as api;
use bulkhead_ipc::volnetd::csi_server::Csi;
use tonic::{Request, Status};

use crate::node::ROOT;
use crate::volnetd::{Answer, Listed, Model, listed};
use crate::volumes::{Published, Staged, target_path};
use crate::world::World;

fn device(device: Option<api::CsiDevice>) -> Result<api::CsiDevice, Status> {
    device.filter(|device| !device.volume_handle.is_empty()).ok_or_else(|| Status::invalid_argument("no handle"))
}

fn not_prepared(what: &str) -> Status {
    Status::not_found(format!("{what} is not prepared here"))
}

fn still_mounted(path: &str) -> Status {
    Status::failed_precondition(format!("{path} is still mounted"))
}

fn staging_path(device: &api::CsiDevice) -> String {
    format!("{ROOT}/plugins/kubernetes.io/csi/{}/{}/globalmount", device.driver, device.volume_handle)
}

fn prepare_stage(world: &mut World, device: api::CsiDevice) -> api::PrepareStageReply {
    let path = staging_path(&device);
    let before = world.volumes.staged.get(&device.volume_handle).is_some_and(|staged| !staged.intended);
    if !before {
        let staged = Staged { path: path.clone(), device: device.clone(), intended: true };
        world.volumes.staged.insert(device.volume_handle, staged);
    }
    api::PrepareStageReply { staging_path: path, committed_before: before }
}

fn prepare_publish(
    world: &mut World,
    uid: String,
    data: api::CsiVolumeData,
) -> Result<api::PreparePublishReply, Status> {
    if !world.folders.contains(&uid) {
        return Err(Status::not_found(format!("pod {uid} is not prepared")));
    }
    let spec = data.device.clone().unwrap_or_default().spec_name;
    let target = target_path(&uid, &spec);
    let is_mounted = world.volumes.published_at.contains_key(&target);
    let key = (uid, spec);
    let before = is_mounted && world.volumes.published.get(&key).is_some_and(|published| !published.intended);
    if !before {
        world.volumes.published.insert(key, Published { data, intended: true });
    }
    Ok(api::PreparePublishReply { target_path: target, committed_before: before })
}

fn commit_publish(world: &mut World, uid: String, device: &api::CsiDevice) -> Result<api::CommitPublishReply, Status> {
    let target = target_path(&uid, &device.spec_name);
    let is_mounted = world.volumes.published_at.contains_key(&target);
    let key = (uid, device.spec_name.clone());
    let published = world.volumes.published.get_mut(&key).ok_or_else(|| not_prepared(&device.spec_name))?;
    if !is_mounted {
        return Err(Status::not_found(format!("the driver has put nothing at {target}")));
    }
    published.intended = false;
    Ok(api::CommitPublishReply { host_path: target, takes_no_labels: true })
}

#[tonic::async_trait]
impl Csi for Model {
    type ListStagedStream = Listed<api::StagedVolume>;
    type ListPublishedStream = Listed<api::PublishedVolume>;

    async fn list_staged(&self, _: Request<api::ListStagedRequest>) -> Answer<Self::ListStagedStream> {
        let world = self.world.lock();
        let found = world.volumes.staged.values().map(|staged| api::StagedVolume {
            device: Some(api::CsiDevice { spec_name: String::new(), ..staged.device.clone() }),
            staging_path: staged.path.clone(),
            mounted: world.volumes.staged_at.contains_key(&staged.path),
            uncertain: staged.intended,
            ..Default::default()
        });
        Ok(tonic::Response::new(listed(found.collect())))
    }

    async fn list_published(&self, _: Request<api::ListPublishedRequest>) -> Answer<Self::ListPublishedStream> {
        let world = self.world.lock();
        let found = world.volumes.published.iter().map(|((uid, spec), published)| {
            let target = target_path(uid, spec);
            let mounted = world.volumes.published_at.contains_key(&target);
            api::PublishedVolume {
                pod_uid: uid.clone(),
                data: Some(published.data.clone()),
                target_path: target,
                mounted,
                uncertain: published.intended || !mounted,
                problem: String::new(),
            }
        });
        Ok(tonic::Response::new(listed(found.collect())))
    }

    async fn prepare_stage(&self, request: Request<api::PrepareStageRequest>) -> Answer<api::PrepareStageReply> {
        let device = device(request.into_inner().device)?;
        let what = format!("PrepareStage {}", device.volume_handle);
        self.change(what, move |world| Ok(prepare_stage(world, device))).await
    }

    async fn commit_stage(&self, request: Request<api::CsiDevice>) -> Answer<api::CommitStageReply> {
        let handle = device(Some(request.into_inner()))?.volume_handle;
        self.change(format!("CommitStage {handle}"), move |world| {
            let staged = world.volumes.staged.get_mut(&handle).ok_or_else(|| not_prepared(&handle))?;
            staged.intended = false;
            Ok(api::CommitStageReply {})
        })
        .await
    }

    async fn begin_unstage(&self, request: Request<api::EndStageRequest>) -> Answer<api::EndStageReply> {
        let request = request.into_inner();
        self.guard(request.guard.as_ref())?;
        let handle = device(request.device)?.volume_handle;
        self.change(format!("BeginUnstage {handle}"), move |world| {
            if let Some(staged) = world.volumes.staged.get_mut(&handle) {
                staged.intended = true;
            }
            Ok(api::EndStageReply {})
        })
        .await
    }

    async fn end_stage(&self, request: Request<api::EndStageRequest>) -> Answer<api::EndStageReply> {
        let request = request.into_inner();
        self.guard(request.guard.as_ref())?;
        let device = device(request.device)?;
        self.change(format!("EndStage {}", device.volume_handle), move |world| {
            let path = staging_path(&device);
            if world.volumes.staged_at.contains_key(&path) {
                if let Some(staged) = world.volumes.staged.get_mut(&device.volume_handle) {
                    staged.intended = true;
                }
                return Err(still_mounted(&path));
            }
            world.volumes.staged.remove(&device.volume_handle);
            Ok(api::EndStageReply {})
        })
        .await
    }

    async fn prepare_publish(&self, request: Request<api::PreparePublishRequest>) -> Answer<api::PreparePublishReply> {
        let request = request.into_inner();
        let data = request.data.ok_or_else(|| Status::invalid_argument("no data"))?;
        let handle = device(data.device.clone())?.volume_handle;
        let what = format!("PreparePublish {handle} for {}", self.world.lock().short(&request.pod_uid));
        self.change(what, move |world| prepare_publish(world, request.pod_uid, data)).await
    }

    async fn commit_publish(&self, request: Request<api::CommitPublishRequest>) -> Answer<api::CommitPublishReply> {
        let request = request.into_inner();
        let device = device(request.device)?;
        let what = format!("CommitPublish {} for {}", device.volume_handle, self.world.lock().short(&request.pod_uid));
        self.change(what, move |world| commit_publish(world, request.pod_uid, &device)).await
    }

    async fn begin_unpublish(&self, request: Request<api::EndPublishRequest>) -> Answer<api::EndPublishReply> {
        let request = request.into_inner();
        self.guard(request.guard.as_ref())?;
        let device = device(request.device)?;
        let what = format!("BeginUnpublish {} of {}", device.volume_handle, self.world.lock().short(&request.pod_uid));
        self.change(what, move |world| {
            world.check_removal(&request.pod_uid, "what is bound of volumes");
            if let Some(published) = world.volumes.published.get_mut(&(request.pod_uid, device.spec_name)) {
                published.intended = true;
            }
            Ok(api::EndPublishReply {})
        })
        .await
    }

    async fn end_publish(&self, request: Request<api::EndPublishRequest>) -> Answer<api::EndPublishReply> {
        let request = request.into_inner();
        self.guard(request.guard.as_ref())?;
        let device = device(request.device)?;
        let what = format!("EndPublish {} of {}", device.volume_handle, self.world.lock().short(&request.pod_uid));
        self.change(what, move |world| {
            let target = target_path(&request.pod_uid, &device.spec_name);
            let key = (request.pod_uid, device.spec_name);
            if world.volumes.published_at.contains_key(&target) {
                if let Some(published) = world.volumes.published.get_mut(&key) {
                    published.intended = true;
                }
                return Err(still_mounted(&target));
            }
            world.volumes.published.remove(&key);
            Ok(api::EndPublishReply {})
        })
        .await
    }
}
