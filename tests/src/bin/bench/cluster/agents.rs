//! Who is measured as a member of the cluster: the null agent, which is the floor, the node under test, and upstream's kubelet
//! where it is asked for. Each has a node, a runtime and a network of its own, and they take turns.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use bulkhead_testkit::apiserver::identity::MASTERS;
use bulkhead_testkit::cluster::client::Credential;
use bulkhead_testkit::cri::Cri;
use bulkhead_testkit::https::Https;
use bulkhead_testkit::null_agent::NullAgent;
use bulkhead_testkit::{Cluster, Lab, Node, cluster};
use serde_json::json;

use super::condition;
use crate::measure::{self, Usage};

const NODE_PORT: u16 = 10250;
const HOUR: Duration = Duration::from_secs(3600);
/// Values of `operation_type`, by which upstream counts them.
const ABOUT_PODS: [&str; 12] = [
    "list_podsandbox",
    "list_containers",
    "podsandbox_status",
    "container_status",
    "image_status",
    "run_podsandbox",
    "create_container",
    "start_container",
    "stop_container",
    "stop_podsandbox",
    "remove_container",
    "remove_podsandbox",
];

/// Of a line of `kubelet_runtime_operations_total`: which operation, and how often.
fn operations(line: &str) -> Option<(String, f64)> {
    let rest = line.strip_prefix("kubelet_runtime_operations_total{operation_type=\"")?;
    let (operation, count) = rest.split_once("\"}")?;
    Some((operation.to_owned(), count.trim().parse().ok()?))
}

/// One of them.
#[derive(Debug)]
pub enum Agent {
    Null(NullAgent),
    Node(Node),
    Upstream(Node),
}

impl Agent {
    /// The null agent, with a runtime of its own.
    ///
    /// # Errors
    /// It does not start.
    pub fn null(cluster: &Cluster, in_flight: usize) -> Result<Self> {
        let program = std::env::current_exe()?.with_file_name("null_agent");
        Ok(Self::Null(NullAgent::start(&program, Lab::start_beside()?, cluster, "null", in_flight)?))
    }

    /// The node under test.
    ///
    /// # Errors
    /// It does not start, or its Node does not become ready.
    pub fn node(lab: &Lab, cluster: &Cluster) -> Result<Self> {
        let node = measure::member(lab, "bench", cluster)?.start()?;
        Self::Node(node).ready(cluster)
    }

    /// Upstream's kubelet, with a runtime of its own.
    ///
    /// # Errors
    /// It is not among the programs of `KUBEBUILDER_ASSETS`, it does not start, or its Node does not become ready.
    pub fn upstream(cluster: &Cluster) -> Result<Self> {
        let program = upstreams_kubelet()?;
        let lab = Lab::start_beside()?;
        let folder = lab.folder().join("upstream");
        std::fs::create_dir_all(&folder)?;
        // Under the name by which the lab knows a node's processes.
        symlink(program, folder.join("kubelet"))?;
        let mut node = measure::member(&lab, "upstream", cluster)?.programs(&folder).prepare()?;
        node.launch()?;
        Self::Upstream(node).ready(cluster)
    }

    fn ready(self, cluster: &Cluster) -> Result<Self> {
        cluster.wait_for("nodes", "", self.name(), "the node is ready", |node| condition(node, "Ready"))?;
        Ok(self)
    }

    /// The name of its node.
    pub fn name(&self) -> &str {
        match self {
            Self::Null(agent) => agent.node(),
            Self::Node(node) | Self::Upstream(node) => node.name(),
        }
    }

    /// Its runtime.
    ///
    /// # Errors
    /// No tokio runtime can be made.
    pub fn cri(&self) -> Result<Cri> {
        match self {
            Self::Null(agent) => agent.lab().cri(),
            Self::Node(node) | Self::Upstream(node) => node.cri(),
        }
    }

    /// What its programs have used since their start.
    ///
    /// # Errors
    /// One has ended that must not.
    pub fn usage(&mut self) -> Result<BTreeMap<String, Usage>> {
        Ok(measure::usage_of(&self.processes()?))
    }

    /// What its programs hold, in KiB.
    ///
    /// # Errors
    /// One has ended that must not.
    pub fn pss(&mut self) -> Result<BTreeMap<String, u64>> {
        Ok(measure::pss_of(&self.processes()?))
    }

    /// How many requests of each kind about pods its runtime has had from it since its start, as its metrics say; nothing of the
    /// null agent.
    ///
    /// # Errors
    /// They are not shown.
    pub fn runtime_requests(&self, cluster: &Cluster) -> Result<BTreeMap<String, f64>> {
        let (Self::Node(node) | Self::Upstream(node)) = self else { return Ok(BTreeMap::new()) };
        let admin = Credential::Certificate(cluster.client_certificate("bench", MASTERS, HOUR)?);
        let https = Https::new(SocketAddr::new(node.lab().netns().address().into(), NODE_PORT), &admin);
        let answer = https.get("/metrics")?;
        anyhow::ensure!(answer.status == 200, "/metrics of {}: {}", node.name(), answer.status);
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        Ok(text
            .lines()
            .filter_map(operations)
            .filter(|(operation, _)| ABOUT_PODS.contains(&operation.as_str()))
            .collect())
    }

    /// Its programs, each process with its program's name.
    ///
    /// # Errors
    /// One has ended that must not.
    pub fn processes(&mut self) -> Result<Vec<(String, i32)>> {
        match self {
            Self::Null(agent) => Ok(vec![("null_agent".to_owned(), agent.pid()?)]),
            Self::Node(node) => measure::alive(node),
            Self::Upstream(node) => {
                let family = node.family();
                anyhow::ensure!(!family.is_empty(), "upstream's kubelet has ended: {}", node.log().display());
                Ok(family)
            }
        }
    }

    /// Its end, with a look at what the node under test has left.
    ///
    /// # Errors
    /// What is left.
    pub fn finish(self) -> Result<()> {
        match self {
            Self::Null(_) => Ok(()),
            Self::Node(node) => node.finish().context("the node's end"),
            Self::Upstream(node) => {
                node.abandon();
                Ok(())
            }
        }
    }
}

/// Upstream's kubelet, beside the control plane's programs.
///
/// # Errors
/// It is not there.
pub fn upstreams_kubelet() -> Result<PathBuf> {
    let kubelet = cluster::programs().map(|folder| folder.join("kubelet")).filter(|kubelet| kubelet.is_file());
    kubelet.with_context(|| format!("upstream's kubelet is not in the folder that {} names", cluster::ASSETS))
}

/// A pod that only waits, on the node of an agent.
pub fn pod(node: &str, name: &str) -> serde_json::Value {
    let mut pod = bulkhead_testkit::Pod::idle(name).spec("nodeName", json!(node)).value().clone();
    pod["metadata"]["namespace"] = json!(super::NAMESPACE);
    pod
}

#[cfg(test)]
mod tests {
    use super::operations;

    #[test]
    fn operations_are_read_from_their_lines() {
        let line = r#"kubelet_runtime_operations_total{operation_type="stop_container"} 12"#;
        assert_eq!(operations(line), Some(("stop_container".to_owned(), 12.0)));
        assert_eq!(operations("# HELP kubelet_runtime_operations_total x"), None);
    }
}
