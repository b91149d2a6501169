//! A blocking client of an API server over HTTPS, for tests: any user, any method, answers as they are.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, Request, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio_rustls::TlsConnector;

use bulkhead_apiserver::authority::Pair;
use bulkhead_apiserver::request_log::KIT_AGENT;

/// How long an answer may take.
const LIMIT: Duration = Duration::from_secs(30);
const MAX_ANSWER: usize = 64 << 20;

/// What the client shows of itself.
#[derive(Debug, Clone)]
pub enum Credential {
    Certificate(Pair),
    Token(String),
    Nothing,
}

/// An answer.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Answer {
    /// The body as JSON; `null` where it is none.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    /// The body of a good answer.
    ///
    /// # Errors
    /// The code and the Status' message.
    pub fn success(&self) -> Result<Value> {
        let body = self.json();
        if (200..300).contains(&self.status) {
            return Ok(body);
        }
        bail!("{}: {}", self.status, body["message"].as_str().unwrap_or(&String::from_utf8_lossy(&self.body)))
    }
}

/// A client of one server as one user. Cheap to clone: clones share the connection.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    runtime: Handle,
    address: SocketAddr,
    tls: TlsConnector,
    token: Option<String>,
    agent: String,
    connection: Mutex<Option<SendRequest<Full<Bytes>>>>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("address", &self.inner.address).finish_non_exhaustive()
    }
}

impl Client {
    /// A client that trusts the authority `ca` (PEM).
    ///
    /// # Errors
    /// A certificate or key that cannot be read.
    pub fn new(runtime: &Handle, address: SocketAddr, ca: &str, credential: &Credential) -> Result<Self> {
        let mut roots = rustls::RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(ca.as_bytes()) {
            roots.add(certificate.context("reading the authority's certificate")?)?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots);
        let mut tls = match credential {
            Credential::Certificate(pair) => {
                let chain =
                    CertificateDer::pem_slice_iter(pair.certificate.as_bytes()).collect::<Result<Vec<_>, _>>()?;
                builder.with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(pair.key.as_bytes())?)?
            }
            _ => builder.with_no_client_auth(),
        };
        tls.alpn_protocols = vec![b"h2".to_vec()];
        let token = match credential {
            Credential::Token(token) => Some(token.clone()),
            _ => None,
        };
        let inner = Inner {
            runtime: runtime.clone(),
            address,
            tls: TlsConnector::from(Arc::new(tls)),
            token,
            agent: format!("{KIT_AGENT}/{}", env!("CARGO_PKG_VERSION")),
            connection: Mutex::default(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The same user under another user agent: one that faults and counts do not know as the kit's own.
    ///
    /// # Errors
    /// Somebody else shares this client already.
    pub fn with_agent(self, agent: &str) -> Result<Self> {
        let mut inner = Arc::into_inner(self.inner).context("the client is shared")?;
        agent.clone_into(&mut inner.agent);
        Ok(Self { inner: Arc::new(inner) })
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>> {
        let address = self.inner.address;
        let stream = TcpStream::connect(address).await.with_context(|| format!("connecting to {address}"))?;
        stream.set_nodelay(true)?;
        let name = ServerName::IpAddress(address.ip().into());
        let stream = self.inner.tls.connect(name, stream).await.with_context(|| format!("TLS with {address}"))?;
        let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(sender)
    }

    fn kept(&self) -> Option<SendRequest<Full<Bytes>>> {
        let kept = self.inner.connection.lock();
        kept.clone().filter(|sender| !sender.is_closed())
    }

    /// The connection that requests share.
    async fn shared(&self) -> Result<SendRequest<Full<Bytes>>> {
        match self.kept() {
            Some(sender) => Ok(sender),
            None => self.connect_anew().await,
        }
    }

    async fn connect_anew(&self) -> Result<SendRequest<Full<Bytes>>> {
        let sender = self.connect().await?;
        *self.inner.connection.lock() = Some(sender.clone());
        Ok(sender)
    }

    async fn send(
        &self,
        mut sender: SendRequest<Full<Bytes>>,
        method: &Method,
        path: &str,
        headers: &[(&str, &str)],
        body: &Bytes,
    ) -> Result<http::Response<Incoming>> {
        sender.ready().await?;
        let mut request = Request::builder()
            .method(method.clone())
            .uri(format!("https://{}{path}", self.inner.address))
            .header(header::USER_AGENT, &self.inner.agent);
        if let Some(token) = &self.inner.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        Ok(sender.send_request(request.body(Full::new(body.clone()))?).await?)
    }

    /// Any request; an answer of whatever code is a success.
    ///
    /// # Errors
    /// No answer.
    pub fn request(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Result<Answer> {
        self.inner.runtime.block_on(self.exchange(method, path, headers, body))
    }

    /// The same for whoever is asynchronous.
    ///
    /// # Errors
    /// No answer.
    pub async fn exchange(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Result<Answer> {
        let method = Method::from_bytes(method.as_bytes())?;
        let body = Bytes::copy_from_slice(body);
        let what = format!("{method} {path}");
        let exchange = async {
            let response = match self.send(self.shared().await?, &method, path, headers, &body).await {
                // The server had closed the connection that was kept, and nothing was sent on it.
                Err(error) if error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_canceled) => {
                    self.send(self.connect_anew().await?, &method, path, headers, &body).await?
                }
                other => other?,
            };
            let (head, body) = response.into_parts();
            let body = http_body_util::Limited::new(body, MAX_ANSWER)
                .collect()
                .await
                .map_err(|error| anyhow::anyhow!("reading the answer: {error}"))?;
            Ok::<_, anyhow::Error>(Answer {
                status: head.status.as_u16(),
                headers: head.headers,
                body: body.to_bytes(),
            })
        };
        tokio::time::timeout(LIMIT, exchange)
            .await
            .with_context(|| format!("{what}: no answer within {} s", LIMIT.as_secs()))?
            .context(what)
    }

    /// A GET that accepts JSON.
    ///
    /// # Errors
    /// No answer.
    pub fn get(&self, path: &str) -> Result<Answer> {
        self.request("GET", path, &[("accept", "application/json")], b"")
    }

    /// A request with a JSON body.
    ///
    /// # Errors
    /// No answer.
    pub fn send_json(&self, method: &str, path: &str, body: &Value) -> Result<Answer> {
        self.request(method, path, &[("content-type", "application/json")], body.to_string().as_bytes())
    }

    /// A PATCH: `json-patch`, `merge-patch`, `strategic-merge-patch` (`+json`) or `apply-patch` (`+yaml`).
    ///
    /// # Errors
    /// No answer.
    pub fn patch(&self, path: &str, kind: &str, body: &Value) -> Result<Answer> {
        let suffix = if kind == "apply-patch" { "yaml" } else { "json" };
        let content_type = format!("application/{kind}+{suffix}");
        self.request("PATCH", path, &[("content-type", &content_type)], body.to_string().as_bytes())
    }

    /// Opens a watch; `path` is a collection's, with its query but `watch=true`.
    ///
    /// # Errors
    /// No answer, or another one than 200.
    pub fn watch(&self, path: &str) -> Result<Events> {
        self.inner.runtime.block_on(self.open_watch(path))
    }

    /// The same for whoever is asynchronous.
    ///
    /// # Errors
    /// No answer, or another one than 200.
    pub async fn open_watch(&self, path: &str) -> Result<Events> {
        let path = format!("{path}{}watch=true", if path.contains('?') { '&' } else { '?' });
        let exchange = async {
            // A connection of its own: servers bound the streams of one.
            let sender = self.connect().await?;
            let accept = [("accept", "application/json")];
            let response = self.send(sender, &Method::GET, &path, &accept, &Bytes::new()).await?;
            if !response.status().is_success() {
                let status = response.status().as_u16();
                let body = response.into_body().collect().await?.to_bytes();
                let answer = Answer { status, headers: HeaderMap::new(), body };
                answer.success()?;
                bail!("{status}");
            }
            Ok(response.into_body())
        };
        let body = tokio::time::timeout(LIMIT, exchange)
            .await
            .with_context(|| format!("watch {path}: no answer"))?
            .with_context(|| format!("watch {path}"))?;
        Ok(Events { runtime: self.inner.runtime.clone(), body, rest: BytesMut::new(), ended: false })
    }
}

/// One event of a watch.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// `ADDED`, `MODIFIED`, `DELETED`, `BOOKMARK`, `ERROR`.
    pub kind: String,
    pub object: Value,
}

impl Event {
    /// The object's name.
    pub fn name(&self) -> &str {
        self.object["metadata"]["name"].as_str().unwrap_or_default()
    }

    /// The object's resourceVersion.
    pub fn version(&self) -> &str {
        self.object["metadata"]["resourceVersion"].as_str().unwrap_or_default()
    }
}

/// The events of a watch, as they come.
pub struct Events {
    runtime: Handle,
    body: Incoming,
    rest: BytesMut,
    ended: bool,
}

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Events").field("ended", &self.ended).finish_non_exhaustive()
    }
}

impl Events {
    /// The next event; `None` when the server has ended the watch.
    ///
    /// # Errors
    /// None came within `limit`, the connection broke, or what came is no event.
    pub fn next(&mut self, limit: Duration) -> Result<Option<Event>> {
        let runtime = self.runtime.clone();
        runtime
            .block_on(async { tokio::time::timeout(limit, self.read()).await })
            .with_context(|| format!("no event within {:.1} s", limit.as_secs_f64()))?
    }

    /// The same for whoever is asynchronous, for as long as it takes; may be dropped and called again.
    ///
    /// # Errors
    /// The connection broke, or what came is no event.
    pub async fn read(&mut self) -> Result<Option<Event>> {
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line = self.rest.split_to(end + 1);
                let mut event: Value = serde_json::from_slice(&line).context("reading an event")?;
                let kind = event["type"].as_str().context("an event without a type")?.to_owned();
                return Ok(Some(Event { kind, object: event["object"].take() }));
            }
            if self.ended {
                return Ok(None);
            }
            match self.body.frame().await {
                Some(frame) => {
                    if let Ok(data) = frame.context("the watch broke")?.into_data() {
                        self.rest.extend_from_slice(&data);
                    }
                }
                None => self.ended = true,
            }
        }
    }

    /// The next event that is there.
    ///
    /// # Errors
    /// As [`Events::next`], or the watch has ended.
    pub fn expect(&mut self, limit: Duration) -> Result<Event> {
        self.next(limit)?.context("the watch has ended")
    }
}
