//! The same pods as upstream's kubelet was given, and what the runtime and the API server saw of them.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bulkhead_testkit::{Cluster, LONG, Lab, Node, NodeBuilder, Release, agnhost, eventually};
use bulkhead_tests::golden::calls::Part;
use bulkhead_tests::golden::normal::Names;
use bulkhead_tests::golden::users::Users;
use bulkhead_tests::golden::{Call, Difference, Meant, Proxy, Recording, calls, compare, normal, recording};
use bulkhead_tests::lab;
use parking_lot::Mutex;
use serde_json::{Value, json};

/// Namespaces of the recorded pods.
const NAMESPACES: [&str; 2] = ["golden", "golden3"];
const CHOSEN: &str = "BULKHEAD_GOLDEN";
/// Another kubelet to compare: what upstream's does otherwise on a runtime, the runtime does.
const KUBELET: &str = "BULKHEAD_GOLDEN_KUBELET";
/// A folder: what comes of the chosen pods is written there as recordings, and not compared.
const RECORD: &str = "BULKHEAD_GOLDEN_RECORD";
const NODE: &str = "node-a";
/// Pods at once.
const IN_FLIGHT: usize = 6;
/// Longest time until a pod is where the recorded one was when it was deleted.
const PATIENCE: Duration = Duration::from_secs(40);
/// Longest time after that until its events are there.
const LAST_EVENTS: Duration = Duration::from_secs(10);
/// Between two probes of the recorded pods.
const PERIOD: Duration = Duration::from_secs(1);
/// The recorded node's address.
const RECORDED_ADDRESS: &str = "10.240.0.2";

/// What all pods of a run have in common. The node goes before its cluster, the lab last.
struct World {
    users: Users,
    node: Node,
    proxy: Proxy,
    cluster: Cluster,
    lab: Lab,
}

fn world() -> Result<Option<World>> {
    let Some(lab) = lab()? else { return Ok(None) };
    agnhost::import(&lab, env!("CARGO_BIN_EXE_agnhost"))?;
    let proxy = Proxy::start(&lab.folder().join("recording.sock"), &lab.containerd().socket())?;
    let cluster = lab.cluster()?;
    prepare(&cluster)?;
    let builder = lab
        .node(NODE)
        .joins(&cluster)?
        .config("containerRuntimeEndpoint", json!(proxy.endpoint()))
        .config("clusterDNS", json!(["10.96.0.10"]))
        .config("clusterDomain", json!("cluster.local"))
        .config("registryPullQPS", json!(0))
        .config("maxPods", json!(250));
    let node = match std::env::var_os(KUBELET) {
        None => builder.start()?,
        Some(kubelet) => another(&lab, builder, Path::new(&kubelet))?,
    };
    cluster.wait_for("nodes", "", NODE, "it is ready", is_ready)?;
    let users = Users::on(lab.containerd().programs().release())?;
    Ok(Some(World { users, node, proxy, cluster, lab }))
}

/// A node whose kubelet is that program.
fn another(lab: &Lab, builder: NodeBuilder, kubelet: &Path) -> Result<Node> {
    let folder = lab.folder().join("another");
    std::fs::create_dir_all(&folder)?;
    // Under the name by which the lab knows a node's processes.
    std::os::unix::fs::symlink(kubelet, folder.join("kubelet"))?;
    // The stand-in speaks JSON.
    let mut node = builder.programs(&folder).config("contentType", json!("application/json")).prepare()?;
    node.launch()?;
    Ok(node)
}

fn is_ready(object: &Value) -> bool {
    let mut conditions = object["status"]["conditions"].as_array().into_iter().flatten();
    conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

/// The objects that the recorded pods name.
fn prepare(cluster: &Cluster) -> Result<()> {
    for namespace in NAMESPACES {
        cluster.create(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}))?;
        let map = |name: &str, data: Value| {
            let metadata = json!({"name": name, "namespace": namespace});
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
        };
        cluster.create(&map("cm", json!({"k1": "v1", "k2": "v2"})))?;
        // The recorded cluster had this one, and its pods' tokens come with it; the kit gives it to a real one's namespaces.
        if cluster.is_stand_in() {
            cluster.create(&map("openshift-service-ca.crt", json!({"service-ca.crt": ""})))?;
        }
        let data = json!({"user": "dQ==", "password": "cA=="});
        let metadata = json!({"name": "sec", "namespace": namespace});
        cluster.create(&json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data}))?;
    }
    Ok(())
}

/// A pod that has lived as a recorded one did.
struct Life<'a> {
    recording: &'a Recording,
    uid: String,
    names: Names,
    differences: Vec<Difference>,
    /// Its versions that the API server had.
    history: Vec<Value>,
}

/// One pod's life: created, brought to where the recorded one was, deleted.
fn live<'a>(world: &World, recording: &'a Recording) -> Result<Life<'a>> {
    let name = recording.name.as_str();
    let cluster = &world.cluster;
    let namespace = recording.namespace();
    let mut pod = recording.pod.clone().context("no pod")?;
    pod["spec"]["nodeName"] = json!(NODE);
    let created = cluster.create(&pod)?;
    let uid = created["metadata"]["uid"].as_str().context("no uid")?.to_owned();
    if let Some(ephemeral) = &recording.ephemeral {
        cluster.wait_for("pods", namespace, name, "runs", |pod| pod["status"]["phase"] == "Running")?;
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}/ephemeralcontainers");
        let patch = json!({"spec": {"ephemeralContainers": ephemeral}});
        cluster.client().patch(&path, "strategic-merge-patch", &patch)?.success()?;
    }
    let expected = expected(world, recording);
    let goal = expected.iter().rfind(|one| one["deleting"] != true).context("no status before the deletion")?;
    let late = reach(world, recording, &uid, goal)?;
    if pod.to_string().contains("Probe\":") {
        // The recorded one was there for some periods of its probes.
        std::thread::sleep(PERIOD.mul_f32(1.5));
    }
    wait_for_events(world, recording, &uid)?;
    let unhealthy = |event: &Value| event["reason"] == "Unhealthy";
    let in_life = events(cluster, namespace, &uid)?;
    cluster.delete("pods", namespace, name, None)?;
    cluster.wait_gone("pods", namespace, name)?;

    let mut history = cluster.history("pods", namespace, name)?;
    history.retain(|pod| pod["metadata"]["uid"] == uid.as_str());
    let (ours, theirs) = (names(world, &uid, &history), recorded_names(recording));
    let mut differences = compare::statuses(name, &expected, &statuses(&history, &ours));
    if std::env::var_os(CHOSEN).is_some() {
        for status in statuses(&history, &ours) {
            eprintln!("{name}: {status}");
        }
    }
    let calls: Vec<Call> = world.proxy.calls().into_iter().filter(|call| call.pod_uid == uid).collect();
    differences.extend(calls::calls(name, Part::Life, &recording.calls, &theirs, &calls, &ours));
    let mut told = events(cluster, namespace, &uid)?;
    // Which probe is under way when the end comes, and how it fails then, is chance; so is a runtime whose shim has ended
    // in the middle of a call.
    let runtime_failed = |event: &Value| event["message"].as_str().is_some_and(|text| text.contains("ttrpc: closed"));
    told.retain(|event| (!unhealthy(event) || in_life.contains(event)) && !runtime_failed(event));
    differences.extend(compare::events(name, &recording.events, &theirs, &told, &ours));
    if let Some(last) = late {
        eprintln!("{name} was not where the recorded pod was after {PATIENCE:?}: {last}");
    }
    Ok(Life { recording, uid, names: ours, differences, history })
}

/// What is asked for the removal of what pods left behind, once garbage collection has come to all of them.
fn removals(world: &World, lives: &[Life<'_>]) -> Result<Vec<Difference>> {
    let calls_of =
        |uid: &str| -> Vec<Call> { world.proxy.calls().into_iter().filter(|call| call.pod_uid == uid).collect() };
    let made = |calls: &[Call], method: &str| calls.iter().filter(|call| call.method == method).count();
    eventually("garbage collection has removed every sandbox", LONG, || {
        for life in lives {
            let calls = calls_of(&life.uid);
            let (run, removed) = (made(&calls, "RunPodSandbox"), made(&calls, "RemovePodSandbox"));
            ensure!(removed >= run, "{}: {removed} of {run} sandboxes", life.recording.name);
        }
        Ok(())
    })?;
    let of_life = |life: &Life<'_>| {
        let (recording, theirs) = (life.recording, recorded_names(life.recording));
        calls::calls(&recording.name, Part::Removal, &recording.calls, &theirs, &calls_of(&life.uid), &life.names)
    };
    Ok(lives.iter().flat_map(of_life).collect())
}

/// Waits until the pod's status is `goal`; the last one where it is not in time, which the comparison shows as well.
fn reach(world: &World, recording: &Recording, uid: &str, goal: &Value) -> Result<Option<Value>> {
    let only = format!("fieldSelector=metadata.name%3D{}", recording.name);
    let mut events = world.cluster.watch("pods", Some(recording.namespace()), &only)?;
    let end = Instant::now() + PATIENCE;
    let mut last = Value::Null;
    while let Some(left) = end.checked_duration_since(Instant::now()) {
        let Ok(Some(event)) = events.next(left) else { break };
        let history = [event.object];
        last = statuses(&history, &names(world, uid, &history)).pop().unwrap_or_default();
        if compare::as_far_as(goal, &last) {
            return Ok(None);
        }
    }
    Ok(Some(last))
}

/// Waits until there is an event for each reason that the recording has and that no end brings: the recorded pod was left
/// alone for a while where it was.
fn wait_for_events(world: &World, recording: &Recording, uid: &str) -> Result<()> {
    let end = Instant::now() + LAST_EVENTS;
    let missing = || -> Result<bool> {
        let ours = events(&world.cluster, recording.namespace(), uid)?;
        let there = |event: &Value| {
            let same = |one: &Value| one["reason"] == event["reason"] && one["fieldPath"] == event["fieldPath"];
            event["reason"] == "Killing" || event["reason"] == "Unhealthy" || ours.iter().any(same)
        };
        Ok(!recording.events.iter().all(there))
    };
    while missing()? && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

fn is_meant(meant: &[Meant], difference: &Difference) -> bool {
    meant.iter().any(|one| one.covers(difference))
}

/// Lives it twice where the first time was different: whether the third of three probes a second apart comes just before
/// or just after the second second is the machine's mood, here and under upstream's kubelet.
fn live_twice_at_most<'a>(world: &World, recording: &'a Recording, meant: &[Meant]) -> Result<Life<'a>> {
    let unmeant = |mut life: Life<'a>| {
        life.differences.retain(|difference| !is_meant(meant, difference));
        life
    };
    if recording.pod.is_none() {
        return live_static(world, recording).map(unmeant);
    }
    let first = unmeant(live(world, recording)?);
    if first.differences.is_empty() {
        return Ok(first);
    }
    for difference in &first.differences {
        eprintln!("at the first try: {difference}");
    }
    live(world, recording).map(unmeant)
}

/// The static pod: what its mirror shows, and what is asked for it.
fn live_static<'a>(world: &World, recording: &'a Recording) -> Result<Life<'a>> {
    let mirror = recording.mirror.as_ref().context("no mirror")?;
    let full = mirror["metadata"]["name"].as_str().context("no name")?;
    let namespace = mirror["metadata"]["namespace"].as_str().context("no namespace")?;
    let name = full.strip_suffix(&format!("-{NODE}")).context("a name without the node's")?;
    let metadata = json!({"name": name, "namespace": namespace, "labels": mirror["metadata"]["labels"]});
    let mut spec = mirror["spec"].clone();
    // The node adds it to every static pod.
    spec.as_object_mut().context("no spec")?.remove("tolerations");
    let manifest = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec});
    let file = format!("{name}.json");
    world.node.write_raw(&file, manifest.to_string().as_bytes())?;
    let ours = world.cluster.wait_for("pods", namespace, full, "is ready", is_ready)?;
    let uid = ours["metadata"]["annotations"]["kubernetes.io/config.hash"].as_str().context("no hash")?.to_owned();
    std::fs::remove_file(world.node.manifests().join(&file))?;
    world.cluster.wait_gone("pods", namespace, full)?;
    let (our_names, their_names) = (names(world, &uid, std::slice::from_ref(&ours)), recorded_names(recording));
    let expected = expected(world, recording);
    let status = our_names.value(&normal::status(&ours["status"], false));
    let mut differences = compare::statuses(&recording.name, &expected, &[status]);
    let stopped = |_: &World| {
        let calls = world.proxy.calls();
        let of_pod: Vec<Call> = calls.into_iter().filter(|call| call.pod_uid == uid).collect();
        ensure!(of_pod.iter().any(|call| call.method == "StopPodSandbox"), "its sandbox is not stopped yet");
        Ok(of_pod)
    };
    let calls = eventually("the static pod has ended", LONG, || stopped(world))?;
    differences.extend(calls::calls(&recording.name, Part::Life, &recording.calls, &their_names, &calls, &our_names));
    let all = eventually("the events have come", LONG, || {
        let events = events(&world.cluster, namespace, &uid)?;
        ensure!(events.len() >= recording.events.len(), "{} of {}", events.len(), recording.events.len());
        Ok(events)
    })?;
    differences.extend(compare::events(&recording.name, &recording.events, &their_names, &all, &our_names));
    let same = |key: &str| ours["metadata"][key] == mirror["metadata"][key];
    ensure!(same("labels"), "labels of the mirror: {}", ours["metadata"]["labels"]);
    for key in mirror["metadata"]["annotations"].as_object().context("no annotations")?.keys() {
        ensure!(ours["metadata"]["annotations"].get(key).is_some(), "the mirror has no annotation {key}");
    }
    Ok(Life { recording, uid, names: our_names, differences, history: vec![ours] })
}

/// The recorded statuses, as they would have been recorded on this runtime.
fn expected(world: &World, recording: &Recording) -> Vec<Value> {
    let theirs = recorded_names(recording);
    let told = |status: &Value| world.users.told(&recording.name, &theirs.value(status));
    recording.statuses.iter().map(told).collect()
}

/// Distinct statuses without what differs from run to run.
fn statuses(history: &[Value], names: &Names) -> Vec<Value> {
    let mut all: Vec<Value> = history
        .iter()
        .map(|object| {
            let deleting = object["metadata"].get("deletionTimestamp").is_some();
            names.value(&normal::status(&object["status"], deleting))
        })
        .collect();
    all.dedup();
    all
}

/// Events about a pod, as the recordings have them.
fn events(cluster: &Cluster, namespace: &str, uid: &str) -> Result<Vec<Value>> {
    let of_pod = |event: &Value| event["involvedObject"]["uid"] == uid;
    let short = |event: Value| {
        json!({
            "type": event["type"],
            "reason": event["reason"],
            "message": event["message"],
            "fieldPath": event["involvedObject"].get("fieldPath").cloned().unwrap_or_else(|| json!("")),
            "count": event["count"],
            "component": event["source"]["component"],
            "host": event["source"]["host"],
            "reportingComponent": event["reportingComponent"],
            "reportingInstance": event["reportingInstance"],
        })
    };
    Ok(cluster.list("events", Some(namespace))?.into_iter().filter(of_pod).map(short).collect())
}

fn names(world: &World, uid: &str, history: &[Value]) -> Names {
    let ips: BTreeSet<&str> = history.iter().filter_map(|object| object["status"]["podIP"].as_str()).collect();
    let address = world.lab.netns().address().to_string();
    let root = world.node.root_dir().display().to_string();
    let logs = world.node.pod_logs().display().to_string();
    let cgroup = format!("{}/kubepods", world.lab.cgroup());
    let mut pairs = vec![
        (uid, "UID"),
        (address.as_str(), "HOST-IP"),
        (root.as_str(), "ROOT"),
        (logs.as_str(), "LOGS"),
        (cgroup.as_str(), "/kubepods"),
    ];
    // A pod on the host's network has the host's.
    pairs.extend(ips.into_iter().filter(|ip| *ip != address).map(|ip| (ip, "POD-IP")));
    Names::new(&pairs)
}

fn recorded_names(recording: &Recording) -> Names {
    let mut pairs = vec![
        (recording.uid.as_str(), "UID"),
        (RECORDED_ADDRESS, "HOST-IP"),
        ("/var/lib/kubelet", "ROOT"),
        ("/var/log/pods", "LOGS"),
    ];
    pairs.extend(recording.pod_ips.iter().filter(|ip| *ip != RECORDED_ADDRESS).map(|ip| (ip.as_str(), "POD-IP")));
    Names::new(&pairs)
}

/// Writes down what came of a pod, in the words of the recorded node.
fn record(world: &World, life: &Life<'_>, folder: &Path) -> Result<()> {
    let status = |object: &Value| {
        let deleting = object["metadata"].get("deletionTimestamp").is_some();
        normal::status(&object["status"], deleting)
    };
    let mut statuses: Vec<Value> = life.history.iter().map(status).collect();
    statuses.dedup();
    let ips: BTreeSet<&str> = life.history.iter().filter_map(|object| object["status"]["podIP"].as_str()).collect();
    let recording = Recording {
        uid: life.uid.clone(),
        pod_ips: ips.into_iter().map(str::to_owned).collect(),
        statuses,
        calls: world.proxy.timed(&life.uid),
        events: events(&world.cluster, life.recording.namespace(), &life.uid)?,
        ..life.recording.clone()
    };
    let pairs = [
        (world.node.root_dir().display().to_string(), "/var/lib/kubelet"),
        (world.node.pod_logs().display().to_string(), "/var/log/pods"),
        (format!("{}/kubepods", world.node.cgroup_root()), "/kubepods"),
        (world.lab.netns().address().to_string(), RECORDED_ADDRESS),
    ];
    recording
        .write(folder, |text| pairs.iter().fold(text.to_owned(), |text, (ours, theirs)| text.replace(ours, theirs)))
}

/// `BULKHEAD_GOLDEN=basic,env` compares those alone and shows their statuses.
fn chosen(release: Release) -> Result<Vec<Recording>> {
    let only = std::env::var(CHOSEN).unwrap_or_default();
    let mut all = recording::all_on(release)?;
    all.retain(|one| only.is_empty() || only.split(',').any(|name| name == one.name));
    ensure!(!all.is_empty(), "no recording is named {only:?}");
    // The longest lives first, so that the last to end is a short one.
    all.sort_by_key(|one| std::cmp::Reverse(one.statuses.len()));
    Ok(all)
}

#[test]
fn pods_live_as_under_upstreams_kubelet() -> Result<()> {
    let Some(world) = world()? else { return Ok(()) };
    let release = world.lab.containerd().programs().release();
    let (recordings, mut meant) = (chosen(release)?, compare::meant()?);
    meant.extend(compare::meant_on(release)?);
    let queue = Mutex::new(recordings.iter());
    let lives: Mutex<Vec<Life<'_>>> = Mutex::default();
    let failures: Mutex<Vec<String>> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..IN_FLIGHT {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().next();
                    let Some(recording) = next else { return };
                    match live_twice_at_most(&world, recording, &meant) {
                        Ok(life) => lives.lock().push(life),
                        Err(error) => {
                            let text = format!("{}: {error:#}", recording.name);
                            failures.lock().push(text);
                        }
                    }
                }
            });
        }
    });
    let mut lives = lives.into_inner();
    let mut found = removals(&world, &lives)?;
    if let Some(folder) = std::env::var_os(RECORD) {
        return lives.iter().try_for_each(|life| record(&world, life, Path::new(&folder)));
    }
    found.retain(|difference| !is_meant(&meant, difference));
    found.extend(lives.iter_mut().flat_map(|life| std::mem::take(&mut life.differences)));
    found.sort();
    let failures = failures.into_inner();
    let report: Vec<String> = failures.into_iter().chain(found.iter().map(ToString::to_string)).collect();
    ensure!(report.is_empty(), "{} differences that nobody meant:\n{}", report.len(), report.join("\n"));
    Ok(())
}
