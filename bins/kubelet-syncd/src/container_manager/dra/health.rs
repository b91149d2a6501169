//! The health of a driver's devices: one stream for each plugin, begun anew when it ends (upstream HandleWatchResourcesStream).

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bulkhead_dra::health::v1alpha1 as wire;
use kubelet_container_manager::dra::health::{Health, Report};
use kubelet_edges::dra::Plugin;
use tonic::Code;

use super::manager::DraManager;

/// Before a stream that has ended is begun again.
const AGAIN: Duration = Duration::from_secs(5);
/// The same of a plugin that does not tell; one that does so later registers anew.
const NEVER_TOLD: Duration = Duration::from_secs(300);

/// Between two writes of the file, however often drivers tell something else.
const WRITES: Duration = Duration::from_secs(1);

/// Writes down what drivers have told. Runs for ever.
pub async fn keep_file(manager: Arc<DraManager>) {
    loop {
        manager.health_told.notified().await;
        manager.save_health().await;
        tokio::time::sleep(WRITES).await;
    }
}

/// Until the plugin is registered no more.
pub(super) async fn follow(manager: Arc<DraManager>, plugin: Weak<Plugin>) {
    let Some(gone) = plugin.upgrade().map(|plugin| plugin.gone()) else { return };
    loop {
        let Some(asked) = plugin.upgrade() else { return };
        let driver = asked.driver().to_owned();
        // What the driver tells now replaces what the file says, so the file comes first, if it can be had.
        let _ = manager.load_health().await;
        let pause = tokio::select! {
            () = gone.cancelled() => Duration::ZERO,
            pause = watch(&manager, &asked) => pause,
        };
        drop(asked);
        let known = manager.health_book().clear(&driver);
        manager.health_changed(&driver, &known);
        tokio::select! {
            () = gone.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// One stream. Answers when the next one is due.
async fn watch(manager: &DraManager, plugin: &Plugin) -> Duration {
    let ended = match plugin.watch_health().await {
        Ok(mut stream) => loop {
            match stream.message().await {
                Ok(Some(told)) => {
                    let reports = told.devices.into_iter().map(report).collect();
                    let changed = manager.health_book().take(plugin.driver(), reports, Instant::now());
                    manager.health_changed(plugin.driver(), &changed);
                }
                Ok(None) => return AGAIN,
                Err(status) => break status,
            }
        },
        Err(status) => status,
    };
    if ended.code() == Code::Unimplemented {
        return NEVER_TOLD;
    }
    tracing::debug!(driver = plugin.driver(), code = ?ended.code(), "WatchResources health stream has ended");
    AGAIN
}

fn report(told: wire::DeviceHealth) -> Report {
    let health = match told.health() {
        wire::HealthStatus::Healthy => Health::Healthy,
        wire::HealthStatus::Unhealthy => Health::Unhealthy,
        wire::HealthStatus::Unknown => Health::Unknown,
    };
    let device = told.device.unwrap_or_default();
    Report {
        pool: device.pool_name,
        device: device.device_name,
        health,
        timeout_seconds: told.health_check_timeout_seconds,
        message: told.message,
    }
}
