//! What is probed: three servers in this program, so that no pod's own work is measured. They note how long each connection lasted,
//! which is how long whoever probes took with it; the floor makes the same connections, and commands straight over CRI.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bulkhead_testkit::cri::Cri;
use bulkhead_testkit::{Lab, netns};
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::header::{HeaderMap, HeaderValue};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::mix::Kind;
use crate::measure::own_cpu;

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";
const ASK: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
/// Uncompressed, two bytes long: field 1, SERVING.
const SERVING: [u8; 7] = [0, 0, 0, 0, 2, 8, 1];
/// Uncompressed and empty: the server as a whole.
const WHOLE_SERVER: [u8; 5] = [0; 5];
const CHECK: &str = "/grpc.health.v1.Health/Check";

/// How long connections lasted.
pub type Lasted = BTreeMap<Kind, Vec<Duration>>;

/// The servers; they end with it.
#[derive(Debug)]
pub struct Targets {
    /// Of HTTP, TCP and gRPC.
    pub addresses: BTreeMap<Kind, SocketAddr>,
    lasted: Arc<Mutex<Lasted>>,
    runtime: Option<tokio::runtime::Runtime>,
}

impl Targets {
    /// # Errors
    /// An address cannot be listened on.
    pub fn start(lab: &Lab) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let lasted = Arc::new(Mutex::new(Lasted::new()));
        let mut addresses = BTreeMap::new();
        for kind in [Kind::Http, Kind::Tcp, Kind::Grpc] {
            // A gRPC probe goes to its pod's address, which is the node's for a pod in the host's network.
            let listener = if kind == Kind::Grpc {
                let address = lab.netns().address();
                lab.netns().run(|| Ok(std::net::TcpListener::bind((address, 0))?))
            } else {
                Ok(std::net::TcpListener::bind((lab.netns().gateway(), 0))?)
            };
            let listener = listener.context("listening for probes")?;
            addresses.insert(kind, listener.local_addr()?);
            listener.set_nonblocking(true)?;
            let _inside = runtime.enter();
            runtime.spawn(serve(TcpListener::from_std(listener)?, kind, lasted.clone()));
        }
        Ok(Self { addresses, lasted, runtime: Some(runtime) })
    }

    /// What has ended since this was asked last.
    pub fn take(&self) -> Lasted {
        std::mem::take(&mut *self.lasted.lock())
    }
}

impl Drop for Targets {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn serve(listener: TcpListener, kind: Kind, lasted: Arc<Mutex<Lasted>>) {
    // One that cannot be accepted is the prober's failure.
    while let Ok((stream, _)) = listener.accept().await {
        let (begin, lasted) = (Instant::now(), lasted.clone());
        tokio::spawn(async move {
            // However it ends: some probers break the connection, and say themselves whether they had an answer.
            let _ = match kind {
                Kind::Grpc => grpc(stream).await,
                Kind::Exec | Kind::Http | Kind::Tcp => plain(stream).await,
            };
            let mut lasted = lasted.lock();
            lasted.entry(kind).or_default().push(begin.elapsed());
        });
    }
}

/// One that sends nothing is a TCP probe: its end is seen as an empty read.
async fn plain(mut stream: tokio::net::TcpStream) -> Result<()> {
    let mut request = [0; 1024];
    if stream.read(&mut request).await? > 0 {
        stream.write_all(ANSWER).await?;
        stream.shutdown().await?;
        while stream.read(&mut request).await? > 0 {}
    }
    Ok(())
}

async fn grpc(stream: tokio::net::TcpStream) -> Result<()> {
    // As servers in Go do.
    stream.set_nodelay(true)?;
    let answer = |request: Request<Incoming>| async move {
        request.into_body().collect().await?;
        let trailers = HeaderMap::from_iter([(hyper::header::HeaderName::from_static("grpc-status"), zero())]);
        let frames = [Frame::data(Bytes::from_static(&SERVING)), Frame::trailers(trailers)].map(Ok::<_, Infallible>);
        let mut response = Response::new(StreamBody::new(futures_util::stream::iter(frames)));
        response.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
        Ok::<_, hyper::Error>(response)
    };
    let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    Ok(server.serve_connection(TokioIo::new(stream), hyper::service::service_fn(answer)).await?)
}

fn zero() -> HeaderValue {
    HeaderValue::from_static("0")
}

/// What a bare loop needs for the same probes.
#[derive(Debug, Clone, Default)]
pub struct Floor {
    /// Of the loop's thread.
    pub cpu_ns: u64,
    pub execs: Vec<Duration>,
}

/// Each kind of `mix` once a second for so long, in one thread in the node's network. `containers`: where commands are run in turn.
///
/// # Errors
/// A probe failed.
pub fn floor(lab: &Lab, targets: &Targets, mix: &[Kind], containers: &[String], time: Duration) -> Result<Floor> {
    let socket: PathBuf = lab.containerd().socket();
    let ends = |begin: Instant, index: usize| begin + Duration::from_secs(1) * index as u32 / mix.len().max(1) as u32;
    netns::run_in(&lab.netns().path(), || {
        let cri = Cri::new(&socket)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (mut floor, begin, before) = (Floor::default(), Instant::now(), own_cpu()?);
        let seconds = time.as_secs().max(1) as usize;
        let mut containers = containers.iter().cycle();
        for (index, kind) in mix.iter().cycle().take(mix.len() * seconds).enumerate() {
            std::thread::sleep(ends(begin, index).saturating_duration_since(Instant::now()));
            let address = targets.addresses.get(kind);
            match kind {
                Kind::Exec => {
                    let at = Instant::now();
                    let container = containers.next().context("no container to run a command in")?;
                    ensure!(cri.exec(container, &["true"])?.0 == 0, "`true` has failed");
                    floor.execs.push(at.elapsed());
                }
                Kind::Http => {
                    let mut stream = TcpStream::connect(address.context("no HTTP server")?)?;
                    stream.write_all(ASK)?;
                    stream.read_to_end(&mut Vec::new())?;
                }
                Kind::Tcp => drop(TcpStream::connect(address.context("no TCP server")?)?),
                Kind::Grpc => runtime.block_on(check(*address.context("no gRPC server")?))?,
            }
        }
        floor.cpu_ns = own_cpu()?.saturating_sub(before);
        Ok(floor)
    })
}

async fn check(address: SocketAddr) -> Result<()> {
    let stream = tokio::net::TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let stream = TokioIo::new(stream);
    let (mut sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await?;
    let connection = tokio::spawn(connection);
    let request = Request::post(format!("http://{address}{CHECK}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Full::new(Bytes::from_static(&WHOLE_SERVER)))?;
    let answer = sender.send_request(request).await?.into_body().collect().await?;
    ensure!(answer.trailers().and_then(|all| all.get("grpc-status")) == Some(&zero()), "the check was refused");
    // Closed before the next one, as the server counts until then.
    connection.abort();
    let _ = connection.await;
    Ok(())
}
