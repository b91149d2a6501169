//! Stands between the node and the runtime, passes everything on untouched and keeps what was asked.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response, Uri};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost_reflect::{DescriptorPool, DynamicMessage, SerializeOptions};
use serde_json::Value;
use tokio::net::{UnixListener, UnixStream};

/// A call that changes something at the runtime.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// `RunPodSandbox`, ...
    pub method: String,
    /// The request as protobuf's JSON with the names of the definition, defaults left out.
    pub request: Value,
}

/// Calls that change nothing are not kept: how often they are made is no part of the comparison.
const KEPT: [&str; 9] = [
    "RunPodSandbox",
    "CreateContainer",
    "StartContainer",
    "StopContainer",
    "StopPodSandbox",
    "RemoveContainer",
    "RemovePodSandbox",
    "PullImage",
    "ExecSync",
];

/// The proxy; ends when it is dropped.
#[derive(Debug)]
pub struct Proxy {
    socket: PathBuf,
    calls: Arc<Mutex<Vec<Call>>>,
    // Dropping it ends the tasks.
    _runtime: tokio::runtime::Runtime,
}

impl Proxy {
    /// Listens on `socket` for the runtime behind `runtime`.
    ///
    /// # Errors
    /// The socket cannot be made, or the definitions of the CRI do not compile.
    pub fn start(socket: &Path, runtime: &Path) -> Result<Self> {
        let pool = definitions()?;
        let calls: Arc<Mutex<Vec<Call>>> = Arc::default();
        let tasks = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let listener = {
            let _inside = tasks.enter();
            UnixListener::bind(socket).with_context(|| format!("listening on {}", socket.display()))?
        };
        let (kept, runtime) = (calls.clone(), runtime.to_owned());
        tasks.spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (pool, kept, runtime) = (pool.clone(), kept.clone(), runtime.clone());
                tokio::spawn(async move {
                    if let Err(error) = connection(client, &runtime, pool, kept).await {
                        eprintln!("CRI proxy: {error:#}");
                    }
                });
            }
        });
        Ok(Self { socket: socket.to_owned(), calls, _runtime: tasks })
    }

    /// For `containerRuntimeEndpoint`.
    pub fn endpoint(&self) -> String {
        format!("unix://{}", self.socket.display())
    }

    /// Everything that was asked so far, in order.
    pub fn calls(&self) -> Vec<Call> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn definitions() -> Result<DescriptorPool> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/cri/proto");
    let files = protox::compile([folder.join("runtime/v1/api.proto")], [&folder]).context("compiling the CRI")?;
    DescriptorPool::from_file_descriptor_set(files).context("reading the CRI's definitions")
}

async fn connection(
    client: UnixStream,
    runtime: &Path,
    pool: DescriptorPool,
    calls: Arc<Mutex<Vec<Call>>>,
) -> Result<()> {
    let stream = UnixStream::connect(runtime).await.context("connecting to the runtime")?;
    let (sender, upstream) =
        hyper::client::conn::http2::handshake::<_, _, Full<Bytes>>(TokioExecutor::new(), TokioIo::new(stream)).await?;
    tokio::spawn(upstream);
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let (sender, pool, calls) = (sender.clone(), pool.clone(), calls.clone());
        async move {
            let answer = pass_on(request, sender, &pool, &calls).await;
            Ok::<_, Infallible>(answer.unwrap_or_else(|error| {
                // What a broken connection to the runtime looks like to a client of it.
                eprintln!("CRI proxy: {error:#}");
                let mut refusal = Response::new(Full::new(Bytes::new()).map_err(|never| match never {}).boxed());
                let status = http::HeaderValue::from_static("14");
                refusal.headers_mut().insert("grpc-status", status);
                refusal.headers_mut().insert("content-type", http::HeaderValue::from_static("application/grpc"));
                refusal
            }))
        }
    });
    hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(client), service)
        .await?;
    Ok(())
}

type Answer = Response<http_body_util::combinators::BoxBody<Bytes, hyper::Error>>;

async fn pass_on(
    request: Request<Incoming>,
    mut sender: hyper::client::conn::http2::SendRequest<Full<Bytes>>,
    pool: &DescriptorPool,
    calls: &Mutex<Vec<Call>>,
) -> Result<Answer> {
    let (mut head, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    if let Some(call) = decode(head.uri.path(), &body, pool) {
        calls.lock().unwrap_or_else(PoisonError::into_inner).push(call);
    }
    head.uri = Uri::builder()
        .scheme("http")
        .authority("localhost")
        .path_and_query(head.uri.path_and_query().context("a request without a path")?.clone())
        .build()?;
    sender.ready().await?;
    let answer = sender.send_request(Request::from_parts(head, Full::new(body))).await?;
    Ok(answer.map(BodyExt::boxed))
}

/// A request that changes something; `body` is one gRPC message with its five bytes of head.
fn decode(path: &str, body: &[u8], pool: &DescriptorPool) -> Option<Call> {
    let (service, method) = path.strip_prefix('/')?.split_once('/')?;
    if !KEPT.contains(&method) {
        return None;
    }
    let input = pool.get_service_by_name(service)?.methods().find(|m| m.name() == method)?.input();
    let message = DynamicMessage::decode(input, body.get(5..)?).ok()?;
    let options = SerializeOptions::new().use_proto_field_name(true).skip_default_fields(true);
    let request = message.serialize_with_options(serde_json::value::Serializer, &options).ok()?;
    Some(Call { method: method.to_owned(), request })
}
