//! `kubelet.syncd.v1.Ooms`: what the kernel's log told of, for the node's event.

use std::sync::Arc;

use bulkhead_ipc::syncd::ooms_server::Ooms;
use bulkhead_ipc::syncd::{ReportOomReply, ReportOomRequest};
use kubelet_model::events::EventSink as _;
use tonic::{Request, Response, Status};

use super::late::Late;
use crate::ooms::{OomError, OomReports};
use crate::sync_loop::events::Reporter;

/// What answers, once it is there.
#[derive(Debug)]
struct Parts {
    reports: Arc<OomReports>,
    reporter: Arc<Reporter>,
}

/// See the module. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct OomsApi {
    parts: Late<Parts>,
}

impl OomsApi {
    /// From here on calls are answered.
    pub fn set(&self, reports: OomReports, reporter: Arc<Reporter>) {
        self.parts.set(Parts { reports: Arc::new(reports), reporter });
    }
}

#[tonic::async_trait]
impl Ooms for OomsApi {
    async fn report(&self, request: Request<ReportOomRequest>) -> Result<Response<ReportOomReply>, Status> {
        let parts = self.parts.get()?;
        let (reports, reporter, report) = (parts.reports.clone(), parts.reporter.clone(), request.into_inner());
        // On the thread that wrote it down: a caller that goes away takes no event with it.
        let told = tokio::task::spawn_blocking(move || {
            reports.take(&report).map(|event| event.into_iter().for_each(|event| reporter.emit_node(event)))
        });
        let told = told.await.map_err(|error| Status::internal(error.to_string()))?;
        told.map_err(|error| match &error {
            OomError::OtherBoot(_) => Status::failed_precondition(error.to_string()),
            OomError::Store(_) => Status::internal(bulkhead_types::chain(&error)),
        })?;
        Ok(Response::new(ReportOomReply {}))
    }
}
