//! Stands between the node and the runtime, passes everything on untouched and keeps what was asked.

use std::collections::HashMap;
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::{Request, Response, Uri};
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use prost_reflect::{DescriptorPool, DynamicMessage, SerializeOptions};
use serde_json::{Value, json};
use tokio::net::{UnixListener, UnixStream};

/// A call that changes something at the runtime.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// `RunPodSandbox`, ...
    pub method: String,
    /// The request as protobuf's JSON with the names of the definition, defaults left out.
    pub request: Value,
    /// The pod that it is about; empty where that is not known.
    pub pod_uid: String,
    /// The container that its id stands for, `name/attempt`; empty where it names none.
    pub of: String,
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

#[derive(Debug, Default)]
struct Kept {
    /// Calls of this method are answered by the proxy, with an error.
    refused: Option<String>,
    /// Calls of these methods are answered by the proxy, each with this message.
    answers: HashMap<String, Bytes>,
    calls: Vec<(Instant, Call)>,
    /// Ids of sandboxes and containers.
    ids: HashMap<String, Owner>,
}

/// What an id that the runtime gave stands for.
#[derive(Debug, Clone, Default)]
struct Owner {
    pod_uid: String,
    /// `name/attempt`; empty for a sandbox.
    container: String,
}

/// The proxy; ends when it is dropped.
#[derive(Debug)]
pub struct Proxy {
    socket: PathBuf,
    kept: Arc<Mutex<Kept>>,
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
        let kept: Arc<Mutex<Kept>> = Arc::default();
        let tasks = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let listener = {
            let _inside = tasks.enter();
            UnixListener::bind(socket).with_context(|| format!("listening on {}", socket.display()))?
        };
        let (shared, runtime) = (kept.clone(), runtime.to_owned());
        tasks.spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (pool, kept, runtime) = (pool.clone(), shared.clone(), runtime.clone());
                tokio::spawn(async move {
                    if let Err(error) = connection(client, &runtime, pool, kept).await {
                        eprintln!("CRI proxy: {error:#}");
                    }
                });
            }
        });
        Ok(Self { socket: socket.to_owned(), kept, _runtime: tasks })
    }

    /// For `containerRuntimeEndpoint`.
    pub fn endpoint(&self) -> String {
        format!("unix://{}", self.socket.display())
    }

    /// From now on calls of this method fail as at a runtime with a fault (UNKNOWN, `refused by the test`); none: no more.
    pub fn refuse(&self, method: Option<&str>) {
        self.kept.lock().refused = method.map(str::to_owned);
    }

    /// From now on the runtime says that images and containers' writable layers lie in these folders.
    ///
    /// # Errors
    /// A definition is missing.
    pub fn file_systems(&self, images: &Path, containers: &Path) -> Result<()> {
        let usage = |folder: &Path| json!([{"fs_id": {"mountpoint": folder}, "used_bytes": {"value": 1}}]);
        let answer = json!({"image_filesystems": usage(images), "container_filesystems": usage(containers)});
        let message = encoded("ImageFsInfoResponse", &answer)?;
        let length = u32::try_from(message.len())?.to_be_bytes();
        let framed = [&[0], &length[..], &message].concat();
        let mut kept = self.kept.lock();
        kept.answers.insert("ImageFsInfo".to_owned(), framed.into());
        Ok(())
    }

    /// Everything that was asked so far, in order.
    pub fn calls(&self) -> Vec<Call> {
        let kept = self.kept.lock();
        kept.calls.iter().map(|(_, call)| call.clone()).collect()
    }

    /// What was asked about a pod so far, in order, each with the seconds since the first.
    pub fn timed(&self, pod_uid: &str) -> Vec<(f64, Call)> {
        let kept = self.kept.lock();
        let mut of_pod = kept.calls.iter().filter(|(_, call)| call.pod_uid == pod_uid).peekable();
        let first = of_pod.peek().map(|(at, _)| *at);
        of_pod.map(|(at, call)| (first.map_or(0.0, |first| (*at - first).as_secs_f64()), call.clone())).collect()
    }
}

/// A recorded request as the runtime takes it.
///
/// # Errors
/// It is none of that name.
pub fn encoded(message: &str, request: &Value) -> Result<Vec<u8>> {
    use prost_reflect::prost::Message as _;
    let pool = definitions()?;
    let descriptor = pool.get_message_by_name(&format!("runtime.v1.{message}")).context("no such message")?;
    let message = DynamicMessage::deserialize(descriptor, request).with_context(|| request.to_string())?;
    Ok(message.encode_to_vec())
}

fn definitions() -> Result<DescriptorPool> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/cri/proto");
    let files = protox::compile([folder.join("runtime/v1/api.proto")], [&folder]).context("compiling the CRI")?;
    DescriptorPool::from_file_descriptor_set(files).context("reading the CRI's definitions")
}

async fn connection(client: UnixStream, runtime: &Path, pool: DescriptorPool, kept: Arc<Mutex<Kept>>) -> Result<()> {
    let stream = UnixStream::connect(runtime).await.context("connecting to the runtime")?;
    let (sender, upstream) =
        hyper::client::conn::http2::handshake::<_, _, Full<Bytes>>(TokioExecutor::new(), TokioIo::new(stream)).await?;
    tokio::spawn(upstream);
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let (sender, pool, kept) = (sender.clone(), pool.clone(), kept.clone());
        async move {
            let method = request.uri().path().rsplit('/').next().map(str::to_owned);
            let refused = kept.lock().refused.clone();
            if refused.is_some() && refused == method {
                return Ok::<_, Infallible>(refusal("2", "refused by the test"));
            }
            let own = method.and_then(|method| kept.lock().answers.get(&method).cloned());
            if let Some(message) = own {
                return Ok(message_of_our_own(message));
            }
            let answer = pass_on(request, sender, &pool, &kept).await;
            Ok(answer.unwrap_or_else(|error| {
                // What a broken connection to the runtime looks like to a client of it.
                eprintln!("CRI proxy: {error:#}");
                refusal("14", "")
            }))
        }
    });
    hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(client), service)
        .await?;
    Ok(())
}

/// An answer that is an error: its code, and a message in which nothing needs to be escaped.
fn refusal(code: &'static str, message: &'static str) -> Answer {
    let mut refusal = Response::new(Full::new(Bytes::new()).map_err(|never| match never {}).boxed());
    let headers = [("grpc-status", code), ("grpc-message", message), ("content-type", "application/grpc")];
    for (name, value) in headers {
        refusal.headers_mut().insert(name, http::HeaderValue::from_static(value));
    }
    refusal
}

/// An answer without the runtime.
fn message_of_our_own(message: Bytes) -> Answer {
    let mut trailers = http::HeaderMap::new();
    trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
    let frames = [Frame::data(message), Frame::trailers(trailers)].map(Ok::<_, hyper::Error>);
    let mut answer = Response::new(BodyExt::boxed(StreamBody::new(futures_util::stream::iter(frames))));
    answer.headers_mut().insert("content-type", http::HeaderValue::from_static("application/grpc"));
    answer
}

type Answer = Response<http_body_util::combinators::BoxBody<Bytes, hyper::Error>>;

async fn pass_on(
    request: Request<Incoming>,
    mut sender: hyper::client::conn::http2::SendRequest<Full<Bytes>>,
    pool: &DescriptorPool,
    kept: &Mutex<Kept>,
) -> Result<Answer> {
    let (mut head, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let path = head.uri.path().to_owned();
    let call = decode(&path, &body, pool);
    head.uri = Uri::builder()
        .scheme("http")
        .authority("localhost")
        .path_and_query(head.uri.path_and_query().context("a request without a path")?.clone())
        .build()?;
    sender.ready().await?;
    let asks_for_id =
        call.as_ref().is_some_and(|call| matches!(call.method.as_str(), "RunPodSandbox" | "CreateContainer"));
    let owner = call.map(|call| note(kept, call)).unwrap_or_default();
    let answer = sender.send_request(Request::from_parts(head, Full::new(body))).await?;
    if !asks_for_id {
        return Ok(answer.map(BodyExt::boxed));
    }
    // The id that the runtime gave tells later which pod a call is about.
    let (head, body) = answer.into_parts();
    let collected = body.collect().await?;
    let trailers = collected.trailers().cloned();
    let bytes = collected.to_bytes();
    let mut kept = kept.lock();
    if let Some(id) = given_id(&path, &bytes, pool) {
        kept.ids.insert(id, owner);
    }
    drop(kept);
    let frames = [Some(Frame::data(bytes)), trailers.map(Frame::trailers)];
    let frames = frames.into_iter().flatten().map(Ok::<_, hyper::Error>).collect::<Vec<_>>();
    let body = StreamBody::new(futures_util::stream::iter(frames));
    Ok(Response::from_parts(head, BodyExt::boxed(body)))
}

/// Keeps the call; answers what the id stands for that the runtime may give in its answer.
fn note(kept: &Mutex<Kept>, mut call: Call) -> Owner {
    let mut kept = kept.lock();
    let text = |pointer: &str| call.request.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
    let of_config = |pod_uid: Option<String>| {
        let metadata = &call.request["config"]["metadata"];
        let attempt = metadata["attempt"].as_u64().unwrap_or_default();
        let name = metadata["name"].as_str().filter(|_| call.method == "CreateContainer");
        let container = name.map(|name| format!("{name}/{attempt}")).unwrap_or_default();
        Owner { pod_uid: pod_uid.unwrap_or_default(), container }
    };
    let owner = match call.method.as_str() {
        "RunPodSandbox" => of_config(text("/config/metadata/uid")),
        "CreateContainer" | "PullImage" => of_config(text("/sandbox_config/metadata/uid")),
        _ => {
            let id = text("/container_id").or_else(|| text("/pod_sandbox_id")).unwrap_or_default();
            kept.ids.get(&id).cloned().unwrap_or_default()
        }
    };
    call.pod_uid = owner.pod_uid.clone();
    call.of = owner.container.clone();
    kept.calls.push((Instant::now(), call));
    owner
}

fn given_id(path: &str, body: &[u8], pool: &DescriptorPool) -> Option<String> {
    let (service, method) = path.strip_prefix('/')?.split_once('/')?;
    let output = pool.get_service_by_name(service)?.methods().find(|m| m.name() == method)?.output();
    let message = DynamicMessage::decode(output, body.get(5..)?).ok()?;
    ["pod_sandbox_id", "container_id"]
        .iter()
        .find_map(|field| Some(message.get_field_by_name(field)?.as_str()?.to_owned()))
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
    Some(Call { method: method.to_owned(), request, pod_uid: String::new(), of: String::new() })
}
