//! What all lanes share: the credentials in force, and the task that keeps them current.
//!
//! The task owns them. It looks when kubelet-volnetd tells of a change, when a program's credential runs out, when the
//! server refuses the current one, and once a minute. What cannot be used changes nothing: the old credentials stay.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bulkhead_config::{Feature, NodeConfig};
use bulkhead_types::{chain, go_arch};
use futures_util::StreamExt as _;
use http::{HeaderMap, HeaderValue, Uri};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::backoff::{Backoff, random_fraction};
use crate::material::{Loader, Material, MaterialError};
use crate::metrics::Metrics;
use crate::reachability::Notes;
use crate::source::CredentialSource;
use crate::transport::Connections;

/// Look at everything at least so often; upstream reads tokens anew every minute.
const POLL: Duration = Duration::from_secs(60);
/// A replacement of several files is one look.
const SETTLE: Duration = Duration::from_millis(50);
/// Pauses after a failed look.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));
/// How often a credential that the server refuses is looked at anew.
const REFUSED_PAUSE: Duration = Duration::from_secs(10);
/// How long it is believed that the server streams no lists. Upstream's client asks anew with each list; the watches of a
/// start, which all begin within seconds, need one refusal between them. No longer than that: the answer may have been a
/// server's passing trouble, and behind a load balancer a server that streams may take over unseen.
pub(crate) const LISTS_IN_PAGES: Duration = Duration::from_secs(120);

/// Credentials in force with the connections made with them.
#[derive(Debug)]
pub(crate) struct Session {
    material: Material,
    connections: Arc<Connections>,
}

impl Session {
    pub(crate) fn connections(&self) -> &Connections {
        &self.connections
    }

    pub(crate) fn headers(&self) -> &HeaderMap {
        &self.material.headers
    }

    pub(crate) fn host(&self) -> &str {
        self.material.wire.server.host()
    }

    pub(crate) fn url(&self) -> String {
        self.material.wire.server.url()
    }

    pub(crate) fn certificate_expires(&self) -> Option<jiff::Timestamp> {
        self.material.certificate_expires
    }

    pub(crate) fn locate(&self, uri: &Uri) -> Result<Uri, http::Error> {
        self.material.wire.server.locate(uri)
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: Arc<NodeConfig>,
    pub(crate) user_agent: HeaderValue,
    pub(crate) reachability: Notes,
    pub(crate) metrics: OnceLock<Metrics>,
    sessions: watch::Receiver<Option<Arc<Session>>>,
    refused: Arc<Notify>,
    /// Gate WatchListClient.
    watch_list: bool,
    /// Until then lists are asked for in pages: one watch has found out for all that they are not streamed.
    lists_in_pages_until: Mutex<Option<Instant>>,
}

impl Shared {
    /// Starts the task, which ends when everything that holds the answer is dropped.
    pub(crate) fn start(
        process: &str,
        config: Arc<NodeConfig>,
        source: Arc<dyn CredentialSource>,
        loader: Loader,
    ) -> Arc<Self> {
        let (sender, sessions) = watch::channel(None);
        let refused = Arc::new(Notify::new());
        tokio::spawn(Follower { source, loader, sender, refused: refused.clone(), problem: None }.run());
        let watch_list = config.feature_gates().enabled(Feature::WatchListClient);
        let user_agent = user_agent(process, &config.version);
        Arc::new(Shared {
            config,
            user_agent,
            reachability: Notes::new(),
            metrics: OnceLock::new(),
            sessions,
            refused,
            watch_list,
            lists_in_pages_until: Mutex::new(None),
        })
    }

    /// Whether a list is asked for as a stream.
    pub(crate) fn streams_lists(&self) -> bool {
        if !self.watch_list {
            return false;
        }
        let until = self.lists_in_pages_until.lock();
        until.is_none_or(|until| until <= Instant::now())
    }

    /// The server would not stream a list that it gave in pages. False: that was known.
    pub(crate) fn lists_are_not_streamed(&self) -> bool {
        let now = Instant::now();
        let mut until = self.lists_in_pages_until.lock();
        until.replace(now + LISTS_IN_PAGES).is_none_or(|until| until <= now)
    }

    pub(crate) fn session(&self) -> Option<Arc<Session>> {
        self.sessions.borrow().clone()
    }

    /// Waits for the first credentials.
    pub(crate) async fn ready(&self) -> Arc<Session> {
        let mut sessions = self.sessions.clone();
        loop {
            if let Some(session) = sessions.borrow_and_update().clone() {
                return session;
            }
            if sessions.changed().await.is_err() {
                // The follower lives as long as this does, so this is unreachable; waiting is the safe answer.
                std::future::pending::<()>().await;
            }
        }
    }

    /// The server does not accept what `session` shows.
    pub(crate) fn refused(&self, session: &Session) {
        let current = self.session();
        if current.is_some_and(|current| std::ptr::eq(&*current, session)) {
            self.refused.notify_one();
        }
    }
}

/// Begins as upstream's does, so that managedFields and audit filters find the name `kubelet`; the process stands behind.
fn user_agent(process: &str, version: &str) -> HeaderValue {
    let (system, machine) = (std::env::consts::OS, go_arch());
    let text = format!("kubelet/{version} ({system}/{machine}) kubernetes/{} {process}", env!("CARGO_PKG_VERSION"));
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static("kubelet"))
}

struct Follower {
    source: Arc<dyn CredentialSource>,
    loader: Loader,
    sender: watch::Sender<Option<Arc<Session>>>,
    refused: Arc<Notify>,
    /// What was logged last.
    problem: Option<String>,
}

impl Follower {
    async fn run(mut self) {
        let mut changes = self.source.changes().chain(futures_util::stream::pending()).fuse();
        let mut backoff = Backoff::new(RETRY.0, RETRY.1);
        let mut looked_at_refusal: Option<Instant> = None;
        loop {
            let loaded = tokio::select! {
                loaded = self.loader.load(&*self.source) => loaded,
                () = self.sender.closed() => return,
            };
            let pause = match loaded.and_then(|material| self.apply(material)) {
                Ok(()) => {
                    backoff.reset();
                    let refresh = self.loader.refresh_in(jiff::Timestamp::now());
                    refresh.map_or(POLL, |refresh| refresh.clamp(Duration::from_secs(1), POLL))
                }
                Err(error) => {
                    self.complain(&error);
                    backoff.next(random_fraction())
                }
            };
            let next_refusal = looked_at_refusal.map_or_else(Instant::now, |at| at + REFUSED_PAUSE);
            tokio::select! {
                () = self.sender.closed() => return,
                _ = changes.next() => tokio::time::sleep(SETTLE).await,
                () = tokio::time::sleep(pause) => {}
                () = async { self.refused.notified().await; tokio::time::sleep_until(next_refusal).await } => {
                    tracing::info!("the API server refuses our credentials, looking for newer ones");
                    looked_at_refusal = Some(Instant::now());
                    self.loader.refused();
                }
            }
        }
    }

    /// Puts credentials into force. Connections live on when nothing that they were made with changed.
    fn apply(&mut self, material: Material) -> Result<(), MaterialError> {
        let old = self.sender.borrow().clone();
        let connections = match &old {
            Some(old) if old.material.wire == material.wire => old.connections.clone(),
            _ => Arc::new(Connections::new(&material.wire)?),
        };
        if self.problem.take().is_some() {
            tracing::info!("kubeconfig is usable again");
        }
        if old.as_ref().is_some_and(|old| old.material == material) {
            return Ok(());
        }
        let expires = material.certificate_expires;
        tracing::info!(
            server = material.wire.server.url(),
            user = material.identity,
            certificate_expires = expires.map(|at| at.to_string()),
            replaced = old.is_some(),
            "credentials for the API server"
        );
        if expires.is_some_and(|at| at <= jiff::Timestamp::now()) {
            tracing::warn!("the client certificate for the API server has expired");
        }
        let is_new = |old: &Arc<Session>| !Arc::ptr_eq(&old.connections, &connections);
        let outdated = old.filter(is_new);
        self.sender.send_replace(Some(Arc::new(Session { material, connections })));
        if let Some(outdated) = outdated {
            outdated.connections.close();
        }
        Ok(())
    }

    /// Once per problem. While kubelet-volnetd is away there is none.
    fn complain(&mut self, error: &MaterialError) {
        let text = chain(error);
        if error.is_unknown() {
            tracing::debug!(error = text, "credentials cannot be looked at now");
            return;
        }
        if self.problem.as_ref() == Some(&text) {
            return;
        }
        if self.sender.borrow().is_some() {
            tracing::error!(error = text, "the kubeconfig cannot be used, staying with the credentials from before");
        } else {
            tracing::error!(error = text, "the kubeconfig cannot be used, waiting for a better one");
        }
        self.problem = Some(text);
    }
}
