//! The router of the HTTP servers: who is let through, which handler answers, and how requests are counted. Each handler
//! has what it needs; this module puts them together.

use std::sync::Arc;

use bulkhead_config::{Feature, NodeConfig};
use bulkhead_daemon::progress::Progress;
use bulkhead_ipc::broker::BrokerClient;
use bulkhead_ipc::helper::Asker;
use futures_util::future::BoxFuture;
use http::{Request, StatusCode, header};
use hyper::body::Incoming;
use prometheus::Registry;
use tokio::net::TcpListener;

use crate::cadvisor::Cadvisor;
use crate::health;
use crate::health_checks::HealthChecks;
use crate::logs::ContainerLogs;
use crate::node_logs::NodeLogs;
use crate::open_requests::{OpenRequest, RequestMetrics};
use crate::peers::Peers;
use crate::routes::{self, Route, Surface, Switches};
use crate::scrape::{Scrapes, Slots};
use crate::server::answer::{self, Answer};
use crate::server::connection::{Endpoint, Handler};
use crate::server::connection_metrics::ConnectionMetrics;
use crate::server::gate::Gate;
use crate::server::limits::Limits;
use crate::server::listener;
use crate::server::tls::Serving;
use crate::streaming::Streams;
use crate::views::PodLists;
use crate::{resource, summary, views};

/// What the handlers are made of.
#[derive(Debug)]
pub struct Parts {
    pub config: Arc<NodeConfig>,
    pub peers: Arc<Peers>,
    pub health: Arc<HealthChecks>,
    pub broker: BrokerClient,
    /// The process that reads the journal; none unless the configuration turns the log query on.
    pub journal: Asker,
    pub registry: Registry,
    /// Who is let through on the HTTPS server; without it nobody is.
    pub gate: Option<Gate>,
    /// Where the loops that accept connections register with the watchdog.
    pub progress: Progress,
}

/// See the module.
#[derive(Debug)]
pub struct Router {
    config: Arc<NodeConfig>,
    peers: Arc<Peers>,
    health: Arc<HealthChecks>,
    scrapes: Scrapes,
    cadvisor: Cadvisor,
    pod_lists: PodLists,
    container_logs: ContainerLogs,
    node_logs: NodeLogs,
    streams: Streams,
    requests: RequestMetrics,
    connections: ConnectionMetrics,
    progress: Progress,
    switches: Switches,
    gate: Option<Gate>,
}

impl Router {
    /// # Errors
    /// A family of metrics of the same name exists already.
    pub fn new(parts: Parts) -> Result<Self, prometheus::Error> {
        let Parts { config, peers, health, broker, journal, registry, gate, progress } = parts;
        let slots = Arc::new(Slots::default());
        let syncd = peers.syncd().clone();
        Ok(Router {
            scrapes: Scrapes::new(peers.clone(), registry.clone(), slots.clone())?,
            cadvisor: Cadvisor::new(peers.clone(), broker.clone(), &config, slots),
            pod_lists: PodLists::default(),
            container_logs: ContainerLogs::new(&config, syncd.clone(), broker.clone()),
            node_logs: NodeLogs::new(&config, broker, journal),
            streams: Streams::new(&config, syncd, &registry)?,
            requests: RequestMetrics::register(&registry)?,
            connections: ConnectionMetrics::register(&registry)?,
            switches: switches(&config),
            config,
            peers,
            health,
            progress,
            gate,
        })
    }

    /// What the connections of a port lead to. `tls`: none for plain HTTP.
    pub fn endpoint(self: Arc<Self>, surface: Surface, limits: Limits, tls: Option<Serving>) -> Arc<Endpoint> {
        let (metrics, progress) = (self.connections.clone(), self.progress.clone());
        Arc::new(Endpoint { surface, handler: self, metrics, progress, limits, tls })
    }

    async fn counted(&self, surface: Surface, mut request: Request<Incoming>) -> Answer {
        let path = request.uri().path();
        let route = routes::route(surface, &self.switches, request.method().as_str(), path, request.uri().query());
        // Upstream counts the requests of its API servers, not those of the healthz port.
        if surface == Surface::Healthz {
            return self.dispatch(surface, route, request).await;
        }
        let path = routes::path_label(path);
        let server_type = if surface == Surface::Main { "readwrite" } else { "readonly" };
        let labels = [routes::method_label(request.method().as_str()), path, server_type, routes::long_running(path)];
        let open = OpenRequest::begin(&self.requests, &labels);
        // Whoever goes on with the connection after the answer keeps a copy for as long.
        request.extensions_mut().insert(open.clone());
        let answer = match self.admit(surface, request).await {
            Ok(request) => self.dispatch(surface, route, request).await,
            Err(refusal) => refusal,
        };
        answer.map(|body| open.of_body(body))
    }

    /// The plain servers let everybody through to the little that they have.
    async fn admit(&self, surface: Surface, request: Request<Incoming>) -> Result<Request<Incoming>, Answer> {
        match (surface, &self.gate) {
            (Surface::Healthz | Surface::ReadOnly, _) => Ok(request),
            (Surface::Main, Some(gate)) => gate.admit(request).await,
            (Surface::Main, None) => Err(answer::text(StatusCode::UNAUTHORIZED, "Unauthorized")),
        }
    }

    async fn dispatch(&self, surface: Surface, route: Route, request: Request<Incoming>) -> Answer {
        match route {
            Route::Health { verbose, exclude } => {
                let checks = self.health.all(surface).await;
                for (name, outcome) in checks.iter().filter(|(name, _)| !exclude.iter().any(|other| other == name)) {
                    self.scrapes.health.observe(name, outcome.is_ok());
                }
                let answer = health::root(&checks, verbose, &exclude);
                answer::text(health_status(answer.healthy), answer.text)
            }
            Route::HealthCheck(name) => match self.health.one(surface, &name).await {
                Some(outcome) => {
                    let answer = health::single(outcome);
                    answer::text(health_status(answer.healthy), answer.text)
                }
                None => unknown(),
            },
            Route::Metrics => self.scrapes.metrics(request).await,
            Route::ProbeMetrics => self.scrapes.probes(request).await,
            Route::SliMetrics { reset } => self.scrapes.slis(reset, request).await,
            Route::ResourceMetrics => resource::serve(&self.peers, request).await,
            Route::CadvisorMetrics => self.cadvisor.serve(request).await,
            Route::Summary => summary::serve(&self.peers, request).await,
            Route::Pods => self.pod_lists.wanted(&self.peers).await,
            Route::RunningPods => self.pod_lists.running(&self.peers).await,
            Route::Configz => views::configz(&self.config, &self.peers).await,
            Route::FlagsVerbosity => views::flags_v(&self.peers, request).await,
            Route::Flagz => views::flagz(&self.config, &request),
            Route::Statusz => views::statusz(&self.config, &self.switches, &request),
            Route::Pprof(profile) => views::pprof(&profile),
            Route::ContainerLogs(place) => self.container_logs.serve(&place, request).await,
            Route::NodeLogs(relative) => self.node_logs.serve(&relative, request).await,
            Route::Exec(place) => self.streams.exec(&place, request).await,
            Route::Attach(place) => self.streams.attach(&place, request).await,
            Route::PortForward(place) => self.streams.port_forward(&place, request).await,
            Route::Run(place) => self.streams.run(&place, request).await,
            Route::Checkpoint(place) => self.streams.checkpoint(&place, request).await,
            Route::Disabled(words) => answer::text(StatusCode::METHOD_NOT_ALLOWED, words),
            Route::MethodNotAllowed(methods) => {
                let mut answer = answer::text(StatusCode::METHOD_NOT_ALLOWED, "405: Method Not Allowed");
                answer.headers_mut().insert(header::ALLOW, http::HeaderValue::from_static(methods));
                answer
            }
            Route::Redirect(to) => redirect(&to),
            Route::Unknown => unknown(),
            Route::NotFound => answer::text(StatusCode::NOT_FOUND, "404: Page Not Found"),
            Route::Malformed => answer::text(StatusCode::BAD_REQUEST, "400 Bad Request"),
        }
    }
}

impl Handler for Router {
    fn answer(self: Arc<Self>, surface: Surface, request: Request<Incoming>) -> BoxFuture<'static, Answer> {
        Box::pin(async move { self.counted(surface, request).await })
    }
}

/// Serves plain HTTP on the listener until the future is dropped.
pub async fn serve_http(listener: TcpListener, surface: Surface, router: Arc<Router>, limits: Limits) {
    listener::accept(listener, router.endpoint(surface, limits, None)).await;
}

fn switches(config: &NodeConfig) -> Switches {
    let kubelet = &config.kubelet;
    let gates = config.feature_gates();
    Switches {
        debugging: kubelet.enable_debugging_handlers(),
        profiling: kubelet.enable_profiling_handler(),
        debug_flags: kubelet.enable_debug_flags_handler(),
        system_log: kubelet.enable_system_log_handler(),
        checkpoint: gates.enabled(Feature::ContainerCheckpoint),
        flagz: gates.enabled(Feature::ComponentFlagz),
        statusz: gates.enabled(Feature::ComponentStatusz),
    }
}

fn health_status(healthy: bool) -> StatusCode {
    if healthy { StatusCode::OK } else { StatusCode::INTERNAL_SERVER_ERROR }
}

/// In the words of Go's mux: no pattern of it matches.
fn unknown() -> Answer {
    answer::text(StatusCode::NOT_FOUND, "404 page not found\n")
}

/// As Go's mux sends it since 1.26.
fn redirect(to: &str) -> Answer {
    let Ok(location) = http::HeaderValue::from_str(to) else { return unknown() };
    let mut answer = answer::empty(StatusCode::TEMPORARY_REDIRECT);
    answer.headers_mut().insert(header::LOCATION, location);
    answer
}
