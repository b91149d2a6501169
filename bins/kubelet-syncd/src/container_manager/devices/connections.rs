//! Plugins that are there: who may have a resource, and what follows when a plugin comes, tells its devices or goes.

use std::io::ErrorKind;
use std::time::Duration;

use bulkhead_device_plugin::v1beta1::{DevicePluginOptions, ListAndWatchResponse};
use bulkhead_device_plugin::{HEALTHY, VERSION};
use bulkhead_types::resource_name::is_extended;
use kubelet_container_manager::devices::PluginOptions;
use kubelet_container_manager::devices::plugins::{Device, Devices, RESOURCES_MAX};
use kubelet_edges::csi::PluginAddress;
use kubelet_edges::device_plugin::{DIAL, DevicePlugin};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};

use super::DevicePlugins;
use super::endpoints::RegisteredBy;

/// A plugin that serves.
#[derive(Debug)]
pub(super) struct Connected {
    pub(super) generation: u64,
    pub(super) plugin: DevicePlugin,
    pub(super) endpoint: String,
    pub(super) registered_by: RegisteredBy,
    stop: CancellationToken,
}

/// How a plugin was not to be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failure {
    /// There are as many resources as are taken.
    NoPlace,
    /// No connection.
    Unreached(ErrorKind),
    /// It did not say what it can.
    NoOptions(Code),
    /// It went before it had told its devices.
    NoList,
}

/// A plugin that was not to be had.
#[derive(Debug)]
pub(super) struct Missed {
    /// In upstream's words.
    pub(super) why: String,
    pub(super) failure: Failure,
}

/// In the form of a gRPC error of Go's.
pub(super) fn words(status: &Status) -> String {
    format!("rpc error: code = {} desc = {}", bulkhead_cri::go_name(status.code()), status.message())
}

impl DevicePlugins {
    /// Whether a plugin may have a resource (upstream `ValidatePlugin`).
    ///
    /// # Errors
    /// In upstream's words.
    pub fn validate(&self, resource: &str, versions: &[String]) -> Result<(), String> {
        if !versions.iter().any(|version| version == VERSION) {
            return Err(format!(
                "manager version, {VERSION}, is not among plugin supported versions [{}]",
                versions.join(" ")
            ));
        }
        if !is_extended(resource) {
            return Err(format!("invalid name of device plugin socket: the ResourceName {resource:?} is invalid"));
        }
        Ok(())
    }

    /// A plugin asks to be registered (upstream `Register`).
    pub(super) async fn registration(&self, version: &str, endpoint: &str, resource: &str) -> Result<(), String> {
        tracing::info!(resource, "Got registration request from device plugin with resource");
        self.metrics.registered(resource, |name| self.is_registered(name));
        if version != VERSION {
            return Err(format!(
                "requested API version {version:?} is not supported by kubelet. Supported version is [{VERSION:?}]"
            ));
        }
        if !is_extended(resource) {
            return Err(format!("the ResourceName {resource:?} is invalid"));
        }
        let endpoint = self.folder.join(endpoint.trim_start_matches('/')).display().to_string();
        self.connect(resource, &endpoint, RegisteredBy::KubeletSocket).await
    }

    /// Connects to a plugin: from here on the resource is its.
    ///
    /// # Errors
    /// In upstream's words.
    pub async fn connect(&self, resource: &str, endpoint: &str, registered_by: RegisteredBy) -> Result<(), String> {
        let (plugin, options) = self.dial(resource, endpoint, DIAL).await.map_err(|missed| missed.why)?;
        self.take(resource, endpoint, registered_by, plugin, options);
        Ok(())
    }

    /// A plugin, and what it can do. `patience`: it is waited for so long where it does not listen.
    pub(super) async fn dial(
        &self,
        resource: &str,
        endpoint: &str,
        patience: Duration,
    ) -> Result<(DevicePlugin, DevicePluginOptions), Missed> {
        {
            let manager = self.manager.lock();
            if !manager.plugins().has_place(resource) {
                let why = format!("{RESOURCES_MAX} resources of device plugins are there, no more are taken");
                return Err(Missed { why, failure: Failure::NoPlace });
            }
        }
        let address = PluginAddress::Endpoint(endpoint.to_owned());
        let plugin = DevicePlugin::connect(&self.dial, &address, patience, self.timeout).await;
        let plugin = plugin.map_err(|unreached| Missed {
            why: format!("failed to dial device plugin: {}", words(&unreached.status)),
            failure: Failure::Unreached(unreached.kind),
        })?;
        let options = plugin.options().await.map_err(|status| Missed {
            why: format!("failed to get device plugin options: {}", words(&status)),
            failure: Failure::NoOptions(status.code()),
        })?;
        Ok((plugin, options))
    }

    /// From here on the resource is the plugin's. Answers its generation.
    pub(super) fn take(
        &self,
        resource: &str,
        endpoint: &str,
        registered_by: RegisteredBy,
        plugin: DevicePlugin,
        options: DevicePluginOptions,
    ) -> u64 {
        let stop = CancellationToken::new();
        let DevicePluginOptions { pre_start_required, get_preferred_allocation_available } = options;
        let options =
            PluginOptions { pre_start: pre_start_required, preferred_allocation: get_preferred_allocation_available };
        let (generation, dropped) = {
            let mut manager = self.manager.lock();
            let dropped = manager.make_room(resource);
            (manager.connect(resource, options), dropped)
        };
        let connected = Connected {
            generation,
            plugin: plugin.clone(),
            endpoint: endpoint.to_owned(),
            registered_by,
            stop: stop.clone(),
        };
        if let Some(before) = self.plugins.lock().insert(resource.to_owned(), connected) {
            before.stop.cancel();
        }
        self.save_endpoints(resource, &dropped);
        tracing::info!(resource, endpoint, "Device plugin connected");
        self.changed.send_replace(());
        if let Some(me) = self.me.upgrade() {
            let resource = resource.to_owned();
            tokio::spawn(async move {
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = me.follow(&resource, generation, &plugin) => {}
                }
                me.disconnect(&resource, generation);
            });
        }
        generation
    }

    /// Takes in what a plugin tells, until it ends.
    async fn follow(&self, resource: &str, generation: u64, plugin: &DevicePlugin) {
        let ended = |why: &str| tracing::warn!(resource, "ListAndWatch ended unexpectedly for device plugin: {why}");
        let mut stream = match plugin.list_and_watch().await {
            Ok(stream) => stream,
            Err(status) => return ended(&words(&status)),
        };
        loop {
            match DevicePlugin::next_list(&mut stream).await {
                Ok(Some(told)) => {
                    if !self.told(resource, generation, told) {
                        return;
                    }
                }
                Ok(None) => return ended("EOF"),
                Err(status) => return ended(&words(&status)),
            }
        }
    }

    /// False: another plugin has the resource by now.
    pub(super) fn told(&self, resource: &str, generation: u64, told: ListAndWatchResponse) -> bool {
        let device = |device: bulkhead_device_plugin::v1beta1::Device| {
            let nodes = device.topology.unwrap_or_default().nodes.into_iter().map(|node| node.id).collect();
            (device.id, Device { healthy: device.health == HEALTHY, nodes })
        };
        let devices: Devices = told.devices.into_iter().map(device).collect();
        tracing::debug!(resource, count = devices.len(), "State pushed for device plugin");
        let Some(pods) = self.manager.lock().list(resource, generation, devices) else { return false };
        if self.health {
            self.news.add(pods);
        }
        self.changed.send_replace(());
        self.dirty.notify_one();
        true
    }

    /// The plugin of this generation has gone.
    pub(super) fn disconnect(&self, resource: &str, generation: u64) {
        {
            let mut plugins = self.plugins.lock();
            if plugins.get(resource).is_some_and(|connected| connected.generation == generation) {
                plugins.remove(resource);
            }
        }
        if self.manager.lock().disconnect(resource, generation, std::time::Instant::now()) {
            tracing::info!(resource, "Endpoint became unhealthy");
            self.changed.send_replace(());
            self.dirty.notify_one();
        }
    }

    /// A plugin of plugins_registry has gone.
    pub fn deregister(&self, resource: &str, endpoint: &str) {
        if let Some(connected) = self.plugins.lock().get(resource).filter(|connected| connected.endpoint == endpoint) {
            connected.stop.cancel();
        }
    }

    pub(super) fn is_registered(&self, resource: &str) -> bool {
        self.manager.lock().plugins().is_registered(resource)
    }
}
