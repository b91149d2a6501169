//! `kubelet.evictiond.v1.Images`: what garbage collection knows of each image, and what it would do now, for the operator. Nothing is
//! decided or noted by it.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};

use bulkhead_ipc::evictiond::images_part::Part;
use bulkhead_ipc::evictiond::images_server::Images;
use bulkhead_ipc::evictiond::{ImageCollection, ImagesPart, ListImagesRequest};
use futures_util::Stream;
use tonic::{Request, Response, Status};

use super::collector::{Collector, now_ms};
use super::fates::{Moment, fates};
use super::store::{ImageStore as _, SyncdImages};

/// See the module. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct ImagesApi {
    collector: Arc<OnceLock<Arc<Collector<SyncdImages>>>>,
}

impl ImagesApi {
    /// From here on calls are answered.
    pub fn set(&self, collector: Arc<Collector<SyncdImages>>) {
        // It is set once, at the start.
        let _ = self.collector.set(collector);
    }
}

#[allow(clippy::cast_precision_loss, reason = "ages are shown")]
fn seconds(milliseconds: i64) -> f64 {
    milliseconds.max(0) as f64 / 1000.0
}

#[tonic::async_trait]
impl Images for ImagesApi {
    type ListStream = Pin<Box<dyn Stream<Item = Result<ImagesPart, Status>> + Send>>;

    async fn list(&self, _: Request<ListImagesRequest>) -> Result<Response<Self::ListStream>, Status> {
        let collector = self.collector.get().ok_or_else(|| Status::unavailable("kubelet-evictiond is starting"))?;
        let (images, fs) = tokio::join!(collector.store().list(), collector.store().image_fs());
        let images = images?;
        let (policy, shown, now_ms) = (collector.policy(), collector.shown(), now_ms());
        let at = Moment { now_ms, began_ms: collector.began_ms() };
        let percent = |percent: i64| u32::try_from(percent).unwrap_or(0);
        let head = ImageCollection {
            capacity: fs.map(|fs| fs.capacity),
            available: fs.map(|fs| fs.available),
            high_threshold_percent: percent(policy.high_percent),
            low_threshold_percent: percent(policy.low_percent),
            minimum_age_seconds: seconds(policy.min_age_ms),
            maximum_age_seconds: seconds(policy.max_age_ms),
            disabled: policy.is_disabled(),
            last_round_seconds: shown.last_round_ms.map(|at| seconds(now_ms.saturating_sub(at))),
            next_round_seconds: seconds(shown.next_round_ms.saturating_sub(now_ms)),
            last_outcome: shown.last_outcome,
        };
        let states = fates(&images, &shown.ledger, policy, fs, at).into_iter().map(Part::Image);
        let parts = std::iter::once(Part::Collection(head)).chain(states);
        let parts: Vec<_> = parts.map(|part| Ok(ImagesPart { part: Some(part) })).collect();
        Ok(Response::new(Box::pin(futures_util::stream::iter(parts))))
    }
}
