//! ResourceSlices of this node are deleted when this process begins, because no driver has registered yet, and those of a driver when
//! it has been away for some time: no pod is to be placed here for devices that cannot be prepared. kubelet-statusd deletes.

use std::time::Duration;

use kubelet_container_manager::dra::wipes::Wipes;
use kubelet_edges::dra::Plugins;
use tokio::time::Instant;

use crate::storage_writes::StorageWrites;

/// How long a driver may be away (upstream `defaultWipingDelay`).
pub const GRACE: Duration = Duration::from_secs(30);

fn wipe(writes: &StorageWrites, driver: String) {
    let writes = writes.clone();
    tokio::spawn(async move {
        if let Err(error) = writes.wipe_resource_slices(&driver).await {
            tracing::warn!(driver, %error, "failed to delete ResourceSlices");
        }
    });
}

/// Runs for ever.
pub async fn keep(plugins: Plugins, writes: StorageWrites, grace: Duration) {
    wipe(&writes, String::new());
    let mut wipes = Wipes::new(grace);
    let mut changes = plugins.changes();
    loop {
        changes.borrow_and_update();
        for driver in wipes.take(Instant::now().into_std(), &plugins.usable()) {
            writes.keep_resource_slices(&driver);
        }
        let next = wipes.next().map(Instant::from_std);
        let due = async {
            match next {
                Some(next) => tokio::time::sleep_until(next).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            told = changes.changed() => if told.is_err() { return },
            () = due => {}
        }
        for driver in wipes.take_due(Instant::now().into_std()) {
            tracing::info!(driver, "deleting ResourceSlices of a driver that is gone");
            wipe(&writes, driver);
        }
    }
}
