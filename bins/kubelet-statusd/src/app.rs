//! Which code answers a request, and what every answer may draw on: the other processes, the configuration, the broker.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use bulkhead_apiclient::Reachability;
use bulkhead_config::NodeConfig;
use bulkhead_ipc::broker::BrokerClient;
use bulkhead_types::Process;
use http::{Request, StatusCode, header};
use hyper::body::Incoming;
use prometheus::Registry;
use tokio::sync::watch;

use crate::health::{self, Inputs};
use crate::own_metrics::OwnMetrics;
use crate::peers::Peers;
use crate::routes::{self, Route, Surface, Switches};
use crate::server::answer::{self, Answer};
use crate::{cadvisor, logs, node_logs, resource, scrape, streaming, summary, views};

/// What this process knows and whom it asks.
#[derive(Debug)]
pub struct App {
    pub config: Arc<NodeConfig>,
    pub peers: Peers,
    pub broker: BrokerClient,
    pub registry: Registry,
    pub own: OwnMetrics,
    switches: Switches,
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
        App { config, peers, broker, registry, own, switches, listening: Arc::default(), api_server: None }
    }

    /// The node has an API server, and this says whether it answers.
    pub fn with_api_server(mut self, reachability: watch::Receiver<Reachability>) -> Self {
        self.api_server = Some(reachability);
        self
    }

    /// Whether the API server answers; `None` on a standalone node.
    pub fn api_server(&self) -> Option<Result<(), String>> {
        let reachability = self.api_server.as_ref()?.borrow().clone();
        Some(health::api_server(&reachability, tokio::time::Instant::now()))
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
            .map(|list| list.keys().map(|address| format!("http://{address}")).collect())
            .unwrap_or_default()
    }

    /// Answers one request. Never fails: what goes wrong is an answer too.
    pub async fn answer(self: &Arc<Self>, surface: Surface, request: Request<Incoming>) -> Answer {
        let path = request.uri().path();
        let route = routes::route(surface, &self.switches, request.method().as_str(), path, request.uri().query());
        // Upstream counts the requests of its API servers, not those of the healthz port.
        if surface == Surface::Healthz {
            return self.dispatch(surface, route, request).await;
        }
        let path = routes::path_label(path);
        let server_type = if surface == Surface::Main { "readwrite" } else { "readonly" };
        let labels = [routes::method_label(request.method().as_str()), path, server_type, routes::long_running(path)];
        self.own.requests.with_label_values(&labels).inc();
        let inflight = self.own.inflight.with_label_values(&labels);
        inflight.inc();
        let started = Instant::now();
        let answer = self.dispatch(surface, route, request).await;
        self.own.request_seconds.with_label_values(&labels).observe(started.elapsed().as_secs_f64());
        inflight.dec();
        answer
    }

    async fn dispatch(self: &Arc<Self>, surface: Surface, route: Route, request: Request<Incoming>) -> Answer {
        match route {
            Route::Health { verbose, exclude } => {
                let answer = health::root(&self.checks().await, verbose, &exclude);
                answer::text(health_status(answer.healthy), answer.text)
            }
            Route::HealthCheck(name) => match self.check(&name).await {
                Some(outcome) => {
                    let answer = health::single(outcome);
                    answer::text(health_status(answer.healthy), answer.text)
                }
                None => not_found(surface),
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
            Route::MethodNotAllowed => {
                let mut answer = answer::text(StatusCode::METHOD_NOT_ALLOWED, "405: Method Not Allowed");
                answer.headers_mut().insert(header::ALLOW, http::HeaderValue::from_static("GET, HEAD"));
                answer
            }
            Route::NotFound => not_found(surface),
        }
    }

    /// Every check's outcome.
    pub async fn checks(&self) -> Vec<(&'static str, Result<(), String>)> {
        let inputs = self.inputs(self.peers.node().await);
        health::CHECKS.into_iter().filter_map(|name| Some((name, health::check(name, &inputs)?))).collect()
    }

    async fn check(&self, name: &str) -> Option<Result<(), String>> {
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

/// In the words of Go's plain mux on the health port, of the router that upstream uses on the others.
fn not_found(surface: Surface) -> Answer {
    let words = if surface == Surface::Healthz { "404 page not found\n" } else { "404: Page Not Found" };
    answer::text(StatusCode::NOT_FOUND, words)
}
