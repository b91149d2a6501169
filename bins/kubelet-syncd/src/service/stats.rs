//! `kubelet.syncd.v1.Stats`: figures that only the runtime has, of disks and of containers without a cgroup on this machine, for
//! kubelet-evictiond, which holds no connection to it (decision 24). Each call is one of the runtime, whose answer is checked for
//! shape and passed on; who asks keeps it.

use std::pin::Pin;
use std::sync::Arc;

use bulkhead_cri::{CriClient, CriError, v1};
use bulkhead_ipc::syncd as api;
use bulkhead_ipc::syncd::stats_server::Stats;
use futures_util::{Stream, stream};
use tokio::sync::Semaphore;
use tonic::{Request, Response, Status};

use super::late::Late;
use super::runtime_stats;

type Answer<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// See the module. Cheap to clone.
#[derive(Debug, Clone)]
pub struct StatsApi {
    cri: Late<CriClient>,
    /// One question at a time: the runtime looks at every container for an answer.
    turn: Arc<Semaphore>,
}

impl Default for StatsApi {
    fn default() -> Self {
        StatsApi { cri: Late::default(), turn: Arc::new(Semaphore::new(1)) }
    }
}

impl StatsApi {
    /// From here on calls are answered; before that nothing is known.
    pub fn set(&self, cri: CriClient) {
        self.cri.set(cri);
    }

    /// One call of the runtime, which may take as long as its other calls (`runtimeRequestTimeout`): with a thousand containers it
    /// takes seconds. The caller's own deadline ends it sooner.
    ///
    /// # Errors
    /// UNIMPLEMENTED: the runtime has no such call; UNAVAILABLE: it is not known.
    pub(super) async fn ask<R>(&self, call: impl AsyncFnOnce(&CriClient) -> Result<R, CriError>) -> Result<R, Status> {
        let cri = self.cri.get()?;
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

/// A container with a valid id, when the runtime tells anything of it.
fn layer(stats: v1::ContainerStats) -> Option<api::WritableLayer> {
    let usage = stats.writable_layer.as_ref().map(disk_usage);
    let api::RuntimeContainer { id, cpu, memory, swap, io } = runtime_stats::container(stats)?;
    let nothing = usage.is_none() && cpu.is_none() && memory.is_none() && swap.is_none() && io.is_none();
    (!nothing).then_some(api::WritableLayer { container_id: id, usage, cpu, memory, swap, io })
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
        let layers: Vec<_> = reply.stats.into_iter().filter_map(layer).map(Ok).collect();
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
    fn what_is_told_of_containers_with_an_id() {
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
        let told = layer(stats("c1", Some(usage.clone()))).unwrap();
        let told_usage = told.usage.unwrap();
        assert_eq!((told.container_id.as_str(), told_usage.time_ms), ("c1", 1_795_222_061_500));
        assert_eq!((told_usage.used_bytes, told_usage.inodes_used), (Some(32_768), None));
        assert_eq!((told.cpu, told.memory, told.swap, told.io), (None, None, None, None));
        assert_eq!(layer(stats("../c1", Some(usage))), None);
        assert_eq!(layer(stats("c1", None)), None, "a runtime that does not say is not a layer of 0 bytes");
        let number = |value| Some(v1::UInt64Value { value });
        let measured = v1::ContainerStats {
            cpu: Some(v1::CpuUsage { timestamp: 5_000_000, usage_core_nano_seconds: number(7), ..Default::default() }),
            memory: Some(v1::MemoryUsage { working_set_bytes: number(8), rss_bytes: number(6), ..Default::default() }),
            swap: Some(v1::SwapUsage { swap_usage_bytes: number(9), ..Default::default() }),
            io: Some(v1::IoUsage::default()),
            ..stats("c1", None)
        };
        let told = layer(measured).unwrap();
        assert_eq!(told.usage, None);
        let cpu = told.cpu.unwrap();
        assert_eq!((cpu.time_ms, cpu.usage_core_nano_seconds, cpu.usage_nano_cores), (5, Some(7), None));
        let memory = told.memory.unwrap();
        assert_eq!((memory.working_set, memory.rss, memory.usage), (Some(8), Some(6), None));
        assert_eq!((told.swap.unwrap().usage, told.io.unwrap().psi), (Some(9), None));
    }

    #[tokio::test]
    async fn before_the_start_nothing_is_known() {
        let status = StatsApi::default().image_fs(Request::new(api::ImageFsRequest {})).await.unwrap_err();
        assert_eq!(status.code(), tonic::Code::Unavailable);
    }
}
