//! Making sure that a container's image is there: policy, presence, pull, and what is said about it. Texts and reasons
//! are upstream's (upstream `pkg/kubelet/images/image_manager.go`).

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_cri::{CriClient, CriError, v1};
use bulkhead_types::{GoDuration, PodUid, TokenBucket, go_aggregate};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;
use tracing::debug;

use super::backoff::{BackOff, BackOffStore, HeldBack, Key, Saved};
use super::file_id::FileId;
use super::in_use::{ImageHold, ImagesInUse};
use super::metrics::ImageMetrics;
use super::pull_files::Files;
use super::pull_policy::PullPolicy;
use super::pull_records::{Policy, PullDecision, PullRecords, Source};
use super::queue::{Pull, PullQueue, Subject};
use super::writes::Writes;
use kubelet_model::events::EventType;
use kubelet_model::pod::image_reference;

/// Delays after failed pulls (upstream `pkg/kubelet/kubelet.go`: imageBackOffPeriod, MaxImageBackOff).
const BACK_OFF_INITIAL: Duration = Duration::from_secs(10);
const BACK_OFF_MAX: Duration = Duration::from_secs(300);

/// Why there is no image; the waiting reason of the container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageErrorReason {
    ErrImagePull,
    ImagePullBackOff,
    ErrImageNeverPull,
    ImageInspectError,
    InvalidImageName,
    RegistryUnavailable,
    SignatureValidationFailed,
}

impl ImageErrorReason {
    pub const fn as_str(self) -> &'static str {
        match self {
            ImageErrorReason::ErrImagePull => "ErrImagePull",
            ImageErrorReason::ImagePullBackOff => "ImagePullBackOff",
            ImageErrorReason::ErrImageNeverPull => "ErrImageNeverPull",
            ImageErrorReason::ImageInspectError => "ImageInspectError",
            ImageErrorReason::InvalidImageName => "InvalidImageName",
            ImageErrorReason::RegistryUnavailable => "RegistryUnavailable",
            ImageErrorReason::SignatureValidationFailed => "SignatureValidationFailed",
        }
    }
}

impl std::fmt::Display for ImageErrorReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// There is no image.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}: {message}")]
pub struct ImageError {
    pub reason: ImageErrorReason,
    /// The waiting message of the container.
    pub message: String,
    /// When another attempt makes sense, where a back-off runs.
    pub retry_at: Option<Instant>,
}

/// What a container is created from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageRef {
    /// The runtime's id of the image: CRI `image.image` of the container.
    pub id: String,
    /// The name that was resolved: the pod's, with the default tag.
    pub name: String,
    /// The user that the image names; both absent for root.
    pub user_id: Option<i64>,
    pub user_name: String,
}

impl ImageRef {
    fn of(id: String, name: String, image: Option<v1::Image>) -> Self {
        let image = image.unwrap_or_default();
        ImageRef { id, name, user_id: image.uid.map(|uid| uid.value), user_name: image.username }
    }
}

/// Where events about the container go.
pub trait ImageEvents {
    fn event(&self, kind: EventType, reason: &'static str, message: &str);
}

impl<F: Fn(EventType, &'static str, &str)> ImageEvents for F {
    fn event(&self, kind: EventType, reason: &'static str, message: &str) {
        self(kind, reason, message);
    }
}

/// The calls that are made. Implemented by the CRI client.
pub trait ImageService {
    fn image_status(
        &self,
        request: v1::ImageStatusRequest,
    ) -> impl Future<Output = Result<v1::ImageStatusResponse, CriError>> + Send;
    fn pull_image(
        &self,
        request: v1::PullImageRequest,
    ) -> impl Future<Output = Result<v1::PullImageResponse, CriError>> + Send;
    fn list_images(&self) -> impl Future<Output = Result<v1::ListImagesResponse, CriError>> + Send;
}

impl ImageService for CriClient {
    fn list_images(&self) -> impl Future<Output = Result<v1::ListImagesResponse, CriError>> + Send {
        CriClient::list_images(self, v1::ListImagesRequest { filter: None })
    }

    fn image_status(
        &self,
        request: v1::ImageStatusRequest,
    ) -> impl Future<Output = Result<v1::ImageStatusResponse, CriError>> + Send {
        CriClient::image_status(self, request)
    }

    fn pull_image(
        &self,
        request: v1::PullImageRequest,
    ) -> impl Future<Output = Result<v1::PullImageResponse, CriError>> + Send {
        CriClient::pull_image(self, request)
    }
}

/// The fields of the configuration that concern pulls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PullLimits {
    /// `serializeImagePulls`: one at a time from each registry.
    pub serialize: bool,
    /// `maxParallelImagePulls`: from each registry; only without `serialize`. None: no limit.
    pub parallel_max: Option<u32>,
    /// `registryPullQPS`; 0: no limit.
    pub per_second: u32,
    /// `registryBurst`
    pub burst: u32,
}

impl Default for PullLimits {
    fn default() -> Self {
        PullLimits { serialize: true, parallel_max: None, per_second: 5, burst: 10 }
    }
}

/// What opens a registry.
#[derive(Debug, Clone, PartialEq)]
pub struct Credential {
    pub auth: v1::AuthConfig,
    /// The pod's own source; `None`: the node's.
    pub source: Option<Source>,
}

/// Where credentials come from; asked when an image has to be pulled, or to be shown to be the pod's, and not before.
pub trait Credentials: Sync {
    /// For a repository (`registry.test/team/app`); tried one after the other, none: pulled without credentials.
    fn find(&self, repository: &str) -> impl Future<Output = Vec<Credential>> + Send;
}

/// Records of pulls could not be kept.
#[derive(Debug, thiserror::Error)]
#[error("failed to record image pull intent")]
pub struct RecordStoreError(#[from] pub std::io::Error);

/// Keeps records of pulls over restarts. Called on threads for blocking work, one call at a time.
pub trait RecordStore: Send + Sync {
    /// # Errors
    /// The records are as they were before.
    fn save(&self, records: &PullRecords) -> Result<(), RecordStoreError>;
}

/// What is to be there.
#[derive(Debug, Clone, Copy)]
pub struct ImageRequest<'a> {
    pub pod_uid: &'a PodUid,
    /// As the container names it.
    pub image: &'a str,
    pub policy: PullPolicy,
    /// The pod's annotations; runtimes may choose by them.
    pub annotations: &'a BTreeMap<String, String>,
    pub sandbox_config: Option<&'a v1::PodSandboxConfig>,
}

/// See the module. Shared by reference between all pod workers.
#[derive(Debug)]
pub struct ImageManager<S> {
    service: S,
    queue: PullQueue,
    state: Mutex<State>,
    metrics: Option<ImageMetrics>,
    policy: Policy,
    store: Option<Arc<dyn RecordStore>>,
    record_writes: Writes,
    records_changed: Notify,
    /// With the id of the machine's boot.
    back_off_store: Option<(Arc<dyn BackOffStore>, String)>,
    back_off_writes: Writes,
    in_use: ImagesInUse,
}

#[derive(Debug)]
struct State {
    back_off: BackOff,
    /// Which pulls may start; with when it began to count. None: no limit.
    bucket: Option<(TokenBucket, Instant)>,
    records: PullRecords,
    /// Pulls of this process so far that nobody waited for to the end.
    abandoned: u64,
    /// The records have been compared with what the runtime has, when so many pulls had been abandoned.
    stock_taken: Option<u64>,
}

impl std::fmt::Debug for dyn RecordStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RecordStore")
    }
}

struct Pulled {
    id: String,
    image: Option<v1::Image>,
    took: Duration,
    source: Option<Source>,
}

impl<S: ImageService> ImageManager<S> {
    pub fn new(service: S, limits: PullLimits, in_use: ImagesInUse) -> Self {
        let each = match (limits.serialize, limits.parallel_max) {
            (true, _) => Some(1),
            (false, Some(max)) if max >= 1 => Some(usize::try_from(max).unwrap_or(usize::MAX)),
            (false, _) => None,
        };
        ImageManager {
            service,
            queue: PullQueue::new(each),
            state: Mutex::new(State {
                back_off: BackOff::new(BACK_OFF_INITIAL, BACK_OFF_MAX),
                bucket: (limits.per_second > 0).then(|| {
                    let (rate, burst) = (f64::from(limits.per_second), f64::from(limits.burst));
                    (TokenBucket::new(rate, burst, Duration::ZERO), Instant::now())
                }),
                records: PullRecords::default(),
                abandoned: 0,
                stock_taken: None,
            }),
            metrics: None,
            policy: Policy::Off,
            store: None,
            record_writes: Writes::default(),
            records_changed: Notify::new(),
            back_off_store: None,
            back_off_writes: Writes::default(),
            in_use,
        }
    }

    /// The same manager with a policy of who may use images that are there, and what former processes noted about them.
    #[must_use]
    pub fn with_records(mut self, policy: Policy, records: PullRecords, store: Arc<dyn RecordStore>) -> Self {
        self.policy = policy;
        self.store = Some(store);
        self.count_records(&records);
        self.state.get_mut().records = records;
        self
    }

    /// The same manager, with back-off that outlives this process: `saved` is what another process of this boot wrote last.
    #[must_use]
    pub fn with_back_off(self, store: Arc<dyn BackOffStore>, boot_id: &str, saved: Option<Saved>) -> Self {
        if let Some(saved) = saved {
            self.state.lock().back_off.restore(saved, boot_id, Instant::now(), self.in_use.now());
        }
        ImageManager { back_off_store: Some((store, boot_id.to_owned())), ..self }
    }

    /// Pulls that have not ended, and those that have to wait after a failure.
    pub fn pulls(&self) -> (Vec<Pull>, Vec<HeldBack>) {
        (self.queue.pulls(), self.state.lock().back_off.held_back(Instant::now()))
    }

    /// The same manager, counting what it does.
    #[must_use]
    pub fn with_metrics(mut self, metrics: ImageMetrics) -> Self {
        self.metrics = Some(metrics);
        self
    }

    /// As [`ImageManager::ensure_image_exists`], and nobody removes the image while it is held.
    ///
    /// # Errors
    /// The same.
    pub async fn hold_image(
        &self,
        request: ImageRequest<'_>,
        credentials: &impl Credentials,
        events: &impl ImageEvents,
    ) -> Result<(ImageRef, ImageHold), ImageError> {
        loop {
            let look = self.in_use.look(request.image).await;
            let image = self.ensure_image_exists(request, credentials, events).await?;
            if let Ok(hold) = look.hold(&image.id) {
                return Ok((image, hold));
            }
            debug!(image = request.image, "the image was removed before it could be used, looking again");
            drop(look);
            // A removal may be under way under another name.
            self.in_use.look(&image.id).await;
        }
    }

    /// Garbage collection has removed an image: the record of its pulls goes with it. `reason`: "age" or "space".
    pub async fn collected(&self, id: &str, reason: &str) {
        if let Some(metrics) = &self.metrics {
            metrics.collected(reason);
        }
        self.prune(|known| known != id, jiff::Timestamp::now()).await;
    }

    /// Records of images that are gone go; `until`: when the list of images was asked for.
    pub async fn prune(&self, is_there: impl Fn(&str) -> bool, until: jiff::Timestamp) {
        let changed = self.state.lock().records.prune(is_there, until);
        if changed && let Err(error) = self.save_records().await {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "failed to remove pull records of images that are gone"
            );
        }
    }

    /// What starts and pulls use.
    pub fn in_use(&self) -> &ImagesInUse {
        &self.in_use
    }

    /// The image's id, after a pull where the policy or its absence asks for one. Pulls wait for their turn, without
    /// a deadline; dropping the future cancels.
    ///
    /// # Errors
    /// With the waiting reason and message of the container.
    pub async fn ensure_image_exists(
        &self,
        request: ImageRequest<'_>,
        credentials: &impl Credentials,
        events: &impl ImageEvents,
    ) -> Result<ImageRef, ImageError> {
        let fail = |reason, message: String| ImageError { reason, message, retry_at: None };
        let count = |present: Option<bool>, pull_required: Option<bool>| {
            if let Some(metrics) = &self.metrics {
                metrics.ensured(request.policy, present, pull_required);
            }
        };
        let name = image_reference::with_default_tag(request.image).map_err(|error| {
            count(None, None);
            let message = format!("Failed to apply default image tag {:?}: {error}", request.image);
            events.event(EventType::Warning, "InspectFailed", &message);
            fail(ImageErrorReason::InvalidImageName, message)
        })?;
        let spec =
            v1::ImageSpec { image: name.clone(), annotations: request.annotations.clone(), ..Default::default() };
        let mut found = LazyCredentials { credentials, image: &name, known: None };

        if request.policy != PullPolicy::Always {
            let present = self.present(&spec).await.map_err(|error| {
                count(None, None);
                // Upstream prints the reference that it did not get, so the name is empty; tools match the text.
                let message = format!("Failed to inspect image \"\": {error}");
                events.event(EventType::Warning, "InspectFailed", &message);
                fail(ImageErrorReason::ImageInspectError, message)
            })?;
            match present {
                Some(image) if self.may_use(request.image, &image.id, &mut found).await => {
                    count(Some(true), Some(false));
                    let who = if self.policy == Policy::Off { "" } else { " and can be accessed by the pod" };
                    let message = format!("Container image {:?} already present on machine{who}", request.image);
                    events.event(EventType::Normal, "Pulled", &message);
                    return Ok(ImageRef::of(image.id.clone(), name, Some(image)));
                }
                present if request.policy == PullPolicy::Never => {
                    // Also of one that is there and not this pod's: that it is there is nobody else's business.
                    count(Some(present.is_some()), present.map(|_| true));
                    let message =
                        format!("Container image {:?} is not present with pull policy of Never", request.image);
                    events.event(EventType::Warning, "ErrImageNeverPull", &message);
                    return Err(fail(ImageErrorReason::ErrImageNeverPull, message));
                }
                present => count(Some(present.is_some()), Some(true)),
            }
        } else {
            count(None, Some(true));
        }
        let (id, image) = self.pull_unless_backing_off(request, spec, &mut found, events).await?;
        Ok(ImageRef::of(id, name, image))
    }

    /// Whether the pod may use an image that is there without pulling it.
    async fn may_use(&self, image: &str, id: &str, found: &mut LazyCredentials<'_, impl Credentials>) -> bool {
        if self.policy == Policy::Off {
            return true;
        }
        self.take_stock().await;
        let look = |sources: Option<&[Source]>| {
            self.state.lock().records.look(&self.policy, image, id, sources, jiff::Timestamp::now())
        };
        let mut verdict = look(None);
        if verdict == PullDecision::AskCredentials {
            let sources: Vec<Source> = found.all().await.iter().filter_map(|one| one.source.clone()).collect();
            verdict = look(Some(&sources));
        }
        if verdict == (PullDecision::Known { changed: true })
            && let Err(error) = self.save_records().await
        {
            tracing::warn!(error = &error as &dyn std::error::Error, "failed to save image pull credentials record");
        }
        if let Some(metrics) = &self.metrics {
            metrics.looked(verdict);
        }
        matches!(verdict, PullDecision::Allowed | PullDecision::Known { .. })
    }

    /// Compares the records with what the runtime has: once, and after pulls that nobody waited for to the end.
    async fn take_stock(&self) {
        let abandoned = {
            let state = self.state.lock();
            if state.stock_taken == Some(state.abandoned) {
                return;
            }
            state.abandoned
        };
        match self.service.list_images().await {
            Ok(answer) => {
                let images = answer.images.iter().map(|image| {
                    let names = image.repo_tags.iter().chain(&image.repo_digests).map(String::as_str).collect();
                    (image.id.as_str(), names)
                });
                let changed = {
                    let mut state = self.state.lock();
                    let before = state.records.clone();
                    state.records.take_stock(images, jiff::Timestamp::now());
                    state.stock_taken = Some(abandoned);
                    state.records != before
                };
                if changed && let Err(error) = self.save_records().await {
                    tracing::warn!(error = &error as &dyn std::error::Error, "failed to save image pull records");
                }
            }
            Err(error) => debug!(%error, "failed to list images; records of pulls stay as they are"),
        }
    }

    /// Whether it is noted who has pulled what.
    pub fn notes_pulls(&self) -> bool {
        self.policy != Policy::Off
    }

    /// Compares the records with upstream's files. Answers which of these are not understood.
    ///
    /// # Errors
    /// What was learned is not kept over a restart.
    pub async fn take_files(&self, files: &Files) -> Result<BTreeSet<FileId>, RecordStoreError> {
        let (not_understood, changed) = {
            let mut state = self.state.lock();
            let before = state.records.clone();
            (state.records.take_files(files), state.records != before)
        };
        if changed {
            self.record_writes.changed();
        }
        self.settle_records().await?;
        Ok(not_understood)
    }

    /// Upstream's files as they are to be.
    pub fn files(&self) -> Files {
        self.state.lock().records.files()
    }

    /// Notes which of upstream's files stand there. That one does may be noted late: until then its record outlives it.
    ///
    /// # Errors
    /// It is not kept over a restart yet.
    pub async fn files_stand(&self, files: &BTreeSet<FileId>) -> Result<(), RecordStoreError> {
        if self.state.lock().records.files_stand(files) {
            self.record_writes.changed();
        }
        self.settle_records().await
    }

    /// To be waited for before upstream's files are removed: a restart that misses one that it has noted forgets its record.
    ///
    /// # Errors
    /// They are not to be removed yet.
    pub async fn files_go(&self, files: &BTreeSet<FileId>) -> Result<(), RecordStoreError> {
        if self.state.lock().records.files_go(files) {
            self.record_writes.changed();
        }
        // Also where nothing is noted any more: what said so may not have been written.
        self.settle_records().await
    }

    /// Waits until records have changed since this was asked last.
    pub async fn records_changed(&self) {
        self.records_changed.notified().await;
    }

    /// After a change of the records: ends when it stands on the disk.
    async fn save_records(&self) -> Result<(), RecordStoreError> {
        self.record_writes.changed();
        self.records_changed.notify_one();
        self.settle_records().await
    }

    async fn settle_records(&self) -> Result<(), RecordStoreError> {
        let Some(store) = &self.store else { return Ok(()) };
        let snapshot = || {
            let (records, store) = (self.state.lock().records.clone(), store.clone());
            move || store.save(&records)
        };
        self.record_writes.settle(snapshot).await?;
        self.count_records(&self.state.lock().records);
        Ok(())
    }

    /// After a failed pull.
    async fn save_back_off(&self) {
        let Some((store, boot_id)) = &self.back_off_store else { return };
        let snapshot = || {
            let saved = self.state.lock().back_off.saved(boot_id, Instant::now(), self.in_use.now());
            let store = store.clone();
            move || {
                store.save(&saved);
                Ok::<_, std::io::Error>(())
            }
        };
        self.back_off_writes.changed();
        if let Err(error) = self.back_off_writes.settle(snapshot).await {
            debug!(%error, "failed to save image pull back-off");
        }
    }

    fn count_records(&self, records: &PullRecords) {
        if let Some(metrics) = &self.metrics {
            let (intents, records) = records.counts();
            metrics.kept(intents, records);
        }
    }

    /// Notes that a pull begins, before it does.
    async fn intend<'a>(&'a self, image: &'a str) -> Result<Intent<'a, S>, RecordStoreError> {
        let is_on = self.notes_pulls();
        let intent = Intent { manager: self, image, is_open: is_on };
        if is_on {
            self.state.lock().records.intend(image);
            self.save_records().await?;
        }
        Ok(intent)
    }

    /// A container with image volumes was started, or was not: `requested` volumes in `mounts` places, and whether the
    /// runtime could not mount them.
    pub fn count_volumes(&self, requested: usize, mounts: usize, failed: bool) {
        if let Some(metrics) = &self.metrics {
            metrics.volumes(requested, mounts, failed);
        }
    }

    /// Forgets back-offs that have run out long ago.
    pub fn collect_garbage(&self) {
        self.state.lock().back_off.collect_garbage(Instant::now());
    }

    async fn present(&self, spec: &v1::ImageSpec) -> Result<Option<v1::Image>, CriError> {
        let request = v1::ImageStatusRequest { image: Some(spec.clone()), verbose: false };
        let image = self.service.image_status(request).await?.image;
        Ok(image.filter(|image| !image.id.is_empty()))
    }

    async fn pull_unless_backing_off(
        &self,
        request: ImageRequest<'_>,
        spec: v1::ImageSpec,
        found: &mut LazyCredentials<'_, impl Credentials>,
        events: &impl ImageEvents,
    ) -> Result<(String, Option<v1::Image>), ImageError> {
        let image = request.image;
        let key = Key { pod_uid: request.pod_uid.to_string(), image: image.to_owned() };
        let refusal = {
            let (state, now) = (self.state.lock(), Instant::now());
            state.back_off.refusal(&key, now).map(|last| (last.to_owned(), state.back_off.until(&key, now)))
        };
        if let Some((last, retry_at)) = refusal {
            let message = format!("Back-off pulling image {image:?}");
            events.event(EventType::Normal, "BackOff", &message);
            let message = format!("{message}: {last}");
            return Err(ImageError { reason: ImageErrorReason::ImagePullBackOff, message, retry_at });
        }

        let intent = self.intend(image).await.map_err(|error| {
            let message = format!("Failed to record image pull intent for container image {image:?}: {error}");
            ImageError { reason: ImageErrorReason::ErrImagePull, message, retry_at: None }
        })?;
        events.event(EventType::Normal, "Pulling", &format!("Pulling image {image:?}"));
        let started = Instant::now();
        let outcome = self.pull_in_turn(request, spec, found).await;
        let waited = started.elapsed();
        intent.ended(outcome.as_ref().ok().map(|pulled| (pulled.id.as_str(), pulled.source.as_ref()))).await;
        match outcome {
            Ok(pulled) => {
                let bytes = pulled.image.as_ref().map_or(0, |image| image.size);
                if let Some(metrics) = &self.metrics {
                    metrics.pulled(bytes, waited);
                }
                let message = format!(
                    "Successfully pulled image {image:?} in {} ({} including waiting). Image size: {} bytes.",
                    milliseconds(pulled.took),
                    milliseconds(waited),
                    bytes
                );
                events.event(EventType::Normal, "Pulled", &message);
                self.collect_garbage();
                Ok((pulled.id, pulled.image))
            }
            Err(text) => {
                events.event(EventType::Warning, "Failed", &format!("Failed to pull image {image:?}: {text}"));
                let (reason, message) = classify(image, text);
                let retry_at = {
                    let (mut state, now) = (self.state.lock(), Instant::now());
                    state.back_off.failed(key.clone(), format!("{reason}: {message}"), now);
                    state.back_off.until(&key, now)
                };
                self.save_back_off().await;
                Err(ImageError { reason, message, retry_at })
            }
        }
    }

    /// One pull among those that the registry's limit allows at once, first come first served.
    async fn pull_in_turn(
        &self,
        request: ImageRequest<'_>,
        spec: v1::ImageSpec,
        found: &mut LazyCredentials<'_, impl Credentials>,
    ) -> Result<Pulled, String> {
        // Before it is our turn: who is slow to say his credentials holds up nobody else's pull.
        let mut some: Vec<Option<Credential>> = Vec::new();
        for one in found.all().await {
            // What the registry refuses it refuses from whatever source.
            if some.iter().flatten().all(|known| known.auth != one.auth) {
                some.push(Some(one.clone()));
            }
        }
        let none = [None];
        let credentials = if some.is_empty() { &none[..] } else { &some[..] };
        let named = request.sandbox_config.and_then(|config| config.metadata.as_ref());
        let _turn = self
            .queue
            .turn(Subject {
                image: request.image.to_owned(),
                pod_uid: request.pod_uid.to_string(),
                namespace: named.map(|pod| pod.namespace.clone()).unwrap_or_default(),
                pod: named.map(|pod| pod.name.clone()).unwrap_or_default(),
            })
            .await;
        let started = Instant::now();
        // Once for all credentials (upstream `pkg/kubelet/images/helpers.go`, throttledImageService).
        let may_pull = |(bucket, began): &mut (TokenBucket, Instant)| bucket.try_take(started.duration_since(*began));
        if !self.state.lock().bucket.as_mut().is_none_or(may_pull) {
            return Err("pull QPS exceeded".to_owned());
        }
        let mut failures: Vec<String> = Vec::new();
        for credential in credentials {
            let pull = v1::PullImageRequest {
                image: Some(spec.clone()),
                auth: credential.as_ref().map(|one| one.auth.clone()),
                sandbox_config: request.sandbox_config.cloned(),
            };
            match self.service.pull_image(pull).await {
                Ok(response) if response.image_ref.is_empty() => {
                    failures.push(format!("imageRef of image {:?} is not set", spec.image));
                }
                Ok(response) => {
                    // For the size in the event and the image's user; the image is there without it.
                    let image = self.present(&spec).await.ok().flatten();
                    let source = credential.as_ref().and_then(|one| one.source.clone());
                    return Ok(Pulled { id: response.image_ref, image, took: started.elapsed(), source });
                }
                Err(error) => {
                    debug!(image = %spec.image, %error, "pulling an image");
                    failures.push(error.plain_text());
                }
            }
        }
        Err(go_aggregate(failures).unwrap_or_default())
    }
}

/// The pod's credentials for one image, asked for once at most.
struct LazyCredentials<'a, C> {
    credentials: &'a C,
    image: &'a str,
    known: Option<Vec<Credential>>,
}

impl<C: Credentials> LazyCredentials<'_, C> {
    async fn all(&mut self) -> &[Credential] {
        if self.known.is_none() {
            let repository =
                image_reference::ImageName::parse(self.image).map(|name| name.repository).unwrap_or_default();
            self.known = Some(self.credentials.find(&repository).await);
        }
        self.known.as_deref().unwrap_or_default()
    }
}

/// A pull that was noted to begin. Dropped before its end, it is one of which nobody knows how it ended.
struct Intent<'a, S> {
    manager: &'a ImageManager<S>,
    image: &'a str,
    is_open: bool,
}

impl<S: ImageService> Intent<'_, S> {
    /// `pulled`: the runtime's id of the image, and whose credentials opened it.
    async fn ended(mut self, pulled: Option<(&str, Option<&Source>)>) {
        if !self.is_open {
            return;
        }
        self.is_open = false;
        self.manager.state.lock().records.ended(self.image, pulled, jiff::Timestamp::now());
        if let Err(error) = self.manager.save_records().await {
            // What is on the disk says that a pull began: the next process will ask for credentials.
            tracing::warn!(error = &error as &dyn std::error::Error, "failed to save the end of an image pull");
        }
    }
}

impl<S> Drop for Intent<'_, S> {
    fn drop(&mut self) {
        if self.is_open {
            let mut state = self.manager.state.lock();
            state.records.abandoned(self.image);
            state.abandoned += 1;
        }
    }
}

/// Two failures are told apart by how their text begins: the agreement between kubelet and runtime
/// (cri-api `pkg/errors`).
fn classify(image: &str, text: String) -> (ImageErrorReason, String) {
    for (reason, words) in [
        (ImageErrorReason::RegistryUnavailable, "the registry is unavailable"),
        (ImageErrorReason::SignatureValidationFailed, "the signature validation failed"),
    ] {
        if let Some(rest) = text.strip_prefix(reason.as_str()) {
            return (reason, format!("image pull failed for {image} because {words}{rest}"));
        }
    }
    (ImageErrorReason::ErrImagePull, text)
}

/// As Go prints a duration cut to milliseconds.
fn milliseconds(duration: Duration) -> GoDuration {
    GoDuration::from_millis(i64::try_from(duration.as_millis()).unwrap_or(i64::MAX))
}
