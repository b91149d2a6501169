//! A blocking client of a node's HTTP servers, for tests: any certificate or token, any TLS version, answers whole or as
//! they come, connections that leave HTTP behind, and bare connections for what no proper client sends. By default the
//! server's certificate is not checked, as the API server does with kubelets.
//!
//! ```no_run
//! # fn main() -> anyhow::Result<()> {
//! use bulkhead_testkit::cluster::client::Credential;
//! use bulkhead_testkit::https::Https;
//! let node = Https::new("198.18.1.2:10250".parse()?, &Credential::Nothing);
//! assert_eq!(node.get("/pods")?.status, 401);
//! # Ok(()) }
//! ```

mod tls;
mod wire;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use http::{HeaderMap, Method, Request, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::SupportedProtocolVersion;
use rustls::pki_types::CertificateDer;
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

pub use self::wire::{Arriving, Connection, Counted, Reader, Writer};
use crate::cluster::client::{Answer, Credential};
use crate::netns;

/// How long an answer, or the next part of one, may take.
pub const LIMIT: Duration = Duration::from_secs(30);
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// Far above any answer that is read at once.
const MAX_ANSWER: usize = 256 << 20;

/// Which server, and how it is spoken to. Each request has a connection of its own.
#[derive(Debug, Clone)]
pub struct Https {
    address: SocketAddr,
    namespace: Option<PathBuf>,
    credential: Credential,
    trusted: Option<Trusted>,
    versions: Vec<&'static SupportedProtocolVersion>,
    encrypted: bool,
    http2: bool,
}

/// What the server's certificate has to be like.
#[derive(Debug, Clone)]
struct Trusted {
    /// PEM of the authorities.
    ca: String,
    /// The name that it has to carry; the address where there is none.
    name: Option<String>,
}

/// What became of a request to leave HTTP.
#[derive(Debug)]
pub enum Upgrade {
    /// 101: its headers, and the connection from then on.
    Switched(HeaderMap, Connection),
    /// Anything else.
    Refused(Answer),
}

impl Upgrade {
    /// The connection.
    ///
    /// # Errors
    /// The refusal.
    pub fn switched(self) -> Result<(HeaderMap, Connection)> {
        match self {
            Self::Switched(headers, connection) => Ok((headers, connection)),
            Self::Refused(answer) => bail!("{}: {}", answer.status, String::from_utf8_lossy(&answer.body)),
        }
    }

    /// The refusal.
    ///
    /// # Errors
    /// It was accepted.
    pub fn refused(self) -> Result<Answer> {
        match self {
            Self::Switched(..) => bail!("101: the connection was switched"),
            Self::Refused(answer) => Ok(answer),
        }
    }
}

/// All clients of the process share one thread.
fn runtime() -> Result<&'static Runtime> {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    if let Some(runtime) = RUNTIME.get() {
        return Ok(runtime);
    }
    let built = tokio::runtime::Builder::new_multi_thread().worker_threads(1).thread_name("https").enable_all().build();
    let built = built.context("starting the clients' runtime")?;
    Ok(RUNTIME.get_or_init(|| built))
}

impl Https {
    /// A server that speaks TLS, of whatever certificate.
    pub fn new(address: SocketAddr, credential: &Credential) -> Self {
        Self {
            address,
            namespace: None,
            credential: credential.clone(),
            trusted: None,
            versions: rustls::ALL_VERSIONS.to_vec(),
            encrypted: true,
            http2: false,
        }
    }

    /// A server that speaks plain HTTP.
    pub fn plain(address: SocketAddr) -> Self {
        Self { encrypted: false, ..Self::new(address, &Credential::Nothing) }
    }

    /// As somebody else.
    pub fn with(&self, credential: &Credential) -> Self {
        Self { credential: credential.clone(), ..self.clone() }
    }

    /// Reaches the server from inside a network namespace, known by its file (`lab.netns().path()`): for what listens
    /// on the loopback address there.
    pub fn within(mut self, namespace: &Path) -> Self {
        self.namespace = Some(namespace.to_owned());
        self
    }

    /// The server's certificate has to come from one of the authorities (PEM) and to be for `name`, or for the address.
    pub fn trusting(mut self, ca: &str, name: Option<&str>) -> Self {
        self.trusted = Some(Trusted { ca: ca.to_owned(), name: name.map(str::to_owned) });
        self
    }

    /// Only this version of TLS, such as `&rustls::version::TLS12`.
    pub fn with_version(mut self, version: &'static SupportedProtocolVersion) -> Self {
        self.versions = vec![version];
        self
    }

    /// HTTP/2 instead of HTTP/1.1.
    pub fn over_http2(mut self) -> Self {
        self.http2 = true;
        self
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    fn tcp(&self) -> Result<std::net::TcpStream> {
        let connect = || {
            std::net::TcpStream::connect_timeout(&self.address, CONNECT_LIMIT)
                .with_context(|| format!("connecting to {}", self.address))
        };
        let stream = match &self.namespace {
            Some(namespace) => netns::run_in(namespace, connect)?,
            None => connect()?,
        };
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    async fn wire(&self, stream: std::net::TcpStream) -> Result<(Box<dyn wire::Wire>, Vec<CertificateDer<'static>>)> {
        let stream = TcpStream::from_std(stream)?;
        if !self.encrypted {
            return Ok((Box::new(stream), Vec::new()));
        }
        let stream = tls::connect(self, stream).await.with_context(|| format!("TLS with {}", self.address))?;
        let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
        let chain = chain.iter().map(|one| one.clone().into_owned()).collect();
        Ok((Box::new(stream), chain))
    }

    fn block_on<T>(&self, what: &str, work: impl Future<Output = Result<T>>) -> Result<T> {
        runtime()?
            .block_on(async { tokio::time::timeout(LIMIT, work).await })
            .with_context(|| format!("{what}: nothing within {} s", LIMIT.as_secs()))?
            .with_context(|| what.to_owned())
    }

    /// A connection on which nothing has been said but TLS' greetings: for requests that are none.
    ///
    /// # Errors
    /// No connection, or TLS did not come about.
    pub fn connect(&self) -> Result<Connection> {
        let stream = self.tcp()?;
        let (wire, _) = self.block_on("connecting", self.wire(stream))?;
        Ok(Connection::new(runtime()?.handle(), wire))
    }

    /// The certificates that the server shows, its own first, in DER.
    ///
    /// # Errors
    /// No connection, or TLS did not come about.
    pub fn certificates(&self) -> Result<Vec<CertificateDer<'static>>> {
        let stream = self.tcp()?;
        Ok(self.block_on("connecting", self.wire(stream))?.1)
    }

    async fn send(
        &self,
        stream: std::net::TcpStream,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<http::Response<Incoming>> {
        let (wire, _) = self.wire(stream).await?;
        let scheme = if self.encrypted { "https" } else { "http" };
        let uri = if self.http2 { format!("{scheme}://{}{path}", self.address) } else { path.to_owned() };
        let mut request = Request::builder().method(method).uri(uri);
        if !self.http2 {
            request = request.header(header::HOST, self.address.to_string());
        }
        if let Credential::Token(token) = &self.credential {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(Bytes::copy_from_slice(body)))?;
        let wire = TokioIo::new(wire);
        if self.http2 {
            let (mut sender, connection) =
                hyper::client::conn::http2::handshake(TokioExecutor::new(), wire).await.context("greeting")?;
            tokio::spawn(connection);
            return Ok(sender.send_request(request).await?);
        }
        let (mut sender, connection) = hyper::client::conn::http1::handshake(wire).await.context("greeting")?;
        tokio::spawn(connection.with_upgrades());
        Ok(sender.send_request(request).await?)
    }

    /// Any request; an answer of whatever code is a success.
    ///
    /// # Errors
    /// No answer.
    pub fn request(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Result<Answer> {
        let (method, stream) = (Method::from_bytes(method.as_bytes())?, self.tcp()?);
        let what = format!("{method} {path}");
        self.block_on(&what, async { whole(self.send(stream, method, path, headers, body).await?).await })
    }

    /// A GET.
    ///
    /// # Errors
    /// No answer.
    pub fn get(&self, path: &str) -> Result<Answer> {
        self.request("GET", path, &[], b"")
    }

    /// A POST.
    ///
    /// # Errors
    /// No answer.
    pub fn post(&self, path: &str, body: &[u8]) -> Result<Answer> {
        self.request("POST", path, &[], body)
    }

    /// A request whose answer is read as it comes; dropping it breaks the connection.
    ///
    /// # Errors
    /// No answer's head.
    pub fn open(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> Result<Arriving> {
        let (method, stream) = (Method::from_bytes(method.as_bytes())?, self.tcp()?);
        let what = format!("{method} {path}");
        let response = self.block_on(&what, self.send(stream, method, path, headers, b""))?;
        Ok(Arriving::new(runtime()?.handle(), response))
    }

    /// Asks to leave HTTP/1.1 for `protocol` (`SPDY/3.1`, `websocket`); what else that protocol wants is in `headers`.
    ///
    /// # Errors
    /// No answer.
    pub fn upgrade(&self, method: &str, path: &str, protocol: &str, headers: &[(&str, &str)]) -> Result<Upgrade> {
        let (method, stream) = (Method::from_bytes(method.as_bytes())?, self.tcp()?);
        let what = format!("{method} {path}");
        let mut all = vec![("connection", "Upgrade"), ("upgrade", protocol)];
        all.extend_from_slice(headers);
        self.block_on(&what, async {
            let response = self.send(stream, method, path, &all, b"").await?;
            if response.status() != http::StatusCode::SWITCHING_PROTOCOLS {
                return Ok(Upgrade::Refused(whole(response).await?));
            }
            let headers = response.headers().clone();
            let upgraded = hyper::upgrade::on(response).await.context("leaving HTTP")?;
            let connection = Connection::new(runtime()?.handle(), Box::new(TokioIo::new(upgraded)));
            Ok(Upgrade::Switched(headers, connection))
        })
    }
}

async fn whole(response: http::Response<Incoming>) -> Result<Answer> {
    let (head, body) = response.into_parts();
    let body = Limited::new(body, MAX_ANSWER).collect().await;
    let body = body.map_err(|error| anyhow::anyhow!("reading the answer: {error}"))?.to_bytes();
    Ok(Answer { status: head.status.as_u16(), headers: head.headers, body })
}

#[cfg(test)]
mod tests;
