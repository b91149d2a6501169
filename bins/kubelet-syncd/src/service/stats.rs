//! `kubelet.syncd.v1.Stats`: disk figures that only the runtime has, for kubelet-evictiond, which holds no connection to
//! it (decision 24). Each call is one of the runtime, whose answer is checked for shape and passed on; who asks keeps it.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};

use bulkhead_cri::{CriClient, CriError, v1};
use bulkhead_ipc::syncd as api;
use bulkhead_ipc::syncd::stats_server::Stats;
use bulkhead_types::ContainerId;
use futures_util::{Stream, stream};
use tokio::sync::Semaphore;
use tonic::{Request, Response, Status};

type Answer<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// See the module. Cheap to clone.
#[derive(Debug, Clone)]
pub struct StatsApi {
    cri: Arc<OnceLock<CriClient>>,
    /// One question at a time: the runtime looks at every container for an answer.
    turn: Arc<Semaphore>,
}

impl Default for StatsApi {
    fn default() -> Self {
        StatsApi { cri: Arc::default(), turn: Arc::new(Semaphore::new(1)) }
    }
}

impl StatsApi {
    /// From here on calls are answered; before that nothing is known.
    pub fn set(&self, cri: CriClient) {
        // It is set once, at the start.
        let _ = self.cri.set(cri);
    }

    /// One call of the runtime, which may take as long as its other calls (`runtimeRequestTimeout`): with a thousand containers it
    /// takes seconds. The caller's own deadline ends it sooner.
    ///
    /// # Errors
    /// UNIMPLEMENTED: the runtime has no such call; UNAVAILABLE: it is not known.
    pub(super) async fn ask<R>(&self, call: impl AsyncFnOnce(&CriClient) -> Result<R, CriError>) -> Result<R, Status> {
        let cri = self.cri.get().ok_or_else(|| Status::unavailable("kubelet-syncd is starting"))?;
        let _turn = self.turn.acquire().await.map_err(|_| Status::unavailable("kubelet-syncd is ending"))?;
        call(cri).await.map_err(|error| match error.code {
            // For good, and no reason to ask again.
            tonic::Code::Unimplemented => Status::unimplemented(error.to_string()),
            _ => Status::unavailable(error.to_string()),
        })
    }
}

fn disk_usage(usage: &v1::FilesystemUsage) -> api::DiskUsage {
    api::DiskUsage {
        time_ms: usage.timestamp / 1_000_000,
        mountpoint: usage.fs_id.as_ref().map(|id| id.mountpoint.clone()).unwrap_or_default(),
        used_bytes: usage.used_bytes.as_ref().map(|bytes| bytes.value),
        inodes_used: usage.inodes_used.as_ref().map(|inodes| inodes.value),
    }
}

/// The writable layer of a container with a valid id, when the runtime tells of it.
fn layer(stats: &v1::ContainerStats) -> Option<api::WritableLayer> {
    let id = &stats.attributes.as_ref()?.id;
    ContainerId::parse(id).ok()?;
    Some(api::WritableLayer { container_id: id.clone(), usage: Some(disk_usage(stats.writable_layer.as_ref()?)) })
}

#[tonic::async_trait]
impl Stats for StatsApi {
    type WritableLayersStream = Answer<api::WritableLayer>;

    async fn writable_layers(
        &self,
        _: Request<api::WritableLayersRequest>,
    ) -> Result<Response<Self::WritableLayersStream>, Status> {
        let request = v1::ListContainerStatsRequest::default();
        let reply = self.ask(async |cri| cri.list_container_stats(request).await).await?;
        let layers: Vec<_> = reply.stats.iter().filter_map(layer).map(Ok).collect();
        Ok(Response::new(Box::pin(stream::iter(layers))))
    }

    async fn image_fs(&self, _: Request<api::ImageFsRequest>) -> Result<Response<api::ImageFsReply>, Status> {
        let reply = self.ask(async |cri| cri.image_fs_info(v1::ImageFsInfoRequest {}).await).await?;
        Ok(Response::new(api::ImageFsReply {
            images: reply.image_filesystems.first().map(disk_usage),
            containers: reply.container_filesystems.first().map(disk_usage),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_of_containers_with_an_id() {
        let usage = v1::FilesystemUsage {
            timestamp: 1_795_222_061_500_000_000,
            fs_id: Some(v1::FilesystemIdentifier { mountpoint: "/layers".into() }),
            used_bytes: Some(v1::UInt64Value { value: 32_768 }),
            inodes_used: None,
        };
        let stats = |id: &str, layer| v1::ContainerStats {
            attributes: Some(v1::ContainerAttributes { id: id.into(), ..Default::default() }),
            writable_layer: layer,
            ..Default::default()
        };
        let told = layer(&stats("c1", Some(usage.clone()))).unwrap();
        let told_usage = told.usage.unwrap();
        assert_eq!((told.container_id.as_str(), told_usage.time_ms), ("c1", 1_795_222_061_500));
        assert_eq!((told_usage.used_bytes, told_usage.inodes_used), (Some(32_768), None));
        assert_eq!(layer(&stats("../c1", Some(usage))), None);
        assert_eq!(layer(&stats("c1", None)), None, "a runtime that does not say is not a layer of 0 bytes");
    }

    #[tokio::test]
    async fn before_the_start_nothing_is_known() {
        let status = StatsApi::default().image_fs(Request::new(api::ImageFsRequest {})).await.unwrap_err();
        assert_eq!(status.code(), tonic::Code::Unavailable);
    }
}
