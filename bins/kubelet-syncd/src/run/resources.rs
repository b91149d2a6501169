//! The start of the container manager: by the function that the launcher has checked machine, settings and files with.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_daemon::RunError;
use kubelet_container_manager::checkpoint::cpu::InitialContainers;
use kubelet_container_manager::manager::Found;
use kubelet_container_manager::settings::{self, SYSTEM};
use kubelet_pleg::PodCache;

use super::stages::Start;
use crate::container_manager::dra::DraManager;
use crate::container_manager::metrics::Allocations;
use crate::container_manager::{AdmissionMetrics, ContainerManager, StateFiles};

/// kubelet-volnetd is away: it is asked again.
const AGAIN: Duration = Duration::from_millis(500);
/// After a write that failed.
const WRITE_AGAIN: Duration = Duration::from_secs(5);

/// `memory`: bytes that the machine has. `cache`: what the runtime has.
///
/// # Errors
/// Settings, machine and state files do not fit together; the launcher refuses that before, so a file has changed since.
pub(super) async fn start(
    start: &Start,
    memory: u64,
    cache: &PodCache,
    claims: Arc<DraManager>,
) -> Result<Arc<ContainerManager>, RunError> {
    let files = StateFiles::new(start.daemon.broker.clone());
    let found = found(start, &files).await?;
    let managers = settings::start(&start.config, Path::new(SYSTEM), memory, &found, &containers(cache))?;
    let registry = &start.daemon.registry;
    let manager = ContainerManager::new(managers, files, AdmissionMetrics::register(registry)?).with(claims);
    let manager = Arc::new(manager);
    registry.register(Box::new(Allocations::new(manager.clone())?))?;
    Ok(manager)
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
