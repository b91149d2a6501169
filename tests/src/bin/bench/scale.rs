//! What grows with the number of pods: one node as a member of a cluster that gets more and more pods that only wait, and at each
//! number what starting them took, what it uses idle, what it holds, what is read from it, and how soon each daemon is whole again when
//! it was killed. The null agent starts and deletes the same pods before, so that it is seen what of that growth is the runtime's and
//! the API server's.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bulkhead_testkit::apiserver::identity::MASTERS;
use bulkhead_testkit::cluster::client::Credential;
use bulkhead_testkit::https::Https;
use bulkhead_testkit::node::DAEMONS;
use bulkhead_testkit::{Cluster, Node, Release};
use serde_json::{Value, json};

use crate::cluster::{self, Agent, NAMESPACE, all, condition, mark, pod, since};
use crate::measure::{self, Idle, MANY, MEMORY_SETTLES, SETTLE, Usage, usage};

const NODE: &str = "bench";
const NODE_PORT: u16 = 10250;
const HOUR: Duration = Duration::from_secs(3600);
/// How often each path is read.
const READINGS: usize = 3;
/// Statistics that are younger are not measured anew.
const SAMPLE_LIFE: Duration = Duration::from_secs(11);
/// Between two looks at a daemon that was killed.
const LOOK: Duration = Duration::from_millis(10);
/// What measures for its answer.
const MEASURES: [&str; 2] = ["/metrics/cadvisor", "/stats/summary"];
/// What people and monitoring read.
pub const READ: [&str; 4] = ["/pods", "/metrics", "/metrics/cadvisor", "/stats/summary"];

/// How much of everything.
#[derive(Debug, Clone)]
pub struct Plan {
    pub judged: bool,
    /// Numbers of pods, rising.
    pub pods: Vec<usize>,
    pub idle: Duration,
}

/// The node with one number of pods.
#[derive(Debug, Clone, Default)]
pub struct Of {
    pub pods: usize,
    /// Each pod that came since the number before, created until Running.
    pub started: Vec<Duration>,
    /// What the agent has used for them.
    pub start_use: BTreeMap<String, Usage>,
    /// What the API server was asked for them; nothing where the server is a real one.
    pub requests: Option<u64>,
    pub idle: Idle,
    /// By path.
    pub read: BTreeMap<&'static str, Vec<Duration>>,
    /// By daemon: from its SIGKILL until it says all that it said before.
    pub whole: BTreeMap<&'static str, Duration>,
}

/// The same pods of the null agent.
#[derive(Debug, Clone, Default)]
pub struct Floor {
    /// By number of pods: each that came since the number before, created until Running.
    pub started: BTreeMap<usize, Vec<Duration>>,
    /// Each pod's end, all deleted at once.
    pub deleted: Vec<Duration>,
}

#[derive(Debug, Clone, Default)]
pub struct Measurements {
    pub floor: Floor,
    pub all: Vec<Of>,
    /// Each pod's end, all deleted at once.
    pub deleted: Vec<Duration>,
    pub delete_use: BTreeMap<String, Usage>,
    /// What broke, at which number of pods. What was measured before stands.
    pub broke: Option<String>,
}

fn progress(text: &str) {
    eprintln!("bench: scale: {text}");
}

/// Runs everything.
///
/// # Errors
/// A pod did not start or end, or a process ended meanwhile.
pub fn run(plan: &Plan) -> Result<Measurements> {
    let most = plan.pods.iter().copied().max().context("no number of pods")?;
    let lab = measure::lab(Release::from_environment()?)?;
    let cluster = lab.stock_cluster()?;
    let mut measured = Measurements::default();
    if let Err(error) = null_agent(plan, &cluster, &mut measured.floor) {
        measured = broken(measured, &format!("the null agent: {error:#}"));
    }
    let node = measure::member(&lab, NODE, &cluster)?.config("maxPods", json!(most)).start()?;
    cluster.wait_for("nodes", "", NODE, "the node is ready", |node| condition(node, "Ready"))?;
    let admin = Credential::Certificate(cluster.client_certificate("bench", MASTERS, HOUR)?);
    let https = Https::new(SocketAddr::new(lab.netns().address().into(), NODE_PORT), &admin);
    std::thread::sleep(MEMORY_SETTLES);

    let mut names: Vec<String> = Vec::new();
    for &pods in &plan.pods {
        let more = more(NODE, names.len(), pods);
        names.extend(more.iter().cloned());
        match one(plan, &cluster, &node, &https, &more, names.len()) {
            Ok(of) => measured.all.push(of),
            Err(error) => return Ok(broken(measured, &format!("with {pods} pods: {error:#}"))),
        }
    }
    let before = usage(&node)?;
    match delete(&cluster, NODE, &names) {
        Ok(deleted) => measured.deleted = deleted,
        Err(error) => return Ok(broken(measured, &format!("{error:#}"))),
    }
    measured.delete_use = measure::since(&before, &usage(&node)?);
    node.finish_after_deaths().context("the node's end")?;
    Ok(measured)
}

/// Names of the pods that make a number of them into another one.
fn more(node: &str, from: usize, to: usize) -> Vec<String> {
    (from..to).map(|index| format!("{node}-{index}")).collect()
}

fn start(cluster: &Cluster, node: &str, names: &[String]) -> Result<Vec<Duration>> {
    let asked = |name: &str| cluster.create(&pod(node, name)).map(drop);
    all(cluster, names, "all pods run", asked, |_, pod| pod["status"]["phase"] == "Running")
}

fn delete(cluster: &Cluster, node: &str, names: &[String]) -> Result<Vec<Duration>> {
    progress(&format!("{node}: deletion of {} pods", names.len()));
    let asked = |name: &str| cluster.delete("pods", NAMESPACE, name, None);
    all(cluster, names, "all pods are gone", asked, |kind, _| kind == "DELETED")
}

fn null_agent(plan: &Plan, cluster: &Cluster, floor: &mut Floor) -> Result<()> {
    let agent = Agent::null(cluster, cluster::NULL_IN_FLIGHT)?;
    let node = agent.name();
    let mut names: Vec<String> = Vec::new();
    for &pods in &plan.pods {
        let more = more(node, names.len(), pods);
        progress(&format!("{node}: {} pods more, {pods} in all", more.len()));
        floor.started.insert(pods, start(cluster, node, &more)?);
        names.extend(more);
        std::thread::sleep(SETTLE);
    }
    floor.deleted = delete(cluster, node, &names)?;
    agent.finish()
}

fn broken(mut measured: Measurements, what: &str) -> Measurements {
    progress(what);
    measured.broke = Some(what.to_owned());
    measured
}

fn one(plan: &Plan, cluster: &Cluster, node: &Node, https: &Https, more: &[String], pods: usize) -> Result<Of> {
    progress(&format!("{NODE}: {} pods more, {pods} in all", more.len()));
    let mut of = Of { pods, ..Of::default() };
    let (before, begun) = (usage(node)?, mark(cluster)?);
    of.started = start(cluster, NODE, more)?;
    of.start_use = measure::since(&before, &usage(node)?);
    of.requests = begun.is_some().then_some(since(cluster, begun)?.values().sum());
    std::thread::sleep(MEMORY_SETTLES);

    progress(&format!("{pods} pods: idle for {} s", plan.idle.as_secs()));
    of.idle = measure::idle(plan.idle, || measure::alive(node))?;

    for path in READ {
        progress(&format!("{pods} pods: {path}"));
        for _ in 0..READINGS {
            if MEASURES.contains(&path) {
                std::thread::sleep(SAMPLE_LIFE);
            }
            let begin = Instant::now();
            read(https, path)?;
            of.read.entry(path).or_default().push(begin.elapsed());
        }
    }
    for daemon in DAEMONS {
        progress(&format!("{pods} pods: {daemon} is killed"));
        of.whole.insert(daemon, killed(node, https, daemon, pods)?);
    }
    Ok(of)
}

fn read(https: &Https, path: &str) -> Result<Vec<u8>> {
    let answer = https.get(path)?;
    ensure!(answer.status == 200, "{path}: {}", answer.status);
    Ok(answer.body.to_vec())
}

/// From the SIGKILL until the next process is ready and says of all pods what the one before said.
fn killed(node: &Node, https: &Https, daemon: &str, pods: usize) -> Result<Duration> {
    let agent = node.agent()?;
    let epoch = agent.hello(daemon)?.epoch;
    let begin = Instant::now();
    node.kill_daemon(daemon)?;
    loop {
        let whole = agent.hello(daemon).and_then(|hello| {
            ensure!(hello.ready && hello.epoch != epoch, "it is not ready");
            all_there(&agent, https, daemon, pods)
        });
        match whole {
            Ok(()) => return Ok(begin.elapsed()),
            Err(error) => ensure!(begin.elapsed() < MANY, "{daemon} is not whole again: {error:#}"),
        }
        std::thread::sleep(LOOK);
    }
}

fn all_there(agent: &bulkhead_testkit::agent::Agent, https: &Https, daemon: &str, pods: usize) -> Result<()> {
    let count = match daemon {
        "kubelet-syncd" => agent.pods()?.iter().filter(|pod| pod.phase == "Running").count(),
        "kubelet-statusd" => listed(&read(https, "/pods")?, "items")?,
        "kubelet-evictiond" => listed(&read(https, "/stats/summary")?, "pods")?,
        _ => pods,
    };
    ensure!(count == pods, "{count} of {pods} pods");
    Ok(())
}

fn listed(body: &[u8], field: &str) -> Result<usize> {
    let value: Value = serde_json::from_slice(body).context("reading what the node says")?;
    value[field].as_array().map(Vec::len).with_context(|| format!("no {field}"))
}
