//! `kubelet.volnetd.v1.Csi`.

use bulkhead_ipc::volnetd::csi_server::Csi;
use bulkhead_ipc::volnetd::*;
use tonic::{Request, Response, Status};

use super::{Streamed, Verbs};

fn not_yet<T>() -> Result<T, Status> {
    Err(Status::unimplemented("not served yet"))
}

#[tonic::async_trait]
impl Csi for Verbs {
    async fn prepare_stage(&self, _: Request<PrepareStageRequest>) -> Result<Response<PrepareStageReply>, Status> {
        not_yet()
    }
    async fn commit_stage(&self, _: Request<CsiDevice>) -> Result<Response<CommitStageReply>, Status> {
        not_yet()
    }
    async fn begin_unstage(&self, _: Request<EndStageRequest>) -> Result<Response<EndStageReply>, Status> {
        not_yet()
    }
    async fn end_stage(&self, _: Request<EndStageRequest>) -> Result<Response<EndStageReply>, Status> {
        not_yet()
    }
    async fn prepare_publish(
        &self,
        _: Request<PreparePublishRequest>,
    ) -> Result<Response<PreparePublishReply>, Status> {
        not_yet()
    }
    async fn commit_publish(&self, _: Request<CommitPublishRequest>) -> Result<Response<CommitPublishReply>, Status> {
        not_yet()
    }
    async fn begin_unpublish(&self, _: Request<EndPublishRequest>) -> Result<Response<EndPublishReply>, Status> {
        not_yet()
    }
    async fn end_publish(&self, _: Request<EndPublishRequest>) -> Result<Response<EndPublishReply>, Status> {
        not_yet()
    }
    type ListStagedStream = Streamed<StagedVolume>;
    async fn list_staged(&self, _: Request<ListStagedRequest>) -> Result<Response<Self::ListStagedStream>, Status> {
        not_yet()
    }
    type ListPublishedStream = Streamed<PublishedVolume>;
    async fn list_published(
        &self,
        _: Request<ListPublishedRequest>,
    ) -> Result<Response<Self::ListPublishedStream>, Status> {
        not_yet()
    }
}
