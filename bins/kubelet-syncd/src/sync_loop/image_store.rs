//! Images of the runtime for kubelet-evictiond, which decides what goes (docs/decisions/0062-who-removes-images.md): lists them with
//! their users, and removes one, unless a container, an image volume, a pull or a start uses it.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use bulkhead_cri::{CriClient, CriError, v1};
use bulkhead_ipc::syncd::{
    ImageCollectionReason, ImagePull, ImagePullStage, RemoveImageOutcome, RemoveImageRequest,
    ReportImageCollectionRequest, StoredImage,
};
use bulkhead_types::PodUid;
use kubelet_images::ImageManager;
use kubelet_images::queue::Subject;
use kubelet_model::events::EventSink as _;
use kubelet_model::pod::model::ImageMount;
use kubelet_pleg::mapping::image_volumes;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::image_events;
use super::image_uses::{Users, Volumes, names, stored};
use super::node::NodeContext;

/// Errors of removals that are kept for the event.
const ERRORS_MAX: usize = 8;
/// An id is a digest; nothing longer is looked for.
const ID_BYTES_MAX: usize = 256;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ImageStoreError {
    #[error("not all pod sources have synced yet")]
    SourcesNotReady,
    #[error("the container runtime does not answer: {0}")]
    Runtime(String),
    #[error("{field}: {problem}")]
    BadRequest { field: &'static str, problem: &'static str },
}

impl From<CriError> for ImageStoreError {
    fn from(error: CriError) -> Self {
        ImageStoreError::Runtime(error.to_string())
    }
}

/// See the module.
#[derive(Debug)]
pub struct ImageStore {
    node: Arc<NodeContext>,
    /// An image has been removed.
    removed: Arc<Notify>,
    /// One removal at a time: the runtime makes them one after another anyway.
    turn: tokio::sync::Mutex<()>,
    /// What the runtime said of images that it could not remove, since the last report.
    errors: Mutex<Vec<String>>,
}

/// What the runtime has now.
struct Stock {
    images: Vec<v1::Image>,
    containers: Vec<v1::Container>,
    volumes: Volumes,
    /// Name of the image of sandboxes, where the runtime says so.
    sandbox_image: Option<String>,
}

impl Stock {
    /// Kept whatever happens. Runtimes that do not pin the image of sandboxes could make none without it.
    fn is_pinned(&self, image: &v1::Image) -> bool {
        let is_sandbox = |name: &String| names(image).any(|own| own == name) || image.id == *name;
        image.pinned || self.sandbox_image.as_ref().is_some_and(is_sandbox)
    }
}

impl ImageStore {
    pub fn new(node: Arc<NodeContext>, removed: Arc<Notify>) -> Self {
        ImageStore { node, removed, turn: tokio::sync::Mutex::default(), errors: Mutex::default() }
    }

    fn cri(&self) -> &CriClient {
        self.node.runtime.cri()
    }

    fn manager(&self) -> &ImageManager<CriClient> {
        self.node.runtime.images()
    }

    /// All images, with who uses them. Records of pulls of images that are gone go.
    ///
    /// # Errors
    /// The runtime does not answer.
    pub async fn list(&self) -> Result<Vec<StoredImage>, ImageStoreError> {
        let asked = jiff::Timestamp::now();
        let stock = self.stock().await?;
        let there: BTreeSet<&str> = stock.images.iter().map(|image| image.id.as_str()).collect();
        self.manager().prune(|id| there.contains(id), asked).await;
        let in_use = self.manager().in_use();
        in_use.retain(|id| there.contains(id));
        let users = Users::of(&stock.containers, &stock.volumes);
        let told = stock.images.iter().map(|image| {
            let is_held = in_use.is_used(&image.id, names(image).map(String::as_str));
            stored(image, &users, is_held, stock.is_pinned(image), in_use.last_used(&image.id))
        });
        Ok(told.collect())
    }

    /// Pulls that are under way, that wait for their turn, and that wait after a failure.
    pub fn pulls(&self) -> Vec<ImagePull> {
        let (pulls, held_back) = self.manager().pulls();
        let now = Instant::now();
        let under_way = pulls.into_iter().map(|pull| ImagePull {
            registry: pull.of.registry(),
            stage: if pull.began.is_some() { ImagePullStage::Pulling } else { ImagePullStage::Queued }.into(),
            seconds: now.duration_since(pull.began.unwrap_or(pull.queued)).as_secs_f64(),
            image: pull.of.image,
            pod_uid: pull.of.pod_uid,
            namespace: pull.of.namespace,
            pod: pull.of.pod,
            ..ImagePull::default()
        });
        let failed = held_back.into_iter().map(|held| {
            let pod = PodUid::parse(&held.key.pod_uid).ok().and_then(|uid| self.node.hub.get(&uid));
            let (namespace, pod) = pod.map(|pod| (pod.namespace.clone(), pod.name.clone())).unwrap_or_default();
            let subject = Subject { image: held.key.image, pod_uid: held.key.pod_uid, namespace, pod };
            ImagePull {
                registry: subject.registry(),
                stage: ImagePullStage::BackOff.into(),
                seconds: now.duration_since(held.failed).as_secs_f64(),
                retry_seconds: Some(held.until.duration_since(now).as_secs_f64()),
                error: held.message,
                image: subject.image,
                pod_uid: subject.pod_uid,
                namespace: subject.namespace,
                pod: subject.pod,
            }
        });
        under_way.chain(failed).collect()
    }

    /// Removes an image that nobody uses. Goes on when whoever asked has gone away.
    ///
    /// # Errors
    /// Nothing was removed: not all pods are known yet, the runtime does not answer, or the request is none.
    pub async fn remove(self: &Arc<Self>, request: RemoveImageRequest) -> Result<RemoveImageOutcome, ImageStoreError> {
        let bad = |field, problem| Err(ImageStoreError::BadRequest { field, problem });
        if request.id.is_empty() || request.id.len() > ID_BYTES_MAX {
            return bad("id", "1 to 256 bytes are allowed");
        }
        let reason = match request.reason() {
            ImageCollectionReason::Age => "age",
            ImageCollectionReason::Space => "space",
            ImageCollectionReason::Unspecified => return bad("reason", "age and space are allowed"),
        };
        let store = self.clone();
        let removing = tokio::spawn(async move { store.remove_now(&request, reason).await });
        removing.await.map_err(|_| ImageStoreError::Runtime("the process is ending".to_owned()))?
    }

    async fn remove_now(
        &self,
        request: &RemoveImageRequest,
        reason: &'static str,
    ) -> Result<RemoveImageOutcome, ImageStoreError> {
        let _turn = self.turn.lock().await;
        if !self.node.volnetd.authority().sources_ready() {
            return Err(ImageStoreError::SourcesNotReady);
        }
        if self.node.health.borrow().silent {
            return Err(ImageStoreError::Runtime("it has been silent for a while".to_owned()));
        }
        let images = self.cri().list_images(v1::ListImagesRequest { filter: None }).await?.images;
        let Some(image) = images.into_iter().find(|image| image.id == request.id) else {
            return Ok(RemoveImageOutcome::Absent);
        };
        // From here on no start begins to use it; whoever did before has a container of it, or still holds it.
        let in_use = self.manager().in_use();
        let Some(_removal) = in_use.remove(&image.id, names(&image).map(String::as_str)) else {
            return Ok(RemoveImageOutcome::RefusedUsed);
        };
        if in_use.last_used(&image.id) > request.last_used_ms {
            return Ok(RemoveImageOutcome::RefusedUsed);
        }
        let stock = self.stock().await?;
        if stock.is_pinned(&image) {
            return Ok(RemoveImageOutcome::RefusedPinned);
        }
        if !Users::of(&stock.containers, &stock.volumes).of_image(&image).is_empty() {
            return Ok(RemoveImageOutcome::RefusedUsed);
        }
        let spec = v1::ImageSpec { image: image.id.clone(), ..Default::default() };
        tracing::info!(
            image = image.id,
            name = names(&image).next(),
            size = image.size,
            reason,
            "Removing image to free bytes"
        );
        match self.cri().remove_image(v1::RemoveImageRequest { image: Some(spec) }).await {
            Ok(_) => {
                // First: who asked may go away while the record is written.
                self.removed.notify_one();
                self.manager().collected(&image.id, reason).await;
                Ok(RemoveImageOutcome::Removed)
            }
            Err(error) => {
                tracing::warn!(image = image.id, %error, "failed to remove image");
                let mut errors = self.errors.lock();
                if errors.len() < ERRORS_MAX {
                    errors.push(error.to_string());
                }
                Ok(RemoveImageOutcome::Failed)
            }
        }
    }

    /// The node's events of a round that has failed.
    pub fn report(&self, report: &ReportImageCollectionRequest) {
        let errors = std::mem::take(&mut *self.errors.lock());
        for event in image_events::events(report, &errors) {
            self.node.reporter.emit_node(event);
        }
    }

    async fn stock(&self) -> Result<Stock, ImageStoreError> {
        let cri = self.cri();
        let (images, containers, status) = tokio::try_join!(
            cri.list_images(v1::ListImagesRequest { filter: None }),
            cri.list_containers(v1::ListContainersRequest::default()),
            cri.status(v1::StatusRequest { verbose: true }),
        )?;
        let containers = containers.containers;
        let volumes = self.volumes(&containers).await?;
        Ok(Stock { images: images.images, containers, volumes, sandbox_image: sandbox_image(&status.info) })
    }

    /// What containers mount: as PLEG has seen it, and asked of the runtime where it has not.
    async fn volumes(&self, containers: &[v1::Container]) -> Result<Volumes, ImageStoreError> {
        let images = |mounts: &[ImageMount]| mounts.iter().map(|mount| mount.image.clone()).collect::<Vec<_>>();
        let mut known: HashMap<String, Vec<String>> = HashMap::new();
        for (_, pod) in self.node.cache.snapshot() {
            known.extend(pod.containers.iter().map(|one| (one.id.to_string(), images(&one.image_volumes))));
        }
        let mut volumes = Volumes::new();
        for container in containers {
            let mounted = match known.remove(&container.id) {
                Some(mounted) => mounted,
                None => {
                    let request = v1::ContainerStatusRequest { container_id: container.id.clone(), verbose: false };
                    match self.cri().container_status(request).await {
                        Ok(reply) => images(&image_volumes(&reply.status.unwrap_or_default().mounts)),
                        Err(error) if error.is_not_found() => continue,
                        Err(error) => return Err(error.into()),
                    }
                }
            };
            if !mounted.is_empty() {
                volumes.insert(container.id.clone(), mounted);
            }
        }
        Ok(volumes)
    }
}

/// What the runtime makes its sandboxes of, as containerd before 2.0 says it; later ones pin that image.
fn sandbox_image(info: &std::collections::BTreeMap<String, String>) -> Option<String> {
    let config: serde_json::Value = serde_json::from_str(info.get("config")?).ok()?;
    config.get("sandboxImage")?.as_str().filter(|name| !name.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_image_of_sandboxes() {
        let of = |config: &str| sandbox_image(&[("config".to_owned(), config.to_owned())].into());
        assert_eq!(
            of(r#"{"sandboxImage":"bulkhead.test/pause:1","other":{}}"#).as_deref(),
            Some("bulkhead.test/pause:1")
        );
        assert_eq!(
            [of("{}"), of("no json"), of(r#"{"sandboxImage":7}"#), of(r#"{"sandboxImage":""}"#)],
            [None, None, None, None]
        );
        assert_eq!(sandbox_image(&std::collections::BTreeMap::new()), None);
    }
}
