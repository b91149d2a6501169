//! `kubelet.volnetd.v1.Shutdown`.

use bulkhead_ipc::volnetd::shutdown_server::Shutdown;
use bulkhead_ipc::volnetd::{ReleaseShutdownReply, ReleaseShutdownRequest};
use tonic::{Request, Response, Status};

use super::Verbs;

#[tonic::async_trait]
impl Shutdown for Verbs {
    async fn release(
        &self,
        _request: Request<ReleaseShutdownRequest>,
    ) -> Result<Response<ReleaseShutdownReply>, Status> {
        let released = self.node.inhibitor.release().await;
        Ok(Response::new(ReleaseShutdownReply { released }))
    }
}
