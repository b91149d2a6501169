//! Claims of drivers: whom their manager asks, and what goes on beside it.

use std::sync::Arc;

use bulkhead_apiclient::ApiClient;
use bulkhead_config::Feature;
use bulkhead_daemon::RunError;
use kubelet_edges::csi::BrokerDialer;
use kubelet_edges::dra::{CALL_TIMEOUT, Calls, Plugins};

use super::stages::Start;
use crate::api::resource_claims::ResourceClaims;
use crate::container_manager::News;
use crate::container_manager::dra::metrics::{ClaimsInUse, Durations};
use crate::container_manager::dra::ports::Stores;
use crate::container_manager::dra::{DraManager, Settings, health, lost, slices};

/// The manager; it knows of no plugin yet.
pub(super) fn start(start: &Start, client: Option<ApiClient>, news: Arc<News>) -> Result<Arc<DraManager>, RunError> {
    let (daemon, gates) = (&start.daemon, start.config.feature_gates());
    let durations = Durations::register(&daemon.registry)?;
    let plugins = Plugins::new(Calls {
        dial: Arc::new(BrokerDialer(daemon.broker.clone())),
        timeout: CALL_TIMEOUT,
        observer: Some(Arc::new(durations.clone())),
    });
    let settings = Settings {
        extended_resources: gates.enabled(Feature::DRAExtendedResource),
        group_claims: gates.enabled(Feature::DRAWorkloadResourceClaims),
        health: gates.enabled(Feature::ResourceHealthStatus),
        health_messages: gates.enabled(Feature::ResourceHealthStatusMessage),
    };
    let (reader, stores) = (Box::new(ResourceClaims(client)), Stores::behind(&daemon.broker));
    let manager = DraManager::new(settings, plugins.clone(), reader, stores, durations, news);
    daemon.registry.register(Box::new(ClaimsInUse::new(manager.clone())?))?;
    tokio::spawn(lost::keep(manager.clone()));
    if settings.health {
        tokio::spawn(health::keep_file(manager.clone()));
    }
    if !start.config.is_standalone() {
        tokio::spawn(slices::keep(plugins, start.runtime_apis.storage.writes.clone(), slices::GRACE));
    }
    Ok(manager)
}
