//! The questions to kubelet-syncd. Each has a deadline; who does not answer is away, and the pass ends there.

use std::time::Duration;

use bulkhead_ipc::client::Link;
use bulkhead_ipc::context::CallContext;
use bulkhead_ipc::syncd::eviction_client::EvictionClient;
use bulkhead_ipc::syncd::stats_client::StatsClient;
use bulkhead_ipc::syncd::{
    Candidate, CandidatesRequest, EvictRequest, EvictionInFlight, EvictionOutcome, ImageFsReply, ImageFsRequest,
    InFlightRequest, ReclaimRequest, ReportPressureRequest,
};
use bulkhead_ipc::{MAX_MESSAGE_BYTES, MAX_POD_BYTES};
use bulkhead_types::Epoch;
use tonic::Status;
use tonic::transport::Channel;

use crate::ask_syncd::{collect_at_most, in_time};

const DEADLINE: Duration = Duration::from_secs(5);
/// A round of garbage collection waits for the runtime.
const RECLAIM_DEADLINE: Duration = Duration::from_secs(30);
/// More pods than a node can have; the rest of a longer list is cut.
const MAX_PODS: usize = 10_000;

/// kubelet-syncd, as the eviction manager needs it.
#[derive(Debug, Clone)]
pub struct Syncd {
    link: Link,
}

impl Syncd {
    pub fn new(link: Link) -> Self {
        Syncd { link }
    }

    /// Waits until it answers; gives which of its lives it is.
    pub async fn ready(&self) -> Epoch {
        self.link.ready().await
    }

    /// Waits until it is another life than this one, and answers.
    pub async fn another_life(&self, epoch: Epoch) {
        let mut lives = self.link.watch();
        // A link that is no more is no other life.
        if lives.wait_for(|state| state.ready_epoch().is_some_and(|now| now != epoch)).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    fn client(&self) -> EvictionClient<Channel> {
        // A candidate names its pod's volumes and containers, and a pod may have thousands.
        EvictionClient::new(self.link.channel()).max_decoding_message_size(MAX_POD_BYTES)
    }

    /// Pods that may be evicted. `limited_only`: those alone with limits of local storage of their own; others may be among them.
    pub async fn candidates(&self, limited_only: bool) -> Result<Vec<Candidate>, Status> {
        in_time(DEADLINE, async {
            let request = CallContext::new().request(CandidatesRequest { limited_only }, DEADLINE);
            collect_at_most(self.client().candidates(request).await?.into_inner(), MAX_PODS, "pods to evict").await
        })
        .await
    }

    pub async fn evict(&self, request: EvictRequest) -> Result<EvictionOutcome, Status> {
        in_time(DEADLINE, async {
            let reply = self.client().evict(CallContext::new().request(request, DEADLINE)).await?.into_inner();
            Ok(reply.outcome())
        })
        .await
    }

    pub async fn in_flight(&self) -> Result<Vec<EvictionInFlight>, Status> {
        in_time(DEADLINE, async {
            let request = CallContext::new().request(InFlightRequest {}, DEADLINE);
            collect_at_most(self.client().in_flight(request).await?.into_inner(), MAX_PODS, "evictions").await
        })
        .await
    }

    pub async fn report(&self, report: ReportPressureRequest) -> Result<(), Status> {
        in_time(DEADLINE, async {
            self.client().report_pressure(CallContext::new().request(report, DEADLINE)).await.map(drop)
        })
        .await
    }

    pub async fn reclaim(&self, request: ReclaimRequest) -> Result<(), Status> {
        in_time(RECLAIM_DEADLINE, async {
            self.client().reclaim(CallContext::new().request(request, RECLAIM_DEADLINE)).await.map(drop)
        })
        .await
    }

    /// Where images and containers' writable layers lie, as the runtime has it.
    pub async fn image_fs(&self) -> Result<ImageFsReply, Status> {
        in_time(DEADLINE, async {
            let mut client = StatsClient::new(self.link.channel()).max_decoding_message_size(MAX_MESSAGE_BYTES);
            Ok(client.image_fs(CallContext::new().request(ImageFsRequest {}, DEADLINE)).await?.into_inner())
        })
        .await
    }
}
