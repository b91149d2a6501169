//! `/run`: a command to its end, and what it wrote (upstream `pkg/kubelet/server/server.go` getRun).

use bulkhead_ipc::context::CallContext;
use bulkhead_ipc::syncd as api;
use bulkhead_ipc::syncd::run_part::Part;
use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, future, stream};
use http::{HeaderValue, Request, StatusCode, header};
use hyper::body::Incoming;
use tonic::Streaming;

use super::options::run_command;
use super::syncd::{Refusal, Syncd, container_place};
use crate::routes::ContainerPath;
use crate::server::answer::{self, Answer, BoxError};

/// Answers when the command has ended; a client that goes away ends it. What it wrote is passed on as it is read.
pub async fn serve(syncd: &Syncd, place: &ContainerPath, request: Request<Incoming>) -> Answer {
    let command = run_command(request.uri().query().unwrap_or_default());
    match begin(syncd, place, command.clone()).await {
        Ok((0, parts)) => succeeded(parts).await,
        Ok((exit_code, parts)) => failed(&command, exit_code, parts),
        Err(status) => Refusal::Syncd(status).answer(),
    }
}

async fn begin(
    syncd: &Syncd,
    place: &ContainerPath,
    command: Vec<String>,
) -> Result<(i32, Streaming<api::RunPart>), tonic::Status> {
    let message = api::RunRequest { place: container_place(place), command };
    let mut parts = syncd.client().await?.run(CallContext::new().streaming_request(message)).await?.into_inner();
    match parts.message().await?.and_then(|part| part.part) {
        Some(Part::ExitCode(exit_code)) => Ok((exit_code, parts)),
        _ => Err(tonic::Status::internal("kubelet-syncd did not say how the command ended")),
    }
}

/// Both outputs, the second after the first. A command that wrote nothing has no content type either.
async fn succeeded(parts: Streaming<api::RunPart>) -> Answer {
    let mut pieces = Box::pin(output(parts, |part| match part {
        Part::Stdout(bytes) | Part::Stderr(bytes) => Some(bytes),
        Part::ExitCode(_) => None,
    }));
    let Some(first) = pieces.next().await else { return answer::empty(StatusCode::OK) };
    let mut answer = answer::stream(stream::once(future::ready(first)).chain(pieces));
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer
}

/// What the command wrote to stderr stands in the message.
fn failed(command: &[String], exit_code: i32, parts: Streaming<api::RunPart>) -> Answer {
    let words = format!("command '{}' exited with {exit_code}: ", command.join(" "));
    let stderr = output(parts, |part| match part {
        Part::Stderr(bytes) => Some(bytes),
        Part::Stdout(_) | Part::ExitCode(_) => None,
    });
    let mut answer = answer::stream(stream::once(future::ready(Ok(Bytes::from(words)))).chain(stderr));
    *answer.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    answer
}

fn output(
    parts: Streaming<api::RunPart>,
    wanted: impl Fn(Part) -> Option<Vec<u8>> + Send + 'static,
) -> impl Stream<Item = Result<Bytes, BoxError>> + Send {
    parts.filter_map(move |part| {
        future::ready(match part {
            Ok(part) => part.part.and_then(&wanted).map(|bytes| Ok(Bytes::from(bytes))),
            Err(status) => Some(Err(status.into())),
        })
    })
}
