//! Does a pod get what a device plugin gives, and does it keep that while the plugin or one of our processes dies, hangs or changes its
//! mind, and does all of it show on the Node and in the pod's status as upstream has it?

use std::os::unix::fs::MetadataExt as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use bulkhead_testkit::device_plugin::DevicePlugin;
use bulkhead_testkit::node::DAEMONS;
use bulkhead_testkit::{LONG, Node, Release, build, eventually};
use bulkhead_tests::joined::{Member, NODE, wait_node};
use bulkhead_tests::pod_resources::Agent;
use bulkhead_tests::{lab, lab_on};
use kubelet_pod_resources::v1;
use serde_json::{Value, json};

const RESOURCE: &str = "example.com/device";

/// The tests' plugin.
fn plugin(node: &Node, resource: &str, told: &Value) -> Result<DevicePlugin> {
    DevicePlugin::start(build::bin_dir()?.join("device_plugin"), node, resource, told)
}

/// Which file the socket is by which plugins register: the number of one that is gone may be given again.
fn socket(node: &Node) -> Result<(u64, i64, i64)> {
    let found = std::fs::metadata(node.root_dir().join("device-plugins/kubelet.sock"))?;
    Ok((found.ino(), found.ctime(), found.ctime_nsec()))
}

fn devices(healths: &[(&str, &str)]) -> Value {
    healths.iter().map(|(id, health)| json!({"id": id, "health": health})).collect()
}

fn wait_amounts(member: &Member, capacity: &str, allocatable: &str) -> Result<Value> {
    let what = format!("it has {capacity} devices, of which {allocatable} can be had");
    member.cluster.wait_for("nodes", "", NODE, &what, |node| {
        let status = &node["status"];
        status["capacity"][RESOURCE] == capacity && status["allocatable"][RESOURCE] == allocatable
    })
}

/// Waits until the node shows that all of these can be had.
fn wait_shown(member: &Member, amounts: &[(&str, &str)]) -> Result<Value> {
    member.cluster.wait_for("nodes", "", NODE, &format!("it has {amounts:?}"), |node| {
        amounts.iter().all(|(resource, amount)| node["status"]["allocatable"][*resource] == *amount)
    })
}

fn wants(number: u32) -> Value {
    wants_of(RESOURCE, number)
}

fn wants_of(resource: &str, number: u32) -> Value {
    let amounts = json!({resource: number.to_string()});
    json!({"containers": [{"name": "main", "resources": {"limits": amounts, "requests": amounts}}]})
}

fn health(pod: &Value) -> Value {
    pod["status"]["containerStatuses"][0]["allocatedResourcesStatus"].clone()
}

/// Resource, id and NUMA nodes of each device of a pod, as an agent on the node is told them.
fn listed(node: &Node, pod: &str) -> Result<Vec<(String, String, Vec<i64>)>> {
    let pods = Agent::new(&node.root_dir().join("pod-resources/kubelet.sock"))?.list()?;
    let pod = pods.into_iter().find(|one| one.name == pod).with_context(|| format!("{pod} is not listed"))?;
    let device = |device: v1::ContainerDevices| {
        let nodes = device.topology.unwrap_or_default().nodes.iter().map(|node| node.id).collect();
        (device.resource_name, device.device_ids.join(","), nodes)
    };
    Ok(pod.containers.into_iter().flat_map(|container| container.devices).map(device).collect())
}

fn container_id(pod: &Value) -> Value {
    pod["status"]["containerStatuses"][0]["containerID"].clone()
}

#[test]
fn what_a_plugin_gives_and_what_its_trouble_is_to_others() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let mut member = Member::start(&lab, &[], |node| node)?;
    wait_node(&member.cluster, "True")?;
    let healthy = devices(&[("a", "Healthy"), ("b", "Healthy"), ("c", "Healthy")]);
    let mut plugin = plugin(&member.node, RESOURCE, &json!({"devices": healthy, "prefer": ["c"]}))?;
    wait_amounts(&member, "3", "3")?;

    // It gets what the plugin would like to give, and all that belongs to it.
    member.create("one", &wants(1))?;
    let one = member.wait_ready("one")?;
    let uid = one["metadata"]["uid"].as_str().context("no uid")?.to_owned();
    let script = "echo $GIVEN_DEVICES; test -c /dev/given && test -e /given/told.json && echo there";
    ensure!(member.exec("one", "main", &["sh", "-c", script])?.trim() == "c\nthere");
    ensure!(plugin.calls("Allocate")? == [json!(["c"])] && plugin.calls("PreStartContainer")? == [json!(["c"])]);
    ensure!(plugin.calls("GetPreferredAllocation")? == [json!({"available": ["a", "b", "c"], "must": [], "size": 1})]);
    let checkpoint = member.node.root_dir().join("device-plugins/kubelet_internal_checkpoint");
    let written: Value = serde_json::from_slice(&std::fs::read(&checkpoint)?)?;
    let entry = &written["Data"]["PodDeviceEntries"][0];
    ensure!(entry["PodUID"] == uid.as_str() && entry["DeviceIDs"] == json!({"-1": ["c"]}), "{written:#}");
    ensure!(
        health(&one) == json!([{"name": RESOURCE, "resources": [{"resourceID": "c", "health": "Healthy"}]}]),
        "{one:#}"
    );

    // Shown to an operator as to an agent that asks.
    let shown: Value = serde_json::from_str(&member.node.ctl(&["resources", "-o", "json"])?)?;
    let (holder, all) = (&shown["holders"][0], shown["devices"].as_array().map(Vec::len));
    ensure!(holder["podUid"] == uid.as_str() && holder["devices"][0]["id"] == "c" && all == Some(3), "{shown:#}");

    let c = (RESOURCE.to_owned(), "c".to_owned(), Vec::new());
    let told = listed(&member.node, "one")?;
    ensure!(told == [c.clone()], "{told:?}");

    // Its health: in its status, and in the Node's; as often as it changes, others are not flooded.
    let ill = devices(&[("a", "Healthy"), ("b", "Healthy"), ("c", "Unhealthy")]);
    plugin.tell(&json!({"devices": ill, "prefer": ["c"]}))?;
    member.wait("one", "its device is ill", |pod| health(pod)[0]["resources"][0]["health"] == "Unhealthy")?;
    wait_amounts(&member, "3", "2")?;
    let before = member.cluster.history("pods", "default", "one")?.len();
    let changes = || anyhow::Ok(member.cluster.history("pods", "default", "one")?.len() - before);
    let begun = Instant::now();
    plugin.tell(&json!({"devices": healthy, "prefer": ["c"], "flap": "c"}))?;
    std::thread::sleep(Duration::from_secs(3));
    eventually("more than one change is told", LONG, || {
        let changes = changes()?;
        ensure!(changes >= 2, "{changes}");
        Ok(())
    })?;
    plugin.tell(&json!({"devices": healthy, "prefer": ["c"]}))?;
    member.wait("one", "its device is well", |pod| health(pod)[0]["resources"][0]["health"] == "Healthy")?;
    let (sent, changes, seconds) = (plugin.calls("flap")?.len(), changes()?, begun.elapsed().as_secs());
    ensure!(sent > 100, "the plugin has sent {sent} lists in {seconds} s");
    ensure!(changes as u64 <= seconds + 3, "{changes} changes of the pod in {seconds} s");

    // Whoever of us dies: the pod runs on, and the plugin is not even asked to register again.
    let bound = socket(&member.node)?;
    for daemon in DAEMONS {
        member.node.kill_daemon(daemon)?;
        member.node.wait_healthy()?;
    }
    wait_amounts(&member, "3", "3")?;
    let seen = member.wait_ready("one")?;
    ensure!(container_id(&seen) == container_id(&one), "{seen:#}");
    ensure!(socket(&member.node)? == bound, "another socket");
    ensure!(plugin.calls("Register")?.len() == 1 && plugin.calls("Allocate")?.len() == 1);
    eventually("an agent is told the same", LONG, || {
        let told = listed(&member.node, "one")?;
        ensure!(told == [c.clone()], "{told:?}");
        Ok(())
    })?;

    // A plugin that hangs holds up whom it is to serve. It dies: that pod fails in upstream's words, and the other one runs on.
    plugin.tell(&json!({"devices": healthy, "fault": {"Allocate": "hang"}}))?;
    member.create("hangs", &wants(1))?;
    eventually("it is asked", LONG, || {
        ensure!(plugin.calls("Allocate")?.len() == 2);
        Ok(())
    })?;
    member.create("passes", &json!({}))?;
    member.wait_ready("passes")?;
    plugin.kill();
    let failed = member.wait("hangs", "it is refused", |pod| pod["status"]["phase"] == "Failed")?;
    let (reason, message) = (&failed["status"]["reason"], failed["status"]["message"].as_str().unwrap_or_default());
    ensure!(reason == "UnexpectedAdmissionError", "{failed:#}");
    ensure!(
        message.starts_with("Pod was rejected: Allocate failed due to rpc error: code = Unavailable desc = ")
            && message.ends_with(", which is unexpected"),
        "{message}"
    );
    wait_amounts(&member, "3", "0")?;

    // Who comes while it is away waits for it, and others pass.
    member.create("waits", &wants(1))?;
    member.create("passes-too", &json!({}))?;
    member.wait_ready("passes-too")?;
    plugin.tell(&json!({"devices": healthy}))?;
    plugin.again()?;
    member.wait_ready("waits")?;
    ensure!(container_id(&member.wait_ready("one")?) == container_id(&one));
    wait_amounts(&member, "3", "3")?;

    // More than there is.
    member.create("greedy", &wants(2))?;
    let failed = member.wait("greedy", "it is refused", |pod| pod["status"]["phase"] == "Failed")?;
    let words = "requested number of devices unavailable for example.com/device. Requested: 2, Available: 1";
    ensure!(failed["status"]["message"].as_str().is_some_and(|message| message.contains(words)), "{failed:#}");

    // All of us end and start: as upstream's does, the socket says so to the plugin, which registers again. The pod runs on.
    let registered = plugin.calls("Register")?.len();
    member.node.stop()?;
    member.node.launch()?;
    member.node.wait_healthy()?;
    asked(&plugin, "Register", registered + 1)?;
    ensure!(socket(&member.node)? != bound, "the same socket");
    wait_amounts(&member, "3", "3")?;
    ensure!(container_id(&member.wait_ready("one")?) == container_id(&one));
    plugin.kill();
    member.node.finish_after_deaths()
}

const STARTS: &str = "example.com/starts";
const PREFERS: &str = "example.com/prefers";
const MUTE: &str = "example.com/mute";
const SILENT: &str = "example.com/silent";
const BROKEN: &str = "example.com/broken";
const NEAR: &str = "example.com/near";
const FAR: &str = "example.com/far";
const KIND: &str = "devices.test/unit";

/// Devices `a` to `c`, the last two on a NUMA node.
fn placed(node: u32) -> Value {
    json!([{"id": "a"}, {"id": "b", "nodes": [node]}, {"id": "c", "nodes": [node]}])
}

fn asked(plugin: &DevicePlugin, call: &str, times: usize) -> Result<()> {
    eventually(&format!("it is asked {call}"), LONG, || {
        ensure!(plugin.calls(call)?.len() == times);
        Ok(())
    })
}

/// The message of a pod that is refused.
fn refused(member: &Member, pod: &str, reason: &str) -> Result<String> {
    let failed = member.wait(pod, "it is refused", |pod| pod["status"]["phase"] == "Failed")?;
    ensure!(failed["status"]["reason"] == reason, "{failed:#}");
    Ok(failed["status"]["message"].as_str().unwrap_or_default().to_owned())
}

#[test]
fn a_plugin_that_hangs_or_dies_holds_up_only_its_own_containers() -> Result<()> {
    let Some(lab) = lab_on(Release::V2_1)? else { return Ok(()) };
    let member = Member::start(&lab, &[], |node| {
        let node = node.internal(&json!({"devicePluginTimeoutSeconds": 10}));
        node.config("topologyManagerPolicy", json!("restricted"))
    })?;
    std::fs::create_dir_all(lab.cdi_folder())?;
    let unit = |name: &str| json!({"name": name, "containerEdits": {"env": [format!("CDI_{name}=yes")]}});
    let spec = json!({"cdiVersion": "0.6.0", "kind": KIND, "devices": [unit("named"), unit("annotated")]});
    std::fs::write(lab.cdi_folder().join("devices.test.json"), spec.to_string())?;

    // === At registration: one that does not say what it can, one that does not tell its devices, and one that fails to ===
    let (node, two) = (&member.node, json!([{"id": "a"}, {"id": "b"}]));
    let hangs = |call: &str| json!({"devices": two, "fault": {call: "hang"}});
    let mute = plugin(node, MUTE, &hangs("GetDevicePluginOptions"))?;
    let silent = plugin(node, SILENT, &hangs("ListAndWatch"))?;
    asked(&mute, "GetDevicePluginOptions", 1)?;
    asked(&silent, "ListAndWatch", 1)?;
    let fails = json!({"devices": two, "fault": {"ListAndWatch": "fail"}});
    let mut broken = plugin(node, BROKEN, &fails)?;
    let three = json!([{"id": "a"}, {"id": "b"}, {"id": "c"}]);
    let six = json!([{"id": "a"}, {"id": "b"}, {"id": "c"}, {"id": "d"}, {"id": "e"}, {"id": "f"}]);
    let slow = json!({"devices": three, "fault": {"PreStartContainer": "hang"}});
    let mut starts = plugin(node, STARTS, &slow)?;
    let mut prefers = plugin(node, PREFERS, &json!({"devices": six, "fault": {"GetPreferredAllocation": "hang"}}))?;
    let given = json!({"cdi": [format!("{KIND}=named")], "annotations": {"cdi.k8s.io/unit": format!("{KIND}=annotated")},
        "devices": placed(0), "prefer": ["a", "c"]});
    let near = plugin(node, NEAR, &given)?;
    let _far = plugin(node, FAR, &json!({"devices": placed(1)}))?;
    let shown = wait_shown(&member, &[(STARTS, "3"), (PREFERS, "6"), (NEAR, "3"), (FAR, "3")])?;
    for absent in [MUTE, SILENT] {
        ensure!(shown["status"]["capacity"][absent].is_null(), "{shown:#}");
    }
    let shown = wait_shown(&member, &[(BROKEN, "0")])?;
    ensure!(shown["status"]["capacity"][BROKEN] == "0", "{shown:#}");

    // === While plugins hang, others' containers start ===
    member.create("starts", &wants_of(STARTS, 1))?;
    member.create("prefers", &wants_of(PREFERS, 1))?;
    member.create("silent", &wants_of(SILENT, 1))?;
    asked(&starts, "PreStartContainer", 1)?;
    asked(&prefers, "GetPreferredAllocation", 1)?;
    member.create("near", &wants_of(NEAR, 1))?;
    member.create("far", &wants_of(FAR, 1))?;
    member.wait_ready("near")?;
    starts.tell(&json!({"devices": three}))?;
    prefers.tell(&json!({"devices": six}))?;
    silent.tell(&json!({"devices": two}))?;
    for name in ["starts", "prefers", "silent"] {
        member.wait_ready(name)?;
    }
    let said = member.events("starts")?;
    ensure!(said.iter().all(|event| event["reason"] != "Failed"), "{said:#?}");
    wait_shown(&member, &[(SILENT, "2")])?;

    // === They die of the question ===
    prefers.tell(&json!({"devices": six, "fault": {"GetPreferredAllocation": "die"}}))?;
    starts.tell(&json!({"devices": three, "fault": {"PreStartContainer": "die"}}))?;
    member.create("prefers-dead", &wants_of(PREFERS, 1))?;
    member.create("starts-dead", &wants_of(STARTS, 1))?;
    let gone = "rpc error: code = Unavailable desc = ";
    let failed = format!("Allocate failed due to device plugin GetPreferredAllocation rpc failed with err: {gone}");
    let message = refused(&member, "prefers-dead", "UnexpectedAdmissionError")?;
    ensure!(message.starts_with(&format!("Pod was rejected: {failed}")), "{message}");
    let failed = format!("Error: device plugin PreStartContainer rpc failed with err: {gone}");
    member.wait_event("starts-dead", "Failed", |message| message.starts_with(&failed))?;

    // === They hang for too long, while what a pod of another plugin got is looked at ===
    starts.tell(&slow)?;
    prefers.tell(&json!({"devices": six, "fault": {"GetPreferredAllocation": "hang"}}))?;
    starts.again()?;
    prefers.again()?;
    member.create("starts-late", &wants_of(STARTS, 1))?;
    member.create("prefers-late", &wants_of(PREFERS, 1))?;

    // CDI by name and by annotation; a device of the NUMA node that everything else lies on, though another one is preferred.
    let said = member.exec("near", "main", &["env"])?;
    ensure!(said.contains("CDI_named=yes") && said.contains("CDI_annotated=yes"), "{said}");
    ensure!(near.calls("Allocate")? == [json!(["c"])], "{:?}", near.calls("Allocate")?);
    let asked_for = json!({"available": ["b", "c"], "must": [], "size": 1});
    ensure!(near.calls("GetPreferredAllocation")? == [asked_for], "{:?}", near.calls("GetPreferredAllocation")?);
    let checkpoint = member.node.root_dir().join("device-plugins/kubelet_internal_checkpoint");
    let written: Value = serde_json::from_slice(&std::fs::read(&checkpoint)?)?;
    let entries = written["Data"]["PodDeviceEntries"].as_array().cloned().unwrap_or_default();
    let entry = entries.iter().find(|entry| entry["ResourceName"] == NEAR).context("no entry")?;
    ensure!(entry["DeviceIDs"] == json!({"0": ["c"]}), "{written:#}");
    let told = listed(&member.node, "near")?;
    ensure!(told == [(NEAR.to_owned(), "c".to_owned(), vec![0])], "{told:?}");
    // Devices of a NUMA node that the machine does not have are nowhere near its CPUs.
    let message = refused(&member, "far", "TopologyAffinityError")?;
    ensure!(message == "Pod was rejected: Resources cannot be allocated with Topology locality", "{message}");

    let late = "rpc error: code = DeadlineExceeded desc = context deadline exceeded";
    let failed = format!("Error: device plugin PreStartContainer rpc failed with err: {late}");
    member.wait_event("starts-late", "Failed", |message| message == failed)?;
    let why = member.wait_waiting("starts-late", "main", "CreateContainerConfigError")?;
    ensure!(format!("Error: {why}") == failed, "{why}");
    let failed = format!("Allocate failed due to device plugin GetPreferredAllocation rpc failed with err: {late}, ");
    let message = refused(&member, "prefers-late", "UnexpectedAdmissionError")?;
    ensure!(message == format!("Pod was rejected: {failed}which is unexpected"), "{message}");
    let answered = mute.calls("Register")?;
    ensure!(
        answered[0].as_str().is_some_and(|why| why.contains("failed to get device plugin options: ")),
        "{answered:?}"
    );

    // They answer again, and the one that could not say what it can registers.
    mute.tell(&json!({"devices": two}))?;
    prefers.tell(&json!({"devices": six}))?;
    starts.tell(&json!({"devices": three}))?;
    wait_shown(&member, &[(MUTE, "2"), (PREFERS, "6")])?;
    // The one that failed was not asked again until it registers again.
    ensure!(broken.calls("ListAndWatch")?.len() == 1);
    broken.tell(&json!({"devices": two}))?;
    broken.again()?;
    wait_shown(&member, &[(BROKEN, "2")])?;
    member.node.finish()
}
