//! Image volumes: the images are made present as those of containers are, and the runtime mounts them; on this node there
//! is no folder of theirs (upstream `kuberuntime_manager.go` getImageVolumes, `pkg/volume/image`).

use std::collections::BTreeMap;

use bulkhead_cri::v1;
use kubelet_model::v1::{Container, Pod};

use super::ports::{ImageFailure, ImageRequest, Images};
use kubelet_model::pod::spec::PodIdentity;

/// What the runtime's error begins with where it was the volume that it could not mount (cri-api `pkg/errors`).
pub const MOUNT_FAILED: &str = "ImageVolumeMountFailed";

/// What the runtime is to mount, by the volume's name.
pub type ImageVolumes = BTreeMap<String, v1::ImageSpec>;

/// The same of a whole pod, or why an image is not there.
pub type Pulled = BTreeMap<String, Result<v1::ImageSpec, ImageFailure>>;

/// Makes the images of all of the pod's image volumes present, one after another, also of those that no container
/// mounts, as upstream does. What fails is said when a container wants it.
pub async fn pull(
    images: &impl Images,
    pod: &Pod,
    identity: &PodIdentity,
    sandbox_config: &v1::PodSandboxConfig,
) -> Pulled {
    let mut pulled = Pulled::new();
    for volume in pod.spec.iter().flat_map(|s| s.volumes.iter().flatten()) {
        let Some(source) = &volume.image else { continue };
        let reference = source.reference.as_deref().unwrap_or_default();
        let request = ImageRequest {
            pod: identity,
            container: None,
            image: reference,
            pull_policy: source.pull_policy.as_deref().unwrap_or_default(),
            sandbox_config,
            object: pod,
        };
        let outcome = images.ensure_image(request).await.map(|image| v1::ImageSpec {
            image: image.image_ref,
            user_specified_image: reference.to_owned(),
            annotations: pod.metadata.annotations.clone().unwrap_or_default(),
            // A handler is given only with the gate RuntimeClassInImageCriApi, which is alpha.
            ..Default::default()
        });
        pulled.insert(volume.name.clone(), outcome);
    }
    pulled
}

/// Those that a container mounts.
///
/// # Errors
/// Each that is not there; the last one is what the container waits for.
pub fn of_container(pulled: &Pulled, container: &Container) -> Result<ImageVolumes, Vec<ImageFailure>> {
    let (mut found, mut failures) = (ImageVolumes::new(), Vec::new());
    for mount in container.volume_mounts.iter().flatten() {
        match pulled.get(&mount.name) {
            Some(Ok(spec)) => {
                found.insert(mount.name.clone(), spec.clone());
            }
            Some(Err(failure)) => failures.push(failure.clone()),
            None => {}
        }
    }
    if failures.is_empty() { Ok(found) } else { Err(failures) }
}

/// What came of a start, for the counters of image volumes: volumes that were asked for, mounts of them, and whether the
/// runtime said that it could not mount one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counted {
    pub requested: usize,
    pub mounts: usize,
    pub failed: bool,
}

/// `error`: reason and message of a start that failed.
pub fn count(volumes: &ImageVolumes, container: &Container, error: Option<(&str, &str)>) -> Counted {
    let mounts = container.volume_mounts.iter().flatten().filter(|m| volumes.contains_key(&m.name)).count();
    let failed = error.is_some_and(|(reason, text)| reason == "CreateContainerError" && text.starts_with(MOUNT_FAILED));
    Counted { requested: volumes.len(), mounts, failed }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_container_gets_and_what_is_counted() {
        let failure =
            |text: &str| ImageFailure { reason: "ErrImagePull".into(), message: text.into(), back_off_until: None };
        let spec = |image: &str| v1::ImageSpec { image: image.into(), ..Default::default() };
        let pulled = Pulled::from([
            ("a".to_owned(), Ok(spec("sha256:a"))),
            ("b".to_owned(), Err(failure("one"))),
            ("c".to_owned(), Err(failure("two"))),
        ]);
        let container = |mounts: &[&str]| -> Container {
            let mounts: Vec<_> =
                mounts.iter().map(|name| serde_json::json!({"name": name, "mountPath": "/m"})).collect();
            serde_json::from_value(serde_json::json!({"name": "c", "volumeMounts": mounts})).unwrap()
        };
        let twice = container(&["a", "other", "a"]);
        let volumes = of_container(&pulled, &twice).unwrap();
        assert_eq!(volumes, ImageVolumes::from([("a".to_owned(), spec("sha256:a"))]));
        assert_eq!(of_container(&pulled, &container(&[])), Ok(ImageVolumes::new()));
        assert_eq!(of_container(&pulled, &container(&["c", "a", "b"])), Err(vec![failure("two"), failure("one")]));
        let counted = |failed| Counted { requested: 1, mounts: 2, failed };
        assert_eq!(count(&volumes, &twice, None), counted(false));
        assert_eq!(count(&volumes, &twice, Some(("RunContainerError", "ImageVolumeMountFailed: x"))), counted(false));
        assert_eq!(count(&volumes, &twice, Some(("CreateContainerError", "other"))), counted(false));
        assert_eq!(count(&volumes, &twice, Some(("CreateContainerError", "ImageVolumeMountFailed: x"))), counted(true));
    }
}
