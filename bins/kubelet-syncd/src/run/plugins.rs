//! Plugins: whom drivers are called through, and who registers them.

use std::sync::Arc;

use bulkhead_daemon::RunError;
use bulkhead_ipc::client::Link;
use kubelet_edges::csi::{BrokerDialer, CsiClient, Drivers};
use kubelet_volume_manager::VolumeManager;

use super::stages::Start;
use crate::api::storage::StorageObjects;
use crate::container_manager::DevicePlugins;
use crate::container_manager::dra::DraManager;
use crate::plugin_manager::allocatable::{self, Causes};
use crate::plugin_manager::attendant::{self, Attendant, Handlers};
use crate::plugin_manager::csi::CsiHandler;
use crate::plugin_manager::dra::DraHandler;
use crate::plugin_manager::metrics::{CallSeconds, PluginCounts};
use crate::plugin_manager::sockets::VolnetdSockets;
use crate::plugin_manager::{self, PluginTable};

/// Where plugins put their sockets, below the root directory.
const REGISTRY: &str = "plugins_registry";

/// The drivers, none of which is known yet.
pub(super) fn csi_client(start: &Start) -> Result<CsiClient, RunError> {
    let dial = Arc::new(BrokerDialer(start.daemon.broker.clone()));
    let seconds = CallSeconds::register(&start.daemon.registry)?;
    let of_migrated = Arc::new(seconds.of_migrated());
    let client = CsiClient::new(Drivers::default(), dial).observed_by(Arc::new(seconds), of_migrated);
    Ok(client.with_timeout(start.config.internal.csi_timeout()))
}

/// Who takes plugins of the other kinds.
pub(super) struct Takers {
    pub(super) devices: Arc<DevicePlugins>,
    pub(super) claims: Arc<DraManager>,
}

/// Registers plugins from here on.
pub(super) fn begin(start: &Start, csi: &CsiClient, takers: Takers, link: Link) -> Result<(), RunError> {
    let api = &start.runtime_apis.storage;
    let folder = start.config.paths.root_dir.join(REGISTRY);
    let table = PluginTable::new(api.writes.clone());
    api.plugins.set(table.clone());
    start.daemon.registry.register(Box::new(PluginCounts::new(table.clone(), folder.clone())?))?;
    let standalone = start.config.is_standalone();
    let handler = CsiHandler::new(csi.drivers().clone(), csi.clone(), api.writes.clone(), standalone);
    let mut handlers = Handlers::new();
    handlers.insert(attendant::CSI, Box::new(handler));
    handlers.insert(attendant::DRA, Box::new(DraHandler(takers.claims)));
    handlers.insert(attendant::DEVICE, Box::new(takers.devices));
    let dial = Arc::new(BrokerDialer(start.daemon.broker.clone()));
    let attendant = Arc::new(Attendant::new(dial, table.clone(), handlers, folder));
    tokio::spawn(plugin_manager::run(VolnetdSockets::new(link), attendant, table));
    Ok(())
}

/// Drivers are asked anew for their limits from here on, where their CSIDrivers say how often.
pub(super) fn refresh(start: &Start, csi: &CsiClient, reader: &StorageObjects, volumes: &VolumeManager) {
    if start.config.is_standalone() {
        return;
    }
    let causes = Causes {
        registered: csi.drivers().subscribe(),
        objects: reader.drivers(),
        limits_reached: volumes.limits_reached(),
    };
    tokio::spawn(allocatable::run(causes, csi.clone(), start.runtime_apis.storage.writes.clone()));
}
