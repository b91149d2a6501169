//! Devices of plugins (upstream `pkg/kubelet/cm/devicemanager`, decision 80): what [`kubelet_container_manager::devices`] decides, with
//! the plugins that are asked, the checkpoint, and the socket by which they register.
//!
//! | module | decides |
//! |---|---|
//! | [`metrics`] | nothing: what is counted |
//! | [`endpoints`] | which plugins the next start looks for |
//! | [`connections`] | who may have a resource, and what follows from a plugin that comes, tells its devices or goes |
//! | [`reconnect`] | what becomes of plugins of an earlier start |
//! | [`checkpoint`] | when the checkpoint is written |
//! | [`options`] | nothing: what plugins are asked, and what containers get of their answers |
//! | [`registration`] | nothing: who registers by the socket |
//! | here | when a pod waits for a plugin, and what the Node shows |

mod checkpoint;
mod connections;
mod endpoints;
pub mod metrics;
mod options;
mod reconnect;
mod registration;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bulkhead_ipc::broker::BrokerClient;
use bulkhead_ipc::volnetd::open_request::Kind;
use bulkhead_ipc::volnetd::{Listener, listener};
use bulkhead_types::PodUid;
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::ResourceStatus;
use kubelet_container_manager::checkpoint::devices as file;
use kubelet_container_manager::devices::{Admission, Capacity, DeviceManager, held};
use kubelet_container_manager::request::{Gates, PodRequest};
use kubelet_container_manager::topology::{HintProvider, Refusal};
use kubelet_edges::csi::Dial;
use kubelet_model::v1::{Container, Pod};
use kubelet_pleg::PodCache;
use kubelet_pod_resources::holds::{self, Allocatable, Holds};
use kubelet_runtime::runtime::result::ActionError;
use kubelet_runtime::runtime::run_options::RunContainerOptions;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::Instant;

use super::news::News;
use super::resource_manager::ResourceManager;
use connections::Connected;
use endpoints::Endpoints;
use metrics::DeviceMetrics;

pub use checkpoint::found;
pub use endpoints::{EndpointStore, RegisteredBy};

/// A pod waits so long for a plugin that is coming back.
const COMING_BACK: Duration = Duration::from_secs(30);
/// What the node shows of plugins' resources changes no more often.
const SHOWN_EVERY: Duration = Duration::from_secs(5);
/// Plugins of an earlier start usually are back by then.
const BACK: Duration = Duration::from_secs(2);
/// While a plugin is away: whether its grace is over.
const LOOK: Duration = Duration::from_secs(10);

/// What the devices are made of.
#[derive(Debug)]
pub struct Parts {
    pub dial: Arc<dyn Dial>,
    /// device-plugins, absolute.
    pub folder: PathBuf,
    pub broker: BrokerClient,
    pub cache: Arc<PodCache>,
    pub metrics: DeviceMetrics,
    pub store: Box<dyn EndpointStore>,
    pub news: Arc<News>,
    pub gates: Gates,
    /// A pod waits for a plugin that is coming back.
    pub waits: bool,
    /// Gate ResourceHealthStatus.
    pub health: bool,
    /// No call of a plugin takes longer.
    pub timeout: Duration,
    /// NUMA nodes of the machine.
    pub machine: Vec<u32>,
    /// The checkpoint as it was found.
    pub found: Option<Vec<u8>>,
}

/// See the module.
#[derive(Debug)]
pub struct DevicePlugins {
    me: Weak<DevicePlugins>,
    manager: Mutex<DeviceManager>,
    plugins: Mutex<BTreeMap<String, Connected>>,
    /// Until when each pod waits.
    deadlines: Mutex<BTreeMap<String, Instant>>,
    dial: Arc<dyn Dial>,
    folder: PathBuf,
    broker: BrokerClient,
    cache: Arc<PodCache>,
    metrics: DeviceMetrics,
    store: Box<dyn EndpointStore>,
    kept: Mutex<Endpoints>,
    news: Arc<News>,
    gates: Gates,
    waits: bool,
    health: bool,
    timeout: Duration,
    /// A plugin has come, gone or told its devices.
    changed: watch::Sender<()>,
    shown: watch::Sender<Capacity>,
    /// The checkpoint as it was written, by one at a time.
    written: tokio::sync::Mutex<Option<Vec<u8>>>,
    dirty: Notify,
}

impl DevicePlugins {
    pub fn new(parts: Parts) -> Arc<Self> {
        // As upstream: a checkpoint that cannot be read is as good as none.
        let found = parts.found.as_deref().and_then(|bytes| {
            let read = file::read(bytes);
            read.inspect_err(|error| tracing::error!("Continue after failing to read checkpoint file. Device allocation info may NOT be up-to-date: {error}")).ok()
        });
        for entry in found.iter().filter_map(|found| found.pod_device_entries.as_ref()).flatten() {
            if let Err(error) = held::response(entry) {
                tracing::error!(
                    pod_uid = entry.uid,
                    container_name = entry.container_name,
                    resource_name = entry.resource_name,
                    %error,
                    "Can't unmarshal allocResp"
                );
            }
        }
        let manager = DeviceManager::new(parts.machine, found.as_ref(), std::time::Instant::now());
        Arc::new_cyclic(|me| DevicePlugins {
            me: me.clone(),
            manager: Mutex::new(manager),
            plugins: Mutex::default(),
            deadlines: Mutex::default(),
            dial: parts.dial,
            folder: parts.folder,
            broker: parts.broker,
            cache: parts.cache,
            metrics: parts.metrics,
            kept: Mutex::default(),
            store: parts.store,
            news: parts.news,
            gates: parts.gates,
            waits: parts.waits,
            health: parts.health,
            timeout: parts.timeout,
            changed: watch::Sender::new(()),
            shown: watch::Sender::new(Capacity::default()),
            written: tokio::sync::Mutex::new(parts.found),
            dirty: Notify::new(),
        })
    }

    /// Connects to the plugins of an earlier start, and keeps what others see. Runs for ever.
    pub async fn run(self: Arc<Self>) {
        let mut changed = self.changed.subscribe();
        let (tell, told) = oneshot::channel::<Vec<String>>();
        let earlier = async {
            let endpoints = self.of_earlier_start().await;
            // Nobody listens any more where it took longer than the Node waits.
            let _ = tell.send(endpoints.keys().cloned().collect());
            for (resource, endpoint) in endpoints {
                let devices = self.clone();
                tokio::spawn(async move { devices.bring_back(&resource, &endpoint).await });
            }
        };
        // The Node does not lose for a moment what comes back at once.
        let back = async {
            let Ok(resources) = told.await else { return };
            let away = || resources.iter().any(|resource| self.manager.lock().plugins().is_coming_back(resource));
            while away() && changed.changed().await.is_ok() {}
        };
        let shown = async {
            let _ = tokio::time::timeout(BACK, back).await;
            self.keep_shown().await;
        };
        tokio::join!(earlier, shown, self.keep_file());
    }

    /// The socket of plugins' registration.
    ///
    /// # Errors
    /// kubelet-volnetd is away, or cannot bind it.
    pub async fn listener(&self) -> Result<std::os::fd::OwnedFd, bulkhead_ipc::broker::BrokerError> {
        let kind = listener::Kind::DevicePlugins.into();
        self.broker.open(Kind::Listener(Listener { kind })).await
    }

    /// Takes registrations.
    ///
    /// # Errors
    /// The socket cannot be served.
    pub async fn serve(
        self: Arc<Self>,
        socket: std::os::fd::OwnedFd,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        registration::serve(socket, self).await
    }

    async fn keep_shown(&self) {
        let mut changed = self.changed.subscribe();
        loop {
            changed.borrow_and_update();
            let now = self.look(std::time::Instant::now());
            let news = self.shown.send_if_modified(|shown| {
                let differs = *shown != now;
                *shown = now.clone();
                differs
            });
            if news {
                tokio::time::sleep(SHOWN_EVERY).await;
            }
            let away = now.capacity.keys().any(|resource| self.manager.lock().plugins().is_away(resource));
            tokio::select! {
                _ = changed.changed() => {}
                () = tokio::time::sleep(LOOK), if away => {}
            }
        }
    }

    /// What the node shows now; a resource whose grace is over leaves the checkpoint as well.
    fn look(&self, now: std::time::Instant) -> Capacity {
        let mut manager = self.manager.lock();
        if manager.forget(now) {
            self.dirty.notify_one();
        }
        manager.capacity()
    }

    fn running(&self, uid: &str) -> BTreeSet<String> {
        let Ok(uid) = PodUid::parse(uid) else { return BTreeSet::new() };
        self.cache.get(&uid).running().map(|container| container.name.clone()).collect()
    }

    fn request(&self, pod: &Pod) -> PodRequest {
        PodRequest::of(pod, self.gates)
    }

    /// No plugin ever came: nothing is looked at.
    fn is_idle(&self) -> bool {
        let manager = self.manager.lock();
        manager.plugins().is_empty() && manager.held().uids().next().is_none()
    }
}

impl ResourceManager for DevicePlugins {
    fn until_decidable(&self, pod: &Arc<Pod>) -> Option<BoxFuture<'static, ()>> {
        if !self.waits || self.is_idle() {
            return None;
        }
        let request = self.request(pod);
        let uid = request.uid.clone();
        let running = self.running(&uid);
        self.manager.lock().waits_for(&request, &running)?;
        let until = *self.deadlines.lock().entry(uid).or_insert_with(|| Instant::now() + COMING_BACK);
        if until <= Instant::now() {
            return None;
        }
        let (me, mut changed) = (self.me.upgrade()?, self.changed.subscribe());
        Some(Box::pin(async move {
            loop {
                changed.borrow_and_update();
                if me.manager.lock().waits_for(&request, &running).is_none() {
                    return;
                }
                match tokio::time::timeout_at(until, changed.changed()).await {
                    Ok(Ok(())) => {}
                    _ => return,
                }
            }
        }))
    }

    fn hint_provider(&self) -> Option<Box<dyn HintProvider + '_>> {
        if self.is_idle() {
            return None;
        }
        Some(Box::new(Admission::new(self.manager.lock(), Box::new(|uid: &str| self.running(uid)))))
    }

    fn complete(&self, pod: &Arc<Pod>) -> Option<BoxFuture<'static, Result<(), Refusal>>> {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        self.deadlines.lock().remove(&uid);
        let open = self.manager.lock().held().of_pod(&uid).any(|(_, of)| of.values().any(|a| a.response.is_none()));
        if !open {
            return None;
        }
        let me = self.me.upgrade()?;
        let order = self.request(pod).containers;
        Some(Box::pin(async move { me.settle(&uid, &order).await.map_err(Refusal::unexpected) }))
    }

    fn take_back(&self, uid: &PodUid) {
        self.deadlines.lock().remove(uid.as_str());
        if self.manager.lock().take_back(uid.as_str()) {
            self.dirty.notify_one();
        }
    }

    fn forget(&self, uid: &PodUid) {
        self.deadlines.lock().remove(uid.as_str());
    }

    fn remove_stale(&self, is_active: &dyn Fn(&str, &str) -> bool) {
        if self.manager.lock().remove_stale(is_active) {
            self.dirty.notify_one();
        }
    }

    fn run_options<'a>(
        &'a self,
        pod: &'a Pod,
        container: &'a Container,
    ) -> BoxFuture<'a, Result<RunContainerOptions, ActionError>> {
        Box::pin(async move {
            let given = self.options(pod, container).await;
            given.map_err(|error| ActionError::new("CreateContainerConfigError", error))
        })
    }

    fn holds(&self, pod: &Pod, container: &Container, holds: &mut Holds) {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let manager = self.manager.lock();
        let of = manager.held().of_container(uid, &container.name).into_iter().flatten();
        for (resource, allocated) in of.filter(|(_, allocated)| allocated.response.is_some()) {
            holds.devices.extend(allocated.devices.iter().map(|id| {
                let near = allocated.by_node.iter().filter(|(node, ids)| **node >= 0 && ids.contains(id));
                let nodes: Vec<i64> = near.map(|(node, _)| *node).collect();
                holds::Device {
                    resource: resource.clone(),
                    id: id.clone(),
                    nodes: Some(nodes).filter(|n| !n.is_empty()),
                }
            }));
        }
    }

    fn allocatable(&self, all: &mut Allocatable) {
        let manager = self.manager.lock();
        all.devices.extend(manager.plugins().usable().map(|(resource, id, device)| holds::Device {
            resource: resource.to_owned(),
            id: id.to_owned(),
            nodes: Some(device.nodes.clone()).filter(|nodes| !nodes.is_empty()),
        }));
    }

    fn allocatable_for(&self, pod: &Pod) -> BTreeMap<String, u64> {
        if self.is_idle() { BTreeMap::new() } else { self.manager.lock().allocatable_for(&self.request(pod)) }
    }

    fn shown(&self) -> Option<watch::Receiver<Capacity>> {
        Some(self.shown.subscribe())
    }

    fn health(&self, uid: &str, container: &str) -> Vec<ResourceStatus> {
        if self.health { self.manager.lock().health(uid, container) } else { Vec::new() }
    }
}
