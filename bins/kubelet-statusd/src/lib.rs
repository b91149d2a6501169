//! kubelet-statusd: writes to the API server what the node and its pods are, and serves the node's HTTP API.
//!
//! # Serves / calls
//! HTTPS on address:port, for those whom [`server::gate`] lets through; HTTP on healthzBindAddress:healthzPort and, when
//! readOnlyPort is not 0, on address:readOnlyPort; [`routes`] has what each of them answers.
//! `kubelet.statusd.v1.Status` on its socket. Calls kubelet-syncd (what its pods and the node are, its events),
//! kubelet-evictiond (statistics), kubelet-volnetd (credentials, the product UUID, metrics, its state folder) and,
//! unless the node is standalone, the API server: it is the only process that writes there. [`certificates`] asks for
//! the node's certificates; [`node`] keeps the Node, its lease and the CSINode; [`pods`] the pods' status, mirror pods
//! and the last DELETE; [`events`] sends what was recorded.
//!
//! # Privileges
//! Its own user and no capability.
//!
//! # Security
//! Everybody on the network may connect to the HTTPS server (everybody on the machine to the health port): handshakes,
//! headers and connections are bounded in size, time and number ([`server::limits`]), and nothing of a request but its
//! credentials is looked at before it is let through. The serving key is kubelet-volnetd's to open: it is here in memory.
//! Answers of the peers are read strictly and never relayed unread. Of objects that the API server has only the fields
//! that are ours are patched.
//!
//! # State
//! kubelet-syncd's events that wait for the API server, and how far its queue was read; all else is computed anew and
//! compared with what the API server has. The state folder is held locked for the life of the process, so that no older
//! instance runs beside it.
//!
//! # When it fails
//! A restart refuses no client: the supervisor keeps the listening ports ([`server::ports`]), and who connects in between waits.
//! The HTTPS port that is taken for more than some seconds ends the process (the first time the node, as upstream), other
//! ports are tried again; everything else goes on. A serving certificate that is missing or broken fails connections
//! until there is another. A peer that does not answer within a second costs its
//! own series and, after a grace for restarts, its health check. While the API server is away nothing is lost but time:
//! the lease says that the node lives, Ready that it works, and neither waits for the other.
//!
//! # Modules
//! A module uses only those above it in this table (`tests/tests/files/layers.rs` holds it to that).
//!
//! | module | decides |
//! |---|---|
//! | `lru`, `oldest_first`, `strategic` | nothing: bounded memory, and patches |
//! | `settled_metrics` | nothing: families whose values are known at the start |
//! | [`traces`] | when spans are sent |
//! | *what writes to the API server* | |
//! | [`api_writer`] | what all writers share; when requests may be sent while the server is away |
//! | [`events`] | what becomes of an event |
//! | [`pods`] | which request makes a pod's object what it should be |
//! | [`node`] | the same for the Node, its lease, the CSINode |
//! | [`certificates`] | when certificates are asked for |
//! | *what serves* | |
//! | [`routes`] | which path on which port is what |
//! | [`health`], `peers`, `health_checks` | whether the node agent is well |
//! | `listening` | nothing: which addresses are served |
//! | [`server`] | who is let in, and how an answer is made |
//! | [`open_requests`] | nothing: requests as they are counted |
//! | [`scrape`], [`cadvisor`], [`resource`], [`summary`] | metrics and statistics |
//! | [`logs`], [`node_logs`] | logs of containers and of the node |
//! | [`streaming`] | streams into pods |
//! | [`views`] | what the node shows of itself |
//! | [`router`] | who is let through to which handler |
//! | `service` | nothing: what an operator is told |
//!
//! # Tasks and channels
//! | task | takes | gives |
//! |---|---|---|
//! | kubelet-syncd's view ([`node::syncd_view`]) | its stream of the node | the view, and what the writer of pods needs of it (watch) |
//! | the Node, its lease, the CSINode ([`node`]) | the view (watch) | requests; the Node's addresses (watch), events |
//! | pods ([`pods`]) | kubelet-syncd's stream of pods (mpsc), facts (watch) | requests; events |
//! | events ([`events`]) | kubelet-syncd's stream, this process's own queue | requests; the backlog on the disk |
//! | certificates ([`certificates`]) | the Node's addresses (watch), files' changes | requests; files through volnetd |
//! | each listening port ([`server::listener`]), each connection ([`server::connection`]) | connections; requests | answers |
//! | the serving pair ([`server::tls`]) | files' changes | what is shown, who is believed (watch) |
//! | streams into pods ([`streaming`]), followers of logs ([`logs`]) | the runtime; files' growth and containers' lives (watch) | bytes to clients |
//! | traces ([`traces`]) | spans of all processes | batches to the collector |

pub mod api_writer;
pub mod cadvisor;
pub mod certificates;
pub mod events;
pub mod health;
mod health_checks;
mod listening;
pub mod logs;
mod lru;
pub mod node;
pub mod node_logs;
mod oldest_first;
pub mod open_requests;
mod peers;
pub mod pods;
pub mod resource;
pub mod router;
pub mod routes;
pub mod scrape;
pub mod server;
mod service;
mod settled_metrics;
mod strategic;
pub mod streaming;
pub mod summary;
pub mod traces;
pub mod views;

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_apiclient::ApiClient;
use bulkhead_config::NodeConfig;
use bulkhead_daemon::progress::LOOP_BOUND;
use bulkhead_daemon::{Daemon, Passed, RunError, StateDir};
use bulkhead_ipc::MAX_MESSAGE_BYTES;
use bulkhead_ipc::helper::Asker;
use bulkhead_ipc::peers::{MethodRule, Role};
use bulkhead_ipc::statusd::status_server::StatusServer;
use bulkhead_types::{BackOff, Process};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::api_writer::ApiWriter;
use crate::node::pressure_view;
use crate::node::syncd_view::{self, ViewSenders};
use crate::server::https::Https;
use crate::server::{listener, ports};
use crate::settled_metrics::ClientCertificate;

pub use health_checks::HealthChecks;
pub use listening::Listeners;
pub use peers::Peers;
pub use router::{Parts, Router, serve_http};
pub use routes::Surface;
pub use server::limits::Limits;
pub use service::StatusService;

/// Who may call what.
pub const RULES: &[MethodRule] = &[MethodRule { method: "/kubelet.statusd.v1.Status/Get", peers: &[Role::Operator] }];

/// First and longest pause before a taken port is tried again; upstream waits 5 s.
const BIND_RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// The daemon's work, from the first socket to the last.
///
/// # Errors
/// The gRPC socket cannot be served, or another instance holds the state folder for too long.
pub async fn run(daemon: Arc<Daemon>) -> Result<(), RunError> {
    let config = &daemon.config;
    settled_metrics::register(&daemon.registry, config)?;
    let peers = Arc::new(Peers::new(
        daemon.link(Process::Syncd),
        daemon.link(Process::Volnetd),
        daemon.link(Process::Evictiond),
    ));
    let api = if config.is_standalone() {
        None
    } else {
        let volnetd = daemon.link(Process::Volnetd);
        let api = ApiClient::start("kubelet-statusd", config.clone(), daemon.broker.clone(), volnetd);
        let api = api.with_metrics(&daemon.registry)?;
        if config.kubelet.rotate_certificates {
            daemon.registry.register(Box::new(ClientCertificate::new(api.clone())?))?;
        }
        Some(api)
    };
    // On the heap, as all that only the start needs: a future has room for the largest of its parts for as long as it lives.
    let https = Box::pin(server::https::listen(&daemon, api.as_ref())).await?;
    let api_server = api.as_ref().map(ApiClient::reachability);
    let health = Arc::new(HealthChecks::new(peers.clone(), config.sync_frequency(), api_server));
    let router = Arc::new(Router::new(Parts {
        config: config.clone(),
        peers,
        health: health.clone(),
        broker: daemon.broker.clone(),
        journal: journal_reader(daemon.take_passed(Passed::Journal), config)?,
        registry: daemon.registry.clone(),
        gate: https.as_ref().map(Https::gate),
        progress: daemon.progress.clone(),
    })?);
    let listeners = Listeners::default();
    if let Some(https) = https {
        let (router, listeners, stop) = (router.clone(), listeners.clone(), daemon.stop.clone());
        tokio::spawn(async move {
            let _listening = listeners.add(Surface::Main, https.address);
            let endpoint = router.endpoint(Surface::Main, Https::limits(), Some(https.serving));
            tokio::select! {
                () = stop.cancelled() => {}
                () = listener::accept(https.listener, endpoint) => {}
            }
        });
    }
    send_traces(&daemon);
    let addresses = addresses(config);
    let main = config.https_address().map(|_| Surface::Main);
    ports::close_others(&daemon, &addresses.iter().map(|(surface, _)| *surface).chain(main).collect::<Vec<_>>());
    for (surface, address) in addresses {
        let (router, listeners, stop) = (router.clone(), listeners.clone(), daemon.stop.clone());
        let earlier = ports::earlier(&daemon, surface, address);
        tokio::spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = listen(surface, address, earlier, router, listeners) => {}
            }
        });
    }
    let status = StatusService { node_name: config.node_name.to_string(), health, listeners };
    let status = StatusServer::new(status).max_decoding_message_size(MAX_MESSAGE_BYTES);
    let services = daemon.services().add(status);
    let serve = daemon.serve(services, RULES);
    // Health is served while kubelet-volnetd, which hands out the state folder, is away: that is when it matters.
    let hold = async {
        // While kubelet-volnetd is away there is no folder to be had; that must not hold up the end.
        let state = tokio::select! {
            state = daemon.state_dir() => state?,
            () = daemon.stop.cancelled() => return Ok(()),
        };
        Box::pin(write_to_the_api_server(&daemon, Arc::new(state), api)).await;
        Ok(())
    };
    daemon.set_ready().await;
    tokio::try_join!(serve, hold)?;
    Ok(())
}

/// Who reads the journal for us: the launcher's, by the socket that it passes, or the unit's, by its own, which may be made
/// after our start and is looked for with each question. Where the configuration does not turn the log query on, nobody.
fn journal_reader(passed: Option<OwnedFd>, config: &NodeConfig) -> std::io::Result<Asker> {
    let kubelet = &config.kubelet;
    let wanted = kubelet.answers_log_queries();
    if passed.is_none() && !wanted {
        return Ok(Asker::default());
    }
    Asker::passed_or_at(passed, &config.paths.run_dir.join("kubelet-journal.sock"))
}

/// Traces go to the collector from the start on, where the configuration names them.
fn send_traces(daemon: &Arc<Daemon>) {
    let Some(own) = daemon.traces.clone() else { return };
    let links = [Process::Syncd, Process::Volnetd, Process::Evictiond].map(|process| (process, daemon.link(process)));
    let daemon = daemon.clone();
    tokio::spawn(async move {
        tokio::select! {
            () = daemon.stop.cancelled() => {}
            ended = traces::run(&daemon.config, own, links, &daemon.registry) => {
                if let Err(error) = ended {
                    tracing::error!(%error, "failed to send traces");
                }
            }
        }
    });
}

/// Everything that is written to the API server; on a standalone node the folder alone is held.
async fn write_to_the_api_server(daemon: &Daemon, state: Arc<StateDir>, api: Option<ApiClient>) {
    let Some(api) = api else {
        daemon.stop.cancelled().await;
        return;
    };
    let (events, own_events) = events::EventQueue::new();
    let writer = ApiWriter {
        config: daemon.config.clone(),
        api,
        syncd: daemon.link(Process::Syncd),
        volnetd: daemon.link(Process::Volnetd),
        evictiond: daemon.link(Process::Evictiond),
        broker: daemon.broker.clone(),
        state,
        registry: daemon.registry.clone(),
        progress: daemon.progress.clone(),
        stop: daemon.stop.clone(),
    };
    let (told, view, facts) = ViewSenders::new();
    let (addresses, known_addresses) = watch::channel(Vec::new());
    let (pressure_told, pressure) = watch::channel(None);
    let (stop, evictiond) = (daemon.stop.clone(), writer.evictiond.clone());
    let view_told = syncd_view::follow(writer.syncd.clone(), told, daemon.progress.register("view", LOOP_BOUND));
    let pressure_told =
        pressure_view::follow(evictiond, pressure_told, daemon.progress.register("pressure", LOOP_BOUND));
    // What is woken for each pod is a task of its own: futures that are joined are all polled whenever one of them is woken.
    let mut work = JoinSet::new();
    work.spawn(async move {
        tokio::select! {
            () = stop.cancelled() => {}
            () = view_told => {}
            () = pressure_told => {}
        }
    });
    work.spawn(certificates::run(writer.clone(), known_addresses));
    work.spawn(pods::run(writer.clone(), events.clone(), facts));
    work.spawn(events::run(writer.clone(), events.clone(), own_events));
    let ended = async {
        while let Some(ended) = work.join_next().await {
            if let Err(error) = ended
                && let Ok(panic) = error.try_into_panic()
            {
                std::panic::resume_unwind(panic);
            }
        }
    };
    tokio::join!(node::run(writer, events, view, pressure, addresses), ended);
}

/// Where to listen. A port that validation let through fits.
fn addresses(config: &NodeConfig) -> Vec<(Surface, SocketAddr)> {
    let mut addresses = Vec::new();
    if let Some(address) = config.healthz_address() {
        addresses.push((Surface::Healthz, address));
    }
    let port = u16::try_from(config.kubelet.read_only_port).unwrap_or(0);
    if port != 0
        && let Some(address) = bulkhead_types::ip::parse_sloppy(&config.kubelet.address)
    {
        addresses.push((Surface::ReadOnly, SocketAddr::new(address, port)));
    }
    addresses
}

/// Serves one address for ever. A port may still be held by an instance that ends, or by a stranger.
async fn listen(
    surface: Surface,
    address: SocketAddr,
    mut earlier: Option<TcpListener>,
    router: Arc<Router>,
    listeners: Listeners,
) {
    let mut retry = BackOff::new(BIND_RETRY.0, BIND_RETRY.1);
    loop {
        let listener = match earlier.take() {
            Some(listener) => Ok(listener),
            None => listener::listen(address).await.inspect(|listener| ports::keep(surface, listener)),
        };
        match listener {
            Ok(listener) => {
                tracing::info!(%address, ?surface, "listening");
                let _listening = listeners.add(surface, address);
                retry.reset();
                serve_http(listener, surface, router.clone(), Limits::default()).await;
            }
            Err(error) => tracing::warn!(%address, %error, "failed to listen, will retry"),
        }
        tokio::time::sleep(retry.pause()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_journal_s_reader_may_listen_later_than_we_start() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = NodeConfig::for_tests(folder.path());
        for (query, handlers, wanted) in [
            (None, None, false),
            (Some(true), None, true),
            (Some(true), Some(false), false),
            (Some(false), None, false),
        ] {
            config.kubelet.enable_system_log_query = query;
            config.kubelet.enable_debugging_handlers = handlers;
            assert_eq!(journal_reader(None, &config).unwrap().is_there(), wanted, "{query:?} {handlers:?}");
        }
    }
}
