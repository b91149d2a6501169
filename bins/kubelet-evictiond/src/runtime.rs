//! What only the container runtime knows: bytes in writable layers and images; what containers without a cgroup on this machine use;
//! and, where it is to tell them, figures of pods. Asked of kubelet-syncd, which asks the runtime; the runtime itself measures disks
//! every ten seconds at best, so an answer is kept for a while. When nobody answers, the last one stands, with the time at which it was
//! true.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_ipc::MAX_MESSAGE_BYTES;
use bulkhead_ipc::client::Link;
use bulkhead_ipc::context::CallContext;
use bulkhead_ipc::syncd::runtime_stats_client::RuntimeStatsClient;
use bulkhead_ipc::syncd::stats_client::StatsClient;
use bulkhead_ipc::syncd::{
    DiskUsage, ImageFsRequest, RuntimeCpu, RuntimeIo, RuntimeMemory, RuntimePod, RuntimePodsRequest, RuntimeSwap,
    WritableLayer, WritableLayersRequest,
};

use crate::ask_syncd::{collect_at_most, each_at_most};
use crate::runtime_pods::PodFigures;

/// How long kubelet-syncd and the runtime behind it may take: as upstream's `runtimeRequestTimeout` where nothing is configured. A
/// runtime asks its shims one after the other, some milliseconds each.
const DEADLINE: Duration = Duration::from_secs(120);
/// More containers than a node can have; the rest of a longer list is cut.
const MAX_LAYERS: usize = 100_000;
/// As many pods.
const MAX_PODS: usize = 10_000;

/// What it says of what a container uses beside disks.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ContainerFigures {
    pub cpu: Option<RuntimeCpu>,
    pub memory: Option<RuntimeMemory>,
    pub swap: Option<RuntimeSwap>,
    pub io: Option<RuntimeIo>,
}

/// What it said of disks, and of containers beside that.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RuntimeDisks {
    /// By container id, as `figures`.
    pub layers: HashMap<String, DiskUsage>,
    pub figures: HashMap<String, ContainerFigures>,
    pub images: Option<DiskUsage>,
    pub containers: Option<DiskUsage>,
}

impl RuntimeDisks {
    fn take(&mut self, told: WritableLayer) {
        let WritableLayer { container_id, usage, cpu, memory, swap, io } = told;
        let figures = ContainerFigures { cpu, memory, swap, io };
        if figures != ContainerFigures::default() {
            self.figures.insert(container_id.clone(), figures);
        }
        if let Some(usage) = usage {
            self.layers.insert(container_id, usage);
        }
    }

    /// Where it says that all this is. A relative path would be looked up below our own working directory.
    pub fn folders(&self) -> impl Iterator<Item = String> {
        let told = self.layers.values().chain(&self.images).chain(&self.containers);
        told.map(|usage| &usage.mountpoint).filter(|folder| folder.starts_with('/')).cloned()
    }
}

/// Where that comes from; the tests have their own.
pub trait RuntimeSource: Send + Sync + 'static {
    /// `None` when it is not known now. May take minutes.
    fn disks(&self) -> impl Future<Output = Option<RuntimeDisks>> + Send;

    /// Figures of pods, where they are the runtime's to tell. May take minutes.
    fn pod_figures(&self) -> impl Future<Output = PodFigures> + Send {
        async { PodFigures::OurOwn }
    }
}

/// kubelet-syncd.
#[derive(Debug)]
pub struct SyncdRuntime {
    link: Link,
    /// Gate PodAndContainerStatsFromCRI.
    tells_of_pods: bool,
}

impl SyncdRuntime {
    pub fn new(link: Link, tells_of_pods: bool) -> Self {
        SyncdRuntime { link, tells_of_pods }
    }

    async fn ask_of_pods(&self) -> Result<Vec<RuntimePod>, tonic::Status> {
        let mut client = RuntimeStatsClient::new(self.link.channel()).max_decoding_message_size(MAX_MESSAGE_BYTES);
        let request = CallContext::new().request(RuntimePodsRequest {}, DEADLINE);
        collect_at_most(client.pods(request).await?.into_inner(), MAX_PODS, "pods' figures").await
    }

    async fn ask(&self) -> Result<RuntimeDisks, tonic::Status> {
        let mut client = StatsClient::new(self.link.channel()).max_decoding_message_size(MAX_MESSAGE_BYTES);
        let file_systems = client.image_fs(CallContext::new().request(ImageFsRequest {}, DEADLINE)).await?.into_inner();
        let request = CallContext::new().request(WritableLayersRequest {}, DEADLINE);
        let layers = client.writable_layers(request).await?.into_inner();
        let mut disks = RuntimeDisks {
            images: file_systems.images,
            containers: file_systems.containers,
            ..RuntimeDisks::default()
        };
        each_at_most(layers, MAX_LAYERS, "writable layers", |layer| disks.take(layer)).await?;
        Ok(disks)
    }
}

impl RuntimeSource for SyncdRuntime {
    async fn disks(&self) -> Option<RuntimeDisks> {
        match tokio::time::timeout(DEADLINE, self.ask()).await {
            Ok(Ok(disks)) => Some(disks),
            Ok(Err(status)) => {
                tracing::debug!(code = ?status.code(), "no disk usage from the runtime: {}", status.message());
                None
            }
            Err(_) => None,
        }
    }

    async fn pod_figures(&self) -> PodFigures {
        if !self.tells_of_pods {
            return PodFigures::OurOwn;
        }
        match tokio::time::timeout(DEADLINE, self.ask_of_pods()).await {
            Ok(Ok(pods)) => PodFigures::Told(Arc::new(pods)),
            Ok(Err(status)) if status.code() == tonic::Code::Unimplemented => {
                tracing::debug!(
                    "CRI implementation must be updated to support ListPodSandboxStats if PodAndContainerStatsFromCRI feature gate \
                     is enabled: statistics of pods are measured here"
                );
                PodFigures::OurOwn
            }
            Ok(Err(status)) => {
                tracing::debug!(code = ?status.code(), "no figures of pods from the runtime: {}", status.message());
                PodFigures::Unknown
            }
            Err(_) => PodFigures::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_of_a_container_is_kept_apart() {
        let layer = |id: &str| WritableLayer { container_id: id.into(), ..WritableLayer::default() };
        let mut disks = RuntimeDisks::default();
        disks.take(WritableLayer { usage: Some(DiskUsage::default()), ..layer("layer") });
        disks.take(WritableLayer { memory: Some(RuntimeMemory::default()), ..layer("figures") });
        disks.take(layer("nothing"));
        assert_eq!(disks.layers.keys().collect::<Vec<_>>(), ["layer"]);
        assert_eq!(disks.figures.keys().collect::<Vec<_>>(), ["figures"]);
    }
}
