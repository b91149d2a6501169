//! Puts the parts together, in the order in which one needs the other.

mod adoption;
mod agents;
mod claims;
mod facts;
mod plugins;
mod resources;
mod runtime;
mod stages;
mod volumes;

use std::sync::Arc;

use bulkhead_daemon::{Daemon, RunError};
use bulkhead_ipc::MAX_MESSAGE_BYTES;
use bulkhead_ipc::syncd::events_server::EventsServer;
use bulkhead_ipc::syncd::eviction_server::EvictionServer;
use bulkhead_ipc::syncd::images_server::ImagesServer;
use bulkhead_ipc::syncd::logs_server::LogsServer;
use bulkhead_ipc::syncd::node_server::NodeServer;
use bulkhead_ipc::syncd::ooms_server::OomsServer;
use bulkhead_ipc::syncd::pods_server::PodsServer;
use bulkhead_ipc::syncd::resources_server::ResourcesServer;
use bulkhead_ipc::syncd::runtime_stats_server::RuntimeStatsServer;
use bulkhead_ipc::syncd::stats_server::StatsServer;
use bulkhead_ipc::syncd::storage_server::StorageServer;
use bulkhead_ipc::syncd::streams_server::StreamsServer;
use bulkhead_ipc::syncd::views_server::ViewsServer;
use tokio::time::Instant;

use crate::hub::{EventRing, PodHub};
use crate::service::api::SyncdApi;
use crate::service::evictions::EvictionApi;
use crate::service::images::ImagesApi;
use crate::service::late::Late;
use crate::service::logs::LogsApi;
use crate::service::node_view::NodeView;
use crate::service::ooms::OomsApi;
use crate::service::resources::ResourcesApi;
use crate::service::rules;
use crate::service::runtime_stats::RuntimeStatsApi;
use crate::service::stats::StatsApi;
use crate::service::storage::StorageApi;
use crate::service::streams::StreamsApi;
use crate::storage_writes::StorageWrites;
use crate::sync_loop::events::Reporter;
use stages::{Connections, Followers, Learned, Loops, Machine, Server, Start};

/// The daemon's work, from the first socket to the last.
///
/// # Errors
/// The socket cannot be served, the state folder is held by another instance, or a metric's name is taken.
pub async fn run(daemon: Arc<Daemon>) -> Result<(), RunError> {
    let started = Instant::now();
    let config = daemon.config.clone();
    let ring = Arc::new(EventRing::new(daemon.epoch.get()));
    let hub = Arc::new(PodHub::default());
    let reporter = Arc::new(Reporter { ring: ring.clone(), hub: hub.clone() });
    let view = NodeView::new(config.clone(), hub.clone());

    // Callers are answered from the first moment on: that little is known yet is an answer.
    let service = SyncdApi {
        epoch: daemon.epoch,
        pods: hub,
        events: ring,
        node: view.clone(),
        running: Arc::default(),
        stop: daemon.stop.clone(),
    };
    let storage = StorageApi {
        epoch: daemon.epoch,
        writes: StorageWrites::default(),
        plugins: Late::default(),
        statistics: Late::default(),
        stop: daemon.stop.clone(),
    };
    let runtime_apis = RuntimeApis::with_storage(storage);
    let resources = ResourcesApi { config, view: view.clone() };
    let services = daemon
        .services()
        .add(PodsServer::new(service.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES))
        .add(ViewsServer::new(service.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES))
        .add(EventsServer::new(service.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES))
        .add(NodeServer::new(service).max_decoding_message_size(MAX_MESSAGE_BYTES))
        .add(StatsServer::new(runtime_apis.stats.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES))
        .add(
            RuntimeStatsServer::new(RuntimeStatsApi(runtime_apis.stats.clone()))
                .max_decoding_message_size(MAX_MESSAGE_BYTES),
        )
        .add(EvictionServer::new(runtime_apis.evictions.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES))
        .add(ImagesServer::new(runtime_apis.images.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES))
        .add(OomsServer::new(runtime_apis.ooms.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES))
        .add(StorageServer::new(runtime_apis.storage.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES))
        .add(ResourcesServer::new(resources).max_decoding_message_size(MAX_MESSAGE_BYTES))
        .add(LogsServer::new(runtime_apis.logs.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES))
        .add(StreamsServer::new(runtime_apis.streams.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES));
    let mut serving = Box::pin(daemon.serve(services, rules::RULES));
    let mut working = Box::pin(work(&daemon, started, reporter, view, runtime_apis));
    tokio::select! {
        served = &mut serving => {
            // SIGTERM came: calls to the runtime that have begun are finished first.
            served?;
            working.await
        }
        worked = &mut working => {
            worked?;
            serving.await
        }
    }
}

/// Services that put others' questions to the runtime or to the sync loop, once these are there.
#[derive(Debug)]
struct RuntimeApis {
    streams: StreamsApi,
    stats: StatsApi,
    evictions: EvictionApi,
    images: ImagesApi,
    ooms: OomsApi,
    logs: LogsApi,
    storage: StorageApi,
}

impl RuntimeApis {
    fn with_storage(storage: StorageApi) -> Self {
        RuntimeApis {
            streams: StreamsApi::default(),
            stats: StatsApi::default(),
            evictions: EvictionApi::default(),
            images: ImagesApi::default(),
            ooms: OomsApi::default(),
            logs: LogsApi::default(),
            storage,
        }
    }
}

/// The work, in stages: each has what the one before it has made. Each is on the heap, and given back at its end: a future has room
/// for the largest of its parts for as long as it lives, and what starts takes many times the room of what goes on.
async fn work(
    daemon: &Arc<Daemon>,
    started: Instant,
    reporter: Arc<Reporter>,
    view: Arc<NodeView>,
    runtime_apis: RuntimeApis,
) -> Result<(), RunError> {
    let start = Start { daemon: daemon.clone(), config: daemon.config.clone(), reporter, view, runtime_apis, started };
    let Some(connections) = Box::pin(Connections::open(&start)).await? else { return Ok(()) };
    let followers = Followers::begin(&start, &connections)?;
    daemon.set_ready().await;
    let machine = Machine::read(&start.config);
    start.view.set_first(followers.shown(&connections, &machine));
    // The API server need not be there: static pods do not wait for it.
    let server = Server::connect(&start, &connections, &machine)?;
    let learning = Box::pin(Learned::wait(&start, &connections, &followers, &machine, &server));
    let Some(known) = learning.await else { return Ok(()) };
    let calls = connections.cri.clone();
    let loops = Box::pin(Loops::begin(&start, connections, followers, machine, server, known)).await?;
    Box::pin(loops.run(daemon, calls)).await
}
