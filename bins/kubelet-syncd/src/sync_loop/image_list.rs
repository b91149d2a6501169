//! Which images the node has, as its status names them: read when one was pulled or removed, and now and then.

use std::sync::Arc;
use std::time::Duration;

use bulkhead_cri::v1;
use bulkhead_ipc::syncd as api;
use kubelet_images::ImageService;
use tokio::sync::{Notify, watch};

use super::runtime_health::RuntimeHealth;
use crate::hub::EventRing;

/// Pause after an answer: others may pull and remove images, too (upstream `pkg/kubelet/images/image_gc_manager.go`, Start).
const PAUSE: Duration = Duration::from_secs(30);
const RETRY: Duration = Duration::from_secs(10);
/// Pulls are gathered for so long before the list is read again.
const GATHER: Duration = Duration::from_secs(1);
/// Names of one image (upstream MaxNamesPerImageInNodeStatus).
const NAMES_MAX: usize = 5;
/// Events looked through at a time.
const EVENT_BATCH: usize = 64;

/// Largest first, at most `max` (below zero: all), each with its digests and then its tags (upstream
/// `pkg/kubelet/nodestatus`, Images). Pure.
pub fn node_images(images: &[v1::Image], max: i32) -> Vec<api::NodeImage> {
    let mut sorted: Vec<&v1::Image> = images.iter().collect();
    sorted.sort_by(|a, b| b.size.cmp(&a.size).then_with(|| b.id.cmp(&a.id)));
    let count = usize::try_from(max).unwrap_or(usize::MAX);
    let node_image = |image: &v1::Image| api::NodeImage {
        names: image.repo_digests.iter().chain(&image.repo_tags).take(NAMES_MAX).cloned().collect(),
        size_bytes: i64::try_from(image.size).unwrap_or(i64::MAX),
    };
    sorted.into_iter().take(count).map(node_image).collect()
}

/// Reads the list for ever. A pull is known by its event; `removed`: garbage collection has removed one.
pub async fn follow<S: ImageService>(
    service: S,
    mut health: watch::Receiver<RuntimeHealth>,
    ring: Arc<EventRing>,
    removed: Arc<Notify>,
    max: i32,
    images: watch::Sender<Arc<[api::NodeImage]>>,
) {
    let mut events = ring.watch();
    let mut position = 0;
    loop {
        if health.wait_for(|health| health.ready).await.is_err() {
            return;
        }
        let pause = match service.list_images().await {
            Ok(reply) => {
                let now: Arc<[api::NodeImage]> = node_images(&reply.images, max).into();
                images.send_if_modified(|known| {
                    let changed = *known != now;
                    if changed {
                        *known = now;
                    }
                    changed
                });
                PAUSE
            }
            Err(error) => {
                tracing::debug!(%error, "failed to list images");
                RETRY
            }
        };
        tokio::select! {
            () = pulled(&ring, &mut events, &mut position) => {}
            () = removed.notified() => {}
            () = tokio::time::sleep(pause) => {}
        }
        tokio::time::sleep(GATHER).await;
    }
}

/// Resolves when an image has been pulled.
async fn pulled(ring: &EventRing, events: &mut watch::Receiver<u64>, position: &mut u64) {
    loop {
        events.borrow_and_update();
        loop {
            let batch = ring.after(*position, EVENT_BATCH);
            let Some(last) = batch.last() else { break };
            *position = last.cursor.map_or(*position, |c| c.seq);
            if batch.iter().any(|event| event.reason == "Pulled" && event.message.starts_with("Successfully pulled")) {
                return;
            }
        }
        if events.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bulkhead_cri::CriError;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn largest_first_digests_before_tags() {
        let image = |id: &str, size, digests: &[&str], tags: &[&str]| v1::Image {
            id: id.into(),
            size,
            repo_digests: digests.iter().map(|d| (*d).to_owned()).collect(),
            repo_tags: tags.iter().map(|t| (*t).to_owned()).collect(),
            ..Default::default()
        };
        let images = [
            image("a", 1, &[], &["one"]),
            image("b", 3, &["d1", "d2", "d3"], &["t1", "t2", "t3"]),
            image("c", 2, &[], &[]),
            image("d", 2, &[], &["two"]),
        ];
        let shown = |max| -> Vec<String> {
            node_images(&images, max).into_iter().map(|i| format!("{} {}", i.size_bytes, i.names.join(","))).collect()
        };
        assert_eq!(shown(-1), ["3 d1,d2,d3,t1,t2", "2 two", "2 ", "1 one"]);
        assert_eq!(shown(2), ["3 d1,d2,d3,t1,t2", "2 two"]);
        assert!(shown(0).is_empty());
    }

    /// A runtime whose images others pull and remove: one more at each look.
    struct Growing(AtomicUsize);

    impl ImageService for Growing {
        async fn image_status(&self, _: v1::ImageStatusRequest) -> Result<v1::ImageStatusResponse, CriError> {
            std::future::pending().await
        }

        async fn pull_image(&self, _: v1::PullImageRequest) -> Result<v1::PullImageResponse, CriError> {
            std::future::pending().await
        }

        async fn list_images(&self) -> Result<v1::ListImagesResponse, CriError> {
            let images = vec![v1::Image::default(); self.0.fetch_add(1, Ordering::Relaxed) + 1];
            Ok(v1::ListImagesResponse { images })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_others_do_is_seen_within_half_a_minute() {
        let (_health, ready) = watch::channel(RuntimeHealth { ready: true, ..RuntimeHealth::default() });
        let (sender, images) = watch::channel(Arc::from([]));
        let ring = Arc::new(EventRing::new(7));
        tokio::spawn(follow(Growing(AtomicUsize::new(0)), ready, ring, Arc::new(Notify::new()), -1, sender));
        let mut seen = Vec::new();
        for seconds in [1, 28, 4] {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            seen.push(images.borrow().len());
        }
        assert_eq!(seen, [1, 1, 2]);
    }

    #[tokio::test]
    async fn only_a_real_pull_counts() {
        let ring = EventRing::new(7);
        let push = |message: &str| {
            let event = api::Event { reason: "Pulled".into(), message: message.into(), ..api::Event::default() };
            ring.push(event);
        };
        let (mut events, mut position) = (ring.watch(), 0);
        push("Container image \"i\" already present on machine");
        let waits = tokio::time::timeout(Duration::from_millis(20), pulled(&ring, &mut events, &mut position)).await;
        assert!(waits.is_err());
        push("Successfully pulled image \"i\" in 1s (1s including waiting). Image size: 5 bytes.");
        pulled(&ring, &mut events, &mut position).await;
        assert_eq!(position, 2);
    }
}
