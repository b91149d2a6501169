//! Claims and volumes of CSI drivers: whom the volume manager asks.

use std::sync::Arc;

use bulkhead_config::Feature;
use bulkhead_daemon::RunError;
use bulkhead_ipc::syncd::ClaimStatus;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use kubelet_edges::csi::CsiClient;
use kubelet_edges::volnetd::Volnetd;

use super::stages::Start;
use crate::api::storage::StorageObjects;
use crate::storage_writes::StorageWrites;
use crate::volumes::metrics::VolumeCounts;
use kubelet_model::selinux::SeLinux;
use kubelet_volume_manager::edges::{NodeVerbs, RegisteredDrivers};
use kubelet_volume_manager::metrics::{OperationMetrics, SeLinuxMetrics};
use kubelet_volume_manager::ports::ClaimWriter;
use kubelet_volume_manager::selinux::SeLinuxMount;
use kubelet_volume_manager::{Ports, VolumeManager};

/// Claims' statuses are written by kubelet-statusd.
struct Claims(StorageWrites);

impl ClaimWriter for Claims {
    fn write(&self, status: ClaimStatus) -> BoxFuture<'_, Result<(), String>> {
        async move { self.0.claim_status(status).await.map_err(|refused| refused.0) }.boxed()
    }
}

/// Families of metrics are there where SELinux is on.
fn selinux(start: &Start) -> Result<Option<SeLinuxMount>, RunError> {
    let config = &start.config;
    let Some(machine) = SeLinux::read(&config.internal.selinux_root) else { return Ok(None) };
    let every_mode = config.feature_gates().enabled(Feature::SELinuxMount);
    let metrics = SeLinuxMetrics::register(&start.daemon.registry)?;
    Ok(Some(SeLinuxMount { machine, every_mode, metrics }))
}

/// Volumes are reconciled from here on.
pub(super) fn begin(
    start: &Start,
    csi: CsiClient,
    volnetd: Volnetd,
    reader: Arc<StorageObjects>,
) -> Result<Arc<VolumeManager>, RunError> {
    let registry = &start.daemon.registry;
    let manager = VolumeManager::start(Ports {
        drivers: Arc::new(RegisteredDrivers(csi)),
        verbs: Arc::new(NodeVerbs::start(volnetd)),
        reader,
        events: start.reporter.clone(),
        claims: Arc::new(Claims(start.runtime_apis.storage.writes.clone())),
        metrics: OperationMetrics::register(registry)?,
        node_name: start.config.node_name.to_string(),
        controller_attaches: start.config.kubelet.enable_controller_attach_detach(),
        selinux: selinux(start)?,
    });
    let counts = VolumeCounts::new(start.reporter.hub.clone())?.with_manager(manager.clone());
    registry.register(Box::new(counts))?;
    let with_health = start.config.feature_gates().enabled(Feature::CSIVolumeHealth);
    start.runtime_apis.storage.statistics.set(manager.statistics().with_health(with_health));
    Ok(manager)
}
