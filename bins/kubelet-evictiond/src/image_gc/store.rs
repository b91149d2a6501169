//! The questions to kubelet-syncd about images, and to kubelet-walker about their file system. Each has a deadline.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_ipc::MAX_MESSAGE_BYTES;
use bulkhead_ipc::client::Link;
use bulkhead_ipc::context::CallContext;
use bulkhead_ipc::syncd::images_client::ImagesClient;
use bulkhead_ipc::syncd::stats_client::StatsClient;
use bulkhead_ipc::syncd::{
    ImageFsRequest, ListImagesRequest, RemoveImageOutcome, RemoveImageRequest, ReportImageCollectionRequest,
    StoredImage,
};
use tokio::sync::Mutex;
use tonic::Status;
use tonic::transport::Channel;

use super::passes::ImageFs;
use crate::ask_syncd::{collect_at_most, in_time};
use crate::disk::FileSystem;
use crate::question::Question;
use crate::walker::Walker;

const DEADLINE: Duration = Duration::from_secs(10);
/// The runtime's own deadline is two minutes where the configuration says nothing else.
const REMOVE_DEADLINE: Duration = Duration::from_secs(150);
/// A file system that takes longer to say how full it is says nothing.
const FILE_SYSTEM_PATIENCE: Duration = Duration::from_secs(5);
/// More images than a node can have; the rest of a longer list is cut.
const MAX_IMAGES: usize = 20_000;

/// Where images come from and go to; the tests have their own.
pub trait ImageStore: Send + Sync + 'static {
    fn list(&self) -> impl Future<Output = Result<Vec<StoredImage>, Status>> + Send;
    fn remove(&self, request: RemoveImageRequest) -> impl Future<Output = Result<RemoveImageOutcome, Status>> + Send;
    fn report(&self, request: ReportImageCollectionRequest) -> impl Future<Output = Result<(), Status>> + Send;
    /// `None`: it is not known now.
    fn image_fs(&self) -> impl Future<Output = Option<ImageFs>> + Send;
}

/// kubelet-syncd.
#[derive(Debug, Clone)]
pub struct SyncdImages {
    link: Link,
    walker: Walker,
    reading: Arc<Reading>,
}

impl SyncdImages {
    pub fn new(link: Link, walker: Walker) -> Self {
        SyncdImages { link, walker, reading: Arc::default() }
    }

    fn client(&self) -> ImagesClient<Channel> {
        ImagesClient::new(self.link.channel()).max_decoding_message_size(MAX_MESSAGE_BYTES)
    }
}

/// The reading of the images' file system. There is one at a time: whoever reads there may hang for ever.
#[derive(Debug, Default)]
struct Reading(Mutex<Question<(String, Option<FileSystem>)>>);

impl Reading {
    /// `None`: it is not known, or not in time.
    async fn of<F>(&self, folder: String, read: impl FnOnce(String) -> F) -> Option<FileSystem>
    where
        F: Future<Output = Option<FileSystem>> + Send + 'static,
    {
        let mut question = self.0.lock().await;
        // What came when nobody waited for it any more may be old.
        drop(question.answer(|| None::<std::future::Ready<_>>, Duration::ZERO).await);
        let reading = read(folder.clone());
        let (of, found) = question
            .answer(
                || {
                    let folder = folder.clone();
                    Some(async move { (folder, reading.await) })
                },
                FILE_SYSTEM_PATIENCE,
            )
            .await?;
        found.filter(|_| of == folder)
    }
}

impl ImageStore for SyncdImages {
    async fn list(&self) -> Result<Vec<StoredImage>, Status> {
        in_time(DEADLINE, async {
            let request = CallContext::new().request(ListImagesRequest {}, DEADLINE);
            collect_at_most(self.client().list(request).await?.into_inner(), MAX_IMAGES, "images").await
        })
        .await
    }

    async fn remove(&self, request: RemoveImageRequest) -> Result<RemoveImageOutcome, Status> {
        in_time(REMOVE_DEADLINE, async {
            let request = CallContext::new().request(request, REMOVE_DEADLINE);
            Ok(self.client().remove(request).await?.into_inner().outcome())
        })
        .await
    }

    async fn report(&self, request: ReportImageCollectionRequest) -> Result<(), Status> {
        in_time(DEADLINE, async { self.client().report(CallContext::new().request(request, DEADLINE)).await.map(drop) })
            .await
    }

    async fn image_fs(&self) -> Option<ImageFs> {
        let told = in_time(DEADLINE, async {
            let mut client = StatsClient::new(self.link.channel()).max_decoding_message_size(MAX_MESSAGE_BYTES);
            Ok(client.image_fs(CallContext::new().request(ImageFsRequest {}, DEADLINE)).await?.into_inner())
        });
        let folder = told.await.ok()?.images?.mountpoint;
        if !folder.starts_with('/') {
            return None;
        }
        let walker = self.walker.clone();
        let found = self.reading.of(folder, |folder| async move { walker.file_system(folder).await }).await?;
        let number = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        Some(ImageFs { capacity: number(found.capacity), available: number(found.available) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::question::OVERDUE_PATIENCE;

    #[tokio::test(start_paused = true)]
    async fn a_file_system_that_is_silent_is_waited_for_once_and_for_a_while() {
        let reading = Reading::default();
        let full = |available| Some(FileSystem { available, ..FileSystem::default() });
        let began = tokio::time::Instant::now();
        let (tell, told) = tokio::sync::oneshot::channel();
        let silent = reading.of("/images".into(), |_| async move { told.await.unwrap_or_default() });
        assert_eq!((silent.await, began.elapsed()), (None, FILE_SYSTEM_PATIENCE));
        let beside = || -> std::future::Ready<Option<FileSystem>> { panic!("a second one would hang, too") };
        let second = reading.of("/images".into(), |_| async move { beside().await });
        assert_eq!((second.await, began.elapsed()), (None, FILE_SYSTEM_PATIENCE + OVERDUE_PATIENCE));
        tell.send(full(1)).unwrap();
        tokio::task::yield_now().await;
        let now = reading.of("/images".into(), |_| std::future::ready(full(2)));
        assert_eq!(now.await, full(2), "what came late is old");
    }
}
