//! Devices of plugins (upstream `pkg/kubelet/cm/devicemanager`, decision 80): what [`kubelet_container_manager::devices`] decides, with
//! the plugins that are asked, the checkpoint, and the socket by which they register.
//!
//! | module | decides |
//! |---|---|
//! | [`coming_back`] | what becomes of plugins of an earlier start |
//! | [`metrics`] | nothing: what is counted |
//! | [`registration`] | nothing: who registers by the socket |
//! | here | when a pod waits for a plugin, and when the checkpoint is written |

mod coming_back;
pub mod metrics;
mod registration;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bulkhead_cri::v1;
use bulkhead_device_plugin::v1beta1::{DevicePluginOptions, ListAndWatchResponse};
use bulkhead_device_plugin::{HEALTHY, VERSION};
use bulkhead_ipc::broker::BrokerClient;
use bulkhead_ipc::volnetd::open_request::Kind;
use bulkhead_ipc::volnetd::{Listener, StateKind, listener};
use bulkhead_sys::memfd;
use bulkhead_types::PodUid;
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::ResourceStatus;
use kubelet_container_manager::checkpoint::devices as file;
use kubelet_container_manager::devices::manager::{Call, pre_start_failed, stopped};
use kubelet_container_manager::devices::plugins::{Device, Devices as Told, RESOURCES_MAX};
use kubelet_container_manager::devices::{Admission, Capacity, DeviceManager, PluginOptions, Question};
use kubelet_container_manager::request::{ContainerRequest, Gates, PodRequest};
use kubelet_container_manager::topology::{HintProvider, Refusal};
use kubelet_edges::csi::{Dial, PluginAddress};
use kubelet_edges::device_plugin::{DIAL, DevicePlugin};
use kubelet_model::v1::{Container, Pod};
use kubelet_model::validation::resources::is_extended;
use kubelet_pleg::PodCache;
use kubelet_pod_resources::holds::{self, Allocatable, Holds};
use kubelet_runtime::runtime::result::ActionError;
use kubelet_runtime::runtime::run_options::RunContainerOptions;
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::news::News;
use super::resource_manager::ResourceManager;
use super::state_files::{self, StateFileError};
use coming_back::{Failure, Next};
use metrics::DeviceMetrics;

/// A pod waits so long for a plugin that is coming back.
const COMING_BACK: Duration = Duration::from_secs(30);
/// What the node shows of plugins' resources changes no more often.
const SHOWN_EVERY: Duration = Duration::from_secs(5);
/// Plugins of an earlier start usually are back by then.
const BACK: Duration = Duration::from_secs(2);
/// While a plugin is away: whether its grace is over.
const LOOK: Duration = Duration::from_secs(10);
/// A plugin of an earlier start that is there and did not answer is connected to again after a pause, twice as long each time: it is
/// found within about as long again as it was away, and one that never answers costs a call in ten minutes.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(10 * 60);
/// A store of plugins that cannot be read is asked again after a pause, twice as long each time.
const READ_MIN: Duration = Duration::from_millis(500);
const READ_MAX: Duration = Duration::from_secs(30);
/// Changes that nobody relies on are gathered for so long before the checkpoint is written.
const SETTLE: Duration = Duration::from_secs(1);
/// After a write that failed, and how often one that a pod waits for is tried.
const WRITE_AGAIN: Duration = Duration::from_millis(500);
const WRITE_TRIES: u32 = 60;

/// Which plugins there were, for the next start: they do not register again while the socket stays.
pub trait EndpointStore: Send + Sync + std::fmt::Debug {
    /// Resource to absolute path of its plugin's socket. Asked from the start on until it answers. What cannot be understood has been
    /// set aside, and is empty.
    ///
    /// # Errors
    /// It cannot be read, or what cannot be understood could not be set aside (the disk is full): nothing is to be written over it.
    fn load(&self) -> std::io::Result<BTreeMap<String, String>>;
    /// # Errors
    /// It could not be written, and the store is as it was.
    fn save(&self, endpoints: &BTreeMap<String, String>) -> std::io::Result<()>;
}

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

/// A plugin that serves.
#[derive(Debug)]
struct Connected {
    generation: u64,
    plugin: DevicePlugin,
    endpoint: String,
    /// It registered by kubelet.sock, so it does not do so again after a restart of this process.
    by_socket: bool,
    stop: CancellationToken,
}

/// See the module.
#[derive(Debug)]
pub struct Devices {
    me: Weak<Devices>,
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

/// Which plugins the next start looks for. The truth while this process lives; the store is its copy.
#[derive(Debug, Default)]
struct Endpoints {
    of: BTreeMap<String, String>,
    /// The store has been read: until then nothing is written over what it has.
    is_read: bool,
    /// That it cannot be read has been said.
    is_warned: bool,
    /// What it has is older than this, as it could not be written (the disk was full).
    is_behind: bool,
}

impl Endpoints {
    /// Reads the store, if that was not to be had before. What has registered meanwhile counts more. False: not yet.
    fn read(&mut self, store: &dyn EndpointStore) -> bool {
        if !self.is_read {
            match store.load() {
                Ok(found) => {
                    let is_news = !self.of.is_empty();
                    for (resource, endpoint) in found {
                        if !self.of.values().any(|of| *of == endpoint) {
                            self.of.entry(resource).or_insert(endpoint);
                        }
                    }
                    self.is_read = true;
                    if is_news {
                        self.write(store);
                    }
                }
                Err(error) if self.is_warned => {
                    tracing::debug!(%error, "plugins of an earlier start are still not known");
                }
                Err(error) => {
                    tracing::warn!(%error, "plugins of an earlier start are not known yet");
                    self.is_warned = true;
                }
            }
        }
        self.is_read
    }

    fn save(&mut self, store: &dyn EndpointStore) {
        if self.read(store) {
            self.write(store);
        }
    }

    fn write(&mut self, store: &dyn EndpointStore) {
        let written = store.save(&self.of);
        if let Some(error) = written.as_ref().err().filter(|_| !self.is_behind) {
            tracing::warn!(%error, "device plugins would have to register again after a restart");
        }
        self.is_behind = written.is_err();
    }

    /// Writes what could not be written before. True: nothing is left.
    fn catch_up(&mut self, store: &dyn EndpointStore) -> bool {
        if self.is_behind {
            self.write(store);
        }
        !self.is_behind
    }
}

/// A plugin that was not to be had.
#[derive(Debug)]
struct Missed {
    /// In upstream's words.
    why: String,
    failure: Failure,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// In the form of a gRPC error of Go's.
fn words(status: &Status) -> String {
    format!("rpc error: code = {} desc = {}", bulkhead_cri::go_name(status.code()), status.message())
}

/// The checkpoint as it is; None: there is none.
///
/// # Errors
/// It cannot be had.
pub async fn found(broker: &BrokerClient) -> Result<Option<Vec<u8>>, StateFileError> {
    match state_files::read(broker, StateKind::DeviceManager).await {
        // kubelet-volnetd of an earlier version: no device was ever given.
        Err(StateFileError::Broker(error)) if error.code() == tonic::Code::InvalidArgument => {
            tracing::warn!("kubelet-volnetd keeps no devices of plugins: {error}");
            Ok(None)
        }
        found => found,
    }
}

impl Devices {
    pub fn new(parts: Parts) -> Arc<Self> {
        // As upstream: a checkpoint that cannot be read is as good as none.
        let found = parts.found.as_deref().and_then(|bytes| {
            let read = file::read(bytes);
            read.inspect_err(|error| tracing::error!("Continue after failing to read checkpoint file. Device allocation info may NOT be up-to-date: {error}")).ok()
        });
        let manager = DeviceManager::new(parts.machine, found.as_ref(), std::time::Instant::now());
        Arc::new_cyclic(|me| Devices {
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
            let away = || resources.iter().any(|resource| lock(&self.manager).plugins().is_coming_back(resource));
            while away() && changed.changed().await.is_ok() {}
        };
        let shown = async {
            let _ = tokio::time::timeout(BACK, back).await;
            self.keep_shown().await;
        };
        tokio::join!(earlier, shown, self.keep_file());
    }

    /// Resources and endpoints of the plugins of an earlier start, once the store can be read.
    async fn of_earlier_start(&self) -> BTreeMap<String, String> {
        let mut pause = READ_MIN;
        loop {
            {
                let mut kept = lock(&self.kept);
                if kept.read(&*self.store) {
                    return kept.of.clone();
                }
            }
            tokio::time::sleep(pause).await;
            pause = READ_MAX.min(pause * 2);
        }
    }

    /// Connects to a plugin of an earlier start, until it has told its devices, has ended, or somebody has registered its resource or
    /// its socket. One that is only stopped, or whose way through kubelet-volnetd is closed for a while, does not register again: its
    /// socket of registration is the same.
    async fn bring_back(&self, resource: &str, endpoint: &str) {
        let (mut pause, mut patience, mut generation) = (PAUSE_MIN, DIAL, None);
        while !self.is_over(resource, endpoint, generation) {
            let dialed = self.dial(resource, endpoint, patience).await;
            if self.is_over(resource, endpoint, generation) {
                return;
            }
            let missed = match dialed {
                Ok((plugin, options)) => {
                    let taken = self.take(resource, endpoint, true, plugin, options);
                    if self.has_told(resource, taken).await {
                        return;
                    }
                    generation = Some(taken);
                    Missed { why: "it has told no devices".to_owned(), failure: Failure::NoList }
                }
                Err(missed) => missed,
            };
            let next = coming_back::after(missed.failure);
            let why = missed.why;
            tracing::info!(resource, endpoint, ?next, "a plugin of an earlier start has not come back: {why}");
            match next {
                Next::Again => {}
                Next::End => return,
                Next::Forget => return self.forget_endpoint(resource),
            }
            tokio::time::sleep(pause).await;
            (pause, patience) = (PAUSE_MAX.min(pause * 2), Duration::ZERO);
        }
    }

    /// Nobody need look any more for a plugin of an earlier start. `generation`: of the last one that this found.
    fn is_over(&self, resource: &str, endpoint: &str, generation: Option<u64>) -> bool {
        if lock(&self.manager).plugins().last(resource) != generation {
            return true;
        }
        let plugins = lock(&self.plugins);
        let connected = plugins.iter().map(|(resource, connected)| (resource.as_str(), connected.endpoint.as_str()));
        coming_back::is_over(resource, endpoint, &lock(&self.kept).of, connected)
    }

    /// Waits until a plugin has told its devices. False: it has gone before, or another one has its resource.
    async fn has_told(&self, resource: &str, generation: u64) -> bool {
        let mut changed = self.changed.subscribe();
        loop {
            changed.borrow_and_update();
            let told = lock(&self.manager).plugins().has_told(resource, generation);
            if let Some(told) = told {
                return told;
            }
            if changed.changed().await.is_err() {
                return false;
            }
        }
    }

    /// The next start does not look for the resource's plugin.
    fn forget_endpoint(&self, resource: &str) {
        let mut kept = lock(&self.kept);
        if kept.of.remove(resource).is_some() {
            self.save_kept(&mut kept);
        }
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
            let away = now.capacity.keys().any(|resource| lock(&self.manager).plugins().is_away(resource));
            tokio::select! {
                _ = changed.changed() => {}
                () = tokio::time::sleep(LOOK), if away => {}
            }
        }
    }

    /// What the node shows now; a resource whose grace is over leaves the checkpoint as well.
    fn look(&self, now: std::time::Instant) -> Capacity {
        let mut manager = lock(&self.manager);
        if manager.forget(now) {
            self.dirty.notify_one();
        }
        manager.capacity()
    }

    async fn keep_file(&self) {
        loop {
            self.dirty.notified().await;
            tokio::time::sleep(SETTLE).await;
            loop {
                let written = self.write().await;
                if let Err(error) = &written {
                    tracing::warn!("Writing checkpoint encountered: {error}");
                }
                if lock(&self.kept).catch_up(&*self.store) && written.is_ok() {
                    break;
                }
                tokio::time::sleep(WRITE_AGAIN * 10).await;
            }
        }
    }

    /// Writes the checkpoint, if it is not as the devices are.
    async fn write(&self) -> Result<(), StateFileError> {
        let mut written = self.written.lock().await;
        let bytes = file::write(&lock(&self.manager).to_file())?;
        if written.as_deref() != Some(&bytes) {
            self.broker.put_state(StateKind::DeviceManager, memfd::sealed(file::FILE, &bytes)?).await?;
            *written = Some(bytes);
        }
        Ok(())
    }

    /// The same for a pod that relies on it: kubelet-volnetd may be away for a moment.
    async fn write_now(&self) -> Result<(), String> {
        let mut tries = 0;
        loop {
            match self.write().await {
                Ok(()) => return Ok(()),
                Err(error) if tries < WRITE_TRIES && error.is_away() => {
                    tries += 1;
                    tokio::time::sleep(WRITE_AGAIN).await;
                }
                Err(error) => return Err(format!("failed to write checkpoint file {:?}: {error}", file::FILE)),
            }
        }
    }

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
    async fn registration(&self, version: &str, endpoint: &str, resource: &str) -> Result<(), String> {
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
        self.connect(resource, &endpoint, true).await
    }

    /// Connects to a plugin: from here on the resource is its.
    ///
    /// # Errors
    /// In upstream's words.
    pub async fn connect(&self, resource: &str, endpoint: &str, by_socket: bool) -> Result<(), String> {
        let (plugin, options) = self.dial(resource, endpoint, DIAL).await.map_err(|missed| missed.why)?;
        self.take(resource, endpoint, by_socket, plugin, options);
        Ok(())
    }

    /// A plugin, and what it can do. `patience`: it is waited for so long where it does not listen.
    async fn dial(
        &self,
        resource: &str,
        endpoint: &str,
        patience: Duration,
    ) -> Result<(DevicePlugin, DevicePluginOptions), Missed> {
        {
            let manager = lock(&self.manager);
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
    fn take(
        &self,
        resource: &str,
        endpoint: &str,
        by_socket: bool,
        plugin: DevicePlugin,
        options: DevicePluginOptions,
    ) -> u64 {
        let stop = CancellationToken::new();
        let DevicePluginOptions { pre_start_required, get_preferred_allocation_available } = options;
        let options =
            PluginOptions { pre_start: pre_start_required, preferred_allocation: get_preferred_allocation_available };
        let (generation, dropped) = {
            let mut manager = lock(&self.manager);
            let dropped = manager.make_room(resource);
            (manager.connect(resource, options), dropped)
        };
        let connected = Connected {
            generation,
            plugin: plugin.clone(),
            endpoint: endpoint.to_owned(),
            by_socket,
            stop: stop.clone(),
        };
        if let Some(before) = lock(&self.plugins).insert(resource.to_owned(), connected) {
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
    fn told(&self, resource: &str, generation: u64, told: ListAndWatchResponse) -> bool {
        let device = |device: bulkhead_device_plugin::v1beta1::Device| {
            let nodes = device.topology.unwrap_or_default().nodes.into_iter().map(|node| node.id).collect();
            (device.id, Device { healthy: device.health == HEALTHY, nodes })
        };
        let devices: Told = told.devices.into_iter().map(device).collect();
        tracing::debug!(resource, count = devices.len(), "State pushed for device plugin");
        let Some(pods) = lock(&self.manager).list(resource, generation, devices) else { return false };
        if self.health {
            self.news.add(pods);
        }
        self.changed.send_replace(());
        self.dirty.notify_one();
        true
    }

    /// The plugin of this generation has gone.
    fn disconnect(&self, resource: &str, generation: u64) {
        {
            let mut plugins = lock(&self.plugins);
            if plugins.get(resource).is_some_and(|connected| connected.generation == generation) {
                plugins.remove(resource);
            }
        }
        if lock(&self.manager).disconnect(resource, generation, std::time::Instant::now()) {
            tracing::info!(resource, "Endpoint became unhealthy");
            self.changed.send_replace(());
            self.dirty.notify_one();
        }
    }

    /// A plugin of plugins_registry has gone.
    pub fn deregister(&self, resource: &str, endpoint: &str) {
        if let Some(connected) = lock(&self.plugins).get(resource).filter(|connected| connected.endpoint == endpoint) {
            connected.stop.cancel();
        }
    }

    /// A plugin has come for `newest`, in the place of those that are `dropped`: nobody looks for their plugins any more.
    fn save_endpoints(&self, newest: &str, dropped: &[String]) {
        let plugins = lock(&self.plugins);
        let connected = plugins.iter().map(|(resource, c)| (resource.as_str(), c.endpoint.as_str(), c.by_socket));
        let mut kept = lock(&self.kept);
        kept.read(&*self.store);
        kept.of.retain(|resource, _| !dropped.contains(resource));
        kept.of = coming_back::kept(std::mem::take(&mut kept.of), connected, newest);
        self.save_kept(&mut kept);
    }

    /// At once, or as soon as it can be written.
    fn save_kept(&self, kept: &mut Endpoints) {
        kept.save(&*self.store);
        if kept.is_behind {
            self.dirty.notify_one();
        }
    }

    fn running(&self, uid: &str) -> BTreeSet<String> {
        let Ok(uid) = PodUid::parse(uid) else { return BTreeSet::new() };
        self.cache.get(&uid).running().map(|container| container.name.clone()).collect()
    }

    fn serving(&self, question: &Question) -> Result<DevicePlugin, String> {
        let plugins = lock(&self.plugins);
        let connected = plugins.get(&question.resource).filter(|found| found.generation == question.generation);
        connected.map(|found| found.plugin.clone()).ok_or_else(|| stopped(&question.resource))
    }

    /// Asks plugins for all that a pod was given and has not been allocated.
    async fn ask(&self, uid: &str, order: &[ContainerRequest]) -> Result<(), String> {
        loop {
            let Some(question) = lock(&self.manager).next_question(uid, order)? else { return Ok(()) };
            let plugin = self.serving(&question)?;
            let resource = &question.resource;
            match question.call.clone() {
                Call::GetPreferredAllocation { available, must_include, size } => {
                    let answer = plugin.preferred(available, must_include, size).await;
                    let preferred = answer.map_err(|status| {
                        format!("device plugin GetPreferredAllocation rpc failed with err: {}", words(&status))
                    })?;
                    let preferred = preferred.into_iter().collect();
                    lock(&self.manager).preferred(uid, order, &question, &preferred)?;
                }
                Call::Allocate { devices } => {
                    let began = Instant::now();
                    let answer = plugin.allocate(devices).await;
                    self.metrics.allocated(resource, began.elapsed(), |name| self.is_registered(name));
                    let response = answer.map_err(|status| words(&status))?;
                    let response = response.ok_or("no containers return in allocation response &AllocateResponse{}")?;
                    lock(&self.manager).allocated(uid, &question, prost::Message::encode_to_vec(&response));
                }
            }
        }
    }

    /// The same, with the checkpoint written before anybody relies on it.
    async fn settle(&self, uid: &str, order: &[ContainerRequest]) -> Result<(), String> {
        let done = match self.ask(uid, order).await {
            Ok(()) => self.write_now().await,
            failed => failed,
        };
        if done.is_err() {
            lock(&self.manager).drop_open(uid);
            self.changed.send_replace(());
        }
        done
    }

    fn request(&self, pod: &Pod) -> PodRequest {
        PodRequest::of(pod, self.gates)
    }

    fn is_registered(&self, resource: &str) -> bool {
        lock(&self.manager).plugins().is_registered(resource)
    }

    /// No plugin ever came: nothing is looked at.
    fn is_idle(&self) -> bool {
        let manager = lock(&self.manager);
        manager.plugins().is_empty() && manager.held().uids().next().is_none()
    }

    async fn options(&self, pod: &Pod, container: &Container) -> Result<RunContainerOptions, String> {
        if self.is_idle() {
            return Ok(RunContainerOptions::default());
        }
        let request = self.request(pod);
        let (uid, name) = (request.uid.as_str(), container.name.as_str());
        let lacks = lock(&self.manager).lacks(&request, name);
        if let Some(wanted) = request.container(name).filter(|_| lacks) {
            tracing::info!(uid, name, "Needs to re-allocate device plugin resources for pod");
            // Nothing counts as running: it is about to be made.
            Admission::new(&mut *lock(&self.manager), Box::new(|_: &str| BTreeSet::<String>::new()))
                .take(uid, wanted, None)?;
            self.settle(uid, std::slice::from_ref(wanted)).await?;
        }
        let calls = lock(&self.manager).pre_start(&request, name)?;
        for (resource, generation, devices) in calls {
            let plugin =
                lock(&self.plugins).get(&resource).filter(|c| c.generation == generation).map(|c| c.plugin.clone());
            let plugin = plugin.ok_or_else(|| pre_start_failed(&stopped(&resource)))?;
            plugin.pre_start(devices).await.map_err(|status| pre_start_failed(&words(&status)))?;
        }
        let grants = lock(&self.manager).grants(uid, name);
        let device = |d: bulkhead_device_plugin::v1beta1::DeviceSpec| v1::Device {
            container_path: d.container_path,
            host_path: d.host_path,
            permissions: d.permissions,
        };
        let mount = |m: bulkhead_device_plugin::v1beta1::Mount| v1::Mount {
            container_path: m.container_path,
            host_path: m.host_path,
            readonly: m.read_only,
            ..v1::Mount::default()
        };
        Ok(RunContainerOptions {
            devices: grants.devices.into_iter().map(device).collect(),
            mounts: grants.mounts.into_iter().map(mount).collect(),
            envs: grants.envs.into_iter().map(|(name, value)| (name, value.into_bytes())).collect(),
            annotations: grants.annotations,
            cdi_devices: grants.cdi_devices,
            ..RunContainerOptions::default()
        })
    }
}

impl ResourceManager for Devices {
    fn until_decidable(&self, pod: &Arc<Pod>) -> Option<BoxFuture<'static, ()>> {
        if !self.waits || self.is_idle() {
            return None;
        }
        let request = self.request(pod);
        let uid = request.uid.clone();
        let running = self.running(&uid);
        lock(&self.manager).waits_for(&request, &running)?;
        let until = *lock(&self.deadlines).entry(uid).or_insert_with(|| Instant::now() + COMING_BACK);
        if until <= Instant::now() {
            return None;
        }
        let (me, mut changed) = (self.me.upgrade()?, self.changed.subscribe());
        Some(Box::pin(async move {
            loop {
                changed.borrow_and_update();
                if lock(&me.manager).waits_for(&request, &running).is_none() {
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
        Some(Box::new(Admission::new(lock(&self.manager), Box::new(|uid: &str| self.running(uid)))))
    }

    fn complete(&self, pod: &Arc<Pod>) -> Option<BoxFuture<'static, Result<(), Refusal>>> {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        lock(&self.deadlines).remove(&uid);
        let open = lock(&self.manager).held().of_pod(&uid).any(|(_, of)| of.values().any(|a| a.response.is_none()));
        if !open {
            return None;
        }
        let me = self.me.upgrade()?;
        let order = self.request(pod).containers;
        Some(Box::pin(async move { me.settle(&uid, &order).await.map_err(Refusal::unexpected) }))
    }

    fn take_back(&self, uid: &PodUid) {
        lock(&self.deadlines).remove(uid.as_str());
        if lock(&self.manager).take_back(uid.as_str()) {
            self.dirty.notify_one();
        }
    }

    fn forget(&self, uid: &PodUid) {
        lock(&self.deadlines).remove(uid.as_str());
    }

    fn remove_stale(&self, is_active: &dyn Fn(&str, &str) -> bool) {
        if lock(&self.manager).remove_stale(is_active) {
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
        let manager = lock(&self.manager);
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
        let manager = lock(&self.manager);
        all.devices.extend(manager.plugins().usable().map(|(resource, id, device)| holds::Device {
            resource: resource.to_owned(),
            id: id.to_owned(),
            nodes: Some(device.nodes.clone()).filter(|nodes| !nodes.is_empty()),
        }));
    }

    fn allocatable_for(&self, pod: &Pod) -> BTreeMap<String, u64> {
        if self.is_idle() { BTreeMap::new() } else { lock(&self.manager).allocatable_for(&self.request(pod)) }
    }

    fn shown(&self) -> Option<watch::Receiver<Capacity>> {
        Some(self.shown.subscribe())
    }

    fn health(&self, uid: &str, container: &str) -> Vec<ResourceStatus> {
        if self.health { lock(&self.manager).health(uid, container) } else { Vec::new() }
    }
}
