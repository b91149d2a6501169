//! The node as a member of a cluster: pods come from an API server and their states go back to it. With `KUBEBUILDER_ASSETS`
//! that is a real one. Else it is the stand-in in a thread of this program, so what it computes counts for nobody, and what it
//! logged tells who asked for what.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, ensure};
use bulkhead_testkit::apiserver::request_log::Record;
use bulkhead_testkit::cluster::client::Events;
use bulkhead_testkit::floor::Floor;
use bulkhead_testkit::wait::eventually;
use bulkhead_testkit::{Cluster, LONG, Lab, Node, Pod, processes};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::measure::{self, MANY, SETTLE, Usage, pss, usage};

const NODE: &str = "bench";
const NAMESPACE: &str = "default";
/// Nothing comes after this much silence: a request that belongs to a pod follows what caused it at once.
const QUIET: Duration = Duration::from_secs(3);
const MINUTE: Duration = Duration::from_secs(60);

/// How much of everything.
#[derive(Debug, Clone)]
pub struct Plan {
    pub judged: bool,
    pub pods: usize,
    pub exits: usize,
    pub idle: Duration,
    /// Numbers of starts in flight that the floor is tried with; the best counts.
    pub in_flight: Vec<usize>,
}

/// Requests by who asked and for what (`kubelet-statusd`, `patch pods/status`).
pub type Requests = BTreeMap<(String, String), u64>;

#[derive(Debug, Clone, Default)]
pub struct Measurements {
    pub pss_empty_kib: BTreeMap<String, u64>,
    /// Nothing where the server is a real one.
    pub requests: Option<AllRequests>,
    pub start_many: measure::Pair,
    pub start_many_use: BTreeMap<String, Usage>,
    pub floor_in_flight: usize,
    pub idle: BTreeMap<String, Usage>,
    pub idle_seconds: f64,
    pub pss_full_kib: BTreeMap<String, u64>,
    /// Each killed container, from the signal to the arrival of the request that tells of it, or to the event of a watch.
    pub exit_to_patch: Vec<Duration>,
    /// The last object's end; the floor's, the last sandbox's.
    pub delete_many: measure::Pair,
}

/// The requests of each part.
#[derive(Debug, Clone, Default)]
pub struct AllRequests {
    pub one_pod: Requests,
    pub start_many: Requests,
    pub idle: Requests,
    pub delete_many: Requests,
}

impl Measurements {
    /// Takes what the server was asked since `mark`.
    fn count(
        &mut self,
        cluster: &Cluster,
        mark: Option<u64>,
        into: fn(&mut AllRequests) -> &mut Requests,
    ) -> Result<()> {
        if let (Some(mark), Some(requests)) = (mark, &mut self.requests) {
            *into(requests) = count(&cluster.log()?.after(mark));
        }
        Ok(())
    }
}

/// Where the log of requests ends now; nothing where the server is a real one.
fn mark(cluster: &Cluster) -> Result<Option<u64>> {
    if cluster.is_stand_in() { Ok(Some(cluster.log()?.mark())) } else { Ok(None) }
}

/// Runs everything.
///
/// # Errors
/// A pod did not start or end, or a process ended meanwhile.
pub fn run(plan: &Plan) -> Result<Measurements> {
    let mut measured = Measurements::default();
    progress("a runtime for the floor, another one with the node, an API server");
    let lab = Lab::start_alone()?;
    let floor = Floor::new(Lab::start_beside()?)?;
    let cluster = lab.cluster()?;
    measured.requests = cluster.is_stand_in().then(AllRequests::default);
    let node = lab.node(NODE).joins(&cluster)?.start()?;
    cluster.wait_for("nodes", "", NODE, "the node is ready", |node| condition(node, "Ready"))?;
    // Twice, so that what only the start needed has been given back.
    std::thread::sleep(SETTLE * 2);
    measured.pss_empty_kib = pss(&node)?;

    one_pod(&cluster, &mut measured)?;
    let best = measure::floor_many(&floor, "cluster", plan.pods, &plan.in_flight)?;
    measured.start_many.floor = best.started;
    measured.delete_many.floor = vec![best.deleted];
    measured.floor_in_flight = best.in_flight;

    let names: Vec<String> = (0..plan.pods).map(|index| format!("many-{index}")).collect();
    start_many(&cluster, &node, &names, &mut measured)?;
    idle(plan, &cluster, &node, &mut measured)?;
    exits(plan, &cluster, &node, &mut measured)?;
    delete_many(&cluster, &names, &mut measured)?;
    node.finish().context("the node's end")?;
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

fn pod(name: &str) -> Value {
    let mut pod = Pod::idle(name).spec("nodeName", json!(NODE)).value().clone();
    pod["metadata"]["namespace"] = json!(NAMESPACE);
    pod
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
fn one_pod(cluster: &Cluster, measured: &mut Measurements) -> Result<()> {
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
    if let (Some(mark), Some(requests)) = (mark, &mut measured.requests) {
        let records = cluster.log()?.after(mark);
        requests.one_pod = count(records.iter().filter(|record| !is_about_node(record)));
    }
    Ok(())
}

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
    let mut waiting: BTreeSet<&str> = names.iter().map(String::as_str).collect();
    let mut times = Vec::with_capacity(names.len());
    while !waiting.is_empty() {
        let left = MANY.checked_sub(begin.elapsed()).with_context(|| format!("{what}: not in time: {waiting:?}"))?;
        let event = events.expect(left).with_context(|| format!("{what}: {waiting:?}"))?;
        ensure!(event.kind != "ERROR", "{what}: the watch broke: {}", event.object);
        if wanted(&event.kind, &event.object) && waiting.remove(event.name()) {
            times.push(begin.elapsed());
        }
    }
    Ok(times)
}

fn start_many(cluster: &Cluster, node: &Node, names: &[String], measured: &mut Measurements) -> Result<()> {
    progress(&format!("{} pods at once", names.len()));
    let mut events = cluster.watch("pods", Some(NAMESPACE), "")?;
    let (mark, before) = (mark(cluster)?, usage(node)?);
    let begin = Instant::now();
    let (created, times) = std::thread::scope(|scope| {
        let creator = scope.spawn(|| names.iter().try_for_each(|name| cluster.create(&pod(name)).map(drop)));
        let times = until_each(&mut events, names, begin, "all pods are Running on the API server", |_, pod| {
            pod["status"]["phase"] == "Running"
        });
        (creator.join(), times)
    });
    created.map_err(|_| anyhow::anyhow!("creating pods panicked"))??;
    measured.start_many.node = times?;
    measured.start_many_use = measure::since(&before, &usage(node)?);
    measured.count(cluster, mark, |requests| &mut requests.start_many)
}

fn idle(plan: &Plan, cluster: &Cluster, node: &Node, measured: &mut Measurements) -> Result<()> {
    progress(&format!("idle for {} s", plan.idle.as_secs()));
    std::thread::sleep(SETTLE);
    let (mark, before, begin) = (mark(cluster)?, usage(node)?, Instant::now());
    std::thread::sleep(plan.idle);
    measured.idle = measure::since(&before, &usage(node)?);
    measured.idle_seconds = begin.elapsed().as_secs_f64();
    measured.count(cluster, mark, |requests| &mut requests.idle)?;
    measured.pss_full_kib = pss(node)?;
    Ok(())
}

/// Kills one container after the other and takes the time until the server has the request that tells of it.
fn exits(plan: &Plan, cluster: &Cluster, node: &Node, measured: &mut Measurements) -> Result<()> {
    let cri = node.cri()?;
    // Each is killed once: the second time its restart is held back, which is another thing.
    let victims: Vec<(String, i32)> = cri
        .containers()?
        .into_iter()
        .take(plan.exits.min(plan.pods))
        .map(|container| Ok((container.pod.clone(), cri.pid(&container.id)?)))
        .collect::<Result<_>>()?;
    progress(&format!("{} exits", victims.len()));
    for (pod, pid) in victims {
        measured.exit_to_patch.push(exit(cluster, &pod, pid)?);
        // The restart must be over before the next one is killed.
        cluster.wait_for("pods", NAMESPACE, &pod, "it runs again", |pod| {
            pod["status"]["containerStatuses"][0]["restartCount"] == 1 && condition(pod, "Ready")
        })?;
    }
    Ok(())
}

/// Kills a container; the time until the server knows.
fn exit(cluster: &Cluster, pod: &str, pid: i32) -> Result<Duration> {
    if !cluster.is_stand_in() {
        let mut events = cluster.watch("pods", Some(NAMESPACE), "")?;
        let begin = Instant::now();
        processes::signal(pid, Signal::SIGKILL);
        let times =
            until_each(&mut events, &[pod.to_owned()], begin, "the API server is told of the exit", |_, pod| {
                has_ended_once(pod)
            })?;
        return times.into_iter().next().context("nothing was told");
    }
    let log = cluster.log()?;
    let mark = log.mark();
    let begin = SystemTime::now();
    processes::signal(pid, Signal::SIGKILL);
    let told = eventually("the API server is told of the exit", LONG, || {
        let records = log.after(mark);
        let told = records.iter().find(|record| record.name == pod && is_told(record));
        told.map(|record| SystemTime::from(record.time)).context("nothing was told")
    })?;
    Ok(told.duration_since(begin).unwrap_or_default())
}

fn is_told(record: &Record) -> bool {
    record.what() == "patch pods/status" && record.body.as_ref().is_some_and(has_ended_once)
}

fn has_ended_once(pod: &Value) -> bool {
    pod["status"]["containerStatuses"].as_array().into_iter().flatten().any(|one| {
        ["state", "lastState"].iter().any(|state| one[state].get("terminated").is_some_and(|it| !it.is_null()))
    })
}

fn delete_many(cluster: &Cluster, names: &[String], measured: &mut Measurements) -> Result<()> {
    progress(&format!("deletion of {} pods", names.len()));
    let mut events = cluster.watch("pods", Some(NAMESPACE), "")?;
    let mark = mark(cluster)?;
    let begin = Instant::now();
    let (asked, times) = std::thread::scope(|scope| {
        let asker = scope.spawn(|| names.iter().try_for_each(|name| cluster.delete("pods", NAMESPACE, name, None)));
        let times = until_each(&mut events, names, begin, "all pods are gone", |kind, _| kind == "DELETED");
        (asker.join(), times)
    });
    asked.map_err(|_| anyhow::anyhow!("deleting pods panicked"))??;
    measured.delete_many.node = vec![times?.into_iter().max().unwrap_or_default()];
    measured.count(cluster, mark, |requests| &mut requests.delete_many)
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
