//! The node as a member of a cluster: pods come from an API server and their states go back to it. With `KUBEBUILDER_ASSETS`
//! that is a real one. Else it is the stand-in in a thread of this program, so what it computes counts for nobody, and what it
//! logged tells who asked for what.
//!
//! Beside it the null agent does the same, in turns: the floor with the API server in it, and upstream's kubelet where it is
//! asked for.

mod agents;
mod bursts;
mod exits;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bulkhead_testkit::apiserver::request_log::Record;
use bulkhead_testkit::cluster::client::Events;
use bulkhead_testkit::floor::Floor;
use bulkhead_testkit::{Cluster, Lab, Pod};
use serde_json::{Value, json};

pub use self::agents::{Agent, pod};
pub use self::bursts::{Burst, all};
use crate::measure::{self, MANY, SETTLE, Usage};

pub const NAMESPACE: &str = "default";
/// Nothing comes after this much silence: a request that belongs to a pod follows what caused it at once.
const QUIET: Duration = Duration::from_secs(3);
/// What is removed after a pod's object is gone must not run into the next one's turn.
const BETWEEN_ONES: Duration = Duration::from_millis(500);
const MINUTE: Duration = Duration::from_secs(60);

/// As many as the bare runtime does best with (SPECIFICATION.md); more only queue up in it.
pub const NULL_IN_FLIGHT: usize = 8;

/// How much of everything.
#[derive(Debug, Clone)]
pub struct Plan {
    pub judged: bool,
    /// Pods that are started and deleted one by one, of each agent in turn.
    pub pairs: usize,
    pub pods: usize,
    /// How often so many are started and deleted at once, of each agent in turn.
    pub bursts: usize,
    pub exits: usize,
    pub idle: Duration,
    /// Pods that the null agent starts or ends at a time.
    pub null_in_flight: usize,
    /// Numbers of starts in flight that the bare runtime is tried with; the best counts.
    pub in_flight: Vec<usize>,
    /// Upstream's kubelet as well.
    pub upstream: bool,
}

/// Requests by who asked and for what (`kubelet-statusd`, `patch pods/status`).
pub type Requests = BTreeMap<(String, String), u64>;

#[derive(Debug, Clone, Default)]
pub struct Measurements {
    pub null: Of,
    pub node: Of,
    pub upstream: Option<Of>,
    /// The same calls with neither an agent nor an API server: when each pod was up, and the last one's end.
    pub runtime_alone: measure::Pair,
    pub runtime_in_flight: usize,
    /// Nothing where the server is a real one.
    pub requests: Option<AllRequests>,
}

/// One agent.
#[derive(Debug, Clone, Default)]
pub struct Of {
    /// Created until Running; the first pod does not count.
    pub start_one: Vec<Duration>,
    /// Deleted until gone.
    pub delete_one: Vec<Duration>,
    pub bursts: Vec<Burst>,
    pub pss_empty_kib: BTreeMap<String, u64>,
    pub pss_full_kib: BTreeMap<String, u64>,
    pub idle: BTreeMap<String, Usage>,
    pub idle_seconds: f64,
    /// Each killed container, from the signal to the arrival of the request that tells of it, or to the event of a watch.
    pub exit_to_patch: Vec<Duration>,
}

/// The requests of each part.
#[derive(Debug, Clone, Default)]
pub struct AllRequests {
    pub one_pod: Requests,
    pub start_many: Requests,
    pub idle: Requests,
    pub delete_many: Requests,
}

/// Where the log of requests ends now; nothing where the server is a real one.
pub fn mark(cluster: &Cluster) -> Result<Option<u64>> {
    if cluster.is_stand_in() { Ok(Some(cluster.log()?.mark())) } else { Ok(None) }
}

/// What the server was asked since `mark`; nothing where the server is a real one.
pub fn since(cluster: &Cluster, mark: Option<u64>) -> Result<Requests> {
    mark.map_or_else(|| Ok(Requests::new()), |mark| Ok(count(&cluster.log()?.after(mark))))
}

/// Runs everything.
///
/// # Errors
/// A pod did not start or end, or a process ended meanwhile.
pub fn run(plan: &Plan) -> Result<Measurements> {
    let mut measured = Measurements::default();
    if plan.upstream {
        agents::upstreams_kubelet()?;
    }
    progress("runtimes, an API server, the node");
    let lab = measure::lab(bulkhead_testkit::Release::from_environment()?)?;
    let cluster = lab.stock_cluster()?;
    let node = Agent::node(&lab, &cluster)?;
    // Twice, so that what only the start needed has been given back.
    std::thread::sleep(SETTLE * 2);
    let mut agents = vec![(Of::default(), Agent::null(&cluster, plan.null_in_flight)?), (Of::default(), node)];
    if plan.upstream {
        agents.push((Of::default(), Agent::upstream(&cluster)?));
        std::thread::sleep(SETTLE);
    }
    for (of, agent) in &mut agents {
        of.pss_empty_kib = agent.pss()?;
    }

    let mut requests = AllRequests { one_pod: one_pod(&cluster)?, ..AllRequests::default() };
    pairs(plan, &cluster, &mut agents)?;
    for round in 1..=plan.bursts {
        for (of, agent) in &mut agents {
            let counted = matches!(agent, Agent::Node(_)) && round == plan.bursts;
            let last = round == plan.bursts;
            burst(plan, &cluster, agent, of, (round, last), counted.then_some(&mut requests))?;
        }
    }
    measured.requests = cluster.is_stand_in().then_some(requests);
    for (of, agent) in agents {
        match agent {
            Agent::Null(_) => measured.null = of,
            Agent::Node(_) => measured.node = of,
            Agent::Upstream(_) => measured.upstream = Some(of),
        }
        agent.finish()?;
    }

    let floor = Floor::new(Lab::start_beside()?)?;
    let best = measure::floor_many(&floor, "cluster", plan.pods, &plan.in_flight)?;
    measured.runtime_alone = measure::Pair { floor: best.started, node: vec![best.deleted] };
    measured.runtime_in_flight = best.in_flight;
    Ok(measured)
}

fn progress(text: &str) {
    eprintln!("bench: cluster: {text}");
}

/// Whether a condition of an object is True.
pub fn condition(object: &Value, kind: &str) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|one| one["type"] == kind && one["status"] == "True")
}

/// Which of the node's processes a record is from: the user agent ends with its name.
fn process(record: &Record) -> String {
    record.agent.rsplit(' ').next().unwrap_or_default().to_owned()
}

fn count<'a>(records: impl IntoIterator<Item = &'a Record>) -> Requests {
    let mut requests = Requests::new();
    for record in records {
        let refused = if record.status >= 300 { format!(", answered {}", record.status) } else { String::new() };
        *requests.entry((process(record), record.what() + &refused)).or_default() += 1;
    }
    requests
}

/// What the node sends about itself, pods or none.
fn is_about_node(record: &Record) -> bool {
    matches!(record.resource, "nodes" | "leases" | "csinodes")
}

/// The life of the pod that upstream's 39 requests were counted for: one volume from a configMap, the default token.
fn one_pod(cluster: &Cluster) -> Result<Requests> {
    const NODE: &str = "bench";
    progress("requests for the life of one pod");
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "cm", "namespace": NAMESPACE},
                     "data": {"k1": "v1"}});
    cluster.create(&map)?;
    let mut source = serde_json::Map::new();
    source.insert("configMap".to_owned(), json!({"name": "cm"}));
    let one = Pod::idle("one").spec("nodeName", json!(NODE)).volume("cm", source, "/cm");
    let mark = mark(cluster)?;
    cluster.create(one.value())?;
    cluster.wait_for("pods", NAMESPACE, "one", "it is ready", |pod| condition(pod, "Ready"))?;
    std::thread::sleep(QUIET);
    cluster.delete("pods", NAMESPACE, "one", None)?;
    cluster.wait_gone("pods", NAMESPACE, "one")?;
    std::thread::sleep(QUIET);
    let Some(mark) = mark else { return Ok(Requests::new()) };
    let records = cluster.log()?.after(mark);
    Ok(count(records.iter().filter(|record| !is_about_node(record))))
}

/// One pod after the other, of each agent in turn. The first start of a runtime reads its files from disk: it counts for none.
fn pairs(plan: &Plan, cluster: &Cluster, agents: &mut [(Of, Agent)]) -> Result<()> {
    for index in 0..=plan.pairs {
        progress(&format!("pod {index} of {} of each", plan.pairs));
        for (of, agent) in &mut *agents {
            let (start, delete) = bursts::one(cluster, agent, &format!("{}-one-{index}", agent.name()))?;
            if index > 0 {
                of.start_one.push(start);
                of.delete_one.push(delete);
            }
            std::thread::sleep(BETWEEN_ONES);
        }
    }
    Ok(())
}

/// Many at once; the last time it idles with them, and some are killed. `requests`: what they are, is counted there.
fn burst(
    plan: &Plan,
    cluster: &Cluster,
    agent: &mut Agent,
    of: &mut Of,
    (round, last): (usize, bool),
    mut requests: Option<&mut AllRequests>,
) -> Result<()> {
    let name = agent.name().to_owned();
    let names: Vec<String> = (0..plan.pods).map(|index| format!("{name}-{round}-{index}")).collect();
    let mut burst = Burst::default();
    progress(&format!("{name}: {} pods at once, {round} of {}", plan.pods, plan.bursts));
    let begun = mark(cluster)?;
    burst.start(cluster, agent, &names)?;
    if let Some(requests) = requests.as_deref_mut() {
        requests.start_many = since(cluster, begun)?;
    }
    if last && !matches!(agent, Agent::Null(_)) {
        std::thread::sleep(SETTLE);
        progress(&format!("{name}: idle for {} s", plan.idle.as_secs()));
        let begun = mark(cluster)?;
        let idle = measure::idle(plan.idle, || agent.processes())?;
        (of.idle, of.idle_seconds, of.pss_full_kib) = (idle.used, idle.seconds, idle.pss_kib);
        if let Some(requests) = requests.as_deref_mut() {
            requests.idle = since(cluster, begun)?;
        }
        of.exit_to_patch = exits::exits(plan.exits.min(plan.pods), cluster, agent)?;
    }
    progress(&format!("{name}: deletion of {} pods", names.len()));
    let begun = mark(cluster)?;
    burst.delete(cluster, agent, &names)?;
    if let Some(requests) = requests {
        requests.delete_many = since(cluster, begun)?;
    }
    of.bursts.push(burst);
    Ok(())
}

/// Of very many pods each gets so long.
const EACH: Duration = Duration::from_secs(1);
/// Names in an error.
const SHOWN: usize = 5;

/// Reads the events of a watch until each name was once as wanted: when that was, counted from `begin`.
///
/// # Errors
/// Some were not in time, or the watch broke.
pub fn until_each(
    events: &mut Events,
    names: &[String],
    begin: Instant,
    what: &str,
    wanted: impl Fn(&str, &Value) -> bool,
) -> Result<Vec<Duration>> {
    let each = each_by_name(events, names, begin, what, wanted)?;
    Ok(each.into_iter().map(|(_, time)| time).collect())
}

/// The same, and whose time each is, in the order in which they were seen.
///
/// # Errors
/// As [`until_each`].
pub fn each_by_name(
    events: &mut Events,
    names: &[String],
    begin: Instant,
    what: &str,
    wanted: impl Fn(&str, &Value) -> bool,
) -> Result<Vec<(String, Duration)>> {
    let mut waiting: BTreeSet<&str> = names.iter().map(String::as_str).collect();
    let limit = MANY.max(EACH * u32::try_from(names.len()).unwrap_or(u32::MAX));
    let mut times = Vec::with_capacity(names.len());
    while !waiting.is_empty() {
        let missing = |waiting: &BTreeSet<&str>| {
            let some: Vec<_> = waiting.iter().take(SHOWN).collect();
            format!("{what}: {} of {} are missing, among them {some:?}", waiting.len(), names.len())
        };
        let left = limit.checked_sub(begin.elapsed()).with_context(|| missing(&waiting))?;
        let event = events.expect(left).with_context(|| missing(&waiting))?;
        ensure!(event.kind != "ERROR", "{what}: the watch broke: {}", event.object);
        if wanted(&event.kind, &event.object) && waiting.remove(event.name()) {
            times.push((event.name().to_owned(), begin.elapsed()));
        }
    }
    Ok(times)
}

/// Whether a request changes something on the server.
pub fn is_write(what: &str) -> bool {
    !["get ", "list ", "watch "].iter().any(|read| what.starts_with(read))
}

/// Writes in a minute.
pub fn writes_per_minute(requests: &Requests, seconds: f64) -> f64 {
    let writes: u64 = requests.iter().filter(|((_, what), _)| is_write(what)).map(|(_, count)| count).sum();
    writes as f64 * MINUTE.as_secs_f64() / seconds
}
