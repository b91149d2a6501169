//! Does a pod keep the CPUs, the memory, the device and the claim that it has for itself when upstream's kubelet and ours take a node
//! from each other, whichever of them gave them, and does the one give back what the other gave?

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use bulkhead_testkit::cluster::{self, Storage};
use bulkhead_testkit::cri::Fingerprint;
use bulkhead_testkit::device_plugin::DevicePlugin;
use bulkhead_testkit::dra::DraDriver;
use bulkhead_testkit::skip::{Lack, skip_this_test};
use bulkhead_testkit::{IDLE, LONG, Release, eventually, image};
use bulkhead_tests::joined::claims;
use bulkhead_tests::lab_alone_on;
use bulkhead_tests::storage::scene::{Kubelet, NODE, Scene};
use serde_json::{Value, json};

use crate::{DEVICE_PLUGIN, DRA_DRIVER};

const RESOURCE: &str = "example.com/device";
const DRIVER: &str = "one.test";
/// Laid aside of the memory of the one node that there is.
const KEPT: &str = "100Mi";

struct World {
    scene: Scene,
    plugin: DevicePlugin,
    driver: DraDriver,
    /// Kubelets so far.
    kubelets: usize,
    /// CPUs that pods may have for themselves: all but the first.
    free: usize,
}

/// What there is of the pods that run, beside the files' order.
#[derive(Debug, PartialEq)]
struct Seen {
    containers: Vec<Fingerprint>,
    /// By pod: CPUs and memory nodes as the kernel lists them, and what the plugin and the driver gave.
    has: BTreeMap<String, (String, String, Vec<String>)>,
    /// The managers' files as they are.
    states: [String; 2],
    /// Who has which device.
    devices: Vec<String>,
    /// The file of claims, and those that the driver has prepared.
    claims: Value,
    prepared: Vec<String>,
}

/// A node of upstream's kubelet with a device plugin and a DRA driver. Upstream's looks for plugins below `/var/lib/kubelet`, whatever
/// its root directory is, and there is one such folder on the machine.
fn world() -> Result<Option<World>> {
    let Some(lab) = lab_alone_on(Release::V2_1)? else { return Ok(None) };
    if cluster::programs().is_none() {
        skip_this_test(Lack::ControlPlane)?;
        return Ok(None);
    }
    // The kubelets see the machine's, whatever this process may use.
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online")?;
    if online.trim() == "0" {
        skip_this_test(Lack::Cpus)?;
        return Ok(None);
    }
    let free: usize = online.trim().strip_prefix("0-").context("the test needs CPUs without gaps")?.parse()?;
    let cluster = lab.cluster_on(Storage::default())?;
    let scene = Scene::start_upstreams_with(lab.clone(), cluster, |node| {
        node.root_dir(Path::new("/var/lib/kubelet"))
            .config("cpuManagerPolicy", json!("static"))
            .config("cpuManagerReconcilePeriod", json!("1s"))
            .config("reservedSystemCPUs", json!("0"))
            .config("memoryManagerPolicy", json!("Static"))
            .config("systemReserved", json!({"memory": KEPT}))
            .config("evictionHard", json!({"memory.available": "0%"}))
            .config("reservedMemory", json!([{"numaNode": 0, "limits": {"memory": KEPT}}]))
            .config("topologyManagerPolicy", json!("single-numa-node"))
    })?;
    let Some(scene) = scene else {
        skip_this_test(Lack::ControlPlane)?;
        return Ok(None);
    };
    let devices = json!([{"id": "x", "health": "Healthy"}, {"id": "y", "health": "Healthy"}]);
    let plugin = DevicePlugin::start(DEVICE_PLUGIN, &scene.node, RESOURCE, &json!({"devices": devices}))?;
    let driver = DraDriver::start(DRA_DRIVER, &scene.lab, &scene.node, DRIVER, "v1.DRAPlugin")?;
    let world = World { scene, plugin, driver, kubelets: 1, free };
    world.wait_shown(0)?;
    Ok(Some(world))
}

impl World {
    /// The plugin, which was asked for its devices so often `before`, is known to the kubelet of now, and the Node shows both devices.
    fn wait_shown(&self, before: usize) -> Result<()> {
        eventually("the plugin is asked for its devices", LONG, || {
            let asked = self.plugin.calls("ListAndWatch")?.len();
            ensure!(asked > before, "{asked} times");
            Ok(())
        })?;
        let both = |node: &Value| node["status"]["allocatable"][RESOURCE] == "2";
        self.scene.cluster.wait_for("nodes", "", NODE, "both devices can be had", both).map(drop)
    }

    /// A pod with a device; with all free CPUs for itself if it is Guaranteed.
    fn pod(&self, name: &str, guaranteed: bool) -> Result<()> {
        let mut amounts = json!({RESOURCE: "1"});
        if guaranteed {
            (amounts["cpu"], amounts["memory"]) = (json!(self.free.to_string()), json!("32Mi"));
        }
        let container = json!({"name": "main", "image": image::BUSYBOX, "command": ["sh", "-c", IDLE],
            "resources": {"requests": amounts, "limits": amounts}});
        self.scene.create(name, &json!({"containers": [container]}))?;
        self.scene.wait_ready(name).map(drop)
    }

    /// A pod with a claim of its own name, which the kubelet of now has prepared.
    fn claimed(&self, name: &str) -> Result<()> {
        let (cluster, node) = (&self.scene.cluster, &self.scene.node);
        claims::allocated(cluster, NODE, name, &["a"], &[DRIVER])?;
        let spec = json!({"automountServiceAccountToken": false,
            "containers": [{"name": "main", "resources": {"claims": [{"name": name, "request": "a"}]}}]});
        claims::schedule(cluster, node, name, &[name], None, &spec)?;
        self.scene.wait_ready(name).map(drop)
    }

    /// A pod with a claim ends, and its claim is given back, once.
    fn claimed_ends(&self, name: &str) -> Result<()> {
        self.scene.delete(name)?;
        let prepared = self.driver.prepared();
        ensure!(!prepared.iter().any(|one| one == name), "{prepared:?}");
        let of_claim = |call: &str| {
            let calls = self.driver.claims_of(call)?;
            Ok::<_, anyhow::Error>(calls.into_iter().flatten().filter(|one| one == name).count())
        };
        let times = (of_claim("NodePrepareResources")?, of_claim("NodeUnprepareResources")?);
        ensure!(times == (1, 1), "prepared and given back: {times:?}, {:?}", self.driver.calls()?);
        let left = self.claims()?.to_string();
        ensure!(!left.contains(&format!("\"{name}\"")), "{left}");
        Ok(())
    }

    /// A plugin that says what it can and fails to tell its devices is not asked again, and the node shows none of them; a later
    /// registration brings them.
    fn fails_at_first(&self, resource: &str) -> Result<()> {
        let one = json!([{"id": "x", "health": "Healthy"}]);
        let fails = json!({"devices": one, "fault": {"ListAndWatch": "fail"}});
        let mut plugin = DevicePlugin::start(DEVICE_PLUGIN, &self.scene.node, resource, &fails)?;
        let shows = |amount: &'static str| {
            let what = format!("it has {amount} of {resource}");
            self.scene.cluster.wait_for("nodes", "", NODE, &what, |node| {
                let status = &node["status"];
                [&status["capacity"], &status["allocatable"]].iter().all(|shown| shown[resource] == amount)
            })
        };
        shows("0")?;
        let asked_once = |plugin: &DevicePlugin| {
            let asked = ["Register", "GetDevicePluginOptions", "ListAndWatch"].map(|call| plugin.calls(call));
            let asked = asked.into_iter().collect::<Result<Vec<_>>>()?;
            ensure!(asked == [vec![Value::Null], vec![Value::Null], vec![Value::Null]], "{asked:?}");
            Ok(())
        };
        asked_once(&plugin)?;
        plugin.tell(&json!({"devices": one}))?;
        asked_once(&plugin)?;
        plugin.again()?;
        shows("1").map(drop)
    }

    /// One that has to be refused: nobody has a CPU left. Whoever does that knows what is given.
    fn refused(&self, name: &str) -> Result<()> {
        let amounts = json!({"cpu": "1", "memory": "32Mi"});
        let container = json!({"name": "main", "image": image::BUSYBOX, "command": ["sh", "-c", IDLE],
            "resources": {"requests": amounts, "limits": amounts}});
        self.scene.create(name, &json!({"containers": [container]}))?;
        let failed = |pod: &Value| pod["status"]["phase"] == "Failed";
        let pod = self.scene.cluster.wait_for("pods", "default", name, "it is refused", failed)?;
        ensure!(pod["status"]["reason"] == "TopologyAffinityError", "{:#}", pod["status"]);
        self.scene.delete(name)
    }

    fn file(&self, name: &str) -> Result<String> {
        let path = self.scene.node.root_dir().join(name);
        std::fs::read_to_string(&path).with_context(|| path.display().to_string())
    }

    /// The claims of `dra_manager_state`.
    fn claims(&self) -> Result<Value> {
        let file: Value = serde_json::from_str(&self.file("dra_manager_state")?)?;
        let mut data: Value = serde_json::from_str(file["Data"].as_str().context("no data")?)?;
        if let Some(claims) = data["ClaimInfoStateList"].as_array_mut() {
            claims.sort_by_key(|claim| claim["ClaimName"].to_string());
        }
        Ok(data)
    }

    fn seen(&self) -> Result<Seen> {
        let cri = self.scene.node.cri()?;
        let mut has = BTreeMap::new();
        for one in cri.containers()?.into_iter().filter(|one| one.running) {
            let status = std::fs::read_to_string(format!("/proc/{}/status", cri.pid(&one.id)?))?;
            let of = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
            let (_, said) = cri.exec(&one.id, &["env"])?;
            let given = said.lines().filter(|line| line.starts_with("GIVEN_") || line.starts_with("DRA_"));
            let mut given: Vec<String> = given.map(str::to_owned).collect();
            given.sort();
            let [cpus, nodes] = ["Cpus_allowed_list:", "Mems_allowed_list:"].map(|name| of(name).trim().to_owned());
            has.insert(one.pod, (cpus, nodes, given));
        }
        let devices: Value = serde_json::from_str(&self.file("device-plugins/kubelet_internal_checkpoint")?)?;
        let devices = devices["Data"]["PodDeviceEntries"].as_array().into_iter().flatten();
        let mut devices: Vec<String> = devices.map(Value::to_string).collect();
        devices.sort();
        let states = [self.file("cpu_manager_state")?, self.file("memory_manager_state")?];
        let containers = self.scene.node.fingerprint()?;
        Ok(Seen { containers, has, states, devices, claims: self.claims()?, prepared: self.driver.prepared() })
    }

    /// How often a device was given, and claims were prepared or given back.
    fn asked(&self) -> Result<[usize; 3]> {
        let of_driver = |call: &str| Ok::<_, anyhow::Error>(self.driver.calls_of(call)?.len());
        let (prepared, given_back) = (of_driver("NodePrepareResources")?, of_driver("NodeUnprepareResources")?);
        Ok([self.plugin.calls("Allocate")?.len(), prepared, given_back])
    }

    /// The kubelet changes, and everybody has what he had; nobody is asked for anything again.
    fn changes(&mut self, to: Kubelet) -> Result<()> {
        let before = self.seen()?;
        let calls = self.asked()?;
        let lists = self.plugin.calls("ListAndWatch")?.len();
        self.scene.hand_over(to, |_| Ok(()))?;
        self.kubelets += 1;
        self.wait_shown(lists)?;
        self.driver.wait_registered(self.kubelets)?;
        self.refused(&format!("refused-{}", self.kubelets))?;
        let now = self.seen()?;
        ensure!(now == before, "{before:#?}\nbecame, with {to:?}:\n{now:#?}");
        let asked = self.asked()?;
        ensure!(asked == calls, "plugin and driver were asked again: {asked:?} times instead of {calls:?}");
        for pod in before.has.keys() {
            let shown = self.scene.wait_ready(pod)?;
            let status = &shown["status"]["containerStatuses"][0];
            ensure!(status["restartCount"] == 0, "{status:#}");
        }
        Ok(())
    }

    /// A pod has all free CPUs, and nobody else is on them.
    fn wait_alone(&self, name: &str, own: &str) -> Result<()> {
        eventually(&format!("the others have left the CPUs of {name}"), LONG, || {
            let has = self.seen()?.has;
            let is_right = |(pod, has): (&String, &(String, String, Vec<String>))| {
                if pod == name { has.0 == own } else { has.0 == "0" }
            };
            ensure!(has.iter().all(is_right), "{has:?}");
            Ok(())
        })
    }

    /// A pod ends, and what it had may be had by others: the shared CPUs are `shared`.
    fn ends(&self, name: &str, shared: &str) -> Result<()> {
        self.scene.delete(name)?;
        eventually(&format!("{name} has given back what it had"), LONG, || {
            let now = self.seen()?;
            ensure!(now.has.values().all(|has| has.0 == shared), "{:?}", now.has);
            ensure!(now.states[0].contains(&format!(r#""defaultCpuSet":"{shared}""#)), "{:?}", now.states);
            Ok(())
        })
    }
}

#[test]
fn what_pods_have_for_themselves_stays_theirs_whoever_is_the_kubelet() -> Result<()> {
    let Some(mut world) = world()? else { return Ok(()) };
    let own = if world.free == 1 { "1".to_owned() } else { format!("1-{}", world.free) };
    let all = format!("0-{}", world.free);
    let container = json!({"name": "main", "image": image::BUSYBOX, "command": ["sh", "-c", IDLE]});
    world.scene.create("shared", &json!({"containers": [container]}))?;
    world.scene.wait_ready("shared")?;
    world.pod("upstreams", true)?;
    world.claimed("claimed-by-upstreams")?;
    world.wait_alone("upstreams", &own)?;
    world.fails_at_first("example.com/late-for-upstreams")?;

    world.changes(Kubelet::Ours).context("upstream's node becomes ours")?;
    // It gets the other device.
    world.pod("late", false)?;
    let seen = world.seen()?;
    ensure!(seen.devices.len() == 2, "{seen:#?}");
    ensure!(seen.has["late"].2 != seen.has["upstreams"].2 && seen.has["late"].0 == "0", "{seen:#?}");
    world.claimed("claimed-by-ours")?;
    world.fails_at_first("example.com/late-for-ours")?;
    world.changes(Kubelet::Upstreams).context("ours goes back to upstream")?;
    world.changes(Kubelet::Ours).context("and becomes ours again")?;
    // Given by upstream's kubelet, given back by ours; and the other way around.
    world.ends("upstreams", &all)?;
    world.claimed_ends("claimed-by-upstreams")?;
    world.pod("ours", true)?;
    world.wait_alone("ours", &own)?;
    world.changes(Kubelet::Upstreams).context("what ours has given")?;
    world.ends("ours", &all)?;
    world.claimed_ends("claimed-by-ours")?;
    world.ends("late", &all)?;
    let World { mut scene, plugin, driver, .. } = world;
    scene.hand_over(Kubelet::Ours, |_| Ok(()))?;
    scene.delete("shared")?;
    drop((plugin, driver));
    scene.finish()
}
