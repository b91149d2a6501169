//! What volumes cost: pods with two emptyDir, two configMap, one secret and one CSI volume each, the driver being that of the tests,
//! beside the same files made by hand and the same calls made of the driver with nobody between.

mod floor;
mod growth;
mod ownership;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bulkhead_testkit::cluster::client::Events;
use bulkhead_testkit::csi::{Call, Driver, DriverBuilder, objects};
use bulkhead_testkit::{Cluster, IDLE, Node, Release, image};
use serde_json::{Value, json};

use crate::cluster::{condition, until_each};
use crate::measure::{self, Idle, MEMORY_SETTLES, SETTLE, Usage, usage};

pub use ownership::Given;

const NODE: &str = "bench";
const NAMESPACE: &str = "default";
const DRIVER: &str = "bench.test";
/// Its claims may grow.
const CLASS: &str = "grows";
const GROUP: u32 = 2000;
/// Of each configMap and secret.
const KEYS: usize = 3;
const VALUE: &str = "a value as long as many values of many maps are";

/// How much of everything.
#[derive(Debug, Clone)]
pub struct Plan {
    pub judged: bool,
    pub pods: usize,
    /// Pods that are started one after the other.
    pub alone: usize,
    pub files: usize,
    pub idle: Duration,
    /// Pods without volumes and pods with local ones idle, and nothing else: what versions that know no claim can do, too.
    pub local_only: bool,
}

/// Operations of a kind of volumes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Operations {
    pub count: f64,
    pub seconds: f64,
}

impl Operations {
    pub fn mean(self) -> f64 {
        if self.count > 0.0 { self.seconds / self.count } else { 0.0 }
    }
}

/// A number of pods' set-up, as the node and the driver tell it.
#[derive(Debug, Clone, Default)]
pub struct SetUp {
    /// By plugin, of `storage_operation_duration_seconds`.
    pub operations: BTreeMap<String, Operations>,
    /// Each volume, from the call NodeStageVolume to the answer to NodePublishVolume.
    pub between: Vec<Duration>,
    /// The driver's own time in the two.
    pub inside: Vec<Duration>,
}

#[derive(Debug, Clone, Default)]
pub struct Measurements {
    pub given: Option<Given>,
    /// Plain mkdir, mount and write, each pod.
    pub files: Vec<Duration>,
    /// The driver's calls with nobody between, each volume.
    pub direct: Vec<Duration>,
    pub alone: SetUp,
    pub burst: SetUp,
    /// From the controller's last word to NodeExpandVolume, each claim.
    pub growth: Vec<Duration>,
    /// Created until Running, one after the other.
    pub start_alone: measure::Pair,
    /// The same, all at once. The floor is that of pods that have no volumes.
    pub start_many: measure::Pair,
    pub without_use: BTreeMap<String, Usage>,
    pub with_use: BTreeMap<String, Usage>,
    pub driver_cpu_ns: u64,
    pub idle_without: Idle,
    /// The same pods as those of `idle`, but for the CSI volume.
    pub idle_local: Idle,
    pub idle: Idle,
}

fn progress(text: &str) {
    eprintln!("bench: volumes: {text}");
}

/// Runs everything.
///
/// # Errors
/// A pod did not start or end, or a process ended meanwhile.
pub fn run(plan: &Plan) -> Result<Measurements> {
    let mut measured = Measurements::default();
    let lab = measure::lab(Release::from_environment()?)?;
    if plan.files > 0 && !plan.local_only {
        progress(&format!("fsGroup on {} files", plan.files));
        measured.given = Some(ownership::measure(&lab.folder(), plan.files)?);
    }
    if plan.pods == 0 {
        return Ok(measured);
    }
    let program = std::env::current_exe()?.with_file_name("csi_driver");
    let plain = lab.folder().join("plain");
    std::fs::create_dir(&plain)?;

    progress("an API server, a node, a driver");
    let cluster = lab.stock_cluster()?;
    let node = measure::member(&lab, NODE, &cluster)?.start()?;
    cluster.wait_for("nodes", "", NODE, "the node is ready", |node| condition(node, "Ready"))?;
    maps(&cluster)?;
    if plan.local_only {
        measured.idle_without = idle_with(&cluster, &node, plan, "bare", bare)?;
        measured.idle_local = idle_with(&cluster, &node, plan, "local", local)?;
        node.finish().context("the node's end")?;
        return Ok(measured);
    }
    let spec = json!({"attachRequired": false, "podInfoOnMount": true, "fsGroupPolicy": "File",
        "volumeLifecycleModes": ["Persistent"]});
    cluster.create(&objects::csi_driver(DRIVER, &spec))?;
    cluster.create(&objects::storage_class(CLASS, DRIVER, &Value::Null))?;
    let driver = DriverBuilder::new(&program, &node, DRIVER).start()?;
    driver.wait_registered()?;

    progress("the same by hand");
    let direct =
        DriverBuilder::at(&program, &lab.folder().join("direct"), &lab.folder().join("direct-state"), "direct.test")
            .argument("--registration", "none")
            .start()?;
    // The first of each reads programs from the disk.
    floor::files(&plain, 1)?;
    floor::driver(&direct, &plain, 1)?;
    measured.files = floor::files(&plain, plan.pods)?;
    measured.direct = floor::driver(&direct, &plain, plan.pods)?;
    drop(direct);

    let alone = |prefix: &str| names(prefix, plan.alone + 1);
    progress(&format!("{} pods one after the other, without volumes", plan.alone));
    for name in alone("bare-alone") {
        measured.start_alone.floor.push(start(&cluster, &[name], bare)?.0[0]);
    }
    progress(&format!("{} pods one after the other", plan.alone));
    let mut before = Seen::take(&node, &driver)?;
    for (index, name) in alone("alone").into_iter().enumerate() {
        claim(&cluster, &name)?;
        if index == 1 {
            // The first reads files from the disk, and counts for neither.
            before = Seen::take(&node, &driver)?;
        }
        measured.start_alone.node.push(start(&cluster, &[name], full)?.0[0]);
    }
    measured.alone = Seen::take(&node, &driver)?.since(&before);
    for pair in [&mut measured.start_alone.floor, &mut measured.start_alone.node] {
        pair.remove(0);
    }
    delete(&cluster, &[alone("bare-alone"), alone("alone")].concat())?;

    progress(&format!("{} pods at once, without volumes", plan.pods));
    let bare_names = names("bare", plan.pods);
    let before = usage(&node)?;
    measured.start_many.floor = start(&cluster, &bare_names, bare)?.0;
    measured.without_use = measure::since(&before, &usage(&node)?);
    progress(&format!("idle for {} s", plan.idle.as_secs()));
    std::thread::sleep(MEMORY_SETTLES);
    measured.idle_without = measure::idle(plan.idle, || measure::alive(&node))?;
    delete(&cluster, &bare_names)?;
    std::thread::sleep(SETTLE);
    measured.idle_local = idle_with(&cluster, &node, plan, "local", local)?;
    std::thread::sleep(SETTLE);

    progress(&format!("{} pods at once", plan.pods));
    let full_names = names("full", plan.pods);
    full_names.iter().try_for_each(|name| claim(&cluster, name))?;
    std::thread::sleep(SETTLE);
    let (before, seen, driver_before) = (usage(&node)?, Seen::take(&node, &driver)?, driver.cpu_nanoseconds()?);
    measured.start_many.node = start(&cluster, &full_names, full)?.0;
    measured.with_use = measure::since(&before, &usage(&node)?);
    measured.driver_cpu_ns = driver.cpu_nanoseconds()?.saturating_sub(driver_before);
    measured.burst = Seen::take(&node, &driver)?.since(&seen);

    progress(&format!("idle for {} s", plan.idle.as_secs()));
    std::thread::sleep(MEMORY_SETTLES);
    measured.idle = measure::idle(plan.idle, || measure::alive(&node))?;
    progress("the end of all pods");
    delete(&cluster, &full_names)?;

    progress("claims that grow, one after the other");
    measured.growth = growth::measure(&cluster, &node, &driver, &names("grows", plan.alone))?;
    drop(driver);
    node.finish().context("the node's end")?;
    Ok(measured)
}

/// Starts such pods, looks on while they idle, and ends them.
fn idle_with(cluster: &Cluster, node: &Node, plan: &Plan, prefix: &str, pod: fn(&str) -> Value) -> Result<Idle> {
    progress(&format!("{} pods at once ({prefix}), idle for {} s", plan.pods, plan.idle.as_secs()));
    let names = names(prefix, plan.pods);
    start(cluster, &names, pod)?;
    std::thread::sleep(MEMORY_SETTLES);
    let idle = measure::idle(plan.idle, || measure::alive(node))?;
    delete(cluster, &names)?;
    Ok(idle)
}

fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|index| format!("{prefix}-{index}")).collect()
}

fn maps(cluster: &Cluster) -> Result<()> {
    let data: BTreeMap<String, &str> = (0..KEYS).map(|key| (format!("key-{key}"), VALUE)).collect();
    for name in ["map", "more"] {
        let metadata = json!({"name": name, "namespace": NAMESPACE});
        cluster.create(&json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}))?;
    }
    let metadata = json!({"name": "keys", "namespace": NAMESPACE});
    cluster.create(&json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data})).map(drop)
}

fn claim(cluster: &Cluster, name: &str) -> Result<()> {
    objects::create_bound(cluster, name, DRIVER, &json!({"storageClassName": CLASS}))
}

fn bare(name: &str) -> Value {
    pod(name, &json!([]))
}

fn local(name: &str) -> Value {
    pod(name, &Value::Array(local_volumes()))
}

fn full(name: &str) -> Value {
    let mut volumes = local_volumes();
    volumes.push(objects::of_claim(name));
    pod(name, &Value::Array(volumes))
}

fn local_volumes() -> Vec<Value> {
    vec![
        json!({"name": "empty", "emptyDir": {}}),
        json!({"name": "scratch", "emptyDir": {}}),
        json!({"name": "map", "configMap": {"name": "map"}}),
        json!({"name": "more", "configMap": {"name": "more"}}),
        json!({"name": "keys", "secret": {"secretName": "keys"}}),
    ]
}

/// A pod that idles with these volumes, and without a token.
fn pod(name: &str, volumes: &Value) -> Value {
    let mounts: Vec<Value> = volumes
        .as_array()
        .into_iter()
        .flatten()
        .map(|volume| json!({"name": volume["name"], "mountPath": format!("/{}", volume["name"].as_str().unwrap_or_default())}))
        .collect();
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": NAMESPACE}, "spec": {
        "nodeName": NODE, "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": false,
        "securityContext": {"fsGroup": GROUP}, "volumes": volumes,
        "containers": [{"name": "main", "image": image::BUSYBOX, "command": ["sh", "-c", IDLE], "volumeMounts": mounts}]}})
}

/// Creates pods and waits until each runs: each one's time from the common beginning.
fn start(cluster: &Cluster, names: &[String], pod: impl Fn(&str) -> Value + Sync) -> Result<(Vec<Duration>, Events)> {
    let mut events = cluster.watch("pods", Some(NAMESPACE), "")?;
    let begin = Instant::now();
    let (created, times) = std::thread::scope(|scope| {
        let creator = scope.spawn(|| names.iter().try_for_each(|name| cluster.create(&pod(name)).map(drop)));
        let times = until_each(&mut events, names, begin, "the pods run", |_, pod| pod["status"]["phase"] == "Running");
        (creator.join(), times)
    });
    created.map_err(|_| anyhow::anyhow!("creating pods panicked"))??;
    Ok((times?, events))
}

fn delete(cluster: &Cluster, names: &[String]) -> Result<()> {
    names.iter().try_for_each(|name| cluster.delete("pods", NAMESPACE, name, Some(1)))?;
    names.iter().try_for_each(|name| cluster.wait_gone("pods", NAMESPACE, name))
}

/// `sum` or `count` of the durations of operations, its labels, its value.
fn operation(line: &str) -> Option<(&str, &str, f64)> {
    let (what, rest) = line.strip_prefix("storage_operation_duration_seconds_")?.split_once('{')?;
    let (labels, value) = rest.rsplit_once("} ")?;
    Some((what, labels, value.parse().ok()?))
}

/// What the node and the driver have counted so far.
#[derive(Debug)]
struct Seen {
    operations: BTreeMap<String, Operations>,
    calls: Vec<Call>,
}

impl Seen {
    fn take(node: &Node, driver: &Driver) -> Result<Self> {
        let agent = node.agent()?;
        let mut operations = BTreeMap::<String, Operations>::new();
        for daemon in ["kubelet-syncd", "kubelet-volnetd"] {
            for line in agent.metrics(daemon)?.lines() {
                let Some((what, labels, value)) = operation(line) else { continue };
                let is_mount = labels.contains("operation_name=\"volume_mount\"");
                if !is_mount || !labels.contains("status=\"success\"") {
                    continue;
                }
                let plugin = labels.split("volume_plugin=\"").nth(1).and_then(|rest| rest.split('"').next());
                let one = operations.entry(plugin.unwrap_or_default().to_owned()).or_default();
                match what {
                    "sum" => one.seconds += value,
                    "count" => one.count += value,
                    _ => {}
                }
            }
        }
        Ok(Seen { operations, calls: driver.calls()? })
    }

    fn since(&self, before: &Seen) -> SetUp {
        let mut setup = SetUp::default();
        for (plugin, now) in &self.operations {
            let then = before.operations.get(plugin).copied().unwrap_or_default();
            let of = Operations { count: now.count - then.count, seconds: now.seconds - then.seconds };
            if of.count > 0.0 {
                setup.operations.insert(plugin.clone(), of);
            }
        }
        let calls = self.calls.get(before.calls.len()..).unwrap_or_default();
        let seconds = |seconds: f64| Duration::from_secs_f64(seconds.max(0.0));
        for stage in calls.iter().filter(|call| call.method == "NodeStageVolume") {
            let publish =
                calls.iter().find(|call| call.method == "NodePublishVolume" && call.volume() == stage.volume());
            let Some(publish) = publish else { continue };
            let (Some((staged, ..)), Some((published, ..))) = (&stage.answer, &publish.answer) else { continue };
            setup.between.push(seconds(published - stage.began));
            setup.inside.push(seconds(staged - stage.began + published - publish.began));
        }
        setup
    }
}
