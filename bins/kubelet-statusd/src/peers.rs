//! The other three processes as this one sees them: whether each is there, and the questions that it is asked.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bulkhead_ipc::client::{Link, PeerState};
use bulkhead_ipc::common::MetricsRequest;
use bulkhead_ipc::common::process_client::ProcessClient;
use bulkhead_ipc::context::CallContext;
use bulkhead_ipc::evictiond::stats_client::StatsClient;
use bulkhead_ipc::evictiond::{
    CgroupStats, CgroupsRequest, Machine, NodeStats, PodStats, SummaryRequest, cgroups_part::Part as CgroupsPart,
    summary_part::Part,
};
use bulkhead_ipc::syncd::node_client::NodeClient;
use bulkhead_ipc::syncd::{GetNodeRequest, NodeState, WatchNodeRequest};
use bulkhead_ipc::{MAX_MESSAGE_BYTES, MAX_POD_BYTES};
use bulkhead_types::Process;
use parking_lot::Mutex;
use tokio::sync::OnceCell;

use crate::health::Presence;

/// For metrics: a slow process costs its own series.
const METRICS_DEADLINE: Duration = Duration::from_secs(1);
/// So long after this process's begin a scrape waits for the processes that begin with it. Upstream's kubelet serves no
/// metrics before it has asked the runtime what it is.
const START: Duration = Duration::from_secs(5);
/// A process's metrics as text: a pod with three probes in each of three containers has 26 KiB of series.
const METRICS_BYTES: usize = 16 << 20;
/// For the health check: longer, because the node counts as unwell when it passes.
const HEALTH_DEADLINE: Duration = Duration::from_secs(3);
/// For statistics, which may have to be measured first.
const SUMMARY_DEADLINE: Duration = Duration::from_secs(8);

/// Since when a process has been away: `Ok` since then, `Err` it is there.
#[derive(Debug)]
enum Since {
    Never,
    There,
    Away(Instant),
}

#[derive(Debug)]
struct Peer {
    link: Link,
    since: Arc<Mutex<Since>>,
}

impl Peer {
    fn new(link: Link) -> Self {
        let since = Arc::new(Mutex::new(Since::Never));
        let mut states = link.watch();
        let follow = since.clone();
        tokio::spawn(async move {
            loop {
                let ready = matches!(*states.borrow_and_update(), PeerState::Known { ready: true, .. });
                {
                    let mut since = follow.lock();
                    match (&*since, ready) {
                        (_, true) => *since = Since::There,
                        (Since::There, false) => *since = Since::Away(Instant::now()),
                        _ => {}
                    }
                }
                if states.changed().await.is_err() {
                    return;
                }
            }
        });
        Peer { link, since }
    }

    fn presence(&self) -> Presence {
        match &*self.since.lock() {
            Since::There => Presence::Ready,
            Since::Away(at) => Presence::Away(Some(at.elapsed())),
            Since::Never => Presence::Away(None),
        }
    }
}

/// The three links.
#[derive(Debug)]
pub struct Peers {
    syncd: Peer,
    volnetd: Peer,
    evictiond: Peer,
    /// Of this process, as far as its peers are concerned.
    began: tokio::time::Instant,
    /// Set once all have begun.
    begun: OnceCell<()>,
}

impl Peers {
    /// Must be called within a tokio runtime.
    pub fn new(syncd: Link, volnetd: Link, evictiond: Link) -> Self {
        Peers {
            syncd: Peer::new(syncd),
            volnetd: Peer::new(volnetd),
            evictiond: Peer::new(evictiond),
            began: tokio::time::Instant::now(),
            begun: OnceCell::new(),
        }
    }

    /// Waits until each process answers and kubelet-syncd knows its runtime, but only at the start of all of them: no
    /// longer than 5 s after this process began, and never again afterwards.
    pub async fn begun(&self) {
        let end = self.began + START;
        if !self.begun.initialized() && tokio::time::Instant::now() < end {
            let all = async {
                tokio::join!(answers(&self.volnetd), answers(&self.evictiond), runtime_is_known(&self.syncd));
            };
            let _ = tokio::time::timeout_at(end, self.begun.get_or_init(|| all)).await;
        }
    }

    fn peer(&self, process: Process) -> Option<&Peer> {
        match process {
            Process::Syncd => Some(&self.syncd),
            Process::Volnetd => Some(&self.volnetd),
            Process::Evictiond => Some(&self.evictiond),
            Process::Statusd => None,
        }
    }

    /// For calls that have their own code; `None` for this process itself.
    pub fn link(&self, process: Process) -> Option<&Link> {
        self.peer(process).map(|peer| &peer.link)
    }

    /// The same for kubelet-syncd, which most is asked of.
    pub fn syncd(&self) -> &Link {
        &self.syncd.link
    }

    /// Whether a process is there and ready. This one itself always is.
    pub fn presence(&self, process: Process) -> Presence {
        self.peer(process).map_or(Presence::Ready, Peer::presence)
    }

    /// What kubelet-syncd says of itself; `None` when it does not say it in time.
    pub async fn node(&self) -> Option<NodeState> {
        // A link that is down is not worth a connection attempt's time-out.
        if self.syncd.link.state() == PeerState::Unknown {
            return None;
        }
        let mut client = NodeClient::new(self.syncd.link.channel()).max_decoding_message_size(MAX_MESSAGE_BYTES);
        let call = client.get(CallContext::new().request(GetNodeRequest {}, HEALTH_DEADLINE));
        Some(tokio::time::timeout(HEALTH_DEADLINE, call).await.ok()?.ok()?.into_inner())
    }

    /// A process's metrics as it wrote them.
    pub async fn metrics(&self, process: Process) -> Option<String> {
        self.metrics_of(self.peer(process)?, MetricsRequest::default()).await
    }

    /// The series of probes, which kubelet-syncd keeps apart from its others.
    pub async fn probe_metrics(&self) -> Option<String> {
        self.metrics_of(&self.syncd, MetricsRequest { probes: true }).await
    }

    async fn metrics_of(&self, peer: &Peer, request: MetricsRequest) -> Option<String> {
        // A link that is down is not worth a connection attempt's time-out.
        if peer.link.state() == PeerState::Unknown {
            return None;
        }
        let mut client = ProcessClient::new(peer.link.channel()).max_decoding_message_size(METRICS_BYTES);
        let call = client.metrics(CallContext::new().request(request, METRICS_DEADLINE));
        Some(tokio::time::timeout(METRICS_DEADLINE, call).await.ok()?.ok()?.into_inner().text)
    }

    /// The node's statistics, then the pods'. `cpu_and_memory_only`: no disks and no networks, which are dearer.
    ///
    /// # Errors
    /// kubelet-evictiond's status, or DEADLINE_EXCEEDED.
    pub async fn summary(&self, cpu_and_memory_only: bool) -> Result<(NodeStats, Vec<PodStats>), tonic::Status> {
        // Of a pod with thousands of containers or volumes, too.
        let mut client = StatsClient::new(self.evictiond.link.channel()).max_decoding_message_size(MAX_POD_BYTES);
        measured(async {
            let question = SummaryRequest { cpu_and_memory_only, ..SummaryRequest::default() };
            let mut stream = client.summary(CallContext::new().request(question, SUMMARY_DEADLINE)).await?.into_inner();
            let (mut node, mut pods) = (None, Vec::new());
            while let Some(part) = stream.message().await? {
                match part.part {
                    Some(Part::Node(stats)) => node = Some(stats),
                    Some(Part::Pod(stats)) => pods.push(stats),
                    None => {}
                }
            }
            let node = node.ok_or_else(|| tonic::Status::internal("kubelet-evictiond sent no node statistics"))?;
            Ok((node, pods))
        })
        .await
    }

    /// The machine, then its cgroups in detail.
    ///
    /// # Errors
    /// As [`Self::summary`].
    pub async fn cgroups(&self) -> Result<(Machine, Vec<CgroupStats>), tonic::Status> {
        let mut client = StatsClient::new(self.evictiond.link.channel()).max_decoding_message_size(MAX_MESSAGE_BYTES);
        measured(async {
            let request = CallContext::new().request(CgroupsRequest::default(), SUMMARY_DEADLINE);
            let mut stream = client.cgroups(request).await?.into_inner();
            let (mut machine, mut cgroups) = (None, Vec::new());
            while let Some(part) = stream.message().await? {
                match part.part {
                    Some(CgroupsPart::Machine(stats)) => machine = Some(stats),
                    Some(CgroupsPart::Page(page)) => cgroups.extend(page.cgroups),
                    None => {}
                }
            }
            let machine = machine.ok_or_else(|| tonic::Status::internal("kubelet-evictiond sent no machine"))?;
            Ok((machine, cgroups))
        })
        .await
    }
}

async fn answers(peer: &Peer) {
    let _ = peer.link.watch().wait_for(|state| *state != PeerState::Unknown).await;
}

/// kubelet-syncd begins its sources of pods when the runtime has answered. What it says of neither is not waited for.
async fn runtime_is_known(syncd: &Peer) {
    syncd.link.ready().await;
    let mut client = NodeClient::new(syncd.link.channel()).max_decoding_message_size(MAX_MESSAGE_BYTES);
    let Ok(states) = client.watch(CallContext::new().streaming_request(WatchNodeRequest {})).await else { return };
    let mut states = states.into_inner();
    while let Ok(Some(state)) = states.message().await {
        if !state.sources.is_empty() {
            return;
        }
    }
}

async fn measured<T>(call: impl Future<Output = Result<T, tonic::Status>>) -> Result<T, tonic::Status> {
    tokio::time::timeout(SUMMARY_DEADLINE, call)
        .await
        .map_err(|_| tonic::Status::deadline_exceeded("kubelet-evictiond does not answer"))?
}
