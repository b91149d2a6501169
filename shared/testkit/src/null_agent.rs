//! The null agent on a node of its own: the tests' program `null_agent`, which does for pods what no node agent can do without,
//! and nothing else. It is the floor with the API server in it: what a kubelet takes longer than this is the kubelet's own.

use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use bulkhead_apiserver::authority::Pair;
use serde_json::json;

use crate::csi::process::Process;
use crate::{Cluster, Lab, eventually, floor, wait};

const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
/// What it writes once it watches its pods.
const READY: &str = "watching pods";

/// The agent that runs; it ends when this is dropped, and its pods are the lab's to take down.
#[derive(Debug)]
pub struct NullAgent {
    node: String,
    process: Process,
    // Last: the lab outlives its users.
    lab: Lab,
}

impl NullAgent {
    /// Starts the agent of the node `node`, of which no object is made. `program` is the tests' `null_agent`, `in_flight` how
    /// many pods it starts or ends at a time.
    ///
    /// # Errors
    /// It cannot be started, or does not watch its pods in time.
    pub fn start(program: &Path, lab: Lab, cluster: &Cluster, node: &str, in_flight: usize) -> Result<Self> {
        let (cgroup, logs) = floor::place(&lab)?;
        let Pair { certificate, key } = cluster.node_certificate(node, YEAR)?;
        let told = json!({
            "node": node, "server": cluster.address(), "ca": cluster.ca(), "certificate": certificate, "key": key,
            "runtime": lab.containerd().socket(), "cgroup": cgroup, "logs": logs, "in_flight": in_flight,
        });
        let file = lab.folder().join("null-agent.json");
        let mut options = std::fs::File::options();
        let writing = options.create(true).truncate(true).write(true).mode(0o600).open(&file);
        serde_json::to_writer(writing.with_context(|| format!("opening {}", file.display()))?, &told)?;
        let process = Process::start(program, vec![file.display().to_string()], lab.folder().join("null-agent.log"))?;
        let mut agent = Self { node: node.to_owned(), process, lab };
        eventually("the null agent watches its pods", wait::SHORT, || {
            agent.process.alive()?;
            let log = std::fs::read_to_string(agent.process.log()).unwrap_or_default();
            log.contains(READY).then_some(()).context(log)
        })?;
        Ok(agent)
    }

    pub fn node(&self) -> &str {
        &self.node
    }

    pub fn lab(&self) -> &Lab {
        &self.lab
    }

    /// Its process.
    ///
    /// # Errors
    /// It has ended: the end of its log.
    pub fn pid(&mut self) -> Result<i32> {
        self.process.alive()?;
        self.process.pid()
    }
}
