//! The Node service of a driver, as upstream's kubelet calls it: by the driver's name, one connection a call.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bulkhead_csi::v1;
use bulkhead_csi::v1::node_client::NodeClient;
use tonic::Code;

use super::connection::{ANSWER_BYTES_MAX, Dial, PluginAddress, call};
use super::drivers::Drivers;
use super::error::CsiError;

/// How long a call may take (upstream `csiTimeout`).
pub const CSI_TIMEOUT: Duration = Duration::from_secs(120);

/// Hears of every call that ended. Calls that were given up by their caller are not told.
pub trait CallObserver: Send + Sync + std::fmt::Debug + 'static {
    /// `method`: `/csi.v1.Node/NodeStageVolume`, as upstream names it in `csi_operations_seconds`.
    fn call_ended(&self, driver: &str, method: &'static str, code: Code, took: Duration);
}

macro_rules! calls {
    ($($(#[$doc:meta])* $name:ident($method:literal, $request:ident) -> $response:ident;)*) => {
        /// The calls of drivers that are registered, by the driver's name. Clones call the same drivers.
        pub trait CsiNode: Clone + Send + Sync + 'static {
            $(
                $(#[$doc])*
                ///
                /// # Errors
                /// See [`CsiError`]; a call is over [`CSI_TIMEOUT`] after the connection was made, unless the client has another limit.
                fn $name(
                    &self,
                    driver: &str,
                    request: v1::$request,
                ) -> impl Future<Output = Result<v1::$response, CsiError>> + Send;
            )*
        }

        impl CsiNode for CsiClient {
            $(
                async fn $name(&self, driver: &str, request: v1::$request) -> Result<v1::$response, CsiError> {
                    let Some(known) = self.drivers.get(driver) else {
                        return Err(CsiError::NotRegistered { driver: driver.to_owned() });
                    };
                    let address = PluginAddress::Endpoint(known.endpoint);
                    let began = Instant::now();
                    let outcome = call(&self.dial, &address, self.timeout, request, async |channel, request| {
                        NodeClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX).$name(request).await
                    })
                    .await;
                    if let Some(observer) = &self.observer {
                        let code = outcome.as_ref().map_or_else(|status| status.code(), |_| Code::Ok);
                        observer.call_ended(driver, concat!("/csi.v1.Node/", $method), code, began.elapsed());
                    }
                    Ok(outcome?)
                }
            )*
        }
    };
}

calls! {
    /// Makes a volume ready on the node, once for all of its pods.
    node_stage_volume("NodeStageVolume", NodeStageVolumeRequest) -> NodeStageVolumeResponse;
    /// Its opposite.
    node_unstage_volume("NodeUnstageVolume", NodeUnstageVolumeRequest) -> NodeUnstageVolumeResponse;
    /// Makes a volume ready for one pod.
    node_publish_volume("NodePublishVolume", NodePublishVolumeRequest) -> NodePublishVolumeResponse;
    /// Its opposite.
    node_unpublish_volume("NodeUnpublishVolume", NodeUnpublishVolumeRequest) -> NodeUnpublishVolumeResponse;
    /// How full a published volume is, and how well.
    node_get_volume_stats("NodeGetVolumeStats", NodeGetVolumeStatsRequest) -> NodeGetVolumeStatsResponse;
    /// Has the file system fill a volume that has grown.
    node_expand_volume("NodeExpandVolume", NodeExpandVolumeRequest) -> NodeExpandVolumeResponse;
    /// Which of the optional calls the driver has.
    node_get_capabilities("NodeGetCapabilities", NodeGetCapabilitiesRequest) -> NodeGetCapabilitiesResponse;
    /// What the driver calls this node, and where it lies.
    node_get_info("NodeGetInfo", NodeGetInfoRequest) -> NodeGetInfoResponse;
}

/// Calls drivers over the sockets that they have registered.
#[derive(Debug, Clone)]
pub struct CsiClient {
    drivers: Drivers,
    dial: Arc<dyn Dial>,
    observer: Option<Arc<dyn CallObserver>>,
    observer_of_migrated: Option<Arc<dyn CallObserver>>,
    timeout: Duration,
}

impl CsiClient {
    pub fn new(drivers: Drivers, dial: Arc<dyn Dial>) -> Self {
        CsiClient { drivers, dial, observer: None, observer_of_migrated: None, timeout: CSI_TIMEOUT }
    }

    /// The same client, with its calls told to an observer, and to another one those about volumes of in-tree kinds.
    #[must_use]
    pub fn observed_by(mut self, observer: Arc<dyn CallObserver>, of_migrated: Arc<dyn CallObserver>) -> Self {
        (self.observer, self.observer_of_migrated) = (Some(observer), Some(of_migrated));
        self
    }

    /// The same client for calls about a volume whose kind is an in-tree one that the driver serves (upstream `csi_util.go`
    /// createCSIOperationContext).
    #[must_use]
    pub fn of_migrated(&self) -> Self {
        CsiClient { observer: self.observer_of_migrated.clone(), ..self.clone() }
    }

    /// The same client, whose calls may take so long.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The drivers that it can call.
    pub fn drivers(&self) -> &Drivers {
        &self.drivers
    }
}

#[cfg(test)]
#[path = "node_tests.rs"]
mod tests;
