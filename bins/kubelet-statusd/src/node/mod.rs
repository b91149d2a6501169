//! The Node object: registration, status, lease, CSINode. Decisions are in pure modules; this one starts the tasks.
//!
//! | module | decides |
//! |---|---|
//! | `object` | what a new Node has beside its status, and what is put right on one that stands |
//! | `status`, `conditions`, `ready`, `addresses`, `declared` | what the status says |
//! | `patch`, `cadence` | what is sent of it, and when |
//! | `lease`, `csinode` | the two objects beside it |
//! | `pod_certificates` | requests for certificates of pods |
//! | `csi_drivers`, `csi_claims` | what drivers change on Node, CSINode and claims |
//! | `silence` | who has been silent for longer than a restart takes |
//! | `syncd_view`, `facts` | what is known: of the pods' side, the machine (its network: `bulkhead_daemon::addresses`) |
//! | `server`, `reporter`, `syncd_writes`, `csi_driver_writes`, `metrics` | the shells |

pub mod addresses;
pub mod cadence;
pub mod conditions;
pub mod csi_claims;
mod csi_driver_writes;
pub mod csi_drivers;
pub mod csinode;
pub mod declared;
pub mod facts;
pub mod lease;
pub mod metrics;
pub mod object;
pub mod patch;
pub mod pod_certificates;
pub mod pressure_view;
pub mod ready;
pub mod reporter;
pub mod server;
mod silence;
pub mod status;
pub mod syncd_view;
mod syncd_writes;

use std::sync::Arc;

use bulkhead_config::NodeConfig;
use bulkhead_daemon::progress;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::NodeAddress;
use tokio::sync::watch;

use crate::api_writer::ApiWriter;
use crate::events::{EventQueue, Involved, Record};
use conditions::Pressure;
use csinode::Progress;
use facts::Facts;
use metrics::Metrics;
use ready::SilentPeers;
use reporter::{Clock, Reporter};
use server::Server;
use status::Fixed;
use syncd_view::View;

const CGROUP_V1: &str = "cgroup v1 detected. cgroup v1 support is deprecated and will be removed in a future release. Please \
     migrate to cgroup v2. More information at https://git.k8s.io/enhancements/keps/sig-node/5573-remove-cgroup-v1";

/// Keeps the Node and its lease until the daemon is to stop. `view`: what kubelet-syncd says of the node, `pressure`:
/// what kubelet-evictiond does; `addresses` is told which ones it has.
pub async fn run(
    writer: ApiWriter,
    events: EventQueue,
    view: watch::Receiver<View>,
    pressure: watch::Receiver<Option<Pressure>>,
    addresses: watch::Sender<Vec<NodeAddress>>,
) {
    let metrics = match Metrics::register(&writer.registry) {
        Ok(metrics) => metrics,
        Err(error) => {
            // Only a second instance in one process can meet this.
            tracing::error!(%error, "Node is not kept: failed to register metrics");
            return;
        }
    };
    let stop = writer.stop.clone();
    let keep = async {
        let facts = Facts::read(&writer.broker, &writer.config.boot_id).await;
        writer.api.ready().await;
        let server = Server::new(&writer.config, &writer.api);
        let config = writer.config.clone();
        let progress = writer.progress.clone();
        let storage = syncd_writes::run(server.clone(), metrics.clone(), writer.syncd.clone(), progress.clone());
        let (silence, silent_peers) = watch::channel(SilentPeers::default());
        let silence = silence::follow(writer.volnetd.clone(), writer.evictiond.clone(), silence);
        let start = Start { config, server, facts, metrics, events, view, pressure, silent_peers, addresses, progress };
        tokio::join!(keep(start, Timestamp::now), storage, silence);
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = keep => {}
    }
}

/// What the tasks are given.
#[derive(Debug)]
pub struct Start {
    pub config: Arc<NodeConfig>,
    pub server: Server,
    pub facts: Facts,
    pub metrics: Metrics,
    pub events: EventQueue,
    pub view: watch::Receiver<View>,
    /// What presses on the node; `None`: not known yet.
    pub pressure: watch::Receiver<Option<Pressure>>,
    /// Who has not answered for longer than a restart takes.
    pub silent_peers: watch::Receiver<SilentPeers>,
    /// Is told the addresses that the Node has.
    pub addresses: watch::Sender<Vec<NodeAddress>>,
    /// Where each task registers with the watchdog.
    pub progress: progress::Progress,
}

/// The tasks over one connection to the API server. Ends only with its future.
pub async fn keep(start: Start, clock: Clock) {
    let Start { config, server, facts, metrics, events, view, pressure, silent_peers, addresses, progress } = start;
    let with_heartbeat = |name| server.with_heartbeat(progress.register(name, progress::LOOP_BOUND));
    let event = |kind, reason: &str, message: &str| {
        events.record(Record {
            involved: Involved::Node,
            kind,
            reason: reason.to_owned(),
            message: message.to_owned(),
        });
    };
    event("Normal", "Starting", "Starting kubelet.");
    if facts.cgroup_v1 {
        event("Warning", "CgroupV1", CGROUP_V1);
    }
    let fixed = Fixed {
        facts,
        kubelet_version: config.version.clone(),
        port: config.kubelet.port,
        declared_features: declared::declared(&config.feature_gates()),
        local_storage_isolation: config.kubelet.local_storage_capacity_isolation(),
        sync_frequency: config.sync_frequency(),
    };
    let (uid_sender, node_uid) = watch::channel(None);
    let (stands, storage) = watch::channel(Progress::NotYet);
    let leaser = lease::Leaser::new(&config, with_heartbeat("lease"), metrics.clone(), node_uid.clone(), clock);
    let csi_node = first_csi_node(with_heartbeat("csinode"), metrics.clone(), node_uid, stands);
    let (node_uid, server) = (uid_sender, with_heartbeat("node"));
    let reporter = Reporter {
        config,
        server,
        fixed,
        metrics,
        events,
        view,
        pressure,
        silent_peers,
        storage,
        addresses,
        clock,
        node_uid,
    };
    tokio::join!(reporter.run(), leaser.run(), csi_node);
}

/// The CSINode belongs to the Node: it is made when that stands.
async fn first_csi_node(
    server: Server,
    metrics: Metrics,
    mut node_uid: watch::Receiver<Option<String>>,
    progress: watch::Sender<Progress>,
) {
    let uid = match server.rests(node_uid.wait_for(Option::is_some)).await {
        Ok(uid) => uid.clone(),
        Err(_) => None,
    };
    if let Some(uid) = uid {
        csinode::run(server, metrics, uid, progress).await;
    }
}
