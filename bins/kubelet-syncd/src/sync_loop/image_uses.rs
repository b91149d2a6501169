//! Who uses an image: containers that run or are dead, image volumes, and starts (upstream `pkg/kubelet/images/image_gc_manager.go`
//! detectImages). Pure.

use std::collections::{BTreeMap, HashMap};

use bulkhead_cri::v1;
use bulkhead_ipc::syncd::{ImageUse, ImageUseKind, StoredImage};
use kubelet_model::pod::labels;

/// Names and users of an image that are told.
const NAMES_MAX: usize = 16;
const USERS_MAX: usize = 8;

/// Images that containers mount as volumes, by the container's id.
pub type Volumes = BTreeMap<String, Vec<String>>;

/// What containers refer to, each reference with the users of it.
#[derive(Debug)]
pub struct Users<'a>(HashMap<&'a str, Vec<ImageUse>>);

impl<'a> Users<'a> {
    pub fn of(containers: &'a [v1::Container], volumes: &'a Volumes) -> Self {
        let mut users: HashMap<&str, Vec<ImageUse>> = HashMap::new();
        for container in containers {
            let label = |name: &str| container.labels.get(name).cloned().unwrap_or_default();
            let by = |kind: ImageUseKind| ImageUse {
                kind: kind.into(),
                namespace: label(labels::POD_NAMESPACE),
                pod: label(labels::POD_NAME),
                container: label(labels::CONTAINER_NAME),
                running: container.state == v1::ContainerState::ContainerRunning as i32,
            };
            // Runtimes differ in which of these is the id: each of them counts.
            let mut references = vec![container.image_id.as_str(), container.image_ref.as_str()];
            references.extend(container.image.as_ref().map(|image| image.image.as_str()));
            references.retain(|reference| !reference.is_empty());
            references.sort_unstable();
            references.dedup();
            for reference in references {
                users.entry(reference).or_default().push(by(ImageUseKind::Container));
            }
            for image in volumes.get(&container.id).into_iter().flatten() {
                users.entry(image).or_default().push(by(ImageUseKind::Volume));
            }
        }
        Users(users)
    }

    /// Users of an image by its id, its tags or its digests. Each container and each volume counts once.
    pub fn of_image(&self, image: &v1::Image) -> Vec<ImageUse> {
        let mut found: Vec<ImageUse> = Vec::new();
        for reference in std::iter::once(&image.id).chain(names(image)) {
            for user in self.0.get(reference.as_str()).into_iter().flatten() {
                if !found.contains(user) {
                    found.push(user.clone());
                }
            }
        }
        // Who runs is named before who has ended.
        found.sort_by_key(|user| !user.running);
        found
    }
}

/// Tags, then digests.
pub fn names(image: &v1::Image) -> impl Iterator<Item = &String> {
    image.repo_tags.iter().chain(&image.repo_digests)
}

/// As others are told of it. `pinned`: also where the runtime does not say so itself.
pub fn stored(image: &v1::Image, users: &Users<'_>, is_held: bool, pinned: bool, last_used_ms: u64) -> StoredImage {
    let mut used_by = users.of_image(image);
    if is_held {
        used_by.insert(0, ImageUse { kind: ImageUseKind::Start.into(), ..ImageUse::default() });
    }
    let uses = u32::try_from(used_by.len()).unwrap_or(u32::MAX);
    used_by.truncate(USERS_MAX);
    StoredImage {
        id: image.id.clone(),
        names: names(image).take(NAMES_MAX).cloned().collect(),
        size_bytes: image.size,
        pinned,
        used_by,
        uses,
        last_used_ms,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(id: &str, tags: &[&str]) -> v1::Image {
        v1::Image { id: id.into(), repo_tags: tags.iter().map(|tag| (*tag).into()).collect(), ..Default::default() }
    }

    fn container(id: &str, pod: &str, image_ref: &str, running: bool) -> v1::Container {
        let state = if running { v1::ContainerState::ContainerRunning } else { v1::ContainerState::ContainerExited };
        v1::Container {
            id: id.into(),
            image: Some(v1::ImageSpec { image: image_ref.into(), ..Default::default() }),
            image_ref: image_ref.into(),
            state: state.into(),
            labels: [(labels::POD_NAME.to_owned(), pod.to_owned())].into(),
            ..Default::default()
        }
    }

    #[test]
    fn containers_dead_or_alive_and_volumes_use_images() {
        let mut newer = container("c3", "newer", "docker.io/library/web@sha256:9", true);
        newer.image_id = "sha256:a".into();
        let containers = [container("c1", "dead", "sha256:a", false), container("c2", "mounts", "web:1", true), newer];
        let volumes = Volumes::from([("c2".to_owned(), vec!["sha256:v".to_owned()])]);
        let users = Users::of(&containers, &volumes);
        let of = |id: &str, tags: &[&str]| {
            let told = stored(&image(id, tags), &users, false, false, 0);
            told.used_by.into_iter().map(|user| user.pod).collect::<Vec<_>>()
        };
        assert_eq!(of("sha256:a", &[]), ["newer", "dead"], "who runs first");
        assert_eq!(of("sha256:b", &["web:1"]), ["mounts"], "by its tag");
        assert_eq!(of("sha256:v", &[]), ["mounts"]);
        assert!(of("sha256:c", &["web:2"]).is_empty());
        let held = stored(&image("sha256:c", &["web:2"]), &users, true, true, 9);
        assert_eq!((held.uses, held.used_by[0].kind(), held.pinned), (1, ImageUseKind::Start, true));
    }

    #[test]
    fn many_users_are_counted_and_some_named() {
        let containers: Vec<_> =
            (0..40).map(|n| container(&format!("c{n}"), &format!("p{n}"), "sha256:a", true)).collect();
        let volumes = Volumes::new();
        let told = stored(&image("sha256:a", &["t"; 40]), &Users::of(&containers, &volumes), false, false, 0);
        assert_eq!((told.uses, told.used_by.len(), told.names.len()), (40, USERS_MAX, NAMES_MAX));
    }
}
