//! `kubelet.syncd.v1.Storage`: what is to be written, what came of it, and which plugins there are.

use bulkhead_ipc::syncd as api;
use bulkhead_ipc::syncd::storage_server::Storage;
use bulkhead_types::Epoch;
use futures_util::StreamExt as _;
use kubelet_volume_manager::statistics::{Statistics, VolumeUsage};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::api::Answer;
use super::late::Late;
use crate::plugin_manager::PluginTable;
use crate::storage_writes::StorageWrites;

/// See the module. Cheap to clone.
#[derive(Debug, Clone)]
pub struct StorageApi {
    pub epoch: Epoch,
    pub writes: StorageWrites,
    pub plugins: Late<PluginTable>,
    /// Of volumes, once their manager has begun.
    pub statistics: Late<Statistics>,
    /// Ends the streams, which never end by themselves.
    pub stop: CancellationToken,
}

#[tonic::async_trait]
impl Storage for StorageApi {
    type WatchWritesStream = Answer<api::StorageWrite>;

    async fn watch_writes(
        &self,
        _: Request<api::WatchWritesRequest>,
    ) -> Result<Response<Self::WatchWritesStream>, Status> {
        let epoch = self.epoch.to_string();
        let start = (self.writes.clone(), self.writes.watch(), 0, self.stop.clone());
        let stream = futures_util::stream::unfold(start, move |(writes, mut changed, position, stop)| {
            let epoch = epoch.clone();
            async move {
                loop {
                    changed.borrow_and_update();
                    if let Some(mut write) = writes.after(position) {
                        let position = write.sequence;
                        write.epoch = epoch;
                        return Some((Ok(write), (writes, changed, position, stop)));
                    }
                    tokio::select! {
                        told = changed.changed() => told.ok()?,
                        () = stop.cancelled() => return None,
                    }
                }
            }
        });
        Ok(Response::new(Box::pin(stream)))
    }

    async fn acknowledge(
        &self,
        request: Request<api::AcknowledgeRequest>,
    ) -> Result<Response<api::AcknowledgeReply>, Status> {
        let answer = request.into_inner();
        if answer.epoch != self.epoch.to_string() {
            return Err(Status::failed_precondition("epoch: another life of kubelet-syncd wished for that"));
        }
        self.writes.acknowledge(&answer);
        Ok(Response::new(api::AcknowledgeReply {}))
    }

    type VolumeUsagesStream = Answer<api::VolumeUsage>;

    async fn volume_usages(
        &self,
        _: Request<api::VolumeUsagesRequest>,
    ) -> Result<Response<Self::VolumeUsagesStream>, Status> {
        // None would say that there are no volumes.
        let statistics = self.statistics.get()?;
        Ok(Response::new(Box::pin(statistics.all().map(|told| Ok(usage(told))))))
    }

    type ListPluginsStream = Answer<api::Plugin>;

    async fn list_plugins(
        &self,
        _: Request<api::ListPluginsRequest>,
    ) -> Result<Response<Self::ListPluginsStream>, Status> {
        let table = self.plugins.get()?;
        let plugins = table.list().into_iter().map(Ok);
        Ok(Response::new(Box::pin(futures_util::stream::iter(plugins))))
    }
}

fn usage(told: VolumeUsage) -> api::VolumeUsage {
    let figures = told.usage.unwrap_or_default();
    let (claim_namespace, claim_name) = told.claim.map(|claim| (claim.namespace, claim.name)).unwrap_or_default();
    api::VolumeUsage {
        pod_uid: told.pod.to_string(),
        volume: told.volume,
        claim_namespace,
        claim_name,
        available_bytes: figures.available,
        capacity_bytes: figures.capacity,
        used_bytes: figures.used,
        inodes_free: figures.inodes_free,
        inodes: figures.inodes,
        inodes_used: figures.inodes_used,
        folder: told.folder,
        abnormal: told.abnormal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn before_the_start_is_over_nothing_is_said_of_volumes_and_plugins() {
        let api = StorageApi {
            epoch: Epoch::from_random(7),
            writes: StorageWrites::default(),
            plugins: Late::default(),
            statistics: Late::default(),
            stop: CancellationToken::new(),
        };
        let usages =
            api.volume_usages(Request::new(api::VolumeUsagesRequest {})).await.err().map(|status| status.code());
        let plugins =
            api.list_plugins(Request::new(api::ListPluginsRequest {})).await.err().map(|status| status.code());
        assert_eq!([usages, plugins], [Some(tonic::Code::Unavailable); 2]);
    }
}
