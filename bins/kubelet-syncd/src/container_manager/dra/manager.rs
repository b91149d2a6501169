//! Claims from the pod that names them to the container that has their devices, and back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bulkhead_dra::v1;
use bulkhead_types::{BackOff, PodUid};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::PodStatus;
use kubelet_container_manager::checkpoint::{dra as checkpoint, dra_health};
use kubelet_container_manager::dra::book::{AskedClaim, ClaimBook, ClaimKey};
use kubelet_container_manager::dra::claims;
use kubelet_container_manager::dra::health::{self as device_health, HealthBook};
use kubelet_edges::csi::CsiError;
use kubelet_edges::dra::{Plugin, Plugins, Service};
use kubelet_model::v1::{Container, Pod};
use kubelet_pod_resources::holds as told;
use kubelet_runtime::runtime::result::ActionError;
use kubelet_runtime::runtime::run_options::RunContainerOptions;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, OnceCell, watch};

use super::holds::Holds;
use super::metrics::Durations;
use super::ports::{ClaimReader, Stores};
use crate::container_manager::{News, ResourceManager, StateFileError};

/// What of it is turned on.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// The gate DRAExtendedResource.
    pub extended_resources: bool,
    /// DRAWorkloadResourceClaims: a pod may use the claims of its group.
    pub group_claims: bool,
    /// ResourceHealthStatus.
    pub health: bool,
    /// ResourceHealthStatusMessage.
    pub health_messages: bool,
}

/// See the module.
#[derive(Debug)]
pub struct DraManager {
    settings: Settings,
    plugins: Plugins,
    reader: Box<dyn ClaimReader>,
    stores: Stores,
    durations: Durations,
    book: Mutex<ClaimBook>,
    /// The book is what the file says, or what came of it.
    loaded: OnceCell<()>,
    /// One writes at a time: what is older may not come last.
    writing: tokio::sync::Mutex<()>,
    /// How often the book has changed, and up to which change the file has it.
    changes: AtomicU64,
    saved: AtomicU64,
    holds: Holds,
    health: Mutex<HealthBook>,
    health_loaded: OnceCell<()>,
    /// A driver has told something.
    pub(super) health_told: Notify,
    /// Pods whose devices' health is another one, until that is written down.
    health_news: Mutex<BTreeSet<String>>,
    pub(super) news: Arc<News>,
    /// Pods for which something has failed, each with the pause before it is looked at again.
    waiting: Mutex<BTreeMap<String, BackOff>>,
    /// Pods that are gone and have hold of claims still.
    pub(super) lost: watch::Sender<BTreeSet<String>>,
}

/// A pod whose claims could not be had is looked at again after so long, and at once when a driver comes back.
const AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// A call's failure as Go's gRPC says it.
fn call_error(status: tonic::Status) -> CsiError {
    CsiError::from(status)
}

impl DraManager {
    pub fn new(
        settings: Settings,
        plugins: Plugins,
        reader: Box<dyn ClaimReader>,
        stores: Stores,
        durations: Durations,
        news: Arc<News>,
    ) -> Arc<Self> {
        Arc::new(DraManager {
            settings,
            plugins,
            reader,
            stores,
            durations,
            book: Mutex::default(),
            loaded: OnceCell::new(),
            writing: tokio::sync::Mutex::default(),
            changes: AtomicU64::new(0),
            saved: AtomicU64::new(0),
            holds: Holds::default(),
            health: Mutex::default(),
            health_loaded: OnceCell::new(),
            health_told: Notify::new(),
            health_news: Mutex::default(),
            news,
            waiting: Mutex::default(),
            lost: watch::channel(BTreeSet::new()).0,
        })
    }

    pub fn plugins(&self) -> &Plugins {
        &self.plugins
    }

    pub(super) fn health_book(&self) -> MutexGuard<'_, HealthBook> {
        self.health.lock()
    }

    /// Reads the file, once. Whoever needs the book waits for that.
    async fn load(&self) -> Result<(), String> {
        // Without it devices' health is unknown until their drivers tell it: nothing waits for that.
        let _ = self.load_health().await;
        let load = || async {
            let content = self.stores.claims.load().await.map_err(|error| error.to_string())?;
            let states = match content {
                Some(content) => checkpoint::read(&content).map_err(|error| error.to_string())?,
                None => Vec::new(),
            };
            let book = ClaimBook::of(states);
            let pods: Vec<String> = book.pods().into_iter().map(str::to_owned).collect();
            *self.book.lock() = book;
            if self.settings.health {
                // Their statuses have said of claims what they said last.
                self.news.add(pods);
            }
            Ok::<(), String>(())
        };
        let loaded = self.loaded.get_or_try_init(load).await;
        loaded.copied().map_err(|error| format!("read the checkpoint {}: {error}", checkpoint::FILE))
    }

    /// Reads the file of devices' health, once. One that is no JSON counts as none, as upstream.
    ///
    /// # Errors
    /// kubelet-volnetd does not answer: to be tried again.
    pub(super) async fn load_health(&self) -> Result<(), StateFileError> {
        let load = || async {
            if !self.settings.health {
                return Ok(());
            }
            let found = match self.stores.health.load().await {
                Ok(content) => {
                    content.map_or_else(|| Ok(dra_health::Found::default()), |content| dra_health::read(&content))
                }
                Err(error) if error.is_away() => return Err(error),
                Err(error) => {
                    tracing::error!(%error, "Failed to load health checkpoint, proceeding with empty cache");
                    return Ok(());
                }
            };
            match found {
                Ok(dra_health::Found { drivers, wrong }) => {
                    if !wrong.is_empty() {
                        let (values, first) = (wrong.len(), wrong.first());
                        tracing::error!(values, first, "ignoring values of another type in the health checkpoint");
                    }
                    self.health_book().restore(drivers, Instant::now(), Timestamp::now());
                }
                Err(error) => {
                    tracing::error!(%error, "Failed to load health checkpoint, proceeding with empty cache");
                }
            }
            Ok(())
        };
        self.health_loaded.get_or_try_init(load).await.copied()
    }

    /// Writes down what drivers have told, if the file says something else. What is not written is forgotten with this process alone,
    /// and the next word of a driver has it written again. Pods are looked at for it afterwards, so that no status says what a restart
    /// would take back.
    pub(super) async fn save_health(&self) {
        let pods = std::mem::take(&mut *self.health_news.lock());
        self.write_health().await;
        self.news.add(pods);
    }

    async fn write_health(&self) {
        let drivers = {
            let mut book = self.health_book();
            if !book.is_unsaved() {
                return;
            }
            book.file(Instant::now(), Timestamp::now())
        };
        let saved = match dra_health::write(&drivers) {
            Ok(content) => self.stores.health.save(content).await,
            Err(error) => Err(error.into()),
        };
        if let Err(error) = saved {
            self.health_book().not_saved();
            tracing::error!(
                %error,
                "Failed to save health checkpoint after update. Kubelet restart may lose the device health information."
            );
        }
    }

    /// Writes the book, if the file is another one.
    async fn save(&self) -> Result<(), String> {
        let _one = self.writing.lock().await;
        let changes = self.changes.load(Ordering::Relaxed);
        if changes == self.saved.load(Ordering::Relaxed) {
            return Ok(());
        }
        let states = self.book.lock().states();
        let content = checkpoint::write(&states).map_err(|error| error.to_string())?;
        self.stores.claims.save(content).await.map_err(|error| error.to_string())?;
        // Only now: who waits may go meanwhile.
        self.saved.store(changes, Ordering::Relaxed);
        Ok(())
    }

    fn change<T>(&self, how: impl FnOnce(&mut ClaimBook) -> T) -> T {
        let result = how(&mut self.book.lock());
        self.changes.fetch_add(1, Ordering::Relaxed);
        result
    }

    // === A plugin comes and goes ===

    /// A plugin of a driver has registered. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// In upstream's words.
    pub fn register(self: &Arc<Self>, driver: &str, endpoint: &str, service: Service) -> Result<(), String> {
        let plugin = self.plugins.add(driver, endpoint, service).map_err(|error| error.to_string())?;
        if self.settings.health {
            tokio::spawn(super::health::follow(self.clone(), Arc::downgrade(&plugin)));
        }
        Ok(())
    }

    /// It is registered no more.
    pub fn deregister(&self, driver: &str, endpoint: &str) {
        self.plugins.remove(driver, endpoint);
    }

    // === Prepare ===

    /// Has all claims of a pod prepared that are not prepared yet (upstream PrepareResources).
    ///
    /// # Errors
    /// In upstream's words. What was begun is in the book, and is taken back when the pod ends.
    pub async fn prepare(&self, pod: &Pod) -> Result<(), String> {
        let began = Instant::now();
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let outcome = self.prepare_claims(pod).await;
        self.durations.operation("PrepareResources", outcome.is_err(), began.elapsed());
        self.waits(&uid, outcome.is_err());
        outcome
    }

    async fn prepare_claims(&self, pod: &Pod) -> Result<(), String> {
        let named = claims::of_pod(pod, self.settings.extended_resources).map_err(|error| error.to_string())?;
        if named.is_empty() {
            return Ok(());
        }
        self.load().await?;
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let mut usable = Vec::new();
        for claim in &named {
            let object = self.reader.claim(namespace, &claim.object).await;
            let object = object.map_err(|error| format!("fetch ResourceClaim {}: {error}", claim.object))?;
            let state =
                claims::usable(pod, claim, &object, self.settings.group_claims).map_err(|error| error.to_string())?;
            // Also where it is prepared already: something is wrong with a node whose driver is away.
            for driver in state.driver_state.iter().flatten().map(|(driver, _)| driver) {
                self.plugins.get(driver).map_err(|error| error.to_string())?;
            }
            usable.push(state);
        }
        let keys: BTreeSet<ClaimKey> = usable
            .iter()
            .map(|state| ClaimKey { namespace: state.namespace.clone(), name: state.claim_name.clone() })
            .collect();
        let _held = self.holds.hold(keys.into_iter().collect()).await;
        let batches = self.change(|book| book.begin(usable)).map_err(|error| error.to_string())?;
        self.save().await.map_err(|error| format!("checkpoint ResourceClaim cache: {error}"))?;
        let mut prepared = BTreeSet::new();
        for (driver, claims) in batches {
            let plugin = self.plugins.get(&driver).map_err(|error| error.to_string())?;
            self.prepare_at(&plugin, &claims).await?;
            prepared.extend(claims.iter().map(AskedClaim::key));
        }
        if !prepared.is_empty() {
            self.change(|book| book.set_prepared(&prepared));
        }
        self.save().await.map_err(|error| format!("checkpoint ResourceClaim state: {error}"))
    }

    async fn prepare_at(&self, plugin: &Plugin, claims: &[AskedClaim]) -> Result<(), String> {
        let answer = plugin.prepare(asked(claims)).await;
        let answer = answer.map_err(|status| format!("NodePrepareResources: {}", call_error(status)))?;
        let answered = answer.claims.len();
        for (uid, result) in answer.claims {
            let Some(claim) = claims.iter().find(|claim| claim.uid == uid) else {
                return Err(format!("NodePrepareResources returned result for unknown claim UID {uid}"));
            };
            if !result.error.is_empty() {
                return Err(format!("NodePrepareResources failed for ResourceClaim {}: {}", claim.name, result.error));
            }
            let devices = result.devices.into_iter().map(device).collect();
            self.change(|book| book.give(&claim.key(), plugin.driver(), devices)).map_err(|error| error.to_string())?;
        }
        match claims.len().saturating_sub(answered) {
            0 => Ok(()),
            skipped => Err(format!("NodePrepareResources skipped {skipped} ResourceClaims")),
        }
    }

    // === What containers have ===

    /// Names of the CDI devices of a container (upstream GetResources).
    ///
    /// # Errors
    /// A claim is not known: it was not prepared here.
    pub async fn cdi_devices(&self, pod: &Pod, container: &Container) -> Result<Vec<String>, String> {
        let wanted = claims::of_container(pod, container, self.settings.extended_resources);
        let wanted = wanted.map_err(|error| error.to_string())?;
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        self.load().await?;
        let namespace = pod.metadata.namespace.clone().unwrap_or_default();
        let book = self.book.lock();
        let mut devices = Vec::new();
        for (name, request) in wanted {
            let key = ClaimKey { namespace: namespace.clone(), name };
            for device in book.cdi_devices(&key, &request).map_err(|error| error.to_string())? {
                if !devices.contains(&device) {
                    devices.push(device);
                }
            }
        }
        Ok(devices)
    }

    /// Puts the health of devices into a pod's status.
    pub fn show_health(&self, pod: &Pod, status: &mut PodStatus) {
        if !self.settings.health || !claims::has_some(pod) {
            return;
        }
        if !self.loaded.initialized() {
            device_health::keep(pod, status);
        } else {
            let (book, health) = (self.book.lock(), self.health_book());
            device_health::show(pod, status, &book, &health, self.settings.health_messages, Instant::now());
        }
    }

    /// How many claims are prepared: by driver, and of all.
    pub fn in_use(&self) -> (BTreeMap<String, usize>, usize) {
        let book = self.book.lock();
        let (by_driver, all) = book.in_use();
        (by_driver.into_iter().map(|(driver, count)| (driver.to_owned(), count)).collect(), all)
    }

    // === Unprepare ===

    /// Takes back what a pod has, whose containers have ended (upstream UnprepareResources). Done once, it is nothing to do.
    ///
    /// # Errors
    /// In upstream's words; it is to be tried again.
    pub async fn unprepare(&self, pod: &Pod) -> Result<(), String> {
        let began = Instant::now();
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let outcome = if claims::has_some(pod) { self.unprepare_claims(uid).await } else { Ok(()) };
        self.durations.operation("UnprepareResources", outcome.is_err(), began.elapsed());
        self.waits(uid, outcome.is_err());
        outcome.map_err(|error| format!("unprepare dynamic resources: {error}"))
    }

    pub(super) async fn unprepare_claims(&self, uid: &str) -> Result<(), String> {
        self.load().await?;
        let keys = self.book.lock().of_pod(uid);
        let _held = self.holds.hold(keys).await;
        let ending = {
            let mut book = self.book.lock();
            let ending = book.ending(uid);
            book.withdraw(&ending);
            ending
        };
        // A driver that is away does not keep the others from taking theirs back. All are asked again with it.
        let mut failed = None;
        for (driver, claims) in &ending.batches {
            let done = match self.plugins.get(driver) {
                Ok(plugin) => unprepare_at(&plugin, claims).await,
                Err(error) => Err(error.to_string()),
            };
            failed = failed.or(done.err());
        }
        if let Some(error) = failed {
            return Err(error);
        }
        if !ending.last.is_empty() || !ending.shared.is_empty() {
            self.change(|book| book.end(uid, &ending));
        }
        self.save().await.map_err(|error| format!("checkpoint ResourceClaim state: {error}"))
    }

    /// Every source of pods has delivered, and these are the pods that may use what they have: all others are to give it back.
    pub fn only(self: &Arc<Self>, active: BTreeSet<String>) {
        let manager = self.clone();
        tokio::spawn(async move {
            if let Err(error) = manager.load().await {
                tracing::warn!("{error}");
                return;
            }
            let lost: BTreeSet<String> = {
                let book = manager.book.lock();
                book.pods().into_iter().filter(|uid| !active.contains(*uid)).map(str::to_owned).collect()
            };
            manager.lost.send_if_modified(|known| {
                let new = *known != lost;
                *known = lost;
                new
            });
        });
    }

    // === Who is to be looked at again ===

    fn waits(&self, uid: &str, waits: bool) {
        let mut waiting = self.waiting.lock();
        if !waits {
            waiting.remove(uid);
            return;
        }
        let pause = waiting.entry(uid.to_owned()).or_insert_with(|| BackOff::new(AGAIN.0, AGAIN.1)).pause();
        let (news, uid) = (self.news.clone(), uid.to_owned());
        tokio::spawn(async move {
            tokio::time::sleep(pause).await;
            news.add([uid]);
        });
    }

    /// A driver can be asked again: who waited for one is looked at.
    pub(super) fn driver_is_back(&self) {
        let waiting: Vec<String> = self.waiting.lock().keys().cloned().collect();
        self.news.add(waiting);
    }

    /// The health of these devices of a driver has changed.
    pub(super) fn health_changed(&self, driver: &str, devices: &BTreeSet<device_health::DeviceName>) {
        if !devices.is_empty() {
            let pods = self.book.lock().pods_of_devices(driver, devices);
            self.health_news.lock().extend(pods);
        }
        self.health_told.notify_one();
    }
}

async fn unprepare_at(plugin: &Plugin, claims: &[AskedClaim]) -> Result<(), String> {
    let answer = plugin.unprepare(asked(claims)).await;
    let answer = answer.map_err(|status| format!("NodeUnprepareResources: {}", call_error(status)))?;
    for (uid, result) in &answer.claims {
        let Some(claim) = claims.iter().find(|claim| claim.uid == *uid) else {
            return Err(format!("NodeUnprepareResources returned result for unknown claim UID {uid}"));
        };
        if !result.error.is_empty() {
            return Err(format!("NodeUnprepareResources failed for ResourceClaim {}: {}", claim.name, result.error));
        }
    }
    match claims.len().saturating_sub(answer.claims.len()) {
        0 => Ok(()),
        skipped => Err(format!("NodeUnprepareResources skipped {skipped} ResourceClaims")),
    }
}

fn asked(claims: &[AskedClaim]) -> Vec<v1::Claim> {
    let claim = |claim: &AskedClaim| v1::Claim {
        namespace: claim.namespace.clone(),
        uid: claim.uid.clone(),
        name: claim.name.clone(),
    };
    claims.iter().map(claim).collect()
}

/// What is empty is `null` in the file.
fn device(given: v1::Device) -> checkpoint::Device {
    let list = |names: Vec<String>| Some(names).filter(|names| !names.is_empty());
    checkpoint::Device {
        pool_name: given.pool_name,
        device_name: given.device_name,
        share_id: given.share_id,
        request_names: list(given.request_names),
        cdi_device_ids: list(given.cdi_device_ids),
    }
}

impl ResourceManager for DraManager {
    /// All devices of each claim that the container names, whichever request it names (upstream GetDynamicResources).
    fn holds(&self, pod: &Pod, container: &Container, holds: &mut told::Holds) {
        let Ok(wanted) = claims::of_container(pod, container, self.settings.extended_resources) else { return };
        let namespace = pod.metadata.namespace.clone().unwrap_or_default();
        let names: BTreeSet<String> = wanted.into_iter().map(|(name, _)| name).collect();
        let book = self.book.lock();
        for name in names {
            let key = ClaimKey { namespace: namespace.clone(), name };
            let Some(devices) = book.devices(&key, "") else { continue };
            let device = |(driver, device): (&str, &checkpoint::Device)| told::ClaimDevice {
                driver: driver.to_owned(),
                pool: device.pool_name.clone(),
                device: device.device_name.clone(),
                share_id: device.share_id.clone(),
                cdi: device.cdi_device_ids.clone().unwrap_or_default(),
            };
            let devices = devices.into_iter().map(device).collect();
            holds.claims.push(told::Claim { namespace: key.namespace, name: key.name, devices });
        }
    }

    fn forget(&self, uid: &PodUid) {
        self.waiting.lock().remove(uid.as_str());
    }

    fn prepare_dynamic_resources<'a>(&'a self, pod: &'a Pod) -> BoxFuture<'a, Result<(), String>> {
        self.prepare(pod).boxed()
    }

    fn run_options<'a>(
        &'a self,
        pod: &'a Pod,
        container: &'a Container,
    ) -> BoxFuture<'a, Result<RunContainerOptions, ActionError>> {
        async move {
            let devices = self.cdi_devices(pod, container).await;
            let cdi_devices = devices.map_err(|error| ActionError::new("CreateContainerConfigError", error))?;
            Ok(RunContainerOptions { cdi_devices, ..RunContainerOptions::default() })
        }
        .boxed()
    }
}
