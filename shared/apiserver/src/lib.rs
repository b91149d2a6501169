//! A Kubernetes API server in memory, for tests, the demo and the benchmark: it answers as the real one (1.36) does to
//! everything that a node agent, kubectl and a test ask of it, and misbehaves on request.
//!
//! A request's way: [`serve`] (TLS, HTTP) - [`authentication`] - [`faults`] - [`dispatch`] ([`authorization`], then
//! verb and resource) - [`registry`], [`deletion`], [`lists`] or [`watches`] - [`storage`], or on to a node
//! ([`kubelets`]). What a real cluster's
//! controllers do for a node (binding pods, signing requests, clearing up after namespaces) is in [`controllers`].
//!
//! # Known gaps
//! No protobuf (`kubectl create -f` works, kubectl's generators such as `create configmap` do not), no RBAC objects
//! (grants instead), no quotas or budgets, no owner for fields (apply merges), no validation beyond what a node agent
//! can get wrong; no translation of WebSockets for nodes that do it not themselves, no links rewritten in pages that
//! come through `nodes/proxy`, no `pods/proxy`.

pub mod any_certificate;
pub mod authentication;
pub mod authority;
pub mod authorization;
pub mod clock;
mod controllers;
pub mod deletion;
pub mod discovery;
mod dispatch;
pub mod faults;
pub mod identity;
pub mod kubelets;
pub mod lists;
pub mod meta;
pub mod negotiation;
pub mod node_authorizer;
pub mod node_restriction;
pub mod patch;
pub mod pods;
pub mod registry;
pub mod request;
pub mod request_log;
pub mod resources;
mod reviews;
pub mod selectors;
mod serve;
pub mod status;
pub mod storage;
pub mod strategies;
pub mod table;
pub mod tokens;
pub mod watches;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use parking_lot::{Mutex, MutexGuard};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::Handle;
use tokio::task::{JoinHandle, JoinSet};

pub use self::authentication::StaticToken;
use self::authority::{Authority, Pair};
pub use self::authorization::Grant;
use self::clock::Clock;
pub use self::controllers::Approval;
use self::dispatch::{Brought, Reply, dispatch};
use self::faults::Faults;
use self::identity::{MASTERS, User};
use self::kubelets::Kubelets;
use self::request_log::RequestLog;
use self::status::ApiError;
use self::storage::Store;
use self::tokens::Tokens;

/// How the server behaves.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where it listens; port 0 takes a free one, which later starts keep.
    pub listen: SocketAddr,
    /// Changes of one resource that watches may ask for; older ones are "too old".
    pub history: usize,
    /// How often a watch that asked for bookmarks gets one.
    pub bookmark_every: Duration,
    /// Binds pods without a node.
    pub scheduler: bool,
    /// Which certificate signing requests are approved by themselves.
    pub approval: Approval,
    /// How long certificates that are signed on request are valid.
    pub certificate_lifetime: Duration,
    /// How long before they are signed they are valid already.
    pub certificates_backdated: Duration,
    /// New nodes carry the not-ready taint until they are ready, as in a real cluster.
    pub taint_new_nodes: bool,
    /// New nodes get a pod CIDR out of 10.244.0.0/16.
    pub pod_cidrs: bool,
    /// Whose requests without credentials are, mostly `system:anonymous`; `None`: they are refused.
    pub anonymous: Option<User>,
    /// Bearer tokens that are known from the start.
    pub tokens: Vec<StaticToken>,
    /// What users other than masters and nodes may do.
    pub grants: Vec<Grant>,
    /// The request log keeps JSON bodies.
    pub keep_bodies: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0),
            history: 5000,
            bookmark_every: Duration::from_secs(60),
            scheduler: true,
            approval: Approval::Clients,
            certificate_lifetime: Duration::from_secs(365 * 24 * 3600),
            certificates_backdated: Duration::from_secs(300),
            taint_new_nodes: true,
            pod_cidrs: false,
            anonymous: Some(User::anonymous()),
            tokens: Vec::new(),
            grants: Vec::new(),
            keep_bodies: true,
        }
    }
}

/// Everything that requests and controllers share.
#[derive(Debug)]
pub(crate) struct Shared {
    config: Config,
    store: Mutex<Store>,
    clock: Clock,
    ca: Authority,
    verifier: Arc<dyn ClientCertVerifier>,
    tokens: Tokens,
    static_tokens: Mutex<Vec<StaticToken>>,
    revoked: Mutex<Vec<CertificateDer<'static>>>,
    grants: Mutex<Vec<Grant>>,
    kubelets: Kubelets,
    /// Connections that left HTTP.
    streams: Mutex<JoinSet<()>>,
    faults: Faults,
    log: RequestLog,
    address: Mutex<SocketAddr>,
}

impl Shared {
    fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock()
    }

    fn static_tokens(&self) -> MutexGuard<'_, Vec<StaticToken>> {
        self.static_tokens.lock()
    }

    fn revoked(&self) -> MutexGuard<'_, Vec<CertificateDer<'static>>> {
        self.revoked.lock()
    }

    fn grants(&self) -> MutexGuard<'_, Vec<Grant>> {
        self.grants.lock()
    }

    fn streams(&self) -> MutexGuard<'_, JoinSet<()>> {
        self.streams.lock()
    }

    /// Runs what goes over a connection that left HTTP, until the server stops.
    fn spawn_stream(&self, stream: impl Future<Output = ()> + Send + 'static) {
        let mut streams = self.streams();
        while streams.try_join_next().is_some() {}
        streams.spawn(stream);
    }

    fn address(&self) -> String {
        self.address.lock().to_string()
    }
}

/// The server. Ends when it is dropped.
#[derive(Debug)]
pub struct ApiServer {
    shared: Arc<Shared>,
    runtime: Handle,
    listener: Mutex<Option<JoinHandle<()>>>,
    controllers: JoinHandle<()>,
}

impl ApiServer {
    /// Starts to listen; the tasks run on `runtime`.
    ///
    /// # Errors
    /// The address cannot be had, or no randomness.
    pub fn start(config: Config, runtime: &Handle) -> Result<Self> {
        let server = Self::without_listener(config, runtime)?;
        server.resume()?;
        Ok(server)
    }

    /// The same without a port of its own: connections are brought to it ([`ApiServer::connection`]).
    ///
    /// # Errors
    /// No randomness.
    pub fn without_listener(config: Config, runtime: &Handle) -> Result<Self> {
        let ca = Authority::new()?;
        let mut roots = rustls::RootCertStore::empty();
        roots.add(ca.der()).context("trusting the own authority")?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
            .allow_unauthenticated()
            .build()
            .context("preparing to check client certificates")?;
        let static_tokens = Mutex::new(config.tokens.clone());
        let grants = Mutex::new(config.grants.clone());
        let kubelets = Kubelets::new(&ca)?;
        let shared = Arc::new(Shared {
            store: Mutex::new(Store::new(config.history)),
            clock: Clock::default(),
            ca,
            verifier,
            tokens: Tokens::new()?,
            static_tokens,
            revoked: Mutex::default(),
            grants,
            kubelets,
            streams: Mutex::default(),
            faults: Faults::default(),
            log: RequestLog::default(),
            address: Mutex::new(config.listen),
            config,
        });
        controllers::furnish(&shared)?;
        let controllers = runtime.spawn(controllers::run(shared.clone()));
        Ok(Self { shared, runtime: runtime.clone(), listener: Mutex::new(None), controllers })
    }

    /// Where it listens (or listened).
    pub fn address(&self) -> SocketAddr {
        *self.shared.address.lock()
    }

    fn listener(&self) -> MutexGuard<'_, Option<JoinHandle<()>>> {
        self.listener.lock()
    }

    /// Stops to listen and breaks all connections; what is stored stays.
    pub fn stop(&self) {
        self.shared.streams().abort_all();
        if let Some(task) = self.listener().take() {
            task.abort();
            // Until the socket is closed: the next start wants the port.
            while !task.is_finished() {
                std::thread::yield_now();
            }
        }
    }

    /// Listens again, on the same port.
    ///
    /// # Errors
    /// The port is taken.
    pub fn resume(&self) -> Result<()> {
        let mut listener = self.listener();
        if listener.is_some() {
            return Ok(());
        }
        let address = self.address();
        let socket = std::net::TcpListener::bind(address).with_context(|| format!("listening on {address}"))?;
        socket.set_nonblocking(true)?;
        let address = socket.local_addr()?;
        *self.shared.address.lock() = address;
        let socket = {
            let _inside = self.runtime.enter();
            tokio::net::TcpListener::from_std(socket)?
        };
        let pair = self.shared.ca.server(
            &[
                "localhost",
                "kubernetes",
                "kubernetes.default",
                "kubernetes.default.svc",
                "kubernetes.default.svc.cluster.local",
            ],
            &[address.ip(), IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V4(Ipv4Addr::new(10, 96, 0, 1))],
        )?;
        let tls = serve::tls(&pair, self.shared.verifier.clone())?;
        *listener = Some(self.runtime.spawn(serve::listen(self.shared.clone(), socket, tls)));
        Ok(())
    }

    /// Serves one connection without TLS, until it is over or dropped.
    pub fn connection<S>(&self, stream: S) -> impl Future<Output = ()> + Send + use<S>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        serve::plain(self.shared.clone(), stream)
    }

    /// Answers a request as the cluster's owner, at once: past the wire, its faults and the log. `body`: empty for none.
    ///
    /// # Errors
    /// The refusal.
    pub fn ask(&self, method: &str, path: &str, content_type: &str, body: &[u8]) -> Result<Value, ApiError> {
        let owner = User::new("kubernetes-admin", &[MASTERS]);
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let brought = Brought { accept: "application/json", content_type, body };
        match dispatch(&self.shared, &owner, request::Request::parse(method, path, query)?, brought)? {
            Reply::Full { body, .. } => Ok(serde_json::from_slice(&body).unwrap_or_default()),
            Reply::Stream(_) | Reply::Node(_) => Ok(Value::Null),
        }
    }

    /// The authority that signs the server's and all clients' certificates.
    pub fn authority(&self) -> &Authority {
        &self.shared.ca
    }

    pub fn faults(&self) -> &Faults {
        &self.shared.faults
    }

    pub fn log(&self) -> &RequestLog {
        &self.shared.log
    }

    pub fn clock(&self) -> &Clock {
        &self.shared.clock
    }

    /// One more bearer token.
    pub fn add_token(&self, token: StaticToken) {
        self.shared.static_tokens().push(token);
    }

    /// This bearer token is nobody's any more.
    pub fn remove_token(&self, token: &str) {
        self.shared.static_tokens().retain(|one| one.token != token);
    }

    /// Somebody may do something from now on.
    pub fn grant(&self, grant: Grant) {
        self.shared.grants().push(grant);
    }

    /// This client certificate is answered with 401 from now on, as an expired one is.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn revoke(&self, pair: &Pair) -> Result<()> {
        let certificate = CertificateDer::from_pem_slice(pair.certificate.as_bytes())?;
        self.shared.revoked().push(certificate);
        Ok(())
    }

    /// Looks into the storage, past all authorization.
    pub fn with_store<T>(&self, look: impl FnOnce(&mut Store) -> T) -> T {
        look(&mut self.shared.store())
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.controllers.abort();
        self.shared.streams().abort_all();
        if let Some(task) = self.listener().take() {
            task.abort();
        }
    }
}
