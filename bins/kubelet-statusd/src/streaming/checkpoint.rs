//! `/checkpoint`: the runtime writes a container's state into an archive on this node (upstream
//! `pkg/kubelet/server/server.go` checkpoint).

use bulkhead_ipc::context::CallContext;
use bulkhead_ipc::syncd as api;
use http::{Request, StatusCode};
use hyper::body::Incoming;
use serde_json::json;

use super::options::checkpoint_timeout;
use super::syncd::{Refusal, Syncd, container_place};
use crate::routes::ContainerPath;
use crate::server::answer::{self, Answer};

/// Answers when the archive is written.
pub async fn serve(syncd: &Syncd, place: &ContainerPath, request: Request<Incoming>) -> Answer {
    let Some(timeout) = checkpoint_timeout(request.uri().query().unwrap_or_default()) else {
        return answer::text(StatusCode::NOT_FOUND, "cannot parse value of timeout parameter");
    };
    match write(syncd, place, timeout).await {
        Ok(location) => answer::json(json!({ "items": [location] }).to_string()),
        Err(status) => match Refusal::Syncd(status).status_and_text() {
            (StatusCode::INTERNAL_SERVER_ERROR, text) => {
                let name = format!("{}/{}/{}", place.pod.namespace, place.pod.pod, place.container);
                answer::text(StatusCode::INTERNAL_SERVER_ERROR, format!("checkpointing of {name} failed ({text})"))
            }
            (status, text) => answer::text(status, text),
        },
    }
}

async fn write(syncd: &Syncd, place: &ContainerPath, timeout: i64) -> Result<String, tonic::Status> {
    let message = api::CheckpointRequest { place: container_place(place), timeout };
    let mut replies =
        syncd.client().await?.checkpoint(CallContext::new().streaming_request(message)).await?.into_inner();
    let reply = replies.message().await?;
    reply.map(|reply| reply.location).ok_or_else(|| tonic::Status::internal("kubelet-syncd gave no answer"))
}
