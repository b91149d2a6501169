//! The start of the container manager: by the function that the launcher has checked machine, settings and files with.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_config::Feature;
use bulkhead_daemon::RunError;
use kubelet_container_manager::checkpoint::cpu::InitialContainers;
use kubelet_container_manager::manager::{Found, Settings};
use kubelet_container_manager::settings::{self, SYSTEM};
use kubelet_container_manager::topology::sysfs;
use kubelet_edges::csi::BrokerDialer;
use kubelet_pleg::PodCache;
use tonic::Code;

use super::stages::Start;
use crate::container_manager::devices::metrics::DeviceMetrics;
use crate::container_manager::devices::{self, Parts};
use crate::container_manager::dra::DraManager;
use crate::container_manager::metrics::Allocations;
use crate::container_manager::{AdmissionMetrics, ContainerManager, DevicePlugins, News, StateFiles};
use crate::private_state::PrivateState;
use crate::service::node_view::NodeView;

/// kubelet-volnetd is away: it is asked again.
const AGAIN: Duration = Duration::from_millis(500);
/// The path cannot be bound, or kubelet-volnetd is of a version that does not bind it.
const MUCH_LATER: Duration = Duration::from_secs(30);
/// After a write that failed.
const WRITE_AGAIN: Duration = Duration::from_secs(5);

/// Managers beside those of CPUs and memory.
pub(super) struct Others {
    pub(super) devices: Arc<DevicePlugins>,
    pub(super) news: Arc<News>,
    pub(super) claims: Arc<DraManager>,
}

/// `memory`: bytes that the machine has. `cache`: what the runtime has.
///
/// # Errors
/// Settings, machine and state files do not fit together; the launcher refuses that before, so a file has changed since.
pub(super) async fn start(
    start: &Start,
    memory: u64,
    cache: &PodCache,
    others: Others,
) -> Result<Arc<ContainerManager>, RunError> {
    let files = StateFiles::new(start.daemon.broker.clone());
    let found = found(start, &files).await?;
    let managers = settings::start(&start.config, Path::new(SYSTEM), memory, &found, &containers(cache))?;
    let registry = &start.daemon.registry;
    let manager = ContainerManager::new(managers, files, AdmissionMetrics::register(registry)?);
    let manager = Arc::new(manager.told_by(others.news).with(others.devices).with(others.claims));
    registry.register(Box::new(Allocations::new(manager.clone())?))?;
    Ok(manager)
}

/// The device manager. It is served and runs from here on.
///
/// # Errors
/// The daemon is to stop.
pub(super) async fn devices(
    start: &Start,
    cache: Arc<PodCache>,
    news: Arc<News>,
    store: PrivateState,
) -> Result<Arc<DevicePlugins>, RunError> {
    let (config, gates) = (&start.config, start.config.feature_gates());
    let broker = start.daemon.broker.clone();
    let found = loop {
        match devices::found(&broker).await {
            Ok(found) => break found,
            Err(error) if error.is_away() && !start.daemon.stop.is_cancelled() => tokio::time::sleep(AGAIN).await,
            Err(error) => return Err(error.into()),
        }
    };
    let machine = sysfs::read(Path::new(SYSTEM)).ok().and_then(|tree| sysfs::machine(&tree).ok()).unwrap_or_default();
    let devices = DevicePlugins::new(Parts {
        dial: Arc::new(BrokerDialer(broker)),
        folder: config.paths.root_dir.join("device-plugins"),
        broker: start.daemon.broker.clone(),
        cache,
        metrics: DeviceMetrics::register(&start.daemon.registry)?,
        store: Box::new(store),
        news,
        gates: Settings::of(config, 0).gates,
        waits: !config.flags.device_plugin_no_wait,
        health: gates.enabled(Feature::ResourceHealthStatus),
        timeout: config.internal.device_plugin_timeout(),
        machine: machine.nodes.iter().map(|node| node.id).collect(),
        found,
    });
    // Usually it is there at once, and so before this process says that it is ready.
    let socket = tokio::time::timeout(AGAIN, devices.listener()).await;
    tokio::spawn(serve(devices.clone(), socket.ok().and_then(Result::ok), start.view.clone()));
    tokio::spawn(devices.clone().run());
    Ok(devices)
}

/// Takes registrations of device plugins, for ever.
async fn serve(devices: Arc<DevicePlugins>, mut socket: Option<OwnedFd>, view: Arc<NodeView>) {
    loop {
        let mut pause = AGAIN;
        let served = match socket.take() {
            Some(socket) => {
                view.set_device_registration(String::new());
                devices.clone().serve(socket).await.map_err(|error| error.to_string())
            }
            None => match devices.listener().await {
                Ok(found) => {
                    socket = Some(found);
                    continue;
                }
                // It is only away, and what it has bound stays.
                Err(error) if matches!(error.code(), Code::Unavailable | Code::DeadlineExceeded) => {
                    tracing::warn!("device plugins cannot register: {error}");
                    Ok(())
                }
                Err(error) => {
                    pause = MUCH_LATER;
                    Err(error.to_string())
                }
            },
        };
        if let Err(error) = served {
            tracing::warn!("device plugins cannot register: {error}");
            view.set_device_registration(error);
        }
        tokio::time::sleep(pause).await;
    }
}

async fn found(start: &Start, files: &StateFiles) -> Result<Found, RunError> {
    loop {
        match files.read().await {
            Ok(found) => return Ok(found),
            Err(error) if error.is_away() && !start.daemon.stop.is_cancelled() => {
                tracing::debug!(error = &error as &dyn std::error::Error, "the managers' state files wait");
                tokio::time::sleep(AGAIN).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// By the runtime's id: old files have no other name of them.
fn containers(cache: &PodCache) -> InitialContainers {
    let pods = cache.snapshot();
    let all = pods.iter().flat_map(|(uid, pod)| pod.containers.iter().map(move |container| (uid, container)));
    all.map(|(uid, container)| (container.id.to_string(), (uid.to_string(), container.name.clone()))).collect()
}

/// Keeps the state files as the managers are, whoever relies on them. Runs for ever.
pub(super) async fn keep_files(manager: Arc<ContainerManager>) {
    let mut changes = manager.changes();
    loop {
        changes.borrow_and_update();
        while let Err(error) = manager.write_files().await {
            tracing::warn!(error = &error as &dyn std::error::Error, "the managers' state could not be written");
            tokio::time::sleep(WRITE_AGAIN).await;
        }
        if changes.changed().await.is_err() {
            return;
        }
    }
}
