//! What the node under test says about itself, asked over its own sockets as an operator (root) would ask.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bulkhead_ipc::common::process_client::ProcessClient;
use bulkhead_ipc::common::{HelloReply, HelloRequest, MetricsRequest, PrivilegesReply, PrivilegesRequest};
use bulkhead_ipc::syncd::node_client::NodeClient;
use bulkhead_ipc::syncd::pod_update::Update;
use bulkhead_ipc::syncd::pods_client::PodsClient;
use bulkhead_ipc::syncd::{GetNodeRequest, ListPodsRequest, NodeState, PodState, PodUpdate, WatchPodsRequest};
use tokio::runtime::Runtime;
use tonic::transport::Channel;

use crate::Node;
use crate::cri::timed;
use crate::wait::{LONG, eventually};

/// A blocking client of one node's daemons.
#[derive(Debug)]
pub struct Agent {
    runtime: Runtime,
    run_dir: std::path::PathBuf,
}

impl Agent {
    fn channel(&self, daemon: &str) -> Channel {
        let _inside = self.runtime.enter();
        bulkhead_ipc::client::channel(&self.run_dir.join(format!("{daemon}.sock")))
    }

    /// Epoch, version and readiness of a daemon.
    ///
    /// # Errors
    /// It did not answer.
    pub fn hello(&self, daemon: &str) -> Result<HelloReply> {
        let request = timed(HelloRequest { process: "test".to_owned(), version: String::new() });
        let mut client = ProcessClient::new(self.channel(daemon));
        Ok(self.runtime.block_on(client.hello(request)).with_context(|| format!("Hello to {daemon}"))?.into_inner())
    }

    /// What the kernel says of a daemon, by its own account.
    ///
    /// # Errors
    /// It did not answer.
    pub fn privileges(&self, daemon: &str) -> Result<PrivilegesReply> {
        let mut client = ProcessClient::new(self.channel(daemon));
        let answer = self.runtime.block_on(client.privileges(timed(PrivilegesRequest {})));
        Ok(answer.with_context(|| format!("Privileges of {daemon}"))?.into_inner())
    }

    /// A daemon's metrics as text.
    ///
    /// # Errors
    /// It did not answer.
    pub fn metrics(&self, daemon: &str) -> Result<String> {
        let mut client = ProcessClient::new(self.channel(daemon));
        let answer = self.runtime.block_on(client.metrics(timed(MetricsRequest::default())));
        Ok(answer.with_context(|| format!("Metrics of {daemon}"))?.into_inner().text)
    }

    /// All pods that the sync daemon knows.
    ///
    /// # Errors
    /// It did not answer.
    pub fn pods(&self) -> Result<Vec<PodState>> {
        let mut client = PodsClient::new(self.channel("kubelet-syncd"));
        self.runtime.block_on(async {
            let mut stream = client.list(timed(ListPodsRequest {})).await.context("listing pods")?.into_inner();
            let mut pods = Vec::new();
            while let Some(pod) = stream.message().await.context("listing pods")? {
                pods.push(pod);
            }
            Ok(pods)
        })
    }

    /// The sync daemon's view of the node.
    ///
    /// # Errors
    /// It did not answer.
    pub fn node(&self) -> Result<NodeState> {
        let mut client = NodeClient::new(self.channel("kubelet-syncd"));
        Ok(self.runtime.block_on(client.get(timed(GetNodeRequest {}))).context("asking for the node")?.into_inner())
    }

    /// Opens a watch of all pods; its snapshot is read already.
    ///
    /// # Errors
    /// The sync daemon did not answer.
    pub fn watch(&self) -> Result<PodWatch<'_>> {
        let mut client = PodsClient::new(self.channel("kubelet-syncd"));
        let stream = self.runtime.block_on(client.watch(WatchPodsRequest::default())).context("watching pods")?;
        let mut watch = PodWatch { agent: self, stream: stream.into_inner() };
        while !matches!(watch.next(LONG)?, Update::SnapshotDone(_)) {}
        Ok(watch)
    }
}

/// Changes of pods, as they become known to the agent.
pub struct PodWatch<'a> {
    agent: &'a Agent,
    stream: tonic::Streaming<PodUpdate>,
}

impl std::fmt::Debug for PodWatch<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PodWatch")
    }
}

impl PodWatch<'_> {
    /// The next change.
    ///
    /// # Errors
    /// None came within `limit`, or the stream broke.
    pub fn next(&mut self, limit: Duration) -> Result<Update> {
        let message = self.agent.runtime.block_on(async { tokio::time::timeout(limit, self.stream.message()).await });
        let update =
            message.context("no pod changed in time")?.context("the watch broke")?.context("the watch ended")?;
        update.update.context("an update without content")
    }

    /// Reads changes until one satisfies `wanted`; when that was.
    ///
    /// # Errors
    /// None did within `limit`.
    pub fn until(&mut self, what: &str, limit: Duration, mut wanted: impl FnMut(&Update) -> bool) -> Result<Instant> {
        let begin = Instant::now();
        loop {
            let left = limit.checked_sub(begin.elapsed()).with_context(|| format!("{what}: not in time"))?;
            let update = self.next(left).with_context(|| what.to_owned())?;
            let now = Instant::now();
            if wanted(&update) {
                return Ok(now);
            }
        }
    }
}

impl Node {
    /// A client of this node's daemons.
    ///
    /// # Errors
    /// No tokio runtime can be made.
    pub fn agent(&self) -> Result<Agent> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Agent { runtime, run_dir: self.run_dir().to_owned() })
    }

    /// Waits until the agent's view of a static pod satisfies `wanted`.
    ///
    /// # Errors
    /// The view as it is.
    pub fn wait_pod(&self, pod: &str, what: &str, mut wanted: impl FnMut(&PodState) -> bool) -> Result<PodState> {
        let agent = self.agent()?;
        let name = self.pod_name(pod);
        eventually(&format!("the agent says of {name}: {what}"), LONG, || {
            let Some(state) = agent.pods()?.into_iter().find(|state| state.name == name) else {
                bail!("it does not know the pod");
            };
            if wanted(&state) {
                return Ok(state);
            }
            bail!(
                "{} {:?}, worker {}: {}; containers {:?}",
                state.phase,
                state.reason,
                state.worker,
                state.why,
                state.containers
            )
        })
    }
}
