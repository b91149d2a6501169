//! The client side of the API server: the kubeconfig by descriptors, credentials that may be replaced while we run,
//! request budgets, and watches that notice when nothing comes any more.
//!
//! | module | decides |
//! |---|---|
//! | [`source`] | where credentials come from, and when to look again |
//! | `material`, [`exec`] | what a kubeconfig and its files amount to; what a credential program is told and may answer |
//! | [`program`] | how a program for credentials is run, and how much of it is taken |
//! | `session` | which credentials are in force |
//! | [`tls`], `server`, `transport` | whom we trust, where requests go, which connection they take |
//! | `service`, `budget`, `retry`, `body` | when a request is sent, sent again, given up |
//! | [`lane`] | which budget a request comes from |
//! | [`object`] | what is read of an object, and what is not |
//! | [`watch`], `backoff` | how a watch goes on for ever |
//! | [`reachability`], `metrics` | what is told about all that |
//!
//! JSON is spoken whatever `contentType` says: the answers are the same, and there is one decoder to trust.

mod backoff;
mod body;
mod budget;
pub mod exec;
pub mod lane;
mod material;
mod metrics;
pub mod object;
pub mod program;
pub mod reachability;
mod retry;
mod server;
mod service;
mod session;
pub mod source;
pub mod tls;
mod transport;
pub mod watch;

use std::path::Path;
use std::sync::Arc;

use bulkhead_config::NodeConfig;
use bulkhead_ipc::broker::BrokerClient;
use bulkhead_ipc::client::Link;

pub use backoff::random_fraction;
pub use lane::Lane;
pub use object::{Bare, ObjectRef};
pub use reachability::Reachability;
pub use service::CallError;
pub use source::{CredentialFile, CredentialSource, MemorySource};
pub use tls::{is_pair, system_roots};

use material::Loader;
use service::LaneService;
use session::Shared;
use source::BrokerSource;

/// A connection to the API server that outlives its credentials. Cheap to clone.
#[derive(Clone)]
pub struct ApiClient {
    shared: Arc<Shared>,
    /// One for each lane, in the order of [`Lane::ALL`].
    clients: Arc<[kube::Client]>,
}

impl std::fmt::Debug for ApiClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ApiClient").finish_non_exhaustive()
    }
}

impl ApiClient {
    /// Starts to follow the kubeconfig, which need not be there yet. `process` goes into the user agent.
    /// Must be called within a tokio runtime. `volnetd` tells of replaced credentials.
    pub fn start(process: &'static str, config: Arc<NodeConfig>, broker: BrokerClient, volnetd: Link) -> Self {
        Self::start_with(process, config, Arc::new(BrokerSource::new(broker, volnetd)))
    }

    /// The same with credentials from elsewhere, such as [`MemorySource`].
    pub fn start_with(process: &'static str, config: Arc<NodeConfig>, source: Arc<dyn CredentialSource>) -> Self {
        tell_content_type(&config.kubelet.content_type);
        let path = Path::new(&config.flags.kubeconfig);
        let loader = Loader::new(path, config.kubeconfig_runs_program, config.rotates_client());
        Self::with_loader(process, config, source, loader)
    }

    /// A connection with what a node begins with (`--bootstrap-kubeconfig`); it is for asking for better.
    pub fn bootstrap(process: &'static str, config: Arc<NodeConfig>, broker: BrokerClient, volnetd: Link) -> Self {
        let path = config.bootstrap_kubeconfig().unwrap_or(Path::new("/"));
        let loader = Loader::new(path, config.bootstrap_runs_program, false);
        Self::with_loader(process, config, Arc::new(BrokerSource::bootstrap(broker, volnetd)), loader)
    }

    fn with_loader(
        process: &'static str,
        config: Arc<NodeConfig>,
        source: Arc<dyn CredentialSource>,
        loader: Loader,
    ) -> Self {
        let shared = Shared::start(process, config, source, loader);
        let clients = Lane::ALL.map(|lane| kube::Client::new(LaneService::new(shared.clone(), lane), "default"));
        ApiClient { shared, clients: Arc::new(clients) }
    }

    /// Counts requests in `rest_client_*` of this registry from now on.
    ///
    /// # Errors
    /// The registry has metrics of these names already.
    pub fn with_metrics(self, registry: &prometheus::Registry) -> prometheus::Result<Self> {
        let metrics = metrics::Metrics::register(registry)?;
        // A second registry for the same client gets nothing: the first one counts.
        let _ = self.shared.metrics.set(metrics);
        Ok(self)
    }

    /// Waits until there is a kubeconfig that can be used; gives the server's URL.
    pub async fn ready(&self) -> String {
        self.shared.ready().await.url()
    }

    /// A client for typed calls. It stays valid when credentials change; while there are none its calls fail.
    pub fn client(&self, lane: Lane) -> kube::Client {
        self.clients[lane as usize].clone()
    }

    /// Closes the lane's connections; the next call makes new ones.
    pub fn reconnect(&self, lane: Lane) {
        if let Some(session) = self.shared.session() {
            session.connections().close_lane(lane);
        }
    }

    /// Whether the server answers, and every change of that.
    pub fn reachability(&self) -> tokio::sync::watch::Receiver<Reachability> {
        self.shared.reachability.subscribe()
    }

    /// When the client certificate in use ends. None: there is none.
    pub fn certificate_expires(&self) -> Option<jiff::Timestamp> {
        self.shared.session()?.certificate_expires()
    }
}

/// Upstream's default is protobuf: then nobody asked for it, and nobody is warned.
fn tell_content_type(configured: &str) {
    match configured {
        "application/json" => {}
        "application/vnd.kubernetes.protobuf" => {
            tracing::info!(contentType = configured, "requests to the API server are made in JSON");
        }
        other => {
            tracing::warn!(contentType = other, "unsupported contentType: requests to the API server are made in JSON")
        }
    }
}
