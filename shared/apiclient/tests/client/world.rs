//! An API server's transport in miniature: real TLS with client certificates, HTTP/1.1 or HTTP/2, and answers that the
//! test makes up. What was asked for is kept.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base64::Engine as _;
use bulkhead_apiclient::{ApiClient, CredentialFile, MemorySource};
use bulkhead_config::NodeConfig;
use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http::{HeaderMap, Request, Response, Uri, Version};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};

/// How long a test waits for what must happen.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Waits for something that must happen.
pub async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, what).await.expect("in time")
}

/// A certificate authority.
pub struct Pki {
    issuer: Issuer<'static, KeyPair>,
    pub ca: String,
}

impl Pki {
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let ca = params.self_signed(&key).unwrap().pem();
        Pki { issuer: Issuer::new(params, key), ca }
    }

    /// Certificate and key.
    pub fn issue(&self, common_name: &str, names: &[&str]) -> (String, String) {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name.push(DnType::CommonName, common_name);
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }
}

/// One request as the server saw it.
#[derive(Debug, Clone)]
pub struct Seen {
    pub uri: Uri,
    pub headers: HeaderMap,
    pub version: Version,
    pub body: Bytes,
    /// Which connection it came on, from 1.
    pub connection: usize,
    /// Common name of the client's certificate.
    pub client: Option<String>,
}

impl Seen {
    pub fn query(&self) -> &str {
        self.uri.query().unwrap_or_default()
    }

    pub fn is_watch(&self) -> bool {
        self.query().contains("watch=true")
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

pub type Answer = Response<BoxBody<Bytes, std::convert::Infallible>>;
pub type Handler = Arc<dyn Fn(Seen) -> BoxFuture<'static, Answer> + Send + Sync>;

pub fn answer(code: u16, body: impl Into<Bytes>) -> Answer {
    Response::builder()
        .status(code)
        .header("content-type", "application/json")
        .body(Full::new(body.into()).boxed())
        .unwrap()
}

/// An answer that goes on until the sender is dropped.
pub fn stream() -> (mpsc::UnboundedSender<String>, Answer) {
    let (sender, receiver) = mpsc::unbounded_channel::<String>();
    let frames = futures_util::stream::unfold(receiver, |mut receiver| async move {
        let text = receiver.recv().await?;
        Some((Ok(Frame::data(Bytes::from(text))), receiver))
    });
    (sender, Response::new(BodyExt::boxed(StreamBody::new(frames.boxed_sync()))))
}

trait BoxedSync: Sized {
    fn boxed_sync(self) -> std::pin::Pin<Box<dyn futures_util::Stream<Item = Self::Item> + Send + Sync>>
    where
        Self: futures_util::Stream + Send + Sync + 'static,
    {
        Box::pin(self)
    }
}

impl<S: futures_util::Stream> BoxedSync for S {}

/// How the server speaks.
#[derive(Clone)]
pub enum Speak {
    Plain,
    /// Server's certificate and key; authority of the clients; protocols in the order of preference.
    Tls {
        certificate: (String, String),
        clients: Option<String>,
        alpn: Vec<&'static str>,
    },
}

pub struct Server {
    pub address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
    pub connections: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    pub async fn start(
        speak: Speak,
        handler: impl Fn(Seen) -> BoxFuture<'static, Answer> + Send + Sync + 'static,
    ) -> Self {
        Self::start_on(TcpListener::bind("127.0.0.1:0").await.unwrap(), speak, handler)
    }

    fn start_on(
        listener: TcpListener,
        speak: Speak,
        handler: impl Fn(Seen) -> BoxFuture<'static, Answer> + Send + Sync + 'static,
    ) -> Self {
        let address = listener.local_addr().unwrap();
        let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
        let connections = Arc::new(AtomicUsize::new(0));
        let acceptor = acceptor(&speak);
        let handler: Handler = Arc::new(handler);
        let (kept, counted) = (seen.clone(), connections.clone());
        let task = tokio::spawn(async move {
            let mut running = tokio::task::JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let number = counted.fetch_add(1, Ordering::SeqCst) + 1;
                running.spawn(serve(stream, number, acceptor.clone(), kept.clone(), handler.clone()));
            }
        });
        Server { address, seen, connections, task }
    }

    /// Plain HTTP with an answer that is known at once.
    pub async fn plain(handler: impl Fn(Seen) -> Answer + Send + Sync + 'static) -> Self {
        Self::start(Speak::Plain, move |seen| std::future::ready(handler(seen)).boxed()).await
    }

    /// TLS that asks for no certificate, as tokens are not sent over less; with the inside of a kubeconfig's cluster.
    pub async fn tls(handler: impl Fn(Seen) -> Answer + Send + Sync + 'static) -> (Self, String) {
        let pki = Pki::new("test-ca");
        let certificate = pki.issue("server", &["127.0.0.1"]);
        let speak = Speak::Tls { certificate, clients: None, alpn: vec!["h2"] };
        let server = Self::start(speak, move |seen| std::future::ready(handler(seen)).boxed()).await;
        let authority = base64::engine::general_purpose::STANDARD.encode(&pki.ca);
        let cluster = format!("server: \"https://{}\", certificate-authority-data: {authority}", server.address);
        (server, cluster)
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().clone()
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

/// A server whose answers the test gives one by one.
pub struct Dialogue {
    pub server: Server,
    questions: mpsc::UnboundedReceiver<(Seen, oneshot::Sender<Answer>)>,
}

impl Dialogue {
    pub async fn start() -> Self {
        Self::start_at("127.0.0.1:0".parse().unwrap()).await
    }

    /// The same at an address that nobody served until now.
    pub async fn start_at(address: SocketAddr) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let (sender, questions) = mpsc::unbounded_channel();
        let handler = move |seen| {
            let sender = sender.clone();
            async move {
                let (reply, answer) = oneshot::channel();
                let _ = sender.send((seen, reply));
                // A question that is dropped stays without an answer.
                match answer.await {
                    Ok(answer) => answer,
                    Err(_) => std::future::pending().await,
                }
            }
            .boxed()
        };
        Dialogue { server: Server::start_on(listener, Speak::Plain, handler), questions }
    }

    pub fn client(&self) -> ApiClient {
        client(&MemorySource::for_server(&self.server.url()))
    }

    pub fn client_with(&self, change: impl FnOnce(&mut NodeConfig)) -> ApiClient {
        client_with(&MemorySource::for_server(&self.server.url()), change)
    }

    /// The next question; dropping it leaves it without an answer for ever.
    pub async fn next(&mut self) -> (Seen, oneshot::Sender<Answer>) {
        soon(self.next_however_late()).await
    }

    /// The same for a test whose clock runs ahead.
    pub async fn next_however_late(&mut self) -> (Seen, oneshot::Sender<Answer>) {
        self.questions.recv().await.unwrap()
    }

    /// The next question, answered.
    pub async fn reply(&mut self, answer: Answer) -> Seen {
        let (seen, reply) = self.next().await;
        reply.send(answer).unwrap();
        seen
    }

    /// The next question, answered by a stream.
    pub async fn stream(&mut self) -> (Seen, mpsc::UnboundedSender<String>) {
        let (sender, answer) = stream();
        (self.reply(answer).await, sender)
    }
}

fn acceptor(speak: &Speak) -> Option<tokio_rustls::TlsAcceptor> {
    let Speak::Tls { certificate: (chain, key), clients, alpn } = speak else { return None };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        rustls::ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions().unwrap();
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(pem) => {
            let mut roots = rustls::RootCertStore::empty();
            roots.add_parsable_certificates(CertificateDer::pem_slice_iter(pem.as_bytes()).flatten());
            let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(verifier.build().unwrap())
        }
    };
    let chain = CertificateDer::pem_slice_iter(chain.as_bytes()).flatten().collect();
    let mut config = builder.with_single_cert(chain, PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap()).unwrap();
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    Some(tokio_rustls::TlsAcceptor::from(Arc::new(config)))
}

async fn serve(
    stream: TcpStream,
    connection: usize,
    acceptor: Option<tokio_rustls::TlsAcceptor>,
    kept: Arc<Mutex<Vec<Seen>>>,
    handler: Handler,
) {
    let (mut client, mut h2) = (None, false);
    let service = |client: Option<String>| {
        hyper::service::service_fn(move |request: Request<Incoming>| {
            let (client, kept, handler) = (client.clone(), kept.clone(), handler.clone());
            async move {
                let (head, body) = request.into_parts();
                let seen = Seen {
                    uri: head.uri,
                    headers: head.headers,
                    version: head.version,
                    body: body.collect().await?.to_bytes(),
                    connection,
                    client,
                };
                kept.lock().push(seen.clone());
                Ok::<_, hyper::Error>(handler(seen).await)
            }
        })
    };
    let Some(acceptor) = acceptor else {
        let _ =
            hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service(client)).await;
        return;
    };
    let Ok(stream) = acceptor.accept(stream).await else { return };
    {
        let (_, tls) = stream.get_ref();
        h2 |= tls.alpn_protocol() == Some(b"h2");
        if let Some(certificate) = tls.peer_certificates().and_then(|chain| chain.first()) {
            let (_, certificate) = x509_parser::parse_x509_certificate(certificate).unwrap();
            let name = certificate.subject().iter_common_name().next().unwrap();
            client = Some(name.as_str().unwrap().to_owned());
        }
    }
    let io = TokioIo::new(stream);
    if h2 {
        let _ =
            hyper::server::conn::http2::Builder::new(TokioExecutor::new()).serve_connection(io, service(client)).await;
    } else {
        let _ = hyper::server::conn::http1::Builder::new().serve_connection(io, service(client)).await;
    }
}

/// A server with TLS, its authority, and a kubeconfig with a client certificate for it, in files.
pub struct Secure {
    pub pki: Pki,
    pub server: Server,
    pub source: MemorySource,
}

impl Secure {
    pub async fn start(alpn: &[&'static str], handler: impl Fn(Seen) -> Answer + Send + Sync + 'static) -> Self {
        let pki = Pki::new("test-ca");
        let speak = Speak::Tls {
            certificate: pki.issue("server", &["127.0.0.1", "kubernetes"]),
            clients: Some(pki.ca.clone()),
            alpn: alpn.to_vec(),
        };
        let server = Server::start(speak, move |seen| std::future::ready(handler(seen)).boxed()).await;
        let source = MemorySource::new(&kubeconfig(
            &format!("server: \"https://{}\", certificate-authority: ca.crt", server.address),
            "client-certificate: current.pem, client-key: current.pem",
        ));
        source.put(CredentialFile::ClusterCa, &pki.ca);
        let secure = Secure { pki, server, source };
        secure.issue("node-1");
        secure
    }

    /// Replaces the client's certificate and key.
    pub fn issue(&self, common_name: &str) {
        let (certificate, key) = self.pki.issue(common_name, &[]);
        // Both in one file, as the kubelet's own: they are told as one change.
        self.source.put_all([(CredentialFile::ClientCertificate, certificate), (CredentialFile::ClientKey, key)]);
    }
}

/// A kubeconfig with one context; the arguments are the inside of mappings.
pub fn kubeconfig(cluster: &str, user: &str) -> String {
    format!(
        "current-context: c\ncontexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n\
         clusters: [{{name: c, cluster: {{{cluster}}}}}]\nusers: [{{name: u, user: {{{user}}}}}]\n"
    )
}

pub fn config() -> NodeConfig {
    NodeConfig::for_tests(std::path::Path::new("/nonexistent"))
}

pub fn client(source: &MemorySource) -> ApiClient {
    client_with(source, |_| {})
}

pub fn client_with(source: &MemorySource, change: impl FnOnce(&mut NodeConfig)) -> ApiClient {
    let mut config = config();
    change(&mut config);
    ApiClient::start_with("kubelet-statusd", Arc::new(config), Arc::new(source.clone()))
}

/// A Pod in JSON.
pub fn pod(name: &str, version: u32) -> serde_json::Value {
    serde_json::json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "ns",
        "uid": format!("uid-{name}"), "resourceVersion": version.to_string(),
        "managedFields": [{"manager": "m", "operation": "Update"}]}, "spec": {"containers": []}})
}

/// A line of a watch.
pub fn event(kind: &str, object: serde_json::Value) -> String {
    format!("{}\n", serde_json::json!({"type": kind, "object": object}))
}

pub fn bookmark(version: u32, ends_list: bool) -> String {
    let annotations =
        if ends_list { serde_json::json!({"k8s.io/initial-events-end": "true"}) } else { serde_json::json!({}) };
    event(
        "BOOKMARK",
        serde_json::json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"resourceVersion": version.to_string(), "annotations": annotations}}),
    )
}

pub fn status(code: u16, reason: &str) -> serde_json::Value {
    serde_json::json!({"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code, "reason": reason,
        "message": format!("made up: {reason}"), "metadata": {}})
}

/// A list of pods.
pub fn list(version: u32, pods: &[serde_json::Value], token: &str) -> Answer {
    let list = serde_json::json!({"apiVersion": "v1", "kind": "PodList",
        "metadata": {"resourceVersion": version.to_string(), "continue": token}, "items": pods});
    answer(200, list.to_string())
}

/// An error with its causes.
pub fn chain(error: &dyn std::error::Error) -> String {
    std::iter::successors(Some(error), |error| error.source()).map(|error| format!("{error}: ")).collect()
}
