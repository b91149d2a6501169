//! `kubelet.statusd.v1.Status`: what this process serves and what its checks say, for an operator.

use std::sync::Arc;

use bulkhead_ipc::statusd::status_server::Status as StatusApi;
use bulkhead_ipc::statusd::{Check, GetStatusRequest, StatusReply};
use tonic::{Request, Response, Status};

use crate::health_checks::HealthChecks;
use crate::listening::Listeners;
use crate::routes::Surface;

/// The service.
#[derive(Debug)]
pub struct StatusService {
    pub node_name: String,
    pub health: Arc<HealthChecks>,
    pub listeners: Listeners,
}

#[tonic::async_trait]
impl StatusApi for StatusService {
    async fn get(&self, _: Request<GetStatusRequest>) -> Result<Response<StatusReply>, Status> {
        let checks = self.health.all(Surface::Healthz).await;
        let checks = checks.into_iter().map(|(name, outcome)| check(name, outcome, false));
        let api_server = self.health.api_server().map(|outcome| check("apiserver", outcome, true));
        Ok(Response::new(StatusReply {
            node_name: self.node_name.clone(),
            listening: self.listeners.urls(),
            checks: checks.chain(api_server).collect(),
        }))
    }
}

fn check(name: &str, outcome: Result<(), String>, informative: bool) -> Check {
    Check { name: name.to_owned(), ok: outcome.is_ok(), message: outcome.err().unwrap_or_default(), informative }
}
