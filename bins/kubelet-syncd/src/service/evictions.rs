//! `kubelet.syncd.v1.Eviction`: the eviction manager's questions, put to the sync loop.

use std::sync::Arc;

use bulkhead_ipc::syncd as api;
use bulkhead_ipc::syncd::eviction_server::Eviction;
use tokio::sync::{mpsc, oneshot};
use tonic::{Request, Response, Status};

use super::api::Answer;
use super::late::Late;
use crate::evictions::pressure::PressureReports;
use crate::sync_loop::evictions::{EvictionError, Question};

/// What answers, once it is there.
#[derive(Debug)]
struct Parts {
    questions: mpsc::Sender<Question>,
    pressure: Arc<PressureReports>,
}

/// See the module. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct EvictionApi {
    parts: Late<Parts>,
}

impl EvictionApi {
    /// From here on calls are answered.
    pub fn set(&self, questions: mpsc::Sender<Question>, pressure: Arc<PressureReports>) {
        self.parts.set(Parts { questions, pressure });
    }

    async fn ask<T>(
        &self,
        question: impl FnOnce(oneshot::Sender<Result<T, EvictionError>>) -> Question,
    ) -> Result<T, Status> {
        let (reply, answer) = oneshot::channel();
        let ended = || Status::unavailable("kubelet-syncd is ending");
        self.parts.get()?.questions.send(question(reply)).await.map_err(|_| ended())?;
        answer.await.map_err(|_| ended())?.map_err(|error| match &error {
            EvictionError::SourcesNotReady => Status::unavailable(error.to_string()),
            EvictionError::BadRequest(_) | EvictionError::Resource(_) => Status::invalid_argument(error.to_string()),
            EvictionError::NotWritten(_) => Status::internal(error.to_string()),
        })
    }
}

fn stream<T: Send + 'static>(items: Vec<T>) -> Answer<T> {
    Box::pin(futures_util::stream::iter(items.into_iter().map(Ok)))
}

#[tonic::async_trait]
impl Eviction for EvictionApi {
    type CandidatesStream = Answer<api::Candidate>;

    async fn candidates(
        &self,
        request: Request<api::CandidatesRequest>,
    ) -> Result<Response<Self::CandidatesStream>, Status> {
        let api::CandidatesRequest { limited_only } = request.into_inner();
        Ok(Response::new(stream(self.ask(|reply| Question::Candidates { limited_only, reply }).await?)))
    }

    async fn evict(&self, request: Request<api::EvictRequest>) -> Result<Response<api::EvictReply>, Status> {
        let request = Box::new(request.into_inner());
        let outcome = self.ask(|reply| Question::Evict(request, reply)).await?;
        Ok(Response::new(api::EvictReply { outcome: outcome.into() }))
    }

    type InFlightStream = Answer<api::EvictionInFlight>;

    async fn in_flight(&self, _: Request<api::InFlightRequest>) -> Result<Response<Self::InFlightStream>, Status> {
        Ok(Response::new(stream(self.ask(Question::InFlight).await?)))
    }

    async fn report_pressure(
        &self,
        request: Request<api::ReportPressureRequest>,
    ) -> Result<Response<api::ReportPressureReply>, Status> {
        let pressure = self.parts.get()?.pressure.clone();
        let report = request.into_inner();
        let kept = tokio::task::spawn_blocking(move || pressure.report(report)).await;
        let kept = kept.map_err(|error| Status::internal(error.to_string()))?;
        kept.map_err(|error| Status::internal(format!("the report could not be kept: {error}")))?;
        Ok(Response::new(api::ReportPressureReply {}))
    }

    async fn reclaim(&self, request: Request<api::ReclaimRequest>) -> Result<Response<api::ReclaimReply>, Status> {
        let request = request.into_inner();
        self.ask(|reply| Question::Reclaim(request, reply)).await?;
        Ok(Response::new(api::ReclaimReply {}))
    }
}
