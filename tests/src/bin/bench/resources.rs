//! What the resource managers cost: pods that have a device of a plugin and a claim of a DRA driver each, on a node whose CPUs and
//! memory are managed, beside the same pods with none of it, node and node in turn.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use bulkhead_testkit::device_plugin::DevicePlugin;
use bulkhead_testkit::dra::DraDriver;
use bulkhead_testkit::{Cluster, Lab, Node, NodeBuilder, Release};
use bulkhead_tests::joined::claims;
use serde_json::{Value, json};

use crate::cluster::{all, condition};
use crate::measure::{self, MEMORY_SETTLES, SETTLE, Usage, usage};

const NODE: &str = "bench";
const NAMESPACE: &str = "default";
const RESOURCE: &str = "bench.test/device";
const DRIVER: &str = "bench.test";
/// What a managed node lays aside.
const KEPT: &str = "100Mi";

/// How much of everything.
#[derive(Debug, Clone)]
pub struct Plan {
    pub judged: bool,
    pub pods: usize,
    /// How often each of the two nodes is measured.
    pub rounds: usize,
    pub idle: Duration,
}

/// One of the two nodes, a value for each round.
#[derive(Debug, Clone, Default)]
pub struct Of {
    /// Created until Running, all at once, the last of them.
    pub started: Vec<Duration>,
    pub start_use: Vec<BTreeMap<String, Usage>>,
    pub idle: Vec<BTreeMap<String, Usage>>,
    pub pss_kib: Vec<BTreeMap<String, u64>>,
}

#[derive(Debug, Clone, Default)]
pub struct Measurements {
    /// No policies, no plugin, no driver.
    pub plain: Of,
    pub managed: Of,
}

fn progress(text: &str) {
    eprintln!("bench: resources: {text}");
}

/// Runs everything.
///
/// # Errors
/// A pod did not start or end, or a process ended meanwhile.
pub fn run(plan: &Plan) -> Result<Measurements> {
    let mut measured = Measurements::default();
    for round in 1..=plan.rounds {
        progress(&format!("round {round} of {}: without managers", plan.rounds));
        one(plan, false, &mut measured.plain)?;
        progress(&format!("round {round} of {}: with managers, devices and claims", plan.rounds));
        one(plan, true, &mut measured.managed)?;
    }
    Ok(measured)
}

/// Devices of CDI need containerd 2.
fn one(plan: &Plan, managed: bool, into: &mut Of) -> Result<()> {
    let lab = measure::lab(Release::V2_1)?;
    let cluster = lab.stock_cluster()?;
    let node = configured(measure::member(&lab, NODE, &cluster)?, managed).start()?;
    cluster.wait_for("nodes", "", NODE, "the node is ready", |node| condition(node, "Ready"))?;
    let names: Vec<String> = (0..plan.pods).map(|index| format!("pod-{index}")).collect();
    let given = if managed { Some(Given::start(&lab, &cluster, &node, &names)?) } else { None };
    std::thread::sleep(SETTLE);

    let before = usage(&node)?;
    into.started.push(start(&cluster, &node, &names, managed)?);
    into.start_use.push(measure::since(&before, &usage(&node)?));
    std::thread::sleep(MEMORY_SETTLES);
    let idle = measure::idle(plan.idle, || measure::alive(&node))?;
    into.pss_kib.push(idle.pss_kib);
    into.idle.push(idle.used);

    names.iter().try_for_each(|name| cluster.delete("pods", NAMESPACE, name, Some(1)))?;
    names.iter().try_for_each(|name| cluster.wait_gone("pods", NAMESPACE, name))?;
    drop(given);
    node.finish().context("the node's end")
}

/// All policies that look at pods all the time; nothing exclusive is asked for, as CPUs are few.
fn configured(node: NodeBuilder, managed: bool) -> NodeBuilder {
    if !managed {
        return node;
    }
    node.config("cpuManagerPolicy", json!("static"))
        .config("reservedSystemCPUs", json!("0"))
        .config("memoryManagerPolicy", json!("Static"))
        .config("systemReserved", json!({"memory": KEPT}))
        .config("evictionHard", json!({"memory.available": "0%"}))
        .config("reservedMemory", json!([{"numaNode": 0, "limits": {"memory": KEPT}}]))
        .config("topologyManagerPolicy", json!("best-effort"))
}

/// What gives devices, and claims that are allocated.
struct Given {
    _plugin: DevicePlugin,
    _driver: DraDriver,
}

impl Given {
    fn start(lab: &Lab, cluster: &Cluster, node: &Node, names: &[String]) -> Result<Self> {
        let program = |name: &str| Ok::<_, anyhow::Error>(std::env::current_exe()?.with_file_name(name));
        let devices: Vec<Value> = names.iter().map(|name| json!({"id": name, "health": "Healthy"})).collect();
        let plugin = DevicePlugin::start(program("device_plugin")?, node, RESOURCE, &json!({"devices": devices}))?;
        let driver = DraDriver::start(program("dra_driver")?, lab, node, DRIVER, "v1.DRAPlugin")?;
        let all = json!(names.len().to_string());
        cluster
            .wait_for("nodes", "", NODE, "it has the devices", |node| node["status"]["allocatable"][RESOURCE] == all)?;
        names.iter().try_for_each(|name| claims::allocated(cluster, NODE, name, &["a"], &[DRIVER]))?;
        Ok(Self { _plugin: plugin, _driver: driver })
    }
}

/// Creates the pods and waits until all run: the last one's time.
fn start(cluster: &Cluster, node: &Node, names: &[String], managed: bool) -> Result<Duration> {
    let asked = |name: &str| pod(cluster, node, name, managed);
    let times = all(cluster, names, "the pods run", asked, |_, pod| pod["status"]["phase"] == "Running")?;
    times.into_iter().max().context("no pods")
}

fn pod(cluster: &Cluster, node: &Node, name: &str, managed: bool) -> Result<()> {
    let mut container = json!({"name": "main"});
    if managed {
        let device = json!({RESOURCE: "1"});
        container["resources"] =
            json!({"limits": device, "requests": device, "claims": [{"name": name, "request": "a"}]});
    }
    let claims: &[&str] = if managed { &[name] } else { &[] };
    claims::schedule(cluster, node, name, claims, None, &json!({"containers": [container]}))
}
