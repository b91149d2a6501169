//! Answers to requests: the route's question put to the processes, their answers as upstream words them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bulkhead_apiclient::Reachability;
use bulkhead_types::Process;
use prometheus::Registry;
use tokio::sync::watch;

use crate::exposition::{self, Source};
use crate::health::{self, Inputs};
use crate::own_metrics::OwnMetrics;
use crate::peers::Peers;
use crate::routes::{self, Route, Surface};
use crate::{resource, summary};

const TEXT: &str = "text/plain; charset=utf-8";
const EXPOSITION: &str = "text/plain; version=0.0.4; charset=utf-8";
const JSON: &str = "application/json";

/// An answer, before it is HTTP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    pub status: u16,
    pub content_type: &'static str,
    pub body: String,
}

impl Reply {
    fn text(status: u16, body: impl Into<String>) -> Self {
        Reply { status, content_type: TEXT, body: body.into() }
    }
}

/// What this process knows and whom it asks.
#[derive(Debug)]
pub struct App {
    node_name: String,
    sync_frequency: Duration,
    peers: Peers,
    registry: Registry,
    own: OwnMetrics,
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
    pub fn new(node_name: String, sync_frequency: Duration, peers: Peers, registry: Registry, own: OwnMetrics) -> Self {
        App { node_name, sync_frequency, peers, registry, own, listening: Arc::default(), api_server: None }
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
        &self.node_name
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
    pub async fn respond(&self, surface: Surface, method: &str, path: &str, query: Option<&str>) -> Reply {
        // Upstream counts the requests of its API servers, not those of the healthz port.
        if surface == Surface::Healthz {
            return self.answer(surface, method, path, query).await;
        }
        let labels = [routes::method_label(method), routes::path_label(path), "readonly", "false"];
        self.own.requests.with_label_values(&labels).inc();
        let inflight = self.own.inflight.with_label_values(&labels);
        inflight.inc();
        let started = Instant::now();
        let reply = self.answer(surface, method, path, query).await;
        self.own.request_seconds.with_label_values(&labels).observe(started.elapsed().as_secs_f64());
        inflight.dec();
        reply
    }

    async fn answer(&self, surface: Surface, method: &str, path: &str, query: Option<&str>) -> Reply {
        match routes::route(surface, method, path, query) {
            Route::Health { verbose, exclude } => {
                let answer = health::root(&self.checks().await, verbose, &exclude);
                Reply::text(if answer.healthy { 200 } else { 500 }, answer.text)
            }
            Route::HealthCheck(name) => match self.check(name).await {
                Some(outcome) => {
                    let answer = health::single(outcome);
                    Reply::text(if answer.healthy { 200 } else { 500 }, answer.text)
                }
                None => not_found(),
            },
            Route::Metrics => Reply { status: 200, content_type: EXPOSITION, body: self.metrics().await },
            Route::ResourceMetrics => {
                let stats = self.summary().await.ok();
                let body = exposition::render(&resource::families(stats.as_ref()));
                Reply { status: 200, content_type: EXPOSITION, body }
            }
            Route::Summary { only_cpu_and_memory } => match self.summary().await {
                Ok((node, pods)) => {
                    let document = summary::document(&node, &pods, only_cpu_and_memory);
                    Reply { status: 200, content_type: JSON, body: format!("{document:#}\n") }
                }
                Err(status) => {
                    Reply::text(500, format!("Internal Error: failed to get statistics: {}", status.message()))
                }
            },
            Route::DebugDisabled => Reply::text(405, "Debug endpoints are disabled.\n"),
            Route::MethodNotAllowed => Reply::text(405, "405: Method Not Allowed"),
            Route::NotFound => not_found(),
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
            sync_frequency: self.sync_frequency,
        }
    }

    async fn summary(
        &self,
    ) -> Result<(bulkhead_ipc::evictiond::NodeStats, Vec<bulkhead_ipc::evictiond::PodStats>), tonic::Status> {
        let summary = self.peers.summary().await;
        if let Err(status) = &summary {
            tracing::warn!(code = ?status.code(), "statistics are not to be had: {}", status.message());
        }
        summary
    }

    /// The metrics of all processes in one valid text.
    async fn metrics(&self) -> String {
        let (syncd, volnetd, evictiond) = tokio::join!(
            self.peers.metrics(Process::Syncd),
            self.peers.metrics(Process::Volnetd),
            self.peers.metrics(Process::Evictiond)
        );
        let mut sources = Vec::new();
        for (process, text) in [(Process::Syncd, syncd), (Process::Volnetd, volnetd), (Process::Evictiond, evictiond)] {
            let families = text.map(|text| exposition::parse(&text));
            let up = matches!(families, Some(Ok(_)));
            self.own.up.with_label_values(&[process.name()]).set(up.into());
            match families {
                Some(Ok(families)) => sources.push(Source { process: process.name(), families }),
                Some(Err(error)) => tracing::warn!(process = process.name(), %error, "metrics are left out"),
                None => tracing::debug!(process = process.name(), "no metrics in time"),
            }
        }
        self.own.up.with_label_values(&[Process::Statusd.name()]).set(1);
        // Our own last, so that they tell of this very scrape.
        match exposition::parse(&bulkhead_daemon::encode_metrics(&self.registry)) {
            Ok(families) => sources.push(Source { process: Process::Statusd.name(), families }),
            Err(error) => tracing::error!(%error, "our own metrics are left out"),
        }
        sources.extend(launcher());
        exposition::render(&exposition::merge(sources))
    }
}

/// The launcher has no socket: what the kernel shows of the parent process, if that is it.
fn launcher() -> Option<Source> {
    let parent = rustix::process::getppid()?.as_raw_nonzero().get();
    let comm = std::fs::read_to_string(format!("/proc/{parent}/comm")).ok()?;
    if comm.trim_end() != "kubelet" {
        return None;
    }
    let families = exposition::parse(&bulkhead_daemon::process_metrics_of(Some(parent.unsigned_abs()))).ok()?;
    Some(Source { process: "kubelet", families })
}

fn not_found() -> Reply {
    Reply::text(404, "404 page not found\n")
}
