//! Which code answers a request, and what every answer may draw on: the other processes, the configuration, the broker.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bulkhead_apiclient::Reachability;
use bulkhead_config::NodeConfig;
use bulkhead_daemon::progress::Progress;
use bulkhead_ipc::broker::BrokerClient;
use bulkhead_ipc::journal::JournalReader;
use bulkhead_types::Process;
use http::{Request, StatusCode, header};
use hyper::body::Incoming;
use prometheus::Registry;
use tokio::sync::watch;

use crate::cadvisor::MachineNames;
use crate::health::{self, Inputs};
use crate::open_requests::OpenRequest;
use crate::own_metrics::OwnMetrics;
use crate::peers::Peers;
use crate::routes::{self, Route, Surface, Switches};
use crate::scrape::Scrapes;
use crate::server::answer::{self, Answer};
use crate::server::gate::Gate;
use crate::{cadvisor, logs, node_logs, resource, scrape, streaming, summary, views};

/// What this process knows and whom it asks.
#[derive(Debug)]
pub struct App {
    pub config: Arc<NodeConfig>,
    pub peers: Peers,
    pub broker: BrokerClient,
    pub registry: Registry,
    pub own: OwnMetrics,
    pub scrapes: Scrapes,
    pub machine_names: MachineNames,
    /// The process that reads the journal; none unless the configuration turns the log query on.
    pub journal: JournalReader,
    /// Where the loops that accept connections make their promise to the watchdog.
    pub progress: Progress,
    pub streams: streaming::Streams,
    pub followers: logs::Followers,
    switches: Switches,
    gate: Option<Gate>,
    listening: Arc<Mutex<BTreeMap<SocketAddr, Surface>>>,
    api_server: Option<watch::Receiver<Reachability>>,
}

/// Takes the address off the list when the server ends.
#[derive(Debug)]
pub struct Listening {
    address: SocketAddr,
    list: Arc<Mutex<BTreeMap<SocketAddr, Surface>>>,
}

impl Drop for Listening {
    fn drop(&mut self) {
        if let Ok(mut list) = self.list.lock() {
            list.remove(&self.address);
        }
    }
}

impl App {
    pub fn new(
        config: Arc<NodeConfig>,
        peers: Peers,
        broker: BrokerClient,
        registry: Registry,
        own: OwnMetrics,
    ) -> Self {
        let switches = switches(&config);
        App {
            streams: streaming::Streams::new(&config),
            config,
            peers,
            broker,
            registry,
            own,
            scrapes: Scrapes::default(),
            machine_names: MachineNames::default(),
            journal: JournalReader::default(),
            progress: Progress::default(),
            followers: logs::Followers::default(),
            switches,
            gate: None,
            listening: Arc::default(),
            api_server: None,
        }
    }

    /// The watchdog asks these loops.
    pub fn with_progress(mut self, progress: Progress) -> Self {
        self.progress = progress;
        self
    }

    /// Logs of services are read from the journal.
    pub fn with_journal(mut self, journal: JournalReader) -> Self {
        self.journal = journal;
        self
    }

    /// The node has an API server, and this says whether it answers.
    pub fn with_api_server(mut self, reachability: watch::Receiver<Reachability>) -> Self {
        self.api_server = Some(reachability);
        self
    }

    /// Who is let through on the HTTPS server; without it nobody is.
    pub fn with_gate(mut self, gate: Gate) -> Self {
        self.gate = Some(gate);
        self
    }

    /// Whether the API server answers; `None` on a standalone node.
    pub fn api_server(&self) -> Option<Result<(), String>> {
        let reachability = self.api_server.as_ref()?.borrow().clone();
        Some(health::api_server(&reachability, tokio::time::Instant::now()))
    }

    /// What the configuration turns on and off.
    pub fn switches(&self) -> &Switches {
        &self.switches
    }

    pub fn node_name(&self) -> &str {
        self.config.node_name.as_str()
    }

    /// Notes that `address` is served for as long as the answer lives.
    pub fn listening(&self, surface: Surface, address: SocketAddr) -> Listening {
        if let Ok(mut list) = self.listening.lock() {
            list.insert(address, surface);
        }
        Listening { address, list: self.listening.clone() }
    }

    /// Addresses that are served now, as URLs.
    pub fn addresses(&self) -> Vec<String> {
        self.listening
            .lock()
            .map(|list| list.iter().map(|(address, surface)| format!("{}://{address}", scheme(*surface))).collect())
            .unwrap_or_default()
    }

    /// Answers one request. Never fails: what goes wrong is an answer too.
    pub async fn answer(self: &Arc<Self>, surface: Surface, mut request: Request<Incoming>) -> Answer {
        let path = request.uri().path();
        let route = routes::route(surface, &self.switches, request.method().as_str(), path, request.uri().query());
        // Upstream counts the requests of its API servers, not those of the healthz port.
        if surface == Surface::Healthz {
            return self.dispatch(surface, route, request).await;
        }
        let path = routes::path_label(path);
        let server_type = if surface == Surface::Main { "readwrite" } else { "readonly" };
        let labels = [routes::method_label(request.method().as_str()), path, server_type, routes::long_running(path)];
        let open = OpenRequest::begin(&self.own, &labels);
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

    async fn dispatch(self: &Arc<Self>, surface: Surface, route: Route, request: Request<Incoming>) -> Answer {
        match route {
            Route::Health { verbose, exclude } => {
                let checks = self.checks(surface).await;
                for (name, outcome) in checks.iter().filter(|(name, _)| !exclude.iter().any(|other| other == name)) {
                    self.scrapes.health.observe(name, outcome.is_ok());
                }
                let answer = health::root(&checks, verbose, &exclude);
                answer::text(health_status(answer.healthy), answer.text)
            }
            Route::HealthCheck(name) => match self.check(surface, &name).await {
                Some(outcome) => {
                    let answer = health::single(outcome);
                    answer::text(health_status(answer.healthy), answer.text)
                }
                None => unknown(),
            },
            Route::Metrics => scrape::metrics(self, request).await,
            Route::ProbeMetrics => scrape::probes(self, request).await,
            Route::SliMetrics { reset } => scrape::slis(self, reset, request).await,
            Route::ResourceMetrics => resource::serve(self, request).await,
            Route::CadvisorMetrics => cadvisor::serve(self, request).await,
            Route::Summary => summary::serve(self, request).await,
            Route::Pods => views::pods(self, request).await,
            Route::RunningPods => views::running_pods(self, request).await,
            Route::Configz => views::configz(self, request).await,
            Route::FlagsVerbosity => views::flags_v(self, request).await,
            Route::Flagz => views::flagz(self, request).await,
            Route::Statusz => views::statusz(self, request).await,
            Route::Pprof(profile) => views::pprof(self, &profile, request).await,
            Route::ContainerLogs(place) => logs::serve(self, &place, request).await,
            Route::NodeLogs(relative) => node_logs::serve(self, &relative, request).await,
            Route::Exec(place) => streaming::exec(self, &place, request).await,
            Route::Attach(place) => streaming::attach(self, &place, request).await,
            Route::PortForward(place) => streaming::port_forward(self, &place, request).await,
            Route::Run(place) => streaming::run(self, &place, request).await,
            Route::Checkpoint(place) => streaming::checkpoint(self, &place, request).await,
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

    /// The outcome of every check that this server has.
    pub async fn checks(&self, surface: Surface) -> Vec<(&'static str, Result<(), String>)> {
        let inputs = self.inputs(self.peers.node().await);
        health::names(surface).iter().filter_map(|name| Some((*name, health::check(name, &inputs)?))).collect()
    }

    async fn check(&self, surface: Surface, name: &str) -> Option<Result<(), String>> {
        if !health::names(surface).contains(&name) {
            return None;
        }
        // Only these two need an answer of kubelet-syncd.
        let node = if matches!(name, "syncloop" | "pleg") { self.peers.node().await } else { None };
        health::check(name, &self.inputs(node))
    }

    fn inputs(&self, node: Option<bulkhead_ipc::syncd::NodeState>) -> Inputs {
        Inputs {
            syncd: self.peers.presence(Process::Syncd),
            node,
            volnetd: self.peers.presence(Process::Volnetd),
            evictiond: self.peers.presence(Process::Evictiond),
            sync_frequency: self.config.sync_frequency(),
        }
    }
}

const fn scheme(surface: Surface) -> &'static str {
    match surface {
        Surface::Healthz | Surface::ReadOnly => "http",
        Surface::Main => "https",
    }
}

fn switches(config: &NodeConfig) -> Switches {
    let kubelet = &config.kubelet;
    let gates = config.feature_gates();
    Switches {
        debugging: kubelet.enable_debugging_handlers.unwrap_or(true),
        profiling: kubelet.enable_profiling_handler.unwrap_or(true),
        debug_flags: kubelet.enable_debug_flags_handler.unwrap_or(true),
        system_log: kubelet.enable_system_log_handler.unwrap_or(true),
        checkpoint: gates.enabled("ContainerCheckpoint"),
        flagz: gates.enabled("ComponentFlagz"),
        statusz: gates.enabled("ComponentStatusz"),
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
