//! `kubelet.syncd.v1.Streams`: the calls to the runtime behind exec, attach, port-forward, run and checkpoint, for
//! kubelet-statusd, which holds no connection to the runtime (decision 22). What is answered and in which words is
//! upstream's (`pkg/kubelet/kubelet_pods.go`, `pkg/kubelet/server/server.go`).
//!
//! A container is looked up in what was last seen of its pod, and at the runtime itself when it is not there, or when the
//! runtime does not take the one that is: it may have started or been replaced since.

mod lookup;
mod output;

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_cri::{Code, CriClient, CriError, v1};
use bulkhead_ipc::syncd as api;
use bulkhead_ipc::syncd::streams_server::Streams;
use bulkhead_types::{ContainerId, PodUid};
use futures_util::{Stream, StreamExt as _, future, stream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;
use tonic::{Request, Response, Status};

use crate::mirror_pods::MirrorPods;
use crate::service::late::starting;
use crate::sources::Sources;
use kubelet_model::pod::model::RuntimePod;
use kubelet_pleg::PodCache;
use lookup::{Candidate, Named};

/// Commands of `Run` at once. Each may hold the output that the runtime answers with, up to 16 MiB, twice while it is decoded:
/// the process's memory (`bulkhead_privileges`) has room for so many.
const RUNS: usize = 8;
/// How long a request waits for what this process has to learn after its start, and how often it looks.
const START: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(50);
/// Of an error's text, bytes: it travels in a header.
const TEXT_MAX: usize = 4 << 10;

type Answer<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// What the service needs, as soon as it is there.
#[derive(Debug)]
pub struct StreamParts {
    pub cri: CriClient,
    pub cache: Arc<PodCache>,
    pub sources: Arc<Sources>,
    pub mirror_pods: Arc<MirrorPods>,
    /// Where archives of checkpoints go; the runtime writes them.
    pub checkpoints_dir: PathBuf,
    /// `runtimeRequestTimeout`.
    pub request_timeout: Duration,
}

/// See the module. Cheap to clone.
#[derive(Debug, Clone)]
pub struct StreamsApi {
    parts: watch::Sender<Option<Arc<StreamParts>>>,
    runs: Arc<Semaphore>,
}

impl Default for StreamsApi {
    fn default() -> Self {
        StreamsApi { parts: watch::Sender::default(), runs: Arc::new(Semaphore::new(RUNS)) }
    }
}

impl StreamsApi {
    /// From here on calls are answered; before that nothing is known.
    pub fn set(&self, parts: StreamParts) {
        self.parts.send_replace(Some(Arc::new(parts)));
    }

    async fn parts(&self) -> Result<Arc<StreamParts>, Status> {
        let mut parts = self.parts.subscribe();
        let known = tokio::time::timeout(START, parts.wait_for(Option::is_some)).await;
        let known = known.ok().and_then(Result::ok).and_then(|parts| parts.clone());
        known.ok_or_else(starting)
    }
}

/// The container that a request means.
struct TargetContainer {
    pod: Candidate,
    full_name: String,
    container: String,
}

impl StreamParts {
    /// The pod by namespace, name and uid. `None`: there is one of that name, with another uid.
    async fn pod(&self, place: &api::PodPlace) -> Result<Option<Candidate>, Status> {
        let deadline = Instant::now() + START;
        loop {
            match self.named(place) {
                Named::Pod(found) => return Ok(Some(found)),
                Named::OtherUid => return Ok(None),
                Named::Nothing if self.sources.all_ready() => return Err(Status::not_found("pod does not exist")),
                Named::Nothing if Instant::now() >= deadline => {
                    return Err(Status::unavailable("kubelet-syncd does not know all pods yet"));
                }
                Named::Nothing => tokio::time::sleep(LOOK).await,
            }
        }
    }

    fn named(&self, place: &api::PodPlace) -> Named {
        let named = |pod: &kubelet_model::v1::Pod| {
            let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
            namespace == place.namespace && pod.metadata.name.as_deref() == Some(place.name.as_str())
        };
        let candidates = self.sources.pods().into_iter().filter(|pod| named(pod)).filter_map(|pod| {
            let uid = PodUid::parse(pod.metadata.uid.as_deref()?).ok()?;
            let mirror = kubelet_model::pod::spec::is_static(&pod).then(|| self.mirror_pods.get(&uid)).flatten();
            let runtime = self.cache.get(&uid);
            Some(Candidate { mirror: mirror.map(|object| object.uid.clone()), pod, runtime, uid })
        });
        lookup::choose(candidates.collect(), &place.uid)
    }

    async fn container(&self, place: Option<api::ContainerPlace>, words: Words) -> Result<TargetContainer, Status> {
        let place = place.ok_or_else(|| Status::invalid_argument("no container is named"))?;
        let pod = place.pod.ok_or_else(|| Status::invalid_argument("no pod is named"))?;
        let full_name = format!("{}_{}", pod.name, pod.namespace);
        match self.pod(&pod).await? {
            Some(pod) => {
                record(words.verb, &full_name, &pod, Some(&place.container));
                Ok(TargetContainer { pod, full_name, container: place.container })
            }
            None => Err(Status::internal((words.missing)(&place.container, &full_name))),
        }
    }

    /// What the runtime has of the pod at this moment.
    async fn look(&self, uid: &PodUid) -> Result<Arc<RuntimePod>, Status> {
        let looked = tokio::time::timeout(self.request_timeout, self.cache.get_newer_than(uid, Instant::now())).await;
        match looked {
            Ok(Ok(pod)) => Ok(pod),
            Ok(Err(error)) => Err(Status::internal(shown(&chain(&error)))),
            Err(_) => Err(Status::unavailable("the container runtime does not answer")),
        }
    }

    /// Calls the runtime for the running instance of the container; once more where that one is not the one that runs.
    async fn call<T, F>(
        &self,
        found: &TargetContainer,
        words: Words,
        call: impl Fn(CriClient, ContainerId) -> F + Send,
    ) -> Result<T, Status>
    where
        T: Send,
        F: Future<Output = Result<T, CriError>> + Send,
    {
        let Words { missing, refused, .. } = words;
        let (uid, name) = (&found.pod.uid, found.container.as_str());
        let first = match lookup::running(&found.pod.runtime, name) {
            None => None,
            Some(id) => match call(self.cri.clone(), id.clone()).await {
                Ok(answer) => return Ok(answer),
                Err(error) if error.is_unknown_outcome() => return Err(refused(&error)),
                Err(error) => Some((id, error)),
            },
        };
        let now = lookup::running(&*self.look(uid).await?, name);
        match (first, now) {
            (None, None) => Err(Status::internal(missing(name, &found.full_name))),
            (Some((before, error)), Some(now)) if before == now => Err(refused(&error)),
            (Some((_, error)), None) => Err(refused(&error)),
            (_, Some(now)) => call(self.cri.clone(), now).await.map_err(|error| refused(&error)),
        }
    }
}

/// How a kind of request is told that the container does not run, and that the runtime has refused.
#[derive(Clone, Copy)]
struct Words {
    verb: &'static str,
    /// Of the container's name and `<pod>_<namespace>`.
    missing: fn(&str, &str) -> String,
    refused: fn(&CriError) -> Status,
}

const EXEC: Words = Words { verb: "exec", missing: exec_missing, refused };
const ATTACH: Words = Words { verb: "attach", missing: attach_missing, refused };
const RUN: Words = Words { verb: "run", missing: exec_missing, refused: failed };
const CHECKPOINT: Words = Words { verb: "checkpoint", missing: checkpoint_missing, refused: failed };

/// A trace in the log of a process that the asker has no hand in: who may ask, kubelet-statusd decides alone (decision 59). A
/// command's words may be secret.
fn record(verb: &str, full_name: &str, pod: &Candidate, container: Option<&str>) {
    tracing::info!(verb, pod = full_name, uid = %pod.uid, container, "asked for by kubelet-statusd");
}

fn exec_missing(container: &str, _: &str) -> String {
    format!("container not found ({container:?})")
}

fn attach_missing(container: &str, pod: &str) -> String {
    format!("container {container} not found in pod {pod}")
}

fn checkpoint_missing(container: &str, _: &str) -> String {
    format!("container {container} not found")
}

/// The runtime's refusal; the codes are those that upstream tells apart (`cri-streaming/pkg/streaming/errors.go`).
fn refused(error: &CriError) -> Status {
    let text = shown(&error.to_string());
    match error.code {
        Code::NotFound => Status::not_found(text),
        Code::ResourceExhausted => Status::resource_exhausted(text),
        _ => Status::internal(text),
    }
}

/// The same where upstream tells no codes apart.
fn failed(error: &CriError) -> Status {
    Status::internal(shown(&error.to_string()))
}

/// As much of a text as a header holds.
fn shown(text: &str) -> String {
    let ends = text.char_indices().map(|(at, c)| at + c.len_utf8());
    let end = ends.take_while(|end| *end <= TEXT_MAX).last().unwrap_or(0);
    text[..end].to_owned()
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}

fn url(url: String) -> Result<Response<api::StreamUrl>, Status> {
    if url.is_empty() {
        return Err(Status::internal("URL is not set"));
    }
    Ok(Response::new(api::StreamUrl { url }))
}

#[tonic::async_trait]
impl Streams for StreamsApi {
    async fn exec(&self, request: Request<api::ExecRequest>) -> Result<Response<api::StreamUrl>, Status> {
        let parts = self.parts().await?;
        let request = request.into_inner();
        let found = parts.container(request.place, EXEC).await?;
        let exec = v1::ExecRequest {
            container_id: String::new(),
            cmd: request.command,
            tty: request.tty,
            stdin: request.stdin,
            stdout: request.stdout,
            stderr: request.stderr,
        };
        let ask = |cri: CriClient, id: ContainerId| {
            let request = v1::ExecRequest { container_id: id.to_string(), ..exec.clone() };
            async move { cri.exec(request).await }
        };
        url(parts.call(&found, EXEC, ask).await?.url)
    }

    async fn attach(&self, request: Request<api::AttachRequest>) -> Result<Response<api::StreamUrl>, Status> {
        let parts = self.parts().await?;
        let request = request.into_inner();
        let found = parts.container(request.place, ATTACH).await?;
        // A process has a terminal from its start on or never: what the client asks for does not matter.
        let Some(tty) = lookup::has_terminal(&found.pod.pod, &found.container) else {
            return Err(Status::internal(attach_missing(&found.container, &found.full_name)));
        };
        let (stdin, stdout, stderr) = (request.stdin, request.stdout, request.stderr);
        let ask = |cri: CriClient, id: ContainerId| {
            let request = v1::AttachRequest { container_id: id.to_string(), stdin, tty, stdout, stderr };
            async move { cri.attach(request).await }
        };
        url(parts.call(&found, ATTACH, ask).await?.url)
    }

    async fn port_forward(
        &self,
        request: Request<api::PortForwardRequest>,
    ) -> Result<Response<api::StreamUrl>, Status> {
        let parts = self.parts().await?;
        let request = request.into_inner();
        let place = request.pod.ok_or_else(|| Status::invalid_argument("no pod is named"))?;
        let Some(pod) = parts.pod(&place).await? else { return Err(Status::not_found("pod not found")) };
        record("port-forward", &format!("{}_{}", place.name, place.namespace), &pod, None);
        let sandbox = match lookup::sandbox(&pod.runtime) {
            Some(sandbox) => Some(sandbox),
            None => lookup::sandbox(&*parts.look(&pod.uid).await?),
        };
        let missing =
            || Status::internal(format!("pod not found ({:?})", format!("{}_{}", place.name, place.namespace)));
        let pod_sandbox_id = sandbox.ok_or_else(missing)?.to_string();
        let ask = v1::PortForwardRequest { pod_sandbox_id, port: request.ports };
        url(parts.cri.port_forward(ask).await.map_err(|error| refused(&error))?.url)
    }

    type RunStream = Answer<api::RunPart>;

    async fn run(&self, request: Request<api::RunRequest>) -> Result<Response<Self::RunStream>, Status> {
        let too_many = || Status::resource_exhausted("maximum number of in-flight requests exceeded");
        let slot = self.runs.clone().try_acquire_owned().map_err(|_| too_many())?;
        let service = self.clone();
        let request = request.into_inner();
        // A command has no deadline, so its stream begins before it: the call itself has one.
        let parts = stream::once(async move { service.run_to_its_end(request).await }).flat_map(move |outcome| {
            let _held: &OwnedSemaphorePermit = &slot;
            match outcome {
                Ok(reply) => stream::iter(output::parts(reply).map(Ok)).left_stream(),
                Err(status) => stream::once(future::ready(Err(status))).right_stream(),
            }
        });
        Ok(Response::new(Box::pin(parts)))
    }

    type CheckpointStream = Answer<api::CheckpointReply>;

    async fn checkpoint(
        &self,
        request: Request<api::CheckpointRequest>,
    ) -> Result<Response<Self::CheckpointStream>, Status> {
        let service = self.clone();
        let request = request.into_inner();
        Ok(Response::new(Box::pin(stream::once(async move { service.write_checkpoint(request).await }))))
    }
}

impl StreamsApi {
    async fn run_to_its_end(&self, request: api::RunRequest) -> Result<v1::ExecSyncResponse, Status> {
        let parts = self.parts().await?;
        let found = parts.container(request.place, RUN).await?;
        let ask = |cri: CriClient, id: ContainerId| {
            let (container_id, cmd) = (id.to_string(), request.command.clone());
            async move { cri.exec_sync_whole(v1::ExecSyncRequest { container_id, cmd, timeout: 0 }).await }
        };
        parts.call(&found, RUN, ask).await
    }

    async fn write_checkpoint(&self, request: api::CheckpointRequest) -> Result<api::CheckpointReply, Status> {
        let parts = self.parts().await?;
        let found = parts.container(request.place, CHECKPOINT).await?;
        if lookup::has_terminal(&found.pod.pod, &found.container).is_none() {
            return Err(Status::not_found(format!("container {} does not exist", found.container)));
        }
        if request.timeout < 0 {
            return Err(Status::internal("CheckpointContainer requires the timeout value to be > 0"));
        }
        let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ");
        // Both names are those of a pod and of a container that exist: no part of a path but their own.
        let file = format!("checkpoint-{}-{}-{now}.tar", found.full_name, found.container);
        let location = parts.checkpoints_dir.join(file).display().to_string();
        let least = i64::try_from(parts.request_timeout.as_secs()).unwrap_or(i64::MAX);
        let timeout = request.timeout.max(least);
        let ask = |cri: CriClient, id: ContainerId| {
            let (container_id, location) = (id.to_string(), location.clone());
            let request = v1::CheckpointContainerRequest { container_id, location, timeout };
            async move { cri.checkpoint_container(request).await }
        };
        parts.call(&found, CHECKPOINT, ask).await?;
        Ok(api::CheckpointReply { location })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runtimes_refusals() {
        let error = |code| CriError { code, method: "exec", message: "why".into() };
        for (code, expected) in [
            (Code::NotFound, Code::NotFound),
            (Code::ResourceExhausted, Code::ResourceExhausted),
            (Code::InvalidArgument, Code::Internal),
            (Code::Unavailable, Code::Internal),
            (Code::Unimplemented, Code::Internal),
        ] {
            assert_eq!(refused(&error(code)).code(), expected);
        }
        let status = refused(&error(Code::NotFound));
        assert_eq!(status.message(), "rpc error: code = NotFound desc = why");
        let long = CriError { code: Code::Unknown, method: "exec", message: "ä".repeat(TEXT_MAX) };
        assert!(refused(&long).message().len() <= TEXT_MAX);
    }

    #[test]
    fn words_for_what_is_not_there() {
        assert_eq!(exec_missing("x", "p_ns"), "container not found (\"x\")");
        assert_eq!(attach_missing("x", "p_ns"), "container x not found in pod p_ns");
        assert_eq!(checkpoint_missing("x", "p_ns"), "container x not found");
    }

    #[tokio::test(start_paused = true)]
    async fn before_anything_is_known_nothing_is_gone() {
        let api = StreamsApi::default();
        let refused = api.exec(Request::new(api::ExecRequest::default())).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unavailable);
        let mut run = api.run(Request::new(api::RunRequest::default())).await.unwrap().into_inner();
        assert_eq!(run.next().await.unwrap().unwrap_err().code(), Code::Unavailable);
    }

    #[tokio::test]
    async fn commands_at_once_are_bounded() {
        let api = StreamsApi::default();
        let mut held = Vec::new();
        for _ in 0..RUNS {
            held.push(api.run(Request::new(api::RunRequest::default())).await.unwrap());
        }
        let refused = api.run(Request::new(api::RunRequest::default())).await.err().unwrap();
        assert_eq!(refused.code(), Code::ResourceExhausted);
        held.pop();
        assert!(api.run(Request::new(api::RunRequest::default())).await.is_ok(), "a place is free again");
    }
}
