//! Does a pod get what a device plugin gives, and does it keep that while the plugin or one of our processes dies, hangs or changes its
//! mind, and does all of it show on the Node and in the pod's status as upstream has it?

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bulkhead_testkit::node::DAEMONS;
use bulkhead_testkit::{LONG, Node, build, eventually};
use bulkhead_tests::joined::{Member, NODE, wait_node};
use bulkhead_tests::lab;
use serde_json::{Value, json};

const RESOURCE: &str = "example.com/device";

/// The tests' plugin, which dies with the test.
struct Plugin {
    state: PathBuf,
    child: Option<Child>,
}

impl Plugin {
    fn of(node: &Node, told: &Value) -> Result<Self> {
        let state = node.lab().folder().join("device-plugin");
        std::fs::create_dir_all(&state)?;
        let mut plugin = Plugin { state, child: None };
        plugin.tell(told)?;
        plugin.start(node.root_dir())?;
        Ok(plugin)
    }

    fn start(&mut self, root: &Path) -> Result<()> {
        let program = build::bin_dir()?.join("device_plugin");
        let log = std::fs::File::create(self.state.join("log"))?;
        let mut command = Command::new(&program);
        command.args(["--resource", RESOURCE]).arg("--root").arg(root).arg("--state").arg(&self.state);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        self.child = Some(command.spawn().with_context(|| program.display().to_string())?);
        Ok(())
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    fn tell(&self, told: &Value) -> Result<()> {
        let new = self.state.join("told.new");
        std::fs::write(&new, told.to_string())?;
        Ok(std::fs::rename(new, self.state.join("told.json"))?)
    }

    /// What it was asked by this call.
    fn calls(&self, call: &str) -> Result<Vec<Value>> {
        let text = std::fs::read_to_string(self.state.join("calls.jsonl")).unwrap_or_default();
        let all: Vec<Value> = text.lines().map(serde_json::from_str).collect::<serde_json::Result<_>>()?;
        Ok(all.into_iter().filter(|one| one["call"] == call).map(|one| one["what"].clone()).collect())
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        self.kill();
    }
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

fn wants(number: u32) -> Value {
    let amounts = json!({RESOURCE: number.to_string()});
    json!({"containers": [{"name": "main", "resources": {"limits": amounts, "requests": amounts}}]})
}

fn health(pod: &Value) -> Value {
    pod["status"]["containerStatuses"][0]["allocatedResourcesStatus"].clone()
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
    let mut plugin = Plugin::of(&member.node, &json!({"devices": healthy, "prefer": ["c"]}))?;
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

    // Its health: in its status, and in the Node's; as often as it changes, others are not flooded.
    let ill = devices(&[("a", "Healthy"), ("b", "Healthy"), ("c", "Unhealthy")]);
    plugin.tell(&json!({"devices": ill, "prefer": ["c"]}))?;
    member.wait("one", "its device is ill", |pod| health(pod)[0]["resources"][0]["health"] == "Unhealthy")?;
    wait_amounts(&member, "3", "2")?;
    let before = member.cluster.history("pods", "default", "one")?.len();
    plugin.tell(&json!({"devices": healthy, "prefer": ["c"], "flap": "c"}))?;
    std::thread::sleep(Duration::from_secs(3));
    plugin.tell(&json!({"devices": healthy, "prefer": ["c"]}))?;
    member.wait("one", "its device is well", |pod| health(pod)[0]["resources"][0]["health"] == "Healthy")?;
    let changes = member.cluster.history("pods", "default", "one")?.len() - before;
    ensure!(changes <= 6, "{changes} changes of the pod in 3 s");

    // Whoever of us dies: the pod runs on, and the plugin is not even asked to register again.
    for daemon in DAEMONS {
        member.node.kill_daemon(daemon)?;
        member.node.wait_healthy()?;
    }
    wait_amounts(&member, "3", "3")?;
    let seen = member.wait_ready("one")?;
    ensure!(container_id(&seen) == container_id(&one), "{seen:#}");
    ensure!(plugin.calls("Register")?.len() == 1 && plugin.calls("Allocate")?.len() == 1);

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
    plugin.start(member.node.root_dir())?;
    member.wait_ready("waits")?;
    ensure!(container_id(&member.wait_ready("one")?) == container_id(&one));
    wait_amounts(&member, "3", "3")?;

    // More than there is.
    member.create("greedy", &wants(2))?;
    let failed = member.wait("greedy", "it is refused", |pod| pod["status"]["phase"] == "Failed")?;
    let words = "requested number of devices unavailable for example.com/device. Requested: 2, Available: 1";
    ensure!(failed["status"]["message"].as_str().is_some_and(|message| message.contains(words)), "{failed:#}");
    plugin.kill();
    member.node.finish_after_deaths()
}
