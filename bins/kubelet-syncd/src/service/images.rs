//! `kubelet.syncd.v1.Images`: what garbage collection is told of images, and what it may do with them.

use std::sync::Arc;

use bulkhead_ipc::syncd as api;
use bulkhead_ipc::syncd::images_server::Images;
use tonic::{Request, Response, Status};

use super::api::Answer;
use super::late::Late;
use crate::sync_loop::image_store::{ImageStore, ImageStoreError};

/// See the module. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct ImagesApi {
    store: Late<Arc<ImageStore>>,
}

impl ImagesApi {
    /// From here on calls are answered.
    pub fn set(&self, store: ImageStore) {
        self.store.set(Arc::new(store));
    }
}

fn refused(error: &ImageStoreError) -> Status {
    match error {
        ImageStoreError::SourcesNotReady | ImageStoreError::Runtime(_) => Status::unavailable(error.to_string()),
        ImageStoreError::BadRequest { .. } => Status::invalid_argument(error.to_string()),
    }
}

#[tonic::async_trait]
impl Images for ImagesApi {
    type ListStream = Answer<api::StoredImage>;

    async fn list(&self, _: Request<api::ListImagesRequest>) -> Result<Response<Self::ListStream>, Status> {
        let images = self.store.get()?.list().await.map_err(|error| refused(&error))?;
        Ok(Response::new(Box::pin(futures_util::stream::iter(images.into_iter().map(Ok)))))
    }

    type PullsStream = Answer<api::ImagePull>;

    async fn pulls(&self, _: Request<api::ListPullsRequest>) -> Result<Response<Self::PullsStream>, Status> {
        let pulls = self.store.get()?.pulls();
        Ok(Response::new(Box::pin(futures_util::stream::iter(pulls.into_iter().map(Ok)))))
    }

    async fn remove(
        &self,
        request: Request<api::RemoveImageRequest>,
    ) -> Result<Response<api::RemoveImageReply>, Status> {
        let outcome = self.store.get()?.remove(request.into_inner()).await.map_err(|error| refused(&error))?;
        Ok(Response::new(api::RemoveImageReply { outcome: outcome.into() }))
    }

    async fn report(
        &self,
        request: Request<api::ReportImageCollectionRequest>,
    ) -> Result<Response<api::ReportImageCollectionReply>, Status> {
        self.store.get()?.report(&request.into_inner());
        Ok(Response::new(api::ReportImageCollectionReply {}))
    }
}
