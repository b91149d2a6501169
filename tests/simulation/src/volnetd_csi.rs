//! kubelet-volnetd's verbs around the calls of a CSI driver, which are its own (`bins/kubelet-volnetd/src/service/csi.rs`), with what
//! is told of them.

use bulkhead_ipc::volnetd as api;
use bulkhead_ipc::volnetd::csi_server::Csi;
use tonic::{Request, Response};

use kubelet_volnetd::service::Verbs;

use crate::volnetd::{Answer, Listed, Model};

fn handle(device: Option<&api::CsiDevice>) -> String {
    device.map(|device| device.volume_handle.clone()).unwrap_or_default()
}

#[tonic::async_trait]
impl Csi for Model {
    type ListStagedStream = Listed<api::StagedVolume>;
    type ListPublishedStream = Listed<api::PublishedVolume>;

    async fn list_staged(&self, request: Request<api::ListStagedRequest>) -> Answer<Self::ListStagedStream> {
        let named = self.clone();
        let name = move |volume: api::StagedVolume| api::StagedVolume {
            staging_path: named.named(&volume.staging_path),
            problem: named.named(&volume.problem),
            ..volume
        };
        self.list(self.verbs().list_staged(request).await, name)
    }

    async fn list_published(&self, request: Request<api::ListPublishedRequest>) -> Answer<Self::ListPublishedStream> {
        let named = self.clone();
        let name = move |volume: api::PublishedVolume| api::PublishedVolume {
            target_path: named.named(&volume.target_path),
            problem: named.named(&volume.problem),
            ..volume
        };
        self.list(self.verbs().list_published(request).await, name)
    }

    async fn prepare_stage(&self, request: Request<api::PrepareStageRequest>) -> Answer<api::PrepareStageReply> {
        let what = format!("PrepareStage {}", handle(request.get_ref().device.as_ref()));
        let reply =
            self.verb(what, move |verbs, _| async move { verbs.prepare_stage(request).await }).await?.into_inner();
        let staging_path = self.named(&reply.staging_path);
        Ok(Response::new(api::PrepareStageReply { staging_path, ..reply }))
    }

    async fn commit_stage(&self, request: Request<api::CsiDevice>) -> Answer<api::CommitStageReply> {
        let what = format!("CommitStage {}", request.get_ref().volume_handle);
        self.verb(what, move |verbs, _| async move { verbs.commit_stage(request).await }).await
    }

    async fn begin_unstage(&self, request: Request<api::EndStageRequest>) -> Answer<api::EndStageReply> {
        let what = format!("BeginUnstage {}", handle(request.get_ref().device.as_ref()));
        self.verb(what, move |verbs, _| async move { verbs.begin_unstage(request).await }).await
    }

    async fn end_stage(&self, request: Request<api::EndStageRequest>) -> Answer<api::EndStageReply> {
        let what = format!("EndStage {}", handle(request.get_ref().device.as_ref()));
        self.verb(what, move |verbs, _| async move { verbs.end_stage(request).await }).await
    }

    async fn prepare_publish(&self, request: Request<api::PreparePublishRequest>) -> Answer<api::PreparePublishReply> {
        let asked = request.get_ref();
        let handle = handle(asked.data.as_ref().and_then(|data| data.device.as_ref()));
        let what = format!("PreparePublish {handle} for {}", self.world.lock().short(&asked.pod_uid));
        let reply =
            self.verb(what, move |verbs, _| async move { verbs.prepare_publish(request).await }).await?.into_inner();
        let target_path = self.named(&reply.target_path);
        Ok(Response::new(api::PreparePublishReply { target_path, ..reply }))
    }

    async fn commit_publish(&self, request: Request<api::CommitPublishRequest>) -> Answer<api::CommitPublishReply> {
        let asked = request.get_ref();
        let pod = self.world.lock().short(&asked.pod_uid);
        let what = format!("CommitPublish {} for {pod}", handle(asked.device.as_ref()));
        let reply =
            self.verb(what, move |verbs, _| async move { verbs.commit_publish(request).await }).await?.into_inner();
        let host_path = self.named(&reply.host_path);
        Ok(Response::new(api::CommitPublishReply { host_path, ..reply }))
    }

    async fn begin_unpublish(&self, request: Request<api::EndPublishRequest>) -> Answer<api::EndPublishReply> {
        let asked = request.get_ref();
        let uid = asked.pod_uid.clone();
        let what = format!("BeginUnpublish {} of {}", handle(asked.device.as_ref()), self.world.lock().short(&uid));
        let world = self.world.clone();
        let act = move |verbs: Verbs, _| async move {
            world.lock().check_removal(&uid, "what is bound of volumes");
            verbs.begin_unpublish(request).await
        };
        self.verb(what, act).await
    }

    async fn end_publish(&self, request: Request<api::EndPublishRequest>) -> Answer<api::EndPublishReply> {
        let asked = request.get_ref();
        let pod = self.world.lock().short(&asked.pod_uid);
        let what = format!("EndPublish {} of {pod}", handle(asked.device.as_ref()));
        self.verb(what, move |verbs, _| async move { verbs.end_publish(request).await }).await
    }
}
