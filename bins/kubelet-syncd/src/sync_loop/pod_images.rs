//! Images of pods: with whose credentials they are pulled, what the pod is told of it, and how long they are held.

use std::sync::Arc;
use std::time::SystemTime;

use bulkhead_cri::CriClient;

use super::events::Reporter;
use super::runtime_service::{keep, let_go, unhurried};
use crate::start_latency::StartTimes;
use kubelet_images::credentials::{Keyring, Puller};
use kubelet_images::{Credential, Credentials, ImageManager, PullPolicy};
use kubelet_model::events::{EventSink as _, EventType, PodEvent};
use kubelet_model::pod::spec::PodIdentity;
use kubelet_runtime::runtime::image_volumes::Counted;
use kubelet_runtime::runtime::ports::{ImageFailure, ImageRequest, Images, ResolvedImage};
use kubelet_runtime::runtime::security::ImageUser;

/// Images, by the image manager; the pod's slot is given back while one is pulled.
#[derive(Debug, Clone)]
pub struct PodImages {
    pub manager: Arc<ImageManager<CriClient>>,
    pub keyring: Arc<Keyring>,
    pub reporter: Arc<Reporter>,
    pub starts: Arc<StartTimes>,
}

/// Credentials for one pod's pull; what is missing is told to the pod.
struct PullCredentials<'a> {
    images: &'a PodImages,
    pod: &'a PodIdentity,
    service_account: &'a str,
    secrets: Vec<String>,
}

impl<'a> PullCredentials<'a> {
    fn of(images: &'a PodImages, request: &ImageRequest<'a>) -> Self {
        let spec = request.object.spec.as_ref();
        let secrets = spec.and_then(|s| s.image_pull_secrets.as_ref()).into_iter().flatten();
        PullCredentials {
            images,
            pod: request.pod,
            service_account: spec.and_then(|s| s.service_account_name.as_deref()).unwrap_or_default(),
            secrets: secrets.map(|secret| secret.name.clone()).filter(|name| !name.is_empty()).collect(),
        }
    }

    fn warn(&self, reason: &'static str, message: String) {
        self.images.reporter.emit(PodEvent::pod(self.pod, EventType::Warning, reason, message));
    }
}

impl Credentials for PullCredentials<'_> {
    async fn find(&self, repository: &str) -> Vec<Credential> {
        let puller = Puller {
            namespace: self.pod.namespace.as_str(),
            pod: self.pod.name.as_str(),
            pod_uid: self.pod.uid.as_str(),
            service_account: self.service_account,
            secrets: &self.secrets,
        };
        let found = self.images.keyring.find(puller, repository).await;
        if !found.missing_secrets.is_empty() {
            let message = format!(
                "Unable to retrieve some image pull secrets ({}); attempting to pull the image may not succeed.",
                found.missing_secrets.join(", ")
            );
            self.warn("FailedToRetrieveImagePullSecret", message);
        }
        for problem in found.provider_problems {
            self.warn("FailedImageCredentialProvider", format!("Image credential provider {problem}"));
        }
        found.credentials
    }
}

impl Images for PodImages {
    async fn ensure_image(&self, request: ImageRequest<'_>) -> Result<ResolvedImage, ImageFailure> {
        let events = |kind: EventType, reason: &'static str, message: &str| {
            // Time for images is no fault of the node: the start of a pod is counted without it, too.
            match reason {
                "Pulling" => self.starts.pull_began(&request.pod.uid, request.image),
                "Pulled" => self.starts.image_is_there(&request.pod.uid, request.image),
                _ => {}
            }
            self.reporter.emit(match request.container {
                Some(target) => PodEvent::container(request.pod, target, kind, reason, message),
                None => PodEvent::pod(request.pod, kind, reason, message),
            });
        };
        // A handler would go along only with the gate RuntimeClassInImageCriApi, which is alpha.
        let annotations = request.object.metadata.annotations.clone().unwrap_or_default();
        let policy = match request.pull_policy {
            "" => None,
            policy => Some(policy),
        };
        let wanted = kubelet_images::ImageRequest {
            pod_uid: &request.pod.uid,
            image: request.image,
            policy: PullPolicy::of(policy, request.image),
            annotations: &annotations,
            sandbox_config: Some(request.sandbox_config),
        };
        let credentials = PullCredentials::of(self, &request);
        let ensure = self.manager.hold_image(wanted, &credentials, &events);
        match unhurried(ensure).await {
            Ok((image, hold)) => {
                keep(hold);
                let user = ImageUser { uid: image.user_id, username: image.user_name };
                Ok(ResolvedImage { image_ref: image.id, user })
            }
            Err(error) => {
                let_go();
                let back_off_until = error
                    .retry_at
                    .map(|at| SystemTime::now() + at.saturating_duration_since(tokio::time::Instant::now()));
                tracing::debug!(image = request.image, ?back_off_until, "no image: {error}");
                Err(ImageFailure { reason: error.reason.to_string(), message: error.message, back_off_until })
            }
        }
    }

    fn count_volumes(&self, counted: Counted) {
        self.manager.count_volumes(counted.requested, counted.mounts, counted.failed);
    }
}
